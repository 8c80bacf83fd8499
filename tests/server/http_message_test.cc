#include "server/http_message.h"

#include <gtest/gtest.h>

namespace attest {
namespace {

TEST(HttpMessage, SplitsThePathFromTheQueryBeforeDecoding) {
  HttpRequest request;
  SplitTarget("/v1/models/Qwen%2FQwen3?x=1?y", request);
  EXPECT_EQ(request.path, "/v1/models/Qwen%2FQwen3");
  EXPECT_EQ(request.query, "x=1?y");
  EXPECT_EQ(PercentDecode("Qwen%2FQwen3"), "Qwen/Qwen3");
}

TEST(HttpMessage, TakesThePathOfAnAbsoluteTarget) {
  HttpRequest request;
  SplitTarget("http://host:80/health", request);
  EXPECT_EQ(request.path, "/health");
  SplitTarget("http://host", request);
  EXPECT_EQ(request.path, "/");
  SplitTarget("/a?next=http://b", request);
  EXPECT_EQ(request.path, "/a");
}

TEST(HttpMessage, KeepsAPercentSignThatEncodesNothing) {
  EXPECT_EQ(PercentDecode("%"), "%");
  EXPECT_EQ(PercentDecode("%4"), "%4");
  EXPECT_EQ(PercentDecode("%zz%41"), "%zzA");
}

TEST(HttpMessage, RefusesRequestIdsThatCouldBreakAHeaderOrALogLine) {
  EXPECT_TRUE(IsSaneRequestId("req-1_A.b:9"));
  EXPECT_FALSE(IsSaneRequestId(""));
  EXPECT_FALSE(IsSaneRequestId("a b"));
  EXPECT_FALSE(IsSaneRequestId("a\r\nSet-Cookie: x"));
  EXPECT_FALSE(IsSaneRequestId(std::string(129, 'a')));
}

}  // namespace
}  // namespace attest
