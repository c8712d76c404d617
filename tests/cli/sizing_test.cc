#include "cli/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/presets.h"

namespace kvtier::cli {
namespace {

using ::testing::HasSubstr;

SizingQuestion Ask(const std::string& preset, uint64_t context) {
  SizingQuestion question;
  question.model = FindPreset(preset).value();
  question.context_tokens = context;
  return question;
}

TEST(Sizing, PublishedFigures) {
  struct Case {
    const char* preset;
    uint64_t context;
    uint64_t per_token;
    uint64_t per_sequence;
  };
  const Case cases[] = {
      {"llama-3-70b", 8192, 327680, 2684354560},
      {"llama-3-70b", 131072, 327680, 42949672960},
      {"llama-3-70b-mha", 131072, 2621440, 343597383680},
      {"llama-3-70b-mqa", 131072, 40960, 5368709120},
      {"llama-3-8b", 1, 131072, 131072},
      {"llama-7b", 2048, 524288, 1073741824},
      {"deepseek-v3", 131072, 70272, 9210691584},
      {"deepseek-v3-naive-mha", 1, 4997120, 4997120},
      {"qwen2.5-7b", 1, 57344, 57344},
      {"mistral-7b", 32768, 131072, uint64_t{131072} * 4096},
  };
  for (const Case& expected : cases) {
    const SizingAnswer answer = Size(Ask(expected.preset, expected.context)).value();
    EXPECT_EQ(answer.bytes_per_token, expected.per_token) << expected.preset;
    EXPECT_EQ(answer.bytes_per_sequence, expected.per_sequence) << expected.preset;
  }
}

TEST(Sizing, DTypeHalves) {
  SizingQuestion question = Ask("llama-3-8b", 1);
  question.model.dtype = DType::kFp8;
  EXPECT_EQ(Size(question).value().bytes_per_token, 65536u);
}

// Llama-3-70B in bf16 on eight GPUs of 80 GB.
SizingQuestion WorkedCase(uint64_t context) {
  SizingQuestion question = Ask("llama-3-70b", context);
  question.gpu_memory_bytes = 640000000000;
  question.usable_fraction = 0.9;
  question.weights_bytes = 140000000000;
  question.bandwidth_bytes = 26800000000000;
  return question;
}

TEST(Sizing, WorkedCase) {
  const SizingAnswer answer = Size(WorkedCase(8192)).value();
  EXPECT_EQ(answer.usable_bytes, 576000000000u);
  EXPECT_EQ(answer.kv_budget_bytes, 436000000000u);
  EXPECT_EQ(*answer.kv_budget_bytes >> 30, 406u);
  EXPECT_EQ(answer.batch_limit, 162u);
  EXPECT_EQ(Size(WorkedCase(131072)).value().batch_limit, 10u);
  EXPECT_EQ(answer.batch, 162u);
  EXPECT_EQ(answer.decode_step_bytes, 140000000000u + uint64_t{162} * 8192 * 327680);
  EXPECT_NEAR(*answer.decode_weights_seconds, 5.2e-3, 0.05e-3);
  EXPECT_NEAR(*answer.decode_kv_seconds, 16e-3, 0.5e-3);
}

TEST(Sizing, Fp8HalvesTheDecodeTime) {
  SizingQuestion question = WorkedCase(8192);
  question.batch = 162;
  const double bf16 = *Size(question).value().decode_kv_seconds;
  question.model.dtype = DType::kFp8;
  EXPECT_DOUBLE_EQ(*Size(question).value().decode_kv_seconds, bf16 / 2);
}

TEST(Sizing, WorkWithAndWithoutCache) {
  SizingQuestion question = Ask("llama-3-8b", 1000);
  question.new_tokens = 100;
  const SizingAnswer answer = Size(question).value();
  uint64_t sum = 0;
  for (uint64_t t = 1000; t <= 1100; ++t) sum += t;
  EXPECT_EQ(answer.passes_without_cache, sum);
  EXPECT_EQ(answer.passes_with_cache, 1100u);
}

TEST(Sizing, TensorParallelism) {
  SizingQuestion question = Ask("llama-3-70b", 1);
  question.model.tensor_parallel = 16;  // two ranks a head
  const SizingAnswer answer = Size(question).value();
  EXPECT_EQ(answer.bytes_per_token, 655360u);
  EXPECT_EQ(answer.unsplit_bytes_per_token, 327680u);
  EXPECT_EQ(answer.rank_bytes_per_token, 40960u);
  EXPECT_EQ(answer.replication, 2.0);
}

TEST(Sizing, RefusesQuestionsWithoutAnswer) {
  const auto error = [](const SizingQuestion& question) {
    const absl::Status status = Size(question).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(Ask("llama-7b", 0)), HasSubstr("context is 0"));
  SizingQuestion question = WorkedCase(8192);
  question.weights_bytes.reset();
  EXPECT_THAT(error(question), HasSubstr("needs weights"));
  question.weights_bytes = 576000000001;
  EXPECT_THAT(error(question), HasSubstr("weights are 576000000001 bytes"));
  question = WorkedCase(8192);
  question.batch = 0;
  EXPECT_THAT(error(question), HasSubstr("batch is 0"));
  question = WorkedCase(8192);
  question.usable_fraction = 1.1;
  EXPECT_THAT(error(question), HasSubstr("usable is 1.1"));
  question = WorkedCase(8192);
  question.model.tensor_parallel = 3;
  EXPECT_THAT(error(question), HasSubstr("tensor_parallel is 3"));
}

TEST(Sizing, DocumentAndTableHoldTheFigures) {
  const SizingQuestion question = WorkedCase(8192);
  const SizingAnswer answer = Size(question).value();
  const Json json = SizingJson(question, answer);
  EXPECT_EQ(json.at("bytes_per_token"), 327680);
  EXPECT_EQ(json.at("bytes_per_sequence"), 2684354560);
  EXPECT_EQ(json.at("bytes_per_block"), 5242880);
  EXPECT_EQ(json.at("batch_limit"), 162);
  EXPECT_EQ(SizingJson(Ask("llama-7b", 1), Size(Ask("llama-7b", 1)).value()).at("batch_limit"),
            Json(nullptr));
  const std::string text = SizingText(question, answer);
  EXPECT_THAT(text, HasSubstr("162 sequences"));
  EXPECT_THAT(text, HasSubstr("2,684,354,560 (2.5 GiB)"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("Note")));
}

TEST(Sizing, WarnsOfPartsThatAreNotServed) {
  SizingQuestion question = Ask("llama-3-70b", 1);
  question.model.block_tokens = 512;  // 160 MiB
  EXPECT_THAT(SizingText(question, Size(question).value()), HasSubstr("Note: a part of 160MiB"));
}

TEST(Presets, AreValidAndNamed) {
  EXPECT_GT(Presets().size(), 20u);
  SpecLimits limits;
  limits.part_bytes = uint64_t{1} << 30;  // some have parts that need more ranks
  for (const ModelSpec& spec : Presets()) {
    EXPECT_TRUE(ValidateSpec(spec, limits).ok()) << spec.name;
    EXPECT_EQ(CanonicalSpec(FindPreset(spec.name).value()), CanonicalSpec(spec));
  }
  EXPECT_THAT(std::string(FindPreset("gpt-9").status().message()),
              ::testing::AllOf(HasSubstr("gpt-9"), HasSubstr("llama-3-70b")));
}

}  // namespace
}  // namespace kvtier::cli
