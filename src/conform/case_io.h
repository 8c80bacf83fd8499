// A batch on trial as a replayable file (attention/case_file.h).
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "attention/case_file.h"
#include "conform/case_list.h"

namespace attest::conform {

// Everything the call reads, densely. Table entries that name no block of the pool become -1.
[[nodiscard]] AttentionCaseFile CaseFileOf(const AttentionSpec& spec, const AttentionLengths& lengths,
                                           const AttentionParams& tensors);

// A recorded call as a case that can be shrunk: what is left of it holds the numbers of the recording, in
// float32. Pages of its own, with poison in everything it does not read.
[[nodiscard]] AttentionCase RecordedCase(const AttentionCaseFile& file, const std::string& name);

// Writes a case to FOLDER/<name>.safetensors and returns the path.
[[nodiscard]] Expected<std::filesystem::path> WriteCaseIn(const std::filesystem::path& folder,
                                                          const std::string& name,
                                                          const AttentionCaseFile& file);
// Writes the batch to FOLDER/<name>.safetensors and returns the path. `kernel` is the subject that failed.
[[nodiscard]] Expected<std::filesystem::path> WriteFailingCase(const std::filesystem::path& folder,
                                                               const std::string& name, AttentionBatch& batch,
                                                               const std::string& kernel,
                                                               std::map<std::string, std::string> notes);

}  // namespace attest::conform
