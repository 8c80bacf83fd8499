// GGUF's tokenizer.ggml.* keys as a TokenizerSpec.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "text/pipeline.h"
#include "text/unicode.h"

namespace attest {
namespace {

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

std::unexpected<Error> Corrupt(std::string key, std::string message) {
  return Fail(ErrorCode::kCorruptFile, std::move(message), "tokenizer.ggml." + std::move(key));
}

Status CheckVocabulary(const GgufVocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    return Corrupt("token_type", fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens",
                                             vocabulary.token_types.size(), count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (IsValidUtf8(vocabulary.tokens[i])) continue;
    return Corrupt("tokens", fmt::format("tokenizer.ggml.tokens[{}] is not valid UTF-8", i));
  }
  const std::pair<const char*, std::optional<int32_t>> named[] = {
      {"bos_token_id", vocabulary.bos_id},     {"eos_token_id", vocabulary.eos_id},
      {"eot_token_id", vocabulary.eot_id},     {"eom_token_id", vocabulary.eom_id},
      {"unknown_token_id", vocabulary.unk_id}, {"padding_token_id", vocabulary.pad_id}};
  for (const auto& [key, id] : named) {
    if (!id.has_value() || (*id >= 0 && static_cast<size_t>(*id) < count)) continue;
    return Corrupt(key,
                   fmt::format("tokenizer.ggml.{} is {}, the vocabulary has {} tokens", key, *id, count));
  }
  return {};
}

int32_t TypeOf(const GgufVocabulary& vocabulary, size_t id) {
  return vocabulary.token_types.empty() ? kNormal : vocabulary.token_types[id];
}

bool IsBlankRun(std::string_view text) {
  return text.size() >= 2 && text.find_first_not_of(' ') == std::string_view::npos;
}

void AddMatchedTokens(const GgufVocabulary& vocabulary, TokenizerSpec& spec) {
  std::unordered_set<std::string_view> seen;
  for (size_t id = vocabulary.tokens.size(); id-- > 0;) {  // of equal texts the last one counts
    const int32_t type = TypeOf(vocabulary, id);
    const std::string_view text = vocabulary.tokens[id];
    // Some converters forget to mark the token that ends a turn; nobody writes one as ordinary text.
    const bool end_marker =
        type == kNormal && IsEndMarker(text) && (text.starts_with("<|") || text == "<end_of_turn>");
    if (type != kControl && type != kUnknown && type != kUserDefined && !end_marker) continue;
    if (text.empty() || !seen.insert(text).second) continue;
    if (vocabulary.model == "llama" && IsBlankRun(text)) continue;
    spec.added_tokens.push_back({.id = static_cast<int32_t>(id),
                                 .content = std::string(text),
                                 .special = type != kUserDefined || end_marker});
  }
}

Status ReadMerges(const GgufVocabulary& vocabulary, TokenizerSpec& spec) {
  Vocabulary index;
  for (const std::string_view token : vocabulary.tokens) index.Append(token);
  index.BuildIndex();
  spec.merges.reserve(vocabulary.merges.size());
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return Corrupt("merges", fmt::format("tokenizer.ggml.merges[{}] '{}' is not a pair of tokens", rank,
                                           ForMessage(merge)));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    std::string joined(left);
    joined += right;
    const BpeMerge ids = {index.Find(left), index.Find(right), index.Find(joined),
                          static_cast<uint32_t>(rank)};
    if (ids.left < 0 || ids.right < 0 || ids.result < 0) {
      return Corrupt("merges",
                     fmt::format("tokenizer.ggml.merges[{}] '{}' names a token outside the vocabulary", rank,
                                 ForMessage(merge)));
    }
    spec.merges.push_back(ids);
  }
  return {};
}

SplitStep Isolate(std::string_view pattern) {
  // REQUIRES: one of our own patterns, which compile.
  return SplitStep{*TextPattern::Regex(pattern), SplitBehavior::kIsolated, false};
}

Status ReadByteLevel(const GgufVocabulary& vocabulary, TokenizerSpec& spec) {
  spec.bpe.byte_level = true;
  spec.decoder.emplace_back(ByteLevelDecoder{});
  ByteLevelStep bytes;
  bytes.add_prefix_space = vocabulary.add_space_prefix.value_or(false);
  bool adds_bos = false;
  if (vocabulary.pre == "gpt-2") {
    bytes.scanner = Scanner(ScanKind::kGpt2);
  } else if (vocabulary.pre == "smollm") {
    spec.pre_tokenizer.push_back(DigitsStep{true});
    bytes.scanner = Scanner(ScanKind::kGpt2);
  } else if (vocabulary.pre == "llama-bpe") {
    spec.pre_tokenizer.push_back(Isolate(kLlama3Pattern));
    spec.bpe.ignore_merges = true;
    adds_bos = true;
  } else if (vocabulary.pre == "qwen2") {
    // Without NFC, which the model's own tokenizer.json has: llama.cpp and transformers read this file so.
    spec.pre_tokenizer.push_back(Isolate(kQwen2Pattern));
  } else if (vocabulary.pre == "default" || vocabulary.pre.empty()) {
    for (const std::string_view pattern :
         {std::string_view(R"([\p{P}\$\+<=>\^~\|]+)"), kGpt2Pattern, std::string_view(R"(\p{N}+)"),
          std::string_view("[0-9][0-9][0-9]")}) {
      spec.pre_tokenizer.push_back(Isolate(pattern));
    }
  } else {
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "GGUF pre-tokenizer '{}' is not supported (default, gpt-2, smollm, llama-bpe and qwen2 are)",
            ForMessage(vocabulary.pre)),
        "tokenizer.ggml.pre");
  }
  spec.pre_tokenizer.push_back(bytes);
  if (vocabulary.add_bos.value_or(adds_bos) && vocabulary.bos_id)
    spec.prefix_ids.push_back(*vocabulary.bos_id);
  if (vocabulary.add_eos.value_or(false) && vocabulary.eos_id) spec.suffix_ids.push_back(*vocabulary.eos_id);
  return ReadMerges(vocabulary, spec);
}

