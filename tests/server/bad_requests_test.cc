// What clients send wrong: each gets the error object that names the field, and the next request is served.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

struct BadRequest {
  const char* body;
  const char* param;  // "": null
  int status = 400;
};

class BadRequests : public ServerFixture {
 protected:
  void Check(std::string_view path, std::string_view body, std::string_view param, int status = 400) {
    const HttpReply reply = Post(port(), path, body);
    const std::string shown(body.substr(0, 120));
    EXPECT_EQ(reply.status, status) << shown << "\n" << reply.body;
    EXPECT_TRUE(reply.headers.contains("x-request-id"));
    const json answer = Json(reply);
    ASSERT_TRUE(answer.contains("error")) << shown << "\n" << reply.body;
    const json& error = answer["error"];
    EXPECT_EQ(error.size(), 4u) << error;
    EXPECT_TRUE(error["message"].is_string());
    EXPECT_FALSE(error["message"].get<std::string>().empty());
    EXPECT_EQ(error["type"], status == 404   ? "NotFoundError"
                             : status == 413 ? "RequestTooLargeError"
                                             : "BadRequestError");
    EXPECT_EQ(error["code"], status);
    EXPECT_EQ(error["param"], param.empty() ? json() : json(param)) << shown << "\n" << error;
  }
  void ExpectAlive() {
    const HttpReply reply = Complete(R"({"prompt":"still there","max_tokens":1})");
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(engine_->running(), 0);
  }
};

TEST_F(BadRequests, CompletionFieldsAreNamed) {
  StartServer();
  const BadRequest cases[] = {
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":{}})", "prompt"},
      {R"({"prompt":null})", "prompt"},
      {R"({})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[[1,2],[3,"x"]]})", "prompt"},
      {R"({"prompt":["a",[1]]})", "prompt"},
      {R"({"prompt":["a",null]})", "prompt"},
      {R"({"prompt":[{"role":"user","content":"x"}]})", "prompt"},
      {R"({"prompt":[0,300]})", "prompt"},
      {R"({"prompt":[0,-1]})", "prompt"},
      {R"({"prompt":[1099511627776]})", "prompt"},
      {R"({"prompt":[18446744073709551615]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":[true]})", "prompt"},
      {R"({"prompt":"","add_special_tokens":false})", "prompt"},
      {R"({"prompt":"a","model":"no such"})", "model", 404},
      {R"({"prompt":"a","model":5})", "model"},
      {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":1e99})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":257})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":99999999999999999999})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":"16"})", "max_tokens"},
      {R"({"prompt":"a","max_tokens":true})", "max_tokens"},
      {R"({"prompt":"a","max_completion_tokens":0})", "max_completion_tokens"},
      {R"({"prompt":"a","min_tokens":-1})", "min_tokens"},
      {R"({"prompt":"a","min_tokens":9,"max_tokens":8})", "min_tokens"},
      {R"({"prompt":"a","temperature":"x"})", "temperature"},
      {R"({"prompt":"a","temperature":-0.1})", "temperature"},
      {R"({"prompt":"a","temperature":1e99})", "temperature"},
      {R"({"prompt":"a","top_p":0})", "top_p"},
      {R"({"prompt":"a","top_p":1.1})", "top_p"},
      {R"({"prompt":"a","min_p":2})", "min_p"},
      {R"({"prompt":"a","top_k":-2})", "top_k"},
      {R"({"prompt":"a","top_k":1.5})", "top_k"},
      {R"({"prompt":"a","seed":"x"})", "seed"},
      {R"({"prompt":"a","seed":9223372036854775808})", "seed"},
      {R"({"prompt":"a","seed":-9223372036854775809})", "seed"},
      {R"({"prompt":"a","n":0})", "n"},
      {R"({"prompt":"a","n":129})", "n"},
      {R"({"prompt":"a","stop":5})", "stop"},
      {R"({"prompt":"a","stop":[5]})", "stop"},
      {R"({"prompt":"a","stop":""})", "stop"},
      {R"({"prompt":"a","stop":{"a":1}})", "stop"},
      {R"({"prompt":"a","stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})",
       "stop"},
      {R"({"prompt":"a","presence_penalty":2.1})", "presence_penalty"},
      {R"({"prompt":"a","presence_penalty":"x"})", "presence_penalty"},
      {R"({"prompt":"a","frequency_penalty":-2.1})", "frequency_penalty"},
      {R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty"},
      {R"({"prompt":"a","repetition_penalty":1e-60})", "repetition_penalty"},
      {R"({"prompt":"a","repetition_penalty":101})", "repetition_penalty"},
      {R"({"prompt":"a","typical_p":0})", "typical_p"},
      {R"({"prompt":"a","typical_p":1.5})", "typical_p"},
      {R"({"prompt":"a","logit_bias":[1]})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"05":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"-1":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"300":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"99999999999":1}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"5":"1"}})", "logit_bias"},
      {R"({"prompt":"a","allowed_token_ids":[]})", "allowed_token_ids"},
      {R"({"prompt":"a","allowed_token_ids":[300]})", "allowed_token_ids"},
      {R"({"prompt":"a","allowed_token_ids":5})", "allowed_token_ids"},
      {R"({"prompt":"a","bad_words":"x"})", "bad_words"},
      {R"({"prompt":"a","bad_words":[5]})", "bad_words"},
      {R"({"prompt":"a","bad_words":[""]})", "bad_words"},
      {R"({"prompt":"a","bad_words":["  "]})", "bad_words"},
      {R"({"prompt":"a","stop_token_ids":5})", "stop_token_ids"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":"a","logprobs":-1})", "logprobs"},
      {R"({"prompt":"a","logprobs":true})", "logprobs"},
      {R"({"prompt":"a","logprobs":"5"})", "logprobs"},
      {R"({"prompt":"a","top_logprobs":5})", "top_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":21})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":-1})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":true})", "prompt_logprobs"},
      {R"({"prompt":"a","prompt_logprobs":0,"stream":true})", "prompt_logprobs"},
      {R"({"prompt":"a","echo":1})", "echo"},
      {R"({"prompt":"a","echo":true,"max_tokens":-1})", "max_tokens"},
      {R"({"prompt":"a","echo":true,"max_tokens":0,"min_tokens":1})", "min_tokens"},
      {R"({"prompt":"a","return_tokens_as_token_ids":1})", "return_tokens_as_token_ids"},
      {R"({"prompt":"a","stop_token_ids":[300]})", "stop_token_ids"},
      {R"({"prompt":"a","ignore_eos":1})", "ignore_eos"},
      {R"({"prompt":"a","stream":"yes"})", "stream"},
      {R"({"prompt":"a","stream":true,"stream_options":5})", "stream_options"},
      {R"({"prompt":"a","priority":"high"})", "priority"},
      {R"({"prompt":"a","priority":3000000000})", "priority"},
      {R"({"prompt":"a","cache_salt":""})", "cache_salt"},
      {R"({"prompt":"a","cache_salt":7})", "cache_salt"},
      {R"({"prompt":"a","stream_options":{"include_usage":true}})", "stream_options"},
      {R"({"prompt":"a","stream":true,"stream_options":{"include_usage":5}})",
       "stream_options.include_usage"},
  };
  for (const BadRequest& c : cases) Check("/v1/completions", c.body, c.param, c.status);
  ExpectAlive();
}

