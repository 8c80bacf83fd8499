#include "conform/isolate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

namespace attest::conform {
namespace {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One memory page that all children share.
struct Shared {
  std::atomic<int64_t> next_task{0};
};
static_assert(std::atomic<int64_t>::is_always_lock_free, "the counter is shared between processes");

enum class Kind : uint8_t { kBegin, kDone };
struct Header {
  Kind kind = Kind::kBegin;
  int32_t subject = 0;
  int64_t task = 0;
  int64_t size = 0;  // of the payload that follows
};

bool WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

struct Start {  // where a child begins before it claims tasks
  int64_t task = 0;
  int subject = 0;
};

struct Child {
  pid_t pid = -1;
  int pipe = -1;    // what it reports
  int errors = -1;  // its standard error, a file without a name
  std::string received = {};
  std::optional<Start> running = {};
  double since = 0;  // of the running unit, or of the last message
};

class Isolation {
 public:
  Isolation(int64_t num_tasks, int num_subjects, const UnitFn& unit, const UnitDone& done,
            const IsolationOptions& options)
      : num_tasks_(num_tasks), num_subjects_(num_subjects), unit_(unit), done_(done), options_(options) {}
  ~Isolation() {
    if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
  }
  Isolation(const Isolation&) = delete;

  Status Run() {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Refused("mmap");
    shared_ = new (memory) Shared;
    const auto workers = std::clamp<int64_t>(options_.workers, 1, std::max<int64_t>(1, num_tasks_));
    for (int64_t i = 0; i < workers; ++i) ATTEST_RETURN_IF_ERROR(Fork(std::nullopt));
    while (!children_.empty()) ATTEST_RETURN_IF_ERROR(Step());
    return {};
  }

 private:
  static std::unexpected<Error> Refused(const char* call) {
    return Fail(ErrorCode::kResourceExhausted, fmt::format("{}: {}", call, std::strerror(errno)));
  }

  Status Fork(std::optional<Start> start) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Refused("pipe");
    const int errors = memfd_create("attest-conform-errors", MFD_CLOEXEC);
    const pid_t pid = errors < 0 ? -1 : fork();
    if (pid < 0) {
      close(ends[0]);
      close(ends[1]);
      if (errors >= 0) close(errors);
      return Refused("fork");
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const rlimit no_core{0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      dup2(errors, STDERR_FILENO);
      // A sanitizer of this process would turn the crash of a foreign kernel into an exit.
      for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(fatal, SIG_DFL);
      Work(ends[1], start);
      _exit(0);
    }
    close(ends[1]);
    children_.push_back({.pid = pid, .pipe = ends[0], .errors = errors, .since = SteadySeconds()});
    return {};
  }

  // In the child.
  void Work(int fd, std::optional<Start> start) {
    for (;;) {
      const int64_t task = start ? start->task : shared_->next_task.fetch_add(1);
      if (task >= num_tasks_) return;
      for (int subject = start ? start->subject : 0; subject < num_subjects_; ++subject) {
        const Header begin{.kind = Kind::kBegin, .subject = subject, .task = task, .size = 0};
        if (!WriteAll(fd, &begin, sizeof(begin))) _exit(1);
        const std::string payload = unit_(task, subject);
        const Header end{.kind = Kind::kDone,
                         .subject = subject,
                         .task = task,
                         .size = static_cast<int64_t>(payload.size())};
        if (!WriteAll(fd, &end, sizeof(end)) || !WriteAll(fd, payload.data(), payload.size())) _exit(1);
      }
      start.reset();
    }
  }

