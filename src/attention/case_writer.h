// Writes case files in the background, so that a slow, full or unwritable disk never delays a step. Owns one
// thread, which is started by the first case. Any thread may add; what is not written is counted, and the
// first of it logged with its reason.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "attention/case_file.h"

namespace attest {

struct CaseWriterStats {
  int64_t written = 0;
  int64_t failed = 0;   // the system refused
  int64_t skipped = 0;  // the folder holds its limit already
};

class CaseWriter {
 public:
  // `folder` is made, for its owner only, when there is something to write; empty: every case is skipped. At
  // most `max_cases` case files lie in it, those of earlier processes included: a restart loop does not fill
  // the disk.
  CaseWriter(std::filesystem::path folder, int max_cases);
  ~CaseWriter();  // writes what is queued
  CaseWriter(const CaseWriter&) = delete;
  CaseWriter& operator=(const CaseWriter&) = delete;

  void Add(AttentionCaseFile attention_case);
  // Counts a case that could not be made; `why` is logged like a failed write.
  void CountFailure(const std::string& why);
  // Returns when the queue is empty.
  void Flush();
  [[nodiscard]] CaseWriterStats stats() const;

 private:
  void Work();
  void Write(const AttentionCaseFile& attention_case);

  const std::filesystem::path folder_;
  const int max_cases_;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<AttentionCaseFile> queue_;
  bool is_writing_ = false;
  bool has_said_full_ = false;
  bool stopping_ = false;
  CaseWriterStats stats_;
  int64_t num_named_ = 0;  // cases that have got a name; the thread only
  std::thread thread_;
};

}  // namespace attest
