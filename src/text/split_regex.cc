#include "text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/unicode.h"

namespace attest {
namespace {

constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNonSpaceSet =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr std::array<std::string_view, 36> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Expected<std::string> Run() {
    while (at_ < in_.size()) ATTEST_RETURN_IF_ERROR(Element());
    if (!groups_.empty()) return Malformed("a group is not closed");
    return std::move(out_);
  }

 private:
  std::unexpected<Error> Unsupported(std::string_view what) const {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("regex construct {} at offset {} in '{}' is not supported", ForMessage(what), at_,
                            ForMessage(in_)),
                "pattern");
  }
  std::unexpected<Error> Malformed(std::string_view what) const {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} at offset {} in regex '{}'", what, at_, ForMessage(in_)), "pattern");
  }
  [[nodiscard]] bool Starts(std::string_view prefix) const { return in_.substr(at_).starts_with(prefix); }

  Status Element() {
    const char c = in_[at_];
    switch (c) {
      case '(':
        return OpenGroup();
      case ')':
        if (groups_.empty()) return Malformed("')' closes nothing");
        last_atom_ = groups_.back().begin;
        caseless_ = groups_.back().caseless_outside;
        groups_.pop_back();
        out_ += ')';
        ++at_;
        return Quantifier();
      case '|':
        out_ += '|';
        ++at_;
        return {};
      case '[':
        last_atom_ = out_.size();
        ATTEST_RETURN_IF_ERROR(Set());
        return Quantifier();
      case '\\':
        last_atom_ = out_.size();
        ATTEST_RETURN_IF_ERROR(Escape(false));
        return Quantifier();
      case '.':
        last_atom_ = out_.size();
        out_ += R"([^\n])";
        ++at_;
        return Quantifier();
      case '^':
      case '$':
        return Unsupported(std::string(1, c));
      case '*':
      case '+':
      case '?':
        return Malformed("a quantifier follows nothing");
      case '{':
        return Unsupported("a bare '{'");
      default:
        last_atom_ = out_.size();
        const auto length = static_cast<size_t>(Utf8Length(in_.data() + at_));
        out_ += in_.substr(at_, length);
        at_ += length;
        return Quantifier();
    }
  }

  Status OpenGroup() {
    if (groups_.size() == 64) return Unsupported("nesting deeper than 64");
    groups_.push_back({out_.size(), caseless_});
    for (const std::string_view opener : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!Starts(opener)) continue;
      if (opener == "(?i:") caseless_ = true;
      out_ += opener;
      at_ += opener.size();
      return {};
    }
    if (Starts("(?")) return Unsupported(in_.substr(at_, 3));
    if (Starts("(*")) return Unsupported("(*");
    out_ += "(?:";
    ++at_;
    return {};
  }

  Status Quantifier() {
    if (at_ >= in_.size()) return {};
    const char c = in_[at_];
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      if (at_ < in_.size() && (in_[at_] == '+' || in_[at_] == '?')) out_ += in_[at_++];
    } else if (c == '{') {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) return Malformed("'{' is not closed");
      const std::string_view body = in_.substr(at_ + 1, close - at_ - 1);
      const size_t comma = body.find(',');
      const bool digits =
          std::all_of(body.begin(), body.end(), [](char d) { return d == ',' || (d >= '0' && d <= '9'); });
      if (!digits || body.empty() || body == "," || body.size() > 9)
        return Unsupported(fmt::format("{{{}}}", body));
      out_ += fmt::format("{{{}{}}}", comma == 0 ? "0" : "", body);  // {,n} is {0,n}
      at_ = close + 1;
      if (at_ < in_.size() && in_[at_] == '?') {
        if (comma == std::string::npos) return Unsupported("{n}?");
        out_ += '?';
        ++at_;
      } else if (at_ < in_.size() && in_[at_] == '+') {
        // In Ruby's syntax {n,m}+ repeats the repetition; in PCRE2 it would be possessive.
        out_ = fmt::format("{}(?:{})+", out_.substr(0, last_atom_), out_.substr(last_atom_));
        ++at_;
      }
    } else {
      return {};
    }
    if (at_ < in_.size() && std::string_view("*+?{").find(in_[at_]) != std::string_view::npos) {
      return Unsupported("a quantifier of a quantifier");
    }
    return {};
  }

  Status Set() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    bool is_first = true;
    while (true) {
      if (at_ >= in_.size()) return Malformed("'[' is not closed");
      const char c = in_[at_];
      if (c == ']' && !is_first) {
        out_ += ']';
        ++at_;
        return {};
      }
      if (c == ']') return Unsupported("']' first in a set");
      if (c == '[') return Unsupported("a set in a set");
      if (Starts("&&")) return Unsupported("&& in a set");
      is_first = false;
      if (c == '\\') {
        ATTEST_RETURN_IF_ERROR(Escape(true));
        continue;
      }
      const auto length = static_cast<size_t>(Utf8Length(in_.data() + at_));
      out_ += in_.substr(at_, length);
      at_ += length;
    }
  }

  // Members of a shorthand, as the inside of a set.
  void Emit(std::string_view members, bool negated, bool in_set) {
    if (!in_set) out_ += negated ? "[^" : "[";
    out_ += members;
    if (!in_set) out_ += ']';
  }

  Status Escape(bool in_set) {
    if (at_ + 1 >= in_.size()) return Malformed("the pattern ends in a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        at_ += 2;
        Emit(kSpaceSet, false, in_set);
        return {};
      case 'S':
        at_ += 2;
        Emit(in_set ? kNonSpaceSet : kSpaceSet, true, in_set);
        return {};
      case 'd':
      case 'w':
      case 'D':
      case 'W': {
        const bool negated = c == 'D' || c == 'W';
        if (negated && in_set) return Unsupported("a negated class in a set");
        if (caseless_) return Unsupported("a class in a (?i: group");
        at_ += 2;
        std::string members;
        if (c == 'd' || c == 'D') {
          AddCategory("Nd", members);
        } else {
          for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) AddCategory(name, members);
          members += R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
          // Superscripts and fractions of Latin-1 are word characters to Oniguruma, but not inside a set.
          if (!in_set) members += R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
        }
        Emit(members, negated, in_set);
        return {};
      }
      case 'p':
      case 'P':
        return Property(in_set);
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += in_.substr(at_, 2);
        at_ += 2;
        return {};
      case 'v':
        out_ += R"(\x{b})";
        at_ += 2;
        return {};
      case 'x':
      case 'u':
        return CodePoint(c);
      default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c < 0) {
          return Unsupported(fmt::format("\\{}", c < 0 ? std::string("(not ASCII)") : std::string(1, c)));
        }
        out_ += in_.substr(at_, 2);
        at_ += 2;
        return {};
    }
  }

  Status CodePoint(char kind) {
    size_t begin = at_ + 2;
    size_t end = begin;
    size_t next = begin;
    if (kind == 'x' && begin < in_.size() && in_[begin] == '{') {
      ++begin;
      end = in_.find('}', begin);
      if (end == std::string_view::npos) return Malformed("\\x{ is not closed");
      next = end + 1;
    } else {
      const size_t most = begin + (kind == 'x' ? 2 : 4);
      while (end < in_.size() && end < most && std::isxdigit(static_cast<unsigned char>(in_[end]))) ++end;
      if (kind == 'u' && end != most) return Malformed("\\u wants four hex digits");
      next = end;
    }
    const std::string_view digits = in_.substr(begin, end - begin);
    const bool hex =
        std::all_of(digits.begin(), digits.end(), [](unsigned char d) { return std::isxdigit(d); });
    if (digits.empty() || digits.size() > 6 || !hex) return Malformed("a code point wants 1 to 6 hex digits");
    // Oniguruma reads \x80 and above as a raw byte of the encoding, not as a code point.
    if (kind == 'x' && in_[at_ + 2] != '{' && std::stoul(std::string(digits), nullptr, 16) >= 0x80) {
      return Unsupported("a raw byte above \\x7F");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ = next;
    return {};
  }

  Status Property(bool in_set) {
    bool negated = in_[at_ + 1] == 'P';
    const size_t open = at_ + 2;
    const size_t close = in_.find('}', open);
    if (open >= in_.size() || in_[open] != '{' || close == std::string_view::npos)
      return Malformed("\\p wants {name}");
    std::string_view name = in_.substr(open + 1, close - open - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
      return Unsupported(fmt::format("\\p{{{}}}", name));
    }
    if (negated && in_set) return Unsupported("a negated class in a set");
    if (caseless_) return Unsupported("a class in a (?i: group");
    if (name.starts_with('C') && name != "Cc") return Unsupported(fmt::format("\\p{{{}}}", name));
    std::string members;
    AddCategory(name, members);
    Emit(members, negated, in_set);
    at_ = close + 1;
    return {};
  }

  static void AddCategory(std::string_view name, std::string& members) {
    members += fmt::format("\\p{{{}}}", name);
    for (const CategoryRange& range : CategoriesSinceUnicode14()) {
      if (std::string_view(range.category).starts_with(name)) {
        members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(range.first),
                               static_cast<uint32_t>(range.last));
      }
    }
  }

  struct Group {
    size_t begin;
    bool caseless_outside;
  };
  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  size_t last_atom_ = 0;
  bool caseless_ = false;
  std::vector<Group> groups_;
};

