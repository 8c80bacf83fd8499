#include "attention/case_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "io/file_error.h"
#include "io/mapped_file.h"
#include "io/safetensors_writer.h"

namespace attest {
namespace {

constexpr std::string_view kFormat = "attest attention case 1";
constexpr std::string_view kNotePrefix = "note.";

// Far above any model and any call, and low enough that no product of three of them leaves 64 bits.
constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxDim = 1 << 16;
constexpr int64_t kMaxTokens = 1 << 30;
constexpr int64_t kMaxSeqs = 1 << 20;

constexpr DType kPlainTypes[] = {DType::kF32,    DType::kF16,    DType::kBF16,
                                 DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
constexpr KvLayout kLayouts[] = {KvLayout::kContiguous, KvLayout::kPagedHnd, KvLayout::kPagedNhd};

std::string_view FileTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kI8:
      return "I8";
    default:
      return "";
  }
}

// --- The spec as text ---

std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(int value) { return fmt::format("{}", value); }
std::string Text(float value) { return fmt::format("{}", value); }  // shortest text that reads back equal
std::string Text(DType value) { return std::string(DTypeName(value)); }
std::string Text(KvLayout value) { return KvLayoutName(value); }

// One error value for every bad field; whoever reports it adds the file.
std::unexpected<Error> Bad(std::string_view field, std::string_view value, std::string_view expected) {
  return FailOnOneLine(ErrorCode::kInvalidArgument,
                       fmt::format("{} is {}, expected {}", field, value, expected), std::string(field));
}

// Metadata that has been read is taken out, so that what is left is what nobody knows.
class Fields {
 public:
  explicit Fields(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  std::optional<std::string> Take(const std::string& name) {
    auto node = values_.extract(name);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }
  Expected<std::string> TakeRequired(const std::string& name) {
    std::optional<std::string> text = Take(name);
    if (!text) return Bad(name, "absent", "a text in __metadata__");
    return *std::move(text);
  }
  [[nodiscard]] const std::map<std::string, std::string>& rest() const { return values_; }

 private:
  std::map<std::string, std::string> values_;
};

template <class Int>
Status Parse(const std::string& field, const std::string& text, int64_t low, int64_t high, Int& out) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Bad(field, Quoted(text), fmt::format("a whole number from {} to {}", low, high));
  }
  out = static_cast<Int>(value);
  return {};
}

Status Parse(const std::string& field, const std::string& text, float& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return Bad(field, Quoted(text), "a number that float32 holds");
}

Status Parse(const std::string& field, const std::string& text, bool& out) {
  if (text != "true" && text != "false") return Bad(field, Quoted(text), "true or false");
  out = text == "true";
  return {};
}

template <class T, size_t kCount>
Status ParseName(const std::string& field, const std::string& text, const T (&known)[kCount], T& out) {
  std::string names;
  for (const T value : known) {
    if (Text(value) == text) {
      out = value;
      return {};
    }
    names += names.empty() ? "" : ", ";
    names += Text(value);
  }
  return Bad(field, Quoted(text), fmt::format("one of {}", names));
}

std::map<std::string, std::string> MetadataOf(const AttentionCaseFile& c) {
  const AttentionSpec& spec = c.spec;
  std::map<std::string, std::string> metadata{{"format", std::string(kFormat)},
                                              {"kernel", c.kernel},
                                              {"q_heads", Text(spec.q_heads)},
                                              {"kv_heads", Text(spec.kv_heads)},
                                              {"head_dim", Text(spec.head_dim)},
                                              {"v_head_dim", Text(spec.v_head_dim)},
                                              {"q_dtype", Text(spec.q_dtype)},
                                              {"kv_dtype", Text(spec.kv_dtype)},
                                              {"out_dtype", Text(spec.out_dtype)},
                                              {"layout", Text(spec.layout)},
                                              {"block_size", Text(spec.block_size)},
                                              {"scale", Text(spec.scale)},
                                              {"causal", Text(spec.causal)},
                                              {"sink_tokens", Text(spec.sink_tokens)},
                                              {"softcap", Text(spec.softcap)},
                                              {"has_alibi", Text(spec.has_alibi)},
                                              {"has_sinks", Text(spec.has_sinks)},
                                              {"has_k_descale", Text(spec.has_k_descale)},
                                              {"has_v_descale", Text(spec.has_v_descale)},
                                              {"wants_lse", Text(spec.wants_lse)},
                                              {"precise", Text(spec.precise)}};
  if (spec.window_left) metadata["window_left"] = Text(*spec.window_left);
  if (spec.window_right) metadata["window_right"] = Text(*spec.window_right);
  if (spec.chunk) metadata["chunk"] = Text(*spec.chunk);
  if (spec.rowwise) metadata["rowwise"] = Text(true);  // absent from files older than it
  for (const auto& [name, text] : c.notes) metadata[std::string(kNotePrefix) + name] = text;
  return metadata;
}

