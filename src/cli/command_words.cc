#include "cli/command_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace attest {
namespace {

// The flag that `word` ("--port" or "--port=80") names; null: none.
const KnownFlag* FindFlag(const std::string& word, const std::vector<KnownFlag>& known) {
  if (!word.starts_with("--")) return nullptr;
  const std::string name = word.substr(2, std::min(word.find('='), word.size()) - 2);
  const auto found = std::ranges::find_if(
      known, [&](const KnownFlag& flag) { return std::ranges::find(flag.names, name) != flag.names.end(); });
  return found == known.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> SpellOut(std::vector<std::string> words, const std::vector<KnownFlag>& known) {
  // CLI11 has no way to declare the two-letter single-dash names that vLLM users type.
  constexpr std::pair<std::string_view, std::string_view> kLong[] = {{"-tp", "--tensor-parallel-size"}};
  for (std::string& word : words) {
    if (word == "--") break;  // what follows are no flags
    const size_t name_size = std::min(word.find('='), word.size());
    for (const auto& [shorter, longer] : kLong) {
      if (std::string_view(word).substr(0, name_size) == shorter) word.replace(0, name_size, longer);
    }
    if (FindFlag(word, known) != nullptr) continue;
    std::string dashed = word;
    std::replace(dashed.begin(), dashed.begin() + static_cast<std::ptrdiff_t>(name_size), '_', '-');
    if (FindFlag(dashed, known) != nullptr) word = std::move(dashed);
  }
  return words;
}

std::optional<std::string> FindFlagWithoutValue(const std::vector<std::string>& words,
                                                const std::vector<KnownFlag>& known) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const KnownFlag* flag = FindFlag(words[i], known);
    if (flag == nullptr || !flag->takes_value) continue;
    const size_t equals = words[i].find('=');
    if (equals + 1 == words[i].size()) {
      const std::string name = words[i].substr(0, equals);
      return fmt::format("{} has no value: nothing follows its '=' ({} '' is an empty one)", name, name);
    }
    if (equals == std::string::npos && i + 1 < words.size() && FindFlag(words[i + 1], known) != nullptr) {
      return fmt::format("{} has no value: {} follows", words[i],
                         words[i + 1].substr(0, words[i + 1].find('=')));
    }
  }
  return std::nullopt;
}

std::optional<std::string> FindSwallowedModel(const std::vector<std::string>& words) {
  constexpr std::string_view kFlag = "--served-model-name";
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const bool has_equals = words[i].starts_with(std::string(kFlag) + "=");
    if (words[i] != kFlag && !has_equals) continue;
    size_t end = i + 1;
    while (end < words.size() && !words[end].starts_with('-')) ++end;
    const size_t first_extra = has_equals ? i + 1 : i + 2;  // behind the one name that it must have
    if (end <= first_extra) continue;
    const std::string& last = words[end - 1];
    if (!last.contains('/') && !last.ends_with(".gguf")) continue;
    return fmt::format("{} has taken {} for one more name, and no MODEL is left: name the MODEL first", kFlag,
                       last);
  }
  return std::nullopt;
}

std::vector<std::string> SplitLists(const std::vector<std::string>& origins) {
  std::vector<std::string> split;
  for (std::string text : origins) {
    const bool is_list = text.starts_with('[') && text.ends_with(']');
    if (is_list) text = text.substr(1, text.size() - 2);
    std::erase_if(text, [](char c) { return c == '"' || c == ' '; });
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = is_list ? std::min(text.find(',', begin), text.size()) : text.size();
      if (end > begin) split.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return split;
}

}  // namespace attest
