#include "server/frontend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/cors.h"
#include "server/docs_page.h"
#include "server/engine_view.h"
#include "server/health.h"
#include "server/json_writer.h"
#include "server/page.h"
#include "server/tokenizer_routes.h"

namespace attest {
namespace {

constexpr int32_t kMaxChoices = 4096;  // sequences of one request
constexpr std::string_view kModelPrefix = "/v1/models/";

// Takes as long for a wrong key as for a right one of the same length.
bool EqualConstantTime(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

std::string WhyUnhealthy(const EngineStats& stats) {
  if (stats.stopped_because.empty()) return "the engine fails every step";
  return fmt::format("the engine has stopped: {}", stats.stopped_because);
}

CallLimits LimitsOf(const ServerOptions& options, const ServerContext& context) {
  const EngineOptions& engine = context.engine.options();
  return {.tokenizer = context.tokenizer,
          .chat_template = context.chat_template,
          .model_names = options.served_model_names,
          .default_sampling = context.default_sampling,
          .max_model_len = engine.max_model_len,
          .vocab_size = engine.vocab_size,
          .max_choices = std::min(kMaxChoices, engine.max_queue),
          .max_text_bytes = MaxTextBytes(context.tokenizer, engine.max_model_len)};
}

}  // namespace

Frontend::Frontend(const ServerOptions& options, const ServerContext& context, HttpServer& http)
    : options_(options),
      context_(context),
      http_(http),
      limits_(LimitsOf(options, context)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      tokenizer_info_(
          TokenizerInfoJson(context.tokenizer, context.tokenizer_config_json, context.chat_template_text)),
      openapi_(OpenApiJson({.routes = RouteEntries(options.dev_endpoints),
                            .version = context.version,
                            .has_keys = !options.api_keys.empty(),
                            .has_health_details = context.sentinel != nullptr,
                            .has_priorities = context.engine.options().policy == SchedulingPolicy::kPriority},
                           limits_)),
      tokens_([this] { http_.Post([this] { OnTokens(); }); }),
      workers_(options.num_workers) {}

Frontend::~Frontend() {
  for (auto& [id, generation] : generations_) generation->Abort();
}

const std::vector<Frontend::Route>& Frontend::Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/", &Frontend::Page},
      {"GET", "/engine", &Frontend::EngineNow},
      {"GET", "/health", &Frontend::Health},
      {"GET", "/ready", &Frontend::Ready},
      {"GET", "/version", &Frontend::Version},
      {"GET", "/openapi.json", &Frontend::OpenApi},
      {"GET", "/docs", &Frontend::Docs},
      {"GET", "/load", &Frontend::Load},
      {"GET", "/metrics", &Frontend::MetricsText},
      {"GET", "/v1/models", &Frontend::Models, true},
      {"POST", "/v1/completions", &Frontend::Completions, true},
      {"POST", "/v1/chat/completions", &Frontend::ChatCompletions, true},
      {"POST", "/tokenize", &Frontend::TokenizeText, true},
      {"POST", "/detokenize", &Frontend::DetokenizeIds, true},
      {"GET", "/tokenizer_info", &Frontend::TokenizerInfo, true},
      {"POST", "/start_profile", &Frontend::StartProfile, true, /*is_dev=*/true},
      {"POST", "/stop_profile", &Frontend::StopProfile, true, /*is_dev=*/true},
      {"POST", "/reset_prefix_cache", &Frontend::ResetPrefixCache, true, /*is_dev=*/true},
  };
  return routes;
}

std::vector<RouteEntry> Frontend::RouteEntries(bool with_dev) {
  std::vector<RouteEntry> entries;
  for (const Route& route : Routes()) {
    if (!route.is_dev || with_dev) {
      entries.push_back({.method = route.method, .path = route.path, .wants_key = route.wants_key});
    }
  }
  entries.push_back({.method = "GET", .path = "/v1/models/{model_id}", .wants_key = true});
  return entries;
}

void Frontend::OnRequest(ExchangeId id, HttpRequest request) {
  // Browsers send no key with it.
  if (!options_.http.allowed_origins.empty() && IsPreflight(request))
    return Respond(id, PreflightResponse(request));
  const bool wants_key =
      request.path.starts_with("/v1/") ||
      std::ranges::any_of(Routes(), [&](const Route& r) { return r.wants_key && r.path == request.path; });
  if (wants_key && !HasKey(request)) {
    context_.metrics.CountResponse(401);
    http_.Respond(id, {.status = 401,
                       .body = ErrorBody(401, "the API key is missing or wrong"),
                       .headers = {{"WWW-Authenticate", "Bearer"}}});
    return;
  }
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  for (const Route& route : Routes()) {
    if (route.path != request.path || (route.is_dev && !options_.dev_endpoints)) continue;
    if (route.method == method) return (this->*route.handler)(id, request);
    allowed = route.method;
  }
  // The name is decoded after routing: as one segment, "org%2Fname"; clients that do not encode work too.
  if (request.path.starts_with(kModelPrefix)) {
    if (method == "GET") return Model(id, std::string_view(request.path).substr(kModelPrefix.size()));
    allowed = "GET";
  }
  if (allowed.empty()) return RespondError(id, 404, fmt::format("no such path: {}", request.path));
  if (allowed == "GET") allowed = "GET, HEAD";
  Respond(id, {.status = 405,
               .body = ErrorBody(405, fmt::format("{} is not allowed on {}", request.method, request.path)),
               .headers = {{"Allow", allowed}}});
}

bool Frontend::HasKey(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  std::string_view value = request.Header("authorization");
  if (value.size() < kScheme.size() || ToLowerAscii(value.substr(0, kScheme.size())) != kScheme) return false;
  value.remove_prefix(kScheme.size());
  bool matches = false;
  for (const std::string& key : options_.api_keys) matches |= EqualConstantTime(value, key);
  return matches;
}

void Frontend::Respond(ExchangeId id, HttpResponse response) {
  context_.metrics.CountResponse(response.status);
  http_.Respond(id, std::move(response));
}

void Frontend::RespondError(ExchangeId id, int status, std::string_view message, std::string_view param) {
  HttpResponse response{.status = status, .body = ErrorBody(status, message, param), .headers = {}};
  if (status == 503) response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  Respond(id, std::move(response));
}

void Frontend::RespondError(ExchangeId id, const Error& error) {
  RespondError(id, HttpStatusOf(error.code), error.message, error.field);
}

void Frontend::Page(ExchangeId id, HttpRequest& request) {
  Respond(id, PageResponse(request.Header("if-none-match")));
}

void Frontend::EngineNow(ExchangeId id, HttpRequest&) {
  const auto uptime =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - started_);
  const std::optional<SentinelStats> sentinel =
      context_.sentinel != nullptr ? std::optional(context_.sentinel->stats()) : std::nullopt;
  Respond(id, {.body = EngineJson({.model = options_.served_model_names.front(),
                                   .version = context_.version,
                                   .has_chat_template = context_.chat_template != nullptr,
                                   .draining = draining_,
                                   .uptime_seconds = uptime.count(),
                                   .options = context_.engine.options(),
                                   .default_sampling = context_.default_sampling,
                                   .stats = Stats(),
                                   .kernels_at_load = context_.metrics.attention_kernels(),
                                   .rows = context_.metrics.attention_rows(),
                                   .sentinel = sentinel}),
               .headers = {{"Cache-Control", "no-store"}},
               .is_logged = false});
}

