#include "model/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "model/config_check.h"
#include "model/rope.h"

namespace attest {
namespace {

using Json = nlohmann::json;

std::unexpected<Error> Missing(const std::string& key, const char* hint = "") {
  return Fail(ErrorCode::kCorruptFile, fmt::format("config.json has no {}{}", key, hint), key);
}

// One JSON object whose keys are counted as they are read. In these files null means "not set".
class ObjectReader {
 public:
  explicit ObjectReader(const Json& object, std::string prefix = {}, const char* file = "config.json")
      : object_(object), prefix_(std::move(prefix)), file_(file) {}

  const Json* Find(const char* key) {
    read_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] bool Contains(const char* key) const { return object_.contains(key); }

  // "rope_scaling.factor"
  [[nodiscard]] std::string Path(std::string_view key) const { return prefix_ + std::string(key); }

  Expected<std::optional<int64_t>> Int(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number_integer()) {
      // Above 2^63 - 1 nlohmann keeps an unsigned number, which get<int64_t> would wrap.
      if (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX) return value->get<int64_t>();
    }
    return WrongType(key, *value, "an integer");
  }
  Expected<std::optional<double>> Number(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) return WrongType(key, *value, "a number");
    return value->get<double>();
  }
  Expected<std::optional<bool>> Bool(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) return WrongType(key, *value, "true or false");
    return value->get<bool>();
  }
  Expected<std::optional<std::string>> String(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return WrongType(key, *value, "a string");
    return value->get<std::string>();
  }
  Expected<int64_t> RequiredInt(const char* key) {
    ATTEST_ASSIGN_OR_RETURN(const std::optional<int64_t> value, Int(key));
    if (!value) return Missing(Path(key));
    return *value;
  }
  Expected<double> RequiredNumber(const char* key, const char* hint = "") {
    ATTEST_ASSIGN_OR_RETURN(const std::optional<double> value, Number(key));
    if (!value) return Missing(Path(key), hint);
    return *value;
  }

  // Keys that carry a value nobody asked for and that must not go unread. `all`: every key of this object
  // counts (a rope dictionary); else those KeyMustBeRead names.
  [[nodiscard]] Status CheckUnread(bool all) const {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_null() || read_.contains(key) || (!all && !KeyMustBeRead(key))) continue;
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("config.json key {} = {} is not understood; it may change what the layers "
                              "compute, so the model is not loaded",
                              Path(key), value.dump(-1, ' ', false, Json::error_handler_t::replace)),
                  Path(key));
    }
    return {};
  }

  std::unexpected<Error> WrongType(const char* key, const Json& value, const char* expected) const {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("{} key {} is {}, expected {}", file_, Path(key),
                            value.dump(-1, ' ', false, Json::error_handler_t::replace), expected),
                Path(key));
  }

 private:
  const Json& object_;
  std::string prefix_;
  const char* file_;
  std::set<std::string, std::less<>> read_;
};

Expected<Json> ParseObject(std::string_view text, const char* file) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return Fail(ErrorCode::kCorruptFile, fmt::format("{} is not a JSON object", file), file);
  }
  return json;
}

Expected<RopeScaling> ScalingFromName(const std::string& field, const std::string& name) {
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn") return RopeScaling::kYarn;
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{} is \"{}\"; supported: default, linear, llama3, yarn", field, name), field);
}

