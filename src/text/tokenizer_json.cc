// tokenizer.json as a TokenizerSpec.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "text/pipeline.h"
#include "text/tokenizer_json_reader.h"
#include "text/unicode.h"

namespace attest {
namespace {

using nlohmann::json;

constexpr size_t kMaxTokens = 1 << 24;

// A value of the document and where it stands there, for messages.
class Node {
 public:
  Node(const json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  [[nodiscard]] const json& value() const { return *value_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  // Null when the key is absent.
  [[nodiscard]] Node operator[](const char* key) const {
    static const json kNull;
    const auto it = value_->is_object() ? value_->find(key) : value_->end();
    return {value_->is_object() && it != value_->end() ? *it : kNull,
            path_.empty() ? key : path_ + "." + key};
  }
  [[nodiscard]] std::unexpected<Error> Wrong(std::string_view wanted) const {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("tokenizer.json: {} is {}, wanted {}", path_, Shown(), wanted), path_);
  }
  [[nodiscard]] std::unexpected<Error> Unsupported() const {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("tokenizer.json: {} {} is not supported", path_, Shown()), path_);
  }
  [[nodiscard]] Expected<std::string> String() const {
    if (!value_->is_string()) return Wrong("a string");
    return value_->get<std::string>();
  }
  [[nodiscard]] Expected<bool> Bool(bool when_absent) const {
    if (value_->is_null()) return when_absent;
    if (!value_->is_boolean()) return Wrong("true or false");
    return value_->get<bool>();
  }
  [[nodiscard]] Expected<int32_t> Id() const {
    if (!value_->is_number_unsigned() || value_->get<uint64_t>() >= kMaxTokens) {
      return Wrong(fmt::format("a token id below {}", kMaxTokens));
    }
    return static_cast<int32_t>(value_->get<uint64_t>());
  }
  [[nodiscard]] Expected<std::vector<Node>> Items() const {
    if (!value_->is_array()) return Wrong("an array");
    std::vector<Node> items;
    for (size_t i = 0; i < value_->size(); ++i)
      items.emplace_back((*value_)[i], fmt::format("{}[{}]", path_, i));
    return items;
  }

