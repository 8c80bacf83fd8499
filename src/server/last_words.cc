#include "server/last_words.h"

#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/log.h"

namespace attest {
namespace {

using std::chrono::milliseconds;

// Probes and clients that are about to connect see a 503 rather than a closed port.
constexpr milliseconds kGrace{1000};
// A client that does not read its error must not keep the process.
constexpr milliseconds kLongest{10'000};

}  // namespace

LastWords::LastWords(Server& server) : server_(server) {
  SetLastWords([this](const std::string& what) { Say(what); });
}
LastWords::~LastWords() { SetLastWords({}); }

void LastWords::Say(const std::string& what) {
  is_failing_ = true;
  if (!server_.EndAll(what)) return;  // the thread that answers is the one that failed
  LogError("this process ends; requests under way get an error, new ones a 503");
  std::this_thread::sleep_for(kGrace);
  server_.Drain();
  for (auto waited = kGrace; waited < kLongest && !has_stopped_; waited += milliseconds(10)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
}

void LastWords::ServerHasStopped() {
  has_stopped_ = true;
  while (is_failing_) std::this_thread::sleep_for(milliseconds(10));
}

}  // namespace attest
