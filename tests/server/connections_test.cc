// The transport: keep-alive, pipelining, limits, slow and vanishing clients.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/support/server_fixture.h"

namespace attest::testing {
namespace {

using std::chrono::milliseconds;

class Connections : public ServerFixture {
 protected:
  // The sum over its labels.
  [[nodiscard]] std::string Metric(const std::string& name) {
    const std::string text = Get(port(), "/metrics").body;
    const std::string begin = "\n" + name + "{";
    long sum = 0;
    for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
      sum += std::stol(text.substr(text.find("} ", at) + 2));
    }
    return std::to_string(sum);
  }
};

TEST_F(Connections, ServeManyRequestsEach) {
  StartServer();
  HttpClient client(port());
  for (int i = 0; i < 50; ++i) {
    client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":1})");
    ASSERT_EQ(client.Read().status, 200) << i;
  }
}

TEST_F(Connections, AnswerPipelinedRequestsInOrder) {
  StartServer();
  HttpClient client(port());
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    const std::string body = R"({"prompt":"hi","max_tokens":)" + std::to_string(1 + i % 3) + "}";
    bytes += "POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: r" + std::to_string(i) +
             "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    bytes += "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  }
  client.Send(bytes);
  for (int i = 0; i < 20; ++i) {
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-request-id"), std::string("r").append(std::to_string(i)));
    EXPECT_EQ(Json(reply)["usage"]["completion_tokens"], 1 + i % 3);
    ASSERT_EQ(client.Read().status, 200);
  }
}

TEST_F(Connections, ReadRequestsThatArriveByteByByte) {
  StartServer();
  HttpClient client(port());
  const std::string body = R"({"prompt":"hi","max_tokens":1})";
  const std::string bytes =
      "\r\nPOST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  for (const char c : bytes) {
    client.Send(std::string_view(&c, 1));
    if (c == '\n' || c == '{') std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(Connections, TakeChunkedBodies) {
  StartServer();
  HttpClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "9\r\n{\"prompt\"\r\n6\r\n:\"hi\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(Connections, TakeBodiesInChunksOfOneByte) {
  StartServer();
  HttpClient client(port());
  const std::string body = R"({"prompt":"hi","max_tokens":1,"user":")" + std::string(200'000, 'u') + "\"}";
  std::string bytes = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char c : body) bytes.append("1\r\n").append(1, c).append("\r\n");
  client.Send(bytes + "0\r\n\r\n" + "GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(Json(client.Read())["version"], "1.2.3");
}

TEST_F(Connections, AnswerExpectContinueBeforeTheBody) {
  StartServer();
  HttpClient client(port());
  const std::string body = R"({"prompt":"hi","max_tokens":1})";
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.Send(body);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(Connections, RefuseATooLargeBodyBeforeItIsSent) {
  options_.http.max_body_bytes = 1000;
  StartServer();
  HttpClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(Connections, RefuseBytesThatAreNoHttp) {
  StartServer();
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02garbage\r\n\r\n"), std::string("GET / HTTP/1.1\r\nbad header\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx")}) {
    HttpClient client(port());
    client.Send(bytes);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 400) << bytes;
    EXPECT_EQ(Json(reply)["error"]["code"], 400);
  }
  HttpClient client(port());
  client.Send("GET / HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(client.Read().status, 431);
}

TEST_F(Connections, CloseForHttp10AndForConnectionClose) {
  StartServer();
  HttpClient old(port());
  old.Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 43\r\n\r\n"
      R"({"prompt":"a","max_tokens":2,"stream":true})");
  const HttpReply stream = old.Read();
  EXPECT_FALSE(stream.headers.contains("transfer-encoding"));
  EXPECT_NE(stream.body.find("data: [DONE]\n\n"), std::string::npos);

  HttpClient last(port());
  last.SendRequest("GET", "/health", {}, "Connection: close\r\n");
  EXPECT_EQ(last.Read().headers.at("connection"), "close");
  EXPECT_TRUE(last.AtEnd());
}

TEST_F(Connections, ThatStallInARequestGet408) {
  options_.http.header_timeout = options_.http.body_timeout = milliseconds(60);
  StartServer();
  HttpClient in_header(port()), in_body(port());
  in_header.Send("GET /health HTT");
  in_body.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(in_header.Read().status, 408);
  EXPECT_EQ(in_body.Read().status, 408);
  EXPECT_EQ(Metric("attest:http_refused_total"), "2");
}

