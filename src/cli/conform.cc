#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "cli/commands.h"
#include "conform/case_io.h"
#include "conform/command_subject.h"
#include "conform/library_subject.h"
#include "conform/report.h"
#include "conform/suite.h"
#include "device/cpu.h"

namespace attest {
namespace {

constexpr int kFailed = 1;     // a kernel is wrong
constexpr int kCannotRun = 2;  // the trial could not be held

int Complain(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "attest conform: %s\n", error.message.c_str());
  return kCannotRun;
}

Status CannotWrite(const std::string& path, const char* flag, std::error_code error) {
  return Fail(ErrorCode::kIo, fmt::format("--{}: '{}' cannot be written: {}", flag, path, error.message()),
              flag);
}

// Asked before the trials, which may take an hour. A file that is there already keeps its report until then.
Status CanBeWritten(const std::string& path, const char* flag) {
  const auto refused = [&](std::errc why) { return CannotWrite(path, flag, std::make_error_code(why)); };
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  if (!std::filesystem::is_directory(folder, error)) return refused(std::errc::no_such_file_or_directory);
  if (std::filesystem::is_directory(path, error)) return refused(std::errc::is_a_directory);
  const bool is_there = std::filesystem::exists(path, error);
  if (access(is_there ? path.c_str() : folder.c_str(), W_OK) == 0) return {};
  return CannotWrite(path, flag, {errno, std::generic_category()});
}

Status WriteText(const std::string& path, const std::string& text, const char* flag) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return CannotWrite(path, flag, {errno, std::generic_category()});
  return {};
}

Expected<std::vector<conform::SubjectInfo>> SubjectsOf(const ConformOptions& options) {
  std::vector<conform::SubjectInfo> subjects;
  if (!options.kernels.empty() || (options.libraries.empty() && options.commands.empty())) {
    ATTEST_ASSIGN_OR_RETURN(subjects, conform::KernelSubjects(options.kernels));
  }
  for (const std::string& library : options.libraries) {
    ATTEST_ASSIGN_OR_RETURN(std::vector<conform::SubjectInfo> more, conform::LibrarySubjects(library));
    for (conform::SubjectInfo& subject : more) subjects.push_back(std::move(subject));
  }
  for (const std::string& command : options.commands) {
    ATTEST_ASSIGN_OR_RETURN(conform::SubjectInfo subject, conform::CommandSubject(command));
    subjects.push_back(std::move(subject));
  }
  return subjects;
}

Expected<std::vector<conform::AttentionCase>> RecordedCases(const std::vector<std::string>& paths) {
  std::vector<conform::AttentionCase> cases;
  for (const std::string& path : paths) {
    ATTEST_ASSIGN_OR_RETURN(const AttentionCaseFile file, ReadCaseFile(path));
    cases.push_back(conform::RecordedCase(file, std::filesystem::path(path).stem().string()));
  }
  return cases;
}

conform::SuiteOptions SuiteOptionsOf(const ConformOptions& options) {
  const bool all = !options.cases && !options.invariances && !options.bugs && !options.random;
  return {.cases = all || options.cases,
          .invariances = all || options.invariances,
          .bugs = all || options.bugs,
          .random = all || options.random || options.minutes > 0,
          .quick = options.quick,
          .filter = options.filter,
          .seed = options.seed,
          .random_cases = options.random_cases.value_or(options.quick ? 20 : 200),
          .minutes = options.minutes,
          .workers = options.jobs > 0 ? options.jobs : DetectCpu().logical_cpus,
          .time_limit_s = options.time_limit_s,
          .failures_folder = options.failures};
}

}  // namespace

int RunConform(const ConformOptions& options, const HubEnvironment& /*environment*/) {
  conform::SuiteOptions suite = SuiteOptionsOf(options);
  struct File {
    const char* flag;
    const std::string& path;
    std::string (*report)(const conform::SuiteResult& result);
  };
  const File files[] = {{"html", options.html, conform::HtmlReport},
                        {"json", options.json, conform::JsonReport},
                        {"junit", options.junit, conform::JunitReport}};
  for (const File& file : files) {
    if (file.path.empty()) continue;
    if (const Status can = CanBeWritten(file.path, file.flag); !can) return Complain(can.error());
  }
  auto recorded = RecordedCases(options.recorded);
  if (!recorded) return Complain(recorded.error());
  suite.recorded = *std::move(recorded);
  if (options.list) {
    for (const conform::Trial& trial : conform::ListTrials(suite))
      std::printf("%-12s %-24s %s  %s\n", conform::PartName(trial.part), trial.capability.c_str(),
                  trial.name.c_str(), trial.what.c_str());
    return 0;
  }
  auto subjects = SubjectsOf(options);
  if (!subjects) return Complain(subjects.error());
  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  int64_t shown = -1;
  const auto result = conform::RunSuite(std::move(*subjects), suite, [&](int64_t done, int64_t total) {
    const int64_t percent = total == 0 ? 100 : 100 * done / total;
    if (!shows_progress || percent == shown) return;
    shown = percent;
    std::fprintf(stderr, "\r%3d %% of %ld trials", static_cast<int>(percent), static_cast<long>(total));
  });
  if (shows_progress) std::fprintf(stderr, "\r                              \r");
  if (!result) return Complain(result.error());
  std::fputs(conform::TextReport(*result, /*bugs_apart=*/options.bugs).c_str(), stdout);
  for (const File& file : files) {
    if (file.path.empty()) continue;
    if (const Status written = WriteText(file.path, file.report(*result), file.flag); !written)
      return Complain(written.error());
  }
  return result->num_failures > 0 ? kFailed : 0;
}

}  // namespace attest
