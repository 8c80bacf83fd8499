#include "text/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace attest {
namespace {

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerSpec spec, Vocabulary vocabulary, DecoderChain chain)
      : spec_(std::move(spec)),
        vocabulary_(std::move(vocabulary)),
        model_(vocabulary_, spec_.merges, spec_.bpe),
        chain_(std::move(chain)),
        dropped_(static_cast<size_t>(vocabulary_.size()), false) {
    spec_.tokens.clear();
    spec_.tokens.shrink_to_fit();
    spec_.merges.clear();
    spec_.merges.shrink_to_fit();
    PrepareAddedTokens();
  }

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return vocabulary_.size(); }
  std::string_view TokenText(int32_t id) const override { return vocabulary_.Text(id); }
  std::string TokenBytes(int32_t id) const override;
  std::optional<int32_t> TokenId(std::string_view text) const override {
    const int32_t id = vocabulary_.Find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  }
  bool is_special(int32_t id) const override { return dropped_[static_cast<size_t>(id)]; }
  std::optional<int32_t> bos_id() const override { return spec_.bos_id; }
  std::optional<int32_t> eos_id() const override { return spec_.eos_id; }
  const std::vector<int32_t>& end_ids() const override { return spec_.end_ids; }
  std::unique_ptr<TextStream> NewTextStream(bool skip_special_tokens) const override;

 private:
  friend class PipelineTextStream;
  class Encoding;

  void PrepareAddedTokens();
  [[nodiscard]] bool Has(int32_t id) const { return id >= 0 && id < vocabulary_.size(); }
  // The text the decoders see: an added token that is matched in normalised text stands there in that form.
  [[nodiscard]] std::string_view DecoderText(int32_t id) const {
    if (!normalized_texts_.empty()) {
      if (const auto it = normalized_texts_.find(id); it != normalized_texts_.end()) return it->second;
    }
    return vocabulary_.Text(id);
  }
  [[nodiscard]] std::unique_ptr<BpeScratch> TakeScratch() const;
  void ReturnScratch(std::unique_ptr<BpeScratch> scratch) const;

  TokenizerSpec spec_;
  Vocabulary vocabulary_;
  BpeModel model_;
  DecoderChain chain_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  std::unordered_map<int32_t, std::string> normalized_texts_;
  std::vector<bool> dropped_;  // by id: what skip_special_tokens skips

  static constexpr size_t kKeptScratches = 16;
  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> scratches_;
};

// One Encode call: the working memory and the ids so far.
class PipelineTokenizer::Encoding final : public PieceSink {
 public:
  explicit Encoding(const PipelineTokenizer& tokenizer)
      : tokenizer_(tokenizer), scratch_(tokenizer.TakeScratch()) {}
  ~Encoding() override { tokenizer_.ReturnScratch(std::move(scratch_)); }
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  void Piece(std::string_view piece) override { tokenizer_.model_.Encode(piece, *scratch_, ids); }

  void Text(std::string_view text, bool match_special) {
    std::vector<TextSpan> spans;
    tokenizer_.raw_matcher_.Split(text, match_special, spans);
    for (const TextSpan& span : spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        RawSpan(text.substr(span.begin, span.end - span.begin), span.begin == 0, match_special);
      }
    }
  }

  std::vector<int32_t> ids;

 private:
  void RawSpan(std::string_view text, bool at_text_begin, bool match_special) {
    std::string normalized;
    if (Normalize(tokenizer_.spec_.normalizer, text, normalized)) text = normalized;
    const auto& steps = tokenizer_.spec_.pre_tokenizer;
    if (tokenizer_.normalized_matcher_.empty()) return PreTokenize(steps, text, at_text_begin, *this);
    std::vector<TextSpan> spans;
    tokenizer_.normalized_matcher_.Split(text, match_special, spans);
    for (const TextSpan& span : spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        PreTokenize(steps, text.substr(span.begin, span.end - span.begin), at_text_begin && span.begin == 0,
                    *this);
      }
    }
  }

  const PipelineTokenizer& tokenizer_;
  std::unique_ptr<BpeScratch> scratch_;
};

