// What is on a page, before it is laid out. Texts are as they are: the layout escapes them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/json_output.h"
#include "cli/report/svg.h"

namespace kvtier::cli {

struct Panel {
  std::string title;
  std::string svg;  // kPanelWidth by kPanelHeight
};

struct PageTable {
  std::string caption;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // the first column is text, the others numbers
};

struct Page {
  std::string title;
  std::string command;                                     // the command line, if known
  std::vector<std::pair<std::string, std::string>> facts;  // name and value
  std::vector<Panel> panels;
  std::vector<PageTable> tables;
  std::vector<std::string> notes;  // paragraphs: how to read it
};

Page SimulatePage(const Json& document);
Page ReplayPage(const Json& document);

// A member of an object as a finite number; empty when it is missing or anything else.
std::optional<double> NumberAt(const Json& object, const std::string& name);
std::string TextAt(const Json& object, const std::string& name);    // "" when there is none
const Json& MemberAt(const Json& object, const std::string& name);  // null when there is none
// The member as an array; an empty one when there is none.
const Json& ArrayAt(const Json& object, const std::string& name);

std::string CountText(std::optional<double> value);  // "1,828", "-"
std::string RatioText(std::optional<double> value);  // "0.3664", "-"
std::string FileName(const std::string& path);       // what follows the last slash

}  // namespace kvtier::cli
