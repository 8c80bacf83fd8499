#include "io/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/io/io_test_support.h"
#include "tests/support/gguf_writer.h"

namespace attest {
namespace {

GgufWriter SmallModel(uint32_t version = 3) {
  GgufWriter writer(version);
  writer.String("general.architecture", "llama").U32("llama.block_count", 2).F32("eps", 1e-5f);
  writer.TensorF32("token_embd.weight", {4, 3}, std::vector<float>(12, 0.5f));
  writer.Tensor("blk.0.attn_q.weight", DType::kQ4_0, {2, 64}, std::string(2 * 2 * 18, 'x'));
  return writer;
}

TEST(Gguf, ReadsEveryMetadataValueType) {
  GgufWriter writer;
  writer.U8("u8", 200).I8("i8", -5).U16("u16", 60000).I16("i16", -300).U32("u32", 4000000000u);
  writer.I32("i32", -70000).F32("f32", 0.25f).Bool("bool", true).String("string", "text");
  writer.U64("u64", 1ull << 40).I64("i64", -(1ll << 40)).F64("f64", 0.1);
  const std::string file = writer.Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->Int("u8"), 200);
  EXPECT_EQ(gguf->Int("i8"), -5);
  EXPECT_EQ(gguf->Int("u16"), 60000);
  EXPECT_EQ(gguf->Int("i16"), -300);
  EXPECT_EQ(gguf->Int("u32"), 4000000000);
  EXPECT_EQ(gguf->Int("i32"), -70000);
  EXPECT_EQ(gguf->Int("u64"), 1ll << 40);
  EXPECT_EQ(gguf->Int("i64"), -(1ll << 40));
  EXPECT_EQ(gguf->Float("f32"), 0.25);
  EXPECT_EQ(gguf->Float("f64"), 0.1);
  EXPECT_EQ(**gguf->FindBool("bool"), true);
  EXPECT_EQ(gguf->String("string"), "text");
  EXPECT_EQ(gguf->metadata().size(), 12u);
  EXPECT_EQ(gguf->metadata()[3].key, "i16");
}

TEST(Gguf, ReadsArrays) {
  GgufWriter writer;
  writer.I32s("i32s", {1, -2, 3}).U32s("u32s", {7, 8}).I64s("i64s", {-9}).F32s("f32s", {0.5f, -1.5f});
  writer.Strings("strings", {"a", "", "bcd"}).I32s("none", {});
  const std::string file = writer.Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(**gguf->FindInts("i32s"), (std::vector<int32_t>{1, -2, 3}));
  EXPECT_EQ(**gguf->FindInts("u32s"), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(**gguf->FindInts("i64s"), (std::vector<int32_t>{-9}));
  EXPECT_EQ(**gguf->FindFloats("f32s"), (std::vector<float>{0.5f, -1.5f}));
  EXPECT_EQ(gguf->Strings("strings"), (std::vector<std::string_view>{"a", "", "bcd"}));
  EXPECT_TRUE((*gguf->FindInts("none"))->empty());
}

TEST(Gguf, ReadsPastNestedArrays) {
  GgufBytes nested;  // [[1, 2], ["x"]]
  nested.Put<uint32_t>(9).Put<uint64_t>(2);
  nested.Put<uint32_t>(0).Put<uint64_t>(2).Put<uint8_t>(1).Put<uint8_t>(2);
  nested.Put<uint32_t>(8).Put<uint64_t>(1).PutString("x");
  const std::string file = GgufWriter().Raw("nested", 9, nested.text()).U32("after", 5).Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->Find("nested")->item_type, GgufType::kArray);
  EXPECT_EQ(gguf->Find("nested")->count, 2u);
  EXPECT_EQ(gguf->Int("after"), 5);
}

TEST(Gguf, RefusesDeeplyNestedArrays) {
  GgufBytes nested;
  for (int i = 0; i < 100000; ++i) nested.Put<uint32_t>(9).Put<uint64_t>(1);
  nested.Put<uint32_t>(0).Put<uint64_t>(0);
  const std::string file = GgufWriter().Raw("nested", 9, nested.text()).Build();
  ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"), "nests arrays deeper than 8");
}

TEST(Gguf, AbsentKeysAreNulloptAndRequiredOnesErrors) {
  const std::string file = SmallModel().Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf);
  EXPECT_EQ(gguf->Find("absent"), nullptr);
  EXPECT_EQ(*gguf->FindInt("absent"), std::nullopt);
  EXPECT_EQ(*gguf->FindStrings("absent"), std::nullopt);
  ExpectError(gguf->Int("absent"), "m.gguf: no metadata key 'absent'");
}