class PipelineTextStream final : public TextStream {
 public:
  PipelineTextStream(const PipelineTokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skips_special_(skip_special_tokens), stream_(tokenizer.chain_) {}
  void Append(int32_t id, std::string& out) override {
    if (!tokenizer_.Has(id) || (skips_special_ && tokenizer_.is_special(id))) return;
    stream_.Push(tokenizer_.DecoderText(id), out);
  }
  void Finish(std::string& out) override { stream_.Finish(out); }
  void DropHeldText() override { stream_.DropHeldText(); }

 private:
  const PipelineTokenizer& tokenizer_;
  bool skips_special_;
  DecoderStream stream_;
};

void PipelineTokenizer::PrepareAddedTokens() {
  std::vector<AddedTokenMatcher::Pattern> raw;
  std::vector<AddedTokenMatcher::Pattern> in_normalized;
  std::unordered_set<std::string_view> special_texts;
  for (const AddedToken& token : spec_.added_tokens) {
    if (token.special) special_texts.insert(token.content);
    std::string normalized;
    if (!token.normalized) {
      raw.push_back({token.content, &token});
    } else if (Normalize(spec_.normalizer, token.content, normalized)) {
      normalized_texts_[token.id] = normalized;
      if (!normalized.empty()) in_normalized.push_back({normalized, &token});
    } else {
      in_normalized.push_back({token.content, &token});
    }
  }
  for (const AddedToken& token : spec_.added_tokens) {
    // By the text the decoders see: the reference library does not skip a special token that normalisation
    // changes.
    dropped_[static_cast<size_t>(token.id)] = special_texts.contains(DecoderText(token.id));
  }
  if (!raw.empty()) raw_matcher_ = AddedTokenMatcher(raw);
  if (!in_normalized.empty()) normalized_matcher_ = AddedTokenMatcher(in_normalized);
}

std::unique_ptr<BpeScratch> PipelineTokenizer::TakeScratch() const {
  {
    const std::lock_guard lock(scratch_mutex_);
    if (!scratches_.empty()) {
      std::unique_ptr<BpeScratch> scratch = std::move(scratches_.back());
      scratches_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<BpeScratch>(vocabulary_.size());
}

void PipelineTokenizer::ReturnScratch(std::unique_ptr<BpeScratch> scratch) const {
  scratch->Trim();
  const std::lock_guard lock(scratch_mutex_);
  if (scratches_.size() < kKeptScratches) scratches_.push_back(std::move(scratch));
}

std::vector<int32_t> PipelineTokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = RepairUtf8(text);
    text = repaired;
  }
  Encoding encoding(*this);
  encoding.ids.reserve(text.size() / 3 + spec_.prefix_ids.size() + spec_.suffix_ids.size());
  if (options.add_special_tokens) encoding.ids = spec_.prefix_ids;
  const size_t begin = encoding.ids.size();
  encoding.Text(text, options.parse_special_tokens);
  std::vector<int32_t>& ids = encoding.ids;
  if (options.single_bos && begin > 0 && ids.size() > begin && ids[begin - 1] == spec_.bos_id &&
      ids[begin] == spec_.bos_id) {
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(begin));
  }
  if (options.add_special_tokens) ids.insert(ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
  return std::move(ids);
}

std::string PipelineTokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  PipelineTextStream stream(*this, skip_special_tokens);
  std::string text;
  text.reserve(ids.size() * 5);
  for (const int32_t id : ids) stream.Append(id, text);
  stream.Finish(text);
  return text;
}

