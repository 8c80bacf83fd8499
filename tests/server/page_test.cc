// The page at /, its headers, and what GET /engine tells.
#include "server/page.h"

#include <gtest/gtest.h>

#include "server/engine_view.h"
#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;

class Page : public ServerFixture {
 protected:
  Sentinel watcher_{{.rate = 0.25}};
};

TEST_F(Page, IsOneDocumentThatLoadsNothing) {
  StartServer();
  const HttpReply reply = Get(port(), "/");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(reply.body, kPageHtml);
  EXPECT_TRUE(reply.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(reply.body.ends_with("</html>\n"));
  for (const char* loads :
       {" src=", "rel=\"stylesheet\"", "@import", " url(", ":url(", "innerHTML", "<iframe", "eval("}) {
    EXPECT_EQ(reply.body.find(loads), std::string::npos) << loads;
  }
}

TEST_F(Page, ForbidsEverythingButItselfAndItsOwnServer) {
  StartServer();
  const HttpReply reply = Get(port(), "/");
  const std::string policy = reply.headers.at("content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-")) << policy;
  for (const char* part : {"; style-src 'sha256-", "; connect-src 'self';", "; frame-ancestors 'none'"}) {
    EXPECT_NE(policy.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(policy.find('*'), std::string::npos);
  EXPECT_EQ(reply.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(reply.headers.at("referrer-policy"), "no-referrer");
}

TEST_F(Page, HeadHasTheHeadersOfGetAndNoBody) {
  StartServer();
  HttpClient client(port());
  client.SendRequest("HEAD", "/");
  const HttpReply head = client.Read(/*is_head=*/true);
  client.SendRequest("GET", "/");  // nothing of a body precedes the next answer
  HttpReply get = client.Read();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(get.body, kPageHtml);
  HttpReply same = head;
  same.headers.erase("x-request-id");
  get.headers.erase("x-request-id");
  EXPECT_EQ(same.headers, get.headers);
}

TEST_F(Page, IsNotSentAgainToWhoHasIt) {
  StartServer();
  HttpClient client(port());
  client.SendRequest("GET", "/");
  const HttpReply first = client.Read();
  EXPECT_EQ(first.headers.at("cache-control"), "no-cache");
  const std::string tag = first.headers.at("etag");
  ASSERT_EQ(tag.size(), 34u);
  EXPECT_EQ(tag.front(), '"');
  for (const std::string& value : {tag, "W/" + tag, "\"other\", " + tag, std::string("*")}) {
    client.SendRequest("GET", "/", {}, "If-None-Match: " + value + "\r\n");
    const HttpReply reply = client.ReadHead();
    EXPECT_EQ(reply.status, 304) << value;
    EXPECT_EQ(reply.headers.at("etag"), tag);
    EXPECT_FALSE(reply.headers.contains("content-length"));
    EXPECT_FALSE(reply.headers.contains("content-type"));
  }
  client.SendRequest("GET", "/", {},
                     "If-None-Match: \"other\"\r\n");  // on the same connection: no body was sent
  EXPECT_EQ(client.Read().body, kPageHtml);
}

TEST_F(Page, IsOpenWhereKeysAreSetAndHoldsNone) {
  options_.api_keys = {"s3cret-key"};
  StartServer();
  const HttpReply reply = Get(port(), "/");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.find("s3cret-key"), std::string::npos);
  EXPECT_EQ(Get(port(), "/engine").status, 200);  // it tells no more than /metrics
  EXPECT_EQ(Get(port(), "/v1/models").status, 401);
}

TEST_F(Page, TakesNoOtherMethod) {
  StartServer();
  const HttpReply reply = Post(port(), "/", "{}");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(Get(port(), "/index.html").status, 404);
  EXPECT_EQ(Get(port(), "//").status, 404);
}

TEST_F(Page, EngineTellsWhatTheLiveViewShows) {
  sentinel_ = &watcher_;
  default_sampling_.temperature = 0.2f;
  StartServer();
  Complete(R"({"prompt":"hi","max_tokens":4})");
  const HttpReply reply = Get(port(), "/engine");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("cache-control"), "no-store");
  const json body = Json(reply);
  EXPECT_EQ(body["status"], "ok");
  EXPECT_EQ(body["version"], "1.2.3");
  EXPECT_EQ(body["model"], json::parse(R"({"id":"test-model","max_model_len":256,"chat_template":true})"));
  EXPECT_EQ(body["sequences"]["running"], 0);
  EXPECT_EQ(body["sequences"]["max_running"], engine_options_.max_num_seqs);
  EXPECT_EQ(body["kv_cache"], json::parse(R"({"used_blocks":20,"total_blocks":80,"block_size":16})"));
  EXPECT_EQ(body["prefix_cache"], json::parse(R"({"enabled":true,"queried_tokens":33,"hit_tokens":22})"));
  EXPECT_EQ(body["tokens"]["generated"], 4);
  EXPECT_EQ(body["attention"]["at_load"], json::parse(R"([{"phase":"decode","kernel":"cpu_general"}])"));
  EXPECT_EQ(body["attention"]["rows"], json::array());
  EXPECT_EQ(body["sentinel"]["verify_rate"], 0.25);
  EXPECT_EQ(body["default_sampling"]["temperature"].dump(), "0.2");  // as it was given, not as a double

  watcher_.NoteQuarantined("attention_x");
  const json degraded = Json(Get(port(), "/engine"));
  EXPECT_EQ(degraded["status"], "degraded");
  EXPECT_EQ(degraded["sentinel"]["quarantined"], json::array({"attention_x"}));
  engine_->SetHealthy(false);
  const HttpReply failing = Get(port(), "/engine");
  EXPECT_EQ(failing.status, 200);  // the page shows it; /health is for probes
  EXPECT_EQ(Json(failing)["status"], "failing");
}

TEST_F(Page, EngineCountsRowsByPhaseAndKernel) {
  StartServer(/*with_template=*/false);
  const std::vector<PlannedRoute> routes = {
      {.phase = AttentionPhase::kPrefill, .kernel = "a", .num_tokens = 7},
      {.phase = AttentionPhase::kDecode, .kernel = "b", .num_tokens = 2}};
  StepRecord step;
  step.routes = routes;
  metrics_->OnStep(step);
  metrics_->OnStep(step);
  const json body = Json(Get(port(), "/engine"));
  EXPECT_TRUE(body["sentinel"].is_null());
  EXPECT_EQ(body["model"]["chat_template"], false);
  std::map<std::string, int64_t> rows;
  for (const json& entry : body["attention"]["rows"]) {
    rows[entry["phase"].get<std::string>() + " " + entry["kernel"].get<std::string>()] = entry["rows"];
  }
  EXPECT_EQ(rows, (std::map<std::string, int64_t>{{"decode b", 4}, {"prefill a", 14}}));
}

}  // namespace
}  // namespace attest::testing
