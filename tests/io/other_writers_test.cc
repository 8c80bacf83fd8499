// Files written by the formats' own Python packages (gguf, safetensors), so that reader and test writers
// cannot share a misreading.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "io/gguf.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "tests/io/io_test_support.h"

namespace attest {
namespace {

Expected<MappedFile> OpenSeed(const char* name) {
  return MappedFile::Open(std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/io/corpus" / name);
}

// arange(6) as [2, 3].
void ExpectCountingMatrix(const TensorInfo& tensor) {
  EXPECT_EQ(tensor.dtype, DType::kF32);
  ASSERT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  for (int i = 0; i < 6; ++i) {
    float value = -1;
    std::memcpy(&value, tensor.data + 4 * i, sizeof(value));
    EXPECT_EQ(value, static_cast<float>(i));
  }
}

TEST(OtherWriters, GgufPackage) {
  const auto file = OpenSeed("good_by_gguf_py.gguf");
  ASSERT_TRUE(file) << file.error().message;
  const auto gguf = GgufFile::Parse(file->bytes(), "seed");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->String("general.architecture"), "llama");
  EXPECT_EQ(gguf->Int("llama.block_count"), 2);
  EXPECT_EQ(gguf->Float("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(**gguf->FindInts("llama.attention.head_count_kv"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(**gguf->FindBool("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(gguf->Strings("tokenizer.ggml.tokens"), (std::vector<std::string_view>{"<s>", "a", "\u2581b"}));
  EXPECT_EQ(**gguf->FindFloats("tokenizer.ggml.scores"), (std::vector<float>{0, -1, -2.5}));
  EXPECT_EQ(**gguf->FindInts("tokenizer.ggml.token_type"), (std::vector<int32_t>{3, 1, 1}));
  ASSERT_EQ(gguf->tensors().size(), 3u);
  ExpectCountingMatrix(gguf->tensors()[0]);
  EXPECT_EQ(gguf->tensors()[1].dtype, DType::kF16);
  EXPECT_EQ(gguf->tensors()[2].dtype, DType::kQ8_0);
  EXPECT_EQ(gguf->tensors()[2].shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(static_cast<int8_t>(gguf->tensors()[2].data[2]), -127);  // after the half: -1 at full scale
}

TEST(OtherWriters, SafetensorsPackage) {
  const auto file = OpenSeed("good_by_safetensors_py.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  const auto tensors = ParseSafetensors(file->bytes(), "seed");
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  ExpectCountingMatrix((*tensors)[0]);
  EXPECT_EQ((*tensors)[1].name, "h");
  EXPECT_EQ((*tensors)[1].dtype, DType::kF16);
}

}  // namespace
}  // namespace attest