std::string PipelineTokenizer::TokenBytes(int32_t id) const {
  const std::string_view text = DecoderText(id);
  if (spec_.bpe.byte_level) {
    std::optional<std::string> bytes = ByteLevelToBytes(text);
    return bytes.has_value() ? *std::move(bytes) : std::string(text);
  }
  if (spec_.bpe.byte_fallback) {
    if (const int byte = ByteOfFallbackToken(text); byte >= 0) return std::string(1, static_cast<char>(byte));
  }
  DecoderStream stream(chain_);
  std::string out;
  stream.Push("x", out);  // so that `id` does not stand first
  const size_t begin = out.size();
  stream.Push(text, out);
  stream.Finish(out);
  return out.substr(begin);
}

std::unique_ptr<TextStream> PipelineTokenizer::NewTextStream(bool skip_special_tokens) const {
  return std::make_unique<PipelineTextStream>(*this, skip_special_tokens);
}

}  // namespace

bool IsEndMarker(std::string_view text) {
  static const std::unordered_set<std::string_view> kMarkers = {
      "<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",    "<|end_of_text|>",
      "<|end|>",       "<|return|>",    "<|call|>",   "<end_of_turn>", "<turn|>",
      "</s>",          "<eos>",         "<EOT>",      "_<EOT>",        "<|end_of_turn|>",
      "<|endofturn|>", "<|eos|>",       "<|eot|>",    "<|user_end|>"};
  return kMarkers.contains(text);
}

Expected<std::unique_ptr<Tokenizer>> MakeTokenizer(TokenizerSpec spec) {
  size_t bytes = 0;
  for (const std::string& token : spec.tokens) bytes += token.size();
  if (spec.tokens.empty() || spec.tokens.size() >= (1u << 24) || bytes >= (1ull << 31)) {
    return Fail(
        ErrorCode::kCorruptFile,
        fmt::format(
            "vocabulary of {} tokens and {} bytes of text, wanted 1 to 16777215 tokens and less than 2 GiB",
            spec.tokens.size(), bytes),
        "vocab");
  }
  Vocabulary vocabulary;
  for (const std::string& token : spec.tokens) vocabulary.Append(token);
  vocabulary.BuildIndex();
  const auto in_range = [&](int32_t id) { return id >= 0 && id < vocabulary.size(); };
  const auto check = [&](const std::vector<int32_t>& ids, const char* field) -> Status {
    for (const int32_t id : ids) {
      if (in_range(id)) continue;
      return Fail(ErrorCode::kCorruptFile,
                  fmt::format("{} holds token id {}, the vocabulary has ids 0 to {}", field, id,
                              vocabulary.size() - 1),
                  field);
    }
    return {};
  };
  ATTEST_RETURN_IF_ERROR(check(spec.prefix_ids, "bos rule"));
  ATTEST_RETURN_IF_ERROR(check(spec.suffix_ids, "eos rule"));
  if (spec.bos_id) ATTEST_RETURN_IF_ERROR(check({*spec.bos_id}, "bos_token"));
  if (spec.eos_id) ATTEST_RETURN_IF_ERROR(check({*spec.eos_id}, "eos_token"));
  if (spec.bpe.unk_id) ATTEST_RETURN_IF_ERROR(check({*spec.bpe.unk_id}, "unk_token"));

  if (spec.eos_id) spec.end_ids.push_back(*spec.eos_id);
  for (const AddedToken& token : spec.added_tokens) {
    if (token.special && IsEndMarker(token.content)) spec.end_ids.push_back(token.id);
  }
  std::sort(spec.end_ids.begin(), spec.end_ids.end());
  spec.end_ids.erase(std::unique(spec.end_ids.begin(), spec.end_ids.end()), spec.end_ids.end());
  ATTEST_RETURN_IF_ERROR(check(spec.end_ids, "end tokens"));
  ATTEST_ASSIGN_OR_RETURN(DecoderChain chain, DecoderChain::Make(spec.decoder));
  return std::make_unique<PipelineTokenizer>(std::move(spec), std::move(vocabulary), std::move(chain));
}

}  // namespace attest