EngineStats Frontend::Stats() const {
  EngineStats stats = context_.engine.stats();
  if (!failed_because_.empty()) {
    stats.stopped_because = failed_because_;
    stats.healthy = false;
  }
  return stats;
}

void Frontend::Health(ExchangeId id, HttpRequest&) {
  const EngineStats stats = Stats();
  const int status = stats.healthy ? 200 : 503;
  if (context_.sentinel != nullptr) {
    return Respond(id,
                   {.status = status, .body = HealthJson(stats, context_.sentinel->stats()), .headers = {}});
  }
  if (!stats.healthy) return RespondError(id, 503, WhyUnhealthy(stats));
  Respond(id, {.content_type = "", .body = {}, .headers = {}});
}

void Frontend::Ready(ExchangeId id, HttpRequest&) {
  if (draining_) return RespondError(id, 503, "the server is draining");
  if (const EngineStats stats = Stats(); !stats.healthy) {
    return RespondError(id, 503, WhyUnhealthy(stats));
  }
  Respond(id, {.content_type = "", .body = {}, .headers = {}});
}

void Frontend::Version(ExchangeId id, HttpRequest&) {
  std::string body;
  JsonWriter(body).BeginObject().Key("version").String(context_.version).EndObject();
  Respond(id, {.body = std::move(body), .headers = {}});
}

void Frontend::OpenApi(ExchangeId id, HttpRequest&) { Respond(id, {.body = openapi_, .headers = {}}); }

