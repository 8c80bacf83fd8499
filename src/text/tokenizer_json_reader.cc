#include "text/tokenizer_json_reader.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace attest {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;

class Reader final : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerJson& out) : out_(out) {}

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(number_integer_t value) override { return Scalar(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (table_ != Table::kVocab) return Scalar(value);
    out_.vocab.emplace_back(std::move(key_), value);
    return true;
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Scalar(value); }
  bool binary(binary_t& /*value*/) override { return Stop("binary data"); }
  bool string(string_t& value) override {
    if (table_ == Table::kMerges) return MergeString(value);
    return Scalar(std::move(value));
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t /*count*/) override {
    if (table_ != Table::kNone) return TableError();
    if (IsModelKey("vocab")) return Enter(Table::kVocab, out_.has_vocab);
    return Open(json::object());
  }
  bool end_object() override {
    if (table_ == Table::kVocab) {
      table_ = Table::kNone;
    } else {
      stack_.pop_back();
    }
    return true;
  }
  bool start_array(size_t /*count*/) override {
    if (table_ == Table::kMerges && !in_pair_) {
      in_pair_ = true;
      pair_.clear();
      return true;
    }
    if (table_ != Table::kNone) return TableError();
    if (IsModelKey("merges")) return Enter(Table::kMerges, out_.has_merges);
    return Open(json::array());
  }
  bool end_array() override {
    if (table_ != Table::kMerges) {
      stack_.pop_back();
      return true;
    }
    if (!in_pair_) {
      table_ = Table::kNone;
      return true;
    }
    in_pair_ = false;
    if (pair_.size() != 2) return TableError();
    out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    return true;
  }
  bool parse_error(size_t position, const std::string& /*token*/, const json::exception& /*error*/) override {
    return Stop(fmt::format("not valid JSON at byte {}", position));
  }

  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  enum class Table { kNone, kVocab, kMerges };

  bool Stop(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }
  bool TableError() {
    if (table_ == Table::kVocab)
      return Stop(fmt::format("model.vocab['{}'] is not a token id", ForMessage(key_)));
    return Stop(fmt::format("model.merges[{}] is not a pair of tokens", out_.merges.size()));
  }
  // The key of an object directly below the root's "model".
  [[nodiscard]] bool IsModelKey(std::string_view name) const {
    return stack_.size() == 2 && model_ != nullptr && stack_[1] == model_ && key_ == name;
  }
  bool Enter(Table table, bool& seen) {
    if (seen) return Stop(fmt::format("model.{} appears twice", key_));
    seen = true;
    table_ = table;
    return true;
  }
  // "a b", or "a b" with "#version" lines as in old merges.txt files.
  bool MergeString(string_t& value) {
    if (in_pair_) {
      pair_.push_back(std::move(value));
      return true;
    }
    if (value.starts_with("#version")) return true;
    const size_t space = value.find(' ');
    if (space == string_t::npos || value.find(' ', space + 1) != string_t::npos) return TableError();
    out_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }
  json* Place(json value) {
    if (stack_.empty()) {
      out_.rest = std::move(value);
      return &out_.rest;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool Scalar(json value) {
    if (table_ != Table::kNone) return TableError();
    Place(std::move(value));
    return true;
  }
  bool Open(json container) {
    if (stack_.size() == kMaxDepth) return Stop(fmt::format("nested deeper than {}", kMaxDepth));
    const bool is_model = stack_.size() == 1 && stack_[0]->is_object() && key_ == "model";
    // Growing an array moves its elements, but no element of it is open then.
    json* placed = Place(std::move(container));
    if (is_model) model_ = placed;
    stack_.push_back(placed);
    return true;
  }

  TokenizerJson& out_;
  std::vector<json*> stack_;
  json* model_ = nullptr;
  std::string key_;
  Table table_ = Table::kNone;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
  std::string error_;
};

}  // namespace

Expected<TokenizerJson> ReadTokenizerJson(std::string_view text) {
  TokenizerJson document;
  Reader reader(document);
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    return Fail(ErrorCode::kCorruptFile, "tokenizer.json: " + reader.error(), "tokenizer.json");
  }
  return document;
}

}  // namespace attest
