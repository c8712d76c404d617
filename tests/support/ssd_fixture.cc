#include "tests/support/ssd_fixture.h"

#include <algorithm>
#include <filesystem>

namespace kvtier {

SsdFixture::SsdFixture() : fs_(std::make_shared<FaultyFileSystem>(rocksdb::FileSystem::Default())) {
  options_.directory = folder_ / "ssd";
  options_.capacity_bytes = uint64_t{16} << 20;
  options_.clock = &clock_;
  options_.file_system = fs_;
}

absl::Status SsdFixture::Open() {
  KVTIER_RETURN_IF_ERROR(Start());
  for (const auto& [tag, known] : known_) {
    const absl::Status status = Read(tag);
    EXPECT_TRUE(status.ok() || IsMiss(status)) << status;
  }
  return absl::OkStatus();
}

absl::Status SsdFixture::Start() {
  Close();
  known_.clear();
  absl::StatusOr<std::unique_ptr<SsdTier>> opened = SsdTier::Open(options_);
  if (!opened.ok()) return opened.status();
  tier_ = std::move(*opened);
  tier_->Recover([this](std::span<const StoredPart> parts) {
    ++next_segment_;
    for (const StoredPart& part : parts) {
      const uint64_t tag = part.id.depth;
      EXPECT_EQ(part.id.identity, IdentityOf(tag));
      EXPECT_EQ(part.bytes, BytesOf(tag));
      EXPECT_TRUE(known_.try_emplace(tag, Known{part.location, next_segment_}).second);
    }
  });
  return absl::OkStatus();
}

absl::Status SsdFixture::Write(int parts) {
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> contents;
  std::vector<uint64_t> tags;
  for (int i = 0; i < parts; ++i) {
    tags.push_back(next_tag_++);
    identities.push_back(IdentityOf(tags.back()));
    contents.push_back(ContentOf(tags.back(), BytesOf(tags.back())));
  }
  std::vector<WriteOp> ops(tags.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].id = PartOf(tags[i], identities[i]);
    ops[i].from = contents[i];
    ops[i].checksum = PayloadChecksum(contents[i].data(), contents[i].size());
  }
  tier_->Write(ops, TimePoint());
  ++next_segment_;
  for (size_t i = 0; i < ops.size(); ++i) {
    EXPECT_EQ(ops[i].status, ops[0].status);  // all or nothing
    if (ops[i].status.ok()) known_[tags[i]] = {ops[i].location, next_segment_};
  }
  return ops[0].status;
}

absl::Status SsdFixture::Read(uint64_t tag) {
  const std::string identity = IdentityOf(tag);
  const std::vector<std::byte> content = ContentOf(tag, BytesOf(tag));
  std::vector<std::byte> out(content.size());
  ReadOp op{PartOf(tag, identity), known_.at(tag).location,
            PayloadChecksum(content.data(), content.size()), out, absl::UnknownError("not set")};
  tier_->Read({&op, 1}, TimePoint());
  if (op.status.ok()) {
    EXPECT_TRUE(out == content) << "wrong bytes served as " << tag;
  }
  return op.status;
}

void SsdFixture::Erase(std::vector<uint64_t> tags) {
  std::vector<Location> locations;
  for (const uint64_t tag : tags) {
    locations.push_back(known_.at(tag).location);
    known_.erase(tag);
  }
  tier_->Erase(locations);
}

void SsdFixture::EraseAll() { Erase(Tags()); }

absl::Status SsdFixture::GetWell() {
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(std::chrono::minutes(1));
    tier_->Maintain();
    if (tier_->writable().ok()) break;
  }
  return tier_->writable();
}

std::vector<uint64_t> SsdFixture::Tags() const {
  std::vector<uint64_t> tags;
  for (const auto& [tag, known] : known_) tags.push_back(tag);
  return tags;
}

void SsdFixture::ExpectAllRight() {
  for (const auto& [tag, known] : known_) EXPECT_EQ(Read(tag), absl::OkStatus()) << tag;
}

uint64_t SsdFixture::CountMissing(const std::vector<uint64_t>& tags) {
  uint64_t missing = 0;
  for (const uint64_t tag : tags) {
    if (!known_.contains(tag)) {
      ++missing;
      continue;
    }
    const absl::Status status = Read(tag);
    EXPECT_TRUE(status.ok() || IsMiss(status)) << status;
    missing += !status.ok();
  }
  return missing;
}

std::vector<std::string> SsdFixture::PayloadFiles() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    if (entry.path().extension() == ".sst") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> SsdFixture::SetAside() const {
  std::vector<std::string> aside;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().string().starts_with(options_.directory + ".")) {
      aside.push_back(entry.path().string());
    }
  }
  return aside;
}

}  // namespace kvtier
