// tokenizer.json as a document, without building a tree of its two large tables. Read by tokenizer_json.cc
// alone: it and its reader are the only files of this folder's tokenizer that see nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace attest {

struct TokenizerJson {
  nlohmann::json rest;  // everything but model.vocab and model.merges, which are null here
  bool has_vocab = false;
  bool has_merges = false;
  std::vector<std::pair<std::string, uint64_t>> vocab;  // in file order
  std::vector<std::pair<std::string, std::string>> merges;
};

// 7 to 33 MB in well under a second: a tree of the same file costs three times that and ten times the memory.
[[nodiscard]] Expected<TokenizerJson> ReadTokenizerJson(std::string_view text);

}  // namespace attest
