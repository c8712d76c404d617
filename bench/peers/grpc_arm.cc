// What gRPC itself takes for the same bytes: the server and the client of bench/ceilings.h.
#include "bench/ceilings.h"
#include "bench/peers/block_arm.h"

namespace kvtier::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;  // streams carry whole ones
constexpr uint64_t kShort = 64;               // bytes of a request or a reply without payload
constexpr uint64_t kLookupBytesPerBlock = 64;

class GrpcArm final : public BlockArm {
 public:
  explicit GrpcArm(std::unique_ptr<CeilingClient> client) : client_(std::move(client)) {}

  bool keeps() const override { return false; }
  absl::StatusOr<std::string> Prepare(uint64_t) override { return std::string(); }

  absl::Status Put(const BatchName&, Payloads payloads) override {
    const uint64_t bytes = payloads.size() * payloads.front().size();
    if (bytes % kMiB != 0) return client_->Unary(kShort + bytes, kShort);
    return client_->StreamUp(bytes, Receiver::kCopies);
  }
  absl::Status Get(const BatchName&, Buffers buffers) override {
    const uint64_t bytes = buffers.size() * buffers.front().size();
    if (bytes % kMiB != 0) return client_->Unary(kShort, kShort + bytes);
    return client_->StreamDown(bytes, Receiver::kCopies);
  }
  absl::Status Drop(const BatchName&, uint32_t) override { return absl::OkStatus(); }

  absl::Status StoreChain(uint32_t) override { return absl::OkStatus(); }
  absl::Status PrepareLookup(Shape shape, uint32_t blocks) override {
    request_bytes_ = kShort + blocks * kLookupBytesPerBlock;
    found_ = FoundOf(shape, blocks);
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> Lookup() override {
    KVTIER_RETURN_IF_ERROR(client_->Unary(request_bytes_, kShort));
    return found_;
  }

 private:
  const std::unique_ptr<CeilingClient> client_;
  uint64_t request_bytes_ = 0;
  uint32_t found_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockArm>> MakeGrpcArm(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<CeilingClient> client, CeilingClient::Connect(address));
  return std::make_unique<GrpcArm>(std::move(client));
}

}  // namespace kvtier::bench
