// A model, found, loaded and ready to run: everything a command that computes needs, owned in one place.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cache/kv_sizing.h"
#include "cli/options.h"
#include "cli/text_assets.h"
#include "engine/engine.h"
#include "io/checkpoint.h"
#include "model/model.h"

namespace attest {

// MODEL as typed ("" is the default model) -> its path. kNotFound says where it was looked for.
[[nodiscard]] Expected<std::filesystem::path> FindModel(const std::string& model,
                                                        const HubEnvironment& environment);
// What clients may call it: the default model's name, org/name as typed, or the file's or folder's name.
[[nodiscard]] std::string ModelDisplayName(const std::string& model, const std::filesystem::path& path);
[[nodiscard]] Expected<ModelOptions> ModelOptionsOf(const ModelFlags& flags, const CpuFeatures& cpu);

class ModelHost {
 public:
  // Loads weights and text, reserves run state and sizes the KV cache. Progress goes to standard error.
  static Expected<std::unique_ptr<ModelHost>> Load(const ModelFlags& flags,
                                                   const HubEnvironment& environment);

  // Allocates the KV cache and starts the engine thread, which from then on owns the model and the team.
  // Once. `sentinel` may be null; it outlives the engine.
  Expected<std::unique_ptr<Engine>> StartEngine(EngineObserver* observer, Sentinel* sentinel = nullptr);

  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const TextAssets& text() const { return text_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const KvSizing& kv_sizing() const { return kv_sizing_; }
  [[nodiscard]] const EngineOptions& engine_options() const { return engine_options_; }
  // Phase and kernel of one sequence alone: {"decode", "attention_decode_avx2"}, ...
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> AttentionKernels() const;

 private:
  ModelHost() = default;

  std::filesystem::path path_;
  std::string name_;
  TextAssets text_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Model> model_;
  KvScales kv_scales_;  // of an int8 cache
  KvSizing kv_sizing_;
  EngineOptions engine_options_;
};

}  // namespace attest