// A rope dictionary of either spelling: rope_scaling (transformers 4) or rope_parameters (5).
Status ReadRopeDictionary(ObjectReader& dict, int64_t max_positions, RopeConfig& rope) {
  ATTEST_ASSIGN_OR_RETURN(const auto rope_type, dict.String("rope_type"));
  ATTEST_ASSIGN_OR_RETURN(const auto type, dict.String("type"));
  if (!rope_type && !type) return Missing(dict.Path("rope_type"));
  if (rope_type && type && *rope_type != *type) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("{} is \"{}\" but {} is \"{}\"", dict.Path("rope_type"), *rope_type,
                            dict.Path("type"), *type),
                dict.Path("rope_type"));
  }
  ATTEST_ASSIGN_OR_RETURN(rope.scaling, ScalingFromName(dict.Path(rope_type ? "rope_type" : "type"),
                                                        rope_type ? *rope_type : *type));
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear: {
      ATTEST_ASSIGN_OR_RETURN(rope.factor, dict.RequiredNumber("factor"));
      break;
    }
    case RopeScaling::kLlama3: {
      ATTEST_ASSIGN_OR_RETURN(rope.factor, dict.RequiredNumber("factor"));
      ATTEST_ASSIGN_OR_RETURN(rope.low_freq_factor, dict.RequiredNumber("low_freq_factor"));
      ATTEST_ASSIGN_OR_RETURN(rope.high_freq_factor, dict.RequiredNumber("high_freq_factor"));
      ATTEST_ASSIGN_OR_RETURN(rope.original_max_positions,
                              dict.RequiredInt("original_max_position_embeddings"));
      if (!(rope.low_freq_factor > 0) || !(rope.high_freq_factor > rope.low_freq_factor)) {
        return Fail(ErrorCode::kCorruptFile,
                    fmt::format("{} is {}, expected above low_freq_factor {}", dict.Path("high_freq_factor"),
                                rope.high_freq_factor, rope.low_freq_factor),
                    dict.Path("high_freq_factor"));
      }
      break;
    }
    case RopeScaling::kYarn: {
      // Older files leave the original length out; transformers then means max_position_embeddings.
      ATTEST_ASSIGN_OR_RETURN(const auto original, dict.Int("original_max_position_embeddings"));
      rope.original_max_positions = original.value_or(max_positions);
      ATTEST_ASSIGN_OR_RETURN(const auto factor, dict.Number("factor"));
      if (!factor && !original) return Missing(dict.Path("factor"));
      rope.factor = factor ? *factor
                           : static_cast<double>(max_positions) /
                                 static_cast<double>(std::max<int64_t>(rope.original_max_positions, 1));
      ATTEST_ASSIGN_OR_RETURN(const auto beta_fast, dict.Number("beta_fast"));
      ATTEST_ASSIGN_OR_RETURN(const auto beta_slow, dict.Number("beta_slow"));
      ATTEST_ASSIGN_OR_RETURN(const auto truncate, dict.Bool("truncate"));
      ATTEST_ASSIGN_OR_RETURN(const auto attention_factor, dict.Number("attention_factor"));
      ATTEST_ASSIGN_OR_RETURN(const auto mscale, dict.Number("mscale"));
      ATTEST_ASSIGN_OR_RETURN(const auto mscale_all_dim, dict.Number("mscale_all_dim"));
      // Says that the weights were tuned with the scaling on; it changes nothing here.
      ATTEST_RETURN_IF_ERROR(dict.Bool("finetuned"));
      rope.beta_fast = beta_fast.value_or(rope.beta_fast);
      rope.beta_slow = beta_slow.value_or(rope.beta_slow);
      rope.truncate = truncate.value_or(rope.truncate);
      rope.attention_factor =
          attention_factor ? *attention_factor
                           : YarnAttentionFactor(rope.factor, mscale.value_or(0), mscale_all_dim.value_or(0));
      break;
    }
  }
  if (rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn) {
    if (rope.original_max_positions < 1) {
      return Fail(ErrorCode::kCorruptFile,
                  fmt::format("{} is {}, expected at least 1", dict.Path("original_max_position_embeddings"),
                              rope.original_max_positions),
                  dict.Path("original_max_position_embeddings"));
    }
  }
  ATTEST_ASSIGN_OR_RETURN(const auto partial, dict.Number("partial_rotary_factor"));
  if (partial && *partial != 1.0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}; only 1 is supported", dict.Path("partial_rotary_factor"), *partial),
                dict.Path("partial_rotary_factor"));
  }
  return dict.CheckUnread(/*all=*/true);
}

