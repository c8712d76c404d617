#include "storage/root_fingerprint.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace kvtier {

RootFingerprint FingerprintOf(std::string_view canonical_root) {
  RootFingerprint out;
  unsigned int bytes = 0;
  const int done = EVP_Digest(canonical_root.data(), canonical_root.size(), out.data(), &bytes,
                              EVP_sha256(), nullptr);
  KVTIER_CHECK(done == 1 && bytes == out.size());
  return out;
}

}  // namespace kvtier
