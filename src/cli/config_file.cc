#include "cli/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "cli/nearest.h"

namespace attest {
namespace {

constexpr std::streamsize kMaxBytes = 1 << 20;
// Flags that make no sense in a file.
constexpr const char* kOnlyTyped[] = {"config", "help", "help-all", "version"};

std::unexpected<Error> FailAt(const std::string& path, int line, std::string words, std::string key = {}) {
  return Fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, line, words), std::move(key));
}

// Deep nesting is refused before the parser, which recurses, sees it: flags nest once.
bool NestsDeeply(const std::string& text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > 16) return true;
  }
  return false;
}

Expected<std::string> ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Fail(ErrorCode::kIo, fmt::format("--config {}: cannot be read", path), "config");
  std::string text(static_cast<size_t>(kMaxBytes) + 1, '\0');
  in.read(text.data(), kMaxBytes + 1);
  if (in.bad()) return Fail(ErrorCode::kIo, fmt::format("--config {}: cannot be read", path), "config");
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.gcount() > kMaxBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--config {}: larger than {} bytes", path, kMaxBytes), "config");
  }
  return text;
}

// The words of one key. `flag` is its entry among the known ones.
Expected<std::vector<std::string>> ArgsOf(const std::string& path, const std::string& key,
                                          const KnownFlag& flag, const YAML::Node& value, int line) {
  if (value.IsNull()) return FailAt(path, line, fmt::format("{} has no value", key), key);
  if (value.IsMap()) {
    return FailAt(path, line, fmt::format("{} must be a value or a list of values, not a map", key), key);
  }
  if (!flag.takes_value) {
    const std::string word = value.IsScalar() ? value.Scalar() : "a list";
    if (word == "true" || word == "True") return std::vector<std::string>{"--" + key};
    if (word != "false" && word != "False") {
      return FailAt(path, line, fmt::format("{} must be true or false, not {}", key, word), key);
    }
    const std::string opposite = "no-" + key;
    const bool has_opposite = std::ranges::find(flag.names, opposite) != flag.names.end();
    return has_opposite ? std::vector<std::string>{"--" + opposite} : std::vector<std::string>{};
  }
  std::vector<std::string> args;
  const auto add = [&](const std::string& word) {
    args.push_back(key == "model" ? word : fmt::format("--{}={}", key, word));
  };
  if (value.IsScalar()) {
    add(value.Scalar());
    return args;
  }
  for (const YAML::Node& item : value) {
    if (!item.IsScalar()) return FailAt(path, line, fmt::format("{} must hold plain values", key), key);
    add(item.Scalar());
  }
  if (args.empty()) return FailAt(path, line, fmt::format("{} is an empty list", key), key);
  return args;
}

}  // namespace

Expected<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path,
                                                  const std::vector<KnownFlag>& known) {
  ATTEST_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  if (NestsDeeply(text)) return FailAt(path, 1, "brackets nest deeper than 16 levels");
  std::vector<ConfigEntry> entries;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return entries;  // an empty file asks for nothing
    if (!root.IsMap()) return FailAt(path, 1, "must hold one `flag: value` per line");
    std::map<const KnownFlag*, std::string> seen;  // by the name each flag was first given with
    for (const auto& pair : root) {
      const int line = pair.first.Mark().line + 1;
      if (!pair.first.IsScalar()) return FailAt(path, line, "a key must be the name of a flag");
      std::string key = pair.first.Scalar();
      std::ranges::replace(key, '_', '-');
      const auto flag = std::ranges::find_if(known, [&](const KnownFlag& candidate) {
        return std::ranges::find(candidate.names, key) != candidate.names.end();
      });
      const bool is_only_typed = std::ranges::find(kOnlyTyped, key) != std::end(kOnlyTyped);
      if (is_only_typed) return FailAt(path, line, fmt::format("{} cannot stand in a file", key), key);
      if (flag == known.end()) {
        std::vector<std::string> names;
        for (const KnownFlag& candidate : known) {
          names.insert(names.end(), candidate.names.begin(), candidate.names.end());
        }
        const std::string nearest = Nearest(key, names);
        return FailAt(path, line,
                      fmt::format("unknown key {}{}", key,
                                  nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)),
                      key);
      }
      // Also under its other name: enable-prefix-caching and no-enable-prefix-caching would contradict each
      // other.
      if (const auto [first, is_new] = seen.emplace(&*flag, key); !is_new) {
        return FailAt(path, line,
                      first->second == key
                          ? fmt::format("{} is given twice", key)
                          : fmt::format("{} is one flag with {}, which stands above it", key, first->second),
                      key);
      }
      ATTEST_ASSIGN_OR_RETURN(auto args, ArgsOf(path, key, *flag, pair.second, line));
      entries.push_back({.key = std::move(key), .line = line, .args = std::move(args)});
    }
  } catch (const YAML::Exception& e) {
    return FailAt(path, std::max(e.mark.line, 0) + 1, fmt::format("not valid YAML: {}", e.msg));
  }
  return entries;
}

}  // namespace attest
