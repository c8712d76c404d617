// The faulty file system does what it is told, by itself: without a database over it.
#include "tests/support/faulty_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "common/executor.h"
#include "tests/support/seed.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

using rocksdb::FileOptions;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

std::string ContentOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class FaultyFileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "data");
    std::filesystem::create_directory(folder_ / "scratch");
  }

  std::string Path(const std::string& name) { return folder_ / ("data/" + name); }
  std::unique_ptr<rocksdb::FSWritableFile> Create(const std::string& name) {
    std::unique_ptr<rocksdb::FSWritableFile> file;
    EXPECT_TRUE(fs_.NewWritableFile(Path(name), FileOptions(), &file, nullptr).ok());
    return file;
  }
  IOStatus Append(rocksdb::FSWritableFile& file, const std::string& bytes) {
    const IOStatus status = file.Append(bytes, IOOptions(), nullptr);
    return status.ok() ? file.Flush(IOOptions(), nullptr) : status;
  }
  IOStatus Sync(rocksdb::FSWritableFile& file) { return file.Sync(IOOptions(), nullptr); }
  // A whole file, synced; its entry in the folder is not.
  void Put(const std::string& name, const std::string& bytes) {
    const auto file = Create(name);
    EXPECT_TRUE(Append(*file, bytes).ok());
    EXPECT_TRUE(Sync(*file).ok());
    EXPECT_TRUE(file->Close(IOOptions(), nullptr).ok());
  }
  IOStatus SyncFolder() {
    std::unique_ptr<rocksdb::FSDirectory> directory;
    IOStatus status = fs_.NewDirectory(folder_ / "data", IOOptions(), &directory, nullptr);
    return status.ok() ? directory->Fsync(IOOptions(), nullptr) : status;
  }
  IOStatus Rename(const std::string& from, const std::string& to) {
    return fs_.RenameFile(Path(from), Path(to), IOOptions(), nullptr);
  }
  IOStatus Delete(const std::string& name) {
    return fs_.DeleteFile(Path(name), IOOptions(), nullptr);
  }
  IOStatus Read(const std::string& name, uint64_t offset, size_t bytes, std::string* out) {
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    IOStatus status = fs_.NewRandomAccessFile(Path(name), FileOptions(), &file, nullptr);
    if (!status.ok()) return status;
    std::string scratch(bytes, '\0');
    rocksdb::Slice result;
    status = file->Read(offset, bytes, IOOptions(), &result, scratch.data(), nullptr);
    *out = result.ToString();
    return status;
  }
  IOStatus ReadInOrder(const std::string& name, size_t skip, size_t bytes, std::string* out) {
    std::unique_ptr<rocksdb::FSSequentialFile> file;
    IOStatus status = fs_.NewSequentialFile(Path(name), FileOptions(), &file, nullptr);
    if (status.ok()) status = file->Skip(skip);
    if (!status.ok()) return status;
    std::string scratch(bytes, '\0');
    rocksdb::Slice result;
    status = file->Read(bytes, IOOptions(), &result, scratch.data(), nullptr);
    *out = result.ToString();
    return status;
  }
  // Whether any of 200 seeds gives an end that `is`; each starts from `begin`.
  std::set<std::string> EndsOf(const std::function<void()>& begin,
                               const std::function<std::string()>& end) {
    std::set<std::string> ends;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      begin();
      fs_.CutPower();
      fs_.RestorePower(seed);
      ends.insert(end());
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "scratch"));
    return ends;
  }
  std::string Present(const std::string& name) {
    return std::filesystem::exists(Path(name)) ? name : "";
  }

  TempFolder folder_;
  FaultyFileSystem fs_{rocksdb::FileSystem::Default()};
};

TEST_F(FaultyFileSystemTest, FailsTheCallsItWasToldTo) {
  const auto file = Create("a");
  fs_.Fail(2, 2, IOStatus::NoSpace("told to"), {FileCall::kAppend});
  EXPECT_TRUE(Append(*file, "1").ok());
  EXPECT_TRUE(Append(*file, "2").IsNoSpace());
  EXPECT_TRUE(Sync(*file).ok());
  EXPECT_TRUE(Append(*file, "3").IsNoSpace());
  EXPECT_TRUE(Append(*file, "4").ok());
  EXPECT_EQ(fs_.failures(), 2u);
  EXPECT_EQ(fs_.calls(FileCall::kAppend), 4u);
  EXPECT_EQ(fs_.calls(FileCall::kSync), 1u);
  EXPECT_EQ(fs_.calls(), 6u);
  EXPECT_EQ(ContentOf(Path("a")), "14");
}

