#pragma once

namespace attest {

inline constexpr const char kVersion[] = "0.1.0";  // as in CMakeLists.txt (tests/cli compares them)

}  // namespace attest
