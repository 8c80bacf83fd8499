// The types that clients send for one field: null, numbers written in every way, booleans and strings in
// their place.
#include <gtest/gtest.h>

#include "server/json_fields.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

TEST(WholeNumber, IsANumberWithoutAFractionHoweverItIsWritten) {
  const auto whole = [](const char* text) { return WholeNumber(json::parse(text)); };
  EXPECT_EQ(whole("16"), 16);
  EXPECT_EQ(whole("16.0"), 16);
  EXPECT_EQ(whole("1.6e1"), 16);
  EXPECT_EQ(whole("-0.0"), 0);
  EXPECT_EQ(whole("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(whole("9223372036854775807"), INT64_MAX);
  for (const char* text : {"16.5", "-9223372036854775809", "9223372036854775808", "9223372036854775808.0",
                           "18446744073709551615", "18446744073709551616", "1e300", "-1e300", "true",
                           "\"16\"", "null", "[16]", "{}"}) {
    EXPECT_EQ(whole(text), std::nullopt) << text;
  }
}

class FieldTypes : public ServerFixture {
 protected:
  HttpReply Try(const char* field, const std::string& value) {
    return Complete(std::string(R"({"prompt":"a",")") + field + "\":" + value + "}");
  }
};

TEST_F(FieldTypes, IntegersTakeWholeNumbersAndNothingElse) {
  StartServer();
  for (const char* field : {"max_tokens", "max_completion_tokens", "n", "seed", "top_k", "logprobs",
                            "prompt_logprobs", "min_tokens"}) {
    for (const char* value : {"2", "2.0", "0.2e1", "null"}) {
      EXPECT_EQ(Try(field, value).status, 200) << field << " " << value;
    }
    for (const char* value :
         {"2.5", "true", "\"2\"", "[2]", "{}", "1e99", "-1e99", "18446744073709551616", "[]"}) {
      const HttpReply reply = Try(field, value);
      EXPECT_EQ(reply.status, 400) << field << " " << value;
      EXPECT_EQ(Json(reply)["error"]["param"], field) << value;
    }
  }
}

TEST_F(FieldTypes, NumbersTakeNumbersAndNothingElse) {
  StartServer();
  for (const char* field : {"temperature", "top_p", "typical_p", "min_p", "presence_penalty",
                            "frequency_penalty", "repetition_penalty"}) {
    for (const char* value : {"1", "1.0", "0.5", "5e-1", "null"}) {
      EXPECT_EQ(Try(field, value).status, 200) << field << " " << value;
    }
    for (const char* value : {"true", "\"1\"", "[1]", "{}", "1e99", "-1e99"}) {
      const HttpReply reply = Try(field, value);
      EXPECT_EQ(reply.status, 400) << field << " " << value;
      EXPECT_EQ(Json(reply)["error"]["param"], field) << value;
    }
  }
  EXPECT_EQ(Try("top_p", "1e-60").status, 200) << "too small for a float, and still in (0, 1]";
  EXPECT_EQ(Try("top_p", "0").status, 400);
}

TEST_F(FieldTypes, BooleansTakeBooleansAndNothingElse) {
  StartServer();
  for (const char* field : {"stream", "echo", "ignore_eos", "include_stop_str_in_output",
                            "skip_special_tokens", "return_tokens_as_token_ids", "add_special_tokens"}) {
    for (const char* value : {"true", "false", "null"}) EXPECT_EQ(Try(field, value).status, 200) << field;
    for (const char* value : {"0", "1", "\"true\"", "[]", "{}"}) {
      EXPECT_EQ(Try(field, value).status, 400) << field << " " << value;
    }
  }
}

TEST_F(FieldTypes, TokenIdsMayBeWrittenAsFloats) {
  StartServer();
  EXPECT_EQ(Complete(R"({"prompt":[104.0,105],"stop_token_ids":[1e1]})").status, 200);
  EXPECT_EQ(Complete(R"({"prompt":[104.5]})").status, 400);
}

TEST_F(FieldTypes, MinTokensRaisesTheDefaultOfMaxTokensAndNothingElse) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a'}; };
  StartServer();
  const auto tokens = [&](const char* fields) {
    return Json(Complete(std::string(R"({"prompt":"a",)") + fields + "}"))["usage"]["completion_tokens"];
  };
  EXPECT_EQ(tokens(R"("min_tokens":20)"), 20);
  EXPECT_EQ(tokens(R"("min_tokens":3)"), 16);
  EXPECT_EQ(Try("max_tokens", R"(5,"min_tokens":6)").status, 400);
}

TEST_F(FieldTypes, WhatAsksForSomethingThatIsNotBuiltIsRefused) {
  StartServer();
  for (const auto& [field, value] :
       {std::pair("prediction", R"({"type":"content","content":"x"})"),
        std::pair("reasoning_effort", R"("high")"), std::pair("web_search_options", "{}"),
        std::pair("length_penalty", "2"), std::pair("early_stopping", "true"),
        std::pair("guided_choice", R"(["a"])"), std::pair("guided_new_thing", "1"),
        std::pair("kv_transfer_params", R"({"a":1})"), std::pair("vllm_xargs", R"({"a":1})"),
        std::pair("mm_processor_kwargs", R"({"a":1})"),
        std::pair("spaces_between_special_tokens", "false")}) {
    const HttpReply reply = Try(field, value);
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(Json(reply)["error"]["param"], field);
    EXPECT_NE(reply.body.find("not supported yet"), std::string::npos) << reply.body;
    EXPECT_EQ(Try(field, "null").status, 200) << field;
  }
}

}  // namespace
}  // namespace attest::testing
