#include "kvtier/client.h"

namespace kvtier {

uint32_t BlocksWorthFetching(const PrefixMatch& match, double prefill_tokens_per_second) {
  if (match.blocks == 0 || prefill_tokens_per_second <= 0) return match.blocks;
  const double block_seconds =
      static_cast<double>(match.tokens) / match.blocks / prefill_tokens_per_second;
  double saved = 0, most_saved = 0;
  uint32_t blocks = 0, worth = 0;
  for (const TierSpan& run : match.runs) {
    blocks += run.blocks;
    saved += run.blocks * block_seconds - std::chrono::duration<double>(run.load_time).count();
    if (saved < most_saved) continue;
    most_saved = saved;
    worth = blocks;
  }
  return worth;
}

}  // namespace kvtier