// SentencePiece joins the adjacent pair whose text is the token of highest score. As ranks: every way to cut
// a token into two tokens is a merge, in order of the whole's score; user-defined tokens come before all
// others. Runs of blanks are user-defined tokens of Gemma: merged from U+2581 like words, as in the model's
// tokenizer.json.
Status MergesFromScores(const GgufVocabulary& vocabulary, TokenizerSpec& spec) {
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    return Corrupt("scores", fmt::format("tokenizer.ggml.scores has {} entries for {} tokens",
                                         vocabulary.scores.size(), vocabulary.tokens.size()));
  }
  Vocabulary index;
  std::vector<int32_t> by_score;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    // Control, unknown and byte tokens never come from text by merging.
    const int32_t type = TypeOf(vocabulary, id);
    const bool merges = type == kNormal || type == kUserDefined || type == kUnused;
    if (type == kUserDefined && IsBlankRun(spec.tokens[id])) {
      const size_t length = spec.tokens[id].size();
      spec.tokens[id].clear();
      for (size_t i = 0; i < length; ++i) spec.tokens[id] += kSpaceMark;
    }
    index.Append(merges ? std::string_view(spec.tokens[id]) : std::string_view());
    if (std::isnan(vocabulary.scores[id])) {
      return Corrupt("scores", fmt::format("tokenizer.ggml.scores[{}] is not a number", id));
    }
    if (merges && spec.tokens[id].size() >= 2) by_score.push_back(static_cast<int32_t>(id));
  }
  index.BuildIndex();
  const auto score = [&](int32_t id) {
    const auto i = static_cast<size_t>(id);
    return TypeOf(vocabulary, i) == kUserDefined ? std::numeric_limits<float>::infinity()
                                                 : vocabulary.scores[i];
  };
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](int32_t a, int32_t b) { return score(a) > score(b); });
  std::vector<BpeMerge> cuts;
  for (const int32_t id : by_score) {
    const std::string_view text = spec.tokens[static_cast<size_t>(id)];
    if (index.Find(text) != id) continue;
    cuts.clear();
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;
      const int32_t left = index.Find(text.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = index.Find(text.substr(cut));
      if (right >= 0) cuts.push_back({left, right, id, 0});
    }
    std::sort(cuts.begin(), cuts.end(), [](const BpeMerge& a, const BpeMerge& b) {
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
    for (BpeMerge& merge : cuts) {
      merge.rank = static_cast<uint32_t>(spec.merges.size());
      spec.merges.push_back(merge);
    }
  }
  return {};
}

Status ReadSentencePiece(const GgufVocabulary& vocabulary, TokenizerSpec& spec) {
  spec.bpe.byte_fallback = true;
  spec.bpe.fuse_unk = true;
  spec.bpe.unk_id = vocabulary.unk_id;
  const bool adds_space = vocabulary.add_space_prefix.value_or(true);
  if (adds_space) spec.normalizer.push_back(PrependStep{std::string(kSpaceMark)});
  spec.normalizer.push_back(ReplaceStep{TextPattern::Literal(" "), std::string(kSpaceMark)});
  spec.decoder.emplace_back(ReplaceDecoder{std::string(kSpaceMark), " "});
  spec.decoder.emplace_back(ByteFallbackDecoder{});
  spec.decoder.emplace_back(FuseDecoder{});
  if (adds_space) spec.decoder.emplace_back(StripDecoder{" ", 1, 0});
  if (vocabulary.add_bos.value_or(true) && vocabulary.bos_id) spec.prefix_ids.push_back(*vocabulary.bos_id);
  if (vocabulary.add_eos.value_or(false) && vocabulary.eos_id) spec.suffix_ids.push_back(*vocabulary.eos_id);
  return MergesFromScores(vocabulary, spec);
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& vocabulary) {
  ATTEST_RETURN_IF_ERROR(CheckVocabulary(vocabulary));
  TokenizerSpec spec;
  spec.tokens.assign(vocabulary.tokens.begin(), vocabulary.tokens.end());
  spec.bos_id = vocabulary.bos_id;
  spec.eos_id = vocabulary.eos_id;
  for (const auto& id : {vocabulary.eot_id, vocabulary.eom_id}) {
    if (id.has_value()) spec.end_ids.push_back(*id);
  }
  if (vocabulary.model == "gpt2") {
    ATTEST_RETURN_IF_ERROR(ReadByteLevel(vocabulary, spec));
  } else if (vocabulary.model == "llama") {
    ATTEST_RETURN_IF_ERROR(ReadSentencePiece(vocabulary, spec));
  } else {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("GGUF tokenizer model '{}' is not supported (gpt2 and llama are)",
                            ForMessage(vocabulary.model)),
                "tokenizer.ggml.model");
  }
  AddMatchedTokens(vocabulary, spec);
  return MakeTokenizer(std::move(spec));
}

}  // namespace attest
