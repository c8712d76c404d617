// The SSD tier when the medium fails: every call in turn, no space, slow reads.
#include <gmock/gmock.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/executor.h"
#include "tests/support/ssd_fixture.h"

namespace kvtier {
namespace {

using rocksdb::IOStatus;

constexpr uint64_t kForGood = UINT64_MAX;

struct Fault {
  const char* name;
  IOStatus status;
  uint64_t count;
};

std::string FaultName(const testing::TestParamInfo<Fault>& info) { return info.param.name; }

// Each test does the same over and over, with the first call failing, then the second, and so on,
// until there is no such call.
class EveryCallFailsTest : public SsdFixture, public testing::WithParamInterface<Fault> {
 protected:
  void FailFrom(uint64_t call) { fs_->Fail(call, GetParam().count, GetParam().status); }
  // Whether any call has failed since; from now on none does.
  bool EndFaults() {
    const bool failed = fs_->failures() > 0;
    fs_->FailNothing();
    return failed;
  }
  // That the tier has what it should and serves again.
  void ExpectWell() {
    EXPECT_EQ(GetWell(), absl::OkStatus());
    ExpectAllRight();
    EXPECT_EQ(Write(), absl::OkStatus());
    ExpectAllRight();
    EXPECT_EQ(tier_->stats().state, SsdState::kServing);
  }
  // Nothing that failed on the way holds space for ever.
  void ExpectNothingLeaks() {
    const std::vector<uint64_t> written = Tags();
    ASSERT_EQ(Open(), absl::OkStatus());
    EXPECT_EQ(CountMissing(written), 0u);
    EraseAll();
    tier_->Maintain();
    EXPECT_EQ(tier_->usage().used_bytes, 0u);
    EXPECT_EQ(tier_->usage().backed_bytes, 0u);
    EXPECT_THAT(PayloadFiles(), testing::IsEmpty());
    EXPECT_THAT(SetAside(), testing::IsEmpty());
  }
};

TEST_P(EveryCallFailsTest, OfAWrite) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    FailFrom(call);
    const absl::Status status = Write();
    if (!EndFaults()) {
      EXPECT_EQ(status, absl::OkStatus());
      break;
    }
    SCOPED_TRACE(absl::StrCat("call ", call, ": ", std::string(status.ToString())));
    ExpectAllRight();
    EXPECT_EQ(status.ok(), tier_->writable().ok());
    EXPECT_THAT(status.code(),
                testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kUnavailable));
    failed += !status.ok();
    ExpectWell();
  }
  EXPECT_GT(failed, 10u);
  EXPECT_EQ(tier_->stats().write_errors, failed);
  ExpectNothingLeaks();
}

TEST_P(EveryCallFailsTest, OfRetiringAFile) {
  ASSERT_EQ(Open(), absl::OkStatus());
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    ASSERT_EQ(Write(), absl::OkStatus());
    Erase({next_tag_ - 1, next_tag_ - 2, next_tag_ - 3});
    FailFrom(call);
    tier_->Maintain();
    if (!EndFaults()) break;
    SCOPED_TRACE(absl::StrCat("call ", call));
    failed += !tier_->writable().ok();
    ExpectAllRight();
    ExpectWell();
  }
  EXPECT_GT(failed, 1u);
  ExpectNothingLeaks();
}

TEST_P(EveryCallFailsTest, OfAForget) {
  ASSERT_EQ(Open(), absl::OkStatus());
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    ASSERT_EQ(Write(), absl::OkStatus());
    FailFrom(call);
    const absl::Status status = tier_->Forget(Digest128::Of("model"), std::nullopt);
    const bool any = EndFaults();
    SCOPED_TRACE(absl::StrCat("call ", call, ": ", std::string(status.ToString())));
    ExpectAllRight();
    EXPECT_EQ(GetWell(), absl::OkStatus());
    failed += !status.ok();
    const std::vector<uint64_t> before = Tags();
    ASSERT_EQ(Open(), absl::OkStatus());
    const uint64_t missing = CountMissing(before);
    if (status.ok()) {
      EXPECT_EQ(missing, before.size());
    } else {
      EXPECT_THAT(missing, testing::AnyOf(0u, before.size()));
    }
    EraseAll();
    if (!any) break;
  }
  EXPECT_GT(failed, 10u);
  ExpectNothingLeaks();
}

// From an empty folder too.
TEST_P(EveryCallFailsTest, OfTheFirstOpen) {
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    Close();
    std::filesystem::remove_all(options_.directory);
    FailFrom(call);
    const absl::Status status = Open();
    const bool any = EndFaults();
    SCOPED_TRACE(absl::StrCat("call ", call, ": ", std::string(status.ToString())));
    failed += !status.ok() || !tier_->writable().ok();
    if (!status.ok()) {
      ASSERT_EQ(Open(), absl::OkStatus());
    }
    ExpectWell();
    if (!any) break;
  }
  EXPECT_GT(failed, 10u);
  EXPECT_THAT(SetAside(), testing::IsEmpty());
}

