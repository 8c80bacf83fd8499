// Where tests find model files that are not in the tree. Tests that need one skip with ModelMissing's words.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attest {

inline constexpr std::string_view kSmolLm2File = "SmolLM2-135M-Instruct.Q4_1.gguf";

// $ATTEST_MODELS; else the folder attest-models of the user's cache; then where scripts/serve puts the
// default model.
inline std::vector<std::filesystem::path> ModelFolders() {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::vector<std::filesystem::path> folders;
  if (const auto models = environment("ATTEST_MODELS"); !models.empty()) folders.push_back(models);
  std::vector<std::filesystem::path> caches;
  if (const auto cache = environment("XDG_CACHE_HOME"); !cache.empty()) caches.push_back(cache);
  if (const auto home = environment("HOME"); !home.empty()) caches.push_back(home / ".cache");
  for (const auto& cache : caches) folders.push_back(cache / "attest-models");
  for (const auto& cache : caches) folders.push_back(cache / "attest" / "models");
  return folders;
}

// A file or folder of that name in the first of ModelFolders that has it.
inline std::optional<std::filesystem::path> FindModel(std::string_view name) {
  for (const auto& folder : ModelFolders()) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) return folder / name;
  }
  return std::nullopt;
}

inline std::string ModelMissing(std::string_view name) {
  std::string text("needs ");
  text.append(name).append(", looked in");
  for (const auto& folder : ModelFolders()) text.append(" ").append(folder.string());
  return text;
}

}  // namespace attest
