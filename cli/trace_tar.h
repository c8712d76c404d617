// The members of a tar archive, in order, from a stream that cannot go back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/trace_stream.h"
#include "common/status.h"

namespace kvtier::cli {

struct TarMember {
  std::string name;
  std::string contents;
};

// Regular files of POSIX ustar, pax and GNU archives; folders, links and the like are passed over.
// Names longer than a header holds are read in GNU's form and pax's. Not thread-safe.
class TarReader {
 public:
  static constexpr uint64_t kMostMemberBytes = uint64_t{1} << 30;

  explicit TarReader(std::unique_ptr<TraceBytes> bytes) : bytes_(std::move(bytes)) {}

  // Whether a file that begins like this is such an archive; 512 bytes are enough to know.
  static bool Recognises(std::string_view beginning);

  // The next file; empty at the end. Errors, naming archive and member: DATA_LOSS (cut off, or a
  // header whose checksum or size is wrong), INVALID_ARGUMENT (above kMostMemberBytes).
  absl::StatusOr<std::optional<TarMember>> Next();

 private:
  struct Header;

  absl::StatusOr<std::optional<Header>> NextHeader();
  absl::StatusOr<std::string> TakeContents(const Header& header);
  absl::Status PassOver(uint64_t bytes, const std::string& name);
  absl::Status Need(size_t bytes, const std::string& name);
  absl::Status CutOff(const std::string& name) const;

  const std::unique_ptr<TraceBytes> bytes_;
};

}  // namespace kvtier::cli