TEST(Gguf, LookupsRefuseOtherTypes) {
  GgufWriter writer;
  writer.U32("number", 3)
      .F32("real", 2.0f)
      .U64("huge", 1ull << 63)
      .I64s("longs", {1ll << 40})
      .String("s", "x");
  const std::string file = writer.Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf);
  ExpectError(gguf->FindFloat("number"), "'number' is u32, must be f32 or f64");
  ExpectError(gguf->FindInt("real"), "'real' is f32, must be an integer");
  ExpectError(gguf->FindBool("number"), "must be bool");
  ExpectError(gguf->FindString("number"), "must be string");
  ExpectError(gguf->FindInts("number"), "must be an array of i32");
  ExpectError(gguf->FindFloats("longs"), "'longs' is array of 1 i64, must be an array of f32");
  ExpectError(gguf->FindStrings("s"), "must be an array of string");
  ExpectError(gguf->FindInt("huge"), "holds 9223372036854775808, must be at most 9223372036854775807");
  ExpectError(gguf->FindInts("longs"), "item 0 is 1099511627776, must fit in 32 bits");
}

TEST(Gguf, DescribesTensorsRowMajorAndPointsAtTheirBytes) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string file = SmallModel(version).Build();
    const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
    ASSERT_TRUE(gguf) << gguf.error().message;
    EXPECT_EQ(gguf->version(), version);
    ASSERT_EQ(gguf->tensors().size(), 2u);
    const TensorInfo& embedding = gguf->tensors()[0];
    EXPECT_EQ(embedding.name, "token_embd.weight");
    EXPECT_EQ(embedding.shape, (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(embedding.size_bytes, 48);
    EXPECT_EQ(embedding.file, "m.gguf");
    float first = 0;
    std::memcpy(&first, embedding.data, sizeof(first));
    EXPECT_EQ(first, 0.5f);
    const TensorInfo& query = gguf->tensors()[1];
    EXPECT_EQ(query.dtype, DType::kQ4_0);
    EXPECT_EQ(query.shape, (std::vector<int64_t>{2, 64}));
    EXPECT_EQ(query.size_bytes, 72);
    EXPECT_EQ(query.data, Bytes(file).data() + query.file_offset);
    EXPECT_EQ(query.file_offset, embedding.file_offset + 64);  // 48 padded to 32
    EXPECT_EQ(static_cast<char>(query.data[71]), 'x');
  }
}

TEST(Gguf, ReadsEverySupportedTensorType) {
  GgufWriter writer;
  const std::vector<DType> dtypes = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                     DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                     DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  for (const DType dtype : dtypes) {
    writer.Tensor(DTypeName(dtype), dtype, {3, 512},
                  std::string(static_cast<size_t>(3 * RowBytes(dtype, 512)), 0));
  }
  const std::string file = writer.Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  ASSERT_EQ(gguf->tensors().size(), dtypes.size());
  for (size_t i = 0; i < dtypes.size(); ++i) {
    EXPECT_EQ(gguf->tensors()[i].dtype, dtypes[i]);
    EXPECT_EQ(gguf->tensors()[i].size_bytes, 3 * RowBytes(dtypes[i], 512));
  }
}

TEST(Gguf, HonoursItsAlignment) {
  GgufWriter writer(3, 256);
  writer.TensorF32("a", {1}, std::vector<float>{1}).TensorF32("b", {1}, std::vector<float>{2});
  const std::string file = writer.Build();
  const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->alignment(), 256u);
  EXPECT_EQ(gguf->data_offset() % 256, 0u);
  EXPECT_EQ(gguf->tensors()[1].file_offset - gguf->tensors()[0].file_offset, 256);
}

TEST(Gguf, RefusesBadAlignments) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 1u << 31}) {
    const std::string file = GgufWriter().U32("general.alignment", alignment).Build();
    ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"),
                "general.alignment is " + std::to_string(alignment) + ", must be a power of two from 8");
  }
  ExpectError(GgufFile::Parse(Bytes(GgufWriter().F32("general.alignment", 32).Build()), "m.gguf"),
              "must be an integer");
}

