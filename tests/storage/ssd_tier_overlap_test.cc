// A file that is replaced goes while the new one is written, and is gone before that is there.
#include <functional>

#include "common/executor.h"
#include "tests/support/ssd_fixture.h"

namespace kvtier {
namespace {

class SsdTierOverlapTest : public SsdFixture {
 protected:
  // Writes while no file can be given up, and calls `meanwhile` once one waits.
  absl::Status WriteWhileDeleting(const std::function<void()>& meanwhile) {
    Gate& deletion = fs_->gate(FileCall::kRename);  // the first is kept as the next one's room
    deletion.Close(1);
    absl::Status written;
    ThreadPool writer(1);
    writer.Run([&] { written = Write(); });
    deletion.WaitForHeld();
    meanwhile();
    deletion.Open();
    writer.WaitIdle();
    return written;
  }
};

TEST_F(SsdTierOverlapTest, TheNewFileIsWrittenWhileTheDeadOneGoes) {
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(), absl::OkStatus());
  EraseAll();
  const uint64_t links = fs_->calls(FileCall::kLink);
  const uint64_t synced = fs_->calls(FileCall::kSync);
  const absl::Status written = WriteWhileDeleting([&] {
    // The list of files without the dead one, and the new file; it is not added yet.
    while (fs_->calls(FileCall::kSync) < synced + 2) {
    }
    EXPECT_EQ(fs_->calls(FileCall::kLink), links);
    EXPECT_EQ(PayloadFiles().size(), 1u);
  });
  EXPECT_EQ(written, absl::OkStatus());
  EXPECT_EQ(fs_->calls(FileCall::kLink), links + 1);
  EXPECT_EQ(PayloadFiles().size(), 1u);
  ExpectAllRight();
  EXPECT_EQ(tier_->usage().backed_bytes, tier_->usage().used_bytes);
  EXPECT_EQ(tier_->stats().files_retired, 1u);
}

TEST_F(SsdTierOverlapTest, SeveralDeadFilesGoBeforeTheNewOneIsBegun) {
  ASSERT_EQ(Open(), absl::OkStatus());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Write(), absl::OkStatus());
  EraseAll();
  const uint64_t created = fs_->calls(FileCall::kCreate);
  EXPECT_EQ(WriteWhileDeleting([&] { EXPECT_EQ(fs_->calls(FileCall::kCreate), created); }),
            absl::OkStatus());
  EXPECT_GT(fs_->calls(FileCall::kCreate), created);
  EXPECT_EQ(PayloadFiles().size(), 1u);
  ExpectAllRight();
}

}  // namespace
}  // namespace kvtier
