#include "conform/library_subject.h"

#include <attest/conform_kernel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "conform/isolate.h"

namespace attest::conform {
namespace {

constexpr int32_t kMaxKernels = 256;
constexpr size_t kTextBytes = 1024;  // of a reason or an error
constexpr double kLoadSeconds = 30;

Status Bad(const std::filesystem::path& file, const std::string& what) {
  return Fail(ErrorCode::kCorruptFile, fmt::format("{}: {}", file.string(), what), "library");
}

int32_t NumberOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ATTEST_CONFORM_F32;
    case DType::kF16:
      return ATTEST_CONFORM_F16;
    case DType::kBF16:
      return ATTEST_CONFORM_BF16;
    case DType::kF8E4M3:
      return ATTEST_CONFORM_F8_E4M3FN;
    case DType::kF8E5M2:
      return ATTEST_CONFORM_F8_E5M2;
    case DType::kI8:
      return ATTEST_CONFORM_I8;
    default:
      return 0;  // no trial has quantised pages
  }
}

int32_t NumberOf(KvLayout layout) {
  switch (layout) {
    case KvLayout::kContiguous:
      return ATTEST_CONFORM_CONTIGUOUS;
    case KvLayout::kPagedHnd:
      return ATTEST_CONFORM_PAGED_HND;
    case KvLayout::kPagedNhd:
      return ATTEST_CONFORM_PAGED_NHD;
  }
  return 0;
}

int32_t NumberOf(AttentionPhase phase) {
  switch (phase) {
    case AttentionPhase::kDecode:
      return ATTEST_CONFORM_DECODE;
    case AttentionPhase::kPrefill:
      return ATTEST_CONFORM_PREFILL;
    case AttentionPhase::kExtend:
      return ATTEST_CONFORM_EXTEND;
    case AttentionPhase::kUniformDecode:
      return ATTEST_CONFORM_UNIFORM_DECODE;
  }
  return 0;
}

attest_conform_problem ToC(const AttentionProblem& problem, int32_t phase) {
  const AttentionSpec& spec = problem.spec;
  attest_conform_problem c{};
  c.struct_size = sizeof(c);
  c.phase = phase;
  c.num_seqs = problem.num_seqs;
  c.min_q_len = problem.min_q_len;
  c.max_q_len = problem.max_q_len;
  c.min_kv_len = problem.min_kv_len;
  c.max_kv_len = problem.max_kv_len;
  c.q_heads = spec.q_heads;
  c.kv_heads = spec.kv_heads;
  c.head_dim = spec.head_dim;
  c.v_head_dim = spec.v_head_dim;
  c.q_dtype = NumberOf(spec.q_dtype);
  c.kv_dtype = NumberOf(spec.kv_dtype);
  c.out_dtype = NumberOf(spec.out_dtype);
  c.layout = NumberOf(spec.layout);
  c.block_size = spec.layout == KvLayout::kContiguous ? 0 : spec.block_size;
  c.scale = spec.scale;
  c.causal = spec.causal ? 1 : 0;
  c.has_window_left = spec.window_left ? 1 : 0;
  c.window_left = spec.window_left.value_or(0);
  c.has_window_right = spec.window_right ? 1 : 0;
  c.window_right = spec.window_right.value_or(0);
  c.has_chunk = spec.chunk ? 1 : 0;
  c.chunk = spec.chunk.value_or(0);
  c.sink_tokens = spec.sink_tokens;
  c.softcap = spec.softcap;
  c.has_alibi = spec.has_alibi ? 1 : 0;
  c.has_sinks = spec.has_sinks ? 1 : 0;
  c.has_k_descale = spec.has_k_descale ? 1 : 0;
  c.has_v_descale = spec.has_v_descale ? 1 : 0;
  c.wants_lse = spec.wants_lse ? 1 : 0;
  return c;
}

// A text that the library wrote, whatever it wrote.
std::string TextOf(const char (&buffer)[kTextBytes]) {
  return {buffer, std::find(buffer, buffer + kTextBytes, '\0')};
}

