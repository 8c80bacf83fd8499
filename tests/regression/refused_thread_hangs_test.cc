// Where the system refused a thread of a team (a container's pids limit, an address space that is full), the
// threads already made waited for work for ever, and whoever made the team waited for them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <system_error>

#include "base/thread_team.h"
#include "tests/support/sanitizers.h"

namespace attest {
namespace {

TEST(RefusedThread, IsAnErrorAndNoHang) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs the address space that this test takes away";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(10);  // a hang fails
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto bytes = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (40 << 20));  // a few stacks
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    try {
      const ThreadTeam team({.num_threads = 256, .pin = false});
      ::_exit(3);
    } catch (const std::system_error& error) {
      ::_exit(std::string(error.what()).find(" of 256") != std::string::npos ? 0 : 4);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace attest
