#include "bindings/plan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "attention/dispatch.h"
#include "attention/explain.h"
#include "base/version.h"
#include "bindings/tensors.h"
#include "device/cpu.h"

namespace attest::bindings {
namespace {

const CpuFeatures& Cpu() {
  static const CpuFeatures cpu = DetectCpu();
  return cpu;
}

std::optional<int32_t> LimitOf(const char* field, int32_t value, int32_t least, Reasons& reasons) {
  if (value == ATTEST_NO_LIMIT) return std::nullopt;
  reasons.Require(value >= least, field, value, fmt::format(">= {}, or ATTEST_NO_LIMIT (-1)", least));
  return value;
}

DType DTypeMember(const char* field, int32_t value, Reasons& reasons) {
  const std::optional<DType> dtype = DTypeOf(value);
  if (!dtype) reasons.Add(field, value, "a value of enum attest_dtype, 1 to 6");
  return dtype.value_or(DType::kF32);
}

// The array is there and has `expected` entries.
bool CheckArray(const char* field, const void* data, int64_t count, int64_t expected, Reasons& reasons) {
  if (expected > 0 && data == nullptr) {
    reasons.Add(field, "NULL", fmt::format("{} entries", expected));
    return false;
  }
  if (count != expected) {
    reasons.Add(fmt::format("{}_count", field), count, fmt::format("{}", expected));
    return false;
  }
  if (reinterpret_cast<uintptr_t>(data) % sizeof(int32_t) != 0) {
    reasons.Add(field, fmt::format("{:#x}", reinterpret_cast<uintptr_t>(data)), "aligned to 4 bytes");
    return false;
  }
  return true;
}

// Row offsets: first 0, monotone, at most kMaxRows.
void CheckOffsets(std::span<const int32_t> offsets, Reasons& reasons) {
  reasons.Require(offsets[0] == 0, "cu_seqlens_q[0]", offsets[0], "0");
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      reasons.Add(fmt::format("cu_seqlens_q[{}]", i), offsets[i],
                  fmt::format(">= {}, the entry before", offsets[i - 1]));
    }
  }
  if (offsets.back() > kMaxRows) {
    reasons.Add(fmt::format("cu_seqlens_q[{}]", offsets.size() - 1), offsets.back(),
                fmt::format("<= {} rows", kMaxRows));
  }
}

