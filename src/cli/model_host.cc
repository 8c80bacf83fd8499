#include "cli/model_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>

#include "attention/dispatch.h"
#include "base/log.h"
#include "cli/default_model.h"
#include "device/memory.h"
#include "engine/kv_calibration.h"
#include "engine/runner.h"

namespace attest {
namespace {

constexpr double kMib = 1 << 20;
// Kept free beside the KV cache: activations and logits of a full step, the tokenizer, open connections.
constexpr int64_t kReserveBytes = int64_t{256} << 20;

// A model that is larger than the free memory is refused before it is read.
Status CheckWeightsFit(const Checkpoint& checkpoint) {
  ATTEST_ASSIGN_OR_RETURN(const MemoryStatus memory, ReadMemoryStatus());
  const int64_t needed = checkpoint.file_bytes() + kReserveBytes;
  if (needed <= memory.available_bytes) return {};
  return Fail(
      ErrorCode::kResourceExhausted,
      fmt::format(
          "{}: the weights need {:.0f} MiB (with {:.0f} MiB for run state), {:.0f} MiB of memory are free",
          checkpoint.path().string(), static_cast<double>(needed) / kMib,
          static_cast<double>(kReserveBytes) / kMib, static_cast<double>(memory.available_bytes) / kMib),
      "MODEL");
}

// One line on a terminal that counts up; silent elsewhere.
class LoadProgress {
 public:
  explicit LoadProgress(std::string name)
      : name_(std::move(name)), is_terminal_(isatty(STDERR_FILENO) == 1) {}
  ~LoadProgress() {
    if (is_terminal_ && shown_ >= 0) std::fputs("\r\033[K", stderr);
  }
  void Show(int64_t done_bytes, int64_t total_bytes) {
    const int percent = total_bytes > 0 ? static_cast<int>(100 * done_bytes / total_bytes) : 100;
    if (!is_terminal_ || percent == shown_) return;
    shown_ = percent;
    std::fputs(fmt::format("\rloading {}: {} %", name_, percent).c_str(), stderr);
  }

 private:
  std::string name_;
  bool is_terminal_;
  int shown_ = -1;
};

Expected<KvSizing> SizeKv(const ModelFlags& flags, const Model& model) {
  ATTEST_ASSIGN_OR_RETURN(const MemoryStatus memory, ReadMemoryStatus());
  const int64_t limit = model.config().max_positions;
  if (flags.max_model_len > limit) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--max-model-len is {}, the model's own limit is {}", flags.max_model_len, limit),
                "max-model-len");
  }
  KvSizingInput input;
  input.shape = ModelRunner::KvShapeOf(model);
  input.available_bytes = memory.available_bytes;
  input.reserve_bytes = kReserveBytes;
  input.max_num_seqs = flags.max_num_seqs;
  input.max_model_len = flags.max_model_len > 0 ? flags.max_model_len : static_cast<int32_t>(limit);
  input.windows = WindowsOf(model.kv_groups());
  input.max_step_tokens = flags.max_num_batched_tokens;
  if (flags.max_model_len == 0) input.min_context_tokens = std::min<int32_t>(input.max_model_len, 512);
  if (flags.kv_cache_gib > 0) {
    input.num_blocks = static_cast<int64_t>(flags.kv_cache_gib * 1024 * kMib) / KvBytesPerBlock(input.shape);
  }
  return SizeKvCache(input);
}

// What the model reads to find the ranges of an int8 KV cache: prose, numbers, code and other scripts, since
// a range that one kind of text never shows would saturate on it.
constexpr std::string_view kCalibrationText =
    "The river had risen in the night, and by morning the lower field was a sheet of grey water. \"We should "
    "have moved the hay,\" she said, \"but who would have thought it in August?\" Nobody answered. In 1953, "
    "1,836 people died when the dikes broke; the repairs cost 3.14% of that year's budget (about "
    "12,700,000).\n\n"
    "def mean(values: list[float]) -> float:\n    # An empty list has no mean.\n    if not values:\n        "
    "raise ValueError(\"no values\")\n    return sum(values) / len(values)\n\n"
    "{\"id\": 17, \"name\": \"K\\u00f6ln\", \"tags\": [\"a\", \"b\"], \"ok\": true}\n\n"
    "1. Heat the oven to 200 C.  2. Mix flour, butter & sugar.  3. Bake for 25 minutes!\n"
    "Der Zug f\u00e4hrt um acht Uhr ab. O\u00f9 est la gare? \u041f\u0440\u0438\u0432\u0435\u0442, "
    "\u043c\u0438\u0440. \u4f60\u597d\uff0c\u4e16\u754c\u3002 E = mc^2; x <- y + 1; "
    "https://example.org/a?b=c#d\n"
    "Question: Why is the sky blue? Answer: Because air scatters short waves of light more than long ones.";

