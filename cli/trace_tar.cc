#include "cli/trace_tar.h"

#include <algorithm>
#include <utility>

namespace kvtier::cli {
namespace {

constexpr size_t kBlock = 512;
constexpr uint64_t kMostNameBytes = 1 << 20;  // of a long name's or a pax header's own record

// Fields of a header, POSIX.1-1988: offset and length.
constexpr std::pair<size_t, size_t> kName{0, 100}, kSize{124, 12}, kChecksum{148, 8},
    kPrefix{345, 155};
constexpr size_t kTypeAt = 156, kMagicAt = 257;

constexpr char kLongName = 'L';  // GNU: the next member's name is these contents
constexpr char kPaxHeader = 'x';

std::string_view Field(std::string_view header, std::pair<size_t, size_t> field) {
  return header.substr(field.first, field.second);
}

std::string UpToNul(std::string_view text) { return std::string(text.substr(0, text.find('\0'))); }

// Octal digits, ended by a space or NUL; GNU's binary form for what is too large for them.
std::optional<uint64_t> Number(std::string_view field) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field.front()) & 0x80) != 0) {
    for (const char c : field.substr(field.size() - sizeof(uint64_t))) {
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  const size_t digits = std::min(field.find_first_not_of("01234567"), field.size());
  if (digits == 0 || (digits < field.size() && field[digits] != ' ' && field[digits] != '\0')) {
    return std::nullopt;
  }
  for (const char digit : field.substr(0, digits)) value = value * 8 + (digit - '0');
  return value;
}

// The sum of the header's bytes, its checksum's own taken as spaces.
bool ChecksumMatches(std::string_view header) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kChecksum.first && i < kChecksum.first + kChecksum.second;
    sum += own ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return Number(Field(header, kChecksum)) == sum;
}

std::string NameOf(std::string_view header) {
  const std::string name = UpToNul(Field(header, kName));
  const bool posix = header.substr(kMagicAt, 6) == std::string_view("ustar\0", 6);
  const std::string prefix = posix ? UpToNul(Field(header, kPrefix)) : "";
  return prefix.empty() ? name : prefix + "/" + name;
}

// "LENGTH path=NAME\n" among a pax header's records; empty without one.
std::string PathOfPax(std::string_view records) {
  static constexpr std::string_view kKey = " path=";
  const size_t at = records.find(kKey);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = records.substr(at + kKey.size());
  return std::string(rest.substr(0, rest.find('\n')));
}

}  // namespace

struct TarReader::Header {
  std::string name;
  char type = '0';
  uint64_t bytes = 0;
};

bool TarReader::Recognises(std::string_view beginning) {
  return beginning.size() >= kBlock && beginning.substr(kMagicAt, 5) == "ustar" &&
         ChecksumMatches(beginning);
}

absl::Status TarReader::CutOff(const std::string& name) const {
  return absl::DataLossError(absl::StrCat(bytes_->path(), ": the archive is cut off in ",
                                          name.empty() ? "a header" : "member " + name));
}

absl::Status TarReader::Need(size_t bytes, const std::string& name) {
  while (bytes_->unread().size() < bytes) {
    KVTIER_ASSIGN_OR_RETURN(const bool more, bytes_->Fill());
    if (!more) return CutOff(name);
  }
  return absl::OkStatus();
}

absl::Status TarReader::PassOver(uint64_t bytes, const std::string& name) {
  while (bytes > 0) {
    KVTIER_RETURN_IF_ERROR(Need(1, name));
    const uint64_t step = std::min<uint64_t>(bytes, bytes_->unread().size());
    bytes_->Consume(step);
    bytes -= step;
  }
  return absl::OkStatus();
}

// Empty at the end: a block of zeros, or no more bytes where a header could begin.
absl::StatusOr<std::optional<TarReader::Header>> TarReader::NextHeader() {
  if (bytes_->unread().empty()) {
    KVTIER_ASSIGN_OR_RETURN(const bool more, bytes_->Fill());
    if (!more) return std::optional<Header>();
  }
  KVTIER_RETURN_IF_ERROR(Need(kBlock, ""));
  const std::string block(bytes_->unread().substr(0, kBlock));
  bytes_->Consume(kBlock);
  if (block.find_first_not_of('\0') == std::string::npos) return std::optional<Header>();
  Header header{NameOf(block), block[kTypeAt], 0};
  const std::optional<uint64_t> size = Number(Field(block, kSize));
  if (!ChecksumMatches(block) || !size) {
    return absl::DataLossError(
        absl::StrCat(bytes_->path(), ": damaged tar header",
                     size ? " (its checksum does not match)" : " (no size)"));
  }
  header.bytes = *size;
  return std::optional<Header>(std::move(header));
}

// With what fills its last block.
absl::StatusOr<std::string> TarReader::TakeContents(const Header& header) {
  KVTIER_RETURN_IF_ERROR(Need(header.bytes, header.name));
  std::string contents(bytes_->unread().substr(0, header.bytes));
  bytes_->Consume(header.bytes);
  KVTIER_RETURN_IF_ERROR(PassOver((kBlock - header.bytes % kBlock) % kBlock, header.name));
  return contents;
}

absl::StatusOr<std::optional<TarMember>> TarReader::Next() {
  std::string long_name;
  for (;;) {
    KVTIER_ASSIGN_OR_RETURN(std::optional<Header> header, NextHeader());
    if (!header) return std::optional<TarMember>();
    const bool names_next = header->type == kLongName || header->type == kPaxHeader;
    if (!names_next && !long_name.empty()) header->name = std::exchange(long_name, "");
    const bool file = header->type == '0' || header->type == '\0';
    const uint64_t most = names_next ? kMostNameBytes : kMostMemberBytes;
    if ((file || names_next) && header->bytes > most) {
      return absl::InvalidArgumentError(absl::StrCat(bytes_->path(), ": member ", header->name,
                                                     " has ", header->bytes,
                                                     " bytes, the limit is ", most));
    }
    if (!file && !names_next) {
      KVTIER_RETURN_IF_ERROR(
          PassOver((header->bytes + kBlock - 1) / kBlock * kBlock, header->name));
      continue;
    }
    KVTIER_ASSIGN_OR_RETURN(std::string contents, TakeContents(*header));
    if (file)
      return std::optional<TarMember>(TarMember{std::move(header->name), std::move(contents)});
    const bool pax = header->type == kPaxHeader;
    const std::string name = pax ? PathOfPax(contents) : UpToNul(contents);
    if (!name.empty()) long_name = name;
  }
}

}  // namespace kvtier::cli
