// The payload checksum over bytes that come in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvtier {

// The same value as PayloadChecksum over all the pieces, end to end. Uses the widest vectors that
// the CPU has. Not thread-safe.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(RunningChecksum&&) noexcept;
  RunningChecksum& operator=(RunningChecksum&&) noexcept;

  void Restart();
  void Update(std::span<const std::byte> bytes);
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtier
