// A tokenizer as plain data, however it was stored, and the one Tokenizer that runs it. The readers of
// tokenizer.json and of GGUF metadata fill a TokenizerSpec; MakeTokenizer checks what both must keep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace attest {

struct TokenizerSpec {
  std::vector<std::string> tokens;  // by id, added tokens included
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
  std::vector<AddedToken> added_tokens;  // distinct ids
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<int32_t> prefix_ids, suffix_ids;  // what add_special_tokens adds
  std::vector<DecoderStep> decoder;
  std::optional<int32_t> bos_id, eos_id;
  std::vector<int32_t> end_ids;
};

// Texts of control tokens that end a turn or a generation, whatever the file names as eos.
[[nodiscard]] bool IsEndMarker(std::string_view token_text);

[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> MakeTokenizer(TokenizerSpec spec);

}  // namespace attest