Status CheckSpecLimits(const AttentionSpec& spec) {
  ATTEST_RETURN_IF_ERROR(ValidateSpec(spec));
  const auto limit = [](const char* field, int64_t value, int64_t max) -> Status {
    if (value <= max) return {};
    return Bad(field, fmt::format("{}", value), fmt::format("at most {}", max));
  };
  ATTEST_RETURN_IF_ERROR(limit("q_heads", spec.q_heads, kMaxHeads));
  ATTEST_RETURN_IF_ERROR(limit("head_dim", spec.head_dim, kMaxDim));
  ATTEST_RETURN_IF_ERROR(limit("v_head_dim", spec.v_head_dim, kMaxDim));
  return limit("block_size", spec.block_size, kMaxTokens);
}

Expected<AttentionSpec> ReadSpec(Fields& fields) {
  AttentionSpec spec;
  const auto whole = [&](const char* name, int64_t low, int64_t high, auto& out) -> Status {
    ATTEST_ASSIGN_OR_RETURN(const std::string text, fields.TakeRequired(name));
    return Parse(name, text, low, high, out);
  };
  const auto optional = [&](const char* name, int64_t low, std::optional<int32_t>& out) -> Status {
    const std::optional<std::string> text = fields.Take(name);
    if (!text) return {};
    return Parse(name, *text, low, std::numeric_limits<int32_t>::max(), out.emplace());
  };
  const auto plain = [&](const char* name, auto& out) -> Status {
    ATTEST_ASSIGN_OR_RETURN(const std::string text, fields.TakeRequired(name));
    return Parse(name, text, out);
  };
  const auto named = [&](const char* name, const auto& known, auto& out) -> Status {
    ATTEST_ASSIGN_OR_RETURN(const std::string text, fields.TakeRequired(name));
    return ParseName(name, text, known, out);
  };
  ATTEST_RETURN_IF_ERROR(whole("q_heads", 1, kMaxHeads, spec.q_heads));
  ATTEST_RETURN_IF_ERROR(whole("kv_heads", 1, kMaxHeads, spec.kv_heads));
  ATTEST_RETURN_IF_ERROR(whole("head_dim", 1, kMaxDim, spec.head_dim));
  ATTEST_RETURN_IF_ERROR(whole("v_head_dim", 1, kMaxDim, spec.v_head_dim));
  ATTEST_RETURN_IF_ERROR(named("q_dtype", kPlainTypes, spec.q_dtype));
  ATTEST_RETURN_IF_ERROR(named("kv_dtype", kPlainTypes, spec.kv_dtype));
  ATTEST_RETURN_IF_ERROR(named("out_dtype", kPlainTypes, spec.out_dtype));
  ATTEST_RETURN_IF_ERROR(named("layout", kLayouts, spec.layout));
  ATTEST_RETURN_IF_ERROR(whole("block_size", 1, kMaxTokens, spec.block_size));
  ATTEST_RETURN_IF_ERROR(plain("scale", spec.scale));
  ATTEST_RETURN_IF_ERROR(plain("causal", spec.causal));
  ATTEST_RETURN_IF_ERROR(optional("window_left", 0, spec.window_left));
  ATTEST_RETURN_IF_ERROR(optional("window_right", 0, spec.window_right));
  ATTEST_RETURN_IF_ERROR(optional("chunk", 1, spec.chunk));
  ATTEST_RETURN_IF_ERROR(whole("sink_tokens", 0, std::numeric_limits<int32_t>::max(), spec.sink_tokens));
  ATTEST_RETURN_IF_ERROR(plain("softcap", spec.softcap));
  ATTEST_RETURN_IF_ERROR(plain("has_alibi", spec.has_alibi));
  ATTEST_RETURN_IF_ERROR(plain("has_sinks", spec.has_sinks));
  ATTEST_RETURN_IF_ERROR(plain("has_k_descale", spec.has_k_descale));
  ATTEST_RETURN_IF_ERROR(plain("has_v_descale", spec.has_v_descale));
  ATTEST_RETURN_IF_ERROR(plain("wants_lse", spec.wants_lse));
  ATTEST_RETURN_IF_ERROR(plain("precise", spec.precise));
  if (const std::optional<std::string> rowwise = fields.Take("rowwise")) {
    ATTEST_RETURN_IF_ERROR(Parse("rowwise", *rowwise, spec.rowwise));
  }
  ATTEST_RETURN_IF_ERROR(CheckSpecLimits(spec));
  return spec;
}