TEST_F(Connections, ThatIdleAreClosed) {
  options_.http.idle_timeout = milliseconds(60);
  StartServer();
  HttpClient silent(port()), kept(port());
  kept.SendRequest("GET", "/health");
  EXPECT_EQ(kept.Read().status, 200);
  EXPECT_TRUE(kept.AtEnd());
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(Connections, OverTheLimitGet503ButProbesAreAnswered) {
  options_.http.max_connections = 2;
  StartServer();
  HttpClient first(port()), second(port());
  for (HttpClient* client : {&first, &second}) {
    client->SendRequest("GET", "/health");
    EXPECT_EQ(client->Read().status, 200);
  }
  HttpClient generation(port()), large(port()), probe(port());
  generation.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":1})");
  const HttpReply refused = generation.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_NE(refused.body.find("all 2 connections are taken"), std::string::npos) << refused.body;
  // Before its body is sent.
  large.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(large.Read().status, 503);
  probe.SendRequest("GET", "/health");
  const HttpReply answer = probe.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(probe.AtEnd());
  first.Close();
  generation.Close();
  large.Close();
  probe.Close();
  const auto count = [&] { return Metric("attest:http_connections"); };  // by a further connection
  for (int i = 0; i < 3000 && count() != "2"; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(Complete(R"({"prompt":"hi","max_tokens":1})").status, 200);
  EXPECT_EQ(Metric("attest:http_refused_total"), "2");
}

TEST_F(Connections, OverTheSpareOnesTooWaitUntilOneLeaves) {
  options_.http.max_connections = 1;
  options_.http.spare_connections = 1;
  StartServer();
  HttpClient first(port()), second(port()), third(port());
  first.SendRequest("GET", "/health");
  EXPECT_EQ(first.Read().status, 200);
  third.SendRequest("GET", "/health");
  second.Close();
  EXPECT_EQ(third.Read().status, 200);
}

TEST_F(Connections, ThatDripABodyGet408ThoughTheyAreNeverSilent) {
  options_.http.body_timeout = milliseconds(150);
  StartServer();
  HttpClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n");
  std::jthread drip([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      client.Send("x");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_EQ(client.ReadHead().status, 408);  // all of the body would take half an hour
}

TEST_F(Connections, ThatSendABodySlowlyButSteadilyAreServed) {
  options_.http.body_timeout = milliseconds(1500);
  StartServer();
  HttpClient client(port());
  const std::string body = R"({"prompt":"hi","max_tokens":1,"user":")" + std::string(1900, 'u') + "\"}";
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n");
  for (size_t at = 0; at < body.size(); at += 100) {  // 100 bytes earn 200 ms
    client.Send(std::string_view(body).substr(at, 100));
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(Connections, MayNotSendMoreBodiesAtOnceThanMemoryIsGivenTo) {
  options_.http.max_held_body_bytes = 1000;
  StartServer();
  HttpClient first(port()), second(port());
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: ";
  const std::string body = R"({"prompt":"hi","max_tokens":1,"user":")" + std::string(800, 'u') + "\"}";
  first.Send(head + std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 600));
  for (int i = 0; i < 3000 && Metric("attest:http_connections") != "3"; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));  // the bytes behind the handshake
  second.Send(head + "5000\r\n\r\n" + std::string(600, '{'));
  const HttpReply refused = second.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  first.Send(body.substr(600));
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(Complete(body).status, 200);  // what was held is given back
}

TEST_F(Connections, PingWhileAStreamIsSilent) {
  options_.http.ping_interval = milliseconds(40);
  StartServer();
  engine_->Pause(true);
  HttpClient client(port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":1,"stream":true})");
  client.ReadHead();
  EXPECT_EQ(client.NextChunk(), ": ping\n\n");
  EXPECT_EQ(client.NextChunk(), ": ping\n\n");
  engine_->Pause(false);
  const auto text = client.NextChunk();
  ASSERT_TRUE(text.has_value());
  EXPECT_TRUE(text->starts_with("data: {"));
}

TEST_F(Connections, ThatVanishFreeTheirSequences) {
  step_time_ = milliseconds(1);
  engine_options_.max_model_len = 100'000;
  StartServer();
  const std::string stream = R"({"prompt":"hi","max_tokens":90000,"n":2,"stream":true})";
  const std::string whole = R"({"prompt":"hi","max_tokens":90000})";
  HttpClient closed(port()), reset(port()), waiting(port());
  for (HttpClient* client : {&closed, &reset}) {
    client->SendRequest("POST", "/v1/completions", stream);
    ASSERT_EQ(client->ReadHead().status, 200);
    ASSERT_TRUE(client->NextChunk().has_value());
  }
  waiting.SendRequest("POST", "/v1/completions", whole);
  for (int i = 0; i < 30000 && engine_->running() != 5; ++i) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_EQ(engine_->running(), 5);
  closed.Close();
  reset.Reset();
  waiting.Close();
  EXPECT_TRUE(engine_->WaitUntilIdle());
  EXPECT_EQ(engine_->finished(FinishReason::kAbort), 5);
  EXPECT_EQ(Metric("attest:http_streams"), "0");
  EXPECT_EQ(Metric("attest:http_connections"), "1");  // the one that asks
}

TEST_F(Connections, ThatVanishDoNotDisturbOthers) {
  engine_options_.max_model_len = 1000;
  script_ = [](const Request& request) { return std::vector<int32_t>{request.prompt[0], request.prompt[1]}; };
  StartServer();
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<HttpClient>(port()));
      clients.back()->SendRequest(
          "POST", "/v1/completions",
          R"({"stream":true,"max_tokens":50,"prompt":[)" + std::to_string('a' + i) + ",48]}");
    }
    for (int i = 0; i < 8; i += 2) {
      clients[i]->ReadHead();
      for (unsigned chunks = random() % 5; chunks > 0; --chunks) (void)clients[i]->NextChunk();
      if (random() % 2 == 0) {
        clients[i]->Close();
      } else {
        clients[i]->Reset();
      }
    }
    for (int i = 1; i < 8; i += 2) {
      std::string expected;
      for (int k = 0; k < 25; ++k) expected += {static_cast<char>('a' + i), '0'};
      EXPECT_EQ(Joined(Events(clients[i]->Read())), expected);
    }
  }
  EXPECT_TRUE(engine_->WaitUntilIdle());
}

