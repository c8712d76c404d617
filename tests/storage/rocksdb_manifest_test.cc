#include "storage/rocksdb_manifest.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "common/check.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

// A manifest that RocksDB wrote.
std::string SomeManifest(const std::string& directory) {
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* opened = nullptr;
  KVTIER_CHECK(rocksdb::DB::Open(options, directory, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  for (int i = 0; i < 3; ++i) {
    KVTIER_CHECK(db->Put(rocksdb::WriteOptions(), "key", "value").ok());
    KVTIER_CHECK(db->Flush(rocksdb::FlushOptions()).ok());
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (!entry.path().filename().string().starts_with("MANIFEST-")) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  return "";
}

TEST(RocksdbManifestTest, FindsOnlyALastChangeThatIsTorn) {
  const TempFolder folder;
  const std::string whole = SomeManifest(folder / "db");
  ASSERT_EQ(BytesBeforeTornChange(whole), whole.size());
  // Where the last change begins: what is left when its last byte is wrong.
  std::string wrong = whole;
  wrong.back() = static_cast<char>(~wrong.back());
  const size_t last = BytesBeforeTornChange(wrong);
  ASSERT_LT(last, whole.size());
  ASSERT_GT(last, whole.size() / 2);
  for (size_t at = 0; at < whole.size(); ++at) {
    wrong = whole;
    wrong[at] = static_cast<char>(~wrong[at]);
    EXPECT_EQ(BytesBeforeTornChange(wrong), at < last ? whole.size() : last) << at;
  }
  for (size_t bytes = last + 1; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(BytesBeforeTornChange(whole.substr(0, bytes)), last) << bytes;
  }
  EXPECT_EQ(BytesBeforeTornChange(whole.substr(0, last)), last);
  EXPECT_EQ(BytesBeforeTornChange(""), 0u);
}

TEST(RocksdbManifestTest, CutsItOff) {
  const TempFolder folder;
  const std::string whole = SomeManifest(folder / "db");
  const size_t last = BytesBeforeTornChange(whole.substr(0, whole.size() - 1));
  EXPECT_EQ(CutTornChange(folder.path()).code(), absl::StatusCode::kUnavailable);
  std::ofstream(folder / "CURRENT") << "MANIFEST-000001\n";
  std::ofstream(folder / "MANIFEST-000001", std::ios::binary) << whole;
  EXPECT_EQ(CutTornChange(folder.path()).code(), absl::StatusCode::kNotFound);
  std::filesystem::resize_file(folder / "MANIFEST-000001", whole.size() - 1);
  EXPECT_EQ(CutTornChange(folder.path()), absl::OkStatus());
  EXPECT_EQ(std::filesystem::file_size(folder / "MANIFEST-000001"), last);
}

}  // namespace
}  // namespace kvtier