 private:
  [[nodiscard]] std::string Shown() const {
    return ForMessage(value_->dump(-1, ' ', false, json::error_handler_t::replace));
  }
  const json* value_;
  std::string path_;
};

// Calls `add(node, type)` for each component, those inside Sequences in order.
template <class Add>
Status ForEachComponent(const Node& node, const char* list_key, const Add& add) {
  if (node.is_null()) return {};
  ATTEST_ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type != "Sequence") return add(node, type);
  ATTEST_ASSIGN_OR_RETURN(const std::vector<Node> items, node[list_key].Items());
  for (const Node& item : items) ATTEST_RETURN_IF_ERROR(ForEachComponent(item, list_key, add));
  return {};
}

Expected<TextPattern> ReadPattern(const Node& node) {
  if (!node["String"].is_null()) {
    ATTEST_ASSIGN_OR_RETURN(std::string text, node["String"].String());
    if (text.empty()) return node.Wrong("a pattern that is not empty");
    return TextPattern::Literal(std::move(text));
  }
  ATTEST_ASSIGN_OR_RETURN(const std::string regex, node["Regex"].String());
  Expected<TextPattern> pattern = TextPattern::Regex(regex);
  if (!pattern) {
    return Fail(
        pattern.error().code == ErrorCode::kUnsupported ? ErrorCode::kUnsupported : ErrorCode::kCorruptFile,
        fmt::format("tokenizer.json: {}: {}", node.path(), pattern.error().message), node.path());
  }
  return pattern;
}

Status ReadNormalizer(const Node& root, TokenizerSpec& spec) {
  return ForEachComponent(root, "normalizers", [&](const Node& node, const std::string& type) -> Status {
    if (type == "NFC") {
      spec.normalizer.emplace_back(NfcStep{});
    } else if (type == "Prepend") {
      ATTEST_ASSIGN_OR_RETURN(std::string text, node["prepend"].String());
      spec.normalizer.emplace_back(PrependStep{std::move(text)});
    } else if (type == "Replace") {
      ATTEST_ASSIGN_OR_RETURN(TextPattern pattern, ReadPattern(node["pattern"]));
      ATTEST_ASSIGN_OR_RETURN(std::string content, node["content"].String());
      spec.normalizer.emplace_back(ReplaceStep{std::move(pattern), std::move(content)});
    } else {
      return node["type"].Unsupported();
    }
    return {};
  });
}

Expected<SplitBehavior> ReadBehavior(const Node& node) {
  ATTEST_ASSIGN_OR_RETURN(const std::string name, node.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Wrong("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

Expected<MetaspaceStep> ReadMetaspace(const Node& node) {
  MetaspaceStep step;
  ATTEST_ASSIGN_OR_RETURN(step.replacement, node["replacement"].String());
  if (step.replacement.empty() ||
      static_cast<size_t>(Utf8Length(step.replacement.data())) != step.replacement.size()) {
    return node["replacement"].Wrong("one character");
  }
  ATTEST_ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].Bool(true));
  ATTEST_ASSIGN_OR_RETURN(step.split, node["split"].Bool(true));
  if (!prefix) step.prepend = MetaspaceStep::Prepend::kNever;
  if (const Node scheme = node["prepend_scheme"]; !scheme.is_null()) {
    ATTEST_ASSIGN_OR_RETURN(const std::string name, scheme.String());
    if (name == "never") {
      step.prepend = MetaspaceStep::Prepend::kNever;
    } else if (name == "first") {
      step.prepend = MetaspaceStep::Prepend::kFirst;
    } else if (name != "always") {
      return scheme.Wrong("always, first or never");
    }
    if (!prefix && name != "never") return scheme.Wrong("never, as add_prefix_space is false");
  }
  return step;
}

Status ReadPreTokenizer(const Node& root, TokenizerSpec& spec) {
  return ForEachComponent(root, "pretokenizers", [&](const Node& node, const std::string& type) -> Status {
    if (spec.bpe.byte_level) {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("tokenizer.json: {} '{}' after ByteLevel is not supported", node.path(),
                              ForMessage(type)),
                  node.path());
    }
    if (type == "ByteLevel") {
      ByteLevelStep step;
      ATTEST_ASSIGN_OR_RETURN(step.add_prefix_space, node["add_prefix_space"].Bool(true));
      ATTEST_ASSIGN_OR_RETURN(const bool use_regex, node["use_regex"].Bool(true));
      if (use_regex) step.scanner = Scanner(ScanKind::kGpt2);
      spec.pre_tokenizer.emplace_back(step);
      spec.bpe.byte_level = true;
    } else if (type == "Digits") {
      DigitsStep step;
      ATTEST_ASSIGN_OR_RETURN(step.individual, node["individual_digits"].Bool(false));
      spec.pre_tokenizer.emplace_back(step);
    } else if (type == "Split") {
      ATTEST_ASSIGN_OR_RETURN(TextPattern pattern, ReadPattern(node["pattern"]));
      ATTEST_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node["behavior"]));
      ATTEST_ASSIGN_OR_RETURN(const bool invert, node["invert"].Bool(false));
      spec.pre_tokenizer.emplace_back(SplitStep{std::move(pattern), behavior, invert});
    } else if (type == "Metaspace") {
      ATTEST_ASSIGN_OR_RETURN(MetaspaceStep step, ReadMetaspace(node));
      spec.pre_tokenizer.emplace_back(std::move(step));
    } else {
      return node["type"].Unsupported();
    }
    return {};
  });
}

