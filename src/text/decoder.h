// Token texts back to text, one token at a time: the decoders of tokenizer.json as a chain of small state
// machines. A whole decode runs the same chain, so a stream cannot differ from it. DecoderChain is immutable
// (any thread); a DecoderStream belongs to one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"

namespace attest {

struct ReplaceDecoder {
  std::string pattern;  // literal, not empty
  std::string content;
};
struct MetaspaceDecoder {
  std::string replacement;
  bool drops_first = true;  // marks in the first token vanish instead of becoming spaces
};
// <0xE4> tokens are bytes. A run of them is emitted when it ends: as text if it is valid UTF-8, else as one
// U+FFFD per token.
struct ByteFallbackDecoder {};
struct StripDecoder {
  std::string content;  // one code point
  size_t start = 0;
  size_t stop = 0;
};
struct FuseDecoder {};
struct ByteLevelDecoder {};  // GPT-2's alphabet to bytes, then UTF-8 with replacement; fuses
struct JoinSpaceDecoder {};  // what the reference library does without a decoder
using DecoderStep = std::variant<ReplaceDecoder, MetaspaceDecoder, ByteFallbackDecoder, StripDecoder,
                                 FuseDecoder, ByteLevelDecoder, JoinSpaceDecoder>;

class DecoderChain {
 public:
  // kUnsupported when a step that works on single tokens follows one that fuses them.
  static Expected<DecoderChain> Make(std::vector<DecoderStep> steps);

 private:
  friend class DecoderStream;
  explicit DecoderChain(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}
  std::vector<DecoderStep> steps_;
};

class DecoderStream {
 public:
  // `chain` must outlive the stream.
  explicit DecoderStream(const DecoderChain& chain);

  // Appends to `out` what became final with the next token's text. Only whole code points.
  void Push(std::string_view token, std::string& out);
  // Appends what is left. Call once.
  void Finish(std::string& out);
  // Forgets held text that is whole; keeps the bytes of an incomplete code point.
  void DropHeldText();

 private:
  struct State {
    bool is_first = true;
    size_t stripped = 0;  // Strip on fused text: leading code points already dropped
    std::string held;
  };
  void PushTo(size_t index, std::string_view text, std::string& out);
  void FlushBytes(size_t index, std::string& out);
  void Step(const ReplaceDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const MetaspaceDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const ByteFallbackDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const StripDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const FuseDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const ByteLevelDecoder& step, size_t index, std::string_view text, std::string& out);
  void Step(const JoinSpaceDecoder& step, size_t index, std::string_view text, std::string& out);
  void StripFused(const StripDecoder& step, size_t index, std::string_view text, std::string& out);

  const DecoderChain* chain_;
  size_t fused_from_;  // steps from here on see pieces of one long token
  std::vector<State> states_;
};

// UTF-8 that arrives in pieces: emits whole code points, holds an incomplete one in `held`, and writes U+FFFD
// for each longest invalid prefix, exactly as RepairUtf8 of the whole would.
void AppendRepairedUtf8(std::string_view bytes, std::string& held, std::string& out);

// The byte that a token such as <0xE4> stands for, or -1.
[[nodiscard]] int ByteOfFallbackToken(std::string_view token);

}  // namespace attest
