// Appends JSON to a string, with commas where they belong. Whatever bytes a string holds, the output is valid
// JSON in valid UTF-8: bytes that are no UTF-8 become U+FFFD. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attest {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);
  JsonWriter& String(std::string_view value);
  JsonWriter& Int(int64_t value);
  // The shortest text that reads back as the same value; null when it is not finite, which JSON cannot say.
  JsonWriter& Number(float value);
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  JsonWriter& Raw(std::string_view json);  // one complete value

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void Comma() {
    if (needs_comma_) out_.push_back(',');
  }

  std::string& out_;
  bool needs_comma_ = false;
};

// Appends `text` as a JSON string, quotes included.
void AppendJsonString(std::string& out, std::string_view text);

}  // namespace attest
