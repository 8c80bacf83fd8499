// A generation that the engine failed was missing in http_responses_total, and counted as one sequence in
// request_success_total however many it had.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

class FailedAnswers : public ServerFixture {
 protected:
  void ExpectMetric(const std::string& line) const {
    const std::string text = Get(port(), "/metrics").body;
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
};

TEST_F(FailedAnswers, AreCountedByTheirStatusAndBySequence) {
  script_ = [](const Request&) { return std::vector<int32_t>{FakeEngine::kFailure}; };
  StartServer();
  const HttpReply reply = Complete(R"({"prompt":["a","b"],"n":2,"max_tokens":8})");
  EXPECT_EQ(reply.status, 500);
  ExpectMetric(R"(attest:http_responses_total{engine="0",model_name="test-model",code="500"} 1)");
  ExpectMetric(
      R"(attest:request_success_total{engine="0",model_name="test-model",finished_reason="error"} 4)");
}

// The status of a stream is 200 from its first byte on.
TEST_F(FailedAnswers, ThatStreamAreCountedBySequenceAlone) {
  script_ = [](const Request&) { return std::vector<int32_t>{'a', FakeEngine::kFailure}; };
  StartServer();
  const HttpReply reply = Complete(R"({"prompt":"a","n":3,"max_tokens":8,"stream":true})");
  EXPECT_EQ(reply.status, 200);
  ExpectMetric(
      R"(attest:request_success_total{engine="0",model_name="test-model",finished_reason="error"} 3)");
}

}  // namespace
}  // namespace attest::testing