// Of one match: a pattern that backtracks without end must not hold a worker for minutes, nor take its
// memory. PCRE2's own defaults are 10 million steps and 20 GB. Patterns of real tokenizers need a handful of
// either.
constexpr uint32_t kMaxMatchSteps = 10'000'000;
constexpr uint32_t kMaxHeapKib = 256 << 10;

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct SplitRegex::Impl {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;  // only read by matches
  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

SplitRegex::SplitRegex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Expected<std::string> TranslateOniguruma(std::string_view pattern) {
  if (!IsValidUtf8(pattern)) return Fail(ErrorCode::kInvalidArgument, "regex is not valid UTF-8", "pattern");
  return Translator(pattern).Run();
}

Expected<SplitRegex> SplitRegex::Compile(std::string_view pattern) {
  ATTEST_ASSIGN_OR_RETURN(const std::string translated, TranslateOniguruma(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset, nullptr);
  if (impl->code == nullptr) {
    std::array<PCRE2_UCHAR, 160> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("regex '{}' does not compile: {}", ForMessage(pattern),
                            reinterpret_cast<const char*>(text.data())),
                "pattern");
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(impl->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("regex '{}' can match the empty string", ForMessage(pattern)), "pattern");
  }
  impl->context = pcre2_match_context_create(nullptr);
  if (impl->context == nullptr)
    return Fail(ErrorCode::kResourceExhausted, "no memory for a regex", "pattern");
  pcre2_set_match_limit(impl->context, kMaxMatchSteps);
  pcre2_set_heap_limit(impl->context, kMaxHeapKib);
  pcre2_jit_compile(impl->code,
                    PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs: slower, same matches
  return SplitRegex(std::move(impl));
}

void SplitRegex::ForEachMatch(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(impl_->code, nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;
  while (data != nullptr && at < text.size()) {
    int rc =
        pcre2_match(impl_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), impl_->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // 32 KiB; the interpreter keeps its frames on the heap
      rc = pcre2_match(impl_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                       impl_->context);
    }
    if (rc < 0) return;
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data.get());
    if (ovector[1] <= at && ovector[1] <= ovector[0]) return;  // lookbehind tricks with \K do not get here
    found(ovector[0], ovector[1]);
    at = ovector[1];
  }
}

}  // namespace attest