Status ReadRope(ObjectReader& root, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.rotary_dim = config.head_dim;
  ATTEST_ASSIGN_OR_RETURN(const auto top_theta, root.Number("rope_theta"));
  const Json* parameters = root.Find("rope_parameters");
  const Json* scaling = root.Find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "config.json has both rope_parameters and rope_scaling; which one holds is not defined",
                "rope_scaling");
  }
  const char* name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* dictionary = parameters != nullptr ? parameters : scaling;
  std::optional<double> inner_theta;
  if (dictionary != nullptr) {
    if (!dictionary->is_object()) return root.WrongType(name, *dictionary, "an object or null");
    ObjectReader dict(*dictionary, std::string(name) + ".");
    ATTEST_ASSIGN_OR_RETURN(inner_theta, dict.Number("rope_theta"));
    ATTEST_RETURN_IF_ERROR(ReadRopeDictionary(dict, config.max_positions, rope));
  }
  if (top_theta && inner_theta && *top_theta != *inner_theta) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("rope_theta is {} but {}.rope_theta is {}", *top_theta, name, *inner_theta),
                "rope_theta");
  }
  if (!top_theta && !inner_theta) {
    return Missing(parameters != nullptr ? "rope_parameters.rope_theta" : "rope_theta",
                   " (the base is never guessed; a file written before the key existed means 10000: add it)");
  }
  rope.theta = top_theta ? *top_theta : *inner_theta;
  return {};
}

// Of mistral every layer has the window, of ministral those that layer_types says; llama knows none, and
// transformers would ignore the key there, so a file that has it means something else.
Status ReadWindows(ObjectReader& root, const std::string& model_type, ModelConfig& config) {
  const bool has_windows = model_type != "llama";
  ATTEST_ASSIGN_OR_RETURN(const auto window, root.Int("sliding_window"));
  if (has_windows && !root.Contains("sliding_window")) {
    // transformers reads a missing key of these model types as 4096.
    return Missing("sliding_window", " (this model_type needs it; null means no window)");
  }
  if (window && !has_windows) {
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format("sliding_window is {}; a model of type llama has no windows, only null is supported",
                    *window),
        "sliding_window");
  }
  if (window && (*window < 1 || *window > INT32_MAX)) {
    return Fail(ErrorCode::kCorruptFile,
                fmt::format("sliding_window is {}, expected 1 to {}", *window, INT32_MAX), "sliding_window");
  }
  const auto own = window ? std::optional(static_cast<int32_t>(*window)) : std::nullopt;
  const Json* types = root.Find("layer_types");
  if (types == nullptr) {
    if (own) config.layer_windows.assign(static_cast<size_t>(config.num_layers), own);
    return {};
  }
  if (!types->is_array()) return root.WrongType("layer_types", *types, "an array");
  bool any_window = false;
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    const bool slides = name == "sliding_attention";
    if (!slides && name != "full_attention") {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("layer_types holds {}; supported: \"full_attention\" and, with a window, "
                              "\"sliding_attention\"",
                              type.dump()),
                  "layer_types");
    }
    if (slides && !own) {
      return Fail(ErrorCode::kUnsupported,
                  "layer_types holds \"sliding_attention\", but the model has no sliding_window",
                  "layer_types");
    }
    // The mistral of transformers gives every layer the window, whatever the key says.
    if (!slides && own && model_type == "mistral") {
      return Fail(
          ErrorCode::kUnsupported,
          "layer_types holds \"full_attention\" in a model of type mistral, whose layers all have the "
          "window",
          "layer_types");
    }
    config.layer_windows.push_back(slides ? own : std::nullopt);
    any_window |= slides;
  }
  if (!any_window) config.layer_windows.clear();
  return {};
}

