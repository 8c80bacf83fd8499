#include "server/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/json_writer.h"
#include "text/unicode.h"

namespace attest {
namespace {

constexpr float kLowestLogprob = -9999.0f;  // -inf is not JSON

std::string NumberText(float logprob) {
  std::string text = fmt::format("{}", std::max(logprob, kLowestLogprob));
  // A client that is strict about types wants a float, also for 0 and -9999.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::span<const IdLogprob> Top(const TokenLogprobs& scores, int32_t num_top) {
  return std::span(scores.top).first(std::min(scores.top.size(), static_cast<size_t>(num_top)));
}

}  // namespace

std::string LogprobsWriter::BytesOf(int32_t id) const {
  // A model's vocabulary may be padded beyond the tokenizer's: such ids have no text.
  return id >= 0 && id < tokenizer_.vocab_size() ? tokenizer_.TokenBytes(id) : std::string();
}

std::string LogprobsWriter::TokenText(int32_t id) const {
  if (as_token_ids_) return fmt::format("token_id:{}", id);
  std::string bytes = BytesOf(id);
  if (IsValidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

int64_t LogprobsWriter::NumCodePoints(int32_t id) const {
  return std::ranges::count_if(BytesOf(id),
                               [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; });
}

std::string LogprobsWriter::Completion(std::span<const LoggedToken> tokens, int32_t num_top) const {
  std::string out;
  JsonWriter json(out);
  json.BeginObject().Key("text_offset").BeginArray();
  for (const LoggedToken& t : tokens) json.Int(t.text_offset);
  json.EndArray().Key("token_logprobs").BeginArray();
  for (const LoggedToken& t : tokens) json.Raw(t.scores ? NumberText(t.scores->logprob) : "null");
  json.EndArray().Key("tokens").BeginArray();
  for (const LoggedToken& t : tokens) json.String(TokenText(t.token));
  json.EndArray().Key("top_logprobs").BeginArray();
  std::vector<std::pair<std::string, float>> entries;
  for (const LoggedToken& t : tokens) {
    if (!t.scores) {
      json.Null();
      continue;
    }
    entries.assign(1, {TokenText(t.token), t.scores->logprob});
    for (const IdLogprob& best : Top(*t.scores, num_top)) {
      std::string text = TokenText(best.id);
      const auto same = std::ranges::find(entries, text, &std::pair<std::string, float>::first);
      if (same == entries.end()) {
        entries.emplace_back(std::move(text), best.logprob);
      } else {
        same->second = std::max(same->second, best.logprob);
      }
    }
    json.BeginObject();
    for (const auto& [text, logprob] : entries) json.Key(text).Raw(NumberText(logprob));
    json.EndObject();
  }
  json.EndArray().EndObject();
  return out;
}

std::string LogprobsWriter::Chat(std::span<const LoggedToken> tokens, int32_t num_top) const {
  std::string out;
  JsonWriter json(out);
  const auto begin_token = [&](int32_t id, float logprob) {
    json.BeginObject().Key("token").String(TokenText(id)).Key("logprob").Raw(NumberText(logprob));
    json.Key("bytes").BeginArray();
    for (const char byte : BytesOf(id)) json.Int(static_cast<unsigned char>(byte));
    json.EndArray();
  };
  json.BeginObject().Key("content").BeginArray();
  for (const LoggedToken& t : tokens) {
    if (!t.scores) continue;
    begin_token(t.token, t.scores->logprob);
    json.Key("top_logprobs").BeginArray();
    for (const IdLogprob& best : Top(*t.scores, num_top)) {
      begin_token(best.id, best.logprob);
      json.EndObject();
    }
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
  return out;
}

std::string LogprobsWriter::Prompt(std::span<const TokenLogprobs> prompt, int32_t num_top) const {
  std::string out;
  JsonWriter json(out);
  json.BeginArray().Null();
  for (const TokenLogprobs& scores : prompt) {
    const auto entry = [&](int32_t id, float logprob, int32_t rank) {
      json.Key(std::to_string(id)).BeginObject().Key("logprob").Raw(NumberText(logprob));
      json.Key("rank").Int(rank).Key("decoded_token").String(TokenText(id)).EndObject();
    };
    json.BeginObject();
    entry(scores.token, scores.logprob, scores.rank);
    int32_t rank = 0, seen = 0;
    float previous = 0;
    for (const IdLogprob& best : Top(scores, num_top)) {
      if (seen++ == 0 || best.logprob < previous) rank = seen;
      previous = best.logprob;
      if (best.id != scores.token) entry(best.id, best.logprob, rank);
    }
    json.EndObject();
  }
  json.EndArray();
  return out;
}

}  // namespace attest
