#include "cli/text_assets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/gguf.h"

namespace attest {
namespace {

using Json = nlohmann::json;

Expected<std::optional<int32_t>> FindId(const GgufFile& gguf, const char* key) {
  ATTEST_ASSIGN_OR_RETURN(const std::optional<int64_t> value, gguf.FindInt(key));
  if (!value) return std::nullopt;
  if (*value < 0 || *value > INT32_MAX) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("{}: {} is {}, expected a token id", gguf.file_name(), key, *value), key);
  }
  return static_cast<int32_t>(*value);
}

// An absent key leaves `to` as it is.
template <class T, class Target>
Status TakeIfPresent(Expected<std::optional<T>> found, Target& to) {
  if (!found) return std::unexpected(std::move(found).error());
  if (found->has_value()) to = std::move(**found);
  return {};
}

Expected<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& gguf) {
  GgufVocabulary vocabulary;
  ATTEST_ASSIGN_OR_RETURN(const std::string_view model, gguf.String("tokenizer.ggml.model"));
  vocabulary.model = model;
  ATTEST_RETURN_IF_ERROR(TakeIfPresent(gguf.FindString("tokenizer.ggml.pre"), vocabulary.pre));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.tokens, gguf.Strings("tokenizer.ggml.tokens"));
  ATTEST_RETURN_IF_ERROR(TakeIfPresent(gguf.FindFloats("tokenizer.ggml.scores"), vocabulary.scores));
  ATTEST_RETURN_IF_ERROR(TakeIfPresent(gguf.FindInts("tokenizer.ggml.token_type"), vocabulary.token_types));
  ATTEST_RETURN_IF_ERROR(TakeIfPresent(gguf.FindStrings("tokenizer.ggml.merges"), vocabulary.merges));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.bos_id, FindId(gguf, "tokenizer.ggml.bos_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.eos_id, FindId(gguf, "tokenizer.ggml.eos_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.eot_id, FindId(gguf, "tokenizer.ggml.eot_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.eom_id, FindId(gguf, "tokenizer.ggml.eom_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.unk_id, FindId(gguf, "tokenizer.ggml.unknown_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.pad_id, FindId(gguf, "tokenizer.ggml.padding_token_id"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.add_bos, gguf.FindBool("tokenizer.ggml.add_bos_token"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.add_eos, gguf.FindBool("tokenizer.ggml.add_eos_token"));
  ATTEST_ASSIGN_OR_RETURN(vocabulary.add_space_prefix, gguf.FindBool("tokenizer.ggml.add_space_prefix"));
  return Tokenizer::FromGguf(vocabulary);
}

// Where text files come from: a model, or a folder that need not hold one.
struct TextFiles {
  const Checkpoint* checkpoint = nullptr;
  std::filesystem::path path;  // the folder where `checkpoint` is nullptr

  [[nodiscard]] const GgufFile* gguf() const { return checkpoint == nullptr ? nullptr : checkpoint->gguf(); }
  [[nodiscard]] Expected<std::string> Read(std::string_view name) const {
    return checkpoint == nullptr ? ReadText(path / name) : checkpoint->ReadSideFile(name);
  }
  static Expected<std::string> ReadText(const std::filesystem::path& file) {
    std::error_code ec;
    if (!std::filesystem::is_regular_file(file, ec)) {
      return Fail(ErrorCode::kNotFound, fmt::format("{}: no such file", file.string()), file.filename());
    }
    std::ifstream in(file, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(in), {});
    if (!in.good() && !in.eof()) {
      return Fail(ErrorCode::kIo, fmt::format("{}: cannot be read", file.string()), file.filename());
    }
    return text;
  }
};

TextFiles FilesOf(const Checkpoint& checkpoint) {
  return {.checkpoint = &checkpoint, .path = checkpoint.path()};
}

// A side file as JSON; an absent file is an empty object.
Expected<Json> ReadJson(const TextFiles& files, const char* name) {
  Expected<std::string> text = files.Read(name);
  if (!text) {
    if (text.error().code == ErrorCode::kNotFound) return Json::object();
    return std::unexpected(text.error());
  }
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("{}: {} is not a JSON object", files.path.string(), name), name);
  }
  return json;
}

