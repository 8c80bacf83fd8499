// What one render has used of its limits. Owned by the interpreter, one thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace attest::jinja {

// Every call throws RenderError when its limit is passed.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  // Copying a long string costs as many steps as it takes time: a loop over thousands of messages that looks
  // at the text of the first each time would otherwise copy terabytes within the limit.
  void Step(int line, int64_t bytes = 0) {
    steps_ += 1 + bytes / kBytesPerStep;
    if (steps_ > limits_.max_steps)
      throw RenderError(line, fmt::format("more than {} steps", limits_.max_steps));
  }
  // A filter or a slice goes through a list: in a loop over thousands of messages, again through all of them.
  void LookAtItems(const Value& value, int line) {
    if (const List* list = value.list()) {
      Step(line, static_cast<int64_t>(list->size()) * kBytesPerStep / kItemsPerStep);
    }
  }
  void CheckSize(int64_t bytes, int line) const {
    if (bytes > limits_.max_output_bytes) {
      throw RenderError(line, fmt::format("output is larger than {} bytes", limits_.max_output_bytes));
    }
  }
  // What a value takes when it is printed, compared or freed; there, functions call themselves.
  void CheckExtent(const Extent& extent, int line) const {
    if (extent.depth > limits_.max_value_depth) {
      throw RenderError(line, fmt::format("lists and dicts nest deeper than {}", limits_.max_value_depth));
    }
    const int64_t most = 2 * limits_.max_output_bytes;
    if (extent.bytes > most) throw RenderError(line, fmt::format("a value of more than {} bytes", most));
  }
  // See Environment::CountLink.
  void CountLink(int line) {
    if (++links_ > limits_.max_links) {
      throw RenderError(line, fmt::format("namespaces and macros are put into namespaces more than {} times",
                                          limits_.max_links));
    }
  }

  // Of an expression, a block or a macro's call that is inside of others.
  class Nested {
   public:
    Nested(Budget& budget, int line) : depth_(budget.depth_) {
      if (depth_ >= budget.limits_.max_stack) {
        throw RenderError(
            line, fmt::format("expressions and blocks nest deeper than {}", budget.limits_.max_stack));
      }
      ++depth_;
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

 private:
  static constexpr int64_t kBytesPerStep = 256, kItemsPerStep = 4;

  const Limits limits_;
  int64_t steps_ = 0;
  int depth_ = 0;
  int links_ = 0;
};

}  // namespace attest::jinja