// Copies lengths and tables into the plan; adds a reason for everything that is wrong with them.
void ReadBatch(const attest_attention_batch& batch, const AttentionSpec& spec, attest_attention_plan* plan,
               Reasons& reasons) {
  reasons.Require(batch.reserved == 0, "reserved", batch.reserved, "0");
  if (batch.num_seqs < 0 || batch.num_seqs > kMaxRows) {
    reasons.Add("num_seqs", batch.num_seqs, fmt::format("0 to {}", kMaxRows));
    return;
  }
  const auto num_seqs = static_cast<size_t>(batch.num_seqs);
  const bool has_offsets = CheckArray("cu_seqlens_q", batch.cu_seqlens_q, batch.cu_seqlens_q_count,
                                      batch.num_seqs + int64_t{1}, reasons);
  const bool has_lens = CheckArray("kv_lens", batch.kv_lens, batch.kv_lens_count, batch.num_seqs, reasons);
  if (has_offsets) CheckOffsets({batch.cu_seqlens_q, num_seqs + 1}, reasons);
  if (!has_lens) return;
  plan->kv_len.assign(batch.kv_lens, batch.kv_lens + num_seqs);
  for (size_t i = 0; i < num_seqs; ++i) {
    if (plan->kv_len[i] < 0) reasons.Add(fmt::format("kv_lens[{}]", i), plan->kv_len[i], ">= 0");
    if (plan->kv_len[i] > kMaxSeqTokens) {
      reasons.Add(fmt::format("kv_lens[{}]", i), plan->kv_len[i], fmt::format("<= {}", kMaxSeqTokens));
    }
  }
  const auto range = [&](const char* field, const int32_t* values, std::vector<int32_t>* to) {
    if (values == nullptr || !CheckArray(field, values, batch.num_seqs, batch.num_seqs, reasons)) return;
    to->assign(values, values + num_seqs);
  };
  range("kv_begin", batch.kv_begin, &plan->kv_begin);
  range("kv_end", batch.kv_end, &plan->kv_end);
  for (size_t i = 0; i < num_seqs; ++i) {
    const int32_t begin = plan->kv_begin.empty() ? 0 : plan->kv_begin[i];
    const int32_t end = plan->kv_end.empty() ? plan->kv_len[i] : plan->kv_end[i];
    if (begin < 0 || begin > end)
      reasons.Add(fmt::format("kv_begin[{}]", i), begin, fmt::format("0 to kv_end[{}] = {}", i, end));
    if (end > plan->kv_len[i])
      reasons.Add(fmt::format("kv_end[{}]", i), end, fmt::format("<= kv_lens[{}] = {}", i, plan->kv_len[i]));
  }
  if (batch.owned_seqs != nullptr) {
    if (batch.owned_seqs_count < 0 || batch.owned_seqs_count > batch.num_seqs) {
      reasons.Add("owned_seqs_count", batch.owned_seqs_count,
                  fmt::format("0 to num_seqs = {}", batch.num_seqs));
    } else if (CheckArray("owned_seqs", batch.owned_seqs, batch.owned_seqs_count, batch.owned_seqs_count,
                          reasons)) {
      plan->owned.assign(batch.owned_seqs, batch.owned_seqs + batch.owned_seqs_count);
      int32_t previous = -1;
      for (size_t i = 0; i < plan->owned.size(); previous = plan->owned[i++]) {
        if (plan->owned[i] <= previous || plan->owned[i] >= batch.num_seqs) {
          reasons.Add(fmt::format("owned_seqs[{}]", i), plan->owned[i],
                      fmt::format("above {} and below num_seqs = {}", previous, batch.num_seqs));
        }
      }
    }
  }
  if (!reasons.empty()) return;

  if (spec.layout == KvLayout::kContiguous) {
    int64_t total = 0;
    plan->k_begin.assign(1, 0);
    for (const int32_t kv_len : plan->kv_len) {
      total += kv_len;
      if (total > std::numeric_limits<int32_t>::max()) {
        reasons.Add("kv_lens", fmt::format("{} keys or more", total),
                    fmt::format("<= {} in all", std::numeric_limits<int32_t>::max()));
        return;
      }
      plan->k_begin.push_back(static_cast<int32_t>(total));
    }
    return;
  }
  if (batch.num_blocks < 0 || batch.num_blocks > std::numeric_limits<int32_t>::max()) {
    reasons.Add("num_blocks", batch.num_blocks, fmt::format("0 to {}", std::numeric_limits<int32_t>::max()));
  }
  int64_t width = 0;  // entries of the longest row that has keys
  const auto entries_of = [&](int32_t kv_len) {
    return (int64_t{kv_len} + spec.block_size - 1) / spec.block_size;
  };
  for (size_t i = 0; i < num_seqs; ++i) {
    const int64_t needed = entries_of(plan->kv_len[i]);
    width = std::max(width, needed);
    if (needed > batch.block_table_stride) {
      reasons.Add("block_table_stride", batch.block_table_stride,
                  fmt::format(">= {}: kv_lens[{}] is {}", needed, i, plan->kv_len[i]));
    }
    int64_t end = 0;  // entries before the end of this row's needed part
    const bool fits = !__builtin_mul_overflow(static_cast<int64_t>(i), batch.block_table_stride, &end) &&
                      !__builtin_add_overflow(end, needed, &end) && end <= batch.block_tables_count;
    if (needed > 0 && !fits) {
      reasons.Add("block_tables_count", batch.block_tables_count,
                  fmt::format(">= {} for sequence {}", end, i));
    }
  }
  if (width > 0) {
    reasons.Require(batch.block_tables != nullptr, "block_tables", "NULL",
                    fmt::format("{} entries", batch.block_tables_count));
    reasons.Require(reinterpret_cast<uintptr_t>(batch.block_tables) % sizeof(int32_t) == 0, "block_tables",
                    fmt::format("{:#x}", reinterpret_cast<uintptr_t>(batch.block_tables)),
                    "aligned to 4 bytes");
  }
  // Rows are copied at one width: a batch of one long and many empty rows must not ask for all memory.
  reasons.Require(width * batch.num_seqs <= kMaxTableEntries, "block_tables",
                  fmt::format("{} rows of {} entries", batch.num_seqs, width),
                  fmt::format("<= {} entries in all", kMaxTableEntries));
  if (!reasons.empty()) return;
  plan->tables.assign(num_seqs * static_cast<size_t>(width), -1);
  for (size_t i = 0; i < num_seqs; ++i) {
    if (plan->kv_len[i] == 0) continue;  // its row need not be there
    const int32_t* row = batch.block_tables + static_cast<int64_t>(i) * batch.block_table_stride;
    std::copy_n(row, entries_of(plan->kv_len[i]), plan->tables.begin() + static_cast<int64_t>(i) * width);
  }
}

