#include "server/server.h"

#include <utility>

#include "server/frontend.h"

namespace attest {
namespace {

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerOptions& options, const ServerContext& context, std::unique_ptr<HttpServer> http)
      : options_(options), context_(context), http_(std::move(http)), frontend_(options_, context_, *http_) {
    http_->Run(frontend_);
  }
  ~ServerImpl() override {
    Stop();
    Join();
  }

  uint16_t port() const override { return http_->port(); }
  void Drain() override { frontend_.Drain(); }
  void Stop() override { http_->Stop(); }
  bool EndAll(const std::string& why) override {
    if (http_->is_io_thread()) return false;
    frontend_.EndAll(why);
    return true;
  }
  void Join() override { http_->Join(); }

 private:
  const ServerOptions options_;
  const ServerContext context_;
  std::unique_ptr<HttpServer> http_;  // outlives the frontend: sinks post to it until the engine drops them
  Frontend frontend_;
};

}  // namespace

Expected<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, const ServerContext& context) {
  if (options.served_model_names.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a server needs at least one model name", "served_model_names");
  }
  if (options.num_workers < 1) {
    return Fail(ErrorCode::kInvalidArgument, "num_workers must be at least 1", "num_workers");
  }
  ATTEST_ASSIGN_OR_RETURN(auto http, HttpServer::Listen(options.http));
  return std::make_unique<ServerImpl>(options, context, std::move(http));
}

}  // namespace attest
