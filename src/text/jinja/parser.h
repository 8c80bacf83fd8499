// Tokens to a syntax tree. What the interpreter cannot run is refused here, at load, with its name and line.
#pragma once

#include <string_view>

#include "base/error.h"
#include "text/jinja/ast.h"

namespace attest::jinja {

// kUnsupported names the construct and its line; kInvalidArgument is a syntax error with its line.
[[nodiscard]] Expected<Body> Parse(std::string_view source);

}  // namespace attest::jinja
