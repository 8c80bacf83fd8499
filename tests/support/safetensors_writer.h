// Writes safetensors files and sharded folders for tests.
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

class SafetensorsWriter {
 public:
  // `shape` outermost first; `data` the tensor's bytes. Names must not need JSON escapes.
  SafetensorsWriter& Tensor(std::string_view name, DType dtype, const std::vector<int64_t>& shape,
                            std::string data) {
    return RawTensor(name,
                     dtype == DType::kF32   ? "F32"
                     : dtype == DType::kF16 ? "F16"
                                            : "BF16",
                     shape, std::move(data));
  }
  SafetensorsWriter& TensorF32(std::string_view name, const std::vector<int64_t>& shape,
                               std::span<const float> values) {
    return Tensor(name, DType::kF32, shape,
                  std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  }
  // Rounds to bf16.
  SafetensorsWriter& TensorBf16(std::string_view name, const std::vector<int64_t>& shape,
                                std::span<const float> values) {
    std::string data;
    for (const float value : values) {
      const bf16 rounded = ToBf16(value);
      data.append(reinterpret_cast<const char*>(&rounded), sizeof(rounded));
    }
    return Tensor(name, DType::kBF16, shape, std::move(data));
  }
  // Any dtype name, for files the reader must refuse.
  SafetensorsWriter& RawTensor(std::string_view name, std::string_view dtype,
                               const std::vector<int64_t>& shape, std::string data) {
    tensors_.push_back({std::string(name), std::string(dtype), shape, std::move(data)});
    return *this;
  }

  [[nodiscard]] std::string Build() const { return Build(0, tensors_.size()); }

  // A whole file from a header as text, for files the reader must refuse.
  [[nodiscard]] static std::string FromHeader(std::string_view header, std::string_view data = {}) {
    const uint64_t length = header.size();
    std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
    out.append(header).append(data);
    return out;
  }

  void Write(const std::filesystem::path& path) const { WriteFile(path, Build()); }

  // Writes model-00001-of-0000N.safetensors and the index into `folder`, the tensors dealt out in order.
  void WriteSharded(const std::filesystem::path& folder, int count) const {
    std::string map;
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
      const auto n = static_cast<size_t>(count);
      const auto k = static_cast<size_t>(i);
      const size_t begin = tensors_.size() * k / n;
      const size_t end = tensors_.size() * (k + 1) / n;
      WriteFile(folder / name, Build(begin, end));
      for (size_t t = begin; t < end; ++t) {
        map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", tensors_[t].name, name);
      }
    }
    WriteFile(folder / "model.safetensors.index.json",
              fmt::format(R"({{"metadata":{{"total_size":0}},"weight_map":{{{}}}}})", map));
  }

  static void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  struct Entry {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::string data;
  };

  [[nodiscard]] std::string Build(size_t begin, size_t end) const {
    std::string header = R"({"__metadata__":{"format":"pt"})";
    std::string data;
    for (size_t i = begin; i < end; ++i) {
      const Entry& tensor = tensors_[i];
      header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                            tensor.dtype, fmt::join(tensor.shape, ","), data.size(),
                            data.size() + tensor.data.size());
      data += tensor.data;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return FromHeader(header, data);
  }

  std::vector<Entry> tensors_;
};

}  // namespace attest
