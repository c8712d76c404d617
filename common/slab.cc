#include "common/slab.h"

#include <sys/mman.h>

#include <new>

namespace kvtier {

void* AllocateSlab() {
  void* slab = ::operator new(kSlabBytes, std::align_val_t(kSlabBytes));
  // Advice: without it everything is as right, and slower.
  static_cast<void>(madvise(slab, kSlabBytes, MADV_HUGEPAGE));
  return slab;
}

void FreeSlab::operator()(void* slab) const {
  ::operator delete(slab, std::align_val_t(kSlabBytes));
}

}  // namespace kvtier
