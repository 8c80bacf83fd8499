// Reads JSON as a stream of events, so that a file's structure is checked while it is read: nothing is built
// that the reader did not ask for, and a name that appears twice is seen twice (a document tree keeps one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace attest {

// An error returned from a handler ends the reading. `offset`: bytes of the text consumed, which is at or
// just past the end of the value.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual Status BeginObject(size_t offset) = 0;
  virtual Status EndObject(size_t offset) = 0;
  virtual Status BeginArray(size_t offset) = 0;
  virtual Status EndArray(size_t offset) = 0;
  virtual Status Key(std::string_view key, size_t offset) = 0;
  virtual Status String(std::string_view value, size_t offset) = 0;
  virtual Status Unsigned(uint64_t value, size_t offset) = 0;
  // Everything else, as text for messages: "null", "true", "-16", "1.5".
  virtual Status Other(std::string_view text, size_t offset) = 0;
};

// `text` must be one JSON value (UTF-8). A syntax error is kCorruptFile and names `file` and the byte,
// counted from `text_offset`, where the text begins in the file.
[[nodiscard]] Status ReadJson(std::string_view text, std::string_view file, uint64_t text_offset,
                              JsonEvents& events);

}  // namespace attest
