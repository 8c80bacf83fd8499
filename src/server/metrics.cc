#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

namespace attest {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// 1, 2, 5, 10, ... up to `max`.
Buckets LengthBuckets(int32_t max) {
  Buckets buckets;
  for (double decade = 1; decade <= max; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= max) buckets.push_back(decade * step);
    }
  }
  if (buckets.empty()) buckets.push_back(1);
  return buckets;
}

Buckets PowersOfTwo(int32_t max) {
  Buckets buckets;
  for (double bound = 1; bound <= max; bound *= 2) buckets.push_back(bound);
  return buckets;
}

const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
// From 1 ms: a small model on one host is below the 10 ms at which other servers begin.
const Buckets kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
                               0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0};
const Buckets kRequestSeconds = {0.05, 0.1,  0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,
                                 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0};
const Buckets kStepSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                              0.1,    0.25,  0.5,    1.0,   2.5,  5.0,   10.0};

// There from the first scrape on, though zero: PromQL's increase() sees no step from nothing to the first
// value, so that an alert would sleep through it.
constexpr std::array kAlertedResponses = {500, 503};
constexpr std::array kRefusals = {400, 408, 413, 431, 503};  // what http_server.cc refuses with

double Seconds(RequestRecord::TimePoint from, RequestRecord::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

// Zeros for the kernels chosen at load that have computed nothing yet, as kAlertedResponses.
std::vector<SentinelCounts> WithUnused(std::vector<SentinelCounts> counts,
                                       const std::vector<std::pair<std::string, std::string>>& at_load) {
  for (const AttentionPhase phase : kAttentionPhases) {
    for (const auto& [name, kernel] : at_load) {
      const bool is_counted = std::ranges::any_of(
          counts, [&](const SentinelCounts& c) { return c.phase == phase && c.kernel == kernel; });
      if (name == AttentionPhaseName(phase) && !is_counted)
        counts.push_back({.kernel = kernel, .phase = phase});
    }
  }
  return counts;
}

// add(name, help, type, value, labels).
template <class Add>
void AddSentinel(const SentinelStats& sentinel, const std::vector<SentinelCounts>& all, const Add& add) {
  using prometheus::MetricType;
  const auto by_kernel = [&](std::string_view name, std::string_view help, MetricType type, auto member) {
    for (const SentinelCounts& counts : all) {
      add(name, help, type, static_cast<double>(counts.*member),
          {{"phase", AttentionPhaseName(counts.phase)}, {"kernel", std::string(counts.kernel)}});
    }
  };
  add("attention_verify_rate", "Fraction of attention rows that the oracle recomputes.", MetricType::Gauge,
      sentinel.rate);
  add("attention_verify_seconds_total", "Time the engine thread spent on that.", MetricType::Counter,
      sentinel.check_seconds);
  by_kernel("attention_verified_rows_total", "Attention rows (token, head, layer) recomputed by the oracle.",
            MetricType::Counter, &SentinelCounts::rows_checked);
  by_kernel("attention_mismatches_total", "Of those, rows whose error passed their budget.",
            MetricType::Counter, &SentinelCounts::mismatches);
  by_kernel("attention_unverifiable_rows_total", "Of those, rows whose inputs were not finite.",
            MetricType::Counter, &SentinelCounts::unverifiable);
  by_kernel("attention_worst_error", "Largest absolute error of a finite row so far.", MetricType::Gauge,
            &SentinelCounts::worst_error);
  by_kernel("attention_worst_error_ratio", "Largest error so far, in budgets of its row.", MetricType::Gauge,
            &SentinelCounts::worst_ratio);
  for (const std::string& kernel : sentinel.quarantined) {
    add("attention_kernel_quarantined", "1: taken out of the list because its rows were wrong.",
        MetricType::Gauge, 1, {{"kernel", kernel}});
  }
  for (const auto& [result, count] :
       {std::pair("written", sentinel.cases.written), std::pair("failed", sentinel.cases.failed),
        std::pair("skipped", sentinel.cases.skipped)}) {
    add("attention_cases_total", "Case files of mismatches, by what became of them.", MetricType::Counter,
        static_cast<double>(count), {{"result", result}});
  }
}

}  // namespace

struct ServerMetrics::Impl {
  explicit Impl(const MetricsOptions& opt)
      : options(opt),
        labels{{"model_name", opt.model_name}, {"engine", "0"}},
        lengths(LengthBuckets(opt.max_model_len)) {}

  // Registered at construction, so that every series exists from the first scrape on.
  prometheus::Histogram& MakeHistogram(const std::string& name, const std::string& help,
                                       const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name(options.prefix + name)
        .Help(help)
        .Labels(labels)
        .Register(registry)
        .Add({}, buckets);
  }
  prometheus::Family<prometheus::Counter>& MakeCounters(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter()
        .Name(options.prefix + name)
        .Help(help)
        .Labels(labels)
        .Register(registry);
  }

  const MetricsOptions options;
  const prometheus::Labels labels;
  const Buckets lengths;
  prometheus::Registry registry;

