#include "conform/command_subject.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "conform/case_io.h"
#include "conform/isolate.h"

namespace attest::conform {
namespace {

using Json = nlohmann::json;
constexpr double kStartSeconds = 60;

// What a command wrote under a name, whatever type it chose: another type is as good as nothing.
std::string StringOf(const Json& json, const char* name) {
  const auto at = json.find(name);
  return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}
bool IsTrue(const Json& json, const char* name) {
  const auto at = json.find(name);
  return at != json.end() && *at == Json(true);
}

Json ToJson(const AttentionProblem& problem, const char* phase) {
  const AttentionSpec& spec = problem.spec;
  const auto limit = [](const std::optional<int32_t>& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"phase", phase},
          {"num_seqs", problem.num_seqs},
          {"min_q_len", problem.min_q_len},
          {"max_q_len", problem.max_q_len},
          {"min_kv_len", problem.min_kv_len},
          {"max_kv_len", problem.max_kv_len},
          {"q_heads", spec.q_heads},
          {"kv_heads", spec.kv_heads},
          {"head_dim", spec.head_dim},
          {"v_head_dim", spec.v_head_dim},
          {"q_dtype", DTypeName(spec.q_dtype)},
          {"kv_dtype", DTypeName(spec.kv_dtype)},
          {"out_dtype", DTypeName(spec.out_dtype)},
          {"layout", KvLayoutName(spec.layout)},
          {"block_size", spec.block_size},
          {"scale", spec.scale},
          {"causal", spec.causal},
          {"window_left", limit(spec.window_left)},
          {"window_right", limit(spec.window_right)},
          {"chunk", limit(spec.chunk)},
          {"sink_tokens", spec.sink_tokens},
          {"softcap", spec.softcap},
          {"has_alibi", spec.has_alibi},
          {"has_sinks", spec.has_sinks},
          {"has_k_descale", spec.has_k_descale},
          {"has_v_descale", spec.has_v_descale},
          {"wants_lse", spec.wants_lse}};
}

// A started command; lines in, lines out.
class Process {
 public:
  ~Process() {
    if (to_ != nullptr) std::fclose(to_);
    if (from_ != nullptr) std::fclose(from_);
    if (pid_ > 0) {
      kill(-pid_, SIGTERM);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process() = default;
  Process(const Process&) = delete;

  Status Start(const std::string& command) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return Fail(ErrorCode::kResourceExhausted, "pipe failed");
    pid_ = fork();
    if (pid_ < 0) return Fail(ErrorCode::kResourceExhausted, "fork failed");
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      close(in[1]);
      close(out[0]);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
    signal(SIGPIPE, SIG_IGN);
    return {};
  }
  Expected<Json> ReadLine() {
    std::string line;
    for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
      if (c == EOF) return Fail(ErrorCode::kUnavailable, "the command ended");
      line += static_cast<char>(c);
    }
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object())
      return Fail(ErrorCode::kUnavailable,
                  fmt::format("the command wrote '{}', expected a JSON object", line));
    return json;
  }
  Expected<Json> Ask(const Json& request) {
    const std::string line = request.dump() + "\n";
    if (std::fwrite(line.data(), 1, line.size(), to_) != line.size() || std::fflush(to_) != 0)
      return Fail(ErrorCode::kUnavailable, "the command reads no more");
    return ReadLine();
  }

