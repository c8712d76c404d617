// The few shapes that charts are made of, as SVG text.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvtier::cli {

// `text` for XML and HTML, between tags or in a quoted attribute. What is no UTF-8, or no character
// of XML, becomes U+FFFD.
std::string EscapeXml(std::string_view text);

// In user units, y down.
struct Point {
  double x = 0;
  double y = 0;
};

enum class Anchor { kStart, kMiddle, kEnd };

// How to tell series apart without colour: a mark for each number, from 0, and again from the
// first.
inline constexpr int kMarkShapes = 7;

// Appends elements. `style` is a list of class names from kChartStyle, never a user's text; texts
// and notes (what a browser shows under the pointer) are escaped here. Coordinates must be finite.
class Svg {
 public:
  void Line(Point from, Point to, std::string_view style);
  void Path(std::span<const Point> points, std::string_view style);
  void Area(std::span<const Point> points, std::string_view style);
  void Rect(Point corner, double width, double height, std::string_view style,
            std::string_view note = "");
  void Mark(int shape, Point center, std::string_view style, std::string_view note = "");
  // `turned`: reads upwards.
  void Text(Point at, std::string_view text, std::string_view style, Anchor anchor = Anchor::kStart,
            bool turned = false);

  const std::string& text() const { return text_; }

 private:
  void Points(std::span<const Point> points);
  void Close(std::string_view element, std::string_view note);

  std::string text_;
};

// Classes of charts and pages for light and dark: c0.. colours, d0.. dashes, line, mark, fill,
// grid, axis, faint, title, small, label.
extern const std::string_view kChartStyle;
inline constexpr int kColors = 7;
inline constexpr int kInk = 6;  // the colour of text

}  // namespace kvtier::cli
