#include "service/data_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "service/convert.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

ModelSpec SomeSpec(const std::string& name) {
  ModelSpec spec;
  spec.name = name;
  spec.block_tokens = 16;
  spec.dtype = DType::kBf16;
  spec.tensor_parallel = 2;
  spec.pack_order = PackOrder::kLayerKvTokenHead;
  spec.layer_groups = {{GroupedAttention{8, 128, 64}, 32, 4096},
                       {LatentAttention{512, 64}, 61, 0},
                       {StateLayers{4096}, 3, 0}};
  return spec;
}

class DataDirTest : public ::testing::Test {
 protected:
  DataDirTest() {
    std::string name = ::testing::TempDir() + "kvtier_dir_XXXXXX";
    folder_ = mkdtemp(name.data());
    models_file_ = folder_ + "/models";
  }
  ~DataDirTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> StoredNames() const {
    const auto store = ModelStore::Open(models_file_);
    EXPECT_TRUE(store.ok()) << store.status();
    std::vector<std::string> names;
    for (const ModelSpec& spec : (*store)->Models()) names.push_back(spec.name);
    std::sort(names.begin(), names.end());
    return names;
  }
  void AddModels() const {
    const auto store = ModelStore::Open(models_file_);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Add(SomeSpec("a")).ok());
    ASSERT_TRUE((*store)->Add(SomeSpec("b")).ok());
  }
  std::string Content() const {
    std::ostringstream content;
    content << std::ifstream(models_file_, std::ios::binary).rdbuf();
    return content.str();
  }
  void Overwrite(const std::string& content) const {
    std::ofstream(models_file_, std::ios::binary) << content;
  }

  // The next attempt to save finds no space, and clears that away as it clears its own.
  void FillDisk() const {
    ASSERT_TRUE(std::filesystem::exists("/dev/full"));
    std::filesystem::create_symlink("/dev/full", models_file_ + ".new");
  }

  std::string folder_;
  std::string models_file_;
};

// Listens on a path, and leaves the socket file behind, as a killed daemon does.
class Listener {
 public:
  explicit Listener(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
  }
  ~Listener() { close(fd_); }

 private:
  const int fd_;
};

TEST_F(DataDirTest, IsMadePrivateAndWithItsParents) {
  const std::string path = folder_ + "/x/y";
  const auto directory = DataDirectory::Open(path);
  ASSERT_TRUE(directory.ok()) << directory.status();
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ((*directory)->PathOf("models"), path + "/models");
}

TEST_F(DataDirTest, SecondHolderIsToldWhoHasIt) {
  auto first = DataDirectory::Open(folder_);
  ASSERT_TRUE(first.ok());
  const auto second = DataDirectory::Open(folder_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("in use by process ", getpid())));
  first->reset();
  EXPECT_TRUE(DataDirectory::Open(folder_).ok());
}

TEST_F(DataDirTest, PlaceThatCannotBeWrittenIsNamed) {
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "x";
  for (const std::string& path : {file, file + "/below", file + "/far/below"}) {
    const auto directory = DataDirectory::Open(path);
    ASSERT_FALSE(directory.ok()) << path;
    EXPECT_THAT(std::string(directory.status().message()), HasSubstr(path));
  }
}

