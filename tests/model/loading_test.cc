// What a checkpoint may and may not hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/model/checkpoint_copy.h"
#include "tests/model/reference.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

using ::testing::HasSubstr;

CheckpointCopy Tied() { return CheckpointCopy::Read(ModelDataFolder() / "tiny_tied_yarn"); }
CheckpointCopy Untied() { return CheckpointCopy::Read(ModelDataFolder() / "tiny_untied_llama3"); }

class Loading : public ::testing::Test {
 protected:
  Expected<std::unique_ptr<Model>> LoadFolder(const CheckpointCopy& copy) {
    const TempFolder temp;
    copy.WriteFolder(temp.path());
    return LoadModel(temp.path(), ComputeMode::kPrecise, team_);
  }
  Expected<std::unique_ptr<Model>> LoadGguf(const GgufWriter& writer) {
    const TempFolder temp;
    writer.Write(temp.path() / "m.gguf");
    return LoadModel(temp.path() / "m.gguf", ComputeMode::kPrecise, team_);
  }
  static void ExpectError(const Expected<std::unique_ptr<Model>>& model, ErrorCode code,
                          const std::vector<std::string>& words) {
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
    for (const auto& word : words) EXPECT_THAT(model.error().message, HasSubstr(word));
  }
  std::vector<float> FirstLogits(Model& model) {
    ModelDriver driver(model, team_, 1, 16);
    const int32_t tokens[] = {5, 9, 200};
    const auto logits = driver.Step(0, tokens, true);
    return {logits.data, logits.data + logits.shape[1]};
  }

  ThreadTeam team_{2};
};

TEST_F(Loading, B12ARenamedNormIsAnErrorNotASkippedNorm) {
  CheckpointCopy copy = Tied();
  copy.Rename("model.layers.1.input_layernorm.weight", "model.layers.1.pre_attention_norm.weight");
  ExpectError(LoadFolder(copy), ErrorCode::kNotFound, {"model.layers.1.input_layernorm.weight", "96"});
}

TEST_F(Loading, B12EveryTensorIsUsedOrOnTheIgnoreList) {
  CheckpointCopy copy = Tied();
  copy.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {16}, std::string(64, '\0')};
  EXPECT_TRUE(LoadFolder(copy).has_value());
  copy.tensors["model.layers.0.self_attn.q_norm.weight"] = {DType::kF32, {32}, std::string(128, '\0')};
  ExpectError(LoadFolder(copy), ErrorCode::kUnsupported,
              {"model.layers.0.self_attn.q_norm.weight", "f32 [32]", "does not use"});
  copy = Tied();
  copy.tensors["model.layers.0.mlp.gate_proj.bias"] = {DType::kF32, {160}, std::string(640, '\0')};
  ExpectError(LoadFolder(copy), ErrorCode::kUnsupported, {"model.layers.0.mlp.gate_proj.bias"});
  // A third layer that the config does not count.
  copy = Tied();
  copy.tensors["model.layers.2.input_layernorm.weight"] =
      copy.tensors.at("model.layers.1.input_layernorm.weight");
  ExpectError(LoadFolder(copy), ErrorCode::kUnsupported, {"model.layers.2.input_layernorm.weight"});

  GgufWriter writer = Tied().ToGguf();
  writer.TensorF32("blk.0.attn_q_norm.weight", {32}, std::vector<float>(32, 1.0f));
  ExpectError(LoadGguf(writer), ErrorCode::kUnsupported, {"blk.0.attn_q_norm.weight"});
}

// Hq = 10, Hkv = 2, D = 32: K and V have 64 rows, Q has 320, and so have their biases.
TEST_F(Loading, B13KeySizesFollowTheKeyHeads) {
  ASSERT_TRUE(LoadFolder(Untied()).has_value());
  for (const char* part : {"k_proj", "v_proj"}) {
    for (const char* kind : {"weight", "bias"}) {
      CheckpointCopy copy = Untied();
      const std::string layer = "model.layers.0.self_attn.";
      copy.tensors.at(layer + part + "." + kind) = copy.tensors.at(layer + "q_proj." + kind);
      ExpectError(LoadFolder(copy), ErrorCode::kCorruptFile,
                  {layer + part + "." + kind, "[320", "expected [64"});
    }
  }
}

TEST_F(Loading, ShapeAndTypeAreCheckedWithTheName) {
  CheckpointCopy copy = Tied();
  copy.config["intermediate_size"] = 192;
  ExpectError(LoadFolder(copy), ErrorCode::kCorruptFile,
              {"model.layers.0.mlp.gate_proj.weight", "bf16 [160, 96]", "expected [192, 96]"});
  copy = Tied();
  copy.config["vocab_size"] = 255;
  ExpectError(LoadFolder(copy), ErrorCode::kCorruptFile, {"model.embed_tokens.weight", "[256, 96]"});
  copy = Tied();
  copy.config["num_hidden_layers"] = 3;
  ExpectError(LoadFolder(copy), ErrorCode::kNotFound, {"model.layers.2."});

  // Norms may be f32, f16 or bf16, never quantised.
  GgufWriter writer;
  const CheckpointCopy tied = Tied();
  copy = tied;
  copy.Rename("model.norm.weight", "unused");
  copy.tensors.erase("unused");
  writer = copy.ToGguf();
  writer.Tensor("output_norm.weight", DType::kQ8_0, {96}, std::string(3 * 34, '\0'));
  ExpectError(LoadGguf(writer), ErrorCode::kUnsupported, {"output_norm.weight", "q8_0", "f32"});
}

