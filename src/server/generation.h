// One request for text under way: its sequences in the engine, and what they have said so far. Turns tokens
// into text, finds stop strings, and writes the stream or the response. Owned by the frontend; I/O thread
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http_server.h"
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
  void Abort();

  [[nodiscard]] bool finished() const { return num_running_ == 0; }
  [[nodiscard]] GenerationId id() const { return id_; }
  [[nodiscard]] ExchangeId exchange() const { return exchange_; }

 private:
  struct Choice {
    RequestId engine_id = 0;
    IncrementalDecoder decoder;
    StopMatcher stops;
    ChoiceResult result;  // its text grows only where the answer is not streamed
    int32_t num_tokens = 0;
    bool is_running = true;
    bool has_spoken = false;  // chat: the role chunk was sent
  };

  void OnToken(int32_t index, int32_t token);
  void Emit(int32_t index, std::string_view text);
  void Finish(int32_t index, FinishReason reason, StopReason stop_reason);
  void FailAll(const Error& error);
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
  std::vector<Choice> choices_;
  int32_t num_running_ = 0;
  Usage usage_;
};

}  // namespace attest
