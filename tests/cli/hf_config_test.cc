#include "cli/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/json_output.h"
#include "cli/presets.h"

namespace kvtier::cli {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ModelSpec> Read(const Json& config, std::optional<DType> dtype = std::nullopt) {
  return SpecFromHfConfig(config.dump(), "config.json", dtype);
}

// The same sizes as the preset's.
void ExpectLike(const Json& config, const std::string& preset) {
  const absl::StatusOr<ModelSpec> spec = Read(config);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSpec expected = FindPreset(preset).value();
  EXPECT_EQ(spec->dtype, expected.dtype);
  for (const uint64_t tokens : {1, 100, 5000, 200000}) {
    EXPECT_EQ(BytesPerSequence(*spec, tokens), BytesPerSequence(expected, tokens)) << tokens;
  }
}

Json Llama3With8B() {
  return {{"model_type", "llama"},          {"num_hidden_layers", 32}, {"num_attention_heads", 32},
          {"num_key_value_heads", 8},       {"hidden_size", 4096},     {"torch_dtype", "bfloat16"},
          {"max_position_embeddings", 8192}};
}

Json Gemma2With9B() {
  return {{"model_type", "gemma2"},   {"num_hidden_layers", 42},  {"num_attention_heads", 16},
          {"num_key_value_heads", 8}, {"head_dim", 256},          {"hidden_size", 3584},
          {"sliding_window", 4096},   {"torch_dtype", "bfloat16"}};
}

TEST(HfConfig, Llama) { ExpectLike(Llama3With8B(), "llama-3-8b"); }

TEST(HfConfig, LlamaWithoutKvHeadsIsMultiHead) {
  ExpectLike({{"model_type", "llama"},
              {"num_hidden_layers", 32},
              {"num_attention_heads", 32},
              {"hidden_size", 4096},
              {"torch_dtype", "float16"}},
             "llama-7b");
}

TEST(HfConfig, QwenSaysThatItsWindowIsOff) {
  Json config = {
      {"model_type", "qwen2"},       {"num_hidden_layers", 28}, {"num_attention_heads", 28},
      {"num_key_value_heads", 4},    {"hidden_size", 3584},     {"sliding_window", 131072},
      {"use_sliding_window", false}, {"max_window_layers", 28}, {"torch_dtype", "bfloat16"}};
  ExpectLike(config, "qwen2.5-7b");
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 20;
  config["sliding_window"] = 1000;
  const ModelSpec spec = Read(config).value();
  ASSERT_EQ(spec.layer_groups.size(), 2u);
  EXPECT_EQ(spec.layer_groups[0].layers, 20u);
  EXPECT_EQ(spec.layer_groups[1].layers, 8u);
  EXPECT_EQ(spec.layer_groups[1].window_tokens, 1000u);
}

TEST(HfConfig, MistralSlidesInAllLayers) {
  Json config = {{"model_type", "mistral"},  {"num_hidden_layers", 32}, {"num_attention_heads", 32},
                 {"num_key_value_heads", 8}, {"hidden_size", 4096},     {"sliding_window", 4096},
                 {"torch_dtype", "bfloat16"}};
  ExpectLike(config, "mistral-7b");
  config["sliding_window"] = nullptr;
  EXPECT_EQ(BytesPerSequence(Read(config).value(), 10000), 10000u * 131072);
}

TEST(HfConfig, Gemma2SlidesInEverySecondLayer) { ExpectLike(Gemma2With9B(), "gemma-2-9b"); }

TEST(HfConfig, Gemma3KeepsItsFieldsOneLevelDown) {
  ExpectLike({{"model_type", "gemma3"},
              {"torch_dtype", "bfloat16"},
              {"text_config",
               {{"model_type", "gemma3_text"},
                {"num_hidden_layers", 62},
                {"num_attention_heads", 32},
                {"num_key_value_heads", 16},
                {"head_dim", 128},
                {"hidden_size", 5376},
                {"sliding_window", 1024},
                {"sliding_window_pattern", 6}}}},
             "gemma-3-27b");
}

TEST(HfConfig, LayerTypesDecide) {
  Json config = Llama3With8B();
  config["num_hidden_layers"] = 3;
  config["sliding_window"] = 128;
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  const ModelSpec spec = Read(config).value();
  ASSERT_EQ(spec.layer_groups.size(), 2u);
  EXPECT_EQ(spec.layer_groups[0].layers, 1u);
  EXPECT_EQ(spec.layer_groups[1].layers, 2u);
  config["layer_types"][1] = "linear_attention";
  EXPECT_THAT(std::string(Read(config).status().message()),
              HasSubstr("layer_types[1] is \"linear_attention\""));
  config["layer_types"] = Json::array();
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("no list of 3"));
}

TEST(HfConfig, DeepSeekHasLatents) {
  ExpectLike({{"model_type", "deepseek_v3"},
              {"num_hidden_layers", 61},
              {"num_attention_heads", 128},
              {"num_key_value_heads", 128},
              {"kv_lora_rank", 512},
              {"qk_rope_head_dim", 64},
              {"hidden_size", 7168},
              {"torch_dtype", "bfloat16"}},
             "deepseek-v3");
}

TEST(HfConfig, Gpt2AndFalconNameFieldsTheirOwnWay) {
  const Json gpt2 = {{"model_type", "gpt2"}, {"n_layer", 12}, {"n_head", 12}, {"n_embd", 768}};
  EXPECT_EQ(BytesPerToken(Read(gpt2, DType::kFp32).value()),
            BytesPerToken(FindPreset("gpt2").value()));
  EXPECT_THAT(std::string(Read(gpt2).status().message()), HasSubstr("torch_dtype is missing"));
  const Json falcon = {{"model_type", "falcon"},    {"num_hidden_layers", 32},
                       {"num_attention_heads", 71}, {"hidden_size", 4544},
                       {"multi_query", true},       {"torch_dtype", "bfloat16"}};
  EXPECT_EQ(BytesPerToken(Read(falcon).value()), 2u * 32 * 64 * 2);
}

TEST(HfConfig, NamesTheMissingField) {
  for (const char* field : {"num_hidden_layers", "num_attention_heads", "hidden_size"}) {
    Json config = Llama3With8B();
    config.erase(field);
    const absl::Status status = Read(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    EXPECT_THAT(std::string(status.message()), HasSubstr("missing"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
  }
}

TEST(HfConfig, RefusesValuesThatAreNone) {
  Json config = Llama3With8B();
  for (const Json& value : {Json(-1), Json(1.5), Json("32"), Json(uint64_t{1} << 40)}) {
    config["num_hidden_layers"] = value;
    EXPECT_THAT(std::string(Read(config).status().message()),
                HasSubstr("num_hidden_layers is " + value.dump()));
  }
  config = Llama3With8B();
  config["hidden_size"] = 4097;
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("4097"));
  config = Llama3With8B();
  config["torch_dtype"] = "fp7";
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("fp7"));
}

TEST(HfConfig, DoesNotGuessAnUnknownModelsWindow) {
  Json config = Llama3With8B();
  config["model_type"] = "unheard-of";
  EXPECT_TRUE(Read(config).ok());
  config["sliding_window"] = 4096;
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("'unheard-of'"));
}

TEST(HfConfig, RefusesWhatIsNoConfig) {
  EXPECT_FALSE(SpecFromHfConfig("[1]", "x", std::nullopt).ok());
  EXPECT_FALSE(SpecFromHfConfig("{", "x", std::nullopt).ok());
  EXPECT_EQ(SpecFromHfConfigFile("/no/such/file", std::nullopt).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvtier::cli
