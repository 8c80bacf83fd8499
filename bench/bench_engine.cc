// Times the whole engine (scheduler, model, sampler) on one model. Reads one case per line from standard
// input and answers each with one JSON line, so that a script can alternate it with another engine
// (bench/compare_llama.py).
//
// Prompts of a case are the same each time, so the prefix cache is off unless a case is about it.
//
//   bench_engine MODEL [--threads N] [--max-model-len N] [--enable-prefix-caching]
//                [--verify-attention RATE] [--kv-cache-dtype TYPE] [--attention-backend NAME]
//                [--deterministic]
//   generate N ID ID ...       greedy continuation of the ids                       {"tokens": [...]}
//   prefill TOKENS             time to the first token of one prompt                {"seconds": s}
//   shared TOKENS N            the same for a prompt whose first TOKENS are always the same and whose last
//                              16 are those of N; a second N finds the first in the prefix cache
//   decode CONTEXT N           N tokens after a prompt of CONTEXT tokens            {"seconds": s}
//   streams S CONTEXT N        N tokens on each of S sequences together             {"seconds": s}
// With a rate each answer also has "checked", the rows the oracle recomputed meanwhile, prefill included, and
// "check_seconds", the time the engine thread spent on that.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "attention/sentinel.h"
#include "base/log.h"
#include "cli/model_host.h"

namespace attest {
namespace {

using Clock = std::chrono::steady_clock;

struct Trace {
  std::vector<Clock::time_point> times;
  std::vector<int32_t> tokens;
  bool finished = false;
};

struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Trace> traces;
};

class TraceSink final : public TokenSink {
 public:
  TraceSink(Board& board, size_t index) : board_(board), index_(index) {}
  void OnToken(int32_t token) override {
    const std::lock_guard lock(board_.mutex);
    board_.traces[index_].times.push_back(Clock::now());
    board_.traces[index_].tokens.push_back(token);
  }
  void OnFinish(FinishReason, std::optional<int32_t>, const Error* error) override {
    if (error != nullptr) std::fprintf(stderr, "bench_engine: %s\n", error->message.c_str());
    const std::lock_guard lock(board_.mutex);
    board_.traces[index_].finished = true;
    board_.changed.notify_all();
  }

 private:
  Board& board_;
  size_t index_;
};

// Runs the prompts together, greedy, and returns when all have ended.
std::vector<Trace> RunAll(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                          int32_t max_tokens, Clock::time_point& submitted) {
  Board board;
  board.traces.resize(prompts.size());
  submitted = Clock::now();
  for (size_t i = 0; i < prompts.size(); ++i) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = max_tokens;
    sampling.ignore_eos = true;
    const auto id = engine.Submit(Request{.prompt = prompts[i],
                                          .sampling = sampling,
                                          .eos_ids = {},
                                          .sink = std::make_unique<TraceSink>(board, i)});
    if (!id) {
      std::fprintf(stderr, "bench_engine: %s\n", id.error().message.c_str());
      std::exit(1);
    }
  }
  std::unique_lock lock(board.mutex);
  board.changed.wait(lock, [&] {
    return std::all_of(board.traces.begin(), board.traces.end(), [](const Trace& t) { return t.finished; });
  });
  return std::move(board.traces);
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Token ids without meaning but with spread; each sequence gets its own.
std::vector<int32_t> MakePrompt(int64_t length, int64_t sequence, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(100 + ((i + 31 * sequence) * 7919) % (vocab_size - 200)));
  return ids;
}

