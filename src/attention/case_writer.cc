#include "attention/case_writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace attest {
namespace {

constexpr const char kPrefix[] = "case-";
constexpr const char kSuffix[] = ".safetensors";

// Case files in the folder; an error of the system counts as none and shows when the file is written.
int64_t CountCases(const std::filesystem::path& folder) {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) ++count;
  }
  return count;
}

Status MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::create_directories(folder, error) && !error) return {};  // it was there
  if (!error) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  if (!error) return {};
  return Fail(ErrorCode::kIo, fmt::format("{}: create folder: {}", folder.string(), error.message()));
}

}  // namespace

CaseWriter::CaseWriter(std::filesystem::path folder, int max_cases)
    : folder_(std::move(folder)), max_cases_(max_cases) {}

CaseWriter::~CaseWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CaseWriter::Add(AttentionCaseFile attention_case) {
  const std::lock_guard lock(mutex_);
  // A case that waits for a slow disk holds its pages in memory.
  if (folder_.empty() || std::ssize(queue_) >= max_cases_) {
    ++stats_.skipped;
    return;
  }
  queue_.push_back(std::move(attention_case));
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  changed_.notify_all();
}

void CaseWriter::CountFailure(const std::string& why) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = stats_.failed++ == 0;
  }
  if (first) {
    LogWarning(fmt::format(
        "attention case not written: {}; serving goes on, further failures are only counted", why));
  }
}

void CaseWriter::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !is_writing_; });
}

CaseWriterStats CaseWriter::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CaseWriter::Work() {
  for (;;) {
    AttentionCaseFile attention_case;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      attention_case = std::move(queue_.front());
      queue_.pop_front();
      is_writing_ = true;
    }
    Write(attention_case);
    {
      const std::lock_guard lock(mutex_);
      is_writing_ = false;
    }
    changed_.notify_all();
  }
}

void CaseWriter::Write(const AttentionCaseFile& attention_case) {
  if (const Status made = MakeFolder(folder_); !made) return CountFailure(made.error().message);
  if (const int64_t held = CountCases(folder_); held >= max_cases_) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      ++stats_.skipped;
      first = !std::exchange(has_said_full_, true);
    }
    if (first) {
      LogWarning(fmt::format(
          "attention case not written: {} holds {} and may hold {}; further ones are only counted",
          folder_.string(), held, max_cases_));
    }
    return;
  }
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  std::filesystem::path path;
  std::error_code ignored;
  do {
    path = folder_ / fmt::format("{}{:%Y%m%dT%H%M%SZ}-{}-{}{}", kPrefix, fmt::gmtime(now), ::getpid(),
                                 ++num_named_, kSuffix);
  } while (std::filesystem::exists(path, ignored));
  if (const Status written = WriteCaseFile(path, attention_case); !written) {
    return CountFailure(written.error().message);
  }
  {
    const std::lock_guard lock(mutex_);
    ++stats_.written;
  }
  LogInfo(fmt::format("attention case written: attest replay {}", path.string()));
}

}  // namespace attest
