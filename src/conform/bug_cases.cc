#include "conform/bug_cases.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace attest::conform {

const std::vector<BugCase>& BugCases() {
  static const std::vector<BugCase> all = [] {
    std::vector<BugCase> cases;
    for (const auto part : {MaskBugCases(), LayoutBugCases(), SystemBugCases()})
      cases.insert(cases.end(), part.begin(), part.end());
    std::ranges::stable_sort(cases, {}, [](const BugCase& bug) { return std::string_view(bug.id); });
    return cases;
  }();
  return all;
}

std::string BugCaseName(const BugCase& bug) {
  std::string source;
  for (const char c : std::string_view(bug.source)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) source += c;
  }
  return std::string(bug.id) + "_" + source + "_" + bug.name;
}

}  // namespace attest::conform
