// attest serve: load, listen, say where, wait for a signal.
#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <cstdio>
#include <random>
#include <thread>

#include "attention/sentinel.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/connection_limit.h"
#include "cli/default_model.h"
#include "cli/model_host.h"
#include "device/descriptors.h"
#include "server/last_words.h"
#include "server/metrics.h"
#include "server/server.h"

namespace attest {
namespace {

// Blocks the signals this program handles, in this thread and in all it makes later. A client that closes its
// connection must not end the process either.
sigset_t BlockSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGINT);
  sigaddset(&handled, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return handled;
}

// Nothing to drain yet: the first signal ends the process, as if nobody handled it.
void HandleSignalsWhileLoading(const std::stop_token& stop, const sigset_t& handled) {
  while (!stop.stop_requested()) {
    const timespec wait{.tv_sec = 0, .tv_nsec = 20'000'000};
    const int number = sigtimedwait(&handled, nullptr, &wait);
    if (number <= 0) continue;
    LogInfo(fmt::format("{}: stopping while loading", strsignal(number)));
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
    raise(number);
  }
}

// The first signal drains the server, a second one stops it at once. An engine that serves nothing more
// drains it too: its requests have ended with an error by then.
void HandleSignals(const std::stop_token& stop, const sigset_t& handled, Server& server,
                   const Engine& engine) {
  int received = 0;
  bool has_stopped = false;
  while (!stop.stop_requested()) {
    const timespec wait{.tv_sec = 0, .tv_nsec = 100'000'000};
    const int number = sigtimedwait(&handled, nullptr, &wait);
    if (!has_stopped && !engine.stats().stopped_because.empty()) {
      has_stopped = true;
      server.Drain();
    }
    if (number <= 0) continue;
    ++received;
    if (received == 1) {
      LogInfo(fmt::format("{}: draining, new requests get 503; a second signal stops at once",
                          strsignal(number)));
      server.Drain();
    } else {
      LogInfo(fmt::format("{}: stopping", strsignal(number)));
      server.Stop();
    }
  }
}

std::unique_ptr<Sentinel> MakeSentinel(const ServeOptions& options, const ModelHost& host,
                                       const HubEnvironment& environment) {
  if (options.verify_attention == 0) {
    LogInfo("attention: no row is checked (--verify-attention 0)");
    return nullptr;
  }
  const uint64_t seed = options.verify_seed ? *options.verify_seed : std::random_device{}();
  const std::filesystem::path folder = options.attention_cases.empty()
                                           ? DefaultCaseFolder(environment)
                                           : std::filesystem::path(options.attention_cases);
  LogInfo(fmt::format(
      "attention: the oracle recomputes a fraction {} of the rows (seed {}); on a mismatch: {}; "
      "at most {} case(s) in {}",
      options.verify_attention, seed, options.on_mismatch, options.max_attention_cases, folder.string()));
  return std::make_unique<Sentinel>(
      SentinelOptions{.rate = options.verify_attention,
                      .seed = seed,
                      .on_mismatch = options.on_mismatch == "log"    ? OnMismatch::kLog
                                     : options.on_mismatch == "stop" ? OnMismatch::kStop
                                                                     : OnMismatch::kQuarantine,
                      .case_folder = options.max_attention_cases > 0 ? folder : std::filesystem::path(),
                      .max_cases = options.max_attention_cases,
                      .version = kVersion,
                      .model = host.name(),
                      .cpu = DescribeCpu(host.model().attention_router().cpu())});
}

void PrintWelcome(const ServeOptions& options, const std::string& name, uint16_t port, bool has_chat) {
  const bool any = options.host == "0.0.0.0" || options.host == "::";
  const std::string host = any                                           ? "127.0.0.1"
                           : options.host.find(':') != std::string::npos ? "[" + options.host + "]"
                                                                         : options.host;
  const std::string key = options.api_keys.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  std::string curl;
  if (has_chat) {
    curl = fmt::format(
        R"(  curl http://{}:{}/v1/chat/completions -H 'Content-Type: application/json'{} -d '{{"model": "{}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}')",
        host, port, key, name);
  } else {
    curl = fmt::format(
        R"(  curl http://{}:{}/v1/completions -H 'Content-Type: application/json'{} -d '{{"model": "{}", "prompt": "The capital of France is", "temperature": 0}}')",
        host, port, key, name);
  }
  std::printf("listening on http://%s:%u\n\n%s\n\n", host.c_str(), static_cast<unsigned>(port), curl.c_str());
  std::fflush(stdout);
}

