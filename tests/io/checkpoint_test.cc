#include "io/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "io/gguf.h"
#include "io/inspect.h"
#include "io/mapped_file.h"
#include "tests/io/io_test_support.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

float FirstFloat(const TensorInfo& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.data, sizeof(value));
  return value;
}

GgufWriter FiveTensors() {
  GgufWriter writer;
  writer.String("general.architecture", "llama");
  for (int i = 0; i < 5; ++i) {
    writer.TensorF32(fmt::format("t{}", i), {8}, std::vector<float>(8, static_cast<float>(i)));
  }
  return writer;
}

SafetensorsWriter SixTensors() {
  SafetensorsWriter writer;
  for (int i = 0; i < 6; ++i) {
    writer.TensorF32(fmt::format("t{}", i), {2, 2}, std::vector<float>(4, static_cast<float>(i)));
  }
  return writer;
}

TEST(Checkpoint, OpensAGgufFile) {
  const TempFolder folder;
  const auto file = folder.Write("m.gguf", FiveTensors().Build());
  const auto checkpoint = Checkpoint::Open(file);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->format(), CheckpointFormat::kGguf);
  EXPECT_EQ((*checkpoint)->path(), file);
  EXPECT_EQ((*checkpoint)->tensors().size(), 5u);
  ASSERT_NE((*checkpoint)->FindTensor("t3"), nullptr);
  EXPECT_EQ(FirstFloat(*(*checkpoint)->FindTensor("t3")), 3.0f);
  EXPECT_EQ((*checkpoint)->FindTensor("t9"), nullptr);
  EXPECT_EQ((*checkpoint)->file_bytes(), static_cast<int64_t>(std::filesystem::file_size(file)));
  EXPECT_EQ((*checkpoint)->gguf()->String("general.architecture"), "llama");
  EXPECT_EQ((*checkpoint)->ReadSideFile("config.json").error().code, ErrorCode::kNotFound);
}

TEST(Checkpoint, TheFirstOfASplitSetOpensAll) {
  const TempFolder folder;
  const auto parts = FiveTensors().WriteSplit(folder.path(), "m", 3);
  const auto checkpoint = Checkpoint::Open(parts[0]);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  ASSERT_EQ((*checkpoint)->tensors().size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(FirstFloat((*checkpoint)->tensors()[static_cast<size_t>(i)]), static_cast<float>(i));
  }
  EXPECT_EQ((*checkpoint)->tensors()[4].file, parts[2].string());
  EXPECT_EQ((*checkpoint)->gguf()->String("general.architecture"), "llama");
}

TEST(Checkpoint, ALaterPartOfASplitSetNamesTheFirst) {
  const TempFolder folder;
  const auto parts = FiveTensors().WriteSplit(folder.path(), "m", 3);
  ExpectError(Checkpoint::Open(parts[1]), "open the first, m-00001-of-00003.gguf");
}

TEST(Checkpoint, RefusesIncompleteSplitSets) {
  const TempFolder folder;
  const auto parts = FiveTensors().WriteSplit(folder.path(), "m", 3);
  std::filesystem::remove(parts[2]);
  ExpectError(Checkpoint::Open(parts[0]), "m-00003-of-00003.gguf: open: No such file");
}

TEST(Checkpoint, RefusesSplitSetsThatDisagree) {
  const auto part = [](uint16_t no, uint16_t count, int32_t total, const char* tensor) {
    GgufWriter writer;
    writer.U16("split.no", no).U16("split.count", count).I32("split.tensors.count", total);
    return writer.TensorF32(tensor, {1}, std::vector<float>{1}).Build();
  };
  const TempFolder folder;
  const auto first = folder.Write("m-00001-of-00002.gguf", part(0, 2, 2, "a"));
  folder.Write("m-00002-of-00002.gguf", part(1, 2, 2, "b"));
  EXPECT_TRUE(Checkpoint::Open(first));
  folder.Write("m-00002-of-00002.gguf", part(0, 2, 2, "b"));
  ExpectError(Checkpoint::Open(first), "split.no is 0, must be 1 in this part");
  folder.Write("m-00002-of-00002.gguf", part(1, 3, 2, "b"));
  ExpectError(Checkpoint::Open(first), "split.count is 3, must be 2 in this part");
  folder.Write("m-00002-of-00002.gguf", part(1, 2, 7, "b"));
  ExpectError(Checkpoint::Open(first), "split.tensors.count is 7, must be 2 in this part");
  folder.Write("m-00002-of-00002.gguf", part(1, 2, 2, "a"));
  ExpectError(Checkpoint::Open(first), "tensor 'a' is also in");
  folder.Write("m-00001-of-00002.gguf", part(0, 2, 9, "a"));
  folder.Write("m-00002-of-00002.gguf", part(1, 2, 9, "b"));
  ExpectError(Checkpoint::Open(first), "split.tensors.count is 9, the 2 parts hold 2 tensors");
  ExpectError(Checkpoint::Open(folder.Write("renamed.gguf", part(0, 2, 2, "a"))),
              "split.count is 2, so the file must be named like NAME-00001-of-00002.gguf");
  ExpectError(Checkpoint::Open(folder.Write("m-00001-of-00003.gguf", part(0, 0, 2, "a"))),
              "split.count is 0");
}

