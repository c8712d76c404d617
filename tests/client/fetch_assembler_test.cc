#include "client/fetch_assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/block_key.h"

namespace kvtier::client_internal {
namespace {

using testing::HasSubstr;

// A message as a server would write it.
class Message {
 public:
  Message& Add(wire::Piece piece, const std::string& payload) {
    char head[wire::kMaxPieceHead];
    piece.payload_bytes = payload.size();
    bytes_.append(head, wire::EncodePieceHead(wire::PieceField::kFetchResponse, piece, head));
    bytes_.append(payload);
    return *this;
  }
  Message& Ok(uint32_t block, const std::string& part, size_t offset, size_t bytes) {
    wire::Piece piece;
    piece.block = block;
    piece.status = wire::kBlockStatusOk;
    piece.offset = offset;
    piece.part_bytes = part.size();
    piece.checksum = PayloadChecksum(part.data(), part.size());
    return Add(piece, part.substr(offset, bytes));
  }
  Message& Whole(uint32_t block, const std::string& part) {
    return Ok(block, part, 0, part.size());
  }
  Message& Miss(uint32_t block) {
    wire::Piece piece;
    piece.block = block;
    piece.status = wire::kBlockStatusMiss;
    return Add(piece, "");
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

constexpr uint32_t kFirst = 3;
constexpr uint32_t kBlocks = 3;
constexpr size_t kPart = 1000;

class FetchAssemblerTest : public testing::Test {
 protected:
  FetchAssemblerTest() {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      memory_.emplace_back(kPart, '?');
      parts_.push_back(std::string(kPart, static_cast<char>('a' + i)));
    }
    for (std::string& buffer : memory_) {
      buffers_.push_back(std::as_writable_bytes(std::span(buffer)));
    }
    assembler_.emplace(Params(), buffers_, nullptr);
  }

  static FetchParams Params() { return {.first_block = kFirst, .last_block = kFirst + kBlocks}; }

  // In slices of seven bytes, as a message may come.
  absl::Status Add(const Message& message) {
    std::vector<std::string_view> slices;
    const std::string_view bytes = message.bytes();
    for (size_t at = 0; at < bytes.size(); at += 7) slices.push_back(bytes.substr(at, 7));
    wire::PieceList pieces;
    KVTIER_RETURN_IF_ERROR(wire::DecodeFetchResponse(slices, wire::Limits(), &pieces));
    return assembler_->Add(pieces);
  }
  void ExpectBroken(const Message& message, const std::string& what) {
    const absl::Status status = Add(message);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  std::vector<std::string> memory_;
  std::vector<std::string> parts_;
  std::vector<std::span<std::byte>> buffers_;
  std::optional<FetchAssembler> assembler_;
};

TEST_F(FetchAssemblerTest, PutsWholeBlocksIntoTheirBuffers) {
  ASSERT_TRUE(Add(Message().Whole(3, parts_[0]).Ok(4, parts_[1], 0, 400)).ok());
  ASSERT_TRUE(Add(Message().Ok(4, parts_[1], 400, 600).Whole(5, parts_[2])).ok());
  const absl::StatusOr<FetchReport> report = assembler_->Finish();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->leading, 3u);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(report->blocks[i].status, FetchStatus::kOk);
    EXPECT_EQ(report->blocks[i].bytes, kPart);
    EXPECT_EQ(memory_[i], parts_[i]);
  }
}

TEST_F(FetchAssemblerTest, MissesAreTold) {
  ASSERT_TRUE(Add(Message().Whole(3, parts_[0]).Miss(4).Whole(5, parts_[2])).ok());
  const absl::StatusOr<FetchReport> report = assembler_->Finish();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->leading, 1u);
  EXPECT_EQ(report->blocks[0].status, FetchStatus::kOk);
  EXPECT_EQ(report->blocks[1].status, FetchStatus::kMiss);
  EXPECT_EQ(report->blocks[2].status, FetchStatus::kOk);
  EXPECT_EQ(memory_[1], std::string(kPart, '?'));
}

TEST_F(FetchAssemblerTest, WhatTheStreamDidNotNameIsAMiss) {
  ASSERT_TRUE(Add(Message().Whole(3, parts_[0])).ok());
  const absl::StatusOr<FetchReport> report = assembler_->Finish();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->leading, 1u);
  EXPECT_EQ(report->blocks[2].status, FetchStatus::kMiss);
}

