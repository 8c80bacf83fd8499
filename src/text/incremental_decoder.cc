#include <utility>

#include "text/decoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace attest {
namespace {

class ByteTextStream final : public TextStream {
 public:
  ByteTextStream(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skips_special_(skip_special_tokens) {}
  void Append(int32_t id, std::string& out) override {
    if (id < 0 || id >= tokenizer_.vocab_size() || (skips_special_ && tokenizer_.is_special(id))) return;
    AppendRepairedUtf8(tokenizer_.TokenBytes(id), held_, out);
  }
  void Finish(std::string& out) override {
    if (!std::exchange(held_, {}).empty()) out += kReplacementUtf8;
  }
  void DropHeldText() override {}  // only an incomplete code point is ever held

 private:
  const Tokenizer& tokenizer_;
  bool skips_special_;
  std::string held_;
};

}  // namespace

std::unique_ptr<TextStream> Tokenizer::NewTextStream(bool skip_special_tokens) const {
  return std::make_unique<ByteTextStream>(*this, skip_special_tokens);
}

struct IncrementalDecoder::State {
  std::unique_ptr<TextStream> stream;
};

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens,
                                       std::span<const int32_t> prompt)
    : state_(std::make_unique<State>(State{tokenizer.NewTextStream(skip_special_tokens)})) {
  if (prompt.empty()) return;
  std::string ignored;
  for (const int32_t id : prompt) {
    state_->stream->Append(id, ignored);
    ignored.clear();
  }
  state_->stream->DropHeldText();
}

IncrementalDecoder::~IncrementalDecoder() = default;
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder& IncrementalDecoder::operator=(IncrementalDecoder&&) noexcept = default;

std::string IncrementalDecoder::Append(int32_t id) {
  std::string text;
  state_->stream->Append(id, text);
  return text;
}

std::string IncrementalDecoder::Finish() {
  std::string text;
  state_->stream->Finish(text);
  return text;
}

}  // namespace attest
