// Loader bugs of other projects, D01 to D12 of the public reports this loader is measured against: each a
// file that crashed, hung, exhausted or misled some reader, with the answer it must get here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "tests/io/io_test_support.h"
#include "tests/support/cpu_time.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace {

thread_local size_t largest_allocation = 0;

void* Allocate(size_t size) {
  if (size > largest_allocation) largest_allocation = size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// This test binary watches its own allocations.
void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace attest {
namespace {

// A message of a thousand bytes and the lexer's 1 KiB buffers: what an error itself may take.
constexpr size_t kErrorBytes = 4096;

// The largest single allocation while `action` runs.
size_t LargestAllocation(const std::function<void()>& action) {
  largest_allocation = 0;
  action();
  return largest_allocation;
}

// `bytes` must be refused by the GGUF reader, within a second of work and without an allocation larger than
// the file.
void ExpectGgufError(const std::string& bytes, std::string_view part) {
  EXPECT_LE(LargestAllocation([&] {
              EXPECT_LT(ThreadCpuSeconds([&] { ExpectError(GgufFile::Parse(Bytes(bytes), "m.gguf"), part); }),
                        1.0);
            }),
            std::max(bytes.size(), kErrorBytes));
}

void ExpectSafetensorsError(const std::string& bytes, std::string_view part) {
  EXPECT_LE(LargestAllocation([&] {
              EXPECT_LT(ThreadCpuSeconds(
                            [&] { ExpectError(ParseSafetensors(Bytes(bytes), "m.safetensors"), part); }),
                        1.0);
            }),
            std::max(bytes.size(), kErrorBytes));
}

std::string LengthPrefix(uint64_t length) { return GgufBytes().Put(length).text(); }

// A GGUF header with these counts and nothing, or `rest`, after it.
std::string GgufHeader(uint64_t num_tensors, uint64_t num_entries, const std::string& rest = {}) {
  return GgufBytes().Put<uint32_t>(0x46554747).Put<uint32_t>(3).Put(num_tensors).Put(num_entries).text() +
         rest;
}

TEST(LoaderBugs, D01HeaderLengthsAreCheckedBeforeUse) {
  const std::string rest = "{}              ";
  const uint64_t file_size = 8 + rest.size();
  ExpectSafetensorsError(LengthPrefix(~0ull),
                         "byte 0: header length is 18446744073709551615, must be 2 to 0");
  ExpectSafetensorsError(LengthPrefix(~0ull) + rest,
                         "header length is 18446744073709551615, must be 2 to 16");
  ExpectSafetensorsError(LengthPrefix(~0ull - 4) + rest, "header length is 18446744073709551611");
  ExpectSafetensorsError(LengthPrefix(file_size + 1) + rest, "header length is 25, must be 2 to 16");
  ExpectSafetensorsError(LengthPrefix(rest.size() + 1) + rest, "header length is 17, must be 2 to 16");
  ExpectSafetensorsError(LengthPrefix(0) + rest, "header length is 0");
  ExpectSafetensorsError(LengthPrefix(1ull << 63) + rest, "header length is 9223372036854775808");
}

TEST(LoaderBugs, D02OffsetsMustLieInTheFile) {
  const auto with_offsets = [](std::string_view offsets) {
    return SafetensorsWriter::FromHeader(
        fmt::format(R"({{"a":{{"dtype":"F32","shape":[4],"data_offsets":{}}}}})", offsets),
        std::string(16, 0));
  };
  ASSERT_TRUE(ParseSafetensors(Bytes(with_offsets("[0,16]")), "m.safetensors"));
  ExpectSafetensorsError(with_offsets("[1099511627776,1099511627792]"),
                         "the tensors up to 'a' need a file of 1099511627878 bytes, it is 102 bytes long");
  ExpectSafetensorsError(with_offsets("[-16,0]"),
                         "data_offsets holds -16, must be a whole number of at least 0");
  ExpectSafetensorsError(with_offsets("[4,0]"), "data_offsets are [4, 0], must ascend");
  ExpectSafetensorsError(with_offsets("[0]"), "data_offsets holds 1 number(s), must hold 2");
  ExpectSafetensorsError(with_offsets("[0,4,8]"), "data_offsets holds more than 2 numbers");
  ExpectSafetensorsError(with_offsets("[18446744073709551600,18446744073709551615]"),
                         "must ascend and end at most");
  ExpectSafetensorsError(with_offsets("[9223372036854775800,9223372036854775807]"),
                         "must ascend and end at most");
  ExpectSafetensorsError(with_offsets("[0,1e2]"), "data_offsets holds 1e2");
}

TEST(LoaderBugs, D03UnknownDTypesAreRefusedByName) {
  for (const char* dtype : {"F99", "I64", "F8_E4M3", "BOOL", "f32", ""}) {
    const std::string file =
        SafetensorsWriter().RawTensor("odd.weight", dtype, {2}, std::string(16, 0)).Build();
    const auto tensors = ParseSafetensors(Bytes(file), "m.safetensors");
    ExpectError(tensors,
                fmt::format("tensor 'odd.weight' dtype is '{}', supported are F32, F16 and BF16", dtype));
    EXPECT_EQ(tensors.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(tensors.error().field, "odd.weight");
  }
}

TEST(LoaderBugs, D04AShardCutShortIsNamedWithBothSizes) {
  const TempFolder folder;
  SafetensorsWriter writer;
  for (int i = 0; i < 6; ++i) writer.TensorF32(fmt::format("t{}", i), {256}, std::vector<float>(256));
  writer.WriteSharded(folder.path(), 3);
  ASSERT_TRUE(Checkpoint::Open(folder.path()));
  const auto shard = folder.path() / "model-00002-of-00003.safetensors";
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 1);
  EXPECT_LT(
      ThreadCpuSeconds([&] {
        ExpectError(
            Checkpoint::Open(folder.path()),
            fmt::format("{}: byte {}: the tensors up to 't3' need a file of {} bytes, it is {} bytes long",
                        shard.string(), size - 2048, size, size - 1));
      }),
      1.0);
}

TEST(LoaderBugs, D04AGgufCutShortIsNamedWithBothSizes) {
  const TempFolder folder;
  GgufWriter writer;
  writer.TensorF32("a", {8}, std::vector<float>(8)).TensorF32("b", {8}, std::vector<float>(8));
  const auto file = folder.Write("m.gguf", writer.Build());
  const auto size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - 1);
  ExpectError(Checkpoint::Open(file), fmt::format("tensor 'b' ends at byte {}, the file is {} bytes long and "
                                                  "should be at least {} (download cut short?)",
                                                  size, size - 1, size));
}

TEST(LoaderBugs, D05TextIsCalledText) {
  for (const char* text :
       {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "<html><body>Not found",
        "<!DOCTYPE html>", "{\"error\":\"Repository not found\"}", "Entry"}) {
    ExpectSafetensorsError(text, "m.safetensors: byte 0: not a safetensors file (looks like text)");
  }
}

TEST(LoaderBugs, D06IndexAndShardsMustAgreeBothWays) {
  const TempFolder folder;
  const auto open_with_map = [&](std::string_view map) {
    folder.Write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{{}}}}})", map));
    return Checkpoint::Open(folder.path());
  };
  SafetensorsWriter().TensorF32("a", {1}, std::vector<float>{1}).Write(folder.path() / "s1.safetensors");
  SafetensorsWriter()
      .TensorF32("b", {1}, std::vector<float>{1})
      .TensorF32("lm_head.weight", {1}, std::vector<float>{1})
      .Write(folder.path() / "s2.safetensors");
  const std::string good = R"("a":"s1.safetensors","b":"s2.safetensors","lm_head.weight":"s2.safetensors")";
  ASSERT_TRUE(open_with_map(good));
  ExpectError(open_with_map(good + R"(,"c":"s1.safetensors")"),
              "index.json: tensor 'c' is not in its shard s1.safetensors");
  ExpectError(open_with_map(R"("a":"s1.safetensors","b":"s2.safetensors")"),
              "tensor 'lm_head.weight' is not in model.safetensors.index.json");
  ExpectError(open_with_map(R"("a":"s1.safetensors","b":"s1.safetensors","lm_head.weight":"s2.safetensors")"),
              "tensor 'b' should lie in s1.safetensors by model.safetensors.index.json");
  ExpectError(open_with_map(good + R"(,"c":"s3.safetensors")"), "shard s3.safetensors is missing in");
  ExpectError(open_with_map(good + R"(,"c":"../x")"), "tensor 'c' lies in '../x', must be a plain file name");
}

