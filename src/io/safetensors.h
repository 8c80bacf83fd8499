// The safetensors format: one file's header as tensor descriptions, and the index of a sharded folder. Both
// parse from memory and check everything; no file access here.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/checkpoint.h"

namespace attest {

// The tensors of one file, in header order, pointing into `bytes`. `file_name` stands in messages and in
// TensorInfo::file. After success the tensors tile the data section exactly: inside it, no overlap, no hole.
// kUnsupported names a tensor of another element type than F32, F16 or BF16.
[[nodiscard]] Expected<std::vector<TensorInfo>> ParseSafetensors(std::span<const std::byte> bytes,
                                                                 const std::string& file_name);

// A file as it is, whatever its element types: for files of ours that are no checkpoints. Written by
// io/safetensors_writer.h.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // as in the file: "F32", "I32", "F8_E4M3", ...
  std::vector<int64_t> shape;       // outermost first; dense, row-major
  std::span<const std::byte> data;  // not aligned
};
struct SafetensorsFile {
  std::vector<SafetensorsEntry> entries;        // in header order, pointing into the bytes parsed
  std::map<std::string, std::string> metadata;  // __metadata__
};
// With the guarantees of ParseSafetensors. kUnsupported names a tensor whose element type has no whole bytes
// or is unknown.
[[nodiscard]] Expected<SafetensorsFile> ParseSafetensorsFile(std::span<const std::byte> bytes,
                                                             const std::string& file_name);

// Bytes of one element of a type as the format names it; 0 for names it does not have or that have no whole
// bytes.
[[nodiscard]] int SafetensorsElementBytes(std::string_view dtype);

struct ShardedTensor {
  std::string name;
  std::string shard;  // a plain file name
};

// weight_map of model.safetensors.index.json, in file order. Names are unique; a shard name that could leave
// the folder is refused.
[[nodiscard]] Expected<std::vector<ShardedTensor>> ParseSafetensorsIndex(std::string_view text,
                                                                         std::string_view file_name);

}  // namespace attest
