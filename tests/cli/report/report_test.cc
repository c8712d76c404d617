// Pages and pictures: that they are well formed, that they say what the document says, and that
// nothing in a document breaks them.
#include "cli/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <regex>

#include "cli/read_file.h"
#include "cli/report/charts.h"
#include "cli/report/output_file.h"
#include "cli/report/scale.h"
#include "cli/report/svg.h"
#include "tests/support/temp_folder.h"

namespace kvtier::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Empty when every element is closed in order and every & begins an entity; else what is wrong.
std::string XmlFault(const std::string& text) {
  static const std::regex kToken("<[^>]*>|&[a-z]*;?");
  std::vector<std::string> open;
  for (std::sregex_iterator it(text.begin(), text.end(), kToken), end; it != end; ++it) {
    const std::string token = it->str();
    if (token[0] == '&') {
      if (!std::regex_match(token, std::regex("&(amp|lt|gt|quot);"))) return token;
    } else if (token[1] == '/') {
      const std::string name = token.substr(2, token.size() - 3);
      if (open.empty() || open.back() != name) return token;
      open.pop_back();
    } else if (token[1] != '!' && token[1] != '?' && !token.ends_with("/>")) {
      open.push_back(token.substr(1, token.find_first_of(" >") - 1));
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is left open";
}

TEST(XmlFault, IsFound) {  // the check can fail
  EXPECT_EQ(XmlFault("<a><b/>&lt;</a>"), "");
  EXPECT_EQ(XmlFault("<a><b></a>"), "</a>");
  EXPECT_EQ(XmlFault("<a>"), "<a> is left open");
  EXPECT_EQ(XmlFault("<a>x & y</a>"), "&");
}

// Both of a document's forms, checked.
struct Rendered {
  explicit Rendered(const Json& document) : html(ReportHtml(document)), svg(PlotSvg(document)) {
    for (const std::string& text : {html, svg}) {
      EXPECT_EQ(XmlFault(text), "");
      EXPECT_FALSE(std::regex_search(text, std::regex("[\" ,(](-?nan|-?inf)[\" ,)]"))) << text;
      EXPECT_THAT(text, Not(HasSubstr("<script")));
      EXPECT_THAT(text, Not(HasSubstr("href")));
    }
  }
  std::string html;
  std::string svg;
};

Json Row(const std::string& policy, double capacity, const Json& all, const Json& full) {
  return {{"policy", policy},
          {"capacity_blocks", capacity},
          {"hit_ratio_all", all},
          {"hit_ratio_full", full}};
}

Json Simulated(std::initializer_list<Json> rows) {
  return {{"trace", "/traces/chat.jsonl"},
          {"block_tokens", 512},
          {"requests", 4},
          {"skipped_lines", 0},
          {"blocks_all", 5000},
          {"blocks_full", 4900},
          {"distinct_blocks", 1000},
          {"rows", Json(rows)},
          {"command", "kvtier simulate"}};
}

// Where the mark of a note is drawn.
Point MarkOf(const std::string& svg, const std::string& note) {
  std::smatch found;
  const std::regex mark("translate\\(([0-9.]+) ([0-9.]+)\\)\" d=\"[^\"]*\"><title>" + note + "<");
  if (!std::regex_search(svg, found, mark)) {
    ADD_FAILURE() << "no mark says '" << note << "'";
    return {};
  }
  return {std::stod(found[1]), std::stod(found[2])};
}

// Where a text with this style stands, the first one.
Point TextOf(const std::string& svg, const std::string& style, const std::string& text) {
  std::smatch found;
  const std::regex element("class=\"" + style + "\" x=\"([0-9.]+)\" y=\"([0-9.]+)\">" + text + "<");
  if (!std::regex_search(svg, found, element)) {
    ADD_FAILURE() << "no text says '" << text << "'";
    return {};
  }
  return {std::stod(found[1]), std::stod(found[2])};
}

TEST(SimulateReport, PointsLieWhereTheAxesSay) {
  const Rendered drawn(Simulated({Row("lru", 10, 0.1, nullptr), Row("lru", 100, 0.2, nullptr),
                                  Row("min", 10, 0.2, nullptr), Row("min", 100, 0.4, nullptr)}));
  const Point low = MarkOf(drawn.svg, "lru at 10 blocks: 0.1000");
  const Point high = MarkOf(drawn.svg, "lru at 100 blocks: 0.2000");
  EXPECT_DOUBLE_EQ(high.x, TextOf(drawn.svg, "small middle", "100").x);
  EXPECT_DOUBLE_EQ(low.x, TextOf(drawn.svg, "small middle", "10").x);
  const double tick = TextOf(drawn.svg, "small end", "0\\.2").y - 4;  // its middle is 4 higher
  EXPECT_DOUBLE_EQ(high.y, tick);
  EXPECT_GT(low.y, tick + 20);  // the other one lies elsewhere
  EXPECT_DOUBLE_EQ(low.y, TextOf(drawn.svg, "small end", "0\\.1").y - 4);
  const Point optimum = MarkOf(drawn.svg, "min \\(optimum\\) at 10 blocks: 0.2000");
  EXPECT_DOUBLE_EQ(optimum.x, low.x);
  EXPECT_DOUBLE_EQ(optimum.y, high.y);
}

TEST(SimulateReport, HasAChartForEachConventionWithValues) {
  const std::string all = "Hit ratio by capacity, all blocks";
  const std::string full = "Hit ratio by capacity, full blocks";
  const Rendered one(Simulated({Row("lru", 10, 0.1, nullptr)}));
  EXPECT_THAT(one.svg, HasSubstr(all));
  EXPECT_THAT(one.svg, Not(HasSubstr(full)));
  const Rendered both(Simulated({Row("lru", 10, 0.1, 0.2)}));
  EXPECT_THAT(both.svg, HasSubstr(all));
  EXPECT_THAT(both.svg, HasSubstr(full));
  EXPECT_THAT(both.html, HasSubstr("<td>0.2000</td>"));
  EXPECT_THAT(both.html, HasSubstr("<td>1.00 %</td>"));  // 10 of 1,000 distinct blocks
}

TEST(SimulateReport, ALineShowsWhatNoLimitHitsWhenARowSays) {
  EXPECT_THAT(Rendered(Simulated({Row("lru", 10, 0.1, nullptr)})).svg, Not(HasSubstr("no limit")));
  EXPECT_THAT(Rendered(Simulated({Row("lru", 1000, 0.3, nullptr)})).svg,
              HasSubstr("no limit: 0.3000"));
  Json curve = Simulated({Row("lru", 10, 0.1, nullptr)});
  EXPECT_THAT(Rendered(curve).svg, Not(HasSubstr("lru, every size")));
  curve["curve"] = {Row("lru", 1, 0, nullptr), Row("lru", 100, 0.3, nullptr),
                    Row("lru", 1000, 0.4, nullptr)};
  const Rendered drawn(curve);
  EXPECT_THAT(drawn.svg, HasSubstr("no limit: 0.4000"));
  EXPECT_THAT(drawn.svg, HasSubstr("lru, every size"));
}

TEST(SimulateReport, TiersAreStackedInProportion) {
  Json row = Row("lru", 10, 0.3, nullptr);
  row["tiers"] = "log";
  row["ssd_capacity_blocks"] = 80;
  row["hit_ratio_ram_all"] = 0.1;
  row["hit_ratio_ssd_all"] = 0.2;
  row["ssd_writes_per_block_all"] = 0.9;
  const Rendered drawn(Simulated({row}));
  const auto height = [&](const std::string& color) {
    std::smatch found;
    const std::regex bar("class=\"fill " + color +
                         "\" x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"[0-9.]+\" height=\"([0-9.]+)\">"
                         "<title>log, SSD 80 blocks");
    return std::regex_search(drawn.svg, found, bar) ? std::stod(found[1]) : 0.0;
  };
  EXPECT_GT(height("c0"), 10);
  EXPECT_NEAR(height("c4"), 2 * height("c0"), 0.02);
  EXPECT_THAT(drawn.svg, HasSubstr(">0.300</text>"));
  EXPECT_THAT(drawn.svg, HasSubstr("SSD writes, RAM 10 blocks"));
  EXPECT_THAT(drawn.html, HasSubstr("<td>0.9000</td>"));
}

TEST(SimulateReport, NothingInADocumentBreaksIt) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Json named = Simulated({Row("<b>&\"'", 10, 0.1, 0.1)});
  named["trace"] = "a<script>&\x01\xff\"b.jsonl";
  named["command"] = "kvtier simulate --trace '<&>'";
  const Rendered escaped(named);
  EXPECT_THAT(escaped.html, HasSubstr("a&lt;script&gt;&amp;\xEF\xBF\xBD\xEF\xBF\xBD&quot;b.jsonl"));
  EXPECT_THAT(escaped.svg, HasSubstr("&lt;b&gt;&amp;&quot;'"));
  for (const Json& document :
       {Json::object(), Json(), Json::array(), Simulated({}), Simulated({Json(), Json(3)}),
        Simulated({Row("lru", 0, 0.1, 0.1)}), Simulated({Row("lru", 10, nan, nullptr)}),
        Simulated({Row("lru", nan, 0.1, 0.1)})}) {
    EXPECT_THAT(Rendered(document).html, HasSubstr("There are no figures to draw."));
  }
  for (const double ratio : {0.0, 0.5, 1.0}) {  // one point
    EXPECT_THAT(Rendered(Simulated({Row("lru", 10, ratio, nullptr)})).html,
                Not(HasSubstr("There are no figures to draw.")));
  }
}

Json Replayed(std::initializer_list<Json> slices) {
  const Json call = {
      {"count", 3}, {"p50", 100.0}, {"p90", 200.0}, {"p99", 1000.0}, {"max", 1000.0}};
  return {{"trace", "chat.jsonl"},
          {"convention", "all"},
          {"hit_ratio_all", 0.25},
          {"hit_ratio_ram", 0.2},
          {"hit_ratio_ssd", 0.05},
          {"requests", 3},
          {"blocks", 200},
          {"hit_blocks", 50},
          {"seconds", 2.0},
          {"fetched_bytes", 3000000},
          {"stored_bytes", 1000000},
          {"latency_us", {{"lookup", call}, {"fetch", {{"count", 0}, {"p50", 0}, {"max", 0}}}}},
          {"slices", Json(slices)}};
}

Json Slice(uint64_t requests, double end, uint64_t blocks, uint64_t ram, uint64_t ssd) {
  return {{"requests", requests}, {"end_seconds", end},    {"blocks", blocks},
          {"hit_blocks_gpu", 0},  {"hit_blocks_ram", ram}, {"hit_blocks_ssd", ssd},
          {"fetched_bytes", 3e6}, {"stored_bytes", 1e6}};
}

TEST(ReplayReport, ShowsHitsByTierAndWhatTheyComeTo) {
  const Rendered drawn(Replayed({Slice(2, 1, 100, 0, 0), Slice(1, 2, 100, 40, 10)}));
  EXPECT_THAT(drawn.svg, HasSubstr("<title>requests 1 to 2, 100 blocks:</title>"));
  EXPECT_THAT(drawn.svg, HasSubstr("<title>requests 3 to 3, 100 blocks: RAM 0.4000 SSD 0.1000<"));
  EXPECT_THAT(drawn.svg, HasSubstr("so far: 0.2500"));
  EXPECT_THAT(drawn.svg, HasSubstr(">SSD</text>"));
  EXPECT_THAT(drawn.svg, Not(HasSubstr(">GPU</text>")));  // none hit there
  EXPECT_THAT(drawn.html, HasSubstr("<dt>throughput</dt><dd>2.0 MB/s</dd>"));
  EXPECT_THAT(drawn.svg, Not(HasSubstr("SSD writes over the replay")));  // not known
  const std::string us = "\xC2\xB5s";
  EXPECT_LT(MarkOf(drawn.svg, "Lookup p50 100 " + us).x, MarkOf(drawn.svg, "Lookup p99 1 ms").x);
  EXPECT_DOUBLE_EQ(MarkOf(drawn.svg, "Lookup p99 1 ms").x,
                   TextOf(drawn.svg, "small middle", "1 ms").x);
}

TEST(ReplayReport, ShowsSsdWritesAsFarAsTheyAreKnown) {
  Json document = Replayed({Slice(2, 1, 100, 0, 0), Slice(1, 2, 50, 20, 0), Slice(1, 3, 50, 0, 0)});
  document["verified_blocks"] = 50;
  document["ssd_writes_per_block"] = 0.5;
  EXPECT_THAT(Rendered(document).html,
              HasSubstr("<dt>SSD bytes written per byte served</dt><dd>2.00</dd>"));
  document["slices"][1]["ssd_written_blocks"] = 120;
  document["slices"][2]["ssd_written_blocks"] = 130;
  const std::string svg = PlotSvg(document);
  const std::string chart = svg.substr(svg.find("SSD writes over the replay"));
  EXPECT_THAT(chart, HasSubstr("so far: 0.6500"));  // 130 of 200 blocks
  // 120 for the first 150 blocks, then 10 for 50. The axis is 0 to 0.8.
  const double top = TextOf(chart, "small end", "0\\.8").y - 4;
  const double low = TextOf(chart, "small end", "0\\.2").y - 4;
  EXPECT_THAT(chart, HasSubstr(absl::StrCat("points=\"66,", top, " ")));
  EXPECT_THAT(chart, HasSubstr(absl::StrCat(",", low, "\"/>")));
}

TEST(ReplayReport, NothingInADocumentBreaksIt) {
  Json nothing = Replayed({});
  nothing["latency_us"] = Json::object();
  EXPECT_THAT(Rendered(nothing).html, HasSubstr("There are no figures to draw."));
  nothing["latency_us"] = nullptr;
  EXPECT_THAT(Rendered(nothing).html, HasSubstr("There are no figures to draw."));
  EXPECT_THAT(Rendered(Replayed({})).html, HasSubstr("Latency by call"));
  for (const Json& slice : {Slice(1, 0, 0, 0, 0), Slice(1, 0, 5, 5, 0), Slice(1, 2, 5, 1, 1)}) {
    EXPECT_THAT(Rendered(Replayed({slice})).html, HasSubstr("Hits by tier over the replay"));
  }
}

std::vector<double> Named(const Scale& scale) {
  std::vector<double> values;
  for (const Scale::Tick& tick : scale.ticks()) {
    if (tick.named) values.push_back(tick.value);
  }
  return values;
}

TEST(Scale, TicksAreRoundNumbers) {
  using ::testing::DoubleEq;
  EXPECT_THAT(
      Named(Scale::Linear(0, 0.38, Scale::Ends::kAtTicks)),
      ElementsAre(DoubleEq(0), DoubleEq(0.1), DoubleEq(0.2), DoubleEq(0.1 * 3), DoubleEq(0.4)));
  EXPECT_THAT(Named(Scale::Linear(0, 12031, Scale::Ends::kExact)),
              ElementsAre(0, 2000, 4000, 6000, 8000, 10000, 12000));
  EXPECT_THAT(Named(Scale::Log(76, 1512)), ElementsAre(100, 200, 500, 1000));
  EXPECT_THAT(Named(Scale::Log(1, 182790)), ElementsAre(1, 10, 100, 1000, 10000, 100000));
  EXPECT_FALSE(Named(Scale::Log(7, 7)).empty());
  EXPECT_FALSE(Named(Scale::Linear(3, 3, Scale::Ends::kExact)).empty());
}

TEST(Scale, ValuesLieBetweenTheEnds) {
  const Scale log = Scale::Log(10, 1000);
  EXPECT_NEAR(log.At(100), 0.5, 1e-12);
  EXPECT_GT(log.At(10), 0);
  EXPECT_LT(log.At(1000), 1);
  const Scale linear = Scale::Linear(0, 0.38, Scale::Ends::kAtTicks);
  EXPECT_NEAR(linear.At(0.1), 0.25, 1e-12);
}

TEST(Scale, NamesAreShort) {
  EXPECT_EQ(ShortCount(1828), "1,828");
  EXPECT_EQ(ShortCount(20000), "20k");
  EXPECT_EQ(ShortCount(1.5e6), "1.5M");
  EXPECT_EQ(ShortMicroseconds(250), "250 \xC2\xB5s");
  EXPECT_EQ(ShortMicroseconds(1500), "1.5 ms");
  EXPECT_EQ(ShortMicroseconds(2e6), "2 s");
}

TEST(SpreadOut, KeepsTheGapAndStaysInside) {
  EXPECT_THAT(SpreadOut({10, 50}, 10, 0, 100), ElementsAre(10, 50));
  EXPECT_THAT(SpreadOut({10, 11, 12}, 10, 0, 100), ElementsAre(10, 20, 30));
  EXPECT_THAT(SpreadOut({97, 98, 99}, 10, 0, 100), ElementsAre(80, 90, 100));
  EXPECT_THAT(SpreadOut({}, 10, 0, 100), ElementsAre());
}

TEST(EscapeXml, LeavesTextAlone) {
  EXPECT_EQ(EscapeXml("plain \xC2\xB5s\n"), "plain \xC2\xB5s\n");
  EXPECT_EQ(EscapeXml("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
  EXPECT_EQ(EscapeXml("\xC3"), "\xEF\xBF\xBD");          // half a character
  EXPECT_EQ(EscapeXml("\xEF\xBF\xBF"), "\xEF\xBF\xBD");  // none of XML's
  EXPECT_EQ(EscapeXml(std::string_view("\0", 1)), "\xEF\xBF\xBD");
}

size_t FilesIn(const std::string& folder) {
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
  return files;
}

TEST(WriteWholeFile, ReplacesWhatWasThere) {
  const TempFolder folder;
  const std::string path = folder / "a.html";
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_EQ(FilesIn(folder.path()), 0u);  // asking leaves nothing
  EXPECT_TRUE(WriteWholeFile(path, "one").ok());
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_EQ(ReadFile(path).value(), "one");
  EXPECT_TRUE(WriteWholeFile(path, "two").ok());
  EXPECT_EQ(ReadFile(path).value(), "two");
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

TEST(WriteWholeFile, GoesThroughALink) {
  const TempFolder folder;
  const std::string link = folder / "link.html";
  ASSERT_TRUE(WriteWholeFile(folder / "real.html", "one").ok());
  std::filesystem::create_symlink("real.html", link);
  EXPECT_TRUE(WriteWholeFile(link, "two").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadFile(folder / "real.html").value(), "two");
}

TEST(WriteWholeFile, NamesThePathAndTheReason) {
  const TempFolder folder;
  const std::string missing = folder / "no/such/a.html";
  const absl::Status status = CheckWritable(missing);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "cannot write " + missing + ": No such file or directory");
  EXPECT_EQ(WriteWholeFile(missing, "x"), status);
  EXPECT_EQ(CheckWritable(folder.path()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckWritable("/dev/null").message(), "cannot write /dev/null: it is no regular file");
}

}  // namespace
}  // namespace kvtier::cli