void Frontend::Docs(ExchangeId id, HttpRequest&) {
  Respond(id, {.content_type = "text/html; charset=utf-8", .body = std::string(kDocsPage), .headers = {}});
}

void Frontend::Load(ExchangeId id, HttpRequest&) {
  std::string body;
  const auto load = static_cast<int64_t>(generations_.size()) + num_parsing_;
  JsonWriter(body).BeginObject().Key("server_load").Int(load).EndObject();
  Respond(id, {.body = std::move(body), .headers = {}});
}

void Frontend::MetricsText(ExchangeId id, HttpRequest&) {
  Respond(id, {.content_type = "text/plain; version=0.0.4; charset=utf-8",
               .body = context_.metrics.Render(
                   Stats(), http_.stats(),
                   context_.sentinel != nullptr ? std::optional(context_.sentinel->stats()) : std::nullopt),
               .headers = {}});
}

void Frontend::StartProfile(ExchangeId id, HttpRequest&) {
  std::string body;
  JsonWriter(body).BeginObject().Key("success").Bool(context_.metrics.profile().Start()).EndObject();
  Respond(id, {.body = std::move(body), .headers = {}});
}

void Frontend::StopProfile(ExchangeId id, HttpRequest&) {
  const std::optional<std::string> profile = context_.metrics.profile().Stop();
  std::string body;
  JsonWriter json(body);
  json.BeginObject().Key("success").Bool(profile.has_value());
  json.Key("profile").Raw(profile.value_or("null")).EndObject();
  Respond(id, {.body = std::move(body), .headers = {}});
}

// A worker waits for the engine, which finishes its step first; this thread has streams to serve.
void Frontend::ResetPrefixCache(ExchangeId id, HttpRequest&) {
  workers_.Enqueue([this, id] {
    const bool success = context_.engine.ResetPrefixCache();
    http_.Post([this, id, success] {
      if (!http_.IsOpen(id)) return;
      std::string body;
      JsonWriter(body).BeginObject().Key("success").Bool(success).EndObject();
      Respond(id, {.body = std::move(body), .headers = {}});
    });
  });
}

ServedModel Frontend::Describe(std::string_view name) const {
  return {.id = name,
          .root = context_.model_root,
          .created_unix_seconds = created_,
          .max_model_len = limits_.max_model_len};
}

void Frontend::Models(ExchangeId id, HttpRequest&) {
  std::vector<ServedModel> models;
  for (const std::string& name : options_.served_model_names) models.push_back(Describe(name));
  Respond(id, {.body = ModelListJson(models), .headers = {}});
}

void Frontend::Model(ExchangeId id, std::string_view encoded_name) {
  const std::string name = PercentDecode(encoded_name);
  if (std::ranges::count(options_.served_model_names, name) == 0) {
    return RespondError(id, 404, fmt::format("the model {} does not exist", name), "model");
  }
  Respond(id, {.body = ModelJson(Describe(name)), .headers = {}});
}

void Frontend::Completions(ExchangeId id, HttpRequest& request) {
  Generate(id, request, &ParseCompletionCall);
}
void Frontend::ChatCompletions(ExchangeId id, HttpRequest& request) { Generate(id, request, &ParseChatCall); }

void Frontend::TokenizeText(ExchangeId id, HttpRequest& request) { Answer(id, request, &Tokenize); }
void Frontend::DetokenizeIds(ExchangeId id, HttpRequest& request) { Answer(id, request, &Detokenize); }
void Frontend::TokenizerInfo(ExchangeId id, HttpRequest&) {
  Respond(id, {.body = tokenizer_info_, .headers = {}});
}

// Bodies wait for a worker; when too many do, the next request is answered here.
bool Frontend::Hold(ExchangeId id, const HttpRequest& request) {
  const size_t limit = options_.http.max_held_body_bytes;
  if (held_body_bytes_ > 0 && held_body_bytes_ + request.body.size() > limit) {
    RespondError(id, 503, fmt::format("over {} bytes of requests wait to be read; try again", limit));
    return false;
  }
  held_body_bytes_ += request.body.size();
  return true;
}