Status ReadDecoder(const Node& root, TokenizerSpec& spec) {
  if (root.is_null()) {
    spec.decoder.emplace_back(JoinSpaceDecoder{});
    return {};
  }
  return ForEachComponent(root, "decoders", [&](const Node& node, const std::string& type) -> Status {
    if (type == "ByteLevel") {
      spec.decoder.emplace_back(ByteLevelDecoder{});
    } else if (type == "ByteFallback") {
      spec.decoder.emplace_back(ByteFallbackDecoder{});
    } else if (type == "Fuse") {
      spec.decoder.emplace_back(FuseDecoder{});
    } else if (type == "Replace") {
      const Node pattern = node["pattern"];
      if (!pattern["Regex"].is_null()) return pattern.Unsupported();
      ReplaceDecoder step;
      ATTEST_ASSIGN_OR_RETURN(step.pattern, pattern["String"].String());
      if (step.pattern.empty()) return pattern.Wrong("a pattern that is not empty");
      ATTEST_ASSIGN_OR_RETURN(step.content, node["content"].String());
      spec.decoder.emplace_back(std::move(step));
    } else if (type == "Strip") {
      StripDecoder step;
      ATTEST_ASSIGN_OR_RETURN(step.content, node["content"].String());
      if (step.content.empty() ||
          static_cast<size_t>(Utf8Length(step.content.data())) != step.content.size()) {
        return node["content"].Wrong("one character");
      }
      ATTEST_ASSIGN_OR_RETURN(const int32_t start, node["start"].Id());
      ATTEST_ASSIGN_OR_RETURN(const int32_t stop, node["stop"].Id());
      step.start = static_cast<size_t>(start);
      step.stop = static_cast<size_t>(stop);
      spec.decoder.emplace_back(std::move(step));
    } else if (type == "Metaspace") {
      ATTEST_ASSIGN_OR_RETURN(MetaspaceStep step, ReadMetaspace(node));
      spec.decoder.emplace_back(
          MetaspaceDecoder{std::move(step.replacement), step.prepend != MetaspaceStep::Prepend::kNever});
    } else {
      return node["type"].Unsupported();
    }
    return {};
  });
}

Status ReadTemplate(const Node& node, TokenizerSpec& spec) {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool seen_text = false;
  ATTEST_ASSIGN_OR_RETURN(const std::vector<Node> pieces, node["single"].Items());
  for (const Node& piece : pieces) {
    if (const Node sequence = piece["Sequence"]; !sequence.is_null()) {
      ATTEST_ASSIGN_OR_RETURN(const std::string name, sequence["id"].String());
      if (seen_text || name != "A") return piece.Unsupported();
      seen_text = true;
      continue;
    }
    ATTEST_ASSIGN_OR_RETURN(const std::string name, piece["SpecialToken"]["id"].String());
    ATTEST_ASSIGN_OR_RETURN(const std::vector<Node> ids, node["special_tokens"][name.c_str()]["ids"].Items());
    for (const Node& item : ids) {
      ATTEST_ASSIGN_OR_RETURN(const int32_t id, item.Id());
      (seen_text ? after : before).push_back(id);
    }
  }
  if (!seen_text) return node["single"].Wrong("a template with Sequence A");
  spec.prefix_ids.insert(spec.prefix_ids.begin(), before.begin(), before.end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), after.begin(), after.end());
  return {};
}

Status ReadPostProcessor(const Node& root, TokenizerSpec& spec) {
  return ForEachComponent(root, "processors", [&](const Node& node, const std::string& type) -> Status {
    if (type == "ByteLevel") return {};  // moves offsets, which we do not keep
    if (type == "TemplateProcessing") return ReadTemplate(node, spec);
    return node["type"].Unsupported();
  });
}

std::unexpected<Error> CorruptModel(std::string field, std::string_view message) {
  return Fail(ErrorCode::kCorruptFile, fmt::format("tokenizer.json: {} {}", field, message), field);
}

