// The JSON of answers: whole responses, stream chunks, the model list. Pure functions of plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"

namespace attest {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt tokens, those from the prefix cache
};

// What ended a choice beyond its finish reason: nothing to tell (eos, length), a stop string, a stop token
// id.
using StopReason = std::variant<std::monostate, std::string, int32_t>;

struct ChoiceResult {
  std::string text;
  FinishReason finish = FinishReason::kStop;
  StopReason stop_reason;
  std::string logprobs = "null";     // JSON, see logprobs_json.h
  std::string_view prompt_logprobs;  // JSON; "" where not asked for
};

// Writes the chunks and the response of one request. The part that never changes (id, object, created, model)
// is formatted once. Owned by one generation.
class ResponseWriter {
 public:
  ResponseWriter(bool is_chat, bool is_stream, std::string_view request_id, std::string_view model,
                 int64_t created_unix_seconds);

  // Stream events, "data: " to the empty line. `usage` null: none in this chunk.
  [[nodiscard]] std::string RoleEvent(int32_t index,
                                      const Usage* usage) const;  // chat: the first of a choice
  // `logprobs`: JSON.
  [[nodiscard]] std::string TextEvent(int32_t index, std::string_view text, std::string_view logprobs,
                                      const Usage* usage) const;
  [[nodiscard]] std::string FinishEvent(int32_t index, FinishReason finish, const StopReason& stop_reason,
                                        const Usage* usage) const;
  [[nodiscard]] std::string UsageEvent(const Usage& usage) const;
  [[nodiscard]] static std::string ErrorEvent(int status, std::string_view message);
  static constexpr std::string_view kDone = "data: [DONE]\n\n";

  // The whole answer of a request that does not stream; index = position.
  [[nodiscard]] std::string Response(const std::vector<ChoiceResult>& choices, const Usage& usage) const;

 private:
  bool is_chat_;
  std::string head_;  // {"id":...,"model":...,"choices":[
};

struct ServedModel {
  std::string_view id, root;
  int64_t created_unix_seconds = 0;
  int32_t max_model_len = 0;
};
[[nodiscard]] std::string ModelJson(const ServedModel& model);
[[nodiscard]] std::string ModelListJson(const std::vector<ServedModel>& models);

}  // namespace attest
