// An SsdTier over a faulty file system, and what it was given.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "storage/ssd_tier.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_parts.h"

namespace kvtier {

// Parts are named by tag, which says their size too; no tag is written twice.
class SsdFixture : public testing::Test {
 protected:
  struct Known {
    Location location = 0;
    uint64_t segment = 0;  // those written or found together
  };

  SsdFixture();
  uint64_t BytesOf(uint64_t tag) const { return part_bytes_ + tag % 7 * 30; }

  // Closes first, and forgets what is known but for what Recover finds, each part of which is read.
  absl::Status Open();
  absl::Status Start();  // the same, but reads nothing
  void Close() { tier_.reset(); }
  // One segment of the next tags, which is known if that was OK.
  absl::Status Write(int parts = 3);
  absl::Status Read(uint64_t tag);
  void Erase(std::vector<uint64_t> tags);
  void EraseAll();
  // Time passes and Maintain is called until the tier is writable, a few times.
  absl::Status GetWell();

  std::vector<uint64_t> Tags() const;
  // Reads all that is known: none may be missing.
  void ExpectAllRight();
  // Reads these; how many are missing.
  uint64_t CountMissing(const std::vector<uint64_t>& tags);

  std::vector<std::string> PayloadFiles() const;  // paths, oldest first
  std::vector<std::string> SetAside() const;      // folders beside the tier's

  TempFolder folder_;
  ManualClock clock_;
  std::shared_ptr<FaultyFileSystem> fs_;
  SsdTierOptions options_;
  std::unique_ptr<SsdTier> tier_;
  std::map<uint64_t, Known> known_;  // by tag
  uint64_t part_bytes_ = 5000;       // about; set it before the first Write
  uint64_t next_tag_ = 1;
  uint64_t next_segment_ = 1;
};

}  // namespace kvtier
