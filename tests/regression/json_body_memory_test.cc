// A body of 16 MiB made of empty objects took 600 MiB once parsed, in each of two threads: the server could
// be killed for memory by two requests.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/json_fields.h"
#include "server/request_limits.h"

namespace attest {
namespace {

std::string BodyOf(std::string_view item, size_t bytes) {
  std::string body = R"({"prompt":"a","x":[)";
  while (body.size() + item.size() + 4 < bytes) body.append(item).append(",");
  return body.append(item).append("]}");
}

TEST(JsonBodyMemory, ABodyThatGrowsManyfoldIsRefusedWithWhatItWouldTake) {
  for (const char* item : {"{}", "[]", "\"\"", R"({"":0})", "0"}) {
    const auto parsed = ParseJsonObject(BodyOf(item, size_t{16} << 20));
    ASSERT_FALSE(parsed) << item;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("the limit is 167772160"), std::string::npos)
        << parsed.error().message;
  }
}

TEST(JsonBodyMemory, TheLargestRequestsOfUseAreRead) {
  std::string ids = R"({"prompt":[)";
  for (size_t i = 0; i + 10 < kMaxListedIds; ++i) ids += "1,";
  EXPECT_TRUE(ParseJsonObject(ids + "1]}"));
  EXPECT_TRUE(ParseJsonObject(R"({"prompt":")" + std::string(size_t{15} << 20, ',') + "\"}"));
  EXPECT_TRUE(ParseJsonObject(BodyOf(R"({"role":"user","content":"hello"})", size_t{8} << 20)));
}

}  // namespace
}  // namespace attest
