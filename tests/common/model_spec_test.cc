#include "common/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelSpec ValidSpec() {
  ModelSpec spec;
  spec.name = "test/model";
  spec.dtype = DType::kBf16;
  spec.layer_groups = {{GroupedAttention{8, 128, 0}, 32, 0}};
  return spec;
}

ModelSpec ExplicitSpec() {
  ModelSpec spec;
  spec.name = "test/opaque";
  spec.explicit_part_bytes = {1000, 2000, 3000, 4000};
  spec.explicit_groups = 2;
  spec.tensor_parallel = 2;
  return spec;
}

using Change = std::function<void(ModelSpec*)>;

// The changed spec is refused and the message holds `field` and `value`.
void ExpectRefused(ModelSpec spec, const Change& change, const std::string& field,
                   const std::string& value) {
  ASSERT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
  change(&spec);
  const absl::Status status = ValidateSpec(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(field), HasSubstr(value)));
}

GroupedAttention& Attention(ModelSpec* spec) {
  return std::get<GroupedAttention>(spec->layer_groups[0].attention);
}

TEST(ValidateSpec, RefusesStringsOutOfRange) {
  const ModelSpec spec = ValidSpec();
  ExpectRefused(
      spec, [](ModelSpec* s) { s->name.clear(); }, "name", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->name.assign(257, 'x'); }, "name", "257");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->revision.assign(257, 'x'); }, "revision", "256");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->layout_fingerprint.assign(65, 'x'); }, "layout_fingerprint",
      "65");
}

// The index keeps something for each part of each block.
TEST(ValidateSpec, RefusesMorePartsThanABlockMayHave) {
  ModelSpec spec;
  spec.name = "parts";
  spec.explicit_groups = 4;
  spec.tensor_parallel = 1024;
  spec.explicit_part_bytes.assign(4096, 1);
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
  ExpectRefused(
      spec,
      [](ModelSpec* s) {
        s->explicit_groups = 5;
        s->explicit_part_bytes.assign(5120, 1);
      },
      "parts", "4096");
}

TEST(ValidateSpec, RefusesNumbersOutOfRange) {
  const ModelSpec spec = ValidSpec();
  ExpectRefused(
      spec, [](ModelSpec* s) { s->block_tokens = 0; }, "block_tokens", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->block_tokens = 4097; }, "block_tokens", "4097");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->tensor_parallel = 0; }, "tensor_parallel", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->tensor_parallel = 1025; }, "tensor_parallel", "1024");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->dtype = static_cast<DType>(6); }, "dtype", "6");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->pack_order = static_cast<PackOrder>(9); }, "pack_order", "9");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->layer_groups.resize(65, s->layer_groups[0]); }, "layer_groups",
      "64");
}

TEST(ValidateSpec, RefusesShapesOutOfRange) {
  const ModelSpec spec = ValidSpec();
  ExpectRefused(
      spec, [](ModelSpec* s) { s->layer_groups[0].layers = 0; }, "layer_groups[0].layers", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->layer_groups[0].layers = 1025; }, "layer_groups[0].layers",
      "1025");
  ExpectRefused(
      spec, [](ModelSpec* s) { Attention(s).kv_heads = 0; }, "kv_heads", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { Attention(s).head_dim = 65537; }, "head_dim", "65537");
  ExpectRefused(
      spec, [](ModelSpec* s) { Attention(s).value_head_dim = 65537; }, "value_head_dim", "65537");
  ExpectRefused(
      spec,
      [](ModelSpec* s) {
        s->layer_groups[0].attention = LatentAttention{0, 64};
      },
      "kv_lora_rank", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->layer_groups[0].attention = StateLayers{0}; }, "state_bytes",
      "0");
}

TEST(ValidateSpec, HeadsAndRanksMustDivide) {
  const ModelSpec spec = ValidSpec();
  ExpectRefused(
      spec, [](ModelSpec* s) { s->tensor_parallel = 3; }, "tensor_parallel is 3", "8");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->tensor_parallel = 12; }, "kv_heads is 8", "12");
  for (const uint32_t ranks : {1u, 2u, 4u, 8u, 16u, 32u}) {
    ModelSpec good = spec;
    good.tensor_parallel = ranks;
    EXPECT_TRUE(ValidateSpec(good).ok()) << ranks;
  }
}