// One call that fails may cost one file at most, and only when Open says OK.
TEST_P(EveryCallFailsTest, OfAnOpen) {
  ASSERT_EQ(Open(), absl::OkStatus());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Write(), absl::OkStatus());
  const std::vector<uint64_t> written = Tags();
  Close();
  std::filesystem::copy(options_.directory, folder_ / "pristine",
                        std::filesystem::copy_options::recursive);
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    Close();
    std::filesystem::remove_all(options_.directory);
    std::filesystem::copy(folder_ / "pristine", options_.directory,
                          std::filesystem::copy_options::recursive);
    FailFrom(call);
    const absl::Status status = Open();
    const bool any = EndFaults();
    SCOPED_TRACE(absl::StrCat("call ", call, ": ", std::string(status.ToString())));
    ASSERT_THAT(SetAside(), testing::IsEmpty());
    failed += !status.ok() || !tier_->writable().ok();
    if (!status.ok()) {
      ASSERT_EQ(Open(), absl::OkStatus());
      EXPECT_EQ(CountMissing(written), 0u);
    } else if (!tier_->writable().ok()) {
      EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
      EXPECT_EQ(CountMissing(written), 0u);
    } else if (GetParam().count == 1) {
      EXPECT_LE(CountMissing(written), 3u);
    }
    ExpectWell();
    if (!any) break;
  }
  EXPECT_GT(failed, 10u);
}

// While it gets well after a failure that RocksDB holds on to.
TEST_P(EveryCallFailsTest, OfGettingWell) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  uint64_t failed = 0;
  for (uint64_t call = 1; !HasFailure(); ++call) {
    fs_->Fail(1, kForGood, IOStatus::IOError("sick"), {FileCall::kSync});
    EXPECT_FALSE(Write().ok());
    clock_.Advance(std::chrono::minutes(1));
    FailFrom(call);
    tier_->Maintain();
    const bool any = EndFaults();
    SCOPED_TRACE(absl::StrCat("call ", call));
    failed += !tier_->writable().ok();
    ExpectWell();
    if (!any) break;
  }
  EXPECT_GT(failed, 1u);
  ExpectNothingLeaks();
}

INSTANTIATE_TEST_SUITE_P(
    SsdTier, EveryCallFailsTest,
    testing::Values(Fault{"ErrorOnce", IOStatus::IOError("told to"), 1},
                    Fault{"ErrorsOnward", IOStatus::IOError("told to"), kForGood},
                    Fault{"NoSpaceOnce", IOStatus::NoSpace("told to"), 1},
                    Fault{"NoSpaceOnward", IOStatus::NoSpace("told to"), kForGood}),
    FaultName);

class SsdFaultsTest : public SsdFixture {};

// By what it is that finds the disk full.
TEST_F(SsdFaultsTest, WritesAgainWhenThereIsSpaceAgain) {
  ASSERT_EQ(Open(), absl::OkStatus());
  const FileCall kinds[] = {FileCall::kCreate, FileCall::kAppend, FileCall::kSync, FileCall::kLink,
                            FileCall::kSyncDirectory};
  for (const FileCall kind : kinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    ASSERT_EQ(Write(), absl::OkStatus());
    ASSERT_EQ(Write(), absl::OkStatus());
    fs_->Fail(1, kForGood, IOStatus::NoSpace("disk full"), {kind});
    EXPECT_EQ(Write().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
    ExpectAllRight();
    Erase({next_tag_ - 4});
    GetWell().IgnoreError();  // it may think so until it writes
    ExpectAllRight();
    EXPECT_FALSE(Write().ok());
    EXPECT_GT(fs_->failures(), 0u);
    fs_->FailNothing();
    EXPECT_FALSE(Write().ok());  // not before Maintain has looked
    EXPECT_EQ(GetWell(), absl::OkStatus());
    EXPECT_EQ(Write(), absl::OkStatus());
    ExpectAllRight();
  }
}

TEST_F(SsdFaultsTest, TriesAgainNoMoreOftenThanItShould) {
  ASSERT_EQ(Open(), absl::OkStatus());
  fs_->Fail(1, kForGood, IOStatus::IOError("sick"), {FileCall::kAppend});
  EXPECT_FALSE(Write().ok());
  const uint64_t calls = fs_->calls();
  for (int i = 0; i < 10; ++i) {
    tier_->Maintain();
    EXPECT_FALSE(Write().ok());
  }
  EXPECT_EQ(fs_->calls(), calls);
  clock_.Advance(std::chrono::minutes(1));
  tier_->Maintain();
  EXPECT_GT(fs_->calls(), calls);
  EXPECT_FALSE(tier_->writable().ok());
}

TEST_F(SsdFaultsTest, AReadThatFailsIsAMissAndTheNextOneIsNot) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  ExpectAllRight();
  fs_->Fail(1, 1, IOStatus::IOError("told to"), {FileCall::kRead});
  EXPECT_TRUE(IsMiss(Read(1)));
  EXPECT_EQ(fs_->failures(), 1u);
  EXPECT_EQ(tier_->stats().read_errors, 1u);
  ExpectAllRight();
  fs_->ShortenReads(1);
  EXPECT_TRUE(IsMiss(Read(1)));
  EXPECT_EQ(tier_->stats().read_errors + tier_->stats().checksum_failures, 2u);
  ExpectAllRight();
  EXPECT_EQ(tier_->writable(), absl::OkStatus());
  EXPECT_EQ(Write(), absl::OkStatus());
}

