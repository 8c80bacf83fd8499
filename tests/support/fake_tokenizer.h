// A tokenizer whose ids can be read: 0 to 255 are bytes, 256 is <bos>, 257 is <eos>, then the words it was
// made with. Test only.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace attest::testing {

class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256, kEos = 257;

  explicit FakeTokenizer(std::vector<std::string> words = {}, bool adds_bos = true) : adds_bos_(adds_bos) {
    texts_.reserve(258 + words.size());
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    texts_.emplace_back("<bos>");
    texts_.emplace_back("<eos>");
    for (std::string& word : words) texts_.push_back(std::move(word));
  }

  // Longest match first, so words win over bytes.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special_tokens && adds_bos_) ids.push_back(kBos);
    while (!text.empty()) {
      int32_t best = static_cast<unsigned char>(text[0]);
      for (int32_t id = options.parse_special_tokens ? 256 : 258; id < vocab_size(); ++id) {
        const std::string& word = texts_[static_cast<size_t>(id)];
        if (text.starts_with(word) && word.size() > TextOf(best).size()) best = id;
      }
      ids.push_back(best);
      text.remove_prefix(TextOf(best).size());
    }
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    IncrementalDecoder decoder(*this, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) text += decoder.Append(id);
    return text + decoder.Finish();
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(texts_.size()); }
  std::string_view TokenText(int32_t id) const override { return TextOf(id); }
  std::string TokenBytes(int32_t id) const override { return TextOf(id); }
  std::optional<int32_t> TokenId(std::string_view text) const override {
    const auto found = std::ranges::find(texts_, text);
    if (found == texts_.end()) return std::nullopt;
    return static_cast<int32_t>(found - texts_.begin());
  }
  bool is_special(int32_t id) const override { return id == kBos || id == kEos; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
  const std::vector<int32_t>& end_ids() const override { return end_ids_; }

 private:
  const std::string& TextOf(int32_t id) const { return texts_[static_cast<size_t>(id)]; }

  bool adds_bos_;
  std::vector<std::string> texts_;
  std::vector<int32_t> end_ids_ = {kEos};
};

}  // namespace attest::testing
