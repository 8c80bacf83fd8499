// Routes requests, checks keys, and keeps the table of generations under way. Owned by Server; I/O thread
// only, except where marked.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/generation.h"
#include "server/http_server.h"
#include "server/openai_request.h"
#include "server/openapi.h"
#include "server/server.h"
#include "server/token_queue.h"
#include "server/worker_pool.h"

namespace attest {

class Frontend final : public HttpHandler {
 public:
  // Everything must outlive the frontend.
  Frontend(const ServerOptions& options, const ServerContext& context, HttpServer& http);
  // REQUIRES: the I/O thread has ended. Waits for the workers and for the engine to drop every sink.
  ~Frontend() override;

  void OnRequest(ExchangeId id, HttpRequest request) override;
  void OnClosed(ExchangeId id) override;

  // Any thread. Refuses new generations; once the last one is answered, shuts the HTTP server down.
  void Drain();
  // Any thread. Ends every generation with an error, and refuses new ones and probes with a 503.
  void EndAll(const std::string& why);

  // The routes there are, for the API's description; with those of ServerOptions::dev_endpoints where asked.
  [[nodiscard]] static std::vector<RouteEntry> RouteEntries(bool with_dev);

 private:
  using Handler = void (Frontend::*)(ExchangeId, HttpRequest&);
  struct Route {
    std::string_view method, path;
    Handler handler;
    bool wants_key = false;  // where keys are set
    bool is_dev = false;     // exists only with ServerOptions::dev_endpoints
  };
  static const std::vector<Route>& Routes();

  void StartProfile(ExchangeId id, HttpRequest& request);
  void StopProfile(ExchangeId id, HttpRequest& request);
  void Page(ExchangeId id, HttpRequest& request);
  void EngineNow(ExchangeId id, HttpRequest& request);
  void ResetPrefixCache(ExchangeId id, HttpRequest& request);
  void Health(ExchangeId id, HttpRequest& request);
  void Ready(ExchangeId id, HttpRequest& request);
  void Version(ExchangeId id, HttpRequest& request);
  void OpenApi(ExchangeId id, HttpRequest& request);
  void Docs(ExchangeId id, HttpRequest& request);
  void Load(ExchangeId id, HttpRequest& request);
  void MetricsText(ExchangeId id, HttpRequest& request);
  void Models(ExchangeId id, HttpRequest& request);
  void Model(ExchangeId id, std::string_view encoded_name);
  void Completions(ExchangeId id, HttpRequest& request);
  void ChatCompletions(ExchangeId id, HttpRequest& request);
  void TokenizeText(ExchangeId id, HttpRequest& request);
  void DetokenizeIds(ExchangeId id, HttpRequest& request);
  void TokenizerInfo(ExchangeId id, HttpRequest& request);

  using Answerer = Expected<std::string> (*)(std::string_view body, const CallLimits& limits);
  // Answers on a worker: tokenization takes milliseconds.
  void Answer(ExchangeId id, HttpRequest& request, Answerer answerer);
  using Parser = Expected<GenerationCall> (*)(std::string_view body, const CallLimits& limits);
  void Generate(ExchangeId id, HttpRequest& request, Parser parse);
  void Begin(ExchangeId id, const std::string& request_id, Expected<GenerationCall> call);
  [[nodiscard]] bool Hold(ExchangeId id, const HttpRequest& request);
  void OnTokens();
  void Erase(GenerationId id);
  void FinishDrain();
  [[nodiscard]] EngineStats Stats() const;

  void Respond(ExchangeId id, HttpResponse response);
  void RespondError(ExchangeId id, int status, std::string_view message, std::string_view param = {});
  void RespondError(ExchangeId id, const Error& error);
  [[nodiscard]] bool HasKey(const HttpRequest& request) const;
  [[nodiscard]] ServedModel Describe(std::string_view name) const;

  const ServerOptions& options_;
  const ServerContext& context_;
  HttpServer& http_;
  const CallLimits limits_;
  const int64_t created_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const std::string tokenizer_info_;  // JSON
  const std::string openapi_;         // JSON
  bool draining_ = false;
  std::string failed_because_;  // set once, by EndAll
  int64_t num_parsing_ = 0;     // generation requests in the worker pool
  int64_t num_answering_ = 0;   // other requests there
  size_t held_body_bytes_ = 0;  // of both
  GenerationId next_generation_ = 0;
  TokenQueue tokens_;
  std::unordered_map<GenerationId, std::unique_ptr<Generation>> generations_;
  std::unordered_map<ExchangeId, GenerationId> by_exchange_;
  WorkerPool workers_;  // last: its tasks use the members above
};

}  // namespace attest