// Every reason of every kernel that was asked, for the first sequence that none of them takes.
void AddRefusals(const AttentionSpec& spec, const AttentionLengths& lengths, const AttentionRouter& router,
                 Reasons& reasons) {
  for (int32_t seq = 0; seq < lengths.q_begin->num_seqs() && reasons.empty(); ++seq) {
    const auto problem =
        ProblemOf(spec, lengths.q_begin->length(seq), lengths.kv_len[static_cast<size_t>(seq)]);
    if (!problem) continue;  // padding
    const std::string& forced = router.forced_for(problem->phase);
    if (Choose(*problem, router.cpu(), forced)) continue;
    for (const KernelEntry* entry : KernelList()) {
      if (!forced.empty() && entry->contract.name != forced) continue;
      for (const Reason& reason : Check(entry->contract, *problem, router.cpu())) {
        reasons.Add(
            {fmt::format("{}.{}", entry->contract.name, reason.field), reason.value, reason.expected});
      }
    }
  }
}

attest_status Create(const attest_attention_spec* c_spec, const attest_attention_batch* c_batch,
                     const attest_attention_options* c_options, attest_attention_plan** out,
                     attest_error** error) {
  Reasons reasons;
  reasons.Require(out != nullptr, "plan", "NULL", "where to put the plan");
  attest_attention_spec spec{};
  attest_attention_batch batch{};
  attest_attention_options options = attest_attention_options_default();
  const bool has_spec = ReadStruct("spec", c_spec, &spec, reasons);
  const bool has_batch = ReadStruct("batch", c_batch, &batch, reasons);
  if (c_options != nullptr && ReadStruct("options", c_options, &options, reasons)) {
    reasons.Require(options.num_shares >= 1 && options.num_shares <= kMaxShares, "num_shares",
                    options.num_shares, fmt::format("1 to {}", kMaxShares));
    reasons.RequireFlag("deterministic", options.deterministic);
  }
  auto plan = std::make_unique<attest_attention_plan>();
  if (has_spec) plan->spec = SpecOf(spec, reasons);
  // Lengths are judged by a sound spec only: tables depend on the block size.
  const bool spec_is_sound =
      has_spec && SpecReasons(plan->spec).empty() && plan->spec.block_size <= kMaxBlockSize;
  if (has_batch && spec_is_sound) ReadBatch(batch, plan->spec, plan.get(), reasons);
  if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);

  const std::span<const int32_t> offsets{batch.cu_seqlens_q, static_cast<size_t>(batch.num_seqs) + 1};
  auto q_begin = CuSeqlens::FromOffsets(offsets, offsets.back());
  if (!q_begin) return Report(q_begin.error(), error);
  plan->q_begin = *std::move(q_begin);
  const auto router = AttentionRouter::Create(Cpu(), options.kernels == nullptr ? "" : options.kernels);
  if (!router) return Report(router.error(), error);
  const int64_t width =
      batch.num_seqs == 0 ? 0 : std::ssize(plan->tables) / batch.num_seqs;  // exact: rows of one width
  AttentionLengths lengths{.q_begin = &plan->q_begin,
                           .kv_len = plan->kv_len,
                           .block_tables = {.ids = plan->tables.data(),
                                            .row_stride = width,
                                            .num_seqs = batch.num_seqs,
                                            .num_blocks = batch.num_blocks},
                           .kv_begin = plan->kv_begin,
                           .kv_end = plan->kv_end};
  if (batch.owned_seqs != nullptr) lengths.owned = OwnedSeqs{plan->owned};
  auto made = PlanAttention(*router, plan->spec, lengths, options.num_shares, PlanScratch::kCallers);
  if (!made && made.error().code == ErrorCode::kUnsupported) {
    AddRefusals(plan->spec, lengths, *router, reasons);
    if (!reasons.empty()) return Report(ATTEST_UNSUPPORTED, reasons, error);
  }
  if (!made) return Report(made.error(), error);
  plan->plan = *std::move(made);
  *out = plan.release();
  return ATTEST_OK;
}

}  // namespace

