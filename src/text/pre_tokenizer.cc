#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace attest {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

// Matches and what lies between them, covering the text.
std::vector<Span> AllSpans(const SplitStep& step, std::string_view text) {
  std::vector<Span> spans;
  size_t covered = 0;
  step.pattern.ForEachMatch(text, [&](size_t begin, size_t end) {
    if (covered != begin) spans.push_back({covered, begin, step.invert});
    spans.push_back({begin, end, !step.invert});
    covered = end;
  });
  if (covered != text.size()) spans.push_back({covered, text.size(), step.invert});
  return spans;
}

// Joins spans as the behaviour says. A match directly after a match stays on its own, as in the reference
// library.
template <class Joins>
std::vector<Span> Merge(const std::vector<Span>& spans, const Joins& joins) {
  std::vector<Span> merged;
  bool previous_match = false;
  for (const Span& span : spans) {
    if (!merged.empty() && joins(span.is_match, previous_match)) {
      merged.back().begin = std::min(merged.back().begin, span.begin);
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
    previous_match = span.is_match;
  }
  return merged;
}

std::vector<Span> ApplyBehavior(std::vector<Span> spans, SplitBehavior behavior) {
  const auto attaches = [](bool is_match, bool previous_match) { return is_match && !previous_match; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      return spans;
    case SplitBehavior::kIsolated:
      return spans;
    case SplitBehavior::kMergedWithPrevious:
      return Merge(spans, attaches);
    case SplitBehavior::kMergedWithNext:
      std::reverse(spans.begin(), spans.end());
      spans = Merge(spans, attaches);
      std::reverse(spans.begin(), spans.end());
      return spans;
    case SplitBehavior::kContiguous:
      return Merge(spans, [](bool is_match, bool previous_match) { return is_match == previous_match; });
  }
  return spans;
}

// One depth-first walk: each step cuts its text and hands every part to the next step.
class Walk {
 public:
  Walk(const std::vector<PreTokenizerStep>& steps, PieceSink& sink) : steps_(steps), sink_(sink) {}

  void Run(size_t index, std::string_view text, bool at_text_begin) {
    if (text.empty()) return;
    if (index == steps_.size()) return sink_.Piece(text);
    std::visit([&](const auto& step) { Step(step, index + 1, text, at_text_begin); }, steps_[index]);
  }

 private:
  void Step(const SplitStep& step, size_t next, std::string_view text, bool at_text_begin) {
    if (step.behavior == SplitBehavior::kIsolated) {  // the common case needs no list
      size_t covered = 0;
      const auto part = [&](size_t begin, size_t end) {
        if (begin < end) Run(next, text.substr(begin, end - begin), at_text_begin && begin == 0);
      };
      step.pattern.ForEachMatch(text, [&](size_t begin, size_t end) {
        part(covered, begin);
        part(begin, end);
        covered = end;
      });
      part(covered, text.size());
      return;
    }
    for (const Span& span : ApplyBehavior(AllSpans(step, text), step.behavior)) {
      Run(next, text.substr(span.begin, span.end - span.begin), at_text_begin && span.begin == 0);
    }
  }

  void Step(const DigitsStep& step, size_t next, std::string_view text, bool at_text_begin) {
    const UnicodeClasses& classes = UnicodeClasses::Get();
    const auto is_digit = [&](size_t at) {
      const auto byte = static_cast<uint8_t>(text[at]);
      if (byte < 0x80) return byte >= '0' && byte <= '9';
      return (classes[DecodeValidUtf8(text.data() + at)] & kDigitsSplit) != 0;
    };
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const auto length = static_cast<size_t>(Utf8Length(text.data() + at));
      if (!is_digit(at)) {
        at += length;
        continue;
      }
      Run(next, text.substr(begin, at - begin), at_text_begin && begin == 0);
      begin = at;
      at += length;
      while (!step.individual && at < text.size() && is_digit(at)) {
        at += static_cast<size_t>(Utf8Length(text.data() + at));
      }
      Run(next, text.substr(begin, at - begin), at_text_begin && begin == 0);
      begin = at;
    }
    Run(next, text.substr(begin), at_text_begin && begin == 0);
  }

  void Step(const MetaspaceStep& step, size_t next, std::string_view text, bool at_text_begin) {
    std::string marked;
    for (const char c : text) {
      if (c == ' ') {
        marked += step.replacement;
      } else {
        marked += c;
      }
    }
    const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                          (step.prepend == MetaspaceStep::Prepend::kFirst && at_text_begin);
    if (prepends && !marked.starts_with(step.replacement)) marked.insert(0, step.replacement);
    if (!step.split) return Run(next, marked, at_text_begin);
    const SplitStep split{TextPattern::Literal(step.replacement), SplitBehavior::kMergedWithNext, false};
    Step(split, next, marked, at_text_begin);
  }

  void Step(const ByteLevelStep& step, size_t next, std::string_view text, bool at_text_begin) {
    std::string prefixed;
    if (step.add_prefix_space && !text.starts_with(' ')) {
      prefixed.reserve(text.size() + 1);
      prefixed += ' ';
      prefixed += text;
      text = prefixed;
    }
    if (!step.scanner.has_value()) return Run(next, text, at_text_begin);
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const char* piece_end = step.scanner->Next(p, end);
      Run(next, {p, piece_end}, false);
      p = piece_end;
    }
  }

  const std::vector<PreTokenizerStep>& steps_;
  PieceSink& sink_;
};

}  // namespace

