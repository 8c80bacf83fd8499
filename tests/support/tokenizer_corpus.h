// The strings and id sequences that tokenizers are held against the reference library on, and the reader of
// its recorded answers (tests/data/text/*.ids). The same generator as in tools/record_tokenizer_ids.py.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace attest {

inline const std::string kTextData = std::string(ATTEST_SOURCE_DIR) + "/tests/data/text";

// CRC-32 as in zlib.
inline uint32_t Crc32(std::string_view data, uint32_t value = 0) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      table[i] = c;
    }
    return table;
  }();
  value = ~value;
  for (const char c : data) value = kTable[(value ^ static_cast<uint8_t>(c)) & 0xFF] ^ (value >> 8);
  return ~value;
}
inline uint32_t Crc32OfIds(std::span<const int32_t> ids, uint32_t value) {
  return Crc32({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)}, value);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TokenizerCorpus {
 public:
  static constexpr size_t kNumStrings = 21000;
  static constexpr size_t kNumSequences = 1000;
  static constexpr size_t kNumLong = 8;
  static constexpr size_t kNumBlocks = 0x40000 / 128 + 0x1000 / 128 + 1;

  explicit TokenizerCorpus(const std::string& data_folder)
      : pools_(nlohmann::json::parse(ReadWholeFile(data_folder + "/corpus_pools.json"))),
        order_(pools_["order"].get<std::vector<std::string>>()),
        code_points_(pools_["code_points"].get<std::vector<std::pair<uint32_t, uint32_t>>>()) {
    for (const std::string& name : order_) {
      if (name != "digits" && name != "code_points")
        texts_[name] = pools_[name].get<std::vector<std::string>>();
    }
  }

  [[nodiscard]] std::string String(size_t index) const {
    if (index == 0) return "";
    if (index <= kNumLong) return LongString(index - 1);
    index -= kNumLong + 1;
    if (index < kNumBlocks) return Block(static_cast<uint32_t>(index));
    SplitMix64 rng(index);
    std::string out;
    const uint64_t parts = 1 + rng.Below(12);
    for (uint64_t part = 0; part < parts; ++part) {
      const std::string& name = order_[rng.Below(order_.size())];
      if (name == "code_points") {
        const auto [low, high] = code_points_[rng.Below(code_points_.size())];
        const uint64_t count = 1 + rng.Below(6);
        for (uint64_t i = 0; i < count; ++i) {
          const auto c = static_cast<char32_t>(low + rng.Below(high - low + 1));
          AppendUtf8(c >= 0xD800 && c < 0xE000 ? 0xFFFD : c, out);
        }
      } else if (name == "digits") {
        const uint64_t count = 1 + rng.Below(40);
        for (uint64_t i = 0; i < count; ++i) out += static_cast<char>('0' + rng.Below(10));
      } else {
        const std::vector<std::string>& pool = texts_.at(name);
        out += pool[rng.Below(pool.size())];
      }
      if (rng.Below(3) == 0) out += ' ';
    }
    return out;
  }

  static std::vector<int32_t> Sequence(size_t index, int32_t vocab_size) {
    SplitMix64 rng(1000003 + index);
    std::vector<int32_t> ids(1 + rng.Below(24));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_size)));
    return ids;
  }

  static EncodeOptions Options(size_t index) {
    return {.add_special_tokens = index % 4 == 0 || index % 4 == 2, .parse_special_tokens = index % 4 != 3};
  }
  static bool SkipsSpecial(size_t index) { return index % 8 < 4; }

 private:
  static std::string Block(uint32_t index) {
    uint32_t first = index * 128;
    if (first >= 0x40000) first = 0xE0000 + (first - 0x40000);
    if (first >= 0xE1000) first = 0x10FF80;
    std::string out;
    for (uint32_t c = first; c < first + 128; ++c) {
      if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, out);
    }
    return out;
  }
  static std::string LongString(size_t kind) {
    constexpr size_t kSize = 1 << 20;
    const auto repeat = [](std::string_view text) {
      std::string out;
      for (size_t i = 0; i < kSize / text.size(); ++i) out += text;
      return out;
    };
    switch (kind) {
      case 0:
        return std::string(kSize, 'a');
      case 1:
        return std::string(kSize, ' ');
      case 2:
        return std::string(kSize - 1, '\n') + "x";
      case 3:
        return repeat("the quick brown fox ");
      case 4:
        return repeat("0123456789");
      case 5:
        return repeat("你好世界");
      case 6:
        return repeat("🙂");
      default: {
        SplitMix64 rng(99);
        std::string out(kSize, ' ');
        for (char& c : out) c = static_cast<char>('a' + rng.Below(26));
        return out;
      }
    }
  }

  nlohmann::json pools_;
  std::vector<std::string> order_;
  std::vector<std::pair<uint32_t, uint32_t>> code_points_;
  std::map<std::string, std::vector<std::string>> texts_;
};

