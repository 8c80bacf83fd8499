// What every kernel of this build supports, as a Markdown page: docs/support.md, or docs/support_aarch64.md.
// Nothing in it is written by hand; each cell is the answer of a contract to a probe, so the page cannot say
// what the dispatcher does not do.
#pragma once

#include <string>

namespace attest {

// The same text on every machine of one processor family, whatever its instruction sets.
[[nodiscard]] std::string SupportMarkdown();

}  // namespace attest