TEST(ValidateSpec, ShapeIsGivenOnceAndWithItsDtype) {
  ExpectRefused(
      ValidSpec(), [](ModelSpec* s) { s->dtype = DType::kUnspecified; }, "dtype", "need");
  ExpectRefused(
      ValidSpec(), [](ModelSpec* s) { s->layer_groups.clear(); }, "empty", "");
  ExpectRefused(
      ValidSpec(), [](ModelSpec* s) { s->explicit_part_bytes = {1}; }, "explicit_part_bytes", "1");
  ExpectRefused(
      ValidSpec(), [](ModelSpec* s) { s->explicit_groups = 2; }, "explicit_groups", "2");
}

TEST(ValidateSpec, ExplicitPartsMustBeAsManyAsGroupsTimesRanks) {
  const ModelSpec spec = ExplicitSpec();
  ExpectRefused(
      spec, [](ModelSpec* s) { s->explicit_part_bytes.pop_back(); }, "explicit_part_bytes", "4");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->explicit_groups = 0; }, "explicit_groups", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->explicit_groups = 65; }, "explicit_groups", "65");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->explicit_part_bytes[2] = 0; }, "part_bytes[2]", "0");
  ExpectRefused(
      spec, [](ModelSpec* s) { s->explicit_part_bytes[3] = (64 << 20) + 1; }, "part_bytes[3]",
      "67108864");
}

TEST(ValidateSpec, PartsMayNotPassTheLimit) {
  ModelSpec spec = ValidSpec();  // 128 KiB a token
  spec.block_tokens = 512;       // 64 MiB
  EXPECT_TRUE(ValidateSpec(spec).ok());
  ExpectRefused(
      spec, [](ModelSpec* s) { s->block_tokens = 513; }, "part_bytes[0]", "67108864");
  SpecLimits limits;
  limits.part_bytes = 1000;
  EXPECT_FALSE(ValidateSpec(spec, limits).ok());
}

TEST(ValidateSpec, TheLargestSpecDoesNotOverflow) {
  ModelSpec spec;
  spec.name = "large";
  spec.dtype = DType::kFp32;
  spec.block_tokens = 4096;
  spec.layer_groups = {{GroupedAttention{65536, 65536, 65536}, 1024, 0}};
  SpecLimits limits;
  limits.part_bytes = UINT64_MAX;
  ASSERT_TRUE(ValidateSpec(spec, limits).ok());
  EXPECT_EQ(BlockBytes(spec), uint64_t{1} << (10 + 16 + 17 + 2 + 12));
  EXPECT_FALSE(ValidateSpec(spec).ok());
  EXPECT_EQ(BytesPerSequence(spec, UINT64_MAX), UINT64_MAX);  // saturates
}

TEST(PartBytes, AreGroupMajor) {
  ModelSpec spec = ValidSpec();
  spec.tensor_parallel = 2;
  spec.block_tokens = 16;
  spec.layer_groups.push_back({StateLayers{1000}, 3, 0});
  const uint64_t first = 32 * 4 * 256 * 2 * 16;
  EXPECT_EQ(PartBytes(spec), (std::vector<uint64_t>{first, first, 1500, 1500}));
  EXPECT_EQ(GroupCount(spec), 2u);
  EXPECT_EQ(PartCount(spec), 4u);
  EXPECT_EQ(BlockBytes(spec), 2 * first + 3000);
}

TEST(PartBytes, WindowedGroupsHoldWholeBlocks) {
  ModelSpec spec = ValidSpec();
  const std::vector<uint64_t> full = PartBytes(spec);
  spec.layer_groups[0].window_tokens = 4;  // shorter than a block
  EXPECT_EQ(PartBytes(spec), full);
}