// The hashes of one .ids file, computed from a tokenizer of ours.
struct IdHashes {
  uint32_t corpus = 0;
  std::vector<uint32_t> strings;
  std::vector<uint32_t> sequences;
};

inline uint32_t HashString(const Tokenizer& tokenizer, size_t index, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text, TokenizerCorpus::Options(index));
  const auto count = static_cast<int32_t>(ids.size());
  const uint32_t hash = Crc32OfIds(ids, Crc32OfIds({&count, 1}, 0));
  return Crc32(tokenizer.Decode(ids, TokenizerCorpus::SkipsSpecial(index)), hash);
}

inline uint32_t HashSequence(const Tokenizer& tokenizer, size_t index) {
  return Crc32(tokenizer.Decode(TokenizerCorpus::Sequence(index, tokenizer.vocab_size()), index % 2 == 0));
}

inline IdHashes ReadIdHashes(const std::string& path) {
  const std::string data = ReadWholeFile(path);
  std::vector<uint32_t> words(data.size() / 4);
  std::memcpy(words.data(), data.data(), words.size() * 4);
  IdHashes hashes;
  if (words.size() != 1 + TokenizerCorpus::kNumStrings + TokenizerCorpus::kNumSequences) return hashes;
  hashes.corpus = words[0];
  hashes.strings.assign(words.begin() + 1, words.begin() + 1 + TokenizerCorpus::kNumStrings);
  hashes.sequences.assign(words.end() - TokenizerCorpus::kNumSequences, words.end());
  return hashes;
}

// What differs from the recorded answers, in words; "" when all agree.
inline std::string CompareWithRecorded(const Tokenizer& tokenizer, const TokenizerCorpus& corpus,
                                       const IdHashes& recorded) {
  if (recorded.strings.empty()) return "the recorded answers are missing or of another size";
  std::string report;
  size_t wrong = 0;
  for (size_t i = 0; i < TokenizerCorpus::kNumStrings; ++i) {
    const std::string text = corpus.String(i);
    if (HashString(tokenizer, i, text) == recorded.strings[i]) continue;
    if (++wrong > 5) continue;
    report +=
        "string " + std::to_string(i) + ": " +
        nlohmann::json(text.substr(0, 300)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
        "\n  ours:";
    const std::vector<int32_t> ids = tokenizer.Encode(text, TokenizerCorpus::Options(i));
    for (size_t k = 0; k < ids.size() && k < 60; ++k) report += " " + std::to_string(ids[k]);
    report += "\n";
  }
  for (size_t i = 0; i < TokenizerCorpus::kNumSequences; ++i) {
    if (HashSequence(tokenizer, i) == recorded.sequences[i]) continue;
    if (++wrong > 10) continue;
    report += "sequence " + std::to_string(i) + " decodes differently\n";
  }
  return wrong == 0 ? "" : std::to_string(wrong) + " differences\n" + report;
}

}  // namespace attest
