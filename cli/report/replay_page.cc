// The page of `kvtier replay`: hits by tier and throughput over the requests, latencies by call.
#include <algorithm>
#include <utility>

#include "cli/report/charts.h"
#include "cli/report/page.h"
#include "common/bytes.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

struct TierName {
  const char* name;
  const char* field;
  int color;
};
constexpr TierName kTiers[] = {
    {"GPU", "hit_blocks_gpu", 2}, {"RAM", "hit_blocks_ram", 0}, {"SSD", "hit_blocks_ssd", 4}};
constexpr std::pair<const char*, const char*> kCalls[] = {
    {"Lookup", "lookup"}, {"Fetch", "fetch"}, {"Store", "store"}, {"Release", "release"}};
constexpr const char* kPercentiles[] = {"p50", "p90", "p99", "max"};

double Value(const Json& object, const std::string& name) {
  return NumberAt(object, name).value_or(0);
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string BytesText(std::optional<double> bytes) {
  return bytes && *bytes >= 0 ? FormatBytes(static_cast<uint64_t>(*bytes)) : "-";
}

// Slices that have requests.
std::vector<Json> Slices(const Json& document) {
  std::vector<Json> slices;
  for (const Json& slice : ArrayAt(document, "slices")) {
    if (Value(slice, "requests") > 0) slices.push_back(slice);
  }
  return slices;
}

// Requests before each slice, and at the end.
std::vector<double> Edges(const std::vector<Json>& slices) {
  std::vector<double> edges = {0};
  for (const Json& slice : slices) edges.push_back(edges.back() + Value(slice, "requests"));
  return edges;
}

Axis RequestsAxis(const std::vector<double>& edges) {
  return {"requests since the start", Scale::Linear(0, edges.back(), Scale::Ends::kExact),
          ShortCount};
}

std::string SliceNote(const Json& slice, double first, double last) {
  std::string note = absl::StrCat("requests ", CountText(first + 1), " to ", CountText(last), ", ",
                                  CountText(NumberAt(slice, "blocks")), " blocks:");
  for (const TierName& tier : kTiers) {
    const double share = Share(Value(slice, tier.field), Value(slice, "blocks"));
    if (share > 0) absl::StrAppend(&note, " ", tier.name, " ", RatioText(share));
  }
  return note;
}

// A tier without a hit in the whole replay is left out.
Stack HitStack(const std::vector<Json>& slices, const std::vector<double>& edges) {
  Stack stack;
  stack.edges = edges;
  for (const TierName& tier : kTiers) {
    Stack::Layer layer{tier.name, tier.color, {}};
    bool any = false;
    for (const Json& slice : slices) {
      layer.values.push_back(Share(Value(slice, tier.field), Value(slice, "blocks")));
      any |= layer.values.back() > 0;
    }
    if (any) stack.layers.push_back(std::move(layer));
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    stack.notes.push_back(SliceNote(slices[i], edges[i], edges[i + 1]));
  }
  return stack;
}

LineSeries CumulativeHits(const std::vector<Json>& slices, const std::vector<double>& edges) {
  LineSeries line;
  line.color = kInk;
  double hits = 0;
  double blocks = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    for (const TierName& tier : kTiers) hits += Value(slices[i], tier.field);
    blocks += Value(slices[i], "blocks");
    line.points.push_back({edges[i + 1], Share(hits, blocks)});
  }
  line.name = absl::StrCat("so far: ", RatioText(Share(hits, blocks)));
  return line;
}

Panel HitsPanel(const std::vector<Json>& slices) {
  const std::vector<double> edges = Edges(slices);
  LineChart chart;
  chart.stack = HitStack(slices, edges);
  chart.lines = {CumulativeHits(slices, edges)};
  double highest = 1e-3;
  for (size_t i = 0; i < slices.size(); ++i) {
    double sum = 0;
    for (const Stack::Layer& layer : chart.stack->layers) sum += layer.values[i];
    highest = std::max(highest, sum);
  }
  chart.title = "Hits by tier over the replay";
  chart.subtitle = "Share of the requested blocks found in each tier, and of all so far";
  chart.x = RequestsAxis(edges);
  chart.y = {"hit ratio", Scale::Linear(0, std::min(highest, 1.0), Scale::Ends::kAtTicks)};
  return {chart.title, Draw(chart)};
}

// MB/s of each slice. A slice lasts from the end of the one before it to its own.
LineSeries Throughput(const std::vector<Json>& slices, const std::vector<double>& edges,
                      const std::string& field) {
  LineSeries line;
  double begin = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const double end = Value(slices[i], "end_seconds");
    const double rate = Share(Value(slices[i], field) / 1e6, end - begin);
    line.points.push_back({edges[i], rate});
    line.points.push_back({edges[i + 1], rate});
    begin = std::max(begin, end);
  }
  return line;
}

