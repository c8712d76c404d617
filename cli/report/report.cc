#include "cli/report/report.h"

#include <cmath>

#include "cli/report/charts.h"
#include "cli/report/page.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

// 1000 by 700 shows facts and the first chart; from 1360 on two charts stand side by side.
constexpr std::string_view kPageStyle = R"(
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; margin: 0 auto;
  padding: 14px 20px 40px; max-width: 1480px; background: #fff; color: #1a1d21; }
h1 { font-size: 20px; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 26px 0 6px; }
dl { display: flex; flex-wrap: wrap; gap: 4px 26px; margin: 0 0 10px; }
dt { font-size: 12px; color: #59626c; }
dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(640px, 100%), 1fr));
  gap: 14px; }
figure { margin: 0; break-inside: avoid; }
figure svg { display: block; width: 100%; max-width: 960px; height: auto; border: 1px solid #dde2e6;
  border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid #e2e6ea;
  white-space: nowrap; }
th { font-weight: 600; color: #59626c; }
th:first-child, td:first-child { text-align: left; }
p { max-width: 90ch; margin: 8px 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; padding: 8px 10px;
  background: #f3f5f7; border-radius: 6px; font-size: 13px; }
@media screen and (prefers-color-scheme: dark) {
  body { background: #0c0e10; color: #e6e9ec; }
  dt, th { color: #a3adb7; }
  th, td { border-color: #2a3036; }
  figure svg { border-color: #2a3036; }
  pre { background: #1a1e22; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11px; }
  .charts { display: block; }
  figure { margin-bottom: 10px; }
  figure svg { max-width: 640px; }
  tr { break-inside: avoid; }
}
)";

constexpr std::string_view kEmpty = "There are no figures to draw.";

Page MakePage(const Json& document) {
  return document.contains("latency_us") ? ReplayPage(document) : SimulatePage(document);
}

std::string Element(const std::string& name, std::string_view text) {
  return absl::StrCat("<", name, ">", EscapeXml(text), "</", name, ">");
}

std::string FactsHtml(const Page& page) {
  std::string out = "<dl>\n";
  for (const auto& [name, value] : page.facts) {
    absl::StrAppend(&out, "<div>", Element("dt", name), Element("dd", value), "</div>\n");
  }
  return out + "</dl>\n";
}

std::string PanelHtml(const Panel& panel) {
  return absl::StrCat("<figure><svg class=\"chart\" role=\"img\" aria-label=\"",
                      EscapeXml(panel.title), "\" viewBox=\"0 0 ", Fixed(kPanelWidth, 0), " ",
                      Fixed(kPanelHeight, 0), "\" xmlns=\"http://www.w3.org/2000/svg\">\n",
                      panel.svg, "</svg></figure>\n");
}

std::string TableHtml(const PageTable& table) {
  std::string out =
      absl::StrCat(Element("h2", table.caption), "\n<div class=\"wide\"><table>\n<thead><tr>");
  for (const std::string& cell : table.head) out += Element("th", cell);
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += Element("td", cell);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string ReportHtml(const Json& document) {
  const Page page = MakePage(document);
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
      Element("title", page.title), "\n<style>", std::string(kPageStyle), std::string(kChartStyle),
      "</style>\n</head>\n<body>\n", Element("h1", page.title), "\n", FactsHtml(page),
      "<div class=\"charts\">\n");
  for (const Panel& panel : page.panels) out += PanelHtml(panel);
  out += "</div>\n";
  if (page.panels.empty()) out += Element("p", kEmpty) + "\n";
  for (const std::string& note : page.notes) out += Element("p", note) + "\n";
  for (const PageTable& table : page.tables) out += TableHtml(table);
  if (!page.command.empty()) {
    absl::StrAppend(&out, Element("h2", "Command"), "\n", Element("pre", page.command), "\n");
  }
  return out + "</body>\n</html>\n";
}

std::string PlotSvg(const Json& document) {
  constexpr double kHead = 40;
  const Page page = MakePage(document);
  const double panels = std::max<double>(1, static_cast<double>(page.panels.size()));
  const std::string size =
      absl::StrCat(Fixed(kPanelWidth, 0), " ", Fixed(kHead + panels * kPanelHeight, 0));
  std::string out = absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg class=\"chart\" "
      "xmlns=\"http://www.w3.org/2000/svg\" width=\"",
      Fixed(kPanelWidth, 0), "\" height=\"", Fixed(kHead + panels * kPanelHeight, 0),
      "\" viewBox=\"0 0 ", size, "\">\n", Element("title", page.title), "\n<style>",
      std::string(kChartStyle), "</style>\n");
  Svg head;
  head.Rect({0, 0}, kPanelWidth, kHead + panels * kPanelHeight, "paper");
  head.Text({14, 27}, page.title, "title");
  if (page.panels.empty()) head.Text({14, kHead + 20}, kEmpty, "");
  out += head.text();
  for (size_t i = 0; i < page.panels.size(); ++i) {
    absl::StrAppend(&out, "<g transform=\"translate(0 ",
                    Fixed(kHead + static_cast<double>(i) * kPanelHeight, 0), ")\">\n",
                    page.panels[i].svg, "</g>\n");
  }
  return out + "</svg>\n";
}

const Json& MemberAt(const Json& object, const std::string& name) {
  static const Json* const kNull = new Json();
  if (!object.is_object()) return *kNull;
  const auto found = object.find(name);
  return found == object.end() ? *kNull : *found;
}

std::optional<double> NumberAt(const Json& object, const std::string& name) {
  const Json& member = MemberAt(object, name);
  if (!member.is_number() || !std::isfinite(member.get<double>())) return std::nullopt;
  return member.get<double>();
}

std::string TextAt(const Json& object, const std::string& name) {
  const Json& member = MemberAt(object, name);
  return member.is_string() ? member.get<std::string>() : "";
}

const Json& ArrayAt(const Json& object, const std::string& name) {
  static const Json* const kNone = new Json(Json::array());
  const Json& member = MemberAt(object, name);
  return member.is_array() ? member : *kNone;
}

std::string CountText(std::optional<double> value) {
  return value && *value >= 0 && *value < 1e18
             ? WithCommas(static_cast<uint64_t>(std::llround(*value)))
             : "-";
}

std::string RatioText(std::optional<double> value) { return value ? Fixed(*value, 4) : "-"; }

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace kvtier::cli
