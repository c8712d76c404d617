// Moving and checking payload at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvtier::client_internal {

// XXH3-64 over bytes that come in pieces; the same value as PayloadChecksum over all of them. Uses
// the widest vectors that the CPU has.
class RunningChecksum {
 public:
  RunningChecksum();
  RunningChecksum(RunningChecksum&&) noexcept;
  RunningChecksum& operator=(RunningChecksum&&) noexcept;
  ~RunningChecksum();

  void Restart();
  void Update(std::span<const std::byte> bytes);
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Copies past the CPU's cache: received KV is not read again by this core, and not loading the
// target's lines first saves a third of the memory traffic. FinishCopies must follow before anybody
// else is told that the bytes are there.
void CopyPast(std::byte* to, std::span<const std::byte> from);
void FinishCopies();

}  // namespace kvtier::client_internal
