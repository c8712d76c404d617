#include "cli/report/charts.h"

#include <algorithm>
#include <cmath>

#include "cli/json_output.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

constexpr double kLabelHeight = 17;
constexpr double kCharWidth = 6.6;  // of small text, about

double TextWidth(const std::string& text) { return kCharWidth * static_cast<double>(text.size()); }

std::string Color(int color) { return absl::StrCat("c", color % kColors); }

// The part of a panel between the axes.
struct Plot {
  double left = 0;
  double right = 0;
  double top = 58;
  double bottom = kPanelHeight - 52;

  double X(const Axis& axis, double value) const {
    return left + axis.scale.At(value) * (right - left);
  }
  double Y(const Axis& axis, double value) const {
    return bottom - axis.scale.At(value) * (bottom - top);
  }
};

void DrawHead(const std::string& title, const std::string& subtitle, Svg* svg) {
  svg->Rect({0, 0}, kPanelWidth, kPanelHeight, "paper");
  svg->Text({14, 22}, title, "title");
  svg->Text({14, 41}, subtitle, "small");
}

void DrawXAxis(const Axis& x, const Plot& plot, Svg* svg) {
  for (const Scale::Tick& tick : x.scale.ticks()) {
    const double at = plot.X(x, tick.value);
    svg->Line({at, plot.top}, {at, plot.bottom}, "grid");
    svg->Line({at, plot.bottom}, {at, plot.bottom + (tick.named ? 5 : 3)}, "axis");
    if (tick.named) {
      svg->Text({at, plot.bottom + 19}, x.name(tick.value), "small", Anchor::kMiddle);
    }
  }
  svg->Line({plot.left, plot.bottom}, {plot.right, plot.bottom}, "axis");
  svg->Text({(plot.left + plot.right) / 2, plot.bottom + 40}, x.title, "small", Anchor::kMiddle);
}

void DrawYAxis(const Axis& y, const Plot& plot, Svg* svg) {
  for (const Scale::Tick& tick : y.scale.ticks()) {
    const double at = plot.Y(y, tick.value);
    svg->Line({plot.left, at}, {plot.right, at}, "grid");
    if (tick.named) svg->Text({plot.left - 8, at + 4}, y.name(tick.value), "small", Anchor::kEnd);
  }
  svg->Line({plot.left, plot.top}, {plot.left, plot.bottom}, "axis");
  svg->Text({18, (plot.top + plot.bottom) / 2}, y.title, "small", Anchor::kMiddle, true);
}

// A name at the right edge and the point it belongs to.
struct EndLabel {
  std::string name;
  int color = 0;
  int dash = 0;
  std::optional<int> mark;
  bool layer = false;  // of a stack: a patch instead of a line
  Point end;
};

void DrawSample(const EndLabel& label, double left, double y, Svg* svg) {
  const std::string color = Color(label.color);
  if (label.layer) {
    svg->Rect({left + 4, y - 6}, 14, 12, "fill " + color);
    return;
  }
  svg->Line({left, y}, {left + 24, y},
            absl::StrCat("line ", color, " d", label.dash, label.mark ? "" : " thin"));
  if (label.mark) svg->Mark(*label.mark, {left + 12, y}, color);
}

void DrawEndLabels(std::vector<EndLabel> labels, const Plot& plot, Svg* svg) {
  std::stable_sort(labels.begin(), labels.end(),
                   [](const EndLabel& a, const EndLabel& b) { return a.end.y < b.end.y; });
  std::vector<double> wanted;
  for (const EndLabel& label : labels) wanted.push_back(label.end.y);
  const std::vector<double> at = SpreadOut(wanted, kLabelHeight, plot.top + 6, plot.bottom - 4);
  for (size_t i = 0; i < labels.size(); ++i) {
    const double left = plot.right + 18;
    svg->Line({labels[i].end.x + 3, labels[i].end.y}, {left - 3, at[i]}, "faint");
    DrawSample(labels[i], left, at[i], svg);
    svg->Text({left + 30, at[i] + 4}, labels[i].name, "label " + Color(labels[i].color));
  }
}

EndLabel DrawLine(const LineSeries& line, const LineChart& chart, const Plot& plot, Svg* svg) {
  std::vector<Point> points;
  for (const Point& point : line.points) {
    points.push_back({plot.X(chart.x, point.x), plot.Y(chart.y, point.y)});
  }
  const std::string color = Color(line.color);
  svg->Path(points, absl::StrCat("line ", color, " d", line.dash, line.mark ? "" : " thin"));
  for (size_t i = 0; line.mark && i < points.size(); ++i) {
    svg->Mark(*line.mark, points[i], color, line.notes.empty() ? "" : line.notes[i]);
  }
  return {line.name, line.color, line.dash, line.mark, false, points.back()};
}