AttentionSpec SpecOf(const attest_attention_spec& c, Reasons& reasons) {
  AttentionSpec spec;
  spec.q_heads = c.q_heads;
  spec.kv_heads = c.kv_heads;
  spec.head_dim = c.head_dim;
  spec.v_head_dim = c.v_head_dim;
  spec.q_dtype = DTypeMember("q_dtype", c.q_dtype, reasons);
  spec.kv_dtype = DTypeMember("kv_dtype", c.kv_dtype, reasons);
  spec.out_dtype = DTypeMember("out_dtype", c.out_dtype, reasons);
  // NHD promises nothing but an innermost stride of 1, which is all that any kernel takes for granted.
  spec.layout = c.kv_layout == ATTEST_KV_CONTIGUOUS ? KvLayout::kContiguous : KvLayout::kPagedNhd;
  reasons.Require(c.kv_layout == ATTEST_KV_CONTIGUOUS || c.kv_layout == ATTEST_KV_PAGED, "kv_layout",
                  c.kv_layout, "ATTEST_KV_CONTIGUOUS (1) or ATTEST_KV_PAGED (2)");
  spec.block_size = c.block_size;
  spec.scale = c.scale;
  spec.window_left = LimitOf("window_left", c.window_left, 0, reasons);
  spec.window_right = LimitOf("window_right", c.window_right, 0, reasons);
  spec.chunk = LimitOf("chunk", c.chunk, 1, reasons);
  spec.sink_tokens = c.sink_tokens;
  spec.softcap = c.softcap;
  struct Flag {
    const char* name;
    int32_t value;
    bool* to;
  };
  for (const Flag& flag : {Flag{"causal", c.causal, &spec.causal},
                           {"has_alibi", c.has_alibi, &spec.has_alibi},
                           {"has_sinks", c.has_sinks, &spec.has_sinks},
                           {"has_k_descale", c.has_k_descale, &spec.has_k_descale},
                           {"has_v_descale", c.has_v_descale, &spec.has_v_descale},
                           {"wants_lse", c.wants_lse, &spec.wants_lse},
                           {"precise", c.precise, &spec.precise}}) {
    reasons.RequireFlag(flag.name, flag.value);
    *flag.to = flag.value != 0;
  }
  for (const Reason& reason : SpecReasons(spec)) {
    const bool is_told =
        std::ranges::any_of(reasons.list(), [&](const Reason& r) { return r.field == reason.field; });
    if (!is_told) reasons.Add(reason);
  }
  reasons.Require(c.q_heads <= kMaxHeads, "q_heads", c.q_heads, fmt::format("<= {}", kMaxHeads));
  reasons.Require(c.head_dim <= kMaxDim, "head_dim", c.head_dim, fmt::format("<= {}", kMaxDim));
  reasons.Require(c.v_head_dim <= kMaxDim, "v_head_dim", c.v_head_dim, fmt::format("<= {}", kMaxDim));
  reasons.Require(c.block_size <= kMaxBlockSize, "block_size", c.block_size,
                  fmt::format("<= {}", kMaxBlockSize));
  return spec;
}

}  // namespace attest::bindings