Expected<KvScales> Calibrate(Model& model, const TextAssets& text, ThreadTeam& team) {
  std::vector<int32_t> tokens = text.tokenizer->Encode(kCalibrationText);
  if (tokens.empty()) tokens.push_back(model.config().bos_id.value_or(0));
  return CalibrateKvScales(model, tokens, team);
}

}  // namespace

Expected<std::filesystem::path> FindModel(const std::string& model, const HubEnvironment& environment) {
  if (!model.empty()) return ResolveModel(model, environment);
  std::filesystem::path path = DefaultModelPath(environment);
  if (std::filesystem::is_regular_file(path)) return path;
  return Fail(ErrorCode::kNotFound,
              fmt::format("the default model {} is not in {}; ./scripts/serve fetches it, or name a MODEL",
                          kDefaultModelName, path.parent_path().string()),
              "MODEL");
}

std::string ModelDisplayName(const std::string& model, const std::filesystem::path& path) {
  if (model.empty()) return kDefaultModelName;
  if (!std::filesystem::exists(model)) return model;  // org/name
  std::filesystem::path clean = std::filesystem::weakly_canonical(path);
  return clean.extension() == ".gguf" ? clean.stem().string() : clean.filename().string();
}

Expected<ModelOptions> ModelOptionsOf(const ModelFlags& flags, const CpuFeatures& cpu) {
  if (flags.tensor_parallel_size != 1) {
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format("--tensor-parallel-size is {}; tensor parallelism is not built yet, 1 is the only value",
                    flags.tensor_parallel_size),
        "tensor-parallel-size");
  }
  ModelOptions options;
  options.cpu = cpu;
  options.compute = flags.compute == "f32" ? ComputeMode::kPrecise : ComputeMode::kFast;
  if (flags.dtype == "float32") options.weight_dtype = DType::kF32;
  if (flags.dtype == "float16") options.weight_dtype = DType::kF16;
  if (flags.dtype == "bfloat16") options.weight_dtype = DType::kBF16;
  options.block_size = flags.block_size;
  options.deterministic = flags.deterministic;
  options.forced_attention = flags.attention_backend;
  options.kv_dtype = options.compute == ComputeMode::kPrecise ? DType::kF32 : DType::kBF16;
  if (flags.kv_cache_dtype != "auto") {
    ATTEST_ASSIGN_OR_RETURN(options.kv_dtype, KvDTypeOf(flags.kv_cache_dtype));
  }
  return options;
}

