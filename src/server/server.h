// The OpenAI-compatible HTTP server. Owned by the CLI, which also owns everything in ServerContext; all of it
// must outlive the Server.
//
// One request, file by file: http_server.cc parses bytes into an HttpRequest; frontend.cc routes it and hands
// the JSON, template and tokenizer work to worker_pool.h; openai_request.cc turns the body into a
// GenerationCall; generation.cc submits it and turns tokens back into text (stop_matcher.h) and JSON
// (openai_response.cc). Everything of a live request belongs to the I/O thread: the engine thread only pushes
// to token_queue.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/sentinel.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace attest {

struct ServerOptions {
  HttpServerOptions http;
  std::vector<std::string> api_keys;            // empty: /v1 is open
  std::vector<std::string> served_model_names;  // at least one; the first is the one answers carry
  int num_workers = 2;                          // threads for JSON, templates and tokenization
  bool dev_endpoints = false;                   // routes that change the server, such as /reset_prefix_cache
};

struct ServerContext {
  Engine& engine;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;  // nullptr: chat requests get a 400 that says so
  ServerMetrics& metrics;                       // also the engine's observer
  std::vector<int32_t> eos_ids;                 // end a generation unless ignore_eos
  SamplingParams default_sampling;         // temperature, filters, penalties, seed where a request sets none
  std::string model_root;                  // where the model came from, for /v1/models
  std::string version;                     // of this program
  std::string tokenizer_config_json = {};  // what /tokenizer_info tells, see TokenizerInfoJson; may be empty
  std::string chat_template_text = {};     // the source of chat_template; may be empty
  const Sentinel* sentinel = nullptr;      // what /health and /metrics tell about attention; nullptr: nothing
};

class Server {
 public:
  // Listens and serves. Errors: a port in use (names host:port), no model name.
  static Expected<std::unique_ptr<Server>> Start(const ServerOptions& options, const ServerContext& context);
  // Stop and Join; returns once the engine has dropped every sequence of this server.
  virtual ~Server() = default;

  [[nodiscard]] virtual uint16_t port() const = 0;

  // Any thread; both return at once. Drain: new generation requests get 503 and /ready turns 503, what runs
  // finishes, then the server stops by itself. Stop: what runs is aborted, connections are closed.
  virtual void Drain() = 0;
  virtual void Stop() = 0;
  // Something that cannot go on has happened to the engine: every generation ends with `why`, new ones get a
  // 503, and so do /health and /ready. False, and nothing done, on the server's own thread. The engine is not
  // waited for.
  virtual bool EndAll(const std::string& why) = 0;
  // Returns when the server has stopped. One thread.
  virtual void Join() = 0;
};

}  // namespace attest
