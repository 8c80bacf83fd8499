#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/version.h"

namespace attest {
namespace {

ExitNow Refusal(const std::vector<std::string>& args) {
  auto parsed = ParseCommandLine(args);
  if (auto* exit_now = std::get_if<ExitNow>(&parsed)) return *exit_now;
  return {-1, "accepted"};
}

template <class Options>
Options Accept(const std::vector<std::string>& args) {
  auto parsed = ParseCommandLine(args);
  if (const auto* exit_now = std::get_if<ExitNow>(&parsed)) {
    ADD_FAILURE() << exit_now->text;
    return {};
  }
  return std::get<Options>(std::get<Command>(parsed));
}

TEST(CommandLine, AnUnknownFlagNamesTheNearestKnownOne) {
  const ExitNow exit_now = Refusal({"serve", "--max-model-length", "100"});
  EXPECT_EQ(exit_now.status, 2);
  EXPECT_NE(exit_now.text.find("unknown flag --max-model-length"), std::string::npos) << exit_now.text;
  EXPECT_NE(exit_now.text.find("did you mean --max-model-len?"), std::string::npos) << exit_now.text;
  EXPECT_NE(Refusal({"serve", "--prot=1"}).text.find("did you mean --port?"), std::string::npos);
  EXPECT_EQ(Refusal({"serve", "--zzzzzzzzzzzz"}).text.find("did you mean"), std::string::npos);
}

TEST(CommandLine, AnUnknownCommandNamesTheNearestKnownOne) {
  const ExitNow exit_now = Refusal({"sevre"});
  EXPECT_EQ(exit_now.status, 2);
  EXPECT_NE(exit_now.text.find("did you mean serve?"), std::string::npos) << exit_now.text;
}

TEST(CommandLine, EveryCommandHasHelpAndVersion) {
  for (const char* command :
       {"serve", "generate", "chat", "tokenize", "inspect", "kernels", "replay", "explain"}) {
    EXPECT_EQ(Refusal({command, "--help"}).status, 0) << command;
    EXPECT_NE(Refusal({command, "--help"}).text.find(command), std::string::npos) << command;
    EXPECT_EQ(Refusal({command, "--version"}).text, std::string("attest ") + kVersion + "\n") << command;
  }
  EXPECT_EQ(Refusal({"--version"}).status, 0);
  EXPECT_EQ(Refusal({"--help"}).status, 0);
  EXPECT_NE(Refusal({}).status, 0);
}

TEST(CommandLine, NumbersThatAreNoneAndSignsThatWouldVanishAreRefused) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"serve", "--verify-attention", "nan"},
                                               {"serve", "--kv-cache-gib", "NaN"},
                                               {"serve", "--verify-seed", "-1"},
                                               {"generate", "-p", "x", "--temperature", "nan"},
                                               {"generate", "-p", "x", "--top-p", "-nan"},
                                               {"explain", "--softcap", "nan"},
                                               {"conform", "--minutes", "nan"},
                                               {"conform", "--seed", "-1"}}) {
    const ExitNow exit_now = Refusal(args);
    EXPECT_EQ(exit_now.status, 2) << args[1];
    EXPECT_NE(exit_now.text.find("Value " + args.back()), std::string::npos) << exit_now.text;
  }
  EXPECT_EQ(Accept<ConformOptions>({"conform", "--seed", "18446744073709551615"}).seed, ~uint64_t{0});
}

TEST(CommandLine, TheVersionIsTheBuildsVersion) {
  std::ifstream in(std::string(ATTEST_SOURCE_DIR) + "/CMakeLists.txt");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(text.find(std::string("project(attest VERSION ") + kVersion + " "), std::string::npos);
}

TEST(CommandLine, TensorParallelTakesItsShortName) {
  EXPECT_EQ(Accept<ServeOptions>({"serve", "-tp", "1"}).model.tensor_parallel_size, 1);
  EXPECT_EQ(Accept<ServeOptions>({"serve", "-tp=4", "m"}).model.tensor_parallel_size, 4);
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--tensor-parallel-size", "2"}).model.tensor_parallel_size, 2);
}