 private:
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

class ProcessSubject final : public Subject {
 public:
  ProcessSubject(std::unique_ptr<Process> process, std::string name, AttentionArithmetic arithmetic)
      : process_(std::move(process)), name_(std::move(name)), arithmetic_(arithmetic) {
    const auto folder = std::filesystem::temp_directory_path();
    case_ = folder / fmt::format("attest-conform-{}.safetensors", getpid());
    out_ = folder / fmt::format("attest-conform-{}.out", getpid());
  }
  ~ProcessSubject() override {
    std::error_code ignored;
    std::filesystem::remove(case_, ignored);
    std::filesystem::remove(out_, ignored);
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] AttentionArithmetic arithmetic() const override { return arithmetic_; }
  [[nodiscard]] bool is_bit_stable() const override { return false; }
  [[nodiscard]] std::vector<Reason> Refusals(const AttentionProblem& problem) override {
    return Ask(ToJson(problem, AttentionPhaseName(problem.phase)));
  }
  [[nodiscard]] std::vector<Reason> RefusalsOfMixed(const AttentionProblem& problem) override {
    return Ask(ToJson(problem, "mixed"));
  }
  [[nodiscard]] Status Attend(const AttentionSpec& spec, const AttentionLengths& lengths,
                              const AttentionParams& params, int /*num_threads*/) override {
    ATTEST_RETURN_IF_ERROR(WriteCaseFile(case_, CaseFileOf(spec, lengths, params)));
    std::vector<int32_t> seqs;
    for (int32_t seq = 0; seq < lengths.q_begin->num_seqs(); ++seq) seqs.push_back(seq);
    const Json problem = ToJson(ProblemOf(spec, lengths, AttentionPhase::kExtend, seqs), "any");
    ATTEST_ASSIGN_OR_RETURN(
        const Json answer,
        process_->Ask(
            Json({{"op", "run"}, {"problem", problem}, {"case", case_.string()}, {"out", out_.string()}})));
    if (!IsTrue(answer, "ok")) {
      const std::string reason = StringOf(answer, "error");
      return Fail(ErrorCode::kInternal, "run failed on a call that check accepted: " +
                                            (reason.empty() ? "no reason given" : reason));
    }
    const auto tokens = static_cast<size_t>(lengths.q_begin->total()),
               heads = static_cast<size_t>(spec.q_heads), dim = static_cast<size_t>(spec.v_head_dim);
    std::vector<float> values(tokens * heads * (dim + (spec.wants_lse ? 1 : 0)));
    std::ifstream in(out_, std::ios::binary);
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
    if (in.gcount() != static_cast<std::streamsize>(values.size() * 4) || in.peek() != EOF)
      return Fail(ErrorCode::kInternal,
                  fmt::format("the answer does not hold {} float32 values", values.size()));
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t head = 0; head < heads; ++head) {
        std::byte* row = params.OutRow(static_cast<int64_t>(token), static_cast<int64_t>(head));
        for (size_t d = 0; d < dim; ++d)
          EncodeElement(row, spec.out_dtype, static_cast<int64_t>(d),
                        values[(token * heads + head) * dim + d]);
        if (params.lse.data != nullptr)
          *params.lse.At(head, token) = values[tokens * heads * dim + head * tokens + token];
      }
    }
    return {};
  }

 private:
  std::vector<Reason> Ask(const Json& problem) {
    const auto answer = process_->Ask({{"op", "check"}, {"problem", problem}});
    if (!answer) return {};  // the call that follows says that the command is gone
    if (IsTrue(*answer, "ok")) return {};
    const std::string text = StringOf(*answer, "refused");
    const size_t colon = text.find(": ");
    if (colon == std::string::npos) return {{text, "refused", text.empty() ? "" : "what its reason says"}};
    return {{text.substr(0, colon), "refused", text.substr(colon + 2)}};
  }

  std::unique_ptr<Process> process_;
  const std::string name_;
  const AttentionArithmetic arithmetic_;
  std::filesystem::path case_, out_;
};

struct Started {
  std::unique_ptr<Process> process;
  Json introduction;
};
Expected<Started> StartCommand(const std::string& command) {
  Started started{.process = std::make_unique<Process>(), .introduction = {}};
  ATTEST_RETURN_IF_ERROR(started.process->Start(command));
  ATTEST_ASSIGN_OR_RETURN(started.introduction, started.process->ReadLine());
  return started;
}

}  // namespace

Expected<SubjectInfo> CommandSubject(const std::string& command) {
  const auto bad = [&](const std::string& what) {
    return Fail(ErrorCode::kUnavailable, fmt::format("'{}': {}", command, what), "command");
  };
  const auto described = RunOneIsolated(
      [&]() -> std::string {
        const auto started = StartCommand(command);
        return started ? "+" + started->introduction.dump() : "-" + started.error().message;
      },
      kStartSeconds);
  if (!described) return bad(described.error().message);
  if (!described->starts_with('+')) return bad(described->substr(1));
  const Json json = Json::parse(described->substr(1));
  const std::string name = StringOf(json, "name"), arithmetic = StringOf(json, "arithmetic");
  if (name.empty() || (arithmetic != "f32" && arithmetic != "bf16"))
    return bad("its first line lacks a name, or an arithmetic of f32 or bf16");
  const AttentionArithmetic of = arithmetic == "f32" ? AttentionArithmetic::kF32 : AttentionArithmetic::kBf16;
  return SubjectInfo{.name = name,
                     .words = command,
                     .arithmetic = of,
                     .make = [command, name, of]() -> Expected<std::unique_ptr<Subject>> {
                       ATTEST_ASSIGN_OR_RETURN(Started started, StartCommand(command));
                       return std::make_unique<ProcessSubject>(std::move(started.process), name, of);
                     }};
}

}  // namespace attest::conform