TEST_F(BadRequests, ChatFieldsAreNamed) {
  StartServer();
  const BadRequest cases[] = {
      {R"({})", "messages"},
      {R"({"messages":null})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"hi"})", "messages"},
      {R"({"messages":[{}]})", "messages[0].role"},
      {R"({"messages":[null]})", "messages[0]"},
      {R"({"messages":[{"role":"user","content":"a"},5]})", "messages[1]"},
      {R"({"messages":[{"role":5,"content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":["a"]}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content.text"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"x"}]}]})", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[]})", "chat_template_kwargs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":5})", "logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":5})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":false,"top_logprobs":5})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":21})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"echo":true})", "echo"},
      {R"({"messages":[{"role":"user","content":"a"}],"prompt_logprobs":0,"stream":true})",
       "prompt_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"add_generation_prompt":"x"})",
       "add_generation_prompt"},
  };
  for (const BadRequest& c : cases) Check("/v1/chat/completions", c.body, c.param, c.status);
  ExpectAlive();
}

TEST_F(BadRequests, WhatIsNotBuiltYetIsRefusedByName) {
  StartServer();
  const std::pair<const char*, const char*> cases[] = {
      {"suffix", "\"x\""},
      {"response_format", R"({"type":"json_object"})"},
      {"tools", R"([{"type":"function"}])"},
      {"tool_choice", R"("required")"},
      {"functions", R"([{}])"},
      {"guided_json", "{}"},
      {"guided_regex", R"("a*")"},
      {"structured_outputs", "{}"},
      {"use_beam_search", "true"},
      {"chat_template", R"("{{ 1 }}")"},
      {"continue_final_message", "true"},
  };
  for (const auto& [field, value] : cases) {
    const std::string extra = std::string("\"") + field + "\":" + value + "}";
    for (const auto& [path, body] :
         {std::pair("/v1/completions", R"({"prompt":"a",)" + extra),
          std::pair("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],)" + extra)}) {
      Check(path, body, field);
      EXPECT_NE(Post(port(), path, body).body.find("not supported yet"), std::string::npos) << body;
    }
  }
  ExpectAlive();
}

