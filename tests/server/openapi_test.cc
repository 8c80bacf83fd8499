// The API's description agrees with the server: every route, every field that a parser reads, its limits.
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <regex>

#include "server/frontend.h"
#include "server/openapi_schemas.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class OpenApi : public ServerFixture {
 protected:
  json Describe() { return Json(Get(port(), "/openapi.json")); }
  json Properties(const char* schema) { return Describe()["components"]["schemas"][schema]["properties"]; }
};

TEST_F(OpenApi, HoldsEveryRouteWithWords) {
  options_.dev_endpoints = true;
  StartServer();
  const json paths = Describe()["paths"];
  size_t operations = 0;
  for (const RouteEntry& route : Frontend::RouteEntries(/*with_dev=*/true)) {
    std::string method(route.method);
    std::ranges::transform(method, method.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    const std::string path(route.path);
    ASSERT_TRUE(paths.contains(path) && paths[path].contains(method)) << route.method << " " << path;
    EXPECT_NE(paths[path][method]["summary"], "") << "nobody described " << route.method << " " << path;
    EXPECT_TRUE(paths[path][method]["responses"].contains("200")) << path;
    ++operations;
  }
  size_t described = 0;
  for (const json& path : paths) described += path.size();
  EXPECT_EQ(described, operations);
}

TEST_F(OpenApi, LeavesDevRoutesOutWhereThereAreNone) {
  StartServer();
  EXPECT_FALSE(Describe()["paths"].contains("/reset_prefix_cache"));
}

TEST_F(OpenApi, EveryFieldThatAParserReadsIsAPropertyWithWords) {
  StartServer();
  const CallLimits limits{.tokenizer = *tokenizer_,
                          .chat_template = chat_template_.get(),
                          .model_names = {"test-model"},
                          .default_sampling = {},
                          .max_model_len = 256,
                          .vocab_size = 300,
                          .max_choices = 64};
  for (const char* schema : {"CompletionRequest", "ChatCompletionRequest", "TokenizeTextRequest",
                             "TokenizeChatRequest", "DetokenizeRequest"}) {
    const json properties = Properties(schema);
    const FieldReads reads = ReadsOf(schema, limits);
    EXPECT_GE(reads.size(), 2u) << schema;
    for (const FieldRead& read : reads) {
      json at = properties;
      for (std::string name = read.name; !name.empty();) {
        const size_t dot = name.find('.');
        ASSERT_TRUE(at.contains(name.substr(0, dot))) << schema << " lacks " << read.name;
        at = at[name.substr(0, dot)];
        name = dot == std::string::npos ? "" : name.substr(dot + 1);
        if (!name.empty()) at = at["properties"];
      }
      EXPECT_TRUE(at.contains("type") || at.contains("enum") || at.contains("anyOf"))
          << schema << "." << read.name << " has no shape: " << at;
      EXPECT_TRUE(read.kind == FieldRead::Kind::kFixed || !MeaningOf(read.name).empty())
          << "nobody described " << schema << "." << read.name;
    }
  }
}

// The fields that clients are known to send: a parser that stops early would leave some out of the
// description.
TEST_F(OpenApi, KnowsTheFieldsOfClients) {
  StartServer();
  for (const char* field : {"model",
                            "max_tokens",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "typical_p",
                            "seed",
                            "ignore_eos",
                            "stop",
                            "logit_bias",
                            "bad_words",
                            "stop_token_ids",
                            "n",
                            "best_of",
                            "logprobs",
                            "priority",
                            "stream",
                            "stream_options",
                            "cache_salt",
                            "prompt_logprobs",
                            "guided_json",
                            "tools",
                            "response_format",
                            "min_tokens",
                            "suffix",
                            "presence_penalty",
                            "prediction",
                            "allowed_token_ids",
                            "max_completion_tokens",
                            "frequency_penalty",
                            "repetition_penalty",
                            "skip_special_tokens",
                            "return_tokens_as_token_ids",
                            "include_stop_str_in_output"}) {
    EXPECT_TRUE(Properties("CompletionRequest").contains(field)) << field;
    EXPECT_TRUE(Properties("ChatCompletionRequest").contains(field)) << field;
  }
  EXPECT_TRUE(Properties("CompletionRequest").contains("echo"));
  for (const char* field : {"top_logprobs", "chat_template_kwargs", "add_generation_prompt", "messages"}) {
    EXPECT_TRUE(Properties("ChatCompletionRequest").contains(field)) << field;
  }
}

TEST_F(OpenApi, TheLimitsAreThoseOfTheParsers) {
  StartServer();
  const json fields = Properties("CompletionRequest");
  int checked = 0;
  for (const auto& [name, field] : fields.items()) {
    if (!field.contains("maximum")) continue;
    // min_tokens above the default of max_tokens would be refused for another reason.
    const std::string max_tokens = name == "min_tokens" ? R"("max_tokens":256,)" : "";
    const auto body = [&](const json& value) {
      return R"({"prompt":"a",)" + max_tokens + "\"" + name + "\":" + value.dump() + "}";
    };
    const json& maximum = field["maximum"];
    EXPECT_EQ(Complete(body(maximum)).status, 200) << body(maximum);
    const json over =
        maximum.is_number_float() ? json(maximum.get<double>() + 1) : json(maximum.get<uint64_t>() + 1);
    const HttpReply refused = Complete(body(over));
    EXPECT_EQ(refused.status, 400) << body(over);
    EXPECT_EQ(Json(refused)["error"]["param"], name);
    ++checked;
  }
  EXPECT_GE(checked, 12);
  EXPECT_EQ(fields["max_tokens"]["maximum"], 256);
  EXPECT_EQ(fields["stop_token_ids"]["items"]["maximum"], 299);
  EXPECT_EQ(fields["model"]["enum"], json({"test-model", "org/alias", "", nullptr}));
}

TEST_F(OpenApi, EveryReferenceLeadsSomewhere) {
  StartServer();
  const std::string text = Get(port(), "/openapi.json").body;
  const json document = json::parse(text);
  const std::regex reference(R"re("\$ref":"#([^"]+)")re");
  size_t count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), reference), end; it != end; ++it, ++count) {
    EXPECT_TRUE(document.contains(json::json_pointer((*it)[1].str()))) << (*it)[1];
  }
  EXPECT_GE(count, 30u);
}

TEST_F(OpenApi, TellsOfKeysOnlyWhereThereAreKeys) {
  StartServer();
  EXPECT_FALSE(Describe()["components"].contains("securitySchemes"));
  server_.reset();
  options_.api_keys = {"secret"};
  StartServer();
  const json document = Describe();
  EXPECT_TRUE(document["components"]["securitySchemes"].contains("bearer"));
  EXPECT_TRUE(document["paths"]["/v1/completions"]["post"]["responses"].contains("401"));
  EXPECT_FALSE(document["paths"]["/health"]["get"].contains("security"));
  EXPECT_EQ(document.dump().find("secret\""), std::string::npos);
}

TEST(IntegerPattern, MatchesTheIntegersUpToItsMaximumAndNoOther) {
  for (const int64_t max : {0, 7, 9, 10, 49, 99, 100, 299, 1000, 1234}) {
    const std::regex pattern(IntegerPattern(max));
    for (int64_t i = 0; i <= 2 * max + 20; ++i) {
      EXPECT_EQ(std::regex_match(std::to_string(i), pattern), i <= max) << i << " of " << max;
    }
    for (const char* other : {"", "-1", "00", "01", "1.0", " 1", "x"}) {
      EXPECT_FALSE(std::regex_match(other, pattern)) << other;
    }
  }
}

}  // namespace
}  // namespace attest::testing
