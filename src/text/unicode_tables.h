// Data behind text/unicode.h; read by unicode.cc alone.
#pragma once

#include <vector>

namespace attest {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Code points up to Unicode 14 that the reference library's normaliser (Unicode 9 tables) passes through as
// starters that never compose, although later Unicode gives them a combining class or a composition.
const std::vector<CodePointRange>& NfcInertRanges();

}  // namespace attest