TEST(LoaderBugs, D07CountsLengthsAndTypesAreCheckedBeforeUse) {
  const std::string padding(200, 'p');
  ExpectGgufError(GgufWriter().Tensor("t", DType::kF32, {1, 1, 1, 1, 1}, "abcd").Build(),
                  "tensor 't' dimension count is 5, must be 1 to 4");
  ExpectGgufError(GgufHeader(0, 1ull << 63, padding),
                  "byte 16: metadata count is 9223372036854775808, at most 14 fit in the 200 bytes left");
  ExpectGgufError(GgufHeader(0, 1, GgufBytes().Put(1ull << 63).text() + padding),
                  "byte 24: metadata 0 key length is 9223372036854775808, at most 200 possible here");
  ExpectGgufError(GgufWriter().Raw("k", 8, GgufBytes().Put(1ull << 63).text() + padding).Build(),
                  "metadata 'k' string 0 length is 9223372036854775808");
  ExpectGgufError(GgufHeader(1, 0, GgufBytes().Put(1ull << 63).text() + padding),
                  "tensor 0 name length is 9223372036854775808");
  ExpectGgufError(GgufWriter().RawTensor("t", 9999, {4}, std::string(16, 0)).Build(),
                  "tensor 't' type is 9999");
  ExpectGgufError(GgufWriter().Raw("k", 9999, padding).Build(),
                  "metadata 'k' value type is 9999, must be 0 to 12");
  ExpectGgufError(
      GgufWriter().Raw("k", 9, GgufBytes().Put<uint32_t>(9999).Put<uint64_t>(1).text() + padding).Build(),
      "metadata 'k' item type is 9999, must be 0 to 12");
  ExpectGgufError(GgufWriter().TensorF32("", {1}, std::vector<float>{1}).Build(),
                  "tensor 0 name length is 0, must be at least 1");
  ExpectGgufError(GgufWriter().U32("", 1).Build(), "metadata 0 key length is 0, must be at least 1");
  ExpectGgufError(GgufWriter()
                      .TensorF32("t", {1}, std::vector<float>{1})
                      .TensorF32("t", {1}, std::vector<float>{1})
                      .Build(),
                  "tensor 't' appears twice");
}

