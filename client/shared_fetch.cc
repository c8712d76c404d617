#include "client/shared_fetch.h"

#include <algorithm>
#include <string>

#include "common/copy_past.h"
#include "common/hashed_copy.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {
namespace {

// Stays in the core's own cache between hashing and being seen.
constexpr size_t kPiece = size_t{64} << 10;

absl::Status Broken(const v1::SharedBlock& block, const std::string& what) {
  return absl::InternalError(
      absl::StrCat("FetchShared: reply breaks the protocol at block ", block.block(), ": ", what));
}

std::string EncodeRequest(const SharedSession& session, uint64_t lease_id,
                          const FetchParams& params) {
  v1::FetchSharedRequest request;
  request.set_session_id(session.id());
  request.set_lease_id(lease_id);
  request.set_first_block(params.first_block);
  request.set_last_block(params.last_block);
  request.mutable_part()->set_layer_group(params.part.layer_group);
  request.mutable_part()->set_rank(params.part.rank);
  request.set_allow_gaps(params.allow_gaps);
  return request.SerializeAsString();
}

// The blocks of one reply, in order.
class ReplyReader {
 public:
  ReplyReader(SharedSession* session, const FetchParams& params, const OnSharedPart& on_part)
      : session_(session), params_(params), on_part_(on_part), next_block_(params.first_block) {
    statuses_.reserve(params.last_block - params.first_block);
  }

  absl::Status Add(wire::Slices slices) {
    bytes_.clear();
    for (std::string_view slice : slices) bytes_.append(slice);
    if (!message_.ParseFromString(bytes_)) {
      return absl::InternalError(
          absl::StrCat("FetchShared: a message of ", bytes_.size(), " bytes is not protobuf"));
    }
    for (const v1::SharedBlock& block : message_.blocks()) {
      KVTIER_RETURN_IF_ERROR(AddBlock(block));
    }
    return absl::OkStatus();
  }

  // What the daemon did not name follows what ended the stream.
  std::vector<SharedStatus> Finish() {
    const SharedStatus last = statuses_.empty() || statuses_.back() == SharedStatus::kOk
                                  ? SharedStatus::kMiss
                                  : statuses_.back();
    statuses_.resize(params_.last_block - params_.first_block, last);
    return std::move(statuses_);
  }

 private:
  absl::Status AddBlock(const v1::SharedBlock& block) {
    if (block.block() != next_block_ || block.block() >= params_.last_block) {
      return Broken(block, absl::StrCat("the next block is ", next_block_, ", the last is before ",
                                        params_.last_block));
    }
    ++next_block_;
    switch (block.status()) {
      case v1::BLOCK_STATUS_OK:
        return AddPart(block);
      case v1::BLOCK_STATUS_MISS:
        statuses_.push_back(SharedStatus::kMiss);
        return absl::OkStatus();
      case v1::BLOCK_STATUS_NOT_SHARED:
        statuses_.push_back(SharedStatus::kNotShared);
        return absl::OkStatus();
      default:
        return Broken(block, absl::StrCat("status is ", block.status()));
    }
  }

  absl::Status AddPart(const v1::SharedBlock& block) {
    if (mapping_ == nullptr || block.region() != region_) {
      absl::StatusOr<std::shared_ptr<const SharedMapping>> mapping = session_->Map(block.region());
      if (absl::IsNotFound(mapping.status())) {
        // Given up since the reply was made, by a lease that has ended: gRPC has the last word.
        statuses_.push_back(SharedStatus::kNotShared);
        return absl::OkStatus();
      }
      KVTIER_RETURN_IF_ERROR(mapping.status());
      mapping_ = std::move(*mapping);
      region_ = block.region();
    }
    if (block.bytes() == 0 || !mapping_->Holds(block.offset(), block.bytes())) {
      return Broken(block, absl::StrCat(block.bytes(), " bytes at ", block.offset(), " of region ",
                                        region_, ", which has ", mapping_->bytes().size()));
    }
    statuses_.push_back(SharedStatus::kOk);
    return on_part_(SharedPart{block.block(), block.checksum(),
                               mapping_->bytes().subspan(block.offset(), block.bytes()), mapping_});
  }

  SharedSession* const session_;
  const FetchParams& params_;
  const OnSharedPart& on_part_;
  uint32_t next_block_;
  std::string bytes_;
  v1::FetchSharedResponse message_;
  uint64_t region_ = 0;
  std::shared_ptr<const SharedMapping> mapping_;
  std::vector<SharedStatus> statuses_;
};

}  // namespace

std::optional<Duration> LeaseWatch::Left() const {
  const std::optional<TimePoint> known = core_->lease_times().End(lease_id_);
  if (!known.has_value() && !end_.has_value()) return std::nullopt;
  const TimePoint end = std::min(known.value_or(TimePoint::max()), end_.value_or(TimePoint::max()));
  return end - core_->clock().Now();
}

absl::StatusOr<std::vector<SharedStatus>> CallFetchShared(Core* core, SharedSession* session,
                                                          uint64_t lease_id,
                                                          const FetchParams& params, Duration limit,
                                                          const OnSharedPart& on_part) {
  const std::string request = EncodeRequest(*session, lease_id, params);
  ReplyReader reply(session, params, on_part);
  KVTIER_RETURN_IF_ERROR(core->Call(limit, [&](Duration left) {
    return core->transport().ServerStream(
        Rpc::kFetchShared, {request}, left,
        [&reply](wire::Slices slices) { return reply.Add(slices); });
  }));
  return reply.Finish();
}

absl::StatusOr<std::optional<FetchedBlock>> SharedReader::Read(const SharedPart& part) {
  const std::span<std::byte> buffer =
      visit_ == nullptr ? buffers_[part.block - params_.first_block] : std::span<std::byte>();
  if (visit_ == nullptr && buffer.size() != part.bytes.size()) {
    return absl::InternalError(absl::StrCat("FetchShared: the part of block ", part.block, " has ",
                                            part.bytes.size(), " bytes, the buffer ",
                                            buffer.size()));
  }
  if (verify_) checksum_.Restart();
  if (visit_ != nullptr) {
    Show(part);
  } else if (verify_) {
    HashAndCopyPast(buffer.data(), part.bytes, &checksum_);
  } else {
    CopyPast(buffer.data(), part.bytes);
  }
  if (verify_ && checksum_.Value() != part.checksum) return std::nullopt;
  return FetchedBlock{FetchStatus::kOk, part.bytes.size(), part.checksum};
}

void SharedReader::Show(const SharedPart& part) {
  for (size_t offset = 0; offset < part.bytes.size(); offset += kPiece) {
    const auto piece = part.bytes.subspan(offset, std::min(kPiece, part.bytes.size() - offset));
    if (verify_) HashFromMemory(piece, &checksum_);
    (*visit_)(PieceView{part.block, offset, part.bytes.size(), piece});
  }
}

}  // namespace kvtier::client_internal
