#include "io/json_events.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/file_error.h"

namespace attest {
namespace {

// An input iterator that tells how far the lexer has read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  CountingIterator(const char* at, size_t* count) : at_(at), count_(count) {}
  char operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* count_;
};

// nlohmann's names on one side, JsonEvents on the other.
class Adapter {
 public:
  Adapter(JsonEvents& events, const size_t& offset, std::string_view file, uint64_t text_offset)
      : events_(events), offset_(offset), file_(file), text_offset_(text_offset) {}

  bool null() { return Keep(events_.Other("null", offset_)); }
  bool boolean(bool value) { return Keep(events_.Other(value ? "true" : "false", offset_)); }
  bool number_integer(int64_t value) { return Keep(events_.Other(fmt::format("{}", value), offset_)); }
  bool number_unsigned(uint64_t value) { return Keep(events_.Unsigned(value, offset_)); }
  bool number_float(double, const std::string& text) { return Keep(events_.Other(text, offset_)); }
  bool string(std::string& value) { return Keep(events_.String(value, offset_)); }
  bool binary(std::vector<uint8_t>&) { return false; }  // JSON text has none
  bool start_object(size_t) { return Keep(events_.BeginObject(offset_)); }
  bool key(std::string& value) { return Keep(events_.Key(value, offset_)); }
  bool end_object() { return Keep(events_.EndObject(offset_)); }
  bool start_array(size_t) { return Keep(events_.BeginArray(offset_)); }
  bool end_array() { return Keep(events_.EndArray(offset_)); }
  bool parse_error(size_t, const std::string& last_token, const nlohmann::json::exception&) {
    error_ = BadFile(file_, text_offset_ + offset_, fmt::format("not valid JSON near {}", Quoted(last_token)))
                 .error();
    return false;
  }

  // REQUIRES: the parser stopped early.
  [[nodiscard]] std::unexpected<Error> TakeError() {
    if (error_) return std::unexpected<Error>(*std::move(error_));
    return BadFile(file_, text_offset_ + offset_, "not valid JSON");
  }

 private:
  bool Keep(Status status) {
    if (status) return true;
    error_ = std::move(status).error();
    return false;
  }

  JsonEvents& events_;
  const size_t& offset_;
  std::string_view file_;
  uint64_t text_offset_;
  std::optional<Error> error_;
};

}  // namespace

Status ReadJson(std::string_view text, std::string_view file, uint64_t text_offset, JsonEvents& events) {
  size_t offset = 0;
  size_t end_count = 0;  // the end iterator never moves
  Adapter adapter(events, offset, file, text_offset);
  const char* begin = text.data();
  if (nlohmann::json::sax_parse(CountingIterator(begin, &offset),
                                CountingIterator(begin + text.size(), &end_count), &adapter)) {
    return {};
  }
  return adapter.TakeError();
}

}  // namespace attest