TEST_F(Connections, OfSlowReadersAreClosedAndAborted) {
  engine_options_.max_model_len = 1'000'000;
  options_.http.max_unread_bytes = 64 << 10;
  step_time_ = std::chrono::microseconds(1);
  Says({std::string(1000, 'x')}, std::string(1000, 'x'));
  StartServer();
  HttpClient slow(port(), /*receive_buffer_bytes=*/4096);
  slow.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":900000,"stream":true})");
  ASSERT_EQ(slow.ReadHead().status, 200);
  EXPECT_TRUE(engine_->WaitUntilIdle());
  EXPECT_EQ(engine_->finished(FinishReason::kAbort), 1);
  EXPECT_EQ(Metric("attest:http_slow_readers_closed_total"), "1");
}

TEST_F(Connections, ThatTakeNothingAreClosedInTime) {
  options_.http.write_timeout = milliseconds(100);
  engine_options_.max_model_len = 4096;
  Says({std::string(1000, 'x')}, std::string(1000, 'x'));
  StartServer();
  // One answer of 10 MB, more than the socket buffers hold.
  HttpClient deaf(port(), 4096);
  deaf.SendRequest("POST", "/v1/completions", R"({"prompt":"hi","n":10,"max_tokens":1000})");
  for (int i = 0; i < 3000 && Metric("attest:http_slow_readers_closed_total") != "1"; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(Metric("attest:http_slow_readers_closed_total"), "1");
  EXPECT_TRUE(engine_->WaitUntilIdle());
}

// The periodic timer may fire while the connections are being closed; the I/O thread must end all the same.
TEST_F(Connections, AreAllClosedByStopEvenWhenThatOutlastsATimer) {
  options_.http.ping_interval = milliseconds(1);
  StartServer();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 450; ++i) clients.push_back(std::make_unique<HttpClient>(port()));
  clients.back()->SendRequest("GET", "/health");
  ASSERT_EQ(clients.back()->Read().status, 200);  // accepted in order: all are there
  server_->Stop();
  server_->Join();
  for (auto& client : clients) EXPECT_TRUE(client->AtEnd());
}

TEST_F(Connections, FivehundredStreamsAllEnd) {
  step_time_ = milliseconds(1);
  StartServer();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 500; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    ASSERT_TRUE(clients.back()->connected());
    clients.back()->SendRequest("POST", "/v1/completions", R"({"prompt":"hi","max_tokens":8,"stream":true})");
  }
  for (auto& client : clients) ASSERT_EQ(Joined(Events(client->Read())), "abcabcab");
  clients.clear();
  EXPECT_TRUE(engine_->WaitUntilIdle());
}

}  // namespace
}  // namespace attest::testing