Expected<TextPattern> TextPattern::Regex(std::string_view pattern) {
  if (const std::optional<ScanKind> kind = ScannerFor(pattern)) return TextPattern(Scanner(*kind));
  ATTEST_ASSIGN_OR_RETURN(SplitRegex regex, SplitRegex::Compile(pattern));
  return TextPattern(std::move(regex));
}

template <class Found>
void TextPattern::ForEachMatch(std::string_view text, const Found& found) const {
  std::visit(Overloaded{[&](const std::string& literal) {
                          for (size_t at = 0; !literal.empty();) {
                            at = text.find(literal, at);
                            if (at == std::string_view::npos) break;
                            found(at, at + literal.size());
                            at += literal.size();
                          }
                        },
                        [&](const Scanner& scanner) {
                          const char* begin = text.data();
                          const char* end = begin + text.size();
                          for (const char* p = begin; p < end;) {
                            const char* piece_end = scanner.Next(p, end);
                            found(static_cast<size_t>(p - begin), static_cast<size_t>(piece_end - begin));
                            p = piece_end;
                          }
                        },
                        [&](const SplitRegex& regex) { regex.ForEachMatch(text, found); }},
             impl_);
}

bool Normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& out) {
  if (text.empty()) return false;
  bool changed = false;
  std::string next;
  const auto take = [&] {
    out.swap(next);
    text = out;
    changed = true;
  };
  for (const NormalizerStep& step : steps) {
    next.clear();
    std::visit(Overloaded{[&](const NfcStep&) {
                            AppendNfc(text, next);
                            if (next != text) take();
                          },
                          [&](const PrependStep& prepend) {
                            if (text.empty()) return;
                            next.reserve(prepend.text.size() + text.size());
                            next += prepend.text;
                            next += text;
                            take();
                          },
                          [&](const ReplaceStep& replace) {
                            size_t covered = 0;
                            next.reserve(text.size() + text.size() / 4);
                            replace.pattern.ForEachMatch(text, [&](size_t begin, size_t end) {
                              next += text.substr(covered, begin - covered);
                              next += replace.content;
                              covered = end;
                            });
                            if (covered == 0) return;
                            next += text.substr(covered);
                            take();
                          }},
               step);
  }
  return changed;
}

void PreTokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool at_text_begin,
                 PieceSink& sink) {
  Walk(steps, sink).Run(0, text, at_text_begin);
}

}  // namespace attest
