// libFuzzer's entry: build with -DKVTIER_FUZZ=ON (clang), then build/.../bin/wire_fuzz
// -max_len=4096.
#include "tests/fuzz/wire_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvtier::FuzzWire({data, size});
  return 0;
}
