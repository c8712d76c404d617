// Charts as SVG: axes with units, names beside what they name, a note for each value under the
// pointer. Each fills a panel of kPanelWidth by kPanelHeight.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/report/scale.h"
#include "cli/report/svg.h"

namespace kvtier::cli {

inline constexpr double kPanelWidth = 720;
inline constexpr double kPanelHeight = 400;

// Looks: color below kColors; dash and mark as in cli/report/svg.h.
struct LineSeries {
  std::string name;
  int color = 0;
  int dash = 0;
  std::optional<int> mark;         // none: a thin line without marks
  std::vector<Point> points;       // in the axes' units, x ascending
  std::vector<std::string> notes;  // of each point, or empty
};

// Shares of a whole, one upon the other, each constant from an edge to the next.
struct Stack {
  struct Layer {
    std::string name;
    int color = 0;
    std::vector<double> values;
  };
  std::vector<double> edges;       // one more than the values of each layer
  std::vector<Layer> layers;       // the first lies at the bottom
  std::vector<std::string> notes;  // of each step
};

struct LineChart {
  std::string title;
  std::string subtitle;  // one line: what it says
  Axis x;
  Axis y;
  std::optional<Stack> stack;     // behind the lines
  std::vector<LineSeries> lines;  // the first lies on top
};
std::string Draw(const LineChart& chart);

struct BarChart {
  struct Layer {
    std::string name;
    int color = 0;
  };
  struct Bar {
    std::string name;
    std::vector<double> values;  // of each layer
    std::string note;
  };
  struct Group {
    std::string name;
    std::vector<Bar> bars;
  };
  std::string title;
  std::string subtitle;
  std::string x_title;
  Axis y;
  std::vector<Layer> layers;  // the first lies at the bottom
  std::vector<Group> groups;
};
std::string Draw(const BarChart& chart);

// Some values of each row, named where they lie.
struct RangeChart {
  struct Value {
    std::string name;
    double at = 0;
  };
  struct Row {
    std::string name;
    std::vector<Value> values;  // ascending
  };
  std::string title;
  std::string subtitle;
  Axis x;
  std::vector<Row> rows;
};
std::string Draw(const RangeChart& chart);

// Positions as near the wanted ones as at least `gap` between neighbours allows, in the order
// given (ascending); within [low, high] if there is room.
std::vector<double> SpreadOut(std::vector<double> wanted, double gap, double low, double high);

}  // namespace kvtier::cli