Expected<std::string> TextOrEmpty(const TextFiles& files, const char* name) {
  Expected<std::string> text = files.Read(name);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

// chat_template is a string, or a list of {name, template} whose "default" counts.
std::string TemplateOf(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& entry : *found) {
      if (entry.is_object() && entry.value("name", Json()) == Json("default") && entry.contains("template") &&
          entry["template"].is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return {};
}

Expected<std::string> ChatTemplateText(const TextFiles& files, const std::string& file) {
  if (!file.empty()) {
    std::ifstream in(file, std::ios::binary);
    if (!in)
      return Fail(ErrorCode::kIo, fmt::format("--chat-template {}: cannot be read", file), "chat-template");
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  if (const GgufFile* gguf = files.gguf()) {
    ATTEST_ASSIGN_OR_RETURN(const auto text, gguf->FindString("tokenizer.chat_template"));
    return std::string(text.value_or(""));
  }
  ATTEST_ASSIGN_OR_RETURN(std::string text, TextOrEmpty(files, "chat_template.jinja"));
  if (!text.empty()) return text;
  ATTEST_ASSIGN_OR_RETURN(const Json config, ReadJson(files, "tokenizer_config.json"));
  return TemplateOf(config);
}

// What tokenizer_config.json of the same model would say about its special tokens.
Expected<std::string> TokenizerConfigText(const TextFiles& files, const Tokenizer& tokenizer) {
  const GgufFile* gguf = files.gguf();
  if (gguf == nullptr) return TextOrEmpty(files, "tokenizer_config.json");
  Json config = Json::object();
  for (const auto& [key, name] : {std::pair("tokenizer.ggml.padding_token_id", "pad_token"),
                                  std::pair("tokenizer.ggml.unknown_token_id", "unk_token")}) {
    ATTEST_ASSIGN_OR_RETURN(const std::optional<int32_t> id, FindId(*gguf, key));
    if (id && *id < tokenizer.vocab_size()) config[name] = std::string(tokenizer.TokenText(*id));
  }
  ATTEST_ASSIGN_OR_RETURN(const std::optional<bool> add_bos, gguf->FindBool("tokenizer.ggml.add_bos_token"));
  if (add_bos) config["add_bos_token"] = *add_bos;
  return config.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Expected<double> Number(const Json& config, const char* key, double fallback, double low, double high) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  if (!found->is_number() || !(found->get<double>() >= low && found->get<double>() <= high)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("generation_config.json: {} is {}, expected a number from {} to {}", key,
                            found->dump(), low, high),
                key);
  }
  return found->get<double>();
}

// The generation_config.json that counts; {} where there is none.
Expected<Json> GenerationConfig(const TextFiles& model, const std::string& source) {
  constexpr const char* kName = "generation_config.json";
  if (source == "vllm") return Json::object();
  if (source == "auto" && model.gguf() != nullptr) return Json::object();
  if (source == "auto") return ReadJson(model, kName);
  std::error_code ec;
  std::filesystem::path file = source;
  if (std::filesystem::is_directory(file, ec)) file /= kName;
  auto text = TextFiles::ReadText(file);
  if (!text) {
    return Fail(
        ErrorCode::kNotFound,
        fmt::format("--generation-config {}: neither auto nor vllm, and {}", source, text.error().message),
        "generation-config");
  }
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("--generation-config {}: {} is not a JSON object", source, file.string()),
                "generation-config");
  }
  return json;
}

Expected<SamplingParams> DefaultSampling(const TextFiles& model, const std::string& source) {
  SamplingParams sampling;
  ATTEST_ASSIGN_OR_RETURN(const Json config, GenerationConfig(model, source));
  ATTEST_ASSIGN_OR_RETURN(const double temperature,
                          Number(config, "temperature", sampling.temperature, 0, 100));
  ATTEST_ASSIGN_OR_RETURN(const double top_p, Number(config, "top_p", sampling.top_p, 0, 1));
  ATTEST_ASSIGN_OR_RETURN(const double min_p, Number(config, "min_p", sampling.min_p, 0, 1));
  ATTEST_ASSIGN_OR_RETURN(const double typical_p, Number(config, "typical_p", sampling.typical_p, 0, 1));
  ATTEST_ASSIGN_OR_RETURN(const double repetition_penalty,
                          Number(config, "repetition_penalty", sampling.repetition_penalty, 0.01, 100));
  ATTEST_ASSIGN_OR_RETURN(const double top_k, Number(config, "top_k", 0, -1, INT32_MAX));
  // 0, or what is too small for a float, keeps the best token alone, as it does in transformers; a request
  // may not ask for 0.
  const auto mass = [](double value) {
    return std::max(static_cast<float>(value), std::numeric_limits<float>::min());
  };
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = mass(top_p);
  sampling.min_p = static_cast<float>(min_p);
  sampling.typical_p = mass(typical_p);
  sampling.repetition_penalty = static_cast<float>(repetition_penalty);
  sampling.top_k = static_cast<int32_t>(std::max(top_k, 0.0));  // -1 is off, too
  return sampling;
}