const std::vector<FileCall> kTakeSpace = {FileCall::kCreate, FileCall::kAppend, FileCall::kSync,
                                          FileCall::kLink, FileCall::kSyncDirectory};

struct Full {
  const char* name;
  IOStatus status;
};
class SsdFullDiskTest : public SsdFixture, public testing::WithParamInterface<Full> {};

// As RocksDB tells of ENOSPC and of EDQUOT.
INSTANTIATE_TEST_SUITE_P(SsdTier, SsdFullDiskTest,
                         testing::Values(Full{"Disk", IOStatus::NoSpace("disk full")},
                                         Full{"Quota", IOStatus::IOError("disk full",
                                                                         std::strerror(EDQUOT))}),
                         [](const testing::TestParamInfo<Full>& info) { return info.param.name; });

TEST_P(SsdFullDiskTest, StartsWithWhatIsThere) {
  ASSERT_EQ(Open(), absl::OkStatus());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Write(), absl::OkStatus());
  const std::vector<uint64_t> written = Tags();
  fs_->Fail(1, kForGood, GetParam().status, kTakeSpace);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
  EXPECT_THAT(std::string(tier_->writable().message()),
              testing::AllOf(testing::HasSubstr(options_.directory), testing::HasSubstr("full")));
  EXPECT_EQ(CountMissing(written), 0u);
  EXPECT_EQ(Write().code(), absl::StatusCode::kUnavailable);

  Erase({written[0], written[1], written[2]});
  const std::vector<std::string> files = PayloadFiles();
  EXPECT_FALSE(GetWell().ok());
  EXPECT_EQ(PayloadFiles(), files);
  EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
  ExpectAllRight();

  fs_->FailNothing();
  EXPECT_EQ(GetWell(), absl::OkStatus());
  EXPECT_EQ(tier_->stats().state, SsdState::kServing);
  EXPECT_EQ(PayloadFiles().size(), files.size() - 1);
  EXPECT_EQ(Write(), absl::OkStatus());
  ExpectAllRight();
  const std::vector<uint64_t> all = Tags();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(tier_->stats().state, SsdState::kServing);
  EXPECT_EQ(CountMissing(all), 0u);
}

TEST_P(SsdFullDiskTest, StartsInTheRoomOfWhatAKilledProcessWasWriting) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  Close();
  const std::string left = options_.directory + "/staging/new.sst";
  std::ofstream(left) << std::string(4096, 'x');
  fs_->Fail(1, 1, GetParam().status, kTakeSpace);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(fs_->failures(), 1u);
  EXPECT_EQ(tier_->stats().state, SsdState::kServing);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(Write(), absl::OkStatus());
  ExpectAllRight();
}

TEST_P(SsdFullDiskTest, StartsWhereNothingIsYet) {
  fs_->Fail(1, kForGood, GetParam().status, kTakeSpace);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(tier_->stats().state, SsdState::kReopening);
  EXPECT_EQ(Write().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(GetWell().ok());
  const std::string why(tier_->writable().message());
  EXPECT_THAT(
      why, testing::AllOf(testing::HasSubstr(options_.directory), testing::HasSubstr("disk full")));
  EXPECT_FALSE(GetWell().ok());
  EXPECT_EQ(tier_->writable().message(), why);  // however often it is tried

  fs_->FailNothing();
  EXPECT_EQ(GetWell(), absl::OkStatus());
  EXPECT_EQ(Write(), absl::OkStatus());
  ExpectAllRight();
  const std::vector<uint64_t> written = Tags();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written), 0u);
  EXPECT_THAT(SetAside(), testing::IsEmpty());
}

