// The figures that an independent simulator gave for recorded traces.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/simulate/simulation.h"
#include "gtest/gtest.h"

namespace kvtier::cli {
namespace {

struct Figures {
  const char* policy;
  const char* capacity;
  double all;
  double full;  // 0: none recorded
};

std::filesystem::path TraceFolder() {
  const char* folder = std::getenv("KVTIER_TRACES");
  return folder != nullptr ? std::filesystem::path(folder)
                           : std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/traces";
}

void Expect(const std::string& file, uint32_t block_tokens, const std::vector<Figures>& figures) {
  const std::filesystem::path path = TraceFolder() / file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no trace " << path << "; set KVTIER_TRACES";
  SimulateOptions options;
  options.trace = path.string();
  options.reader.block_tokens = block_tokens;
  options.policies = {"lru", "lru-root", "protected", "min"};
  for (const Figures& row : figures) options.capacities.push_back(*ParseCapacity(row.capacity));
  const auto report = Simulate(options, [](std::string_view) {});
  ASSERT_TRUE(report.ok()) << report.status();
  for (size_t i = 0; i < figures.size(); ++i) {
    const Figures& figure = figures[i];
    const auto row = std::find_if(
        report->rows.begin() + static_cast<ptrdiff_t>(i * options.policies.size()),
        report->rows.end(), [&](const SimulationRow& r) { return r.policy == figure.policy; });
    ASSERT_NE(row, report->rows.end());
    EXPECT_NEAR(*row->hit_ratio_all, figure.all, .0005) << figure.policy << figure.capacity;
    if (figure.full == 0) continue;
    EXPECT_NEAR(*row->hit_ratio_full, figure.full, .0005) << figure.policy << figure.capacity;
  }
}

TEST(ReproduceTest, Conversation) {
  Expect("mooncake_conversation.jsonl.zst", 512,
         {{"lru", "1828", .0525, .0551},
          {"lru", "9140", .1958, .2118},
          {"lru", "18279", .2789, .2957},
          {"lru", "45698", .3535, 0},
          {"lru", "100%", .3664, 0},
          {"lru-root", "1828", .0523, 0},
          {"lru-root", "9140", .1954, 0},
          {"lru-root", "18279", .2784, 0},
          {"min", "1828", .2464, .2570},
          {"min", "9140", .3664, .3819},
          {"protected", "1828", .0601, .0628},
          {"protected", "9140", .2073, .2230},
          {"protected", "18279", .2888, .3045}});
}

TEST(ReproduceTest, Magagent) {
  Expect("lmcache_magagent_b16.jsonl.zst", 16,
         {{"lru", "1%", .441, .442},
          {"lru", "5%", .719, .719},
          {"lru-root", "1%", .287, .286},
          {"lru-root", "5%", .665, .664},
          {"min", "1%", .496, .496},
          {"min", "5%", .789, .789},
          {"protected", "1%", .4412, .4420},
          {"protected", "5%", .7218, .7221}});
}

}  // namespace
}  // namespace kvtier::cli