std::string RunCase(Engine& engine, const std::string& line) {
  const int64_t vocab_size = engine.options().vocab_size;
  std::istringstream in(line);
  std::string verb;
  in >> verb;
  Clock::time_point submitted;
  if (verb == "generate") {
    int32_t count = 0;
    in >> count;
    std::vector<int32_t> prompt;
    for (int32_t id = 0; in >> id;) prompt.push_back(id);
    const auto traces = RunAll(engine, {prompt}, count, submitted);
    return fmt::format(R"({{"tokens": [{}]}})", fmt::join(traces[0].tokens, ", "));
  }
  if (verb == "prefill") {
    int64_t length = 0;
    in >> length;
    const auto traces = RunAll(engine, {MakePrompt(length, 0, vocab_size)}, 1, submitted);
    return fmt::format(R"({{"seconds": {}}})", Seconds(traces[0].times[0] - submitted));
  }
  if (verb == "shared") {
    int64_t length = 0, tail = 0;
    in >> length >> tail;
    std::vector<int32_t> prompt = MakePrompt(length, 0, vocab_size);
    for (const int32_t id : MakePrompt(16, 1 + tail, vocab_size)) prompt.push_back(id);
    const auto traces = RunAll(engine, {prompt}, 1, submitted);
    return fmt::format(R"({{"seconds": {}}})", Seconds(traces[0].times[0] - submitted));
  }
  int64_t sequences = 1, context = 0;
  int32_t count = 0;
  if (verb == "streams") in >> sequences;
  in >> context >> count;
  if ((verb != "decode" && verb != "streams") || context < 1 || count < 1)
    return fmt::format(R"({{"error": "unknown case '{}'"}})", line);
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < sequences; ++i) prompts.push_back(MakePrompt(context, i, vocab_size));
  const auto traces = RunAll(engine, prompts, count + 1, submitted);
  Clock::time_point begin, end;
  for (const Trace& trace : traces) {
    begin = std::max(begin, trace.times.front());
    end = std::max(end, trace.times.back());
  }
  return fmt::format(R"({{"seconds": {}}})", Seconds(end - begin));
}

int64_t Checked(const SentinelStats& stats) {
  int64_t rows = 0;
  for (const SentinelCounts& counts : stats.counts) rows += counts.rows_checked;
  return rows;
}

int Main(int argc, char** argv) {
  ModelFlags flags;
  flags.prefix_caching = false;
  double verify_rate = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--threads" && i + 1 < argc) {
      flags.threads = std::atoi(argv[++i]);
    } else if (word == "--max-model-len" && i + 1 < argc) {
      flags.max_model_len = std::atoi(argv[++i]);
    } else if (word == "--verify-attention" && i + 1 < argc) {
      verify_rate = std::atof(argv[++i]);
    } else if (word == "--compute" && i + 1 < argc) {
      flags.compute = argv[++i];
    } else if (word == "--kv-cache-dtype" && i + 1 < argc) {
      flags.kv_cache_dtype = argv[++i];
    } else if (word == "--attention-backend" && i + 1 < argc) {
      flags.attention_backend = argv[++i];
    } else if (word == "--deterministic") {
      flags.deterministic = true;
    } else if (word == "--enable-prefix-caching") {
      flags.prefix_caching = true;
    } else {
      flags.model = word;
    }
  }
  SetLogLevel(LogLevel::kWarning);
  const HubEnvironment environment{.hf_hub_cache = {}, .hf_home = {}, .xdg_cache_home = {}, .home = {}};
  auto host = ModelHost::Load(flags, environment);
  if (!host) {
    std::fprintf(stderr, "bench_engine: %s\n", host.error().message.c_str());
    return 1;
  }
  std::unique_ptr<Sentinel> sentinel;
  if (verify_rate > 0) {
    sentinel = std::make_unique<Sentinel>(
        SentinelOptions{.rate = verify_rate, .on_mismatch = OnMismatch::kStop, .case_folder = {}});
  }
  auto engine = (*host)->StartEngine(nullptr, sentinel.get());
  if (!engine) {
    std::fprintf(stderr, "bench_engine: %s\n", engine.error().message.c_str());
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const SentinelStats before = sentinel ? sentinel->stats() : SentinelStats{};
    std::string answer = RunCase(**engine, line);
    if (sentinel) {
      const SentinelStats after = sentinel->stats();
      answer.pop_back();
      answer += fmt::format(R"(, "checked": {}, "check_seconds": {}}})", Checked(after) - Checked(before),
                            after.check_seconds - before.check_seconds);
    }
    std::puts(answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace attest

int main(int argc, char** argv) { return attest::Main(argc, argv); }
