#include "text/decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace attest {
namespace {

bool Fuses(const DecoderStep& step) {
  return std::holds_alternative<FuseDecoder>(step) || std::holds_alternative<ByteLevelDecoder>(step) ||
         std::holds_alternative<JoinSpaceDecoder>(step);
}

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(pattern, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += content;
    at = found + pattern.size();
  }
}

}  // namespace

int ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);  // the reference library's number parser takes a sign
  unsigned value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return error == std::errc() && end == digits.data() + digits.size() ? static_cast<int>(value) : -1;
}

void AppendRepairedUtf8(std::string_view bytes, std::string& held, std::string& out) {
  std::string joined;
  if (!held.empty()) {
    joined = std::exchange(held, {});
    joined += bytes;
    bytes = joined;
  }
  const char* end = bytes.data() + bytes.size();
  for (const char* p = bytes.data(); p < end;) {
    const Utf8Step step = StepUtf8(p, end);
    if (step.kind == Utf8Step::kValid) {
      out.append(p, step.length);
    } else if (step.kind == Utf8Step::kInvalid) {
      out += kReplacementUtf8;
    } else {
      held.assign(p, end);
    }
    p += step.length;
  }
}

Expected<DecoderChain> DecoderChain::Make(std::vector<DecoderStep> steps) {
  bool fused = false;
  for (const DecoderStep& step : steps) {
    if (fused && !std::holds_alternative<StripDecoder>(step)) {
      return Fail(ErrorCode::kUnsupported,
                  "a decoder other than Strip after one that fuses tokens (Fuse, ByteLevel)", "decoder");
    }
    fused = fused || Fuses(step);
  }
  return DecoderChain(std::move(steps));
}

DecoderStream::DecoderStream(const DecoderChain& chain)
    : chain_(&chain), fused_from_(chain.steps_.size()), states_(chain.steps_.size()) {
  for (size_t i = 0; i < chain.steps_.size(); ++i) {
    if (Fuses(chain.steps_[i])) fused_from_ = std::min(fused_from_, i + 1);
  }
}

void DecoderStream::Push(std::string_view token, std::string& out) { PushTo(0, token, out); }

void DecoderStream::PushTo(size_t index, std::string_view text, std::string& out) {
  if (index == states_.size()) {
    out += text;
    return;
  }
  std::visit([&](const auto& step) { Step(step, index, text, out); }, chain_->steps_[index]);
}

void DecoderStream::Finish(std::string& out) {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (std::holds_alternative<ByteFallbackDecoder>(chain_->steps_[i])) FlushBytes(i, out);
    if (std::holds_alternative<ByteLevelDecoder>(chain_->steps_[i]) && !states_[i].held.empty()) {
      states_[i].held.clear();
      PushTo(i + 1, kReplacementUtf8, out);
    }
    // Strip on fused text holds the trailing code points it has to drop: they are dropped here.
  }
}

void DecoderStream::DropHeldText() {
  for (State& state : states_) {
    const char* end = state.held.data() + state.held.size();
    const char* p = state.held.data();
    while (p < end) {
      const Utf8Step step = StepUtf8(p, end);
      if (step.kind == Utf8Step::kTruncated) break;
      p += step.length;
    }
    state.held.erase(0, static_cast<size_t>(p - state.held.data()));
  }
}

void DecoderStream::Step(const ReplaceDecoder& step, size_t index, std::string_view text, std::string& out) {
  PushTo(index + 1, ReplaceAll(text, step.pattern, step.content), out);
}

void DecoderStream::Step(const MetaspaceDecoder& step, size_t index, std::string_view text,
                         std::string& out) {
  const bool drops = step.drops_first && states_[index].is_first;
  states_[index].is_first = false;
  PushTo(index + 1, ReplaceAll(text, step.replacement, drops ? "" : " "), out);
}

void DecoderStream::FlushBytes(size_t index, std::string& out) {
  const std::string bytes = std::exchange(states_[index].held, {});
  if (bytes.empty()) return;
  if (IsValidUtf8(bytes)) return PushTo(index + 1, bytes, out);
  for (size_t i = 0; i < bytes.size(); ++i) PushTo(index + 1, kReplacementUtf8, out);
}

void DecoderStream::Step(const ByteFallbackDecoder& /*step*/, size_t index, std::string_view text,
                         std::string& out) {
  if (const int byte = ByteOfFallbackToken(text); byte >= 0) {
    states_[index].held += static_cast<char>(byte);
    return;
  }
  FlushBytes(index, out);
  PushTo(index + 1, text, out);
}

void DecoderStream::Step(const StripDecoder& step, size_t index, std::string_view text, std::string& out) {
  if (index >= fused_from_) return StripFused(step, index, text, out);
  for (size_t i = 0; i < step.start && text.starts_with(step.content); ++i)
    text.remove_prefix(step.content.size());
  for (size_t i = 0; i < step.stop && text.ends_with(step.content); ++i)
    text.remove_suffix(step.content.size());
  PushTo(index + 1, text, out);
}

void DecoderStream::StripFused(const StripDecoder& step, size_t index, std::string_view text,
                               std::string& out) {
  State& state = states_[index];
  while (state.is_first && !text.empty()) {
    if (state.stripped == step.start || !text.starts_with(step.content)) {
      state.is_first = false;
      break;
    }
    text.remove_prefix(step.content.size());
    ++state.stripped;
  }
  if (text.empty()) return;
  // The last `stop` code points may still have to go.
  std::string joined = std::exchange(state.held, {});
  joined += text;
  size_t keep = joined.size();
  for (size_t i = 0; i < step.stop && std::string_view(joined).substr(0, keep).ends_with(step.content); ++i) {
    keep -= step.content.size();
  }
  state.held = joined.substr(keep);
  PushTo(index + 1, std::string_view(joined).substr(0, keep), out);
}

void DecoderStream::Step(const FuseDecoder& /*step*/, size_t index, std::string_view text, std::string& out) {
  PushTo(index + 1, text, out);
}

void DecoderStream::Step(const ByteLevelDecoder& /*step*/, size_t index, std::string_view text,
                         std::string& out) {
  std::string repaired;
  const std::optional<std::string> bytes = ByteLevelToBytes(text);
  AppendRepairedUtf8(bytes.has_value() ? std::string_view(*bytes) : text, states_[index].held, repaired);
  PushTo(index + 1, repaired, out);
}

void DecoderStream::Step(const JoinSpaceDecoder& /*step*/, size_t index, std::string_view text,
                         std::string& out) {
  if (!std::exchange(states_[index].is_first, false)) PushTo(index + 1, " ", out);
  PushTo(index + 1, text, out);
}

}  // namespace attest