Panel ThroughputPanel(const std::vector<Json>& slices) {
  const std::vector<double> edges = Edges(slices);
  LineChart chart;
  LineSeries fetched = Throughput(slices, edges, "fetched_bytes");
  fetched.name = "fetched";
  LineSeries stored = Throughput(slices, edges, "stored_bytes");
  stored.name = "stored";
  stored.color = 1;
  stored.dash = 5;
  chart.lines = {std::move(fetched), std::move(stored)};
  double highest = 1e-3;
  for (const LineSeries& line : chart.lines) {
    for (const Point& point : line.points) highest = std::max(highest, point.y);
  }
  chart.title = "Throughput over the replay";
  chart.subtitle = "Payload that went through the daemon's API, of all clients together";
  chart.x = RequestsAxis(edges);
  chart.y = {"MB/s", Scale::Linear(0, highest, Scale::Ends::kAtTicks)};
  return {chart.title, Draw(chart)};
}

struct SsdWrites {
  LineSeries each;
  LineSeries so_far;
  double highest = 1e-3;
};

// Blocks written to SSD for each block asked for, in each slice and up to there. A slice whose
// count is not known is taken together with the next.
SsdWrites WritesOf(const std::vector<Json>& slices, const std::vector<double>& edges) {
  SsdWrites writes;
  double begin = 0;
  double before = 0;
  double blocks = 0;
  double blocks_before = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    blocks += Value(slices[i], "blocks");
    const std::optional<double> written = NumberAt(slices[i], "ssd_written_blocks");
    if (!written) continue;
    const double rate = Share(std::max(0.0, *written - before), blocks - blocks_before);
    writes.highest = std::max(writes.highest, rate);
    writes.each.points.push_back({begin, rate});
    writes.each.points.push_back({edges[i + 1], rate});
    writes.so_far.points.push_back({edges[i + 1], Share(*written, blocks)});
    begin = edges[i + 1];
    before = *written;
    blocks_before = blocks;
  }
  return writes;
}

std::optional<Panel> SsdWritesPanel(const std::vector<Json>& slices) {
  const std::vector<double> edges = Edges(slices);
  SsdWrites writes = WritesOf(slices, edges);
  if (writes.so_far.points.empty()) return std::nullopt;
  writes.each.name = "each slice";
  writes.each.color = 1;
  writes.so_far.name = absl::StrCat("so far: ", RatioText(writes.so_far.points.back().y));
  writes.so_far.color = kInk;
  LineChart chart;
  chart.lines = {std::move(writes.so_far), std::move(writes.each)};
  chart.title = "SSD writes over the replay";
  chart.subtitle = "Blocks written to SSD for each requested block; they come in batches";
  chart.x = RequestsAxis(edges);
  chart.y = {"writes per requested block", Scale::Linear(0, writes.highest, Scale::Ends::kAtTicks)};
  return Panel{chart.title, Draw(chart)};
}

std::optional<Panel> LatencyPanel(const Json& document) {
  const Json& latencies = MemberAt(document, "latency_us");
  RangeChart chart;
  double low = 0;
  double high = 0;
  for (const auto& [name, field] : kCalls) {
    const Json& call = MemberAt(latencies, field);
    RangeChart::Row row{name, {}};
    for (const char* percentile : kPercentiles) {
      const double us = Value(call, percentile);
      if (us <= 0) continue;
      row.values.push_back({percentile, us});
      low = low == 0 ? us : std::min(low, us);
      high = std::max(high, us);
    }
    chart.rows.push_back(std::move(row));
  }
  if (low == 0) return std::nullopt;
  chart.title = "Latency by call";
  chart.subtitle =
      "As the client saw it: half of the calls took p50 or less, 1 of 100 more than "
      "p99";
  chart.x = {"time of a call (logarithmic)", Scale::Log(low, high), ShortMicroseconds};
  return Panel{chart.title, Draw(chart)};
}