TEST_F(SsdFaultsTest, DoesNotStartOnADiskThatIsSickAndNotFull) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  fs_->Fail(1, kForGood, IOStatus::IOError("sick"), kTakeSpace);
  EXPECT_EQ(Open().code(), absl::StatusCode::kUnavailable);
  fs_->FailNothing();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(known_.size(), 3u);
}

// What was forgotten stays so when its mark is read from a disk that is full now.
TEST_F(SsdFaultsTest, AFullDiskAtTheStartBringsNothingForgottenBack) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  ASSERT_EQ(tier_->Forget(Digest128::Of("model"), std::nullopt), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  fs_->Fail(1, kForGood, IOStatus::NoSpace("disk full"), kTakeSpace);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(Tags(), (std::vector<uint64_t>{4, 5, 6}));
  EXPECT_FALSE(tier_->Forget(Digest128::Of("model"), std::nullopt).ok());
  fs_->FailNothing();
  EXPECT_EQ(GetWell(), absl::OkStatus());
  ExpectAllRight();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(Tags(), (std::vector<uint64_t>{4, 5, 6}));
}

TEST_F(SsdFaultsTest, AStoreThatIsOpenToReadOnlyChangesNothing) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  const std::vector<uint64_t> written = Tags();
  Close();
  auto store = RocksdbStore::OpenReadOnly({options_.directory, /*direct_io=*/false, fs_});
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<StoreFile> files = (*store)->Files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE((*store)->stopped());
  const uint64_t created = fs_->calls(FileCall::kCreate);
  const RocksdbStore::KeyRange all{files[0].smallest_key, files[0].largest_key + "x"};
  EXPECT_FALSE((*store)->DeleteFiles({&all, 1}).ok());
  EXPECT_EQ(fs_->calls(FileCall::kCreate), created);
  store->reset();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written), 0u);
}

TEST_F(SsdFaultsTest, AnyOtherErrorKeepsTheTierFromStarting) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  const std::vector<uint64_t> written = Tags();
  fs_->Fail(1, kForGood, IOStatus::IOError("sick"), kTakeSpace);
  EXPECT_FALSE(Open().ok());
  fs_->FailNothing();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written), 0u);
}

// The file's first read opens it. That one failed must not be remembered.
TEST_F(SsdFaultsTest, AFileThatCouldNotBeOpenedIsOpenedLater) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  for (uint64_t call = 1; !HasFailure(); ++call) {
    ASSERT_EQ(Open(), absl::OkStatus());
    ASSERT_EQ(known_.size(), 3u);
    fs_->Fail(call, 1, IOStatus::IOError("told to"));
    const absl::Status status = Read(1);
    const bool failed = fs_->failures() > 0;
    fs_->FailNothing();
    if (!failed) break;
    EXPECT_TRUE(status.ok() || IsMiss(status)) << status;
    ExpectAllRight();
  }
}

TEST_F(SsdFaultsTest, AReadThatHangsHoldsNobodyElse) {
  ASSERT_EQ(Open(), absl::OkStatus());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Write(), absl::OkStatus());
  ExpectAllRight();
  fs_->gate(FileCall::kRead).Close(1);
  absl::Status held = absl::UnknownError("not set");
  ThreadPool thread(1);
  thread.Run([this, &held] { held = Read(1); });
  fs_->gate(FileCall::kRead).WaitForHeld();

  EXPECT_EQ(tier_->writable(), absl::OkStatus());
  EXPECT_GT(tier_->usage().used_bytes, 0u);
  EXPECT_EQ(Read(4), absl::OkStatus());
  const std::vector<uint64_t> others = {4, 5, 6};
  std::vector<Location> locations;
  for (const uint64_t tag : others) locations.push_back(known_.at(tag).location);
  const uint64_t used = tier_->usage().used_bytes;
  tier_->Erase(locations);
  EXPECT_LT(tier_->usage().used_bytes, used);
  ThreadPool writer(1);  // with a file to retire, of which the reader knows nothing
  absl::Status wrote = absl::UnknownError("not set");
  const std::string identity = IdentityOf(100);
  const std::vector<std::byte> content = ContentOf(100, 1000);
  writer.Run([this, &wrote, &identity, &content] {
    WriteOp op;
    op.id = PartOf(100, identity);
    op.from = content;
    op.checksum = PayloadChecksum(content.data(), content.size());
    tier_->Write({&op, 1}, TimePoint());
    wrote = op.status;
  });
  writer.WaitIdle();
  EXPECT_EQ(wrote, absl::OkStatus());

  fs_->gate(FileCall::kRead).Open();
  thread.WaitIdle();
  EXPECT_EQ(held, absl::OkStatus());
}

}  // namespace
}  // namespace kvtier
