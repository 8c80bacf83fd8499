// One request for text under way: its sequences in the engine, and what they have said so far. Turns tokens
// into text, finds stop strings, and writes the stream or the response. Owned by the frontend; I/O thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http_server.h"
#include "server/logprobs_json.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/stop_matcher.h"
#include "server/token_queue.h"
#include "text/tokenizer.h"

namespace attest {

class Generation {
 public:
  struct Rooms {  // where its parts live; all outlive the generation
    Engine& engine;
    const Tokenizer& tokenizer;
    HttpServer& http;
    TokenQueue& tokens;
    ServerMetrics& metrics;
    const std::vector<int32_t>& eos_ids;
  };

  Generation(const Rooms& rooms, GenerationId id, ExchangeId exchange, GenerationCall call,
             std::string_view request_id);

  // Submits every choice, and opens the stream. On an error nothing is left in the engine and nothing was
  // answered.
  Status Start();
  // Applies one event of this generation; ends the answer with the last.
  void Apply(TokenEvent& event);
  // Hands what Apply wrote to the socket: once per batch of events.
  void Flush() { rooms_.http.Flush(exchange_); }
  // Stops what still runs; its tokens are for nobody.
  void Abort() { StopRunning(FinishReason::kAbort); }
  // One failed sequence fails the request: its answer would not be what was asked for.
  void FailAll(const Error& error);

  [[nodiscard]] bool finished() const { return num_running_ == 0; }
  [[nodiscard]] GenerationId id() const { return id_; }
  [[nodiscard]] ExchangeId exchange() const { return exchange_; }

 private:
  // One sample of a prompt. Where best_of asks for more than n, some of them are no choice of the answer.
  struct Choice {
    RequestId engine_id = 0;
    std::vector<int32_t> prompt_end;  // primes the decoder; kept where the text may have to begin anew
    IncrementalDecoder decoder;
    StopMatcher stops;
    ChoiceResult result;  // its text grows only where the answer is not streamed
    int32_t num_tokens = 0;
    bool is_running = true;
    bool has_spoken = false;            // chat: the role chunk was sent
    std::vector<LoggedToken> logged;    // of the text that was not sent yet, where logprobs are wanted
    int64_t text_offset = 0;            // of the next token, in prompt and text
    size_t prompt = 0;                  // its index in the call
    int32_t first_token = 0;            // of its prompt
    bool took_scores = false;           // has the prompt's logprobs
    std::vector<TokenEvent> held = {};  // what came before them
    double logprob_sum = 0;             // of its num_logprobs tokens, the one that ended it among them
    int32_t num_logprobs = 0;
  };

  void StopRunning(FinishReason reason);
  void OnToken(int32_t index, int32_t token, std::unique_ptr<TokenLogprobs> logprobs);
  void Show(int32_t index, int32_t token);
  void OnPromptLogprobs(int32_t index, std::vector<TokenLogprobs> scores);
  void TakeScores(int32_t index);
  void ReleaseHeld(size_t prompt);
  // The first sample of a prompt has the prompt scored for all; what the others say waits for that.
  [[nodiscard]] size_t ScorerOf(size_t prompt) const { return prompt * static_cast<size_t>(call_.best_of); }
  [[nodiscard]] bool IsScorer(int32_t index) const { return index % call_.best_of == 0; }
  [[nodiscard]] bool WaitsForScores(int32_t index) const;
  [[nodiscard]] std::vector<size_t> BestOf(size_t prompt) const;
  void Count(Choice& choice, const TokenLogprobs& scores);
  void Log(Choice& choice, int32_t token, std::optional<TokenLogprobs> scores, bool is_shown);
  void Echo(int32_t index);
  // Where the offsets of a choice begin: behind its prompt, or with it where it is echoed.
  [[nodiscard]] int64_t FirstOffset(size_t prompt) const {
    return call_.prompt_lengths.empty() ? 0 : call_.prompt_lengths[prompt];
  }
  [[nodiscard]] std::string TakeLogprobs(Choice& choice);
  void Retract(int32_t index);
  void Emit(int32_t index, std::string_view text);
  void Finish(int32_t index, FinishReason reason, StopReason stop_reason);
  void EndAnswer();
  [[nodiscard]] const Usage* ChunkUsage() const { return call_.continuous_usage_stats ? &usage_ : nullptr; }
  [[nodiscard]] bool IsDecodable(int32_t token) const {
    return token >= 0 && token < rooms_.tokenizer.vocab_size();
  }

  const Rooms rooms_;
  const GenerationId id_;
  const ExchangeId exchange_;
  GenerationCall call_;
  ResponseWriter writer_;
  LogprobsWriter logprobs_writer_;
  std::vector<Choice> choices_;                                           // best_of of each prompt
  std::vector<std::optional<std::vector<TokenLogprobs>>> prompt_scores_;  // by prompt, once they are there
  int32_t num_running_ = 0;
  Usage usage_;
};

}  // namespace attest