TEST(Checkpoint, OpensASafetensorsFolder) {
  const TempFolder folder;
  SixTensors().Write(folder.path() / "model.safetensors");
  folder.Write("config.json", "{\"x\": 1}");
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->format(), CheckpointFormat::kSafetensors);
  EXPECT_EQ((*checkpoint)->gguf(), nullptr);
  EXPECT_EQ(FirstFloat(*(*checkpoint)->FindTensor("t5")), 5.0f);
  EXPECT_EQ((*checkpoint)->ReadSideFile("config.json"), "{\"x\": 1}");
  EXPECT_EQ((*checkpoint)->ReadSideFile("tokenizer.json").error().code, ErrorCode::kNotFound);
  for (const char* name : {"../config.json", "/etc/hostname", "..", ""}) {
    EXPECT_EQ((*checkpoint)->ReadSideFile(name).error().code, ErrorCode::kInvalidArgument) << name;
  }
}

TEST(Checkpoint, OpensTheOnlySafetensorsFileWhateverItsName) {
  const TempFolder folder;
  SixTensors().Write(folder.path() / "weights.safetensors");
  EXPECT_TRUE(Checkpoint::Open(folder.path()));
  SixTensors().Write(folder.path() / "adapter.safetensors");
  ExpectError(
      Checkpoint::Open(folder.path()),
      "2 .safetensors files (adapter.safetensors, weights.safetensors) but no model.safetensors.index.json");
}

TEST(Checkpoint, OpensAShardedFolder) {
  const TempFolder folder;
  SixTensors().WriteSharded(folder.path(), 3);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  ASSERT_EQ((*checkpoint)->tensors().size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(FirstFloat(*(*checkpoint)->FindTensor(fmt::format("t{}", i))), static_cast<float>(i));
  }
}

TEST(Checkpoint, SaysWhatIsMissing) {
  const TempFolder folder;
  ExpectError(Checkpoint::Open(folder.path()), "neither model.safetensors nor model.safetensors.index.json");
  folder.Write("a.gguf", FiveTensors().Build());
  ExpectError(Checkpoint::Open(folder.path()), "no .safetensors file; open one of its GGUF files: a.gguf");
  const auto absent = Checkpoint::Open(folder.path() / "absent.gguf");
  ExpectError(absent, "absent.gguf: open: No such file or directory");
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  SixTensors().Write(folder.path() / "model.safetensors");
  ExpectError(Checkpoint::Open(folder.path() / "model.safetensors"), "give the folder it lies in");
}

TEST(Checkpoint, DroppedPagesReadBackUnchanged) {
  const TempFolder folder;
  std::vector<float> values(64 * 1024);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto file = folder.Write("m.gguf", GgufWriter().TensorF32("big", {64, 1024}, values).Build());
  const auto checkpoint = Checkpoint::Open(file);
  ASSERT_TRUE(checkpoint);
  const TensorInfo& tensor = *(*checkpoint)->FindTensor("big");
  ASSERT_EQ(std::memcmp(tensor.data, values.data(), values.size() * 4), 0);
  (*checkpoint)->DropPages(tensor);
  EXPECT_EQ(std::memcmp(tensor.data, values.data(), values.size() * 4), 0);
}

TEST(MappedFile, OpensEmptyFilesAndRefusesWhatIsNoFile) {
  const TempFolder folder;
  const auto empty = MappedFile::Open(folder.Write("empty", ""));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
  ExpectError(MappedFile::Open(folder.path()), "not a regular file");
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectError(MappedFile::Open(pipe), "not a regular file");  // and does not wait for a writer
}

TEST(Inspect, CountsTensorsElementsAndBytesByType) {
  const TempFolder folder;
  GgufWriter writer;
  writer.TensorF32("norm", {32}, std::vector<float>(32)).TensorF32("norm2", {32}, std::vector<float>(32));
  writer.Tensor("q", DType::kQ8_0, {4, 64}, std::string(4 * 2 * 34, 0));
  const auto file = folder.Write("m.gguf", writer.Build());
  const auto checkpoint = Checkpoint::Open(file);
  ASSERT_TRUE(checkpoint);
  const CheckpointSummary summary = Summarize(**checkpoint);
  EXPECT_EQ(summary.tensors, 3);
  EXPECT_EQ(summary.elements, 64 + 256);
  EXPECT_EQ(summary.tensor_bytes, 256 + 272);
  EXPECT_EQ(summary.file_bytes, static_cast<int64_t>(std::filesystem::file_size(file)));
  ASSERT_EQ(summary.dtypes.size(), 2u);
  EXPECT_EQ(summary.dtypes[0].dtype, DType::kF32);
  EXPECT_EQ(summary.dtypes[0].tensors, 2);
  EXPECT_EQ(summary.dtypes[1].dtype, DType::kQ8_0);
  EXPECT_EQ(summary.dtypes[1].elements, 256);
  EXPECT_EQ(summary.dtypes[1].bytes, 272);
}

}  // namespace
}  // namespace attest