class LibrarySubject final : public Subject {
 public:
  explicit LibrarySubject(const attest_conform_kernel& kernel) : kernel_(kernel), name_(kernel.name) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] AttentionArithmetic arithmetic() const override {
    return kernel_.arithmetic == ATTEST_CONFORM_ARITHMETIC_BF16 ? AttentionArithmetic::kBf16
                                                                : AttentionArithmetic::kF32;
  }
  [[nodiscard]] bool is_bit_stable() const override { return false; }
  [[nodiscard]] std::vector<Reason> Refusals(const AttentionProblem& problem) override {
    return Ask(ToC(problem, NumberOf(problem.phase)));
  }
  [[nodiscard]] std::vector<Reason> RefusalsOfMixed(const AttentionProblem& problem) override {
    return Ask(ToC(problem, ATTEST_CONFORM_MIXED));
  }
  [[nodiscard]] bool can_be_asked_for_splits() const override { return true; }
  void AskForSplits(int num_splits) override { num_splits_ = num_splits; }
  [[nodiscard]] Status Attend(const AttentionSpec& spec, const AttentionLengths& lengths,
                              const AttentionParams& params, int /*num_threads*/) override {
    std::vector<int32_t> seqs;
    std::optional<AttentionPhase> phase;
    bool mixed = false;
    for (int32_t seq = 0; seq < lengths.q_begin->num_seqs(); ++seq) {
      if (lengths.q_begin->length(seq) == 0) continue;
      seqs.push_back(seq);
      const AttentionPhase of =
          RoutePhaseOf(lengths.q_begin->length(seq), lengths.kv_len[static_cast<size_t>(seq)]);
      mixed = mixed || (phase && *phase != of);
      phase = of;
    }
    const attest_conform_problem problem =
        ToC(ProblemOf(spec, lengths, phase.value_or(AttentionPhase::kDecode), seqs),
            mixed ? static_cast<int32_t>(ATTEST_CONFORM_MIXED)
                  : NumberOf(phase.value_or(AttentionPhase::kDecode)));
    attest_conform_call call{};
    call.struct_size = sizeof(call);
    call.problem = &problem;
    call.num_seqs = lengths.q_begin->num_seqs();
    call.num_tokens = lengths.q_begin->total();
    // Copies of exactly the stated size: an entry too far is outside the buffer.
    const GuardedBytes offsets = Copy(lengths.q_begin->offsets()), kv_len = Copy(lengths.kv_len);
    call.cu_seqlens_q = offsets.as<int32_t>();
    call.kv_len = kv_len.as<int32_t>();
    call.q = params.q.data;
    call.q_token_stride = params.q.stride[0];
    call.q_head_stride = params.q.stride[1];
    if (params.paged != nullptr) {
      const PagedKv& kv = *params.paged;
      call.k = kv.k.data;
      call.k_block_stride = kv.k.block_stride;
      call.k_head_stride = kv.k.head_stride;
      call.k_token_stride = kv.k.slot_stride;
      call.v = kv.v.data;
      call.v_block_stride = kv.v.block_stride;
      call.v_head_stride = kv.v.head_stride;
      call.v_token_stride = kv.v.slot_stride;
      call.num_blocks = kv.num_blocks;
      call.block_table = lengths.block_tables.ids;
      call.table_stride = lengths.block_tables.row_stride;
    } else {
      const ContiguousKv& kv = *params.contiguous;
      call.k = kv.k;
      call.k_token_stride = kv.k_token_stride;
      call.k_head_stride = kv.k_head_stride;
      call.v = kv.v;
      call.v_token_stride = kv.v_token_stride;
      call.v_head_stride = kv.v_head_stride;
      call.k_begin = kv.k_begin.data();
    }
    call.alibi_slopes = params.alibi_slopes;
    call.sinks = params.sinks;
    call.k_descale = params.k_descale.data;
    call.k_descale_seq_stride = params.k_descale.seq_stride;
    call.k_descale_head_stride = params.k_descale.head_stride;
    call.v_descale = params.v_descale.data;
    call.v_descale_seq_stride = params.v_descale.seq_stride;
    call.v_descale_head_stride = params.v_descale.head_stride;
    call.out = params.out.data;
    call.out_token_stride = params.out.stride[0];
    call.out_head_stride = params.out.stride[1];
    call.lse = params.lse.data;
    call.lse_head_stride = params.lse.stride[0];
    call.lse_token_stride = params.lse.stride[1];
    call.num_splits = num_splits_;
    char error[kTextBytes] = {};
    if (kernel_.run(&call, error, sizeof(error)) == 0) return {};
    return Fail(ErrorCode::kInternal,
                fmt::format("run failed on a call that check accepted: {}", TextOf(error)));
  }

 private:
  static GuardedBytes Copy(std::span<const int32_t> values) {
    GuardedBytes bytes(std::ssize(values) * 4);
    std::ranges::copy(values, bytes.as<int32_t>());
    return bytes;
  }
  std::vector<Reason> Ask(const attest_conform_problem& problem) const {
    char reason[kTextBytes] = {};
    if (kernel_.check(&problem, reason, sizeof(reason)) == 0) return {};
    const std::string text = TextOf(reason);
    const size_t colon = text.find(": ");
    if (colon == std::string::npos) return {{text, "refused", text.empty() ? "" : "what its reason says"}};
    return {{text.substr(0, colon), "refused", text.substr(colon + 2)}};
  }

  const attest_conform_kernel& kernel_;
  const std::string name_;
  int num_splits_ = 0;
};