Expected<std::unique_ptr<ModelHost>> ModelHost::Load(const ModelFlags& flags,
                                                     const HubEnvironment& environment) {
  const auto started = std::chrono::steady_clock::now();
  const CpuFeatures cpu = DetectCpu();  // before any thread: AMX permission is inherited
  auto host = std::unique_ptr<ModelHost>(new ModelHost);
  ATTEST_ASSIGN_OR_RETURN(ModelOptions options, ModelOptionsOf(flags, cpu));
  ATTEST_ASSIGN_OR_RETURN(host->path_, FindModel(flags.model, environment));
  host->name_ = ModelDisplayName(flags.model, host->path_);
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(host->path_));
  ATTEST_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*checkpoint));
  ATTEST_RETURN_IF_ERROR(CheckWeightsFit(*checkpoint));
  TextSources text{.chat_template_file = flags.chat_template, .generation_config = flags.generation_config};
  if (!flags.tokenizer.empty()) {
    ATTEST_ASSIGN_OR_RETURN(text.tokenizer, ResolveModel(flags.tokenizer, environment));
  }
  if (flags.trust_remote_code) LogInfo("--trust-remote-code has no effect: no code of a model is ever run");
  ATTEST_ASSIGN_OR_RETURN(host->text_, LoadTextAssets(*checkpoint, config, text));

  try {
    host->team_ = std::make_unique<ThreadTeam>(flags.threads > 0 ? flags.threads : cpu.logical_cpus);
  } catch (const std::system_error& error) {
    return Fail(ErrorCode::kResourceExhausted, fmt::format("{}; lower --threads", error.what()), "threads");
  }
  LoadProgress progress(host->name_);
  options.progress = [&](int64_t done, int64_t total) { progress.Show(done, total); };
  ATTEST_ASSIGN_OR_RETURN(host->model_, Model::Load(*checkpoint, options, *host->team_));
  if (options.kv_dtype == DType::kI8) {
    ATTEST_ASSIGN_OR_RETURN(host->kv_scales_, Calibrate(*host->model_, host->text_, *host->team_));
  }
  ATTEST_ASSIGN_OR_RETURN(host->kv_sizing_, SizeKv(flags, *host->model_));

  EngineOptions& engine = host->engine_options_;
  engine.block_size = flags.block_size;
  engine.num_blocks = host->kv_sizing_.num_blocks;
  engine.max_model_len =
      flags.max_model_len > 0 ? flags.max_model_len : host->kv_sizing_.longest_context_tokens;
  engine.max_num_seqs = flags.max_num_seqs;
  engine.max_num_batched_tokens = flags.max_num_batched_tokens;
  engine.max_queue = flags.max_queued_requests;
  engine.vocab_size = config.vocab_size;
  engine.kv_windows = WindowsOf(host->model_->kv_groups());
  engine.long_prefill_tokens = flags.long_prefill_token_threshold;
  engine.prefix_caching = flags.prefix_caching;
  engine.deterministic = flags.deterministic;
  engine.policy =
      flags.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  engine.cache_key = fmt::format("{} with KV in {}", host->path_.string(),
                                 DTypeName(host->model_->attention_spec().kv_dtype));
  ATTEST_RETURN_IF_ERROR(host->model_->Reserve(engine.max_num_batched_tokens,
                                               std::min(engine.max_num_batched_tokens, engine.max_num_seqs),
                                               *host->team_));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  LogInfo(fmt::format("loaded {} in {:.2f} s: {} layers, {:.0f} MiB of weights, {} thread(s) on {} ({})",
                      host->name_, seconds, config.num_layers,
                      static_cast<double>(host->model_->weight_bytes()) / kMib, host->team_->size(),
                      cpu.brand, DescribeCpu(cpu)));
  LogInfo(host->kv_sizing_.words);
  if (flags.deterministic)
    LogInfo("deterministic: a request's logits are the same bits alone and in any company");
  for (const auto& [phase, kernel] : host->AttentionKernels())
    LogInfo(fmt::format("attention: {} runs {}", phase, kernel));
  return host;
}

Expected<std::unique_ptr<Engine>> ModelHost::StartEngine(EngineObserver* observer, Sentinel* sentinel) {
  ATTEST_ASSIGN_OR_RETURN(
      KvStorage kv, KvStorage::Allocate(ModelRunner::KvShapeOf(*model_), kv_sizing_.num_blocks, kv_scales_));
  ATTEST_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner,
                          ModelRunner::Create(*model_, std::move(kv), *team_, sentinel));
  return Engine::Start(engine_options_, std::move(runner), observer);
}

std::vector<std::pair<std::string, std::string>> ModelHost::AttentionKernels() const {
  std::vector<std::pair<std::string, std::string>> kernels;
  const AttentionRouter& router = model_->attention_router();
  for (const AttentionPhase phase : kAttentionPhases) {
    const AttentionProblem problem{.spec = model_->attention_spec(), .phase = phase};
    const auto route = Choose(problem, router.cpu(), router.forced_for(phase), router.excluded());
    kernels.emplace_back(AttentionPhaseName(phase), route ? std::string(route->name()) : "none");
  }
  return kernels;
}

}  // namespace attest
