#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace attest {
namespace {

TEST(EscapeForLog, KeepsText) {
  for (const char* text : {"", "GET /v1/models 200", "Grüße, 世界 🙂", "tilde ~ and \\ and \""}) {
    EXPECT_EQ(EscapeForLog(text), text);
  }
}

TEST(EscapeForLog, NoControlCharacterComesThrough) {
  EXPECT_EQ(EscapeForLog("a\nforged line\r\t"), "a\\x0aforged line\\x0d\\x09");
  EXPECT_EQ(EscapeForLog("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(EscapeForLog(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(EscapeForLog("\xc2\x9b\x32J"), "\\xc2\\x9b2J") << "the 8-bit form of ESC [";
}

TEST(EscapeForLog, BytesThatAreNoUtf8AreShown) {
  EXPECT_EQ(EscapeForLog("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(EscapeForLog("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(EscapeForLog("\xf0\x9f\x99"), "\\xf0\\x9f\\x99");
  EXPECT_EQ(EscapeForLog("\xc0\xaf"), "\\xc0\\xaf");
}

}  // namespace
}  // namespace attest
