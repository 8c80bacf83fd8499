// Values of the template language, with Python's meaning of truth, equality, str(), repr() and len().
// Copied freely; lists and dicts are shared, as in Python. One render, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace attest::jinja {

// Raised while rendering and turned into an Error at the folder's edge (chat_template.cc).
struct RenderError : std::runtime_error {
  RenderError(int at_line, const std::string& what) : std::runtime_error(what), line(at_line) {}
  int line = 0;
};

class Value;
using List = std::vector<Value>;  // never changed once it is a value; so are dicts
// Insertion order counts. Look-ups are linear: message objects have a handful of keys.
using Dict = std::vector<std::pair<std::string, Value>>;

struct Undefined {
  std::string name;  // for messages: "'tools' is undefined"
};
struct None {};
struct Macro;  // interpreter.cc

// A function of the environment ("range", "namespace", ...), known by name.
struct GlobalFunction {
  std::string name;
};
// obj.name without a call: message.items, text.strip.
struct BoundMethod {
  std::shared_ptr<Value> object;
  std::string name;
};
// namespace(...): the one mutable object. Equal to itself alone.
struct Namespace {
  std::shared_ptr<Dict> fields;
};

// How much there is to walk in a value, and how deep: what is shared counts each time that it is met, since
// whoever prints or compares the value meets it as often.
struct Extent {
  int64_t bytes = 16;          // of strings, and as much again for each value
  int depth = 0;               // of lists and dicts in each other
  bool holds_objects = false;  // namespaces or macros, which may hold others
};
template <class Items>
struct Measured {
  Items items;
  Extent extent;
};

class Value {
 public:
  using SharedList = std::shared_ptr<const Measured<List>>;
  using SharedDict = std::shared_ptr<const Measured<Dict>>;
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::string, SharedList, SharedDict,
                               Namespace, GlobalFunction, BoundMethod, std::shared_ptr<const Macro>>;

  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}                             // NOLINT(google-explicit-constructor)
  Value(Undefined undefined) : data_(std::move(undefined)) {}   // NOLINT(google-explicit-constructor)
  Value(bool value) : data_(value) {}                           // NOLINT(google-explicit-constructor)
  Value(int value) : data_(static_cast<int64_t>(value)) {}      // NOLINT(google-explicit-constructor)
  Value(int64_t value) : data_(value) {}                        // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}                         // NOLINT(google-explicit-constructor)
  Value(std::string value) : data_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Value(std::string_view value) : data_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Value(const char* value) : data_(std::string(value)) {}       // NOLINT(google-explicit-constructor)
  Value(List list);                                             // NOLINT(google-explicit-constructor)
  Value(Dict dict);                                             // NOLINT(google-explicit-constructor)
  Value(Namespace value) : data_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Value(GlobalFunction value) : data_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Value(BoundMethod value) : data_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Value(std::shared_ptr<const Macro> value)
      : data_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
  [[nodiscard]] bool is_none() const { return is<None>(); }
  [[nodiscard]] bool is_string() const { return is<std::string>(); }
  [[nodiscard]] bool is_number() const { return is<int64_t>() || is<double>() || is<bool>(); }
  [[nodiscard]] bool is_callable() const {
    return is<GlobalFunction>() || is<BoundMethod>() || is<std::shared_ptr<const Macro>>();
  }
  [[nodiscard]] const std::string* string() const { return get_if<std::string>(); }
  [[nodiscard]] bool is_mapping() const { return is<SharedDict>(); }
  // nullptr unless this is a list / a dict or namespace.
  [[nodiscard]] const List* list() const;
  [[nodiscard]] const Dict* dict() const;
  // bool counts as 0 or 1, as in Python. REQUIRES: is_number().
  [[nodiscard]] double number() const;
  // An int or a bool. REQUIRES: is<int64_t>() or is<bool>().
  [[nodiscard]] int64_t integer() const;
  [[nodiscard]] bool is_integer() const { return is<int64_t>() || is<bool>(); }

  [[nodiscard]] bool truthy() const;
  [[nodiscard]] const char* type_name() const;  // Python's: "str", "int", "NoneType", ...
  [[nodiscard]] Extent extent() const;

 private:
  Variant data_;
};

[[nodiscard]] const Value* FindKey(const Dict& dict, std::string_view key);
void SetKey(Dict& dict, std::string_view key, Value value);

[[nodiscard]] bool Equals(const Value& a, const Value& b);
// -1, 0, 1; throws RenderError when Python would raise TypeError.
[[nodiscard]] int Compare(const Value& a, const Value& b, int line);
[[nodiscard]] std::string Str(const Value& value);
[[nodiscard]] std::string Repr(const Value& value);
// json.dumps(ensure_ascii=False); indent < 0 is None.
[[nodiscard]] std::string ToJson(const Value& value, int indent, bool sort_keys, int line);
// The items a for loop sees: elements, keys, or code points. Undefined is empty; other types throw.
[[nodiscard]] List Iterate(const Value& value, int line);
// len(); throws for types without one.
[[nodiscard]] int64_t Length(const Value& value, int line);
[[nodiscard]] bool Contains(const Value& container, const Value& item, int line);

// A string becomes a list of at most so many characters, words or lines: each takes some 50 bytes.
inline constexpr size_t kMaxPieces = size_t{1} << 20;
void CheckPieces(size_t pieces, int line);  // throws RenderError

// The code point that `text` begins or ends with; a stray byte is one. REQUIRES: it is not empty.
[[nodiscard]] std::string_view FirstCodePoint(std::string_view text);
[[nodiscard]] std::string_view LastCodePoint(std::string_view text);
[[nodiscard]] int64_t NumCodePoints(std::string_view text);

// UTF-8 text as a range of code points, for loops. Keeps no list of them: a text may have 16 million.
class CodePoints {
 public:
  class Iterator {
   public:
    explicit Iterator(std::string_view rest) : rest_(rest) { Measure(); }
    std::string_view operator*() const { return rest_.substr(0, length_); }
    Iterator& operator++() {
      rest_.remove_prefix(length_);
      Measure();
      return *this;
    }
    bool operator==(const Iterator& other) const { return rest_.size() == other.rest_.size(); }

   private:
    void Measure() { length_ = rest_.empty() ? 0 : FirstCodePoint(rest_).size(); }

    std::string_view rest_;
    size_t length_ = 0;
  };

  explicit CodePoints(std::string_view text) : text_(text) {}
  [[nodiscard]] Iterator begin() const { return Iterator(text_); }
  [[nodiscard]] Iterator end() const { return Iterator(text_.substr(text_.size())); }

 private:
  std::string_view text_;
};
[[nodiscard]] std::string FormatFloat(double value);  // Python's repr(float)

}  // namespace attest::jinja