TEST_F(DataDirTest, OnlyStaleSocketsAreRemoved) {
  const std::string path = folder_ + "/s.sock";
  EXPECT_TRUE(RemoveStaleSocket(path).ok());
  {
    const Listener listener(path);
    EXPECT_THAT(std::string(RemoveStaleSocket(path).message()), HasSubstr("is in use"));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(RemoveStaleSocket(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "precious";
  EXPECT_THAT(std::string(RemoveStaleSocket(path).message()), HasSubstr("no socket"));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(DataDirTest, ModelsSurviveAndLeave) {
  AddModels();
  const auto store = ModelStore::Open(models_file_);
  ASSERT_TRUE(store.ok());
  const std::vector<ModelSpec> models = (*store)->Models();
  ASSERT_EQ(models.size(), 2u);
  for (const ModelSpec& spec : models) {
    EXPECT_EQ(CanonicalSpec(spec), CanonicalSpec(SomeSpec(spec.name)));
  }
  ASSERT_TRUE((*store)->Remove(SpecId(SomeSpec("a"))).ok());
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("b"));
}

TEST_F(DataDirTest, KnownModelIsNotWrittenAgain) {
  AddModels();
  const auto store = ModelStore::Open(models_file_);
  ASSERT_TRUE(store.ok());
  std::filesystem::remove(models_file_);
  EXPECT_TRUE((*store)->Add(SomeSpec("a")).ok());
  EXPECT_FALSE(std::filesystem::exists(models_file_));
  EXPECT_TRUE((*store)->Add(SomeSpec("c")).ok());
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b", "c"));
}

TEST_F(DataDirTest, FailedWriteIsToldAndNotRemembered) {
  AddModels();
  const auto store = ModelStore::Open(models_file_);
  ASSERT_TRUE(store.ok());
  std::filesystem::create_directory(models_file_ + ".new");  // so that the new file cannot be made
  EXPECT_FALSE((*store)->Add(SomeSpec("c")).ok());
  EXPECT_EQ((*store)->Models().size(), 2u);
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b"));
  std::filesystem::remove(models_file_ + ".new");
  EXPECT_TRUE((*store)->Add(SomeSpec("c")).ok());
}

TEST_F(DataDirTest, FullDiskKeepsAModelFromBeingSavedButNotFromBeingKnown) {
  AddModels();
  const auto store = ModelStore::Open(models_file_);
  ASSERT_TRUE(store.ok());
  FillDisk();
  EXPECT_TRUE((*store)->Add(SomeSpec("c")).ok());
  EXPECT_FALSE((*store)->saved());
  EXPECT_EQ((*store)->Models().size(), 3u);
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b"));
  FillDisk();
  const absl::Status full = (*store)->Save();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr(models_file_));
  FillDisk();
  EXPECT_FALSE((*store)->Remove(SpecId(SomeSpec("a"))).ok());
  EXPECT_EQ((*store)->Models().size(), 3u);

  EXPECT_TRUE((*store)->Save().ok());
  EXPECT_TRUE((*store)->saved());
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b", "c"));
}

TEST_F(DataDirTest, EveryDamagedByteIsNoticed) {
  AddModels();
  const std::string good = Content();
  ASSERT_GT(good.size(), 24u);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    Overwrite(bad);
    EXPECT_THAT(StoredNames(), ::testing::IsEmpty()) << "byte " << i;
    EXPECT_FALSE(std::filesystem::exists(models_file_)) << "byte " << i;
  }
  Overwrite(good);
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b"));
}

TEST_F(DataDirTest, EveryCutIsNoticedAndTheRestKept) {
  AddModels();
  const std::string good = Content();
  for (size_t size = 0; size < good.size(); ++size) {
    Overwrite(good.substr(0, size));
    EXPECT_THAT(StoredNames(), ::testing::IsEmpty()) << size;
    EXPECT_EQ(std::filesystem::file_size(models_file_ + ".damaged"), size);
  }
  AddModels();  // the file's place is free again
  EXPECT_THAT(StoredNames(), ::testing::ElementsAre("a", "b"));
}

TEST_F(DataDirTest, NewerVersionIsSetAsideUnread) {
  AddModels();
  std::string newer = Content();
  newer[8] = 2;
  Overwrite(newer);
  EXPECT_THAT(StoredNames(), ::testing::IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(models_file_ + ".other-version"));
  EXPECT_FALSE(std::filesystem::exists(models_file_ + ".damaged"));
}

TEST(ConvertTest, SpecsGoThroughUnchanged) {
  const ModelSpec spec = SomeSpec("m");
  const auto back = ToModelSpec(ToProto(spec));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CanonicalSpec(*back), CanonicalSpec(spec));
  ModelSpec opaque;
  opaque.name = "o";
  opaque.revision = "r";
  opaque.tensor_parallel = 2;
  opaque.pack_order = PackOrder::kOpaque;
  opaque.layout_fingerprint = "abc";
  opaque.explicit_groups = 2;
  opaque.explicit_part_bytes = {1, 2, 3, 4};
  const auto opaque_back = ToModelSpec(ToProto(opaque));
  ASSERT_TRUE(opaque_back.ok());
  EXPECT_EQ(CanonicalSpec(*opaque_back), CanonicalSpec(opaque));
  EXPECT_NE(CanonicalSpec(*opaque_back), CanonicalSpec(spec));
}

TEST(ConvertTest, ZeroMeansOneWhereTheContractSaysSo) {
  v1::ModelSpec proto = ToProto(SomeSpec("m"));
  proto.set_tensor_parallel(0);
  proto.set_explicit_groups(0);
  const auto spec = ToModelSpec(proto);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->tensor_parallel, 1u);
  EXPECT_EQ(spec->explicit_groups, 1u);
}

TEST(ConvertTest, UnknownValuesAreNamed) {
  v1::ModelSpec proto = ToProto(SomeSpec("m"));
  proto.set_dtype(static_cast<v1::DType>(99));
  EXPECT_THAT(std::string(ToModelSpec(proto).status().message()), HasSubstr("spec.dtype: 99"));
  proto = ToProto(SomeSpec("m"));
  proto.set_pack_order(static_cast<v1::PackOrder>(98));
  EXPECT_THAT(std::string(ToModelSpec(proto).status().message()), HasSubstr("pack_order: 98"));
  proto = ToProto(SomeSpec("m"));
  proto.mutable_layer_groups(1)->clear_attention();
  EXPECT_THAT(std::string(ToModelSpec(proto).status().message()), HasSubstr("layer_groups[1]"));
  EXPECT_FALSE(ToTierKind(v1::TIER_UNSPECIFIED).ok());
  for (const TierKind kind : kAllTiers) EXPECT_EQ(*ToTierKind(ToProto(kind)), kind);
  EXPECT_THAT(std::string(ToModelId("short").status().message()), HasSubstr("5 bytes, must be 16"));
}

}  // namespace
}  // namespace kvtier
