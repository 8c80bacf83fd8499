// When a check of ours fails in the engine, or an exception meets nobody, the process ends. Before it does,
// its clients are told: every generation under way ends with an error that holds the check's words, and new
// requests and probes get a 503 for a second. Then the thread whose check failed ends the process (SIGABRT,
// so that there can be a core file). Owned by whoever runs the server, one at a time; it must go before the
// server does.
#pragma once

#include <atomic>
#include <string>

#include "server/server.h"

namespace attest {

class LastWords {
 public:
  explicit LastWords(Server& server);
  ~LastWords();

  // The server has stopped (Server::Join returned). Does not return when a failed check is about to end the
  // process.
  void ServerHasStopped();

 private:
  void Say(const std::string& what);

  Server& server_;
  std::atomic<bool> is_failing_ = false, has_stopped_ = false;
};

}  // namespace attest
