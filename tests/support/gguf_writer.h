// Writes GGUF files for tests: any metadata, any tensors, versions 2 and 3, split sets. Knows nothing of the
// reader: type numbers are written out here a second time.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace attest {

// Bytes of one GGUF value or record, little endian.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  GgufBytes& PutString(std::string_view value) {
    Put<uint64_t>(value.size());
    text_.append(value);
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

inline uint32_t GgufTypeIdOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kBF16:
      return 30;
    default:
      return 0xffffffffu;  // GGUF has no such type
  }
}

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint32_t alignment = 32)
      : version_(version), alignment_(alignment) {
    if (alignment != 32) U32("general.alignment", alignment);
  }

  // Metadata, in call order. `type` and `payload` of Raw are the file's own.
  GgufWriter& Raw(std::string_view key, uint32_t type, std::string payload) {
    metadata_.push_back({std::string(key), type, std::move(payload)});
    return *this;
  }
  GgufWriter& U8(std::string_view key, uint8_t value) { return Scalar(key, 0, value); }
  GgufWriter& I8(std::string_view key, int8_t value) { return Scalar(key, 1, value); }
  GgufWriter& U16(std::string_view key, uint16_t value) { return Scalar(key, 2, value); }
  GgufWriter& I16(std::string_view key, int16_t value) { return Scalar(key, 3, value); }
  GgufWriter& U32(std::string_view key, uint32_t value) { return Scalar(key, 4, value); }
  GgufWriter& I32(std::string_view key, int32_t value) { return Scalar(key, 5, value); }
  GgufWriter& F32(std::string_view key, float value) { return Scalar(key, 6, value); }
  GgufWriter& Bool(std::string_view key, bool value) { return Scalar(key, 7, static_cast<uint8_t>(value)); }
  GgufWriter& String(std::string_view key, std::string_view value) {
    return Raw(key, 8, GgufBytes().PutString(value).text());
  }
  GgufWriter& U64(std::string_view key, uint64_t value) { return Scalar(key, 10, value); }
  GgufWriter& I64(std::string_view key, int64_t value) { return Scalar(key, 11, value); }
  GgufWriter& F64(std::string_view key, double value) { return Scalar(key, 12, value); }

  GgufWriter& U8s(std::string_view key, const std::vector<uint8_t>& values) { return Array(key, 0, values); }
  GgufWriter& U32s(std::string_view key, const std::vector<uint32_t>& values) {
    return Array(key, 4, values);
  }
  GgufWriter& I32s(std::string_view key, const std::vector<int32_t>& values) { return Array(key, 5, values); }
  GgufWriter& F32s(std::string_view key, const std::vector<float>& values) { return Array(key, 6, values); }
  GgufWriter& I64s(std::string_view key, const std::vector<int64_t>& values) {
    return Array(key, 11, values);
  }
  GgufWriter& Bools(std::string_view key, const std::vector<bool>& values) {
    return Array(key, 7, std::vector<uint8_t>(values.begin(), values.end()));
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values) {
    GgufBytes bytes;
    bytes.Put<uint32_t>(8).Put<uint64_t>(values.size());
    for (const std::string& value : values) bytes.PutString(value);
    return Raw(key, 9, bytes.text());
  }

  // `shape` is row-major, outermost first, as in TensorInfo; it is reversed into the file. `data` holds the
  // tensor's bytes in the layout of `dtype` (quantised blocks included).
  GgufWriter& Tensor(std::string_view name, DType dtype, const std::vector<int64_t>& shape,
                     std::string data) {
    tensors_.push_back({std::string(name), GgufTypeIdOf(dtype), shape, std::move(data)});
    return *this;
  }
  GgufWriter& TensorF32(std::string_view name, const std::vector<int64_t>& shape,
                        std::span<const float> values) {
    return Tensor(name, DType::kF32, shape,
                  std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  }
  // A tensor of any type number, for files the reader must refuse.
  GgufWriter& RawTensor(std::string_view name, uint32_t type_id, const std::vector<int64_t>& shape,
                        std::string data) {
    tensors_.push_back({std::string(name), type_id, shape, std::move(data)});
    return *this;
  }

  [[nodiscard]] std::string Build() const { return Build(metadata_, 0, tensors_.size()); }

  void Write(const std::filesystem::path& path) const { WriteFile(path, Build()); }

  // Writes `count` files STEM-00001-of-0000N.gguf, the tensors dealt out in order, all metadata in the first.
  // Returns their paths.
  std::vector<std::filesystem::path> WriteSplit(const std::filesystem::path& folder, std::string_view stem,
                                                int count) const {
    std::vector<std::filesystem::path> paths;
    for (int i = 0; i < count; ++i) {
      GgufWriter part(version_, alignment_);
      if (i == 0) part.metadata_ = metadata_;
      part.U16("split.no", static_cast<uint16_t>(i));
      part.U16("split.count", static_cast<uint16_t>(count));
      part.I32("split.tensors.count", static_cast<int32_t>(tensors_.size()));
      paths.push_back(folder / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count));
      const auto n = static_cast<size_t>(count);
      const auto k = static_cast<size_t>(i);
      WriteFile(paths.back(), Build(part.metadata_, tensors_.size() * k / n, tensors_.size() * (k + 1) / n));
    }
    return paths;
  }

  static void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  struct Entry {
    std::string key;
    uint32_t type;
    std::string payload;
  };
  struct TensorEntry {
    std::string name;
    uint32_t type_id;
    std::vector<int64_t> shape;
    std::string data;
  };

  template <class T>
  GgufWriter& Scalar(std::string_view key, uint32_t type, T value) {
    return Raw(key, type, GgufBytes().Put(value).text());
  }
  template <class T>
  GgufWriter& Array(std::string_view key, uint32_t item_type, const std::vector<T>& values) {
    GgufBytes bytes;
    bytes.Put<uint32_t>(item_type).template Put<uint64_t>(values.size());
    for (const T value : values) bytes.Put(value);
    return Raw(key, 9, bytes.text());
  }

  [[nodiscard]] std::string Build(const std::vector<Entry>& metadata, size_t begin, size_t end) const {
    GgufBytes header;
    header.Put<uint32_t>(0x46554747).Put(version_).Put<uint64_t>(end - begin).Put<uint64_t>(metadata.size());
    std::string out = header.text();
    for (const Entry& entry : metadata) {
      out += GgufBytes().PutString(entry.key).Put(entry.type).text() + entry.payload;
    }
    uint64_t offset = 0;
    for (size_t i = begin; i < end; ++i) {
      const TensorEntry& tensor = tensors_[i];
      GgufBytes record;
      record.PutString(tensor.name).Put<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
      for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) record.Put<int64_t>(*dim);
      record.Put(tensor.type_id).Put(offset);
      out += record.text();
      offset = Padded(offset + tensor.data.size());
    }
    out.resize(Padded(out.size()));
    for (size_t i = begin; i < end; ++i) {
      out += tensors_[i].data;
      out.resize(Padded(out.size()));
    }
    return out;
  }

  [[nodiscard]] uint64_t Padded(uint64_t size) const {
    return (size + alignment_ - 1) / alignment_ * alignment_;
  }

  uint32_t version_;
  uint32_t alignment_;
  std::vector<Entry> metadata_;
  std::vector<TensorEntry> tensors_;
};

}  // namespace attest
