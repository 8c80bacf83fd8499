// Kernels of a shared library behind the interface of include/attest/conform_kernel.h. The library is loaded
// in child processes only: what it does there ends a trial, not the suite.
#pragma once

#include <filesystem>
#include <vector>

#include "conform/suite.h"

namespace attest::conform {

// The kernels that the library describes. kCorruptFile: it cannot be loaded, lacks the function, has another
// version, or a description that contradicts itself; the message names the file and the member.
[[nodiscard]] Expected<std::vector<SubjectInfo>> LibrarySubjects(const std::filesystem::path& file);

}  // namespace attest::conform