TEST(PartBytes, ExplicitOnesAreTakenAsTheyAre) {
  const ModelSpec spec = ExplicitSpec();
  EXPECT_EQ(PartBytes(spec), spec.explicit_part_bytes);
  EXPECT_EQ(GroupCount(spec), 2u);
  EXPECT_EQ(PartCount(spec), 4u);
  EXPECT_EQ(BlockBytes(spec), 10000u);
  EXPECT_EQ(BytesPerSequence(spec, 32), 20000u);
}

TEST(SpecId, IsPinned) {  // models survive a restart, so the encoding may not change
  EXPECT_EQ(SpecId(ValidSpec()).ToHex(), "2f62f2aa8430ff5b86909e779745b72b");
  EXPECT_EQ(SpecId(ExplicitSpec()).ToHex(), "e5e9630a08bde595a3db1bfe6aea8370");
}

// Every field is part of the identity: change one at a time.
TEST(SpecId, ChangesWithEveryField) {
  const std::vector<Change> changes = {
      [](ModelSpec*) {},
      [](ModelSpec* s) { s->name += "x"; },
      [](ModelSpec* s) { s->revision = "other"; },
      [](ModelSpec* s) { s->block_tokens = 17; },
      [](ModelSpec* s) { s->dtype = DType::kFp16; },  // same bytes, other numbers
      [](ModelSpec* s) { Attention(s).kv_heads = 16; },
      [](ModelSpec* s) { Attention(s).head_dim = 256; },
      [](ModelSpec* s) { Attention(s).value_head_dim = 128; },
      [](ModelSpec* s) { s->layer_groups[0].layers = 33; },
      [](ModelSpec* s) { s->layer_groups[0].window_tokens = 1; },
      [](ModelSpec* s) {
        s->layer_groups[0].attention = LatentAttention{8, 128};
      },
      [](ModelSpec* s) {
        s->layer_groups[0].attention = LatentAttention{128, 8};
      },
      [](ModelSpec* s) { s->layer_groups[0].attention = StateLayers{8}; },
      [](ModelSpec* s) { s->layer_groups.push_back(s->layer_groups[0]); },
      [](ModelSpec* s) { s->tensor_parallel = 2; },
      [](ModelSpec* s) { s->pack_order = PackOrder::kLayerKvTokenHead; },
      [](ModelSpec* s) { s->pack_order = PackOrder::kHeadFirst; },
      [](ModelSpec* s) { s->layout_fingerprint = "other"; },
      [](ModelSpec* s) { s->explicit_part_bytes = {1}; },
      [](ModelSpec* s) { s->explicit_part_bytes = {2}; },
      [](ModelSpec* s) { s->explicit_groups = 2; },
  };
  std::set<ModelId> ids;
  for (const Change& change : changes) {
    ModelSpec spec = ValidSpec();
    change(&spec);
    ids.insert(SpecId(spec));
    EXPECT_EQ(SpecId(spec), SpecId(spec));
  }
  EXPECT_EQ(ids.size(), changes.size());
}

TEST(CanonicalSpec, NeighbouringStringsDoNotRunTogether) {
  ModelSpec a = ValidSpec();
  ModelSpec b = ValidSpec();
  a.name = "first second";
  a.revision = " third";
  b.name = "first";
  b.revision = " second third";
  EXPECT_NE(CanonicalSpec(a), CanonicalSpec(b));
}

TEST(DTypeNames, ComeBackAndHaveAliases) {
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp8, DType::kInt8}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)).value(), dtype);
    EXPECT_GT(DTypeBytes(dtype), 0u);
  }
  EXPECT_EQ(ParseDType("bfloat16").value(), DType::kBf16);
  EXPECT_EQ(ParseDType("torch.float16").value(), DType::kFp16);
  EXPECT_EQ(DTypeBytes(DType::kUnspecified), 0u);
  EXPECT_THAT(std::string(ParseDType("fp7").status().message()), HasSubstr("'fp7'"));
  EXPECT_FALSE(ParseDType("unspecified").ok());
}

}  // namespace
}  // namespace kvtier
