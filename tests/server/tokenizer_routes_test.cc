// Text to ids and back over HTTP, as remote tokenizers of clients ask for it.
#include <gtest/gtest.h>

#include "server/tokenizer_routes.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class TokenizerRoutes : public ServerFixture {
 protected:
  HttpReply Tokenize(std::string_view body) { return Post(port(), "/tokenize", body); }
  HttpReply Detokenize(std::string_view body) { return Post(port(), "/detokenize", body); }
};

TEST_F(TokenizerRoutes, TokenizeTextGivesIdsAndCounts) {
  StartServer();
  const json body = Json(Tokenize(R"({"prompt":"hi","model":"test-model"})"));
  EXPECT_EQ(body, json({{"count", 3},
                        {"max_model_len", 256},
                        {"tokens", {FakeTokenizer::kBos, 'h', 'i'}},
                        {"token_strs", nullptr}}));
  EXPECT_EQ(Json(Tokenize(R"({"prompt":"hi","add_special_tokens":false})"))["tokens"], json({'h', 'i'}));
  EXPECT_EQ(Json(Tokenize(R"({"prompt":"","add_special_tokens":false})"))["count"], 0);
}

TEST_F(TokenizerRoutes, SpecialTokensInTextAreRecognised) {
  StartServer();
  // How a client finds the id of the eos token.
  const json body =
      Json(Tokenize(R"({"prompt":"a<eos>","add_special_tokens":false,"return_token_strs":true})"));
  EXPECT_EQ(body["tokens"], json({'a', FakeTokenizer::kEos}));
  EXPECT_EQ(body["token_strs"], json({"a", "<eos>"}));
}

TEST_F(TokenizerRoutes, TokenizeMessagesGoesThroughTheTemplate) {
  StartServer();
  const auto text_of = [&](std::string_view body) {
    const json tokens = Json(Tokenize(body))["tokens"];
    return tokenizer_->Decode(tokens.get<std::vector<int32_t>>(), false);
  };
  EXPECT_EQ(text_of(R"({"messages":[{"role":"user","content":"x"}]})"), "[user]x[assistant]");
  EXPECT_EQ(text_of(R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})"),
            "[user]x");
  EXPECT_EQ(text_of(R"({"messages":[{"role":"user","content":"x"}],"add_special_tokens":true})"),
            "<bos>[user]x[assistant]");
}

TEST_F(TokenizerRoutes, APromptLongerThanTheContextIsCounted) {
  StartServer();
  const std::string text(1000, 'x');
  EXPECT_EQ(Json(Tokenize(json({{"prompt", text}}).dump()))["count"], 1001);
}

TEST_F(TokenizerRoutes, DetokenizeShowsEveryToken) {
  StartServer();
  EXPECT_EQ(Json(Detokenize(R"({"tokens":[256,104,105,257]})")), json({{"prompt", "<bos>hi<eos>"}}));
  EXPECT_EQ(Json(Detokenize(R"({"tokens":[]})")), json({{"prompt", ""}}));
  EXPECT_EQ(Json(Detokenize(R"({"tokens":[240,159,152,128]})")), json({{"prompt", "\xF0\x9F\x98\x80"}}));
  EXPECT_EQ(Json(Detokenize(R"({"tokens":[240,159,104]})")), json({{"prompt", "\xEF\xBF\xBDh"}}));
  EXPECT_EQ(Json(Detokenize(R"({"tokens":[299]})")), json({{"prompt", ""}}));  // an id of the model only
}

TEST_F(TokenizerRoutes, BadInputIsNamed) {
  StartServer();
  struct Bad {
    const char *path, *body, *param;
    int status = 400;
  };
  const Bad cases[] = {
      {"/tokenize", R"({})", "prompt"},
      {"/tokenize", R"({"prompt":5})", "prompt"},
      {"/tokenize", R"({"prompt":["a"]})", "prompt"},
      {"/tokenize", R"({"prompt":"a","add_special_tokens":"no"})", "add_special_tokens"},
      {"/tokenize", R"({"prompt":"a","return_token_strs":1})", "return_token_strs"},
      {"/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":"x"}]})", "messages"},
      {"/tokenize", R"({"messages":[]})", "messages"},
      {"/tokenize", R"({"messages":[{"content":"x"}]})", "messages[0].role"},
      {"/tokenize", R"({"messages":[{"role":"user","content":"x"}],"tools":[{}]})", "tools"},
      {"/tokenize", R"({"messages":[{"role":"user","content":"x"}],"chat_template":"x"})", "chat_template"},
      {"/tokenize", R"({"prompt":"a","model":"other"})", "model", 404},
      {"/detokenize", R"({})", "tokens"},
      {"/detokenize", R"({"tokens":"a"})", "tokens"},
      {"/detokenize", R"({"tokens":[-1]})", "tokens"},
      {"/detokenize", R"({"tokens":[300]})", "tokens"},
      {"/detokenize", R"({"tokens":[1.5]})", "tokens"},
      {"/detokenize", R"({"tokens":[18446744073709551615]})", "tokens"},
      {"/detokenize", R"({"tokens":[1],"model":7})", "model"},
  };
  for (const Bad& bad : cases) {
    const HttpReply reply = Post(port(), bad.path, bad.body);
    EXPECT_EQ(reply.status, bad.status) << bad.body << reply.body;
    EXPECT_EQ(Json(reply)["error"]["param"], bad.param) << bad.body << reply.body;
  }
  EXPECT_EQ(Tokenize("nonsense").status, 400);
  EXPECT_EQ(Get(port(), "/tokenize").status, 405);
  EXPECT_EQ(Post(port(), "/tokenizer_info", "{}").status, 405);
}

TEST_F(TokenizerRoutes, InfoHasPlainStrings) {
  tokenizer_config_json_ = R"({
    "tokenizer_class": "FakeTokenizer",
    "eos_token": {"__type": "AddedToken", "content": "<eos>", "lstrip": false},
    "pad_token": {"content": "<pad>"}, "unk_token": null, "bos_token": "<s>", "model_max_length": 8192,
    "added_tokens_decoder": {"0": {"content": "<pad>"}},
    "chat_template": [{"name": "default", "template": "old"}]})";
  StartServer();
  EXPECT_EQ(Json(Get(port(), "/tokenizer_info")), json({{"tokenizer_class", "FakeTokenizer"},
                                                        {"eos_token", "<eos>"},
                                                        {"bos_token", "<bos>"},
                                                        {"pad_token", "<pad>"},
                                                        {"unk_token", nullptr},
                                                        {"model_max_length", 8192},
                                                        {"chat_template", std::string(kTemplate)}}));
}

TEST_F(TokenizerRoutes, InfoNeedsNoConfig) {
  EXPECT_EQ(
      json::parse(TokenizerInfoJson(FakeTokenizer(), "", "")),
      json({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<eos>"}, {"bos_token", "<bos>"}}));
}

TEST_F(TokenizerRoutes, KeysGuardThem) {
  options_.api_keys = {"secret"};
  StartServer();
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(Tokenize(R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(Detokenize(R"({"tokens":[1]})").status, 401);
  EXPECT_EQ(Get(port(), "/tokenizer_info").status, 401);
  EXPECT_EQ(Post(port(), "/tokenize", R"({"prompt":"a"})", key).status, 200);
  EXPECT_EQ(Post(port(), "/detokenize", R"({"tokens":[1]})", key).status, 200);
  EXPECT_EQ(Get(port(), "/tokenizer_info", key).status, 200);
}

}  // namespace
}  // namespace attest::testing