// Keys that other models use to change the layers; each is fine when it says "off".
Status RefuseUnsupportedFeatures(ObjectReader& root) {
  for (const char* key : {"use_sliding_window", "rope_interleaved", "use_qk_norm"}) {
    ATTEST_ASSIGN_OR_RETURN(const auto value, root.Bool(key));
    if (value && *value) {
      return Fail(ErrorCode::kUnsupported, fmt::format("{} is true; only false is supported", key), key);
    }
  }
  ATTEST_ASSIGN_OR_RETURN(const auto partial, root.Number("partial_rotary_factor"));
  if (partial && *partial != 1.0) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("partial_rotary_factor is {}; only 1 is supported", *partial),
                "partial_rotary_factor");
  }
  if (const Json* quantization = root.Find("quantization_config"); quantization != nullptr) {
    const auto method = quantization->is_object() ? quantization->find("quant_method") : quantization->end();
    return Fail(
        ErrorCode::kUnsupported,
        fmt::format("quantization_config is set (quant_method {}); quantised safetensors are not supported, "
                    "a GGUF file of the model is",
                    method == quantization->end() ? "not named" : method->dump()),
        "quantization_config");
  }
  return {};
}

Status ReadTokenIds(ObjectReader& object, const char* key, std::vector<int32_t>& ids) {
  const Json* value = object.Find(key);
  if (value == nullptr) return {};
  const auto add = [&](const Json& item) {
    if (!item.is_number_integer()) return false;
    const auto id = item.get<int64_t>();
    if (id < 0 || id > INT32_MAX) return false;
    if (std::ranges::find(ids, static_cast<int32_t>(id)) == ids.end())
      ids.push_back(static_cast<int32_t>(id));
    return true;
  };
  bool valid = true;
  if (value->is_array()) {
    for (const Json& item : *value) valid = valid && add(item);
  } else {
    valid = add(*value);
  }
  if (!valid) return object.WrongType(key, *value, "a token id or a list of them");
  return {};
}

Expected<std::string> ReadArchitecture(ObjectReader& root) {
  ATTEST_ASSIGN_OR_RETURN(const auto model_type, root.String("model_type"));
  if (!model_type) return Missing("model_type");
  const bool is_llama = *model_type == "llama", is_mistral = *model_type == "mistral";
  if (!is_llama && !is_mistral && *model_type != "ministral") {
    return std::unexpected(UnsupportedArchitecture("model_type", *model_type));
  }
  if (const Json* architectures = root.Find("architectures"); architectures != nullptr) {
    if (!architectures->is_array() || architectures->empty() || !architectures->front().is_string()) {
      return root.WrongType("architectures", *architectures, "a list of class names");
    }
    const auto name = architectures->front().get<std::string>();
    if (name != (is_llama     ? "LlamaForCausalLM"
                 : is_mistral ? "MistralForCausalLM"
                              : "MinistralForCausalLM")) {
      return std::unexpected(UnsupportedArchitecture("architectures", name));
    }
  }
  return *model_type;
}

