// Text to token ids and back. Immutable after load; any number of threads may use one Tokenizer at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace attest {

// GGUF's tokenizer.ggml.* keys as plain data (the loader fills it; text/ reads no files). Spans point into
// the mapped file.
struct GgufVocabulary {
  std::string model;  // "gpt2" or "llama"; anything else is refused by name
  std::string pre;    // "gpt2": default, gpt-2, smollm, llama-bpe, qwen2, or "" when absent
  std::vector<std::string_view> tokens;
  std::vector<float> scores;             // "llama" only
  std::vector<int32_t> token_types;      // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string_view> merges;  // "gpt2" only
  std::optional<int32_t> bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

struct EncodeOptions {
  bool add_special_tokens = true;  // BOS/EOS by the model's own rule
  // Text such as <|im_end|> becomes the special token, as chat templates need it. Off for text that must not
  // steer the model: no control token then comes from `text`, whatever it says.
  bool parse_special_tokens = true;
  // When `text` begins with the BOS token's own text and the rule adds BOS too, keep one of them.
  bool single_bos = false;
};

// One token at a time to text. Made by Tokenizer::NewTextStream; see IncrementalDecoder.
class TextStream {
 public:
  virtual ~TextStream() = default;
  // Append to `out` the text that became final. Only whole code points.
  virtual void Append(int32_t id, std::string& out) = 0;
  virtual void Finish(std::string& out) = 0;
  // Forgets held text that is whole; keeps the bytes of an incomplete code point.
  virtual void DropHeldText() = 0;
};

class Tokenizer {
 public:
  // `tokenizer_json`: the text of tokenizer.json. `tokenizer_config_json` (for bos and eos) may be empty. An
  // unsupported normalizer, pre-tokenizer, model, post-processor or decoder is kUnsupported and names it; a
  // file that contradicts itself is kCorruptFile and names the field. "truncation" and "padding" are not
  // applied.
  static Expected<std::unique_ptr<Tokenizer>> FromTokenizerJson(std::string_view tokenizer_json,
                                                                std::string_view tokenizer_config_json = {});
  // Pre-tokenizers other than those listed at GgufVocabulary::pre are kUnsupported. Nothing of `vocabulary`
  // is referred to afterwards.
  static Expected<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary);

  virtual ~Tokenizer() = default;

  // Invalid UTF-8 is encoded after replacement with U+FFFD; never fails. O(n log n) in the length of `text`.
  [[nodiscard]] virtual std::vector<int32_t> Encode(std::string_view text,
                                                    const EncodeOptions& options = {}) const = 0;

  // The text of `ids`; ids outside [0, vocab_size) are skipped. The result is valid UTF-8 (invalid sequences
  // become U+FFFD).
  [[nodiscard]] virtual std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;

  [[nodiscard]] virtual int32_t vocab_size() const = 0;  // ids are in [0, vocab_size)
  [[nodiscard]] virtual std::string_view TokenText(
      int32_t id) const = 0;  // as stored in the vocabulary ("Ġthe")
  // The bytes a token contributes to decoded text in the middle of a sequence (before UTF-8 repair).
  [[nodiscard]] virtual std::string TokenBytes(int32_t id) const = 0;
  [[nodiscard]] virtual std::optional<int32_t> TokenId(std::string_view text) const = 0;
  [[nodiscard]] virtual bool is_special(int32_t id) const = 0;  // dropped by skip_special_tokens
  [[nodiscard]] virtual std::optional<int32_t> bos_id() const = 0;
  [[nodiscard]] virtual std::optional<int32_t> eos_id() const = 0;
  // Ids that end a generation: eos, eot, eom and control tokens that are known end markers.
  [[nodiscard]] virtual const std::vector<int32_t>& end_ids() const = 0;

  // A decode of this tokenizer's ids, token by token; the tokenizer must outlive it. The default joins
  // TokenBytes.
  [[nodiscard]] virtual std::unique_ptr<TextStream> NewTextStream(bool skip_special_tokens) const;
};

// Streaming decode. Emits only whole code points; the joined pieces equal Tokenizer::Decode of all ids.
// Text is held back only where a later token can still change it: an incomplete code point, and
// (SentencePiece models) a run of <0xE4> byte tokens, which the reference library decodes as one. One per
// stream; not thread-safe.
class IncrementalDecoder {
 public:
  // `prompt` primes the stream, so that the first generated token keeps or drops its leading space as the
  // full decode of prompt + output would. The prompt's own text is never emitted, except for a code point
  // whose first bytes end the prompt.
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens,
                     std::span<const int32_t> prompt = {});
  ~IncrementalDecoder();
  IncrementalDecoder(IncrementalDecoder&&) noexcept;
  IncrementalDecoder& operator=(IncrementalDecoder&&) noexcept;

  // Text that became final with this token; may be empty.
  [[nodiscard]] std::string Append(int32_t id);
  // What is left, with incomplete sequences as U+FFFD. Call once at the end.
  [[nodiscard]] std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attest