int ResolveOnly(const ServeOptions& options, const HubEnvironment& environment) {
  const auto path = FindModel(options.model.model, environment);
  if (path) {
    std::printf("%s\n", path->c_str());
    return 0;
  }
  std::fprintf(stderr, "%s\n", path.error().message.c_str());
  return options.model.model.empty() ? 3 : 1;
}

// vLLM's names of the levels.
LogLevel LevelOf(const std::string& name) {
  if (name == "critical" || name == "error") return LogLevel::kError;
  if (name == "warning") return LogLevel::kWarning;
  return name == "info" ? LogLevel::kInfo : LogLevel::kDebug;
}

Status Serve(const ServeOptions& options, const HubEnvironment& environment) {
  SetLogLevel(LevelOf(options.log_level));
  const sigset_t handled = BlockSignals();
  std::jthread loading([&handled](const std::stop_token& stop) { HandleSignalsWhileLoading(stop, handled); });
  ATTEST_ASSIGN_OR_RETURN(const size_t max_connections,
                          ConnectionLimit(options.max_connections, RaiseDescriptorLimit()));
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::Load(options.model, environment));

  ServerOptions server_options;
  server_options.http.host = options.host;
  server_options.http.port = static_cast<uint16_t>(options.port);
  server_options.http.log_requests = options.log_requests;
  server_options.http.allowed_origins = options.allowed_origins;
  server_options.http.max_connections = max_connections;
  server_options.api_keys = options.api_keys;
  server_options.dev_endpoints = options.dev_endpoints;
  server_options.served_model_names = options.served_model_names;
  if (server_options.served_model_names.empty()) server_options.served_model_names.push_back(host->name());
  const std::string& name = server_options.served_model_names.front();

  const EngineOptions& engine_options = host->engine_options();
  ServerMetrics metrics(MetricsOptions{.prefix = options.metrics_prefix,
                                       .model_name = name,
                                       .max_model_len = engine_options.max_model_len,
                                       .block_size = engine_options.block_size,
                                       .num_blocks = engine_options.num_blocks,
                                       .attention_kernels = host->AttentionKernels()});
  const std::unique_ptr<Sentinel> sentinel = MakeSentinel(options, *host, environment);
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, host->StartEngine(&metrics, sentinel.get()));
  const TextAssets& text = host->text();
  SamplingParams default_sampling = text.default_sampling;
  default_sampling.seed = options.seed;
  ATTEST_ASSIGN_OR_RETURN(
      const std::unique_ptr<Server> server,
      Server::Start(server_options,
                    ServerContext{.engine = *engine,
                                  .tokenizer = *text.tokenizer,
                                  .chat_template = text.chat_template ? &*text.chat_template : nullptr,
                                  .metrics = metrics,
                                  .eos_ids = text.eos_ids,
                                  .default_sampling = default_sampling,
                                  .model_root = host->path().string(),
                                  .version = kVersion,
                                  .tokenizer_config_json = text.tokenizer_config_json,
                                  .chat_template_text = text.chat_template_text,
                                  .sentinel = sentinel.get()}));
  loading = {};
  LastWords last_words(*server);
  const std::jthread signals(
      [&](const std::stop_token& stop) { HandleSignals(stop, handled, *server, *engine); });
  PrintWelcome(options, name, server->port(), text.chat_template.has_value());
  server->Join();
  last_words.ServerHasStopped();
  if (std::string why = engine->stats().stopped_because; !why.empty()) {
    return Fail(ErrorCode::kInternal, std::move(why), "attention");
  }
  LogInfo("stopped");  // a log without it is that of a process that was killed
  return {};
}

}  // namespace

int RunServe(const ServeOptions& options, const HubEnvironment& environment) {
  if (options.resolve_only) return ResolveOnly(options, environment);
  if (const Status served = Serve(options, environment); !served) {
    std::fprintf(stderr, "attest serve: %s\n", served.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace attest
