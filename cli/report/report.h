// Pages and pictures of what a command found, made from the document that it prints with --json and
// from nothing else.
#pragma once

#include <string>

#include "cli/json_output.h"

namespace kvtier::cli {

// `document`: of `kvtier simulate` or `kvtier replay`. Values that are missing, null or not finite
// are left out; a document without any makes a page that says so.

// One page that needs nothing else: no network, no script. Light or dark as the reader has it; well
// formed XML too.
std::string ReportHtml(const Json& document);
// The page's charts, one below the other, as one SVG file.
std::string PlotSvg(const Json& document);

}  // namespace kvtier::cli