TEST_F(FaultyFileSystemTest, FailsEveryKindWhenToldNone) {
  Put("a", "x");
  std::string out;
  fs_.Fail(1, UINT64_MAX, IOStatus::IOError("told to"));
  std::unique_ptr<rocksdb::FSWritableFile> file;
  EXPECT_TRUE(fs_.NewWritableFile(Path("b"), FileOptions(), &file, nullptr).IsIOError());
  EXPECT_TRUE(Read("a", 0, 1, &out).IsIOError());
  EXPECT_TRUE(Rename("a", "b").IsIOError());
  EXPECT_TRUE(Delete("a").IsIOError());
  EXPECT_TRUE(SyncFolder().IsIOError());
  EXPECT_EQ(fs_.failures(), 5u);
  fs_.FailNothing();
  EXPECT_TRUE(Read("a", 0, 1, &out).ok());
  EXPECT_EQ(out, "x");
}

TEST_F(FaultyFileSystemTest, ShortensReads) {
  Put("a", "12345678");
  fs_.ShortenReads(1);
  std::string out;
  EXPECT_TRUE(Read("a", 0, 8, &out).ok());
  EXPECT_EQ(out, "1234");
  EXPECT_TRUE(Read("a", 0, 8, &out).ok());
  EXPECT_EQ(out, "12345678");
}

TEST_F(FaultyFileSystemTest, FlipsAByteOfAFileHoweverItIsRead) {
  Put("a", "abcdef");
  Put("b", "abcdef");
  fs_.FlipOnRead("a", 3);
  const std::string flipped = {'a', 'b', 'c', static_cast<char>(~'d'), 'e', 'f'};
  std::string out;
  EXPECT_TRUE(Read("a", 0, 6, &out).ok());
  EXPECT_EQ(out, flipped);
  EXPECT_TRUE(Read("a", 3, 1, &out).ok());
  EXPECT_EQ(out, flipped.substr(3, 1));
  EXPECT_TRUE(Read("a", 4, 2, &out).ok());
  EXPECT_EQ(out, "ef");
  EXPECT_TRUE(ReadInOrder("a", 2, 2, &out).ok());
  EXPECT_EQ(out, flipped.substr(2, 2));
  EXPECT_TRUE(Read("b", 0, 6, &out).ok());
  EXPECT_EQ(out, "abcdef");
  fs_.FlipNothing();
  EXPECT_TRUE(Read("a", 0, 6, &out).ok());
  EXPECT_EQ(out, "abcdef");
}

TEST_F(FaultyFileSystemTest, HoldsCallsOfAKindAtItsGate) {
  Put("a", "x");
  fs_.gate(FileCall::kRead).Close(1);
  std::string held = "nothing yet";
  ThreadPool thread(1);
  thread.Run([this, &held] { EXPECT_TRUE(Read("a", 0, 1, &held).ok()); });
  fs_.gate(FileCall::kRead).WaitForHeld();
  std::string out;
  EXPECT_TRUE(Read("a", 0, 1, &out).ok());  // the gate holds one
  Put("b", "y");
  EXPECT_EQ(held, "nothing yet");
  fs_.gate(FileCall::kRead).Open();
  thread.WaitIdle();
  EXPECT_EQ(held, "x");
}

TEST_F(FaultyFileSystemTest, KeepsWhatIsSyncedOverAPowerCut) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto ends = EndsOf(
      [this] {
        Put("a", "old");
        Put("b", "gone");
        Put("temporary", "new");
        EXPECT_TRUE(Rename("temporary", "a").ok());
        EXPECT_TRUE(Delete("b").ok());
        EXPECT_TRUE(SyncFolder().ok());
      },
      [this] { return ContentOf(Path("a")) + Present("b") + Present("temporary"); });
  EXPECT_THAT(ends, testing::ElementsAre("new"));
}