void Frontend::Answer(ExchangeId id, HttpRequest& request, Answerer answerer) {
  if (!Hold(id, request)) return;
  ++num_answering_;
  workers_.Enqueue([this, id, answerer, body = std::move(request.body)] {
    Expected<std::string> answer = std::unexpected(Error{});
    try {
      answer = answerer(body, limits_);
    } catch (const std::exception& e) {  // out of memory, or a bug: this request fails, the others go on
      answer = Fail(ErrorCode::kInternal, fmt::format("the request could not be answered: {}", e.what()));
    }
    http_.Post([this, id, bytes = body.size(), answer = std::move(answer)]() mutable {
      held_body_bytes_ -= bytes;
      --num_answering_;
      if (http_.IsOpen(id)) {  // else the client left meanwhile
        if (answer) {
          Respond(id, {.body = std::move(*answer), .headers = {}});
        } else {
          RespondError(id, answer.error());
        }
      }
      FinishDrain();
    });
  });
}

void Frontend::Generate(ExchangeId id, HttpRequest& request, Parser parse) {
  if (draining_) return RespondError(id, 503, "the server is draining; try another one");
  if (!failed_because_.empty()) return RespondError(id, 503, WhyUnhealthy(Stats()));
  if (!Hold(id, request)) return;
  ++num_parsing_;
  workers_.Enqueue(
      [this, id, parse, body = std::move(request.body), request_id = request.request_id]() mutable {
        Expected<GenerationCall> call = std::unexpected(Error{});
        try {
          call = parse(body, limits_);
        } catch (const std::exception& e) {  // out of memory, or a bug: this request fails, the others go on
          call = Fail(ErrorCode::kInternal, fmt::format("the request could not be read: {}", e.what()));
        }
        http_.Post([this, id, bytes = body.size(), request_id = std::move(request_id),
                    call = std::move(call)]() mutable {
          held_body_bytes_ -= bytes;
          Begin(id, request_id, std::move(call));
        });
      });
}

void Frontend::Begin(ExchangeId id, const std::string& request_id, Expected<GenerationCall> call) {
  --num_parsing_;
  if (http_.IsOpen(id)) {  // else the client left meanwhile
    if (!call) {
      RespondError(id, call.error());
    } else if (!failed_because_.empty()) {
      RespondError(id, 503, WhyUnhealthy(Stats()));
    } else {
      const Generation::Rooms rooms{.engine = context_.engine,
                                    .tokenizer = context_.tokenizer,
                                    .http = http_,
                                    .tokens = tokens_,
                                    .metrics = context_.metrics,
                                    .eos_ids = context_.eos_ids};
      const GenerationId generation_id = ++next_generation_;
      auto generation = std::make_unique<Generation>(rooms, generation_id, id, std::move(*call), request_id);
      if (const Status started = generation->Start(); !started) {
        RespondError(id, started.error());
      } else {
        by_exchange_.emplace(id, generation_id);
        generations_.emplace(generation_id, std::move(generation));
      }
    }
  }
  FinishDrain();
}

void Frontend::OnTokens() {
  std::vector<Generation*> touched;
  TokenBatch batch = tokens_.Drain();
  for (TokenEvent& event : batch.events) {
    const auto it = generations_.find(event.generation);
    if (it == generations_.end()) continue;  // its client left, or a stop string ended it
    it->second->Apply(event);
    touched.push_back(it->second.get());
  }
  std::ranges::sort(touched);
  const auto repeats = std::ranges::unique(touched);
  touched.erase(repeats.begin(), repeats.end());
  for (Generation* generation : touched) {
    generation->Flush();
    if (generation->finished()) Erase(generation->id());
  }
  if (!batch.events.empty()) context_.metrics.ObserveDelivery(std::chrono::steady_clock::now() - batch.since);
  FinishDrain();
}

void Frontend::OnClosed(ExchangeId id) {
  const auto it = by_exchange_.find(id);
  if (it == by_exchange_.end()) return;
  const GenerationId generation = it->second;
  generations_.at(generation)->Abort();
  Erase(generation);
  FinishDrain();
}

void Frontend::Erase(GenerationId id) {
  const auto it = generations_.find(id);
  by_exchange_.erase(it->second->exchange());
  generations_.erase(it);
}

void Frontend::Drain() {
  http_.Post([this] {
    draining_ = true;
    FinishDrain();
  });
}

void Frontend::EndAll(const std::string& why) {
  http_.Post([this, why] {
    failed_because_ = why;
    for (auto& [id, generation] : std::exchange(generations_, {})) {
      generation->FailAll({.code = ErrorCode::kInternal, .message = WhyUnhealthy(Stats()), .field = {}});
      generation->Flush();
    }
    by_exchange_.clear();
    FinishDrain();
  });
}

void Frontend::FinishDrain() {
  if (draining_ && generations_.empty() && num_parsing_ == 0 && num_answering_ == 0) http_.Shutdown();
}

}  // namespace attest