TEST(Gguf, RefusesOtherVersionsAndByteOrders) {
  ExpectError(GgufFile::Parse(Bytes(GgufWriter(1).Build()), "m.gguf"),
              "byte 4: GGUF version is 1, supported");
  ExpectError(GgufFile::Parse(Bytes(GgufWriter(4).Build()), "m.gguf"),
              "byte 4: GGUF version is 4, supported");
  ExpectError(GgufFile::Parse(Bytes(GgufWriter(0x03000000).Build()), "m.gguf"), "this file is big-endian");
}

TEST(Gguf, RefusesFilesThatAreNoGguf) {
  ExpectError(GgufFile::Parse(Bytes(std::string("version https://git-lfs")), "m.gguf"),
              "m.gguf: byte 0: not a GGUF file (looks like text)");
  ExpectError(GgufFile::Parse(Bytes(std::string(100, '\0')), "m.gguf"),
              "not a GGUF file: magic is 0x00000000");
  ExpectError(GgufFile::Parse(Bytes(std::string("GGU")), "m.gguf"), "not a GGUF file: 3 bytes long");
  ExpectError(GgufFile::Parse(Bytes(std::string()), "m.gguf"), "not a GGUF file: 0 bytes long");
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file = SmallModel().Bools("b", {true}).Strings("s", {"one", "two"}).Build();
  const auto whole = GgufFile::Parse(Bytes(file), "m.gguf");
  ASSERT_TRUE(whole);
  const TensorInfo& last = whole->tensors().back();
  const auto needed = static_cast<size_t>(last.file_offset + last.size_bytes);
  for (size_t size = 0; size < needed; ++size) {
    const auto cut = std::make_unique<std::byte[]>(size);  // exact size: a sanitizer sees one byte too many
    std::memcpy(cut.get(), file.data(), size);
    ExpectError(GgufFile::Parse({cut.get(), size}, "m.gguf"), "m.gguf: byte ");
  }
}

TEST(Gguf, RefusesOverlappingTensors) {
  std::string file = GgufWriter()
                         .TensorF32("a", {16}, std::vector<float>(16))
                         .TensorF32("b", {16}, std::vector<float>(16))
                         .Build();
  const size_t offset_of_b = file.find("b", file.find("a") + 1) + 1 + 4 + 8 + 4;
  file[offset_of_b] = 32;  // was 64
  ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"),
              "tensor 'b' begins at byte 128, inside tensor 'a' which ends at 160");
}

TEST(Gguf, RefusesMisalignedOffsets) {
  std::string file = GgufWriter().TensorF32("a", {16}, std::vector<float>(32)).Build();
  file[file.find("a") + 1 + 4 + 8 + 4] = 4;
  ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"), "offset is 4, must be a multiple of 32");
}

TEST(Gguf, RefusesRowsThatAreNoWholeBlocks) {
  const std::string file = GgufWriter().Tensor("q", DType::kQ4_K, {2, 576}, std::string(1000, 0)).Build();
  ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"),
              "row length is 576, must be a multiple of 256 for type q4_k");
}

TEST(Gguf, RefusesDimensionProductsThatOverflow) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1ll << 32, 1ll << 32}, {1ll << 62, 2}, {0, 4}, {-1}, {1ll << 62}}) {
    const std::string file = GgufWriter().Tensor("t", DType::kF32, shape, "").Build();
    const auto gguf = GgufFile::Parse(Bytes(file), "m.gguf");
    ASSERT_FALSE(gguf);
    EXPECT_EQ(gguf.error().field, "t");
  }
}

TEST(Gguf, RefusesDuplicateKeysAndBadBools) {
  ExpectError(GgufFile::Parse(Bytes(GgufWriter().U32("k", 1).U32("k", 2).Build()), "m.gguf"),
              "metadata key 'k' appears twice");
  ExpectError(GgufFile::Parse(Bytes(GgufWriter().Raw("flag", 7, "\x02").Build()), "m.gguf"),
              "metadata 'flag' bool 0 is 2, must be 0 or 1");
}

TEST(Gguf, MessagesStayOnOneLineWhateverTheFileSays) {
  const std::string file = GgufWriter().Raw("evil\nkey\x1b[31m", 4, "abcd").Build();
  ExpectError(GgufFile::Parse(Bytes(file), "m.gguf"), "evil\\x0akey\\x1b[31m' holds a control byte");
}

}  // namespace
}  // namespace attest
