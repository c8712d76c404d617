#include "storage/ssd_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "storage/record_codec.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// A part with everything that a Write needs; its content follows from `tag`.
struct Part {
  Part(uint64_t tag, uint64_t bytes, const std::string& model = "model",
       const std::string& root = "root")
      : identity(absl::StrCat("tokens of ", tag)), content(bytes) {
    FillContent(tag, content);
    op.id.model = Digest128::Of(model);
    op.id.root = FingerprintOf(root);
    op.id.key = Digest128::Of(absl::StrCat("key ", tag));
    op.id.parent = Digest128::Of(absl::StrCat("parent ", tag));
    op.id.depth = static_cast<uint32_t>(tag);
    op.id.part = static_cast<uint16_t>(tag % 3);
    op.id.part_count = 3;
    op.checksum = PayloadChecksum(content.data(), content.size());
  }

  std::string identity;
  std::vector<std::byte> content;
  WriteOp op;
};

class SsdTierTest : public testing::Test {
 protected:
  SsdTierTest() {
    std::string pattern = testing::TempDir() + "ssd_tier_XXXXXX";
    KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
    parent_ = pattern;
    options_ = {parent_ + "/ssd", 256 * kMiB, 64 * kMiB, &clock_, nullptr};
  }
  ~SsdTierTest() override {
    tier_.reset();
    fs::remove_all(parent_);
  }

  // Opens, or closes and opens again; what came back, by segment, as depths.
  std::vector<std::vector<uint64_t>> Start() {
    tier_.reset();
    absl::StatusOr<std::unique_ptr<SsdTier>> opened = SsdTier::Open(options_);
    EXPECT_EQ(opened.status(), absl::OkStatus());
    tier_ = std::move(*opened);
    std::vector<std::vector<uint64_t>> found;
    tier_->Recover([&found](std::span<const StoredPart> parts) {
      found.emplace_back();
      for (const StoredPart& part : parts) found.back().push_back(part.id.depth);
    });
    return found;
  }

  // As one segment.
  absl::Status Write(std::span<Part* const> parts) {
    std::vector<WriteOp> ops;
    for (Part* part : parts) {
      ops.push_back(part->op);
      ops.back().id.identity = part->identity;
      ops.back().from = part->content;
    }
    tier_->Write(ops, TimePoint());
    absl::Status status;
    for (size_t i = 0; i < ops.size(); ++i) {
      parts[i]->op.location = ops[i].location;
      status.Update(ops[i].status);
    }
    return status;
  }
  absl::Status Write(Part& part) {
    Part* const one = &part;
    return Write({&one, 1});
  }

  absl::Status Read(const Part& part) { return ReadAs(part, part.op.id); }
  absl::Status ReadAs(const Part& part, PartIdentity id) {
    std::vector<std::byte> out(part.content.size());
    if (id.identity.empty()) id.identity = part.identity;
    ReadOp op{id, part.op.location, part.op.checksum, out, absl::UnknownError("not set")};
    tier_->Read({&op, 1}, TimePoint());
    if (op.status.ok()) {
      EXPECT_TRUE(out == part.content);
    }
    return op.status;
  }
  void Erase(const Part& part) { tier_->Erase({&part.op.location, 1}); }

  std::vector<fs::path> PayloadFiles() const {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(parent_)) {
      if (entry.path().extension() == ".sst") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  // What du shows.
  uint64_t PayloadBytesOnDisk() const {
    uint64_t bytes = 0;
    for (const fs::path& file : PayloadFiles()) {
      struct stat status = {};
      KVTIER_CHECK(::stat(file.c_str(), &status) == 0);
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }

  ManualClock clock_;
  std::string parent_;
  SsdTierOptions options_;
  std::unique_ptr<SsdTier> tier_;
};

TEST_F(SsdTierTest, RoundTripsEverySize) {
  EXPECT_THAT(Start(), testing::IsEmpty());
  std::vector<std::unique_ptr<Part>> parts;
  uint64_t tag = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{511}, 4 * kKiB, 4 * kKiB + 1, 64 * kKiB,
                               2 * kMiB, 2 * kMiB + 7, 64 * kMiB}) {
    parts.push_back(std::make_unique<Part>(tag++, bytes));
    ASSERT_EQ(Write(*parts.back()), absl::OkStatus()) << bytes;
  }
  for (const auto& part : parts) EXPECT_EQ(Read(*part), absl::OkStatus());
  EXPECT_EQ(Start().size(), parts.size());
  for (const auto& part : parts) EXPECT_EQ(Read(*part), absl::OkStatus());
  EXPECT_EQ(tier_->stats().checksum_failures, 0u);
}

}  // namespace
}  // namespace kvtier