TEST_F(Loading, B14ATiedModelMayCarryACopyOfItsHead) {
  const auto tied = LoadFolder(Tied());
  ASSERT_TRUE(tied.has_value()) << tied.error().message;
  CheckpointCopy copy = Tied();
  copy.tensors["lm_head.weight"] = copy.tensors.at("model.embed_tokens.weight");
  const auto with_copy = LoadFolder(copy);
  ASSERT_TRUE(with_copy.has_value()) << with_copy.error().message;
  EXPECT_TRUE((*with_copy)->config().tied_head);
  EXPECT_EQ((*with_copy)->weight_bytes(), (*tied)->weight_bytes());  // one matrix, not two
  EXPECT_EQ(FirstLogits(**with_copy), FirstLogits(**tied));
}

// transformers 5 then warns and does not tie: the head of the file is the head.
TEST_F(Loading, B14ADifferentHeadInATiedModelIsUsed) {
  CheckpointCopy copy = Tied();
  CopiedTensor head = copy.tensors.at("model.embed_tokens.weight");
  // Row 7 and row 8 change places, so their logits must.
  const size_t row_bytes = head.data.size() / 256;
  for (size_t i = 0; i < row_bytes; ++i)
    std::swap(head.data[7 * row_bytes + i], head.data[8 * row_bytes + i]);
  const auto tied = LoadFolder(copy);
  copy.tensors["lm_head.weight"] = head;
  const auto other = LoadFolder(copy);
  ASSERT_TRUE(tied.has_value() && other.has_value());
  EXPECT_FALSE((*other)->config().tied_head);
  const auto a = FirstLogits(**tied);
  const auto b = FirstLogits(**other);
  EXPECT_NE(a[7], a[8]);
  EXPECT_EQ(a[7], b[8]);
  EXPECT_EQ(a[8], b[7]);
  EXPECT_EQ(a[9], b[9]);
}

TEST_F(Loading, AnUntiedModelWithoutAHeadIsAnError) {
  CheckpointCopy copy = Untied();
  copy.tensors.erase("lm_head.weight");
  ExpectError(LoadFolder(copy), ErrorCode::kNotFound, {"lm_head.weight"});
}

TEST_F(Loading, GgufKeysAreRequiredAndAllRead) {
  const CheckpointCopy copy = Tied();
  ASSERT_TRUE(LoadGguf(copy.ToGguf()).has_value());
  GgufWriter writer = copy.ToGguf();
  writer.F32("llama.attn_logit_softcapping", 50.0f);
  ExpectError(LoadGguf(writer), ErrorCode::kUnsupported, {"llama.attn_logit_softcapping"});
  writer = copy.ToGguf();
  writer.U32("llama.attention.sliding_window", 4096);
  ExpectError(LoadGguf(writer), ErrorCode::kUnsupported, {"llama.attention.sliding_window", "4096"});
  writer = copy.ToGguf();
  writer.U32("llama.expert_count", 8);
  ExpectError(LoadGguf(writer), ErrorCode::kUnsupported, {"llama.expert_count", "8"});
  ExpectError(LoadGguf(GgufWriter().String("general.architecture", "gemma3")), ErrorCode::kUnsupported,
              {"general.architecture", "gemma3", "llama"});
  ExpectError(LoadGguf(GgufWriter().String("general.architecture", "llama")), ErrorCode::kCorruptFile,
              {"llama.embedding_length"});
}

TEST_F(Loading, AForcedAttentionKernelThatDoesNotExistIsAnError) {
  const auto checkpoint = Checkpoint::Open(ModelDataFolder() / "tiny_tied_yarn").value();
  ModelOptions options;
  options.cpu = DetectCpu();
  options.forced_attention = "no_such_kernel";
  const auto model = Model::Load(*checkpoint, options, team_);
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message, HasSubstr("no_such_kernel"));
}

TEST_F(Loading, ProgressEndsAtTheTotal) {
  const auto checkpoint = Checkpoint::Open(ModelDataFolder() / "tiny_untied_llama3").value();
  ModelOptions options;
  options.cpu = DetectCpu();
  std::vector<std::pair<int64_t, int64_t>> calls;
  options.progress = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); };
  ASSERT_TRUE(Model::Load(*checkpoint, options, team_).has_value());
  ASSERT_GT(calls.size(), 4u);
  for (size_t i = 1; i < calls.size(); ++i) EXPECT_GE(calls[i].first, calls[i - 1].first);
  EXPECT_EQ(calls.back().first, calls.back().second);
}

}  // namespace
}  // namespace attest
