#include "conform/case_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

namespace attest::conform {
namespace {

// The row of the matrix, from the first words of a case's name.
std::string CapabilityOf(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"long_", "long contexts"},  {"one_long_", "long contexts"},   {"v_head_dim", "v_head_dim"},
      {"head_dim", "head_dim"},    {"group", "q_heads / kv_heads"},  {"one_kv_head", "q_heads / kv_heads"},
      {"block", "block_size"},     {"paged", "KV layout"},           {"contiguous", "KV layout"},
      {"kv_", "KV dtype"},         {"q_out", "query dtype"},         {"scale", "scale"},
      {"window", "window"},        {"non_causal", "not causal"},     {"streaming", "streaming sink tokens"},
      {"chunk", "local chunks"},   {"softcap", "softcap"},           {"alibi", "ALiBi"},
      {"sinks", "sink logits"},    {"descales", "descales"},         {"without_lse", "LSE"},
      {"precise", "precise mode"}, {"empty", "empty rows and keys"}, {"lengths", "lengths"},
      {"timed", "timed shapes"},
  };
  for (const auto& [prefix, capability] : kPrefixes) {
    if (name.starts_with(prefix)) return std::string(capability);
  }
  return name == "plain" ? "plain" : "combinations";
}

}  // namespace

AttentionSpec MakeSpec(int q_heads, int kv_heads, int head_dim) {
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .v_head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .wants_lse = true};
}