  prometheus::Histogram& first_token =
      MakeHistogram("time_to_first_token_seconds", "Arrival to the first token.", kFirstTokenSeconds);
  prometheus::Histogram& inter_token =
      MakeHistogram("inter_token_latency_seconds", "Gap between two tokens of a sequence.", kTokenSeconds);
  prometheus::Histogram& per_output_token = MakeHistogram(
      "request_time_per_output_token_seconds", "Decode time / (generated tokens - 1).", kTokenSeconds);
  prometheus::Histogram& end_to_end =
      MakeHistogram("e2e_request_latency_seconds", "Arrival to the end of a sequence.", kRequestSeconds);
  prometheus::Histogram& queue_time =
      MakeHistogram("request_queue_time_seconds", "Arrival to first scheduling.", kRequestSeconds);
  prometheus::Histogram& prefill_time =
      MakeHistogram("request_prefill_time_seconds", "First scheduling to the first token.", kRequestSeconds);
  prometheus::Histogram& decode_time =
      MakeHistogram("request_decode_time_seconds", "First to last token.", kRequestSeconds);
  prometheus::Histogram& inference_time =
      MakeHistogram("request_inference_time_seconds", "First scheduling to the last token.", kRequestSeconds);
  prometheus::Histogram& prompt_tokens =
      MakeHistogram("request_prompt_tokens", "Prompt tokens of a sequence.", lengths);
  prometheus::Histogram& generation_tokens =
      MakeHistogram("request_generation_tokens", "Generated tokens of a sequence.", lengths);
  prometheus::Histogram& max_tokens =
      MakeHistogram("request_params_max_tokens", "max_tokens of a sequence.", lengths);
  prometheus::Histogram& params_n = MakeHistogram("request_params_n", "n of a request.", {1, 2, 5, 10, 20});
  prometheus::Histogram& iteration_tokens =
      MakeHistogram("iteration_tokens_total", "Tokens computed in one step.", PowersOfTwo(16384));
  prometheus::Histogram& step_run =
      MakeHistogram("step_run_seconds", "Model time of one step.", kStepSeconds);
  prometheus::Histogram& step_host =
      MakeHistogram("step_host_seconds", "Scheduling, sampling and hand-over of one step, outside the model.",
                    kStepSeconds);

  prometheus::Histogram& delivery = MakeHistogram(
      "token_delivery_seconds", "From the engine's hands to the sockets, by batch of tokens.", kStepSeconds);

  prometheus::Family<prometheus::Counter>& success =
      MakeCounters("request_success_total", "Sequences by the reason the client saw.");
  std::array<prometheus::Counter*, kNumFinishReasons> success_by_reason = [this] {
    std::array<prometheus::Counter*, kNumFinishReasons> out{};
    for (int i = 0; i < kNumFinishReasons; ++i) {
      out[static_cast<size_t>(i)] =
          &success.Add({{"finished_reason", FinishReasonName(static_cast<FinishReason>(i))}});
    }
    return out;
  }();
  prometheus::Family<prometheus::Counter>& responses =
      MakeCounters("http_responses_total", "Answers other than generations that succeeded, by status.");
  prometheus::Family<prometheus::Counter>& attention_rows =
      MakeCounters("attention_rows_total", "Query rows computed, by phase and kernel.");
};

ServerMetrics::ServerMetrics(const MetricsOptions& options) : impl_(std::make_unique<Impl>(options)) {
  for (const int status : kAlertedResponses) impl_->responses.Add({{"code", std::to_string(status)}});
}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnStep(const StepRecord& step) {
  profile_.OnStep(step);
  impl_->iteration_tokens.Observe(step.num_tokens);
  impl_->step_run.Observe(step.run_seconds);
  impl_->step_host.Observe(step.schedule_seconds + step.commit_seconds);
  for (const double seconds : step.time_to_first_token_seconds) impl_->first_token.Observe(seconds);
  for (const double seconds : step.inter_token_seconds) impl_->inter_token.Observe(seconds);
  for (const PlannedRoute& route : step.routes) {
    impl_->attention_rows
        .Add({{"phase", AttentionPhaseName(route.phase)}, {"kernel", std::string(route.kernel)}})
        .Increment(route.num_tokens);
  }
}

void ServerMetrics::OnRequestFinished(const RequestRecord& request) {
  // How long it took until a client left, or a step failed, says nothing of how long requests take.
  if (request.reason != FinishReason::kStop && request.reason != FinishReason::kLength) return;
  impl_->end_to_end.Observe(Seconds(request.arrival, request.finish));
  impl_->prompt_tokens.Observe(request.prompt_tokens);
  impl_->generation_tokens.Observe(request.generation_tokens);
  impl_->max_tokens.Observe(request.max_tokens);
  if (!request.first_scheduled) return;
  impl_->queue_time.Observe(Seconds(request.arrival, *request.first_scheduled));
  if (!request.first_token || !request.last_token) return;
  const double decode = Seconds(*request.first_token, *request.last_token);
  impl_->prefill_time.Observe(Seconds(*request.first_scheduled, *request.first_token));
  impl_->decode_time.Observe(decode);
  impl_->inference_time.Observe(Seconds(*request.first_scheduled, *request.last_token));
  if (request.generation_tokens > 1)
    impl_->per_output_token.Observe(decode / (request.generation_tokens - 1));
}

