// Control characters, written in more bytes than UTF-8 allows, came through to the terminal; so did
// surrogates and code points past the last.
#include <gtest/gtest.h>

#include "base/log.h"

namespace attest {
namespace {

TEST(LogOverlongControl, IsShownByteByByte) {
  EXPECT_EQ(EscapeForLog("\xe0\x82\x9b\x32J"), "\\xe0\\x82\\x9b2J") << "the 8-bit form of ESC [";
  EXPECT_EQ(EscapeForLog("\xe0\x80\x8a"), "\\xe0\\x80\\x8a") << "a line feed";
  EXPECT_EQ(EscapeForLog("\xf0\x80\x80\x8a"), "\\xf0\\x80\\x80\\x8a");
  EXPECT_EQ(EscapeForLog("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(EscapeForLog("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "U+110000";
}

TEST(LogOverlongControl, TheFirstAndLastOfEachLengthStay) {
  for (const char* text : {"\xc2\xa0", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(EscapeForLog(text), text);
  }
}

}  // namespace
}  // namespace attest
