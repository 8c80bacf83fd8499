// One attention call as a file, so that it can be computed again anywhere: what the sentinel writes on a
// mismatch, what `attest conform` writes for the smallest failing case, what `attest replay` reads.
//
// The format is safetensors: the tensors carry the names of the members below, everything else is text in
// __metadata__, so any tool that reads safetensors can open a case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "base/error.h"

namespace attest {

// Dense, owned, and no larger than the call needs: blocks nobody reads are left out and the others
// renumbered.
struct AttentionCaseFile {
  AttentionSpec spec;
  std::vector<int32_t> q_len;   // [num_seqs], tokens
  std::vector<int32_t> kv_len;  // [num_seqs], tokens
  std::vector<std::byte> q;     // [num_tokens, q_heads, head_dim], spec.q_dtype
  // Paged HND: [num_blocks, kv_heads, block_size, dim]; paged NHD: [num_blocks, block_size, kv_heads, dim];
  // contiguous: [sum of kv_len, kv_heads, dim]. dim is head_dim of k, v_head_dim of v; spec.kv_dtype.
  std::vector<std::byte> k, v;
  int64_t num_blocks = 0;             // paged layouts
  int32_t table_width = 0;            // entries per sequence; paged layouts
  std::vector<int32_t> block_tables;  // [num_seqs, table_width]; entries that nothing reads are -1
  std::vector<float> alibi_slopes;    // [q_heads], with spec.has_alibi
  std::vector<float> sinks;           // [q_heads], with spec.has_sinks
  std::vector<float> k_descale;       // [num_seqs, kv_heads], with spec.has_k_descale
  std::vector<float> v_descale;       // [num_seqs, kv_heads], with spec.has_v_descale
  std::vector<std::byte> out;         // what was computed, [num_tokens, q_heads, v_head_dim], spec.out_dtype;
                                      // empty when it was not kept
  std::string kernel;                 // the name, or "phase=name,...", that computed it
  std::map<std::string, std::string> notes;  // for people: version, model, layer, step, seed, first bad row
};

// Writes a file that Read reads back equal. kInvalidArgument: a member whose size contradicts the spec;
// kIo: the file cannot be written (nothing is left behind: it is written beside and renamed).
[[nodiscard]] Status WriteCaseFile(const std::filesystem::path& path,
                                   const AttentionCaseFile& attention_case);
// Every size, id and length is checked before use: a bad file gives file, field, value and limit. Whether the
// table entries that its rows read are blocks is for PlanAttention to say.
[[nodiscard]] Expected<AttentionCaseFile> ReadCaseFile(const std::filesystem::path& path);
// The same from memory; `file_name` stands in messages.
[[nodiscard]] Expected<AttentionCaseFile> ParseCaseFile(std::span<const std::byte> bytes,
                                                        const std::string& file_name);

}  // namespace attest
