#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/io/io_test_support.h"
#include "tests/support/safetensors_writer.h"

namespace attest {
namespace {

// Parses a file made of this header and `data_bytes` of data.
Expected<std::vector<TensorInfo>> ParseHeader(const std::string& header, size_t data_bytes = 0) {
  return ParseSafetensors(Bytes(SafetensorsWriter::FromHeader(header, std::string(data_bytes, 0))),
                          "m.safetensors");
}

TEST(Safetensors, DescribesTensorsAndPointsAtTheirBytes) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::string file = SafetensorsWriter()
                               .TensorF32("a.weight", {2, 3}, values)
                               .TensorBf16("b", {2}, std::vector<float>{1.0f, -2.0f})
                               .Tensor("scalar", DType::kF16, {}, "xy")
                               .Tensor("empty", DType::kF32, {0, 7}, "")
                               .Build();
  const auto tensors = ParseSafetensors(Bytes(file), "m.safetensors");
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 4u);
  const TensorInfo& a = (*tensors)[0];
  EXPECT_EQ(a.name, "a.weight");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.size_bytes, 24);
  EXPECT_EQ(a.file, "m.safetensors");
  EXPECT_EQ(a.data, Bytes(file).data() + a.file_offset);
  EXPECT_EQ(std::memcmp(a.data, values.data(), 24), 0);
  EXPECT_EQ((*tensors)[1].dtype, DType::kBF16);
  EXPECT_EQ((*tensors)[1].file_offset, a.file_offset + 24);
  EXPECT_TRUE((*tensors)[2].shape.empty());
  EXPECT_EQ((*tensors)[2].size_bytes, 2);
  EXPECT_EQ((*tensors)[3].size_bytes, 0);
}

TEST(Safetensors, FieldOrderWithinATensorDoesNotMatter) {
  const auto tensors = ParseHeader(R"({"a":{"data_offsets":[0,4],"shape":[2],"dtype":"F16"}})", 4);
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ((*tensors)[0].size_bytes, 4);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = SafetensorsWriter().TensorF32("a", {2}, std::vector<float>{1, 2}).Build();
  for (size_t size = 0; size < file.size(); ++size) {
    const auto cut = std::make_unique<std::byte[]>(size);  // exact size: a sanitizer sees one byte too many
    std::memcpy(cut.get(), file.data(), size);
    ExpectError(ParseSafetensors({cut.get(), size}, "m.safetensors"), "m.safetensors: byte ");
  }
}

TEST(Safetensors, RefusesBytesNobodyDescribes) {
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5),
              "byte 62: the tensors up to 'a' need a file of 66 bytes, it is 67 bytes long");
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                          12),
              "tensor 'b' data begins at 4, inside the tensor before it, which ends at 8");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                          12),
              "tensor 'b' data begins at 8, leaving a hole after 4");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              "leaving a hole after 0");
}

TEST(Safetensors, RefusesASizeThatIsNotShapeTimesDType) {
  ExpectError(ParseHeader(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}})", 8),
              "data_offsets are [0, 8], 8 bytes, but dtype and shape need 4");
}

TEST(Safetensors, RefusesShapesThatOverflow) {
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              "tensor 'a' shape has dimension 4294967296: more than 9223372036854775807 bytes");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4),
              "shape has 18446744073709551615 as dimension 0");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4),
              "at most 8 dimensions");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              "shape holds -1, must be");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4),
              "shape holds 1.5, must be");
}

TEST(Safetensors, RefusesDuplicateNames) {
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                          R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                          8),
              "tensor 'a' appears twice");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4),
              "tensor 'a' has dtype twice");
}

TEST(Safetensors, RefusesMalformedDescriptions) {
  ExpectError(ParseHeader(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "tensor 'a' has no dtype");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "tensor 'a' has no shape");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "tensor 'a' has no data_offsets");
  ExpectError(ParseHeader(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4),
              "dtype is 3, must be a string");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4),
              "shape is 1, must be an array");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4),
              "holds an array where");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4),
              "holds '1' where");
  ExpectError(ParseHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4),
              "has a field 'x'");
  ExpectError(ParseHeader(R"({"a":null})"), "tensor 'a' is null, must be an object");
  ExpectError(ParseHeader(R"({"__metadata__":{"a":1}})"),
              "__metadata__ holds 1, must be an object of strings");
  ExpectError(ParseHeader(R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              "tensor name '' is empty");
  ExpectError(ParseHeader(R"({"a\n":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              "holds a control byte");
  ExpectError(ParseHeader("{\"a\":"), "not valid JSON");
  ExpectError(ParseHeader("{} {}"), "not valid JSON");
  ExpectError(ParseHeader("{\"\xff\":{}}"), "not valid JSON");
  ExpectError(ParseHeader(" {}"), "byte 8: header begins with ' ', must begin with '{'");
  ExpectError(ParseHeader("[]"), "header begins with '[', must begin with '{'");
}

TEST(Safetensors, ErrorsPointAtTheByte) {
  //                  012345678901234567890123456
  ExpectError(ParseHeader(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8),
              "m.safetensors: byte 27: tensor 'a' dtype is 'F64', supported are F32, F16 and BF16");
}

TEST(SafetensorsIndex, ListsTensorsAndSkipsTheRest) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":8,"x":[{"y":[]},2]},"other":null,"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"},"z":[1]})",
      "index.json");
  ASSERT_TRUE(index) << index.error().message;
  ASSERT_EQ(index->size(), 2u);
  EXPECT_EQ((*index)[0].name, "a");
  EXPECT_EQ((*index)[1].shard, "m2.safetensors");
}

TEST(SafetensorsIndex, RefusesMalformedIndexes) {
  const auto parse = [](std::string_view text) { return ParseSafetensorsIndex(text, "index.json"); };
  ExpectError(parse(""), "not valid JSON");
  ExpectError(parse("[]"), "index is an array, must be an object");
  ExpectError(parse("{}"), "index has no weight_map");
  ExpectError(parse(R"({"weight_map":{}})"), "weight_map is empty");
  ExpectError(parse(R"({"weight_map":[]})"), "weight_map is an array, must be an object");
  ExpectError(parse(R"({"weight_map":{"a":1}})"), "weight_map 'a' is 1, must be a file name");
  ExpectError(parse(R"({"weight_map":{"a":{}}})"), "weight_map 'a' is an object, must be a file name");
  ExpectError(parse(R"({"weight_map":{"a":"x","a":"y"}})"), "tensor 'a' appears twice");
  ExpectError(parse(R"({"weight_map":{"a":"x"},"weight_map":{"b":"x"}})"), "weight_map appears twice");
  for (const char* path : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "x\\u0000y"}) {
    ExpectError(parse(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", path)), "must be a plain file name");
  }
}

}  // namespace
}  // namespace attest