  Status Step() {
    std::vector<pollfd> fds;
    for (const Child& child : children_) fds.push_back({.fd = child.pipe, .events = POLLIN, .revents = 0});
    if (poll(fds.data(), fds.size(), 100) < 0 && errno != EINTR) return Refused("poll");
    for (size_t i = fds.size(); i-- > 0;) {  // from the back: children may leave the list
      Child& child = children_[i];
      bool ended = false;
      if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        char bytes[65536];
        const ssize_t n = read(child.pipe, bytes, sizeof(bytes));
        if (n > 0) {
          child.received.append(bytes, static_cast<size_t>(n));
          TakeMessages(child);
        } else if (n == 0) {
          ended = true;
        }
      }
      const bool late = child.running && SteadySeconds() - child.since > options_.time_limit_s;
      if (ended || late) ATTEST_RETURN_IF_ERROR(End(i, late && !ended));
    }
    return {};
  }

  void TakeMessages(Child& child) {
    size_t at = 0;
    Header header;
    while (child.received.size() - at >= sizeof(header)) {
      std::memcpy(&header, child.received.data() + at, sizeof(header));
      if (child.received.size() - at < sizeof(header) + static_cast<size_t>(header.size)) break;
      at += sizeof(header);
      if (header.kind == Kind::kBegin) {
        child.running = Start{header.task, header.subject};
      } else {
        done_(header.task, header.subject, child.received.substr(at, static_cast<size_t>(header.size)));
        child.running.reset();
      }
      child.since = SteadySeconds();
      at += static_cast<size_t>(header.size);
    }
    child.received.erase(0, at);
  }

  // A child that is gone or goes now. When it left a unit behind, that unit failed, and another child goes on
  // with the task's next subject.
  Status End(size_t index, bool late) {
    if (late) kill(children_[index].pid, SIGKILL);
    int status = 0;
    while (waitpid(children_[index].pid, &status, 0) < 0 && errno == EINTR) {
    }
    const Child child = std::move(children_[index]);
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(index));
    const std::string said = LastLine(child.errors);
    close(child.pipe);
    close(child.errors);
    if (!child.running) return {};
    std::string what = late ? fmt::format("did not return within {} s", options_.time_limit_s)
                       : WIFSIGNALED(status) ? fmt::format("crashed: {}", strsignal(WTERMSIG(status)))
                                             : fmt::format("ended the process with status {}",
                                                           WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    if (!said.empty() && !late) what += " (" + said + ")";
    done_(child.running->task, child.running->subject, Fail(ErrorCode::kInternal, what));
    return Fork(Start{child.running->task, child.running->subject + 1});
  }

  static std::string LastLine(int fd) {
    const off_t size = lseek(fd, 0, SEEK_END);
    std::string text(static_cast<size_t>(std::clamp<off_t>(size, 0, 4096)), '\0');
    if (text.empty() || pread(fd, text.data(), text.size(), std::max<off_t>(0, size - 4096)) < 0) return "";
    while (!text.empty() && text.back() == '\n') text.pop_back();
    text = text.substr(text.find_last_of('\n') + 1);
    return text.substr(0, 300);
  }

  const int64_t num_tasks_;
  const int num_subjects_;
  const UnitFn& unit_;
  const UnitDone& done_;
  const IsolationOptions options_;
  Shared* shared_ = nullptr;
  std::deque<Child> children_;
};

}  // namespace

Status RunIsolated(int64_t num_tasks, int num_subjects, const UnitFn& unit, const UnitDone& done,
                   const IsolationOptions& options) {
  if (num_tasks == 0 || num_subjects == 0) return {};
  return Isolation(num_tasks, num_subjects, unit, done, options).Run();
}

Expected<std::string> RunOneIsolated(const std::function<std::string()>& unit, double time_limit_s) {
  Expected<std::string> result = Fail(ErrorCode::kInternal, "the child reported nothing");
  const auto ran = RunIsolated(
      1, 1, [&](int64_t, int) { return unit(); },
      [&](int64_t, int, Expected<std::string> payload) { result = std::move(payload); },
      {.workers = 1, .time_limit_s = time_limit_s});
  if (!ran) return std::unexpected(ran.error());
  return result;
}

}  // namespace attest::conform