TEST(LoaderBugs, D08TheTensorCountIsBoundedByTheFile) {
  const std::string padding(330, 'p');
  for (const auto count : {~0ull, ~0ull / 8, ~0ull / 33, ~0ull / 64 - 1, 1ull << 32, 11ull}) {
    ExpectGgufError(GgufHeader(count, 0, padding.substr(8)),
                    fmt::format("byte 8: tensor count is {}, at most 10 fit in the 330 bytes left", count));
  }
}

TEST(LoaderBugs, D09AnArrayIsReadAsWhatItIsDeclared) {
  const std::string file =
      GgufWriter().U8s("tokenizer.ggml.scores", std::vector<uint8_t>(1400, 1)).Build();  // 1.5 KB
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  ExpectError(gguf->FindFloats("tokenizer.ggml.scores"),
              "metadata 'tokenizer.ggml.scores' is array of 1400 u8, must be an array of f32");
  ExpectError(gguf->FindInts("tokenizer.ggml.scores"), "must be an array of i32, u32, i64 or u64");
}

TEST(LoaderBugs, D10HugeArraysEndAtOnce) {
  for (uint32_t item_type = 0; item_type <= 12; ++item_type) {
    const std::string file =
        GgufHeader(0, 1, GgufBytes().PutString("k").Put<uint32_t>(9).Put(item_type).Put(1ull << 63).text());
    EXPECT_LT(file.size(), 60u);
    ExpectGgufError(file, "metadata 'k' claims 9223372036854775808");
  }
}

TEST(LoaderBugs, D11UnknownTensorTypesAreNamedWithTheSupportedList) {
  const std::string file = GgufWriter()
                               .TensorF32("fine", {1}, std::vector<float>{1})
                               .RawTensor("blk.0.ffn_up.weight", 39, {2, 32}, std::string(64, 0))
                               .Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ExpectError(gguf,
              "tensor 'blk.0.ffn_up.weight' type is 39 (MXFP4), supported are F32 (0), F16 (1), Q4_0 (2)");
  ExpectError(gguf, "Q6_K (14), BF16 (30)");
  EXPECT_EQ(gguf.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(gguf.error().field, "blk.0.ffn_up.weight");
}

TEST(LoaderBugs, D12AVocabularyOf256kStringsLoadsWithinASecond) {
  std::vector<std::string> tokens(262144);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = fmt::format("token{}", i);
  const std::string file = GgufWriter()
                               .Strings("tokenizer.ggml.tokens", tokens)
                               .F32s("tokenizer.ggml.scores", std::vector<float>(tokens.size()))
                               .I32s("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1))
                               .Build();
  const double seconds = ThreadCpuSeconds([&] {
    const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
    ASSERT_TRUE(gguf) << gguf.error().message;
    const auto read = gguf->Strings("tokenizer.ggml.tokens");
    ASSERT_TRUE(read);
    EXPECT_EQ(read->back(), "token262143");
    EXPECT_EQ((*gguf->FindFloats("tokenizer.ggml.scores"))->size(), tokens.size());
    EXPECT_EQ((*gguf->FindInts("tokenizer.ggml.token_type"))->size(), tokens.size());
  });
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
  EXPECT_LT(seconds, 1.0);
}

}  // namespace
}  // namespace attest
