#include "conform/failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "conform/case_io.h"
#include "conform/isolate.h"
#include "conform/shrink.h"

namespace attest::conform {
namespace {

constexpr int kMaxAttempts = 400;  // of one shrink
constexpr double kMaxShrinkSeconds = 20;
constexpr int kKeptBatches = 4;  // of a probe, the last ones

// What is wrong with one case, run alone in a child. Nobody can be wrong where the oracle's own answer is not
// finite: a recorded case that is cut may come to see a key that holds NaN on purpose.
std::optional<std::string> FailureOf(const SubjectInfo& info, const AttentionCase& c, double time_limit_s) {
  const auto payload = RunOneIsolated(
      [&]() -> std::string {
        auto subject = info.make();
        if (!subject) return subject.error().message;
        Truth truth(c);
        if (c.options.recorded != nullptr &&
            !std::ranges::all_of(truth.oracle().out, [](double value) { return std::isfinite(value); })) {
          return "";
        }
        const Outcome outcome = TryCase(**subject, truth);
        return outcome.verdict == Verdict::kFail ? outcome.why : "";
      },
      time_limit_s);
  if (!payload) return payload.error().message;
  return payload->empty() ? std::nullopt : std::optional<std::string>(*payload);
}

double LimitOf(const Failure& failure, const FailedTrial& failed) {
  const bool hangs = failure.why.starts_with("did not return");
  return hangs ? std::min(2.0, failed.options.time_limit_s) : failed.options.time_limit_s;
}

// `why` is what is wrong with `c` itself.
bool ShrinkAndWrite(Failure& failure, const FailedTrial& failed, const AttentionCase& c,
                    const std::string& why, std::vector<Failure>& known) {
  const double limit = LimitOf(failure, failed);
  const Shrunk shrunk = Shrink(
      c, why, [&](const AttentionCase& smaller) { return FailureOf(failed.info, smaller, limit); },
      kMaxAttempts, kMaxShrinkSeconds);
  failure.smallest = DescribeCase(shrunk.smallest);
  failure.smallest_why = shrunk.why;
  failure.attempts = shrunk.attempts;
  for (Failure& other : known) {
    if (other.subject != failure.subject || other.smallest != failure.smallest) continue;
    other.also.push_back(failed.trial.name);
    return false;
  }
  if (failed.options.failures_folder.empty()) return true;
  const AttentionCase& smallest = shrunk.smallest;
  AttentionBatch batch(smallest.spec, smallest.q_len, smallest.kv_len, smallest.options);
  const auto written = WriteFailingCase(
      failed.options.failures_folder, failed.info.name + "__" + failed.trial.name, batch, failed.info.name,
      {{"case", failed.trial.name}, {"smallest", failure.smallest}, {"failure", shrunk.why}});
  if (written) {
    failure.file = *written;
  } else {
    failure.file_error = written.error().message;
  }
  return true;
}

// The batches of a probe up to its failure, the last ones, newest first. They are written before they run, by
// a child of its own, so that one that crashes is there too.
std::vector<std::filesystem::path> RecordBatches(const FailedTrial& failed,
                                                 const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> kept(kKeptBatches);
  const auto name_of = [](int64_t i) { return fmt::format("batch_{}", i % kKeptBatches); };
  (void)RunOneIsolated(
      [&]() -> std::string {
        auto subject = failed.info.make();
        if (!subject) return "";
        int64_t count = 0;
        Probe probe(**subject, [&](AttentionBatch& batch) {
          const std::string number = fmt::format("{}", count);
          (void)WriteFailingCase(folder, name_of(count++), batch, failed.info.name, {{"number", number}});
        });
        failed.probe(probe);
        return "";
      },
      failed.options.time_limit_s);
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  for (int i = 0; i < kKeptBatches; ++i) {
    const std::filesystem::path path = folder / (name_of(i) + ".safetensors");
    if (const auto file = ReadCaseFile(path)) found.emplace_back(std::stoll(file->notes.at("number")), path);
  }
  std::ranges::sort(found, std::ranges::greater{});
  std::vector<std::filesystem::path> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool ExplainProbe(Failure& failure, const FailedTrial& failed, const std::filesystem::path& folder,
                  std::vector<Failure>& known) {
  const std::vector<std::filesystem::path> batches = RecordBatches(failed, folder);
  for (const std::filesystem::path& path : batches) {
    const auto file = ReadCaseFile(path);
    if (!file) continue;
    const AttentionCase c = RecordedCase(*file, failed.trial.name);
    if (const auto why = FailureOf(failed.info, c, LimitOf(failure, failed)))
      return ShrinkAndWrite(failure, failed, c, *why, known);
  }
  if (failed.options.failures_folder.empty() || batches.empty()) return true;
  auto file = ReadCaseFile(batches.front());
  if (!file) return true;
  file->notes = {{"case", failed.trial.name},
                 {"failure", failure.why},
                 {"smallest", "not shrunk: no call of this trial is wrong by itself"}};
  const auto written =
      WriteCaseIn(failed.options.failures_folder, failed.info.name + "__" + failed.trial.name, *file);
  if (written) {
    failure.file = *written;
  } else {
    failure.file_error = written.error().message;
  }
  return true;
}

}  // namespace

bool Explain(Failure& failure, const FailedTrial& failed, std::vector<Failure>& known) {
  if (failed.attention_case)
    return ShrinkAndWrite(failure, failed, *failed.attention_case, failure.why, known);
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path(error) / fmt::format("attest-conform-{}", getpid());
  const bool is_new = ExplainProbe(failure, failed, folder, known);
  std::filesystem::remove_all(folder, error);
  return is_new;
}

}  // namespace attest::conform