std::vector<AttentionCase> AttentionCases() {
  // Every phase in one batch: decode with and without context, prefill, extend, uniform decode, and an order
  // that no classification by position survives.
  const std::vector<int32_t> q{1, 9, 5, 1, 3, 17, 1, 33}, kv{1, 40, 5, 33, 19, 17, 2, 70};
  const std::vector<int32_t> long_q{1, 4, 40, 1}, long_kv{700, 600, 300, 5};
  std::vector<AttentionCase> cases;
  const auto add = [&](const std::string& name, const AttentionSpec& spec) {
    cases.push_back({name, spec, q, kv, CapabilityOf(name)});
  };
  const auto with = [](AttentionSpec spec, auto change) {
    change(spec);
    return spec;
  };
  const AttentionSpec base = MakeSpec(6, 2, 64);

  add("plain", base);
  const AttentionSpec few_heads = MakeSpec(3, 1, 64);  // long cases: the oracle is slow
  cases.push_back({"long_contexts_split", few_heads, long_q, long_kv, CapabilityOf("long_contexts_split")});
  cases.push_back({"one_long_decode", base, {1}, {1500}, CapabilityOf("one_long_decode")});
  cases.push_back({"long_prefill", MakeSpec(2, 1, 64), {200}, {200}, CapabilityOf("long_prefill")});
  for (const int dim : {16, 32, 80, 96, 128, 256})
    add("head_dim_" + std::to_string(dim), MakeSpec(4, 2, dim));
  add("v_head_dim_differs", with(MakeSpec(4, 2, 96), [](auto& s) { s.v_head_dim = 64; }));
  for (const int group : {1, 2, 3, 5, 7, 8, 12, 16}) {
    add("group_" + std::to_string(group), MakeSpec(2 * group, 2, 32));
  }
  add("one_kv_head_group_32", MakeSpec(32, 1, 32));
  for (const int size : {1, 4, 8, 32, 64, 24}) {
    add("block_" + std::to_string(size), with(base, [&](auto& s) { s.block_size = size; }));
  }
  add("paged_nhd", with(base, [](auto& s) { s.layout = KvLayout::kPagedNhd; }));
  add("contiguous", with(base, [](auto& s) { s.layout = KvLayout::kContiguous; }));
  for (const DType type : {DType::kF32, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    add("kv_" + std::string(DTypeName(type)), with(base, [&](auto& s) {
          s.kv_dtype = type;
          if (type == DType::kI8) s.scale /= 40.0f;  // stored integers are about 40 times larger
        }));
  }
  for (const DType type : {DType::kBF16, DType::kF16}) {
    add("q_out_" + std::string(DTypeName(type)),
        with(base, [&](auto& s) { s.q_dtype = s.out_dtype = type; }));
  }
  add("scale_1_256", with(base, [](auto& s) { s.scale = 1.0f / 256.0f; }));
  add("scale_half", with(base, [](auto& s) { s.scale *= 0.5f; }));
  for (const int window : {0, 3, 15, 16, 17, 1000}) {
    add("window_left_" + std::to_string(window), with(base, [&](auto& s) { s.window_left = window; }));
  }
  cases.push_back({"window_long", with(few_heads, [](auto& s) { s.window_left = 255; }), long_q, long_kv,
                   CapabilityOf("window_long")});
  add("non_causal", with(base, [](auto& s) { s.causal = false; }));
  add("non_causal_window", with(base, [](auto& s) {
        s.causal = false;
        s.window_left = s.window_right = 4;
      }));
  add("streaming_sink_tokens", with(base, [](auto& s) {
        s.window_left = 7;
        s.sink_tokens = 4;
      }));
  add("chunk_16", with(base, [](auto& s) { s.chunk = 16; }));
  add("softcap", with(base, [](auto& s) { s.softcap = 2.0f; }));
  add("softcap_window", with(base, [](auto& s) {
        s.softcap = 2.0f;
        s.window_left = 8;
      }));
  add("alibi", with(base, [](auto& s) { s.has_alibi = true; }));
  add("alibi_non_causal", with(base, [](auto& s) {
        s.has_alibi = true;
        s.causal = false;
      }));
  add("softcap_alibi", with(base, [](auto& s) {
        s.softcap = 2.0f;
        s.has_alibi = true;
      }));
  add("sinks", with(base, [](auto& s) { s.has_sinks = true; }));
  cases.push_back({"sinks_split", with(few_heads, [](auto& s) { s.has_sinks = true; }), long_q, long_kv,
                   CapabilityOf("sinks_split")});
  add("sinks_window", with(base, [](auto& s) {
        s.has_sinks = true;
        s.window_left = 8;
      }));
  add("descales", with(base, [](auto& s) {
        s.kv_dtype = DType::kF8E4M3;
        s.has_k_descale = s.has_v_descale = true;
      }));
  add("descales_softcap_sinks", with(base, [](auto& s) {
        s.kv_dtype = DType::kI8;
        s.scale /= 40.0f;
        s.has_k_descale = s.has_v_descale = true;
        s.softcap = 3.0f;
        s.has_sinks = true;
      }));
  add("without_lse", with(base, [](auto& s) { s.wants_lse = false; }));
  add("precise_f32", with(base, [](auto& s) {
        s.precise = true;
        s.kv_dtype = DType::kF32;
      }));
  add("all_features", with(base, [](auto& s) {
        s.causal = true;
        s.window_left = 9;
        s.sink_tokens = 2;
        s.softcap = 5.0f;
        s.has_alibi = s.has_sinks = true;
        s.kv_dtype = DType::kF16;
      }));
  // The library accepts what the engine never makes: rows without tokens, without keys, and more rows than
  // keys.
  cases.push_back({"empty_rows_and_empty_keys",
                   base,
                   {0, 3, 2, 1, 0, 4, 2},
                   {0, 3, 0, 0, 7, 2, 5},
                   CapabilityOf("empty_rows_and_empty_keys")});
  cases.push_back({"empty_keys_with_sinks",
                   with(base, [](auto& s) { s.has_sinks = true; }),
                   {2, 1, 3, 5},
                   {0, 0, 1, 2},
                   CapabilityOf("empty_keys_with_sinks")});
  return cases;
}

std::vector<TimedCase> TimedCases() {
  return {
      {9, 3, 64, 512, 512, 1},    {9, 3, 64, 2048, 2048, 1},
      {9, 3, 64, 64, 2048, 1},    {16, 8, 128, 1024, 1024, 1},
      {4, 1, 256, 1024, 1024, 1}, {9, 3, 64, 512, 512, 1, DType::kF32},
      {9, 3, 64, 1, 2000, 1},     {9, 3, 64, 1, 500, 32},
      {9, 3, 64, 1, 2000, 64},    {16, 8, 128, 1, 2000, 1},
      {16, 8, 128, 1, 2000, 16},  {4, 1, 256, 1, 2000, 1},
      {32, 4, 128, 1, 2000, 4},   {9, 3, 64, 1, 2000, 1, DType::kF32},
      {9, 3, 64, 4, 2000, 4},
  };
}

AttentionSpec PlainSpec() { return MakeSpec(1, 1, 64); }

std::string DescribeCase(const AttentionCase& c) {
  const AttentionSpec plain = PlainSpec(), &spec = c.spec;
  std::string text =
      fmt::format("q_len [{}] kv_len [{}]", fmt::join(c.q_len, ", "), fmt::join(c.kv_len, ", "));
  const auto add = [&](std::string_view field, const auto& value) {
    text += fmt::format(" {} {}", field, value);
  };
  if (spec.q_heads != 1 || spec.kv_heads != 1)
    add("heads", fmt::format("{}/{}", spec.q_heads, spec.kv_heads));
  if (spec.head_dim != plain.head_dim) add("head_dim", spec.head_dim);
  if (spec.v_head_dim != spec.head_dim) add("v_head_dim", spec.v_head_dim);
  if (spec.q_dtype != plain.q_dtype) add("q_dtype", DTypeName(spec.q_dtype));
  if (spec.out_dtype != plain.out_dtype) add("out_dtype", DTypeName(spec.out_dtype));
  if (spec.kv_dtype != plain.kv_dtype) add("kv_dtype", DTypeName(spec.kv_dtype));
  if (spec.layout != plain.layout) add("layout", KvLayoutName(spec.layout));
  if (spec.layout != KvLayout::kContiguous && spec.block_size != plain.block_size)
    add("block_size", spec.block_size);
  if (std::abs(spec.scale * std::sqrt(static_cast<float>(spec.head_dim)) - 1.0f) > 1e-5f)
    add("scale", spec.scale);
  if (!spec.causal) text += " not causal";
  if (spec.window_left) add("window_left", *spec.window_left);
  if (spec.window_right) add("window_right", *spec.window_right);
  if (spec.chunk) add("chunk", *spec.chunk);
  if (spec.sink_tokens != 0) add("sink_tokens", spec.sink_tokens);
  if (spec.softcap != 0) add("softcap", spec.softcap);
  if (spec.has_alibi) text += " alibi";
  if (spec.has_sinks) text += " sinks";
  if (spec.has_k_descale) text += " k_descale";
  if (spec.has_v_descale) text += " v_descale";
  if ((spec.has_k_descale || spec.has_v_descale) && c.options.descale != DescaleShape::kPerSeqAndHead)
    add("descale", DescaleShapeName(c.options.descale));
  if (!spec.wants_lse) text += " without lse";
  if (spec.precise) text += " precise";
  if (c.options.interleave_kv) text += " K and V interleaved";
  if (c.options.q_token_padding != 0) add("q_token_padding", c.options.q_token_padding);
  if (c.options.k_token_padding != 0) add("k_token_padding", c.options.k_token_padding);
  if (c.options.transposed_lse) text += " transposed lse";
  if (c.options.descale_padding != 0) add("descale_padding", c.options.descale_padding);
  if (c.options.recorded != nullptr) return text + " (numbers of the failing call)";
  return text + fmt::format(" (seed {})", c.options.seed);
}

std::vector<AttentionCase> SweepCases(bool quick) {
  // Every phase, short: two decodes, a uniform decode, a prefill and an extend.
  const std::vector<int32_t> q{1, 3, 5, 9, 1}, kv{40, 20, 5, 30, 1};
  std::vector<AttentionCase> cases;
  const auto add = [&](const std::string& name, const AttentionSpec& spec) -> AttentionCase& {
    cases.push_back({name, spec, q, kv, CapabilityOf(name)});
    return cases.back();
  };
  const auto bf16_and_f32 = [](int i) { return i % 2 == 0 ? DType::kBF16 : DType::kF32; };

  for (int dim = 8, i = 0; dim <= 256; dim += 8, ++i) {
    if (quick && dim % 32 != 0 && dim != 8 && dim != 80 && dim != 120) continue;
    AttentionSpec spec = MakeSpec(3, 1, dim);
    spec.kv_dtype = bf16_and_f32(i);
    add(fmt::format("head_dim_{}_{}", dim, DTypeName(spec.kv_dtype)), spec);
    if (quick) continue;
    spec.kv_dtype = bf16_and_f32(i + 1);
    add(fmt::format("head_dim_{}_{}", dim, DTypeName(spec.kv_dtype)), spec);
  }
  for (const auto& [dim, v_dim] : {std::pair{192, 128},
                                   {128, 192},
                                   {64, 32},
                                   {32, 64},
                                   {8, 256},
                                   {256, 8},
                                   {64, 72},
                                   {128, 16},
                                   {96, 128},
                                   {40, 56}}) {
    AttentionSpec spec = MakeSpec(4, 2, dim);
    spec.v_head_dim = v_dim;
    add(fmt::format("v_head_dim_{}_of_{}", v_dim, dim), spec);
  }
  std::vector<int> groups;
  for (int group = 1; group <= 16; ++group) groups.push_back(group);
  for (const int group : {20, 24, 32, 48, 64, 71}) groups.push_back(group);
  for (const int group : groups) {
    if (quick && group != 1 && group != 3 && group != 7 && group != 12 && group != 71) continue;
    const int kv_heads = group <= 16 ? 3 : 2;
    add(fmt::format("group_{}_of_{}_kv_heads", group, kv_heads), MakeSpec(kv_heads * group, kv_heads, 32));
  }
  for (int size = 1; size <= 256; ++size) {
    if (quick && size != 1 && size != 2 && size != 7 && size != 16 && size != 33 && size != 128 &&
        size != 256)
      continue;
    AttentionSpec spec = MakeSpec(2, 1, 32);
    spec.block_size = size;
    spec.kv_dtype = bf16_and_f32(size);
    if (size % 3 == 0) spec.layout = KvLayout::kPagedNhd;
    AttentionCase& c = add(fmt::format("block_{}", size), spec);
    c.q_len = {1, 4, 6, 9};  // the first row reads the third page of any size
    c.kv_len = {2 * size + 3, 1 + size, 6, size + 9};
  }
  for (const DType type :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    for (const KvLayout layout : {KvLayout::kPagedHnd, KvLayout::kPagedNhd, KvLayout::kContiguous}) {
      for (const DType q_type : {DType::kF32, DType::kBF16, DType::kF16}) {
        if (quick && (static_cast<int>(type) + static_cast<int>(layout) + static_cast<int>(q_type)) % 4 != 0)
          continue;
        AttentionSpec spec = MakeSpec(4, 2, 64);
        spec.kv_dtype = type;
        spec.layout = layout;
        spec.q_dtype = spec.out_dtype = q_type;
        if (type == DType::kI8) spec.scale /= 40.0f;
        AttentionCase& c =
            add(fmt::format("kv_{}_{}_q_{}", DTypeName(type), KvLayoutName(layout), DTypeName(q_type)), spec);
        c.options.interleave_kv = layout == KvLayout::kPagedNhd;
        c.options.k_token_padding = layout == KvLayout::kContiguous ? 24 : 0;
        c.options.q_token_padding = q_type == DType::kF32 ? 0 : 40;
        c.options.transposed_lse = q_type == DType::kBF16;
      }
    }
  }
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kBF16, DType::kF32}) {
    for (const DescaleShape shape :
         {DescaleShape::kPerTensor, DescaleShape::kPerHead, DescaleShape::kPerSeqAndHead}) {
      AttentionSpec spec = MakeSpec(4, 2, 64);
      spec.kv_dtype = type;
      if (type == DType::kI8) spec.scale /= 40.0f;
      spec.has_k_descale = spec.has_v_descale = true;
      AttentionCase& c = add(fmt::format("descales_{}_{}", DTypeName(type), DescaleShapeName(shape)), spec);
      c.options.descale = shape;
      c.options.descale_padding = type == DType::kF8E4M3 ? 3 : 0;
    }
  }
  for (const bool k_only : {true, false}) {
    AttentionSpec spec = MakeSpec(4, 2, 64);
    spec.kv_dtype = DType::kF8E4M3;
    spec.has_k_descale = k_only;
    spec.has_v_descale = !k_only;
    add(k_only ? "descales_k_only" : "descales_v_only", spec);
  }
  // Masks by their edges, on pages that the edges cut.
  struct Mask {
    const char* name;
    bool causal;
    std::optional<int32_t> left, right, chunk;
    int32_t sink_tokens;
  };
  const Mask masks[] = {{"window_self_only", true, 0, {}, {}, 0},
                        {"window_one_left", true, 1, {}, {}, 0},
                        {"window_page", true, 15, {}, {}, 0},
                        {"window_beyond_all_keys", true, 100000, {}, {}, 0},
                        {"window_right_of_a_causal_row", true, 5, 3, {}, 0},
                        {"window_right_only", false, {}, 0, {}, 0},
                        {"window_right_two", false, {}, 2, {}, 0},
                        {"window_both_sides_uneven", false, 7, 2, {}, 0},
                        {"non_causal_whole", false, {}, {}, {}, 0},
                        {"chunk_1", true, {}, {}, 1, 0},
                        {"chunk_7", true, {}, {}, 7, 0},
                        {"chunk_not_causal", false, {}, {}, 16, 0},
                        {"chunk_with_window", true, 3, {}, 16, 0},
                        {"streaming_one_sink_token", true, 3, {}, {}, 1},
                        {"streaming_sink_tokens_of_two_pages", true, 3, {}, {}, 20},
                        {"streaming_not_causal", false, 3, 1, {}, 4}};
  for (const Mask& mask : masks) {
    AttentionSpec spec = MakeSpec(6, 2, 64);
    spec.causal = mask.causal;
    spec.window_left = mask.left;
    spec.window_right = mask.right;
    spec.chunk = mask.chunk;
    spec.sink_tokens = mask.sink_tokens;
    add(mask.name, spec);
    if (quick) continue;
    spec.has_sinks = true;
    spec.softcap = 3.0f;
    add(fmt::format("{}_with_softcap_and_sinks", mask.name), spec);
  }
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    AttentionSpec spec = MakeSpec(6, 2, 64);
    spec.softcap = cap;
    spec.scale = 1.0f;  // scores that reach the cap
    add(fmt::format("softcap_{}", cap), spec);
  }
  for (const float scale : {1.0f, 0.0f, -0.125f, 1.0f / 448.0f}) {
    AttentionSpec spec = MakeSpec(6, 2, 64);
    spec.scale = scale;
    add(fmt::format("scale_{}", scale), spec);
  }
  for (const int heads : {1, 6, 12, 20}) {
    AttentionSpec spec = MakeSpec(heads, 1, 32);
    spec.has_alibi = true;
    add(fmt::format("alibi_{}_heads", heads), spec);
  }
  {
    AttentionSpec spec = MakeSpec(4, 2, 64);
    spec.has_sinks = true;
    AttentionCase& c = add("sinks_over_many_splits", spec);
    c.q_len = {1, 2, 3};
    c.kv_len = {900, 300, 3};
  }
  const auto lengths = [&](const char* name, std::vector<int32_t> q_len, std::vector<int32_t> kv_len) {
    AttentionCase& c = add(name, MakeSpec(4, 2, 64));
    c.q_len = std::move(q_len);
    c.kv_len = std::move(kv_len);
  };
  lengths("lengths_speculative_rows_of_every_length", {1, 2, 3, 4, 5, 6, 7, 8, 9},
          {20, 33, 5, 64, 65, 17, 100, 9, 40});
  lengths("lengths_padding_behind_the_rows", {3, 1, 0, 0, 0}, {20, 7, 0, 0, 0});
  lengths("lengths_decode_padded_with_empty_sequences", {1, 1, 1, 1}, {9, 33, 0, 0});
  lengths("lengths_more_rows_than_keys", {4, 9, 3}, {2, 5, 1});
  lengths("lengths_shortest_first", {5, 9, 9}, {20, 20, 20});
  lengths("lengths_shortest_last", {9, 9, 5}, {20, 20, 5});
  lengths("lengths_one_sequence", {7}, {7});
  lengths("lengths_one_key", {1}, {1});
  lengths("lengths_tile_edges", {15, 16, 17, 31, 32, 33}, {15, 16, 17, 63, 64, 65});
  for (const TimedCase& timed : TimedCases()) {
    // The shape, cut to what the oracle computes in milliseconds.
    AttentionSpec spec = MakeSpec(timed.q_heads, timed.kv_heads, timed.head_dim);
    spec.kv_dtype = timed.kv_dtype;
    spec.wants_lse = false;
    const bool is_prefill = timed.q_len == timed.kv_len;
    const int32_t q_len = std::min(timed.q_len, 13);
    const int32_t kv_len = is_prefill ? q_len : std::min(timed.kv_len, 200);
    AttentionCase& c =
        add(fmt::format("timed_{}_of_{}_heads_{}_{}_q_{}_kv_{}_x{}", timed.q_heads, timed.kv_heads,
                        timed.head_dim, DTypeName(timed.kv_dtype), timed.q_len, timed.kv_len, timed.seqs),
            spec);
    c.q_len.assign(static_cast<size_t>(std::min(timed.seqs, 2)), q_len);
    c.kv_len.assign(static_cast<size_t>(std::min(timed.seqs, 2)), kv_len);
  }
  return cases;
}