// One layer between the sums below and above it, as steps.
std::vector<Point> LayerOutline(const Stack& stack, const std::vector<double>& below,
                                const std::vector<double>& above) {
  std::vector<Point> outline;
  for (size_t i = 0; i < above.size(); ++i) {
    outline.push_back({stack.edges[i], above[i]});
    outline.push_back({stack.edges[i + 1], above[i]});
  }
  for (size_t i = below.size(); i-- > 0;) {
    outline.push_back({stack.edges[i + 1], below[i]});
    outline.push_back({stack.edges[i], below[i]});
  }
  return outline;
}

std::vector<EndLabel> DrawStack(const Stack& stack, const LineChart& chart, const Plot& plot,
                                Svg* svg) {
  std::vector<EndLabel> labels;
  const size_t steps = stack.edges.size() - 1;
  std::vector<double> below(steps, 0);
  for (const Stack::Layer& layer : stack.layers) {
    std::vector<double> above = below;
    for (size_t i = 0; i < steps; ++i) above[i] += layer.values[i];
    std::vector<Point> outline = LayerOutline(stack, below, above);
    for (Point& point : outline) point = {plot.X(chart.x, point.x), plot.Y(chart.y, point.y)};
    svg->Area(outline, "fill " + Color(layer.color));
    labels.push_back({layer.name,
                      layer.color,
                      0,
                      std::nullopt,
                      true,
                      {plot.right, plot.Y(chart.y, (below.back() + above.back()) / 2)}});
    below = std::move(above);
  }
  return labels;
}

// Over everything else, so that the pointer finds the step wherever it is.
void DrawStackNotes(const Stack& stack, const LineChart& chart, const Plot& plot, Svg* svg) {
  for (size_t i = 0; i < stack.notes.size(); ++i) {
    const double left = plot.X(chart.x, stack.edges[i]);
    const double right = plot.X(chart.x, stack.edges[i + 1]);
    svg->Rect({left, plot.top}, right - left, plot.bottom - plot.top, "hover", stack.notes[i]);
  }
}

// Where the bars of a chart go.
struct BarLayout {
  double slot = 0;  // from bar to bar
  double width = 0;
  bool turned = false;  // texts do not fit across
};

BarLayout LayOut(const BarChart& chart, const Plot& plot) {
  double slots = 0;
  double widest = 0;
  for (const BarChart::Group& group : chart.groups) {
    slots += static_cast<double>(group.bars.size()) + 0.8;
    for (const BarChart::Bar& bar : group.bars) widest = std::max(widest, TextWidth(bar.name));
  }
  BarLayout layout;
  layout.slot = std::min(110.0, (plot.right - plot.left) / std::max(1.0, slots));
  layout.width = std::min(56.0, layout.slot * 0.8);
  layout.turned = std::max(widest, 36.0) > layout.slot;
  return layout;
}

void DrawBar(const BarChart& chart, const BarChart::Bar& bar, double center,
             const BarLayout& layout, const Plot& plot, Svg* svg) {
  double sum = 0;
  for (size_t i = 0; i < bar.values.size(); ++i) {
    const double low = plot.Y(chart.y, sum);
    sum += bar.values[i];
    const double high = plot.Y(chart.y, sum);
    svg->Rect({center - layout.width / 2, high}, layout.width, low - high,
              "fill " + Color(chart.layers[i].color), bar.note);
  }
  const double top = plot.Y(chart.y, sum);
  if (layout.turned) {
    svg->Text({center + 4, top - 5}, Fixed(sum, 3), "small", Anchor::kStart, true);
    svg->Text({center + 4, plot.bottom + 6}, bar.name, "small", Anchor::kEnd, true);
  } else {
    svg->Text({center, top - 6}, Fixed(sum, 3), "small", Anchor::kMiddle);
    svg->Text({center, plot.bottom + 16}, bar.name, "small", Anchor::kMiddle);
  }
}

void DrawLegend(const std::vector<BarChart::Layer>& layers, Svg* svg) {
  if (layers.size() < 2) return;
  double x = kPanelWidth - 14;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    x -= 8 * static_cast<double>(layer->name.size());
    svg->Text({x, 22}, layer->name, "label " + Color(layer->color));
    svg->Rect({x - 20, 11}, 14, 12, "fill " + Color(layer->color));
    x -= 36;
  }
}

// A value's name goes above the row or below it by turns, a line further out when the one before it
// is in the way.
class RangeLabels {
 public:
  explicit RangeLabels(double row) : row_(row) {}
  void Add(const std::string& text, double x, Svg* svg) {
    Side& side = sides_[next_];
    const double half = TextWidth(text) / 2;
    side.level = x - half < side.end ? side.level + 1 : 0;
    side.end = std::max(side.end, x + half + 4);
    const double out = 13 + 14 * side.level;
    svg->Text({x, row_ + (next_ == 0 ? -out + 2 : out + 6)}, text, "small", Anchor::kMiddle);
    next_ = 1 - next_;
  }