TEST(CommandLine, PrefixCachingIsOnUnlessSwitchedOff) {
  EXPECT_TRUE(Accept<ServeOptions>({"serve"}).model.prefix_caching);
  EXPECT_TRUE(Accept<ServeOptions>({"serve", "--enable-prefix-caching"}).model.prefix_caching);
  EXPECT_FALSE(Accept<ServeOptions>({"serve", "--no-enable-prefix-caching"}).model.prefix_caching);
  EXPECT_FALSE(Accept<ServeOptions>({"serve"}).dev_endpoints);
  EXPECT_TRUE(Accept<ServeOptions>({"serve", "--enable-dev-endpoints"}).dev_endpoints);
  const auto options = Accept<ServeOptions>(
      {"serve", "--scheduling-policy", "priority", "--long-prefill-token-threshold", "256"});
  EXPECT_EQ(options.model.scheduling_policy, "priority");
  EXPECT_EQ(options.model.long_prefill_token_threshold, 256);
}

TEST(CommandLine, ValuesOutOfRangeAreRefusedWithTheFlag) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"serve", "--port", "70000"},
                                               {"serve", "--port", "x"},
                                               {"serve", "--block-size", "17"},
                                               {"serve", "--max-num-seqs", "0"},
                                               {"serve", "--kv-cache-dtype", "fp4"},
                                               {"serve", "--scheduling-policy", "lifo"},
                                               {"serve", "--long-prefill-token-threshold", "-1"},
                                               {"serve", "--compute", "f64"},
                                               {"generate", "--temperature", "-1"},
                                               {"generate", "--max-tokens", "99999999999"},
                                               {"explain", "--q-len", "-3"}}) {
    const ExitNow exit_now = Refusal(args);
    EXPECT_GT(exit_now.status, 0) << args[1];
    EXPECT_NE(exit_now.text.find(args[1]), std::string::npos) << exit_now.text;
  }
}