TEST_F(FetchAssemblerTest, WrongBytesAreAMissAndCounted) {
  std::string damaged = parts_[0];
  damaged[500] ^= 1;
  wire::Piece piece;
  piece.block = 3;
  piece.status = wire::kBlockStatusOk;
  piece.part_bytes = kPart;
  piece.checksum = PayloadChecksum(parts_[0].data(), kPart);
  ASSERT_TRUE(Add(Message().Add(piece, damaged).Whole(4, parts_[1])).ok());
  const absl::StatusOr<FetchReport> report = assembler_->Finish();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->leading, 0u);
  EXPECT_EQ(report->blocks[0].status, FetchStatus::kMiss);
  EXPECT_EQ(report->blocks[1].status, FetchStatus::kOk);
  EXPECT_EQ(assembler_->checksum_failures(), 1u);
}

TEST_F(FetchAssemblerTest, ViewsSeeEveryByteInOrder) {
  std::string seen;
  const PieceVisitor visit = [&](const PieceView& piece) {
    EXPECT_EQ(piece.offset + (piece.block - kFirst) * kPart, seen.size());
    EXPECT_EQ(piece.part_bytes, kPart);
    seen.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  };
  assembler_.emplace(Params(), std::span<const std::span<std::byte>>(), &visit);
  ASSERT_TRUE(Add(Message().Whole(3, parts_[0]).Whole(4, parts_[1])).ok());
  ASSERT_TRUE(assembler_->Finish().ok());
  EXPECT_EQ(seen, parts_[0] + parts_[1]);
}

TEST_F(FetchAssemblerTest, RefusesBlocksOutOfOrderTwiceOrOutsideTheRange) {
  ExpectBroken(Message().Whole(4, parts_[1]), "the next block is 3");
  assembler_.emplace(Params(), buffers_, nullptr);
  ExpectBroken(Message().Whole(3, parts_[0]).Whole(3, parts_[0]), "the next block is 4");
  assembler_.emplace(Params(), buffers_, nullptr);
  ExpectBroken(Message().Whole(3, parts_[0]).Miss(4).Miss(5).Miss(6), "the last is before 6");
}

TEST_F(FetchAssemblerTest, RefusesGapsOverlapsAndOverruns) {
  ExpectBroken(Message().Ok(3, parts_[0], 400, 600), "offset is 400, expected 0");
  assembler_.emplace(Params(), buffers_, nullptr);
  ExpectBroken(Message().Ok(3, parts_[0], 0, 400).Ok(3, parts_[0], 300, 700), "offset is 300");
  assembler_.emplace(Params(), buffers_, nullptr);
  wire::Piece piece;
  piece.block = 3;
  piece.status = wire::kBlockStatusOk;
  piece.part_bytes = kPart;
  ExpectBroken(Message().Add(piece, std::string(kPart + 1, 'x')), "payload has 1001 bytes");
  assembler_.emplace(Params(), buffers_, nullptr);
  ExpectBroken(Message().Add(piece, ""), "payload has 0 bytes");
}

TEST_F(FetchAssemblerTest, RefusesANewBlockBeforeTheLastIsComplete) {
  ExpectBroken(Message().Ok(3, parts_[0], 0, 400).Whole(4, parts_[1]), "block 3 has only 400");
}

TEST_F(FetchAssemblerTest, RefusesAPartOfAnotherSizeThanTheBuffer) {
  ExpectBroken(Message().Whole(3, std::string(kPart - 1, 'x')), "the buffer has 1000");
  EXPECT_EQ(memory_[0], std::string(kPart, '?'));
}

TEST_F(FetchAssemblerTest, RefusesContradictionsWithinABlock) {
  wire::Piece piece;
  piece.block = 3;
  piece.status = wire::kBlockStatusOk;
  piece.offset = 400;
  piece.part_bytes = kPart;
  piece.checksum = 1;
  ExpectBroken(Message().Ok(3, parts_[0], 0, 400).Add(piece, std::string(600, 'a')),
               "differ within a block");
}

TEST_F(FetchAssemblerTest, RefusesAMissWithPayloadAndAnUnknownStatus) {
  wire::Piece piece;
  piece.block = 3;
  piece.status = wire::kBlockStatusMiss;
  ExpectBroken(Message().Add(piece, "x"), "a miss with payload");
  assembler_.emplace(Params(), buffers_, nullptr);
  piece.status = 0;
  ExpectBroken(Message().Add(piece, "x"), "status is 0");
}

TEST_F(FetchAssemblerTest, AnUnfinishedBlockAtTheEndIsAnError) {
  ASSERT_TRUE(Add(Message().Whole(3, parts_[0]).Ok(4, parts_[1], 0, 400)).ok());
  const absl::StatusOr<FetchReport> report = assembler_->Finish();
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("after 400 of 1000 bytes"));
}

}  // namespace
}  // namespace kvtier::client_internal