Status ReadVocab(const TokenizerJson& document, TokenizerSpec& spec) {
  const size_t count = document.vocab.size();
  if (!document.has_vocab || count == 0) return CorruptModel("model.vocab", "is absent or empty");
  spec.tokens.resize(count);
  std::vector<bool> taken(count, false);
  for (const auto& [text, id] : document.vocab) {
    if (id >= count) {
      return CorruptModel("model.vocab", fmt::format("gives '{}' the id {}, {} tokens want the ids 0 to {}",
                                                     text, id, count, count - 1));
    }
    if (taken[id]) {
      return CorruptModel("model.vocab", fmt::format("gives '{}' and '{}' the same id {}",
                                                     ForMessage(spec.tokens[id]), ForMessage(text), id));
    }
    taken[id] = true;
    spec.tokens[id] = text;
  }
  return {};
}

Status ReadModel(const Node& model, const TokenizerJson& document, TokenizerSpec& spec) {
  if (!model.value().is_object()) return model.Wrong("an object");
  if (const Node type = model["type"]; !type.is_null() && type.value() != "BPE") return type.Unsupported();
  ATTEST_RETURN_IF_ERROR(ReadVocab(document, spec));
  if (!document.has_merges) return CorruptModel("model.merges", "is absent");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Node affix = model[key]; !affix.is_null() && affix.value() != "") return affix.Unsupported();
  }
  if (const Node dropout = model["dropout"]; !dropout.is_null() && dropout.value() != 0)
    return dropout.Unsupported();
  ATTEST_ASSIGN_OR_RETURN(spec.bpe.byte_fallback, model["byte_fallback"].Bool(false));
  ATTEST_ASSIGN_OR_RETURN(spec.bpe.fuse_unk, model["fuse_unk"].Bool(false));
  ATTEST_ASSIGN_OR_RETURN(spec.bpe.ignore_merges, model["ignore_merges"].Bool(false));

  Vocabulary index;
  for (const std::string& token : spec.tokens) index.Append(token);
  index.BuildIndex();
  for (int32_t id = 0; id < index.size(); ++id) {
    const std::string_view text = index.Text(id);
    if (!text.empty() && index.Find(text) != id) {
      return CorruptModel("model.vocab", fmt::format("holds the token '{}' twice", ForMessage(text)));
    }
  }
  if (const Node unk = model["unk_token"]; !unk.is_null()) {
    ATTEST_ASSIGN_OR_RETURN(const std::string text, unk.String());
    spec.bpe.unk_id = index.Find(text);
    if (*spec.bpe.unk_id < 0) return unk.Wrong("a token of the vocabulary");
  }
  spec.merges.reserve(document.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < document.merges.size(); ++rank) {
    const auto& [left, right] = document.merges[rank];
    joined.assign(left).append(right);
    const BpeMerge merge = {index.Find(left), index.Find(right), index.Find(joined),
                            static_cast<uint32_t>(rank)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
      const std::string_view missing = merge.left < 0 ? left : merge.right < 0 ? right : joined;
      return CorruptModel(fmt::format("model.merges[{}]", rank),
                          fmt::format("needs '{}', which is not in the vocabulary", ForMessage(missing)));
    }
    spec.merges.push_back(merge);
  }
  return {};
}