PageTable LatencyTable(const Json& document) {
  PageTable table;
  table.caption = "Latency, \xC2\xB5s";
  table.head = {"call", "calls", "p50", "p90", "p99", "max"};
  const Json& latencies = MemberAt(document, "latency_us");
  for (const auto& [name, field] : kCalls) {
    const Json& call = MemberAt(latencies, field);
    std::vector<std::string> row = {name, CountText(NumberAt(call, "count"))};
    for (const char* percentile : kPercentiles) {
      row.push_back(CountText(NumberAt(call, percentile)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

PageTable BlockTable(const Json& document) {
  PageTable table;
  table.caption = "Blocks";
  table.head = {"what became of them", "blocks", "of all"};
  const double blocks = Value(document, "blocks");
  const std::pair<const char*, const char*> rows[] = {
      {"requested", "blocks"},
      {"found", "hit_blocks"},
      {"fetched, every byte as it must be", "verified_blocks"},
      {"fetched, with a wrong byte", "wrong_blocks"},
      {"found, but gone when fetched", "missed_blocks"},
      {"stored", "stored_blocks"},
      {"stored by somebody else meanwhile", "present_blocks"},
      {"no room", "rejected_blocks"}};
  for (const auto& [name, field] : rows) {
    const std::optional<double> count = NumberAt(document, field);
    table.rows.push_back({name, CountText(count), RatioText(Share(count.value_or(0), blocks))});
  }
  return table;
}

PageTable SliceTable(const std::vector<Json>& slices) {
  PageTable table;
  table.caption = "Over the replay";
  table.head = {"up to request", "seconds", "blocks",  "in GPU",
                "in RAM",        "on SSD",  "fetched", "stored"};
  double requests = 0;
  for (const Json& slice : slices) {
    requests += Value(slice, "requests");
    std::vector<std::string> row = {CountText(requests), Fixed(Value(slice, "end_seconds"), 1),
                                    CountText(NumberAt(slice, "blocks"))};
    for (const TierName& tier : kTiers) {
      row.push_back(RatioText(Share(Value(slice, tier.field), Value(slice, "blocks"))));
    }
    row.push_back(BytesText(NumberAt(slice, "fetched_bytes")));
    row.push_back(BytesText(NumberAt(slice, "stored_bytes")));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string WrittenPerServed(const Json& document) {
  const std::optional<double> writes = NumberAt(document, "ssd_writes_per_block");
  const double served = Value(document, "verified_blocks");
  if (!writes || served <= 0) return "-";
  return Fixed(*writes * Value(document, "blocks") / served, 2);
}

void AddFacts(const Json& document, Page* page) {
  const bool full = TextAt(document, "convention") == "full";
  const std::optional<double> seconds = NumberAt(document, "seconds");
  const double bytes = Value(document, "fetched_bytes") + Value(document, "stored_bytes");
  page->facts = {
      {full ? "hit ratio, full blocks" : "hit ratio, all blocks",
       RatioText(NumberAt(document, full ? "hit_ratio_full" : "hit_ratio_all"))},
      {"in RAM", RatioText(NumberAt(document, "hit_ratio_ram"))},
      {"on SSD", RatioText(NumberAt(document, "hit_ratio_ssd"))},
      {"SSD writes per requested block", RatioText(NumberAt(document, "ssd_writes_per_block"))},
      {"SSD bytes written per byte served", WrittenPerServed(document)},
      {"requests", CountText(NumberAt(document, "requests"))},
      {"blocks requested", CountText(NumberAt(document, "blocks"))},
      {"wrong or gone",
       CountText(Value(document, "wrong_blocks") + Value(document, "missed_blocks"))},
      {"fetched", BytesText(NumberAt(document, "fetched_bytes"))},
      {"stored", BytesText(NumberAt(document, "stored_bytes"))},
      {"seconds", seconds ? Fixed(*seconds, 1) : "-"},
      {"throughput", Fixed(Share(bytes / 1e6, seconds.value_or(0)), 1) + " MB/s"},
      {"clients", CountText(NumberAt(document, "clients"))},
      {"tokens per block", CountText(NumberAt(document, "block_tokens"))},
      {"payload of a block", BytesText(NumberAt(document, "block_bytes"))}};
  const std::optional<double> skipped = NumberAt(document, "skipped_lines");
  if (skipped.value_or(0) > 0) page->facts.emplace_back("lines passed over", CountText(skipped));
}

}  // namespace

Page ReplayPage(const Json& document) {
  Page page;
  const std::string trace = TextAt(document, "trace");
  page.title = trace.empty() ? "kvtier replay" : absl::StrCat("kvtier replay: ", FileName(trace));
  page.command = TextAt(document, "command");
  AddFacts(document, &page);
  const std::vector<Json> slices = Slices(document);
  if (!slices.empty()) page.panels.push_back(HitsPanel(slices));
  if (std::optional<Panel> panel = LatencyPanel(document)) page.panels.push_back(*std::move(panel));
  if (!slices.empty()) page.panels.push_back(ThroughputPanel(slices));
  if (std::optional<Panel> panel = SsdWritesPanel(slices)) page.panels.push_back(*std::move(panel));
  page.tables = {LatencyTable(document), BlockTable(document), SliceTable(slices)};
  if (const std::string scale = TextAt(document, "scale"); !scale.empty()) {
    page.notes.push_back(absl::StrCat("Scale: ", scale, "."));
  }
  page.notes.emplace_back(
      "A hit is a block of the longest prefix of a request that was there. Each one was fetched "
      "and every byte of it compared; SSD writes count what the log writes again.");
  return page;
}

}  // namespace kvtier::cli