TEST(CommandLine, FlagsReachTheirFields) {
  const auto serve = Accept<ServeOptions>({"serve",
                                           "org/name",
                                           "--host",
                                           "::1",
                                           "--port",
                                           "0",
                                           "--served-model-name",
                                           "a",
                                           "b",
                                           "--api-key",
                                           "k1",
                                           "--api-key",
                                           "k2",
                                           "--max-model-len",
                                           "512",
                                           "--block-size",
                                           "32",
                                           "--compute",
                                           "f32",
                                           "--disable-log-requests"});
  EXPECT_EQ(serve.model.model, "org/name");
  EXPECT_EQ(serve.host, "::1");
  EXPECT_EQ(serve.port, 0);
  EXPECT_EQ(serve.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(serve.api_keys, (std::vector<std::string>{"k1", "k2"}));
  EXPECT_EQ(serve.model.max_model_len, 512);
  EXPECT_EQ(serve.model.block_size, 32);
  EXPECT_EQ(serve.model.compute, "f32");
  EXPECT_FALSE(serve.log_requests);
  EXPECT_TRUE(Accept<ServeOptions>({"serve"}).model.model.empty());
  EXPECT_FALSE(Accept<ExplainOptions>({"explain", "--head-dim", "32"}).model.has_value());
  EXPECT_EQ(Accept<ExplainOptions>({"explain", "m.gguf"}).model->model, "m.gguf");
}

// What users of vLLM type, as they type it.
TEST(CommandLine, TakesVllmsNames) {
  const auto serve = Accept<ServeOptions>({"serve",
                                           "org/name",
                                           "--host",
                                           "0.0.0.0",
                                           "--port",
                                           "8001",
                                           "--api-key",
                                           "k",
                                           "--served-model-name",
                                           "a",
                                           "--max-model-len",
                                           "4096",
                                           "--max-num-seqs",
                                           "8",
                                           "--max-num-batched-tokens",
                                           "512",
                                           "--no-enable-prefix-caching",
                                           "--kv-cache-dtype",
                                           "auto",
                                           "--dtype",
                                           "bfloat16",
                                           "--seed",
                                           "7",
                                           "--attention-backend",
                                           "reference",
                                           "--trust-remote-code",
                                           "--disable-log-requests",
                                           "-tp",
                                           "1",
                                           "--tokenizer",
                                           "other/name",
                                           "--generation-config",
                                           "vllm",
                                           "--uvicorn-log-level",
                                           "warning",
                                           "--allowed-origins",
                                           "[\"*\"]"});
  EXPECT_EQ(serve.model.dtype, "bfloat16");
  EXPECT_EQ(serve.model.max_num_batched_tokens, 512);
  EXPECT_FALSE(serve.model.prefix_caching);
  EXPECT_EQ(serve.seed, 7);
  EXPECT_TRUE(serve.model.trust_remote_code);
  EXPECT_EQ(serve.model.tokenizer, "other/name");
  EXPECT_EQ(serve.model.generation_config, "vllm");
  EXPECT_EQ(serve.log_level, "warning");
  EXPECT_EQ(serve.allowed_origins, (std::vector<std::string>{"*"}));
  EXPECT_EQ(
      Accept<ServeOptions>({"serve", "--allowed-origins", R"(["https://a", "https://b"])"}).allowed_origins,
      (std::vector<std::string>{"https://a", "https://b"}));
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--log-level", "debug"}).log_level, "debug");
  EXPECT_FALSE(Accept<ServeOptions>({"serve"}).model.trust_remote_code);
  EXPECT_NE(Refusal({"serve", "--uvicorn-log-level", "loud"}).text.find("--uvicorn-log-level"),
            std::string::npos);
  EXPECT_NE(Refusal({"serve", "--gpu-memory-utilization", "0.9"})
                .text.find("unknown flag --gpu-memory-utilization"),
            std::string::npos);
}

TEST(CommandLine, TakesUnderscoresInNamesAsVllmDoes) {
  const auto serve = Accept<ServeOptions>({"serve", "--max_model_len=512", "--served_model_name", "a_b",
                                           "--disable_log_requests", "--tensor_parallel_size", "1",
                                           "--no_enable_prefix_caching"});
  EXPECT_EQ(serve.model.max_model_len, 512);
  EXPECT_EQ(serve.served_model_names, (std::vector<std::string>{"a_b"}));
  EXPECT_FALSE(serve.log_requests);
  EXPECT_FALSE(serve.model.prefix_caching);
  EXPECT_EQ(Accept<GenerateOptions>({"generate", "--prompt", "max_tokens", "--max_tokens=5"}).prompt,
            "max_tokens");
  EXPECT_NE(Refusal({"serve", "--max_model_length", "5"}).text.find("did you mean --max-model-len?"),
            std::string::npos);
}

TEST(CommandLine, TakesVllmsValues) {
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--dtype", "half"}).model.dtype, "float16");
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--dtype=float"}).model.dtype, "float32");
  for (const auto& [text, value] :
       {std::pair("auto", 0), {"-1", 0}, {"4k", 4000}, {"4K", 4096}, {"1.5k", 1500}})
    EXPECT_EQ(Accept<ServeOptions>({"serve", "--max-model-len", text}).model.max_model_len, value) << text;
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--max-num-batched-tokens=8k"}).model.max_num_batched_tokens,
            8000);
  for (const char* text : {"k", "4kk", "4q", "1.00001k", "1..5k", "9G", "nan"})
    EXPECT_NE(Refusal({"serve", "--max-model-len", text}).text.find("--max-model-len"), std::string::npos)
        << text;
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--model", "org/name"}).model.model, "org/name");
  EXPECT_FALSE(Accept<ServeOptions>({"serve", "--no-enable-log-requests"}).log_requests);
  EXPECT_TRUE(Accept<ServeOptions>({"serve", "--enable-log-requests"}).log_requests);
}

// A list ends where the next flag begins, and the MODEL that stood behind it was served as a name or taken
// for a key.
TEST(CommandLine, NoFlagSwallowsTheModel) {
  const auto keyed = Accept<ServeOptions>({"serve", "--api-key", "k", "org/name"});
  EXPECT_EQ(keyed.model.model, "org/name");
  EXPECT_EQ(keyed.api_keys, (std::vector<std::string>{"k"}));
  const auto shared = Accept<ServeOptions>({"serve", "--allowed-origins", "https://a", "org/name"});
  EXPECT_EQ(shared.model.model, "org/name");
  EXPECT_EQ(shared.allowed_origins, (std::vector<std::string>{"https://a"}));
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--allowed-origins=https://a", "--allowed-origins", "https://b"})
                .allowed_origins,
            (std::vector<std::string>{"https://a", "https://b"}));
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"serve", "--served-model-name", "a", "org/name"},
        {"serve", "--served-model-name=a", "./m.gguf", "--port", "80"},
        {"serve", "--served-model-name", "a", "b", "m.gguf"}})
    EXPECT_NE(Refusal(args).text.find("name the MODEL first"), std::string::npos) << args[1];
  EXPECT_EQ(
      Accept<ServeOptions>({"serve", "org/name", "--served-model-name", "a", "org/b"}).served_model_names,
      (std::vector<std::string>{"a", "org/b"}));
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--served-model-name", "a", "b"}).served_model_names,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--served-model-name", "org/a"}).served_model_names,
            (std::vector<std::string>{"org/a"}));
}

