// What the fields that change logits become in the engine's request.
#include <gtest/gtest.h>

#include <mutex>

#include "engine/logit_adjuster.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

class LogitFields : public ServerFixture {
 protected:
  LogitFields() {
    script_ = [this](const Request& request) {
      const std::lock_guard lock(mutex_);
      sampling_ = request.sampling;
      return Ids{'a'};
    };
  }
  SamplingParams Sent(const std::string& fields) {
    for (const auto& [path, head] :
         {std::pair("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}])"),
          std::pair("/v1/completions", R"({"prompt":"x")")}) {
      const HttpReply reply = Post(port(), path, head + (R"(,"max_tokens":1,)" + fields + "}"));
      EXPECT_EQ(reply.status, 200) << reply.body;
    }
    const std::lock_guard lock(mutex_);
    return sampling_;
  }

 private:
  std::mutex mutex_;
  SamplingParams sampling_;
};

TEST_F(LogitFields, NumbersArriveAsGiven) {
  StartServer();
  const SamplingParams sent =
      Sent(R"("presence_penalty":-1.5,"frequency_penalty":2,"repetition_penalty":1.25,"typical_p":0.5)");
  EXPECT_EQ(sent.presence_penalty, -1.5f);
  EXPECT_EQ(sent.frequency_penalty, 2.0f);
  EXPECT_EQ(sent.repetition_penalty, 1.25f);
  EXPECT_EQ(sent.typical_p, 0.5f);
  const SamplingParams none = Sent(R"("presence_penalty":null,"repetition_penalty":null,"logit_bias":null,)"
                                   R"("allowed_token_ids":null,"bad_words":[],"typical_p":null)");
  EXPECT_FALSE(LogitAdjuster::IsNeeded(none));
  EXPECT_EQ(none.typical_p, 1.0f);
}

TEST_F(LogitFields, IdsArriveAsGiven) {
  StartServer();
  const SamplingParams sent = Sent(R"("logit_bias":{"5":-100,"299":1.5},"allowed_token_ids":[7,0,299])");
  ASSERT_EQ(sent.logit_bias.size(), 2u);
  EXPECT_EQ(sent.allowed_token_ids, (Ids{7, 0, 299}));
  for (const IdBias& bias : sent.logit_bias) EXPECT_EQ(bias.bias, bias.id == 5 ? -100.0f : 1.5f);
}

TEST_F(LogitFields, BadWordsAreEncodedAloneAndBehindABlank) {
  tokenizer_ = std::make_unique<FakeTokenizer>(std::vector<std::string>{"cat", " cat", "do"});
  StartServer();
  // " dog" is a blank and "dog": a word that "dog" covers.
  EXPECT_EQ(Sent(R"("bad_words":["cat","  dog"])").bad_words, (std::vector<Ids>{{258}, {259}, {260, 'g'}}));
}

}  // namespace
}  // namespace attest::testing