using EntryPoint = const attest_conform_kernel* (*)(int32_t index);

// In a child only. The library stays loaded until the child ends.
Expected<EntryPoint> Load(const std::filesystem::path& file) {
  // A name without a slash would be looked up among the system's libraries.
  void* handle = dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return std::unexpected(Bad(file, fmt::format("cannot be loaded: {}", dlerror())).error());
  void* symbol = dlsym(handle, "attest_conform_kernel_v1");
  if (symbol == nullptr)
    return std::unexpected(Bad(file, "does not export attest_conform_kernel_v1").error());
  return reinterpret_cast<EntryPoint>(symbol);
}

Status CheckKernel(const std::filesystem::path& file, int32_t index, const attest_conform_kernel& kernel) {
  if (kernel.struct_size != sizeof(attest_conform_kernel)) {
    return Bad(file, fmt::format("kernel {}: struct_size is {}, expected {}", index, kernel.struct_size,
                                 sizeof(attest_conform_kernel)));
  }
  if (kernel.abi_version != ATTEST_CONFORM_ABI_VERSION) {
    return Bad(file, fmt::format("kernel {}: abi_version is {}, expected {}", index, kernel.abi_version,
                                 ATTEST_CONFORM_ABI_VERSION));
  }
  if (kernel.name == nullptr || kernel.name[0] == '\0')
    return Bad(file, fmt::format("kernel {}: has no name", index));
  if (kernel.check == nullptr || kernel.run == nullptr)
    return Bad(file, fmt::format("kernel {}: check or run is absent", index));
  if (kernel.arithmetic != ATTEST_CONFORM_ARITHMETIC_F32 &&
      kernel.arithmetic != ATTEST_CONFORM_ARITHMETIC_BF16)
    return Bad(file, fmt::format("kernel {}: arithmetic is {}, expected 1 or 2", index, kernel.arithmetic));
  return {};
}

}  // namespace

Expected<std::vector<SubjectInfo>> LibrarySubjects(const std::filesystem::path& file) {
  const auto described = RunOneIsolated(
      [&]() -> std::string {
        using Json = nlohmann::json;
        const auto error = [](const std::string& message) {
          return Json{{"error", message}}.dump(-1, ' ', false, Json::error_handler_t::replace);
        };
        const auto entry = Load(file);
        if (!entry) return error(entry.error().message);
        Json kernels = Json::array();
        for (int32_t i = 0; i < kMaxKernels; ++i) {
          const attest_conform_kernel* kernel = (*entry)(i);
          if (kernel == nullptr) break;
          if (const Status ok = CheckKernel(file, i, *kernel); !ok) return error(ok.error().message);
          kernels.push_back({{"name", kernel->name}, {"arithmetic", kernel->arithmetic}});
        }
        return Json{{"kernels", kernels}}.dump(-1, ' ', false, Json::error_handler_t::replace);
      },
      kLoadSeconds);
  if (!described) return std::unexpected(Bad(file, "loading it " + described.error().message).error());
  const auto json = nlohmann::json::parse(*described);
  if (json.contains("error"))
    return Fail(ErrorCode::kCorruptFile, json["error"].get<std::string>(), "library");
  std::vector<SubjectInfo> subjects;
  for (const auto& kernel : json["kernels"]) {
    const auto index = static_cast<int32_t>(subjects.size());
    subjects.push_back({.name = kernel["name"],
                        .words = file.filename().string(),
                        .arithmetic = kernel["arithmetic"] == static_cast<int>(ATTEST_CONFORM_ARITHMETIC_BF16)
                                          ? AttentionArithmetic::kBf16
                                          : AttentionArithmetic::kF32,
                        .make = [file, index]() -> Expected<std::unique_ptr<Subject>> {
                          ATTEST_ASSIGN_OR_RETURN(const EntryPoint entry, Load(file));
                          const attest_conform_kernel* again = entry(index);
                          if (again == nullptr)
                            return std::unexpected(
                                Bad(file, "describes other kernels the second time").error());
                          return std::make_unique<LibrarySubject>(*again);
                        }});
  }
  if (subjects.empty()) return std::unexpected(Bad(file, "describes no kernel").error());
  return subjects;
}

}  // namespace attest::conform