extern "C" {

uint32_t attest_attention_abi_version(void) { return ATTEST_ATTENTION_ABI_VERSION; }
const char* attest_version(void) { return attest::kVersion; }

attest_status attest_attention_plan_create(const attest_attention_spec* spec,
                                           const attest_attention_batch* batch,
                                           const attest_attention_options* options,
                                           attest_attention_plan** plan, attest_error** error) {
  if (plan != nullptr) *plan = nullptr;
  return attest::bindings::Guarded(
      error, [&] { return attest::bindings::Create(spec, batch, options, plan, error); });
}
void attest_attention_plan_free(attest_attention_plan* plan) { delete plan; }

int32_t attest_attention_plan_num_shares(const attest_attention_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->num_threads();
}

int32_t attest_attention_plan_num_routes(const attest_attention_plan* plan) {
  return plan == nullptr ? 0 : static_cast<int32_t>(plan->plan->groups().size());
}

attest_attention_route attest_attention_plan_route(const attest_attention_plan* plan, int32_t index) {
  if (plan == nullptr || index < 0 || index >= attest_attention_plan_num_routes(plan)) return {"", "", 0, 0};
  const attest::PlanGroup& group = plan->plan->groups()[static_cast<size_t>(index)];
  return {attest::AttentionPhaseName(group.problem.phase), group.route.name().data(), group.problem.num_seqs,
          group.num_tokens};
}

attest_status attest_attention_explain(const attest_attention_spec* c_spec, int32_t q_len, int32_t kv_len,
                                       const char* kernels, char* text, size_t capacity, size_t* needed,
                                       attest_error** error) {
  using namespace attest;
  using namespace attest::bindings;
  return Guarded(error, [&]() -> attest_status {
    Reasons reasons;
    attest_attention_spec read{};
    AttentionSpec spec;
    if (ReadStruct("spec", c_spec, &read, reasons)) spec = SpecOf(read, reasons);
    reasons.Require(text != nullptr || capacity == 0, "text", "NULL", fmt::format("{} bytes", capacity));
    if (!reasons.empty()) return Report(ATTEST_INVALID_ARGUMENT, reasons, error);
    const auto problem = ProblemOf(spec, q_len, kv_len);
    if (!problem) return Report(problem.error(), error);
    const auto explanation = Explain(*problem, Cpu(), kernels == nullptr ? "" : kernels);
    if (!explanation) return Report(explanation.error(), error);
    std::string lines;
    for (const Verdict& verdict : explanation->verdicts) {
      std::string why;
      for (const Reason& reason : verdict.reasons) why += (why.empty() ? "" : "; ") + ToString(reason);
      lines += fmt::format("{}: {}\n", verdict.kernel, verdict.runs ? "runs" : why);
    }
    if (needed != nullptr) *needed = lines.size() + 1;
    if (capacity > 0) {
      const size_t n = std::min(lines.size(), capacity - 1);
      std::memcpy(text, lines.data(), n);
      text[n] = '\0';
    }
    return ATTEST_OK;
  });
}

}  // extern "C"