Status ReadAddedTokens(const Node& root, TokenizerSpec& spec) {
  if (root.is_null()) return {};
  ATTEST_ASSIGN_OR_RETURN(const std::vector<Node> items, root.Items());
  std::unordered_map<std::string_view, int32_t> known;
  for (size_t id = 0; id < spec.tokens.size(); ++id) known.emplace(spec.tokens[id], static_cast<int32_t>(id));
  std::vector<bool> added(spec.tokens.size(), false);
  std::vector<std::string> new_tokens;
  for (const Node& item : items) {
    AddedToken token;
    ATTEST_ASSIGN_OR_RETURN(token.content, item["content"].String());
    ATTEST_ASSIGN_OR_RETURN(token.id, item["id"].Id());
    ATTEST_ASSIGN_OR_RETURN(token.special, item["special"].Bool(false));
    ATTEST_ASSIGN_OR_RETURN(token.normalized, item["normalized"].Bool(!token.special));
    ATTEST_ASSIGN_OR_RETURN(token.single_word, item["single_word"].Bool(false));
    ATTEST_ASSIGN_OR_RETURN(token.lstrip, item["lstrip"].Bool(false));
    ATTEST_ASSIGN_OR_RETURN(token.rstrip, item["rstrip"].Bool(false));
    if (token.content.empty()) continue;
    // The reference library gives a token its id in the vocabulary, or the next free one, whatever the file
    // says; a file that says otherwise belongs to another vocabulary.
    const auto it = known.find(token.content);
    const auto next = static_cast<int32_t>(spec.tokens.size() + new_tokens.size());
    const int32_t wanted = it != known.end() ? it->second : next;
    if (token.id != wanted)
      return item["id"].Wrong(fmt::format("{} for the token '{}'", wanted, ForMessage(token.content)));
    if (token.id == next) {
      new_tokens.push_back(token.content);
      added.push_back(true);
    } else if (added[static_cast<size_t>(token.id)]) {
      return item["content"].Wrong("a token that was not added before");
    } else {
      added[static_cast<size_t>(token.id)] = true;
    }
    spec.added_tokens.push_back(std::move(token));
  }
  spec.tokens.insert(spec.tokens.end(), new_tokens.begin(), new_tokens.end());
  return {};
}

// "bos_token": "<s>", or {"content": "<s>", ...}, or null.
Status ReadNamedToken(const json& config, const char* key, const TokenizerSpec& spec,
                      std::optional<int32_t>& id) {
  if (!config.is_object() || !config.contains(key)) return {};
  const json& value = config[key];
  const json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) return {};
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), text.get<std::string>());
  if (it == spec.tokens.end()) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("tokenizer_config.json: {} '{}' is not in the vocabulary", key,
                            ForMessage(text.get<std::string>())),
                key);
  }
  id = static_cast<int32_t>(it - spec.tokens.begin());
  return {};
}

Expected<std::unique_ptr<Tokenizer>> Read(std::string_view tokenizer_json, std::string_view config_json) {
  ATTEST_ASSIGN_OR_RETURN(const TokenizerJson document, ReadTokenizerJson(tokenizer_json));
  if (!document.rest.is_object()) {
    return Fail(ErrorCode::kCorruptFile, "tokenizer.json is not an object", "tokenizer.json");
  }
  const Node root(document.rest, "");
  if (const Node version = root["version"]; !version.is_null() && version.value() != "1.0") {
    return version.Unsupported();
  }
  TokenizerSpec spec;
  ATTEST_RETURN_IF_ERROR(ReadModel(root["model"], document, spec));
  ATTEST_RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], spec));
  ATTEST_RETURN_IF_ERROR(ReadNormalizer(root["normalizer"], spec));
  ATTEST_RETURN_IF_ERROR(ReadPreTokenizer(root["pre_tokenizer"], spec));
  ATTEST_RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], spec));
  ATTEST_RETURN_IF_ERROR(ReadDecoder(root["decoder"], spec));
  if (!config_json.empty()) {
    const json config = json::parse(config_json, nullptr, false);
    if (config.is_discarded()) {
      return Fail(ErrorCode::kCorruptFile, "tokenizer_config.json is not valid JSON",
                  "tokenizer_config.json");
    }
    ATTEST_RETURN_IF_ERROR(ReadNamedToken(config, "bos_token", spec, spec.bos_id));
    ATTEST_RETURN_IF_ERROR(ReadNamedToken(config, "eos_token", spec, spec.eos_id));
  }
  if (!spec.bos_id && spec.prefix_ids.size() == 1) spec.bos_id = spec.prefix_ids.front();
  return MakeTokenizer(std::move(spec));
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> Tokenizer::FromTokenizerJson(std::string_view tokenizer_json,
                                                                  std::string_view tokenizer_config_json) {
  try {
    return Read(tokenizer_json, tokenizer_config_json);
  } catch (const std::exception& error) {  // nlohmann-json, or no memory
    return Fail(ErrorCode::kCorruptFile, fmt::format("tokenizer.json: {}", error.what()), "tokenizer.json");
  }
}

}  // namespace attest
