// The model that is served when none is named; tools/fetch_default_model.py puts it into the cache.
#pragma once

#include <filesystem>

#include "io/checkpoint.h"

namespace attest {

inline constexpr const char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr const char kDefaultModelName[] = "SmolLM2-135M-Instruct";

// <cache>/attest/models/<file>, whether or not it exists.
[[nodiscard]] inline std::filesystem::path DefaultModelPath(const HubEnvironment& environment) {
  const std::filesystem::path cache = environment.xdg_cache_home.empty()
                                          ? std::filesystem::path(environment.home) / ".cache"
                                          : std::filesystem::path(environment.xdg_cache_home);
  return cache / "attest" / "models" / kDefaultModelFile;
}

// Where attention calls are kept whose rows were wrong, whether or not it exists.
[[nodiscard]] inline std::filesystem::path DefaultCaseFolder(const HubEnvironment& environment) {
  return DefaultModelPath(environment).parent_path().parent_path() / "cases";
}

}  // namespace attest