 private:
  struct Side {
    double end = 0;
    double level = 0;
  };
  const double row_;
  Side sides_[2];
  size_t next_ = 0;
};

void DrawRange(const RangeChart& chart, const RangeChart::Row& row, double y, const Plot& plot,
               Svg* svg) {
  svg->Line({plot.left, y}, {plot.right, y}, "grid");
  svg->Text({plot.left - 36, y + 4}, row.name, "", Anchor::kEnd);
  if (row.values.empty()) {
    svg->Text({plot.left + 10, y - 6}, "none", "small");
    return;
  }
  svg->Line({plot.X(chart.x, row.values.front().at), y}, {plot.X(chart.x, row.values.back().at), y},
            "line c0");
  RangeLabels labels(y);
  for (size_t i = 0; i < row.values.size(); ++i) {
    const double x = plot.X(chart.x, row.values[i].at);
    const std::string note = absl::StrCat(row.values[i].name, " ", chart.x.name(row.values[i].at));
    svg->Mark(static_cast<int>(i), {x, y}, Color(static_cast<int>(i)), row.name + " " + note);
    labels.Add(note, x, svg);
  }
}

}  // namespace

std::string Draw(const LineChart& chart) {
  const Plot plot{.left = 66, .right = kPanelWidth - 178};
  Svg svg;
  DrawHead(chart.title, chart.subtitle, &svg);
  DrawXAxis(chart.x, plot, &svg);
  DrawYAxis(chart.y, plot, &svg);
  std::vector<EndLabel> labels;
  if (chart.stack) labels = DrawStack(*chart.stack, chart, plot, &svg);
  const auto first_line = static_cast<std::ptrdiff_t>(labels.size());
  for (auto line = chart.lines.rbegin(); line != chart.lines.rend(); ++line) {
    if (!line->points.empty()) labels.push_back(DrawLine(*line, chart, plot, &svg));
  }
  std::reverse(labels.begin() + first_line, labels.end());
  DrawEndLabels(labels, plot, &svg);
  if (chart.stack) DrawStackNotes(*chart.stack, chart, plot, &svg);
  return svg.text();
}

std::string Draw(const BarChart& chart) {
  Plot plot{.left = 66, .right = kPanelWidth - 16};
  const BarLayout layout = LayOut(chart, plot);
  plot.top += layout.turned ? 38 : 18;  // what stands above the bars and below them
  plot.bottom = kPanelHeight - (layout.turned ? 104 : 64);
  Svg svg;
  DrawHead(chart.title, chart.subtitle, &svg);
  DrawLegend(chart.layers, &svg);
  DrawYAxis(chart.y, plot, &svg);
  double at = plot.left + layout.slot * 0.4;
  for (const BarChart::Group& group : chart.groups) {
    const double bars = static_cast<double>(group.bars.size());
    svg.Text({at + bars * layout.slot / 2, plot.bottom + (layout.turned ? 82 : 37)}, group.name, "",
             Anchor::kMiddle);
    for (const BarChart::Bar& bar : group.bars) {
      DrawBar(chart, bar, at + layout.slot / 2, layout, plot, &svg);
      at += layout.slot;
    }
    at += layout.slot * 0.8;
  }
  svg.Line({plot.left, plot.bottom}, {plot.right, plot.bottom}, "axis");
  svg.Text({(plot.left + plot.right) / 2, kPanelHeight - 6}, chart.x_title, "small",
           Anchor::kMiddle);
  return svg.text();
}

std::string Draw(const RangeChart& chart) {
  const Plot plot{.left = 116, .right = kPanelWidth - 48};
  Svg svg;
  DrawHead(chart.title, chart.subtitle, &svg);
  DrawXAxis(chart.x, plot, &svg);
  const double height =
      (plot.bottom - plot.top) / std::max(1.0, static_cast<double>(chart.rows.size()));
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    DrawRange(chart, chart.rows[i], plot.top + height * (static_cast<double>(i) + 0.5), plot, &svg);
  }
  return svg.text();
}

std::vector<double> SpreadOut(std::vector<double> wanted, double gap, double low, double high) {
  double least = low;
  for (double& at : wanted) {
    at = std::max(at, least);
    least = at + gap;
  }
  double most = high;
  for (auto at = wanted.rbegin(); at != wanted.rend(); ++at) {
    *at = std::min(*at, most);
    most = *at - gap;
  }
  return wanted;
}

}  // namespace kvtier::cli
