// --config: the file is the command line written down, and the command line wins.
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "cli/command_line.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

class ConfigFile : public ::testing::Test {
 protected:
  std::string Write(std::string_view text) {
    folder_.Write("serve.yaml", text);
    return (folder_.path() / "serve.yaml").string();
  }
  static ServeOptions Accept(const std::vector<std::string>& args) {
    auto parsed = ParseCommandLine(args, &ReadConfigFile);
    if (const auto* exit_now = std::get_if<ExitNow>(&parsed)) {
      ADD_FAILURE() << exit_now->text;
      return {};
    }
    return std::get<ServeOptions>(std::get<Command>(parsed));
  }
  // The refusal of a file with this text; it must name the file and the line.
  std::string Refusal(std::string_view text, int line) {
    const std::string path = Write(text);
    auto parsed = ParseCommandLine({"serve", "--config", path}, &ReadConfigFile);
    const auto* exit_now = std::get_if<ExitNow>(&parsed);
    if (exit_now == nullptr) return "accepted";
    EXPECT_EQ(exit_now->status, 2);
    EXPECT_TRUE(exit_now->text.starts_with(path + ":" + std::to_string(line) + ": ")) << exit_now->text;
    return exit_now->text;
  }
  TempFolder folder_;
};

TEST_F(ConfigFile, SetsEveryKindOfFlag) {
  const std::string path = Write(
      "# a comment\n"
      "model: org/name\n"
      "host: \"::1\"\n"
      "port: 8123\n"
      "served_model_name: [a, b]\n"
      "api-key:\n"
      "  - k1\n"
      "  - k2\n"
      "max-model-len: 512\n"
      "enable-prefix-caching: false\n"
      "disable-log-requests: true\n"
      "tensor-parallel-size: 1\n"
      "seed: -5\n"
      "uvicorn-log-level: warning\n"
      "trust-remote-code: true\n");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"serve", "--config", path}, {"serve", "--config=" + path}}) {
    const ServeOptions options = Accept(args);
    EXPECT_EQ(options.model.model, "org/name");
    EXPECT_EQ(options.host, "::1");
    EXPECT_EQ(options.port, 8123);
    EXPECT_EQ(options.served_model_names, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(options.api_keys, (std::vector<std::string>{"k1", "k2"}));
    EXPECT_EQ(options.model.max_model_len, 512);
    EXPECT_FALSE(options.model.prefix_caching);
    EXPECT_FALSE(options.log_requests);
    EXPECT_EQ(options.seed, -5);
    EXPECT_EQ(options.log_level, "warning");
    EXPECT_TRUE(options.model.trust_remote_code);
  }
}

TEST_F(ConfigFile, TheCommandLineWins) {
  const std::string path =
      Write("model: a\nport: 1\nserved-model-name: [x, y]\nenable-prefix-caching: false\n");
  const ServeOptions options = Accept(
      {"serve", "b", "--config", path, "--port", "2", "--served-model-name", "z", "--enable-prefix-caching"});
  EXPECT_EQ(options.model.model, "b");
  EXPECT_EQ(options.port, 2);
  EXPECT_EQ(options.served_model_names, (std::vector<std::string>{"z"}));
  EXPECT_TRUE(options.model.prefix_caching);
  EXPECT_EQ(Accept({"serve", "-tp", "3", "--config", Write("tensor-parallel-size: 2\n")})
                .model.tensor_parallel_size,
            3);
}

// A flag that takes a list, last in the file, would take a MODEL behind it for one more name or key.
TEST_F(ConfigFile, NoListOfTheFileSwallowsTheModel) {
  for (const char* last : {"api-key: k\n", "served-model-name: [smol, s]\n", "allowed-origins: ['*']\n"}) {
    const std::string path = Write(std::string("port: 1\n") + last);
    EXPECT_EQ(Accept({"serve", "--config", path, "org/name"}).model.model, "org/name") << last;
    EXPECT_EQ(Accept({"serve", "org/name", "--config", path}).model.model, "org/name") << last;
  }
  const ServeOptions options =
      Accept({"serve", "--config", Write("served-model-name: smol\nmodel: org/name\n")});
  EXPECT_EQ(options.model.model, "org/name");
  EXPECT_EQ(options.served_model_names, (std::vector<std::string>{"smol"}));
}

TEST_F(ConfigFile, AnEmptyFileChangesNothing) {
  EXPECT_EQ(Accept({"serve", "--config", Write("")}).port, 8000);
  EXPECT_EQ(Accept({"serve", "--config", Write("# nothing\n")}).port, 8000);
  EXPECT_TRUE(Accept({"serve", "--config", Write("enable-dev-endpoints: false\n")}).model.prefix_caching);
}

TEST_F(ConfigFile, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_NE(Refusal("port: 1\nprot: 2\n", 2).find("unknown key prot; did you mean port?"), std::string::npos);
  EXPECT_NE(Refusal("host: h\n\nport: 70000\n", 3).find("--port"), std::string::npos);
  EXPECT_NE(Refusal("port: [1, 2]\n", 1).find("port"), std::string::npos);
  EXPECT_NE(Refusal("port: {a: 1}\n", 1).find("not a map"), std::string::npos);
  EXPECT_NE(Refusal("port:\n", 1).find("no value"), std::string::npos);
  EXPECT_NE(Refusal("port: 1\nport: 2\n", 2).find("given twice"), std::string::npos);
  for (const auto& [first, second] :
       {std::pair("enable-prefix-caching: true", "no-enable-prefix-caching: true"),
        {"no_enable_prefix_caching: false", "enable-prefix-caching: false"},
        {"log-level: info", "uvicorn-log-level: debug"}}) {
    const std::string text = Refusal(std::string(first) + "\n" + second + "\n", 2);
    EXPECT_NE(text.find("is one flag with"), std::string::npos) << text;
  }
  EXPECT_NE(Refusal("api-key: \"\"\n", 1).find("--api-key has no value"), std::string::npos);
  EXPECT_NE(Refusal("metrics-prefix: a b\n", 1).find("--metrics-prefix"), std::string::npos);
  EXPECT_NE(Refusal("enable-prefix-caching: maybe\n", 1).find("true or false"), std::string::npos);
  EXPECT_NE(Refusal("config: other.yaml\n", 1).find("cannot stand in a file"), std::string::npos);
  EXPECT_NE(Refusal("- port\n", 1).find("flag: value"), std::string::npos);
  EXPECT_NE(Refusal("port: 1\nhost: [a\n", 3).find("YAML"), std::string::npos);
  Refusal("port: " + std::string(100'000, '['), 1);
}

TEST_F(ConfigFile, AFileThatIsNotThereIsNamed) {
  auto parsed = ParseCommandLine({"serve", "--config", "/no/such.yaml"}, &ReadConfigFile);
  ASSERT_TRUE(std::holds_alternative<ExitNow>(parsed));
  EXPECT_NE(std::get<ExitNow>(parsed).text.find("/no/such.yaml"), std::string::npos);
}

}  // namespace
}  // namespace attest
