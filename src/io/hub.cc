// MODEL as typed -> a path. The layout of the Hugging Face cache is documented by the huggingface_hub
// library: models--ORG--NAME/refs/main holds a commit, models--ORG--NAME/snapshots/COMMIT the files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "io/checkpoint.h"
#include "io/file_error.h"
#include "io/mapped_checkpoint.h"

namespace attest {
namespace {

namespace fs = std::filesystem;

// "~/x" as the Python library expands it in these variables.
fs::path ExpandHome(const std::string& value, const std::string& home) {
  if (value == "~" || value.starts_with("~/")) {
    return fs::path(home) / fs::path(value).lexically_relative("~");
  }
  return value;
}

struct CacheRoot {
  fs::path path;
  std::string_view rule;  // which variable decided
};

std::optional<CacheRoot> FindCacheRoot(const HubEnvironment& env) {
  if (!env.hf_hub_cache.empty()) return CacheRoot{ExpandHome(env.hf_hub_cache, env.home), "HF_HUB_CACHE"};
  if (!env.hf_home.empty()) return CacheRoot{ExpandHome(env.hf_home, env.home) / "hub", "HF_HOME"};
  if (!env.xdg_cache_home.empty()) {
    return CacheRoot{ExpandHome(env.xdg_cache_home, env.home) / "huggingface" / "hub", "XDG_CACHE_HOME"};
  }
  if (!env.home.empty()) return CacheRoot{fs::path(env.home) / ".cache" / "huggingface" / "hub", "HOME"};
  return std::nullopt;
}

// Letters, digits, '.', '_', '-'; no leading '.': such a name cannot leave the folder it is joined to.
bool IsPlainName(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name[0] != '.' && std::ranges::all_of(name, is_plain);
}

// The commit refs/main names, if its snapshot exists.
std::optional<fs::path> MainSnapshot(const fs::path& repo) {
  std::ifstream file(repo / "refs" / "main");
  std::string commit;
  file >> commit;
  std::error_code error;
  if (!IsPlainName(commit) || !fs::is_directory(repo / "snapshots" / commit, error)) return std::nullopt;
  return repo / "snapshots" / commit;
}

std::optional<fs::path> NewestSnapshot(const fs::path& repo) {
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code error;
  for (fs::directory_iterator it(repo / "snapshots", error), end; !error && it != end; it.increment(error)) {
    std::error_code entry_error;
    if (!it->is_directory(entry_error)) continue;
    std::pair candidate(it->last_write_time(entry_error), it->path());
    if (!newest || *newest < candidate) newest = std::move(candidate);
  }
  if (!newest) return std::nullopt;
  return newest->second;
}

// A folder as it is, unless GGUF files are all the weights it holds: then the one file, or the first of the
// one split set. `download` ends the message when there are no weights at all.
Expected<fs::path> ResolveFolder(const fs::path& folder, std::string_view download) {
  std::set<std::string> ggufs;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return folder;
    if (!name.ends_with(".gguf")) continue;
    const auto split = ParseSplitName(name);
    if (!split || split->number == 1) ggufs.insert(name);
  }
  if (error) {
    return FailOnOneLine(ErrorCode::kIo, fmt::format("{}: {}", folder.string(), error.message()), "model");
  }
  if (ggufs.size() == 1) return folder / *ggufs.begin();
  if (ggufs.empty()) {
    return FailOnOneLine(
        ErrorCode::kNotFound,
        fmt::format("{}: holds neither .safetensors nor .gguf files{}", folder.string(), download), "model");
  }
  return FailOnOneLine(ErrorCode::kInvalidArgument,
                       fmt::format("{}: holds {} GGUF models, name one of them: {}", folder.string(),
                                   ggufs.size(), fmt::join(ggufs, ", ")),
                       "model");
}

}  // namespace

Expected<fs::path> ResolveModel(std::string_view model, const HubEnvironment& environment) {
  if (model.empty()) {
    return FailOnOneLine(ErrorCode::kInvalidArgument,
                         "model is empty, must be a folder, a .gguf file or org/name", "model");
  }
  const fs::path path(model);
  std::error_code error;
  if (fs::is_directory(path, error)) return ResolveFolder(path, "");
  if (fs::exists(path, error)) return path;

  std::vector<std::string> looked = {
      fmt::format("{} (no such file or folder)", fs::absolute(path, error).string())};
  const auto not_found = [&](std::string_view advice) {
    return FailOnOneLine(
        ErrorCode::kNotFound,
        fmt::format("model {} not found; looked at: {}{}", Quoted(model), fmt::join(looked, "; "), advice),
        "model");
  };
  const size_t slash = model.find('/');
  const std::string_view org = model.substr(0, slash);
  const std::string_view name = slash == model.npos ? std::string_view() : model.substr(slash + 1);
  if (!IsPlainName(org) || !IsPlainName(name)) {
    return not_found(". It is not of the form org/name either, so no cache was searched");
  }
  const std::string download = fmt::format(". Download it with: hf download {}", model);
  const std::optional<CacheRoot> root = FindCacheRoot(environment);
  if (!root) {
    looked.emplace_back("no cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are all unset)");
    return not_found(download);
  }
  const fs::path repo = root->path / fmt::format("models--{}--{}", org, name);
  std::optional<fs::path> snapshot = MainSnapshot(repo);
  if (!snapshot) snapshot = NewestSnapshot(repo);
  if (snapshot) return ResolveFolder(*snapshot, download);
  looked.push_back(fmt::format("{} ({}, from {})", repo.string(),
                               fs::exists(repo, error) ? "holds no snapshot" : "no such folder", root->rule));
  return not_found(download);
}

}  // namespace attest