Expected<ModelConfig> Read(const Json& json, const JsonConfigInput& input) {
  ObjectReader root(json);
  ATTEST_ASSIGN_OR_RETURN(const std::string model_type, ReadArchitecture(root));
  ATTEST_RETURN_IF_ERROR(RefuseUnsupportedFeatures(root));

  ModelConfig config;
  config.architecture = "llama";
  ATTEST_ASSIGN_OR_RETURN(const auto name, root.String("_name_or_path"));
  config.name = name && !name->empty() ? *name : input.name;
  ATTEST_ASSIGN_OR_RETURN(config.vocab_size, root.RequiredInt("vocab_size"));
  ATTEST_ASSIGN_OR_RETURN(config.hidden_size, root.RequiredInt("hidden_size"));
  ATTEST_ASSIGN_OR_RETURN(config.intermediate_size, root.RequiredInt("intermediate_size"));
  ATTEST_ASSIGN_OR_RETURN(const int64_t layers, root.RequiredInt("num_hidden_layers"));
  ATTEST_ASSIGN_OR_RETURN(const int64_t q_heads, root.RequiredInt("num_attention_heads"));
  // Absent means one K/V head per query head (files older than grouped queries); K's shape is checked later.
  ATTEST_ASSIGN_OR_RETURN(const auto kv_heads, root.Int("num_key_value_heads"));
  ATTEST_ASSIGN_OR_RETURN(const auto head_dim, root.Int("head_dim"));
  ATTEST_ASSIGN_OR_RETURN(config.max_positions, root.RequiredInt("max_position_embeddings"));
  ATTEST_ASSIGN_OR_RETURN(config.rms_norm_eps, root.RequiredNumber("rms_norm_eps"));
  constexpr int64_t kMaxInt = INT32_MAX;
  const auto in_range = [](int64_t value) { return value >= 1 && value <= kMaxInt; };
  if (!in_range(layers) || !in_range(q_heads) || !in_range(kv_heads.value_or(1)) ||
      !in_range(head_dim.value_or(1))) {
    return Fail(
        ErrorCode::kCorruptFile,
        fmt::format("num_hidden_layers {}, num_attention_heads {}, num_key_value_heads {} and head_dim "
                    "{} must be 1 to 2^31 - 1",
                    layers, q_heads, kv_heads.value_or(q_heads), head_dim.value_or(0)),
        "num_attention_heads");
  }
  config.num_layers = static_cast<int>(layers);
  config.q_heads = static_cast<int>(q_heads);
  config.kv_heads = static_cast<int>(kv_heads.value_or(q_heads));
  if (!head_dim && config.hidden_size % q_heads != 0) {
    return Fail(
        ErrorCode::kCorruptFile,
        fmt::format("hidden_size {} is not a multiple of num_attention_heads {} and there is no head_dim",
                    config.hidden_size, q_heads),
        "head_dim");
  }
  config.head_dim = static_cast<int>(head_dim.value_or(config.hidden_size / q_heads));
  ATTEST_RETURN_IF_ERROR(ReadWindows(root, model_type, config));

  ATTEST_ASSIGN_OR_RETURN(const auto activation, root.String("hidden_act"));
  if (!activation) return Missing("hidden_act");
  if (*activation != "silu" && *activation != "swish") {
    return Fail(ErrorCode::kUnsupported, fmt::format("hidden_act is \"{}\"; supported: silu", *activation),
                "hidden_act");
  }
  ATTEST_ASSIGN_OR_RETURN(const auto attention_bias, root.Bool("attention_bias"));
  ATTEST_ASSIGN_OR_RETURN(const auto mlp_bias, root.Bool("mlp_bias"));
  config.attention_bias = attention_bias.value_or(false);  // a bias tensor in the file is still never skipped
  config.mlp_bias = mlp_bias.value_or(false);
  ATTEST_ASSIGN_OR_RETURN(const auto tied, root.Bool("tie_word_embeddings"));
  if (!tied && !input.has_lm_head) {
    return Missing("tie_word_embeddings", " and the checkpoint has no lm_head.weight");
  }
  config.tied_head = tied.value_or(false);
  ATTEST_RETURN_IF_ERROR(ReadRope(root, config));

  // generation_config.json is what the model's authors tell a server to stop at; config.json may know fewer.
  std::vector<int32_t> bos;
  if (!input.generation_config.empty()) {
    ATTEST_ASSIGN_OR_RETURN(const Json generation,
                            ParseObject(input.generation_config, "generation_config.json"));
    ObjectReader reader(generation, "", "generation_config.json");
    ATTEST_RETURN_IF_ERROR(ReadTokenIds(reader, "eos_token_id", config.eos_ids));
    ATTEST_RETURN_IF_ERROR(ReadTokenIds(reader, "bos_token_id", bos));
  }
  ATTEST_RETURN_IF_ERROR(ReadTokenIds(root, "eos_token_id", config.eos_ids));
  ATTEST_RETURN_IF_ERROR(ReadTokenIds(root, "bos_token_id", bos));
  if (!bos.empty()) config.bos_id = bos.front();

  ATTEST_RETURN_IF_ERROR(root.CheckUnread(/*all=*/false));
  ATTEST_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace

Expected<ModelConfig> ConfigFromJson(const JsonConfigInput& input) {
  ATTEST_ASSIGN_OR_RETURN(const Json json, ParseObject(input.config, "config.json"));
  return Read(json, input);
}

}  // namespace attest
