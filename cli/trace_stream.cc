#include "cli/trace_stream.h"

#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace kvtier::cli {
namespace {

constexpr size_t kReadBytes = 1 << 18;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

struct StreamFreer {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

}  // namespace

class TraceBytes::File {
 public:
  File(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Looks at the first bytes to know which kind it is.
  absl::Status Start() {
    KVTIER_RETURN_IF_ERROR(Refill());
    static constexpr unsigned char kMagic[] = {0x28, 0xb5, 0x2f, 0xfd};
    if (filled_ >= sizeof(kMagic) && std::memcmp(raw_.data(), kMagic, sizeof(kMagic)) == 0) {
      zstd_.reset(ZSTD_createDStream());
      frame_open_ = true;
    }
    return absl::OkStatus();
  }

  // Appends some bytes; appends none only at the end.
  absl::Status Read(std::string* out) { return zstd_ ? ReadZstd(out) : ReadPlain(out); }

 private:
  absl::Status Refill() {
    raw_.resize(kReadBytes);
    taken_ = 0;
    filled_ = std::fread(raw_.data(), 1, raw_.size(), file_.get());
    if (std::ferror(file_.get()) != 0) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, ": ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPlain(std::string* out) {
    if (taken_ == filled_) KVTIER_RETURN_IF_ERROR(Refill());
    out->append(raw_, taken_, filled_ - taken_);
    taken_ = filled_;
    return absl::OkStatus();
  }

  absl::Status ReadZstd(std::string* out) {
    const size_t before = out->size();
    while (out->size() == before) {
      if (taken_ == filled_ && !output_waits_) KVTIER_RETURN_IF_ERROR(Refill());
      if (filled_ == 0 && !output_waits_) {
        return frame_open_ ? absl::DataLossError(path_ + ": the zstd stream is cut off")
                           : absl::OkStatus();
      }
      out->resize(before + ZSTD_DStreamOutSize());
      ZSTD_inBuffer in{raw_.data(), filled_, taken_};
      ZSTD_outBuffer to{out->data() + before, ZSTD_DStreamOutSize(), 0};
      const size_t result = ZSTD_decompressStream(zstd_.get(), &to, &in);
      out->resize(before + to.pos);
      taken_ = in.pos;
      if (ZSTD_isError(result)) {
        return absl::DataLossError(
            absl::StrCat(path_, ": damaged zstd stream: ", ZSTD_getErrorName(result)));
      }
      frame_open_ = result != 0;
      output_waits_ = frame_open_ && to.pos == to.size;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<std::FILE, FileCloser> file_;
  const std::string path_;
  std::unique_ptr<ZSTD_DStream, StreamFreer> zstd_;  // null for a plain file
  bool frame_open_ = false;
  bool output_waits_ = false;  // the decompressor may hold more than it could hand out
  std::string raw_;            // [taken_, filled_) is unread
  size_t taken_ = 0;
  size_t filled_ = 0;
};

TraceBytes::TraceBytes(std::unique_ptr<File> file) : path_(file->path()), file_(std::move(file)) {}

TraceBytes::~TraceBytes() = default;

absl::StatusOr<std::unique_ptr<TraceBytes>> TraceBytes::Open(const std::string& path) {
  std::FILE* const opened = std::fopen(path.c_str(), "rb");
  if (opened == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  auto file = std::make_unique<File>(opened, path);
  KVTIER_RETURN_IF_ERROR(file->Start());
  return std::unique_ptr<TraceBytes>(new TraceBytes(std::move(file)));
}

absl::StatusOr<bool> TraceBytes::Fill() {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  const size_t before = buffer_.size();
  KVTIER_RETURN_IF_ERROR(file_->Read(&buffer_));
  return buffer_.size() > before;
}

}  // namespace kvtier::cli
