#include "conform/case_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <system_error>

namespace attest::conform {

namespace {

// Where (seq, key, kv_head) lies, or nullptr when its table entry names no block.
const std::byte* KeyAt(const AttentionSpec& spec, const AttentionLengths& lengths,
                       const AttentionParams& tensors, bool value, int seq, int key, int head) {
  const int64_t bytes = BlockBytes(spec.kv_dtype);
  if (tensors.contiguous != nullptr) {
    const ContiguousKv& kv = *tensors.contiguous;
    const int64_t token = kv.k_begin[static_cast<size_t>(seq)] + int64_t{key};
    const int64_t at = value ? token * kv.v_token_stride + head * kv.v_head_stride
                             : token * kv.k_token_stride + head * kv.k_head_stride;
    return static_cast<const std::byte*>(value ? kv.v : kv.k) + at * bytes;
  }
  const int32_t block = lengths.block_tables.row(seq)[key / spec.block_size];
  if (block < 0 || block >= tensors.paged->num_blocks) return nullptr;
  const KvPages& pages = value ? tensors.paged->v : tensors.paged->k;
  return static_cast<const std::byte*>(pages.data) + (block * pages.block_stride + head * pages.head_stride +
                                                      (key % spec.block_size) * pages.slot_stride) *
                                                         bytes;
}

}  // namespace

AttentionCaseFile CaseFileOf(const AttentionSpec& spec, const AttentionLengths& lengths,
                             const AttentionParams& tensors) {
  AttentionCaseFile file;
  file.spec = spec;
  const int num_seqs = lengths.q_begin->num_seqs();
  for (int seq = 0; seq < num_seqs; ++seq) file.q_len.push_back(lengths.q_begin->length(seq));
  file.kv_len.assign(lengths.kv_len.begin(), lengths.kv_len.end());
  const auto append = [](std::vector<std::byte>& to, const std::byte* from, int64_t bytes) {
    to.insert(to.end(), from, from + bytes);
  };
  const int64_t q_bytes = BlockBytes(spec.q_dtype), kv_bytes = BlockBytes(spec.kv_dtype);
  for (int32_t token = 0; token < lengths.q_begin->total(); ++token) {
    for (int head = 0; head < spec.q_heads; ++head)
      append(file.q, tensors.QRow(token, head), spec.head_dim * q_bytes);
  }
  if (spec.layout == KvLayout::kContiguous) {
    for (int seq = 0; seq < num_seqs; ++seq) {
      for (int key = 0; key < file.kv_len[static_cast<size_t>(seq)]; ++key) {
        for (int head = 0; head < spec.kv_heads; ++head) {
          append(file.k, KeyAt(spec, lengths, tensors, false, seq, key, head), spec.head_dim * kv_bytes);
          append(file.v, KeyAt(spec, lengths, tensors, true, seq, key, head), spec.v_head_dim * kv_bytes);
        }
      }
    }
  } else {
    const int size = spec.block_size;
    for (const int32_t kv_len : file.kv_len) {
      const int32_t blocks = (kv_len + size - 1) / size;
      file.table_width = std::max(file.table_width, blocks);
      file.num_blocks += blocks;
    }
    file.num_blocks = std::max<int64_t>(file.num_blocks, 1);
    file.table_width = std::max(file.table_width, 1);
    file.block_tables.assign(static_cast<size_t>(num_seqs) * static_cast<size_t>(file.table_width), -1);
    const int64_t k_page = int64_t{size} * spec.kv_heads * spec.head_dim * kv_bytes;
    const int64_t v_page = int64_t{size} * spec.kv_heads * spec.v_head_dim * kv_bytes;
    file.k.resize(static_cast<size_t>(file.num_blocks * k_page));
    file.v.resize(static_cast<size_t>(file.num_blocks * v_page));
    int32_t next = 0;
    for (int seq = 0; seq < num_seqs; ++seq) {
      for (int32_t key = 0; key < file.kv_len[static_cast<size_t>(seq)]; ++key) {
        if (KeyAt(spec, lengths, tensors, false, seq, key, 0) == nullptr) continue;
        int32_t& block = file.block_tables[static_cast<size_t>(seq) * static_cast<size_t>(file.table_width) +
                                           static_cast<size_t>(key / size)];
        if (block < 0) block = next++;
        for (int head = 0; head < spec.kv_heads; ++head) {
          const int64_t row = spec.layout == KvLayout::kPagedHnd ? int64_t{head} * size + key % size
                                                                 : int64_t{key % size} * spec.kv_heads + head;
          std::memcpy(file.k.data() + block * k_page + row * spec.head_dim * kv_bytes,
                      KeyAt(spec, lengths, tensors, false, seq, key, head),
                      static_cast<size_t>(spec.head_dim * kv_bytes));
          std::memcpy(file.v.data() + block * v_page + row * spec.v_head_dim * kv_bytes,
                      KeyAt(spec, lengths, tensors, true, seq, key, head),
                      static_cast<size_t>(spec.v_head_dim * kv_bytes));
        }
      }
    }
  }
  if (spec.has_alibi) file.alibi_slopes.assign(tensors.alibi_slopes, tensors.alibi_slopes + spec.q_heads);
  if (spec.has_sinks) file.sinks.assign(tensors.sinks, tensors.sinks + spec.q_heads);
  for (int seq = 0; seq < num_seqs; ++seq) {
    for (int head = 0; head < spec.kv_heads; ++head) {
      if (spec.has_k_descale) file.k_descale.push_back(tensors.k_descale.at(seq, head));
      if (spec.has_v_descale) file.v_descale.push_back(tensors.v_descale.at(seq, head));
    }
  }
  return file;
}

AttentionCase RecordedCase(const AttentionCaseFile& file, const std::string& name) {
  const AttentionSpec& spec = file.spec;
  auto recorded = std::make_shared<RecordedNumbers>();
  recorded->spec = spec;
  recorded->q_len = file.q_len;
  recorded->kv_len = file.kv_len;
  recorded->alibi_slopes = file.alibi_slopes;
  recorded->sinks = file.sinks;
  recorded->k_descale = file.k_descale;
  recorded->v_descale = file.v_descale;
  int64_t token = 0, first_key = 0;
  for (size_t seq = 0; seq < file.q_len.size(); ++seq) {
    std::vector<float>& q = recorded->q.emplace_back();
    const int64_t row = int64_t{spec.q_heads} * spec.head_dim;
    for (int64_t i = token * row; i < (token + file.q_len[seq]) * row; ++i)
      q.push_back(static_cast<float>(ReferenceElement(file.q.data(), spec.q_dtype, i)));
    token += file.q_len[seq];
    const auto keys_of = [&](bool value) {
      const std::vector<std::byte>& data = value ? file.v : file.k;
      const int64_t dim = value ? spec.v_head_dim : spec.head_dim, size = spec.block_size;
      std::vector<float> keys;
      for (int64_t key = 0; key < file.kv_len[seq]; ++key) {
        for (int64_t head = 0; head < spec.kv_heads; ++head) {
          int64_t at = (first_key + key) * spec.kv_heads + head;  // contiguous
          if (spec.layout != KvLayout::kContiguous) {
            const int64_t block = file.block_tables[seq * static_cast<size_t>(file.table_width) +
                                                    static_cast<size_t>(key / size)];
            if (block < 0) {  // a page that no row reads
              keys.insert(keys.end(), static_cast<size_t>(dim), 0.0f);
              continue;
            }
            at = spec.layout == KvLayout::kPagedHnd ? (block * spec.kv_heads + head) * size + key % size
                                                    : (block * size + key % size) * spec.kv_heads + head;
          }
          for (int64_t d = 0; d < dim; ++d)
            keys.push_back(static_cast<float>(ReferenceElement(data.data(), spec.kv_dtype, at * dim + d)));
        }
      }
      return keys;
    };
    recorded->k.push_back(keys_of(false));
    recorded->v.push_back(keys_of(true));
    first_key += file.kv_len[seq];
  }
  AttentionCase c{.name = name, .spec = spec, .q_len = file.q_len, .kv_len = file.kv_len};
  c.options.recorded = std::move(recorded);
  return c;
}

Expected<std::filesystem::path> WriteCaseIn(const std::filesystem::path& folder, const std::string& name,
                                            const AttentionCaseFile& file) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Fail(ErrorCode::kIo, fmt::format("{}: cannot be made: {}", folder.string(), error.message()),
                "failures");
  }
  std::string file_name;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
    file_name += plain ? c : '_';
  }
  const std::filesystem::path path = folder / (file_name + ".safetensors");
  ATTEST_RETURN_IF_ERROR(WriteCaseFile(path, file));
  return path;
}

Expected<std::filesystem::path> WriteFailingCase(const std::filesystem::path& folder, const std::string& name,
                                                 AttentionBatch& batch, const std::string& kernel,
                                                 std::map<std::string, std::string> notes) {
  const AttentionBatch::Output none = batch.MakeOutput(0.0f);
  AttentionCaseFile file = CaseFileOf(batch.spec(), batch.lengths(), batch.Tensors(none));
  file.kernel = kernel;
  file.notes = std::move(notes);
  return WriteCaseIn(folder, name, file);
}

}  // namespace attest::conform
