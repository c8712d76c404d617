// Policies that kvtierd does not run, for comparison. Their blocks come and go one by one, so a
// tail may be there without its head, where it is of no use: hits are still those of the longest
// prefix.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cli/simulate/simulated_cache.h"

namespace kvtier::cli {

// Of blocks used in the order of the prompt: heads leave before their tails.
std::unique_ptr<SimulatedCache> MakeRootFirstLru(uint64_t capacity);

// Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure 4.
// Blocks of a request deepest first.
std::unique_ptr<SimulatedCache> MakeArc(uint64_t capacity);

// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1: a small
// queue of a tenth, a main queue, and a ghost queue as long as the main one. Blocks of a request
// deepest first.
std::unique_ptr<SimulatedCache> MakeS3Fifo(uint64_t capacity);

}  // namespace kvtier::cli