// --- Lengths and tables ---

Status CheckLengths(const AttentionCaseFile& c) {
  if (std::ssize(c.q_len) > kMaxSeqs || c.q_len.empty()) {
    return Bad("q_len", fmt::format("{} entries", c.q_len.size()), fmt::format("1 to {}", kMaxSeqs));
  }
  if (c.kv_len.size() != c.q_len.size()) {
    return Bad("kv_len", fmt::format("{} entries", c.kv_len.size()),
               fmt::format("one per sequence, {}", c.q_len.size()));
  }
  int64_t num_tokens = 0, num_keys = 0;
  for (size_t i = 0; i < c.q_len.size(); ++i) {
    for (const auto& [field, length] : {std::pair("q_len", c.q_len[i]), std::pair("kv_len", c.kv_len[i])}) {
      if (length < 0 || length > kMaxTokens) {
        return Bad(fmt::format("{}[{}]", field, i), fmt::format("{}", length),
                   fmt::format("0 to {} tokens", kMaxTokens));
      }
    }
    num_tokens += c.q_len[i];
    num_keys += c.kv_len[i];
  }
  if (num_tokens > kMaxTokens) {
    return Bad("q_len", fmt::format("{} tokens in all", num_tokens), fmt::format("at most {}", kMaxTokens));
  }
  if (c.spec.layout == KvLayout::kContiguous && num_keys > kMaxTokens) {
    return Bad("kv_len", fmt::format("{} keys in all", num_keys), fmt::format("at most {}", kMaxTokens));
  }
  return {};
}

Status CheckTables(const AttentionCaseFile& c) {
  if (c.spec.layout == KvLayout::kContiguous) {
    if (c.num_blocks != 0 || c.table_width != 0) {
      return Bad("num_blocks and table_width", fmt::format("{} and {}", c.num_blocks, c.table_width),
                 "0 and 0 with contiguous K and V");
    }
    return {};
  }
  if (c.num_blocks < 0 || c.num_blocks > kMaxTokens) {
    return Bad("num_blocks", fmt::format("{}", c.num_blocks), fmt::format("0 to {}", kMaxTokens));
  }
  if (c.table_width < 0 || c.table_width > kMaxTokens) {
    return Bad("table_width", fmt::format("{}", c.table_width), fmt::format("0 to {}", kMaxTokens));
  }
  for (size_t i = 0; i < c.q_len.size(); ++i) {
    const int64_t needed = (int64_t{c.kv_len[i]} + c.spec.block_size - 1) / c.spec.block_size;
    if (c.q_len[i] > 0 && needed > c.table_width) {
      return Bad("table_width", fmt::format("{}", c.table_width),
                 fmt::format("at least {}, for the {} keys of sequence {}", needed, c.kv_len[i], i));
    }
  }
  for (size_t i = 0; i < c.block_tables.size(); ++i) {
    if (c.block_tables[i] >= -1 && c.block_tables[i] < c.num_blocks) continue;
    return Bad(fmt::format("block_tables[{}]", i), fmt::format("{}", c.block_tables[i]),
               fmt::format("-1, or a block below {}", c.num_blocks));
  }
  return {};
}

// --- Tensors ---

enum class Presence { kAbsent, kRequired, kOptional };

Presence If(bool declared) { return declared ? Presence::kRequired : Presence::kAbsent; }

