// How the client, the daemon and the benchmark's ceilings tune gRPC's transport. One list, so that
// both ends of a connection agree and a comparison is fair. Names and values only: no gRPC here.
#pragma once

#include <cstdint>

namespace kvtier {

struct ChannelArg {
  const char* name;
  int value;
};

inline constexpr ChannelArg kTransportArgs[] = {
    // A message of payload travels in one frame instead of 64 frames of 16 KiB.
    {"grpc.http2.max_frame_size", 1 << 20},
    // How much a sender may have in flight before the receiver has asked for more.
    {"grpc.http2.lookahead_bytes", 16 << 20},
    // Reads of the socket's whole buffer at once, into few large slices.
    {"grpc.experimental.tcp_read_chunk_size", 1 << 20},
    {"grpc.experimental.tcp_min_read_chunk_size", 256 << 10},
    {"grpc.experimental.tcp_max_read_chunk_size", 4 << 20},
    // The client repeats calls itself, and knows which: no copies of messages kept for that.
    {"grpc.enable_retries", 0},
    // KV does not compress.
    {"grpc.default_compression_algorithm", 0},
};

// Request messages: a prompt's tokens (4 bytes each) or engine hashes, its media, and a head that
// is far smaller. A payload message is smaller.
inline constexpr int kMaxMessageBytes = 8 << 20;
inline constexpr uint64_t kMaxPromptBytes = kMaxMessageBytes - (64 << 10);

}  // namespace kvtier
