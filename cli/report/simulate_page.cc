// The page of `kvtier simulate`: hit ratio against capacity, or RAM over SSD side by side.
#include <algorithm>
#include <map>
#include <set>

#include "cli/report/charts.h"
#include "cli/report/page.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

constexpr std::string_view kConventionNames[] = {"all", "full"};

std::string ConventionMeaning(std::string_view convention) {
  return convention == "all" ? "all blocks of each request" : "full blocks only";
}

std::optional<double> RatioOf(const Json& row, std::string_view convention) {
  return NumberAt(row, absl::StrCat("hit_ratio_", std::string(convention)));
}

struct Range {
  std::optional<double> low, high;
  void Add(double value) {
    low = std::min(low.value_or(value), value);
    high = std::max(high.value_or(value), value);
  }
};

// Policies in the document's order.
std::vector<std::string> Policies(const Json& rows) {
  std::vector<std::string> names;
  for (const Json& row : rows) {
    const std::string name = TextAt(row, "policy");
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// The optimum is drawn as text is; others take colours, dashes and marks by turns.
LineSeries EmptyLine(const std::string& policy, int number) {
  LineSeries line;
  line.name = policy == "min" ? "min (optimum)" : policy;
  line.color = policy == "min" ? kInk : number % kInk;
  line.dash = policy == "min" ? 0 : number % 6;
  line.mark = policy == "min" ? kMarkShapes - 1 : number % (kMarkShapes - 1);
  return line;
}

void Add(const Json& row, std::string_view convention, LineSeries* line) {
  const std::optional<double> capacity = NumberAt(row, "capacity_blocks");
  const std::optional<double> ratio = RatioOf(row, convention);
  if (!capacity || !ratio || *capacity < 1) return;
  line->points.push_back({*capacity, *ratio});
}

void SortByCapacity(LineSeries* line) {
  std::stable_sort(line->points.begin(), line->points.end(),
                   [](const Point& a, const Point& b) { return a.x < b.x; });
  for (const Point& point : line->points) {
    line->notes.push_back(
        absl::StrCat(line->name, " at ", CountText(point.x), " blocks: ", RatioText(point.y)));
  }
}

std::vector<LineSeries> PolicyLines(const Json& document, std::string_view convention) {
  std::vector<LineSeries> lines;
  const Json& rows = ArrayAt(document, "rows");
  for (const std::string& policy : Policies(rows)) {
    LineSeries line = EmptyLine(policy, static_cast<int>(lines.size()));
    for (const Json& row : rows) {
      if (TextAt(row, "policy") == policy) Add(row, convention, &line);
    }
    SortByCapacity(&line);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

// From the smallest size of the rows on, if there are any.
LineSeries CurveLine(const Json& document, std::string_view convention, const Range& sizes) {
  LineSeries line;
  line.name = "lru, every size";
  for (const Json& row : ArrayAt(document, "curve")) Add(row, convention, &line);
  std::erase_if(line.points, [&](const Point& point) { return sizes.low && point.x < *sizes.low; });
  return line;
}

// What a cache of any size would hit: of a row that holds every block of the trace.
std::optional<double> Unbounded(const Json& document, std::string_view convention) {
  const std::optional<double> distinct = NumberAt(document, "distinct_blocks");
  for (const char* rows : {"curve", "rows"}) {
    for (const Json& row : ArrayAt(document, rows)) {
      const std::optional<double> capacity = NumberAt(row, "capacity_blocks");
      if (distinct && capacity && *capacity >= *distinct && RatioOf(row, convention)) {
        return RatioOf(row, convention);
      }
    }
  }
  return std::nullopt;
}

// Across the whole chart.
LineSeries UnboundedLine(double ratio, const Scale& x) {
  LineSeries line;
  line.name = absl::StrCat("no limit: ", RatioText(ratio));
  line.color = kInk;
  line.dash = 2;
  line.points = {{x.low(), ratio}, {x.high(), ratio}};
  return line;
}

void AddPoints(const LineSeries& line, Range* x, Range* y) {
  for (const Point& point : line.points) {
    x->Add(point.x);
    y->Add(point.y);
  }
}

std::optional<Panel> CapacityPanel(const Json& document, std::string_view convention) {
  LineChart chart;
  chart.lines = PolicyLines(document, convention);
  Range x, y;
  for (const LineSeries& line : chart.lines) AddPoints(line, &x, &y);
  LineSeries curve = CurveLine(document, convention, x);
  AddPoints(curve, &x, &y);
  chart.lines.push_back(std::move(curve));
  if (!x.low) return std::nullopt;
  chart.x = {"capacity, blocks (logarithmic)", Scale::Log(*x.low, *x.high), ShortCount};
  if (const std::optional<double> ratio = Unbounded(document, convention)) {
    chart.lines.push_back(UnboundedLine(*ratio, chart.x.scale));
    y.Add(*ratio);
  }
  chart.title = absl::StrCat("Hit ratio by capacity, ", ConventionMeaning(convention));
  chart.subtitle =
      "Share of the requested blocks that were there, from an empty cache; higher is "
      "better";
  chart.y = {"hit ratio", Scale::Linear(0, std::max(*y.high, 1e-3), Scale::Ends::kAtTicks)};
  return Panel{chart.title, Draw(chart)};
}

// --------------------------------------------------------------------------------------------
// Two tiers

// The rows of one RAM size as bars: a group for each SSD size, a bar for each way.
struct TierBars {
  std::string_view convention;
  double ram = 0;
  const Json* rows = nullptr;

  std::string Name(const std::string& figure) const {
    return absl::StrCat(figure, "_", std::string(convention));
  }
  bool Takes(const Json& row) const {
    return NumberAt(row, "capacity_blocks") == ram && NumberAt(row, Name("hit_ratio_ram"));
  }
  std::vector<BarChart::Group> Groups(const std::vector<std::string>& figures) const {
    std::map<double, BarChart::Group> groups;  // by SSD size
    for (const Json& row : *rows) {
      if (!Takes(row)) continue;
      const double ssd = NumberAt(row, "ssd_capacity_blocks").value_or(0);
      BarChart::Group& group = groups[ssd];
      group.name = CountText(ssd);
      BarChart::Bar bar{.name = TextAt(row, "tiers"), .values = {}, .note = ""};
      bar.note = absl::StrCat(bar.name, ", SSD ", CountText(ssd), " blocks:");
      for (const std::string& figure : figures) {
        const double value = NumberAt(row, Name(figure)).value_or(0);
        bar.values.push_back(value);
        absl::StrAppend(&bar.note, " ", RatioText(value));
      }
      group.bars.push_back(std::move(bar));
    }
    std::vector<BarChart::Group> out;
    for (auto& [ssd, group] : groups) out.push_back(std::move(group));
    return out;
  }
};

double Highest(const std::vector<BarChart::Group>& groups) {
  double highest = 1e-3;
  for (const BarChart::Group& group : groups) {
    for (const BarChart::Bar& bar : group.bars) {
      double sum = 0;
      for (const double value : bar.values) sum += value;
      highest = std::max(highest, sum);
    }
  }
  return highest;
}

void AddTierPanels(const TierBars& bars, std::vector<Panel>* panels) {
  const std::string sizes =
      absl::StrCat("RAM ", CountText(bars.ram), " blocks, ", ConventionMeaning(bars.convention));
  BarChart hits;
  hits.groups = bars.Groups({"hit_ratio_ram", "hit_ratio_ssd"});
  hits.title = absl::StrCat("Hits by tier, ", sizes);
  hits.subtitle =
      "Share of the requested blocks that were there; RAM below, SSD above; higher is "
      "better";
  hits.x_title = "SSD capacity, blocks";
  hits.y = {"hit ratio", Scale::Linear(0, Highest(hits.groups), Scale::Ends::kAtTicks)};
  hits.layers = {{"RAM", 0}, {"SSD", 4}};
  panels->push_back({hits.title, Draw(hits)});

  BarChart writes;
  writes.groups = bars.Groups({"ssd_writes_per_block"});
  writes.title = absl::StrCat("SSD writes, ", sizes);
  writes.subtitle =
      "Blocks written to SSD for each requested block; lower is better: it wears the "
      "disk";
  writes.x_title = hits.x_title;
  writes.y = {"writes per requested block",
              Scale::Linear(0, Highest(writes.groups), Scale::Ends::kAtTicks)};
  writes.layers = {{"writes", 1}};
  panels->push_back({writes.title, Draw(writes)});
}

void AddTwoTierPanels(const Json& document, std::vector<Panel>* panels) {
  const Json& rows = ArrayAt(document, "rows");
  for (const std::string_view convention : kConventionNames) {
    std::set<double> rams;
    for (const Json& row : rows) {
      const std::optional<double> ram = NumberAt(row, "capacity_blocks");
      const TierBars bars{convention, ram.value_or(0), &rows};
      if (ram && bars.Takes(row)) rams.insert(*ram);
    }
    for (const double ram : rams) AddTierPanels({convention, ram, &rows}, panels);
  }
}

bool TwoTiers(const Json& document) {
  const Json& rows = ArrayAt(document, "rows");
  return !rows.empty() && rows[0].is_object() && rows[0].contains("tiers");
}

// --------------------------------------------------------------------------------------------
// Tables and facts

std::string ShareOfDistinct(const Json& document, const Json& row) {
  const std::optional<double> distinct = NumberAt(document, "distinct_blocks");
  const std::optional<double> capacity = NumberAt(row, "capacity_blocks");
  if (!distinct || !capacity || *distinct <= 0) return "-";
  return Fixed(*capacity / *distinct * 100, 2) + " %";
}

PageTable OneTierTable(const Json& document) {
  PageTable table;
  table.caption = "Hit ratios";
  table.head = {"policy", "capacity, blocks", "of the distinct blocks", "hit ratio, all blocks",
                "hit ratio, full blocks"};
  for (const Json& row : ArrayAt(document, "rows")) {
    table.rows.push_back({TextAt(row, "policy"), CountText(NumberAt(row, "capacity_blocks")),
                          ShareOfDistinct(document, row), RatioText(RatioOf(row, "all")),
                          RatioText(RatioOf(row, "full"))});
  }
  return table;
}

PageTable TwoTierTable(const Json& document) {
  PageTable table;
  table.caption = "RAM over SSD";
  table.head = {"tiers",     "blocks counted", "RAM, blocks", "SSD, blocks",
                "hit ratio", "in RAM",         "on SSD",      "SSD writes per block"};
  for (const Json& row : ArrayAt(document, "rows")) {
    for (const std::string_view convention : kConventionNames) {
      if (!RatioOf(row, convention)) continue;
      const TierBars names{convention, 0, nullptr};
      const auto ratio = [&](const char* name) {
        return RatioText(NumberAt(row, names.Name(name)));
      };
      table.rows.push_back({TextAt(row, "tiers"), std::string(convention),
                            CountText(NumberAt(row, "capacity_blocks")),
                            CountText(NumberAt(row, "ssd_capacity_blocks")), ratio("hit_ratio"),
                            ratio("hit_ratio_ram"), ratio("hit_ratio_ssd"),
                            ratio("ssd_writes_per_block")});
    }
  }
  return table;
}

void AddFacts(const Json& document, Page* page) {
  page->facts = {{"requests", CountText(NumberAt(document, "requests"))},
                 {"blocks requested", CountText(NumberAt(document, "blocks_all"))},
                 {"of them full", CountText(NumberAt(document, "blocks_full"))},
                 {"distinct blocks", CountText(NumberAt(document, "distinct_blocks"))},
                 {"tokens per block", CountText(NumberAt(document, "block_tokens"))}};
  const std::optional<double> skipped = NumberAt(document, "skipped_lines");
  if (skipped.value_or(0) > 0) page->facts.emplace_back("lines passed over", CountText(skipped));
}

}  // namespace

Page SimulatePage(const Json& document) {
  Page page;
  page.title = absl::StrCat("kvtier simulate: ", FileName(TextAt(document, "trace")));
  page.command = TextAt(document, "command");
  AddFacts(document, &page);
  if (TwoTiers(document)) {
    AddTwoTierPanels(document, &page.panels);
    page.tables.push_back(TwoTierTable(document));
    page.notes.emplace_back(
        "log is what kvtierd does, by its own code; exclusive, inclusive and lazy are references "
        "that move single blocks, which no SSD does at their price.");
  } else {
    for (const std::string_view convention : kConventionNames) {
      if (std::optional<Panel> panel = CapacityPanel(document, convention)) {
        page.panels.push_back(*std::move(panel));
      }
    }
    page.tables.push_back(OneTierTable(document));
    page.notes.emplace_back(
        "min knows the future: no policy can be above it. Where lru is near it, only capacity "
        "helps; where the curve is flat, capacity does not help either.");
  }
  page.notes.emplace_back(
      "A hit is a block of the longest prefix of a request that was there; the rest was stored. "
      "Ratios of all blocks and of full blocks count different blocks and must not be compared.");
  return page;
}

}  // namespace kvtier::cli