Expected<std::unique_ptr<Tokenizer>> TokenizerOf(const TextFiles& files) {
  if (const GgufFile* gguf = files.gguf()) return TokenizerFromGguf(*gguf);
  ATTEST_ASSIGN_OR_RETURN(const std::string json, files.Read("tokenizer.json"));
  ATTEST_ASSIGN_OR_RETURN(const std::string config, TextOrEmpty(files, "tokenizer_config.json"));
  return Tokenizer::FromTokenizerJson(json, config);
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> LoadTokenizer(const Checkpoint& checkpoint) {
  return TokenizerOf(FilesOf(checkpoint));
}

Expected<TextAssets> LoadTextAssets(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const TextSources& sources) {
  TextAssets assets;
  const TextFiles model = FilesOf(checkpoint);
  TextFiles text = model;
  std::unique_ptr<Checkpoint> other;  // a .gguf file that only lends its tokenizer
  if (!sources.tokenizer.empty()) {
    text = {.checkpoint = nullptr, .path = sources.tokenizer};
    std::error_code ec;
    if (!std::filesystem::is_directory(sources.tokenizer, ec)) {
      ATTEST_ASSIGN_OR_RETURN(other, Checkpoint::Open(sources.tokenizer));
      text = FilesOf(*other);
    }
  }
  ATTEST_ASSIGN_OR_RETURN(assets.tokenizer, TokenizerOf(text));
  if (!sources.tokenizer.empty() && assets.tokenizer->vocab_size() > config.vocab_size) {
    // Its ids would index past the embeddings.
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--tokenizer {}: it has {} tokens, the model's vocabulary only {}",
                            sources.tokenizer.string(), assets.tokenizer->vocab_size(), config.vocab_size),
                "tokenizer");
  }
  ATTEST_ASSIGN_OR_RETURN(assets.chat_template_text, ChatTemplateText(text, sources.chat_template_file));
  if (!assets.chat_template_text.empty()) {
    ATTEST_ASSIGN_OR_RETURN(assets.chat_template, ChatTemplate::Parse(assets.chat_template_text));
  }
  ATTEST_ASSIGN_OR_RETURN(assets.tokenizer_config_json, TokenizerConfigText(text, *assets.tokenizer));
  assets.eos_ids = config.eos_ids;
  for (const int32_t id : assets.tokenizer->end_ids()) {
    if (id >= config.vocab_size) continue;  // of a tokenizer with more tokens than the model can say
    if (std::find(assets.eos_ids.begin(), assets.eos_ids.end(), id) == assets.eos_ids.end())
      assets.eos_ids.push_back(id);
  }
  ATTEST_ASSIGN_OR_RETURN(assets.default_sampling, DefaultSampling(model, sources.generation_config));
  return assets;
}

Expected<std::vector<int32_t>> EncodeChat(const TextAssets& assets,
                                          const std::vector<ChatMessage>& messages) {
  if (!assets.chat_template) {
    return Fail(ErrorCode::kUnsupported, "this model has no chat template; pass one with --chat-template",
                "chat-template");
  }
  const Tokenizer& tokenizer = *assets.tokenizer;
  auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.TokenText(*id)) : std::string();
  };
  ChatTemplateInputs inputs;
  inputs.messages = messages;
  inputs.bos_token = text_of(tokenizer.bos_id());
  inputs.eos_token = text_of(tokenizer.eos_id());
  ATTEST_ASSIGN_OR_RETURN(const std::string text, assets.chat_template->Render(inputs));
  return tokenizer.Encode(text, EncodeOptions{.add_special_tokens = false, .parse_special_tokens = true});
}

}  // namespace attest
