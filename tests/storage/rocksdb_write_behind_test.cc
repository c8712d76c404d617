// What is appended is what the file holds, and a disk that fails is heard of.
#include "storage/rocksdb_write_behind.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr uint64_t kPiece = WriteBehind::kPieceBytes;

class WriteBehindTest : public testing::Test {
 protected:
  std::unique_ptr<rocksdb::FSWritableFile> Create() {
    std::unique_ptr<rocksdb::FSWritableFile> below;
    EXPECT_TRUE(fs_.NewWritableFile(path_, rocksdb::FileOptions(), &below, nullptr).ok());
    return behind_.Over(std::move(below));
  }
  static IOStatus Append(rocksdb::FSWritableFile* file, std::string_view bytes) {
    return file->Append(Slice(bytes.data(), bytes.size()), IOOptions(), nullptr);
  }
  static std::string Bytes(uint64_t count) {
    std::string bytes(count, '\0');
    for (uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + i / 4096 + 1);
    return bytes;
  }
  std::string Contents() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "file";
  FaultyFileSystem fs_{rocksdb::FileSystem::Default()};
  WriteBehind behind_;
};

TEST_F(WriteBehindTest, HoldsWhatWasAppended) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, kPiece - 1, kPiece,
                              kPiece + 1, 5 * kPiece, 5 * kPiece + 4095}) {
    const std::string bytes = Bytes(size);
    const auto file = Create();
    for (size_t at = 0; at < bytes.size(); at += 3'000'001) {
      ASSERT_TRUE(Append(file.get(), std::string_view(bytes).substr(at, 3'000'001)).ok());
    }
    EXPECT_EQ(file->GetFileSize(IOOptions(), nullptr), size);
    EXPECT_TRUE(file->Sync(IOOptions(), nullptr).ok());
    EXPECT_TRUE(Contents() == bytes) << size;
    EXPECT_TRUE(file->Close(IOOptions(), nullptr).ok());
    EXPECT_TRUE(Contents() == bytes) << size;
  }
}

TEST_F(WriteBehindTest, CloseAloneWritesTheRestToo) {
  const auto file = Create();
  ASSERT_TRUE(Append(file.get(), Bytes(kPiece + 5)).ok());
  EXPECT_TRUE(file->Close(IOOptions(), nullptr).ok());
  EXPECT_TRUE(Contents() == Bytes(kPiece + 5));
}

TEST_F(WriteBehindTest, TakesMoreWhileTheDiskIsBusy) {
  const auto file = Create();
  Gate& disk = fs_.gate(FileCall::kAppend);
  disk.Close();
  const std::string bytes = Bytes(WriteBehind::kPieces * kPiece - 1);
  EXPECT_TRUE(Append(file.get(), bytes).ok());
  disk.WaitForHeld();
  EXPECT_EQ(Contents(), "");
  disk.Open();
  EXPECT_TRUE(file->Sync(IOOptions(), nullptr).ok());
  EXPECT_TRUE(Contents() == bytes);
}

// Whichever write fails, neither Sync nor Close is OK, and nothing comes after the hole.
TEST_F(WriteBehindTest, AFailedWriteIsNeverASuccess) {
  const std::string bytes = Bytes(2 * kPiece + 100);
  for (const bool sync : {false, true}) {
    for (uint64_t failing = 1; failing <= 4; ++failing) {
      fs_.Fail(failing, 1, IOStatus::NoSpace("full"), {FileCall::kAppend});
      const auto file = Create();
      IOStatus status = Append(file.get(), bytes);
      if (sync) status = file->Sync(IOOptions(), nullptr);
      const IOStatus closed = file->Close(IOOptions(), nullptr);
      EXPECT_EQ(closed.IsNoSpace(), failing < 4) << failing;
      EXPECT_EQ(closed.ok(), failing == 4) << failing;
      EXPECT_TRUE(!sync || status.ok() == (failing == 4)) << failing;
      const uint64_t written = failing == 4 ? bytes.size() : (failing - 1) * kPiece;
      EXPECT_TRUE(Contents() == bytes.substr(0, written)) << failing;
    }
  }
}

TEST_F(WriteBehindTest, TheCallAfterAnErrorTellsIt) {
  fs_.Fail(1, 1, IOStatus::IOError("sick"), {FileCall::kAppend});
  const auto file = Create();
  while (fs_.failures() == 0) Append(file.get(), Bytes(kPiece)).PermitUncheckedError();
  IOStatus status;
  while (status.ok()) status = Append(file.get(), "x");
  EXPECT_TRUE(status.IsIOError());
  EXPECT_FALSE(file->Flush(IOOptions(), nullptr).ok());
}

TEST_F(WriteBehindTest, AFailedSyncOrTruncateFailsTheCloseToo) {
  for (const FileCall call : {FileCall::kSync, FileCall::kTruncate}) {
    const auto file = Create();
    ASSERT_TRUE(Append(file.get(), "abc").ok());
    fs_.Fail(1, 1, IOStatus::IOError("sick"), {call});
    EXPECT_FALSE(file->Sync(IOOptions(), nullptr).ok());
    EXPECT_FALSE(file->Close(IOOptions(), nullptr).ok());
  }
}

// More than there are pieces, or this would wait for ever.
TEST_F(WriteBehindTest, AFileThatIsGivenUpLeavesNothingBehind) {
  for (int i = 0; i < 2 * WriteBehind::kPieces; ++i) {
    const auto file = Create();
    ASSERT_TRUE(Append(file.get(), Bytes(kPiece + 1)).ok());
  }
  const auto file = Create();
  ASSERT_TRUE(Append(file.get(), "whole").ok());
  EXPECT_TRUE(file->Close(IOOptions(), nullptr).ok());
  EXPECT_EQ(Contents(), "whole");
}

}  // namespace
}  // namespace kvtier
