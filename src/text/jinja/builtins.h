// Filters, tests, methods and global functions, by name. The parser asks which names exist, so that an
// unknown one is refused at load; the interpreter calls them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace attest::jinja {

// The name under which a set or filter block's text enters its filters; no template can spell it.
inline constexpr const char kBlockValue[] = " block";

struct Arguments {
  int line = 0;
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` or called `name`; nullptr when left out.
  [[nodiscard]] const Value* Find(size_t index, std::string_view name) const;
};

// What a filter may call back: map('upper'), select('defined').
class Environment {
 public:
  virtual ~Environment() = default;
  // Counts towards the output limit; throws RenderError when it is passed.
  virtual void CheckSize(int64_t bytes, int line) = 0;
  // A namespace gets a value that holds a namespace or a macro. Freeing the first of a row of them frees the
  // next inside of that, so that there is a limit to how many may be in a row; throws past it.
  virtual void CountLink(int line) = 0;
  [[nodiscard]] virtual int64_t unix_time() const = 0;  // strftime_now
};

template <size_t kSize>
[[nodiscard]] bool Has(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

[[nodiscard]] bool IsKnownFilter(std::string_view name);
// False for the filters that look at one item of a list, or at none.
[[nodiscard]] bool GoesThroughList(std::string_view filter);
[[nodiscard]] bool IsKnownTest(std::string_view name);
[[nodiscard]] bool IsKnownMethod(std::string_view name);
[[nodiscard]] bool IsGlobalFunction(std::string_view name);

[[nodiscard]] Value ApplyFilter(std::string_view name, const Value& input, const Arguments& arguments,
                                Environment& environment);
[[nodiscard]] bool ApplyTest(std::string_view name, const Value& input, const Arguments& arguments);
[[nodiscard]] Value CallMethod(const Value& object, std::string_view name, const Arguments& arguments,
                               Environment& environment);
[[nodiscard]] bool HasMethod(const Value& object, std::string_view name);
[[nodiscard]] Value CallGlobal(std::string_view name, const Arguments& arguments, Environment& environment);
// object.name and object[key]; undefined when absent. Throws on an undefined object.
[[nodiscard]] Value GetAttribute(const Value& object, const std::string& name, int line);
[[nodiscard]] Value GetItem(const Value& object, const Value& key, int line);
// str.replace(old, new, count); throws before it makes a string that is larger than the limit.
[[nodiscard]] std::string Replaced(std::string_view text, std::string_view old, std::string_view with,
                                   int64_t count, int line, Environment& environment);
// + - * / // % ** of two numbers, as in Python (floor division, remainder with the divisor's sign); throws on
// a division by zero and where the result leaves 64 bits.
[[nodiscard]] Value Arithmetic(const std::string& op, const Value& left, const Value& right, int line);

}  // namespace attest::jinja
