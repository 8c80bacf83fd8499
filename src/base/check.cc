#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace attest {
namespace {

std::function<void(const std::string&)> last_words;
std::atomic<bool> is_failing = false;

[[noreturn]] void End(const std::string& what) {
  std::fprintf(stderr, "attest: %s\n", what.c_str());
  std::fflush(stderr);
  if (!is_failing.exchange(true) && last_words) last_words(what);
  std::abort();
}

[[noreturn]] void OnTerminate() {
  std::string what = "ended without an exception";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      what = std::string("uncaught exception: ") + e.what();
    } catch (...) {
      what = "uncaught exception";
    }
  }
  End(what);
}

}  // namespace

void CheckFailed(const char* file, int line, const std::string& what) {
  End("check failed at " + std::string(file) + ":" + std::to_string(line) + ": " + what);
}

void SetLastWords(std::function<void(const std::string& what)> words) {
  last_words = std::move(words);
  std::set_terminate(&OnTerminate);
}

}  // namespace attest