AttentionCase RandomCase(uint64_t seed, uint64_t index) {
  std::seed_seq sequence{seed & 0xffffffff, seed >> 32, index & 0xffffffff, index >> 32};
  std::mt19937 random(sequence);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const auto one_in = [&](int n) { return below(n) == 0; };
  const auto pick = [&](const auto& values) {
    return values[static_cast<size_t>(below(std::ssize(values)))];
  };

  AttentionCase c{.name = fmt::format("random_{}_{}", seed, index), .spec = {}, .q_len = {}, .kv_len = {}};
  c.capability = "random problems";
  c.options.seed = static_cast<uint32_t>(random());
  const int kv_heads = 1 + below(3), group = one_in(6) ? 1 + below(24) : 1 + below(8);
  // Half of the problems are what models are made of, which the fast kernels take; the others are anything.
  const bool common = one_in(2);
  const int dim = common ? pick(std::vector{32, 64, 64, 96, 128, 128, 256}) : 8 * (1 + below(32));
  AttentionSpec& spec = c.spec = MakeSpec(kv_heads * group, kv_heads, dim);
  if (!common && one_in(3)) spec.v_head_dim = 8 * (1 + below(32));
  if (!common && one_in(2)) {
    spec.kv_dtype = pick(std::vector{DType::kF32, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8});
  } else if (one_in(3)) {
    spec.kv_dtype = DType::kF32;
  }
  if (spec.kv_dtype == DType::kI8) spec.scale /= 40.0f;
  if (!common && one_in(3)) spec.q_dtype = spec.out_dtype = one_in(2) ? DType::kBF16 : DType::kF16;
  if (one_in(3)) spec.layout = one_in(2) ? KvLayout::kPagedNhd : KvLayout::kContiguous;
  spec.block_size = one_in(2) ? 16 : one_in(2) ? 1 << below(8) : 1 + below(256);
  if (one_in(5)) spec.scale *= pick(std::vector{0.25f, 0.5f, 2.0f});
  if (one_in(5)) spec.causal = false;
  if (one_in(3)) spec.window_left = one_in(2) ? below(20) : below(300);
  if (!spec.causal && one_in(2)) spec.window_right = below(20);
  if (one_in(8)) spec.chunk = 1 + below(64);
  if (!common && spec.window_left && one_in(3)) spec.sink_tokens = 1 + below(8);
  if (one_in(5)) spec.softcap = pick(std::vector{1.0f, 5.0f, 30.0f});
  if (one_in(6)) spec.has_alibi = true;
  if (one_in(5)) spec.has_sinks = true;
  if (!common && one_in(3)) spec.has_k_descale = spec.has_v_descale = true;
  spec.wants_lse = !one_in(4);
  c.options.descale =
      pick(std::vector{DescaleShape::kPerSeqAndHead, DescaleShape::kPerHead, DescaleShape::kPerTensor});
  c.options.interleave_kv = spec.layout == KvLayout::kPagedNhd && one_in(2);
  if (one_in(4)) c.options.q_token_padding = 8 * below(8);
  if (spec.layout == KvLayout::kContiguous && one_in(2)) c.options.k_token_padding = 8 * below(8);
  c.options.transposed_lse = one_in(4);

  // A short sequence is always there: among few keys an error of one key is large.
  c.q_len = {1};
  c.kv_len = {2 + below(6)};
  for (int seqs = 1 + below(5); seqs > 0; --seqs) {
    const int kind = below(10);
    const int32_t context = one_in(5) ? below(600) : below(80);
    const int32_t q_len = kind < 4 ? 1 : kind < 6 ? 2 + below(7) : kind < 9 ? 1 + below(40) : 0;
    c.q_len.push_back(q_len);
    c.kv_len.push_back(one_in(20) ? 0 : one_in(20) ? below(q_len + 1) : one_in(3) ? q_len : q_len + context);
  }
  return c;
}

}  // namespace attest::conform
