// Runs a parsed template. Every step and every byte of output counts against a limit, since templates come
// from model files.
#pragma once

#include <cstdint>
#include <string>

#include "text/jinja/ast.h"

namespace attest::jinja {

struct Limits {
  // Evaluated nodes, quarters of a KiB of strings made, and every fourth item of a list that a filter or a
  // slice goes through; a 1,000-message chat needs about 100,000.
  int64_t max_steps = 2'000'000;
  int64_t max_output_bytes = 64 << 20;  // of the output and of any single string
  int max_call_depth = 100;             // nested macro calls
  int max_stack = 1000;                 // nested expressions and blocks, those of macros in macros included
  int max_value_depth = 200;            // lists and dicts in each other
  int max_links = 1000;                 // see Environment::CountLink
};

// Throws RenderError. `variables` are the template's globals; `unix_time` is what strftime_now shows.
[[nodiscard]] std::string Run(const Body& body, const Dict& variables, int64_t unix_time,
                              const Limits& limits);

}  // namespace attest::jinja
