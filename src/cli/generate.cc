// attest generate and attest chat.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/console_stream.h"
#include "cli/model_host.h"

namespace attest {
namespace {

int Report(const char* command, const Status& status) {
  if (status) return 0;
  std::fprintf(stderr, "attest %s: %s\n", command, status.error().message.c_str());
  return 1;
}

void ReportSpeed(const StreamResult& result, size_t prompt_tokens) {
  if (isatty(STDERR_FILENO) != 1) return;
  const double rate = result.decode_seconds > 0 ? (result.generated_tokens - 1) / result.decode_seconds : 0;
  std::fputs(
      fmt::format("[{} prompt tokens, first token after {:.3f} s; {} tokens, {:.1f} tokens/s, ended by {}]\n",
                  prompt_tokens, result.seconds_to_first_token, result.generated_tokens, rate,
                  FinishReasonName(result.reason))
          .c_str(),
      stderr);
}

Status Generate(const GenerateOptions& options, const HubEnvironment& environment) {
  std::string prompt = options.prompt;
  if (prompt.empty()) prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::Load(options.model, environment));
  std::vector<int32_t> ids;
  if (options.chat) {
    ATTEST_ASSIGN_OR_RETURN(ids, EncodeChat(host->text(), {{.role = "user", .content = prompt, .json = {}}}));
  } else {
    ids = host->text().tokenizer->Encode(prompt);
  }
  ATTEST_ASSIGN_OR_RETURN(SamplingParams sampling, ToSamplingParams(options.sampling, ids.size(),
                                                                    host->engine_options().max_model_len));
  sampling.ignore_eos = options.ignore_eos;
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, host->StartEngine(nullptr));
  const size_t prompt_tokens = ids.size();
  ATTEST_ASSIGN_OR_RETURN(
      const StreamResult result,
      StreamToConsole(*engine, *host->text().tokenizer, std::move(ids), sampling, host->text().eos_ids));
  std::putchar('\n');
  ReportSpeed(result, prompt_tokens);
  return {};
}

Status Chat(const ChatOptions& options, const HubEnvironment& environment) {
  SetLogLevel(LogLevel::kWarning);
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::Load(options.model, environment));
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, host->StartEngine(nullptr));
  std::vector<ChatMessage> opening;
  if (!options.system.empty()) opening.push_back({.role = "system", .content = options.system, .json = {}});
  std::vector<ChatMessage> messages = opening;
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  if (is_terminal)
    std::printf("%s. /reset forgets the conversation, /exit or Ctrl-D ends.\n", host->name().c_str());
  for (std::string line;;) {
    if (is_terminal) std::fputs("> ", stdout);
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/reset") {
      messages = opening;
      continue;
    }
    if (line.empty()) continue;
    messages.push_back({.role = "user", .content = line, .json = {}});
    // A turn that fails is taken back; the conversation goes on.
    auto answered = [&]() -> Expected<StreamResult> {
      ATTEST_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeChat(host->text(), messages));
      ATTEST_ASSIGN_OR_RETURN(
          const SamplingParams sampling,
          ToSamplingParams(options.sampling, ids.size(), host->engine_options().max_model_len));
      return StreamToConsole(*engine, *host->text().tokenizer, std::move(ids), sampling,
                             host->text().eos_ids);
    }();
    std::putchar('\n');
    if (!answered) {
      std::fprintf(stderr, "%s\n", answered.error().message.c_str());
      messages.pop_back();
      continue;
    }
    messages.push_back({.role = "assistant", .content = answered->text, .json = {}});
  }
  if (is_terminal) std::putchar('\n');
  return {};
}

}  // namespace

int RunGenerate(const GenerateOptions& options, const HubEnvironment& environment) {
  return Report("generate", Generate(options, environment));
}

int RunChat(const ChatOptions& options, const HubEnvironment& environment) {
  return Report("chat", Chat(options, environment));
}

}  // namespace attest
