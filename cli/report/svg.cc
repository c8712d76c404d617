#include "cli/report/svg.h"

#include <array>
#include <cmath>

#include "cli/json_output.h"
#include "common/check.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

constexpr std::array<std::string_view, kMarkShapes> kMarks = {
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.7-3.7h7.4v7.4h-7.4z",
    "M0-5L4.6 3.4h-9.2z",
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L4.6-3.4h-9.2z",
    "M-4-4L4 4M-4 4L4-4",
    "M-5 0H5M0-5V5",
};

std::string_view AnchorStyle(Anchor anchor) {
  if (anchor == Anchor::kMiddle) return " middle";
  return anchor == Anchor::kEnd ? " end" : "";
}

// To a hundredth of a unit, without zeros that say nothing.
std::string Number(double value) {
  KVTIER_CHECK(std::isfinite(value));
  std::string text = Fixed(value, 2);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

// Bytes that are no UTF-8 replaced, by the library that also does it for --json.
std::string ValidUtf8(std::string_view text) {
  const Json quoted = std::string(text);
  return Json::parse(quoted.dump(-1, ' ', false, Json::error_handler_t::replace))
      .get<std::string>();
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 && c != '\t' && c != '\n' && c != '\r';
}

}  // namespace

std::string EscapeXml(std::string_view text) {
  std::string out;
  const std::string valid = ValidUtf8(text);
  for (size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    const std::string_view three = std::string_view(valid).substr(i, 3);
    if (three == "\xEF\xBF\xBE" || three == "\xEF\xBF\xBF") {  // U+FFFE and U+FFFF
      out += kReplacement;
      i += 2;
    } else if (IsControl(c)) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

void Svg::Line(Point from, Point to, std::string_view style) {
  absl::StrAppend(&text_, "<line class=\"", std::string(style), "\" x1=\"", Number(from.x),
                  "\" y1=\"", Number(from.y), "\" x2=\"", Number(to.x), "\" y2=\"", Number(to.y),
                  "\"/>\n");
}

void Svg::Points(std::span<const Point> points) {
  for (size_t i = 0; i < points.size(); ++i) {
    absl::StrAppend(&text_, i == 0 ? "" : " ", Number(points[i].x), ",", Number(points[i].y));
  }
}

void Svg::Path(std::span<const Point> points, std::string_view style) {
  absl::StrAppend(&text_, "<polyline class=\"", std::string(style), "\" points=\"");
  Points(points);
  text_ += "\"/>\n";
}

void Svg::Area(std::span<const Point> points, std::string_view style) {
  absl::StrAppend(&text_, "<polygon class=\"", std::string(style), "\" points=\"");
  Points(points);
  text_ += "\"/>\n";
}

void Svg::Close(std::string_view element, std::string_view note) {
  if (note.empty()) {
    text_ += "/>\n";
    return;
  }
  absl::StrAppend(&text_, "><title>", EscapeXml(note), "</title></", std::string(element), ">\n");
}

void Svg::Rect(Point corner, double width, double height, std::string_view style,
               std::string_view note) {
  absl::StrAppend(&text_, "<rect class=\"", std::string(style), "\" x=\"", Number(corner.x),
                  "\" y=\"", Number(corner.y), "\" width=\"", Number(width), "\" height=\"",
                  Number(height), "\"");
  Close("rect", note);
}

void Svg::Mark(int shape, Point center, std::string_view style, std::string_view note) {
  absl::StrAppend(&text_, "<path class=\"mark ", std::string(style), "\" transform=\"translate(",
                  Number(center.x), " ", Number(center.y), ")\" d=\"",
                  std::string(kMarks[static_cast<size_t>(shape % kMarkShapes)]), "\"");
  Close("path", note);
}

void Svg::Text(Point at, std::string_view text, std::string_view style, Anchor anchor,
               bool turned) {
  absl::StrAppend(&text_, "<text class=\"", std::string(style), std::string(AnchorStyle(anchor)),
                  "\"");
  if (turned) {
    absl::StrAppend(&text_, " transform=\"translate(", Number(at.x), " ", Number(at.y),
                    ") rotate(-90)\"");
  } else {
    absl::StrAppend(&text_, " x=\"", Number(at.x), "\" y=\"", Number(at.y), "\"");
  }
  absl::StrAppend(&text_, ">", EscapeXml(text), "</text>\n");
}

// Colours that stay apart for the colour-blind (after Okabe and Ito), darker than theirs on white
// and lighter on black. Paper is always light.
const std::string_view kChartStyle = R"(
.chart { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; background: #fff; }
.chart text { fill: #1a1d21; }
.chart .small { font-size: 12px; fill: #59626c; }
.chart .title { font-size: 15px; font-weight: 600; }
.chart .label { font-weight: 600; fill: currentColor; }
.chart .middle { text-anchor: middle; }
.chart .end { text-anchor: end; }
.chart .paper { fill: #fff; }
.chart .grid { stroke: #e2e6ea; stroke-width: 1; }
.chart .axis { stroke: #7d8791; stroke-width: 1; }
.chart .faint { stroke: #9aa3ad; stroke-width: 1; stroke-dasharray: 2 2; fill: none; }
.chart .line { stroke: currentColor; stroke-width: 2; fill: none; stroke-linejoin: round; }
.chart .thin { stroke-width: 1.2; }
.chart .mark { stroke: currentColor; stroke-width: 1.4; fill: currentColor; }
.chart .fill { fill: currentColor; fill-opacity: .85; }
.chart .hover { fill: #000; fill-opacity: 0; }
.chart .hover:hover { fill-opacity: .12; }
.d1 { stroke-dasharray: 7 4; } .d2 { stroke-dasharray: 2 3; } .d3 { stroke-dasharray: 9 3 2 3; }
.d4 { stroke-dasharray: 14 4; } .d5 { stroke-dasharray: 4 2; }
.c0 { color: #0068a8; } .c1 { color: #c94f00; } .c2 { color: #00825c; } .c3 { color: #a23e86; }
.c4 { color: #a87600; } .c5 { color: #6f55c4; } .c6 { color: #1a1d21; }
@media screen and (prefers-color-scheme: dark) {
  .chart { background: #14171a; }
  .chart text { fill: #e6e9ec; }
  .chart .small { fill: #a3adb7; }
  .chart .label { fill: currentColor; }
  .chart .paper { fill: #14171a; }
  .chart .grid { stroke: #2a3036; }
  .chart .axis { stroke: #78828c; }
  .chart .faint { stroke: #67717b; }
  .chart .hover { fill: #fff; }
  .c0 { color: #5ab4f0; } .c1 { color: #ff8c4d; } .c2 { color: #2fc79b; } .c3 { color: #e48fc8; }
  .c4 { color: #e9bd3e; } .c5 { color: #a996f0; } .c6 { color: #f2f4f6; }
}
)";

}  // namespace kvtier::cli
