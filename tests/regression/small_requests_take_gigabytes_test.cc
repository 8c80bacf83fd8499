// Requests of a few hundred kilobytes took gigabytes: /detokenize of the longest token, four million times,
// and thousands of choices that each have a copy of long lists.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class SmallRequests : public ServerFixture {
 protected:
  static std::string Repeated(const std::string& item, int times) {
    std::string list = item;
    for (int i = 1; i < times; ++i) list += "," + item;
    return "[" + list + "]";
  }
};

TEST_F(SmallRequests, CannotAskForATextBeyondThatOfAContext) {
  tokenizer_ = std::make_unique<FakeTokenizer>(std::vector<std::string>{std::string(1000, 'x')});
  StartServer();  // a context of 256 tokens of 1,000 bytes each
  const auto detokenize = [&](int times) {
    return Post(port(), "/detokenize", R"({"tokens":)" + Repeated("258", times) + "}");
  };
  EXPECT_EQ(detokenize(256).status, 200);
  const HttpReply refused = detokenize(5000);
  EXPECT_EQ(refused.status, 400);
  const auto error = Json(refused)["error"];
  EXPECT_EQ(error["param"], "tokens");
  EXPECT_EQ(error["message"],
            "tokens is a text of 5000000 bytes, the limit of a context of 256 tokens is 1024000");
}

TEST_F(SmallRequests, CannotHaveTheirListsCopiedThousandsOfTimes) {
  StartServer();
  const std::string words = Repeated('"' + std::string(1024, 'x') + '"', 128);
  const auto complete = [&](int prompts, int n) {
    return Complete(R"({"max_tokens":1,"bad_words":)" + words + R"(,"prompt":)" + Repeated("\"a\"", prompts) +
                    R"(,"n":)" + std::to_string(n) + "}");
  };
  EXPECT_EQ(complete(1, 16).status, 200);
  const HttpReply refused = complete(8, 128);
  EXPECT_EQ(refused.status, 400);
  const auto error = Json(refused)["error"];
  EXPECT_EQ(error["param"], "n");
  EXPECT_NE(error["message"].get<std::string>().find("the limit is 268435456"), std::string::npos) << error;
  EXPECT_EQ(engine_->submitted(), 16);
}

}  // namespace
}  // namespace attest::testing