TEST_F(FaultyFileSystemTest, TakesBackWhatAFolderWasNotSyncedFor) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto ends = EndsOf(
      [this] {
        Put("a", "old");
        Put("b", "kept");
        EXPECT_TRUE(SyncFolder().ok());
        Put("temporary", "new");
        EXPECT_TRUE(Rename("temporary", "a").ok());
        EXPECT_TRUE(Delete("b").ok());
      },
      [this] {
        const std::string end =
            ContentOf(Path("a")) + " " + Present("temporary") + " " + ContentOf(Path("b"));
        std::filesystem::remove(Path("temporary"));
        return end;
      });
  // Of three changes the first none, one, two or all three.
  EXPECT_THAT(
      ends, testing::UnorderedElementsAre("old  kept", "old temporary kept", "new  kept", "new  "));
}

TEST_F(FaultyFileSystemTest, TakesBackALinkAndAFileThatIsWrittenAnew) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto ends = EndsOf(
      [this] {
        Put("a", "first");
        std::filesystem::remove(Path("link"));
        EXPECT_TRUE(SyncFolder().ok());
        EXPECT_TRUE(fs_.LinkFile(Path("a"), Path("link"), IOOptions(), nullptr).ok());
        Put("a", "second");
      },
      [this] { return ContentOf(Path("a")) + " " + ContentOf(Path("link")); });
  // Writing anew is two changes: the old file goes, the new one comes.
  EXPECT_THAT(ends,
              testing::UnorderedElementsAre("first ", "first first", " first", "second first"));
}

TEST_F(FaultyFileSystemTest, TearsATailThatIsNotSynced) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto ends = EndsOf(
      [this] {
        const auto file = Create("a");
        EXPECT_TRUE(Append(*file, "safe").ok());
        EXPECT_TRUE(Sync(*file).ok());
        EXPECT_TRUE(Append(*file, "tail").ok());
        EXPECT_TRUE(SyncFolder().ok());
      },
      [this] { return ContentOf(Path("a")); });
  EXPECT_THAT(ends, testing::Each(testing::StartsWith("safe")));
  EXPECT_THAT(ends, testing::IsSupersetOf({"safe", "safet", "safetai"}));
  EXPECT_THAT(ends, testing::Contains(std::string("safe\0", 5)));
  EXPECT_THAT(ends, testing::Contains(std::string("safeta\0", 7)));
}

TEST_F(FaultyFileSystemTest, LosesPowerAtTheChangeItWasToldAndFailsUntilItIsBack) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto file = Create("a");
  EXPECT_TRUE(SyncFolder().ok());
  fs_.CutPowerAt(2);
  EXPECT_TRUE(Append(*file, "1").ok());
  EXPECT_TRUE(fs_.has_power());
  EXPECT_TRUE(Sync(*file).IsIOError());
  EXPECT_FALSE(fs_.has_power());
  EXPECT_TRUE(Append(*file, "2").IsIOError());
  std::string out;
  EXPECT_TRUE(Read("a", 0, 1, &out).IsIOError());
  EXPECT_FALSE(file->Close(IOOptions(), nullptr).ok());
  fs_.RestorePower(TestSeed());
  EXPECT_THAT(ContentOf(Path("a")), testing::AnyOf("", "1", std::string(1, '\0')));
  Put("b", "on");
  EXPECT_EQ(ContentOf(Path("b")), "on");
}

TEST_F(FaultyFileSystemTest, SyncsAFileOpenedAgain) {
  fs_.TrackUnsynced(folder_ / "scratch");
  const auto ends = EndsOf(
      [this] {
        const auto file = Create("a");
        EXPECT_TRUE(Append(*file, "bytes").ok());
        EXPECT_TRUE(SyncFolder().ok());
        std::unique_ptr<rocksdb::FSWritableFile> again;
        EXPECT_TRUE(fs_.ReopenWritableFile(Path("a"), FileOptions(), &again, nullptr).ok());
        EXPECT_TRUE(Sync(*again).ok());
      },
      [this] { return ContentOf(Path("a")); });
  EXPECT_THAT(ends, testing::ElementsAre("bytes"));
}

}  // namespace
}  // namespace kvtier
