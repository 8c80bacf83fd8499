// {"metadata": {...}, "weight_map": {"NAME": "model-00001-of-00002.safetensors", ...}}
#include <fmt/format.h>

#include <unordered_set>

#include "io/file_error.h"
#include "io/json_events.h"
#include "io/safetensors.h"

namespace attest {
namespace {

class IndexReader : public JsonEvents {
 public:
  IndexReader(std::string_view file, std::vector<ShardedTensor>& tensors) : file_(file), tensors_(tensors) {}

  Status BeginObject(size_t offset) override {
    if (state_ == State::kSkip) {
      ++skip_depth_;
      return {};
    }
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return {};
    }
    if (state_ == State::kMapValue) {
      state_ = State::kMap;
      return {};
    }
    return Unexpected("an object", offset);
  }

  Status EndObject(size_t) override {
    if (state_ == State::kSkip) {
      LeaveSkipped();
    } else {
      state_ = state_ == State::kMap ? State::kTop : State::kEnd;
    }
    return {};
  }

  Status BeginArray(size_t offset) override {
    if (state_ != State::kSkip) return Unexpected("an array", offset);
    ++skip_depth_;
    return {};
  }
  Status EndArray(size_t) override {
    LeaveSkipped();
    return {};
  }

  Status Key(std::string_view key, size_t offset) override {
    if (state_ == State::kTop) return BeginTopValue(key, offset);
    if (state_ != State::kMap) return {};
    if (key.empty() || !IsPrintableName(key)) {
      return Bad(offset, fmt::format("tensor name {} is empty or holds a control byte", Quoted(key)));
    }
    if (!names_.emplace(key).second) {
      return Bad(offset, fmt::format("tensor {} appears twice in weight_map", Quoted(key)));
    }
    tensors_.push_back({std::string(key), ""});
    state_ = State::kShard;
    return {};
  }

  Status String(std::string_view value, size_t offset) override {
    if (state_ != State::kShard) return Scalar(Quoted(value), offset);
    // A shard lies in the index's own folder: no separator, and nothing hidden ("..", ".cache").
    if (value.empty() || value[0] == '.' || value.find_first_of("/\\") != value.npos ||
        !IsPrintableName(value)) {
      return Bad(offset, fmt::format("tensor {} lies in {}, must be a plain file name in the same folder",
                                     Quoted(tensors_.back().name), Quoted(value)));
    }
    tensors_.back().shard = value;
    state_ = State::kMap;
    return {};
  }

  Status Unsigned(uint64_t value, size_t offset) override { return Scalar(fmt::format("{}", value), offset); }
  Status Other(std::string_view text, size_t offset) override { return Scalar(text.substr(0, 32), offset); }

  [[nodiscard]] bool has_map() const { return has_map_; }

 private:
  enum class State { kStart, kTop, kMapValue, kMap, kShard, kSkip, kEnd };

  [[nodiscard]] std::unexpected<Error> Bad(size_t offset, std::string_view problem) const {
    return BadFile(file_, offset, problem);
  }

  [[nodiscard]] std::unexpected<Error> Unexpected(std::string_view what, size_t offset) const {
    if (state_ == State::kStart) return Bad(offset, fmt::format("index is {}, must be an object", what));
    if (state_ == State::kMapValue) {
      return Bad(offset, fmt::format("weight_map is {}, must be an object", what));
    }
    return Bad(offset, fmt::format("weight_map {} is {}, must be a file name",
                                   Quoted(tensors_.empty() ? "" : tensors_.back().name), what));
  }

  Status Scalar(std::string_view what, size_t offset) {
    if (state_ != State::kSkip) return Unexpected(what, offset);
    if (skip_depth_ == 0) state_ = State::kTop;
    return {};
  }

  void LeaveSkipped() {
    if (--skip_depth_ == 0) state_ = State::kTop;
  }

  // "metadata" and whatever else a writer adds is skipped: nothing in it places a tensor.
  Status BeginTopValue(std::string_view key, size_t offset) {
    if (key != "weight_map") {
      state_ = State::kSkip;
      return {};
    }
    if (has_map_) return Bad(offset, "weight_map appears twice");
    has_map_ = true;
    state_ = State::kMapValue;
    return {};
  }

  std::string_view file_;
  std::vector<ShardedTensor>& tensors_;
  std::unordered_set<std::string> names_;
  State state_ = State::kStart;
  size_t skip_depth_ = 0;  // open objects and arrays inside a skipped value
  bool has_map_ = false;
};

}  // namespace

Expected<std::vector<ShardedTensor>> ParseSafetensorsIndex(std::string_view text,
                                                           std::string_view file_name) {
  std::vector<ShardedTensor> tensors;
  IndexReader reader(file_name, tensors);
  ATTEST_RETURN_IF_ERROR(ReadJson(text, file_name, 0, reader));
  if (!reader.has_map()) return BadFile(file_name, text.size(), "index has no weight_map");
  if (tensors.empty()) return BadFile(file_name, text.size(), "weight_map is empty, must name a tensor");
  return tensors;
}

}  // namespace attest
