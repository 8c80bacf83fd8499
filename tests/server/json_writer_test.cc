#include "server/json_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace attest {
namespace {

std::string Quote(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

TEST(JsonWriter, PutsCommasBetweenValuesOnly) {
  std::string out;
  JsonWriter json(out);
  json.BeginObject().Key("a").Int(-5).Key("b").BeginArray().Bool(true).Null().BeginObject().EndObject();
  json.EndArray().Key("c").Raw("1.5").EndObject();
  EXPECT_EQ(out, R"({"a":-5,"b":[true,null,{}],"c":1.5})");
}

TEST(JsonWriter, EscapesWhatJsonForbids) {
  EXPECT_EQ(Quote("a\"b\\c\n\r\t\x01\x1f"), R"("a\"b\\c\n\r\t\u0001\u001f")");
}

TEST(JsonWriter, KeepsWellFormedUtf8) {
  EXPECT_EQ(Quote("é€😀"), "\"é€😀\"");
  EXPECT_EQ(Quote("\x7f"), "\"\x7f\"");
}

TEST(JsonWriter, ReplacesBytesThatAreNoUtf8) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Quote("a\xFF z"), "\"a" + r + " z\"");
  EXPECT_EQ(Quote("\xC0\xAF"), "\"" + r + r + "\"");                  // overlong
  EXPECT_EQ(Quote("\xED\xA0\x80"), "\"" + r + r + r + "\"");          // surrogate
  EXPECT_EQ(Quote("\xF4\x90\x80\x80"), "\"" + r + r + r + r + "\"");  // above U+10FFFF
  EXPECT_EQ(Quote("\xE2\x82"), "\"" + r + r + "\"");                  // cut short
}

TEST(JsonWriter, GivesJsonThatOthersReadForAnyBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 24, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string text = Quote(bytes);
    ASSERT_FALSE(nlohmann::json::parse(text, nullptr, false).is_discarded())
        << "round " << round << ": " << text;
  }
}

}  // namespace
}  // namespace attest