// Calls fn(name, file type, shape, member, presence) for every tensor of a case. REQUIRES: CheckLengths.
template <class Case, class Fn>
Status ForEachTensor(Case& c, Fn fn) {
  const AttentionSpec& spec = c.spec;
  const bool paged = spec.layout != KvLayout::kContiguous;
  const auto seqs = std::ssize(c.q_len);
  const auto tokens = std::accumulate(c.q_len.begin(), c.q_len.end(), int64_t{0});
  const auto keys = std::accumulate(c.kv_len.begin(), c.kv_len.end(), int64_t{0});
  const auto kv_shape = [&](int64_t dim) -> std::vector<int64_t> {
    switch (spec.layout) {
      case KvLayout::kPagedHnd:
        return {c.num_blocks, spec.kv_heads, spec.block_size, dim};
      case KvLayout::kPagedNhd:
        return {c.num_blocks, spec.block_size, spec.kv_heads, dim};
      case KvLayout::kContiguous:
        break;
    }
    return {keys, spec.kv_heads, dim};
  };
  using Shape = std::vector<int64_t>;
  const std::string_view kv_type = FileTypeOf(spec.kv_dtype);
  const Shape per_head{spec.q_heads}, per_kv_head{seqs, spec.kv_heads};
  ATTEST_RETURN_IF_ERROR(fn("q_len", "I32", Shape{seqs}, c.q_len, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(fn("kv_len", "I32", Shape{seqs}, c.kv_len, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(fn("q", FileTypeOf(spec.q_dtype), Shape{tokens, spec.q_heads, spec.head_dim}, c.q,
                            Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(fn("k", kv_type, kv_shape(spec.head_dim), c.k, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(fn("v", kv_type, kv_shape(spec.v_head_dim), c.v, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(fn("block_tables", "I32", Shape{seqs, c.table_width}, c.block_tables, If(paged)));
  ATTEST_RETURN_IF_ERROR(fn("alibi_slopes", "F32", per_head, c.alibi_slopes, If(spec.has_alibi)));
  ATTEST_RETURN_IF_ERROR(fn("sinks", "F32", per_head, c.sinks, If(spec.has_sinks)));
  ATTEST_RETURN_IF_ERROR(fn("k_descale", "F32", per_kv_head, c.k_descale, If(spec.has_k_descale)));
  ATTEST_RETURN_IF_ERROR(fn("v_descale", "F32", per_kv_head, c.v_descale, If(spec.has_v_descale)));
  return fn("out", FileTypeOf(spec.out_dtype), Shape{tokens, spec.q_heads, spec.v_head_dim}, c.out,
            Presence::kOptional);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Expected<std::vector<SafetensorsEntry>> EntriesOf(const AttentionCaseFile& c) {
  std::vector<SafetensorsEntry> entries;
  const auto add = [&](const char* name, std::string_view dtype, const std::vector<int64_t>& shape,
                       const auto& member, Presence presence) -> Status {
    const auto bytes = std::as_bytes(std::span(member));
    if (presence == Presence::kAbsent || (presence == Presence::kOptional && bytes.empty())) {
      if (bytes.empty()) return {};
      return Bad(name, fmt::format("{} bytes", bytes.size()), "nothing: the spec does not declare it");
    }
    int64_t expected = SafetensorsElementBytes(dtype);
    for (const int64_t extent : shape) {
      if (__builtin_mul_overflow(expected, extent, &expected)) expected = std::numeric_limits<int64_t>::max();
    }
    if (std::cmp_not_equal(bytes.size(), expected)) {
      return Bad(name, fmt::format("{} bytes", bytes.size()),
                 fmt::format("{}, {} {}", expected, dtype, ShapeText(shape)));
    }
    entries.push_back({.name = name, .dtype = std::string(dtype), .shape = shape, .data = bytes});
    return {};
  };
  ATTEST_RETURN_IF_ERROR(ForEachTensor(c, add));
  return entries;
}

// Takes entries out by name, as Fields does with text.
class Entries {
 public:
  explicit Entries(std::vector<SafetensorsEntry> entries) : entries_(std::move(entries)) {}

  [[nodiscard]] const SafetensorsEntry* Find(std::string_view name) const {
    const auto found = std::ranges::find(entries_, name, &SafetensorsEntry::name);
    return found == entries_.end() ? nullptr : &*found;
  }
  // The extent of one axis, which the file alone knows; the shape as a whole is checked by Read.
  [[nodiscard]] Expected<int64_t> Extent(const char* name, size_t axis, int64_t max) const {
    const SafetensorsEntry* entry = Find(name);
    if (entry == nullptr) return Bad(name, "absent", "a tensor");
    if (axis >= entry->shape.size() || entry->shape[axis] > max) {
      return Bad(name, ShapeText(entry->shape),
                 fmt::format("a shape with dimension {} of at most {}", axis, max));
    }
    return entry->shape[axis];
  }
  template <class T>
  Status Read(const char* name, std::string_view dtype, const std::vector<int64_t>& shape,
              std::vector<T>& member, Presence presence) {
    const SafetensorsEntry* entry = Find(name);
    if (entry == nullptr) {
      if (presence != Presence::kRequired) return {};
      return Bad(name, "absent", fmt::format("{} {}", dtype, ShapeText(shape)));
    }
    if (presence == Presence::kAbsent) return Bad(name, "given", "absent: the spec does not declare it");
    if (entry->dtype != dtype || entry->shape != shape) {
      return Bad(name, fmt::format("{} {}", entry->dtype, ShapeText(entry->shape)),
                 fmt::format("{} {}", dtype, ShapeText(shape)));
    }
    member.resize(entry->data.size() / sizeof(T));
    if (!member.empty()) std::memcpy(member.data(), entry->data.data(), entry->data.size());
    std::erase_if(entries_, [&](const SafetensorsEntry& other) { return other.name == name; });
    return {};
  }
  [[nodiscard]] const std::vector<SafetensorsEntry>& rest() const { return entries_; }

 private:
  std::vector<SafetensorsEntry> entries_;
};

Expected<AttentionCaseFile> ReadCase(SafetensorsFile file) {
  AttentionCaseFile c;
  Fields fields(std::move(file.metadata));
  ATTEST_ASSIGN_OR_RETURN(const std::string format, fields.TakeRequired("format"));
  if (format != kFormat) return Bad("format", Quoted(format), Quoted(kFormat));
  ATTEST_ASSIGN_OR_RETURN(c.kernel, fields.TakeRequired("kernel"));
  ATTEST_ASSIGN_OR_RETURN(c.spec, ReadSpec(fields));
  for (const auto& [name, text] : fields.rest()) {
    if (!name.starts_with(kNotePrefix)) return Bad("__metadata__", Quoted(name), "a name that is known");
    c.notes.emplace(name.substr(kNotePrefix.size()), text);
  }

  Entries entries(std::move(file.entries));
  ATTEST_ASSIGN_OR_RETURN(const int64_t num_seqs, entries.Extent("q_len", 0, kMaxSeqs));
  ATTEST_RETURN_IF_ERROR(entries.Read("q_len", "I32", {num_seqs}, c.q_len, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(entries.Read("kv_len", "I32", {num_seqs}, c.kv_len, Presence::kRequired));
  ATTEST_RETURN_IF_ERROR(CheckLengths(c));
  if (c.spec.layout != KvLayout::kContiguous) {
    ATTEST_ASSIGN_OR_RETURN(c.num_blocks, entries.Extent("k", 0, kMaxTokens));
    ATTEST_ASSIGN_OR_RETURN(const int64_t width, entries.Extent("block_tables", 1, kMaxTokens));
    c.table_width = static_cast<int32_t>(width);
  }
  ATTEST_RETURN_IF_ERROR(
      ForEachTensor(c,
                    [&](const char* name, std::string_view dtype, const std::vector<int64_t>& shape,
                        auto& member, Presence presence) -> Status {
                      if (std::string_view(name) == "q_len" || std::string_view(name) == "kv_len")
                        return {};  // read above
                      return entries.Read(name, dtype, shape, member, presence);
                    }));
  if (!entries.rest().empty()) {
    return Bad("tensor", Quoted(entries.rest().front().name), "a name that is known");
  }
  ATTEST_RETURN_IF_ERROR(CheckTables(c));
  return c;
}

}  // namespace

Status WriteCaseFile(const std::filesystem::path& path, const AttentionCaseFile& attention_case) {
  ATTEST_RETURN_IF_ERROR(CheckSpecLimits(attention_case.spec));
  ATTEST_RETURN_IF_ERROR(CheckLengths(attention_case));
  ATTEST_RETURN_IF_ERROR(CheckTables(attention_case));
  ATTEST_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries, EntriesOf(attention_case));
  return WriteSafetensors(path, entries, MetadataOf(attention_case));
}

Expected<AttentionCaseFile> ParseCaseFile(std::span<const std::byte> bytes, const std::string& file_name) {
  ATTEST_ASSIGN_OR_RETURN(SafetensorsFile file, ParseSafetensorsFile(bytes, file_name));
  Expected<AttentionCaseFile> parsed = ReadCase(std::move(file));
  if (parsed) return parsed;
  return FailOnOneLine(ErrorCode::kCorruptFile, fmt::format("{}: {}", file_name, parsed.error().message),
                       parsed.error().field);
}

Expected<AttentionCaseFile> ReadCaseFile(const std::filesystem::path& path) {
  ATTEST_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseCaseFile(file.bytes(), path.string());
}

}  // namespace attest