TEST_F(BadRequests, NeutralValuesAndUnknownKeysAreNoErrors) {
  StartServer();
  const std::string neutral =
      R"("logprobs":null,"echo":false,"best_of":1,"n":1,"presence_penalty":0,"frequency_penalty":0.0,)"
      R"("repetition_penalty":1.0,"logit_bias":{},"suffix":null,"tools":[],"tool_choice":"none",)"
      R"("response_format":{"type":"text"},"guided_json":null,"use_beam_search":false,"stop":null,"seed":null,)"
      R"("max_tokens":null,"temperature":null,"top_k":-1,"stream":null,"stream_options":null,"user":"u",)"
      R"("service_tier":"auto","store":false,"metadata":{"a":"b"},"parallel_tool_calls":true,"x":[{}]})";
  EXPECT_EQ(Complete(R"({"prompt":"a",)" + neutral).status, 200);
  EXPECT_EQ(Chat(R"({"messages":[{"role":"user","content":"a","name":null}],)" + neutral).status, 200);
  EXPECT_EQ(Chat(R"({"messages":[{"role":"user","content":"a"}],"logprobs":false,"top_logprobs":0})").status,
            200);
  EXPECT_EQ(Json(Complete(R"({"prompt":"a","model":""})"))["model"], "test-model");
  for (const char* options : {"{}", R"({"include_usage":false,"continuous_usage_stats":null})"})
    EXPECT_EQ(Complete(std::string(R"({"prompt":"a","stream_options":)") + options + "}").status, 200)
        << options;
}

TEST_F(BadRequests, BytesThatAreNoJsonAreRefused) {
  StartServer();
  const std::string deep_list(100'000, '['), deep_object = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
    return text;
  }();
  const std::string bodies[] = {R"({"prompt":"cut off)",
                                R"({"prompt":"a")",
                                R"({"prompt":"a"}})",
                                "",
                                "null",
                                "[]",
                                "\"text\"",
                                "{\"prompt\":\"\xFF\"}",
                                R"({"prompt":"\ud800"})",
                                R"({"prompt":"a","temperature":NaN})",
                                R"({"prompt":"a","temperature":1e999})",
                                R"({"prompt":"a",})",
                                std::string("{\"prompt\":\"a\0b\"}", 16),
                                deep_list,
                                deep_object,
                                R"({"prompt":)" + deep_list + std::string(100'000, ']') + "}"};
  for (const std::string& body : bodies) Check("/v1/completions", body, "");
  ExpectAlive();
}

TEST_F(BadRequests, BracketsInsideStringsDoNotNest) {
  StartServer();
  EXPECT_EQ(Complete(R"({"prompt":")" + std::string(200, '[') + R"(\"[[","max_tokens":1})").status, 200);
}

TEST_F(BadRequests, APromptLongerThanTheContextIsRefused) {
  StartServer();
  const auto ids = [](size_t n) {
    return json({{"prompt", std::vector<int>(n, 7)}, {"max_tokens", 1}}).dump();
  };
  EXPECT_EQ(Complete(ids(255)).status, 200);
  Check("/v1/completions", ids(256), "prompt");  // no room for one token
  Check("/v1/completions", ids(5000), "prompt");
  Check("/v1/chat/completions",
        json({{"messages", {{{"role", "user"}, {"content", std::string(400, 'x')}}}}}).dump(), "messages");
  ExpectAlive();
}

// Megabytes of blanks took eight seconds of a thread and half a gigabyte to encode, to be refused then.
TEST_F(BadRequests, ATextThatNoContextCouldHoldIsNotEncoded) {
  StartServer();
  // 256 tokens of up to 5 bytes ("<bos>"), four times.
  const std::string text(5121, 'x');
  const std::string told = " is a text of 5121 bytes, the limit of a context of 256 tokens is 5120";
  for (const auto& [path, body, field] :
       {std::tuple("/v1/completions", json({{"prompt", text}}), "prompt"),
        std::tuple("/v1/completions", json({{"prompt", {"a", text}}}), "prompt"),
        std::tuple("/tokenize", json({{"prompt", text}}), "prompt"),
        // The template adds "[user]" and "[assistant]".
        std::tuple("/v1/chat/completions",
                   json({{"messages", {{{"role", "user"}, {"content", text.substr(17)}}}}}), "messages")}) {
    Check(path, body.dump(), field);
    EXPECT_NE(Post(port(), path, body.dump()).body.find(field + told), std::string::npos) << path;
  }
  EXPECT_EQ(Post(port(), "/tokenize", json({{"prompt", text.substr(1)}}).dump()).status, 200);
  ExpectAlive();
}

TEST_F(BadRequests, ABodyOverTheLimitIsA413ThatArrives) {
  options_.http.max_body_bytes = 1 << 20;
  StartServer();
  // The client sends all 20 MB before it reads, as the OpenAI SDK does.
  Check("/v1/completions", R"({"prompt":")" + std::string(20 << 20, 'x') + "\"}", "", 413);
  ExpectAlive();
}

}  // namespace
}  // namespace attest::testing
