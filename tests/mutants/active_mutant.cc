// Which mutant is on: the one that the environment variable ATTEST_MUTANT names, or none. Linked into the
// mutant binaries alone; nothing in src/ knows of it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char* kNames[] = {
#include "mutant_names.inc"
};

int FromEnvironment() {
  const char* wanted = std::getenv("ATTEST_MUTANT");
  if (wanted == nullptr || *wanted == '\0') return 0;
  int number = 0;
  for (const char* name : kNames) {
    ++number;
    if (std::strcmp(name, wanted) == 0) return number;
  }
  std::fprintf(stderr, "ATTEST_MUTANT is '%s', known:", wanted);
  for (const char* name : kNames) std::fprintf(stderr, " %s", name);
  std::fprintf(stderr, "\n");
  std::_Exit(2);
}

}  // namespace

extern int attest_active_mutant;  // the number of the mutant in mutants.toml; 0: none
int attest_active_mutant = FromEnvironment();