TEST(CommandLine, AFlagIsNoValueOfTheFlagBefore) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"serve", "--api-key", "--port", "80"},
                                               {"serve", "--api-key=", "--disable-log-requests"},
                                               {"serve", "--host", "--port=80"},
                                               {"serve", "--api-key="},
                                               {"generate", "--prompt", "--chat"}}) {
    const std::string text = Refusal(args).text;
    EXPECT_TRUE(text.starts_with(args[1].substr(0, args[1].find('=')) + " has no value")) << text;
  }
  EXPECT_EQ(Accept<GenerateOptions>({"generate", "--prompt", "--chats are text"}).prompt, "--chats are text");
}

TEST(CommandLine, WhatCouldNeverWorkIsRefusedBeforeTheModelIsLoaded) {
  EXPECT_NE(Refusal({"serve", "--api-key", ""}).text.find("--api-key"), std::string::npos);
  EXPECT_NE(Refusal({"serve", "--api-key", " k"}).text.find("--api-key"), std::string::npos);
  const std::string line = Refusal({"serve", "--api-key", "secret\n"}).text;
  EXPECT_NE(line.find("--api-key"), std::string::npos);
  EXPECT_EQ(line.find("secret"), std::string::npos) << line;
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--api-key", "[a,b]"}).api_keys,
            (std::vector<std::string>{"[a,b]"}));
  EXPECT_NE(Refusal({"serve", "--host", ""}).text.find("--host"), std::string::npos);
  EXPECT_NE(Refusal({"serve", "--served-model-name", ""}).text.find("--served-model-name"),
            std::string::npos);
  for (const char* prefix : {"a b", "1x", "vllm-", "\xc3\xa9"})
    EXPECT_NE(Refusal({"serve", "--metrics-prefix", prefix}).text.find("--metrics-prefix"),
              std::string::npos);
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--metrics-prefix", "vllm:"}).metrics_prefix, "vllm:");
  EXPECT_EQ(Accept<ServeOptions>({"serve", "--metrics-prefix", ""}).metrics_prefix, "");
}

}  // namespace
}  // namespace attest
