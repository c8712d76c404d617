// The room of a table that was given up is written over, and never by mistake.
#include "storage/rocksdb_staged_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
using rocksdb::IOOptions;

class StagedFileTest : public testing::Test {
 protected:
  StagedFileTest() {
    fs::create_directory(folder_ / "staging");
    files_->KeepTables();
  }

  // A table of the database.
  std::string Table(const std::string& name, uint64_t bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << std::string(bytes, 'o');
    return folder_ / name;
  }
  bool Delete(const std::string& path) {
    return files_->DeleteFile(path, IOOptions(), nullptr).ok();
  }
  std::string Stage(uint64_t bytes) {
    std::unique_ptr<rocksdb::FSWritableFile> file;
    EXPECT_TRUE(files_->NewWritableFile(staged_, rocksdb::FileOptions(), &file, nullptr).ok());
    const std::string content(bytes, 'n');
    EXPECT_TRUE(file->Append(content, IOOptions(), nullptr).ok());
    EXPECT_TRUE(file->Sync(IOOptions(), nullptr).ok());
    EXPECT_TRUE(file->Close(IOOptions(), nullptr).ok());
    return content;
  }
  static std::string Contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static ino_t Inode(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_ino;
  }

  TempFolder folder_;
  const std::string staged_ = folder_ / "staging/new.sst";
  const std::string spare_ = staged_ + ".spare";
  std::unique_ptr<StagedFileSystem> files_ =
      std::make_unique<StagedFileSystem>(rocksdb::FileSystem::Default(), staged_);
};

TEST_F(StagedFileTest, WritesOverATableThatWasGivenUp) {
  constexpr uint64_t kPiece = WriteBehind::kPieceBytes;
  for (const uint64_t old_bytes : {uint64_t{100}, 2 * kPiece + 100}) {
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, kPiece, kPiece + 1, 3 * kPiece}) {
      const std::string table = Table("000001.sst", old_bytes);
      const ino_t inode = Inode(table);
      ASSERT_TRUE(Delete(table));
      EXPECT_FALSE(fs::exists(table));
      const std::string content = Stage(bytes);
      EXPECT_EQ(Inode(staged_), inode);
      EXPECT_TRUE(Contents(staged_) == content) << old_bytes << ", " << bytes;
      EXPECT_FALSE(fs::exists(spare_));
      ASSERT_TRUE(Delete(staged_));
      EXPECT_FALSE(fs::exists(staged_));
    }
  }
}

TEST_F(StagedFileTest, KeepsOneTableAndDeletesTheOthers) {
  const std::string first = Table("000001.sst", 10), second = Table("000002.sst", 20);
  const ino_t inode = Inode(first);
  EXPECT_TRUE(Delete(first));
  EXPECT_TRUE(Delete(second));
  EXPECT_FALSE(fs::exists(second));
  EXPECT_EQ(Inode(spare_), inode);
  EXPECT_EQ(fs::file_size(spare_), 10u);
}

TEST_F(StagedFileTest, KeepsNoTableThatSomebodyHasLinkedTo) {
  const std::string table = Table("000001.sst", 10), other = folder_ / "backup.sst";
  fs::create_hard_link(table, other);
  EXPECT_TRUE(Delete(table));
  EXPECT_FALSE(fs::exists(spare_));
  Stage(30);
  EXPECT_EQ(Contents(other), std::string(10, 'o'));
  EXPECT_NE(Inode(staged_), Inode(other));
}

TEST_F(StagedFileTest, DeletesOtherFilesAndItsOwn) {
  EXPECT_TRUE(Delete(Table("000003.log", 10)));
  EXPECT_FALSE(fs::exists(folder_ / "000003.log"));
  Stage(10);
  EXPECT_TRUE(Delete(staged_));
  EXPECT_FALSE(fs::exists(spare_));
  EXPECT_FALSE(Delete(folder_ / "000009.sst"));  // there is none
}

TEST_F(StagedFileTest, DeletesTheSpareAtItsEnd) {
  EXPECT_TRUE(Delete(Table("000001.sst", 10)));
  EXPECT_TRUE(fs::exists(spare_));
  files_.reset();
  EXPECT_FALSE(fs::exists(spare_));
}

TEST_F(StagedFileTest, KeepsNoTableUntilItIsTold) {
  StagedFileSystem files(rocksdb::FileSystem::Default(), staged_);
  EXPECT_TRUE(files.DeleteFile(Table("000001.sst", 10), IOOptions(), nullptr).ok());
  EXPECT_FALSE(fs::exists(spare_));
  files.KeepTables();
  EXPECT_TRUE(files.DeleteFile(Table("000002.sst", 10), IOOptions(), nullptr).ok());
  EXPECT_TRUE(fs::exists(spare_));
}

// As when the folder was emptied under a running daemon.
TEST_F(StagedFileTest, WritesANewFileWhenTheSpareIsGone) {
  EXPECT_TRUE(Delete(Table("000001.sst", 10)));
  fs::remove(spare_);
  EXPECT_EQ(Contents(staged_), "");
  const std::string content = Stage(30);
  EXPECT_EQ(Contents(staged_), content);
}

}  // namespace
}  // namespace kvtier