void ServerMetrics::CountFinished(FinishReason reason) {
  impl_->success_by_reason[static_cast<size_t>(reason)]->Increment();
}

void ServerMetrics::ObserveRequest(int n) { impl_->params_n.Observe(n); }

void ServerMetrics::ObserveDelivery(std::chrono::duration<double> delay) {
  impl_->delivery.Observe(delay.count());
}

void ServerMetrics::CountResponse(int status) {
  impl_->responses.Add({{"code", std::to_string(status)}}).Increment();
}

std::vector<AttentionRows> ServerMetrics::attention_rows() const {
  std::vector<AttentionRows> rows;
  for (const prometheus::MetricFamily& family : impl_->attention_rows.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      AttentionRows& entry = rows.emplace_back(AttentionRows{.phase = {}, .kernel = {}, .num_rows = 0});
      entry.num_rows = static_cast<int64_t>(metric.counter.value);
      for (const auto& label : metric.label) {
        if (label.name == "phase") entry.phase = label.value;
        if (label.name == "kernel") entry.kernel = label.value;
      }
    }
  }
  return rows;
}

const std::vector<std::pair<std::string, std::string>>& ServerMetrics::attention_kernels() const {
  return impl_->options.attention_kernels;
}

std::string ServerMetrics::Render(const EngineStats& engine, const HttpStats& http,
                                  const std::optional<SentinelStats>& sentinel) const {
  using prometheus::MetricType;
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  // What others count is read at scrape time instead of being counted twice. Calls for one name in a row make
  // one family.
  const auto add = [&](std::string_view name, std::string_view help, MetricType type, double value,
                       const prometheus::Labels& extra = {}) {
    prometheus::ClientMetric metric;
    for (const auto& [label, text] : impl_->labels) metric.label.push_back({label, text});
    for (const auto& [label, text] : extra) metric.label.push_back({label, text});
    metric.gauge.value = metric.counter.value = value;
    const std::string full_name = impl_->options.prefix + std::string(name);
    if (families.empty() || families.back().name != full_name) {
      families.push_back({.name = full_name, .help = std::string(help), .type = type, .metric = {}});
    }
    families.back().metric.push_back(std::move(metric));
  };
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    add(name, help, MetricType::Gauge, static_cast<double>(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    add(name, help, MetricType::Counter, static_cast<double>(value));
  };
  gauge("num_requests_running", "Sequences in the running batch.", engine.num_running);
  gauge("num_requests_waiting", "Sequences that wait to be scheduled.", engine.num_waiting);
  gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", engine.kv_usage());
  gauge("kv_cache_free_blocks", "KV blocks that are free.", engine.free_blocks);
  counter("num_preemptions_total", "Sequences sent back to the queue for lack of blocks.",
          engine.num_preemptions);
  counter("prompt_tokens_total", "Prompt tokens of sequences with a first token.", engine.prompt_tokens);
  counter("prompt_tokens_cached_total", "Those of them that came from the prefix cache.",
          engine.prompt_tokens_cached);
  counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache.", engine.prefix_cache_queries);
  counter("prefix_cache_hits_total", "Tokens found in the prefix cache.", engine.prefix_cache_hits);
  counter("generation_tokens_total", "Tokens generated.", engine.generation_tokens);
  counter("engine_steps_total", "Steps run.", engine.steps);
  counter("engine_failed_steps_total", "Steps that failed.", engine.failed_steps);
  counter("engine_discarded_steps_total", "Steps found wrong before they were committed.",
          engine.discarded_steps);
  counter("recomputed_sequences_total", "Sequences computed again because a kernel was wrong.",
          engine.recomputed_seqs);
  counter("retracted_tokens_total", "Tokens taken back before anybody read them.", engine.retracted_tokens);
  gauge("http_connections", "Open connections.", http.connections);
  gauge("http_streams", "Answers under way as event streams.", http.streams);
  gauge("http_unread_bytes", "Bytes queued for slow readers.", http.unread_bytes);
  counter("http_slow_readers_closed_total", "Connections closed because nothing was read.",
          http.slow_readers_closed);
  std::map<int, uint64_t> refused = http.refused;
  for (const int status : kRefusals) refused.try_emplace(status, 0);
  for (const auto& [status, count] : refused) {
    add("http_refused_total", "Requests refused before they were read, by status.", MetricType::Counter,
        static_cast<double>(count), {{"code", std::to_string(status)}});
  }
  add("cache_config_info", "Layout of the KV cache.", MetricType::Gauge, 1,
      {{"block_size", std::to_string(impl_->options.block_size)},
       {"num_gpu_blocks", std::to_string(impl_->options.num_blocks)}});
  for (const auto& [phase, kernel] : impl_->options.attention_kernels) {
    add("attention_kernel_info", "Kernel chosen at load for each phase.", MetricType::Gauge, 1,
        {{"phase", phase}, {"kernel", kernel}});
  }
  if (sentinel) AddSentinel(*sentinel, WithUnused(sentinel->counts, impl_->options.attention_kernels), add);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace attest
