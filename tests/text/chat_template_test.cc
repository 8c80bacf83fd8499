#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace attest {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string ErrorOf(std::string_view source) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed) return parsed.error().message;
  ChatTemplateInputs inputs;
  inputs.messages.push_back({.role = "user", .content = "hi", .json = {}});
  const auto rendered = parsed->Render(inputs);
  return rendered ? "rendered: " + *rendered : rendered.error().message;
}

// Twelve templates in the manner of public model families, twelve conversations each; the expected texts are
// jinja2's (tools/record_chat_templates.py).
TEST(ChatTemplate, RendersWhatJinja2Renders) {
  const std::filesystem::path data = std::filesystem::path(ATTEST_SOURCE_DIR) / "tests/data/text";
  const Json recorded = Json::parse(ReadText(data / "chat_templates.json"));
  setenv("TZ", "UTC", 1);
  int compared = 0;
  for (const auto& [name, cases] : recorded["results"].items()) {
    const auto parsed = ChatTemplate::Parse(ReadText(data / "chat_templates" / (name + ".jinja")));
    ASSERT_TRUE(parsed) << name << ": " << parsed.error().message;
    for (const auto& [input_name, expected] : cases.items()) {
      const Json& input = recorded["inputs"][input_name];
      ChatTemplateInputs inputs;
      for (const Json& message : input["messages"])
        inputs.messages.push_back({.role = {}, .content = {}, .json = message.dump()});
      inputs.add_generation_prompt = input.value("add_generation_prompt", true);
      inputs.bos_token = "<s>";
      inputs.eos_token = "</s>";
      if (input.contains("tools")) inputs.tools_json = input["tools"].dump();
      if (input.contains("extra")) inputs.extra_json = input["extra"].dump();
      inputs.unix_time = recorded["unix_time"].get<int64_t>();
      const auto rendered = parsed->Render(inputs);
      const std::string where = name + " on " + input_name;
      if (expected.contains("text")) {
        ASSERT_TRUE(rendered) << where << ": " << rendered.error().message;
        EXPECT_EQ(*rendered, expected["text"].get<std::string>()) << where;
      } else {
        ASSERT_FALSE(rendered) << where << " rendered, jinja2 raises: " << *rendered;
        if (expected.contains("raised")) {
          EXPECT_NE(rendered.error().message.find(expected["raised"].get<std::string>()), std::string::npos)
              << rendered.error().message;
        }
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 12 * 12);
}

TEST(ChatTemplate, RoleAndContentAreEnoughForPlainMessages) {
  const auto parsed = ChatTemplate::Parse("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
  ASSERT_TRUE(parsed);
  ChatTemplateInputs inputs;
  inputs.messages = {{.role = "system", .content = "a", .json = {}},
                     {.role = "user", .content = "b\"\\", .json = {}}};
  EXPECT_EQ(*parsed->Render(inputs), "[system]a[user]b\"\\");
}

// What cannot run is refused at load, with its name and its line.
TEST(ChatTemplate, RefusesUnsupportedConstructsAtLoad) {
  struct Case {
    const char* source;
    const char* name;
  };
  for (const Case& c : {Case{"a\n{% include 'x' %}", "line 2: the tag 'include'"},
                        Case{"\n\n{% extends 'x' %}", "line 3: the tag 'extends'"},
                        Case{"{{ x | frobnicate }}", "line 1: the filter 'frobnicate'"},
                        Case{"{% if x is shiny %}{% endif %}", "the test 'shiny'"},
                        Case{"{{ x.append(1) }}", "the method .append()"},
                        Case{"{% for a in b recursive %}{% endfor %}", "a recursive for loop"},
                        Case{"{{ f(*args) }}", "unpacking arguments"}}) {
    const auto parsed = ChatTemplate::Parse(c.source);
    ASSERT_FALSE(parsed) << c.source;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(parsed.error().message.find(c.name), std::string::npos) << parsed.error().message;
  }
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  for (const char* source : {"\n{% if x %}", "\n{{ x", "\n{% endfor %}", "\n{{ 1 + }}", "\n{% set = 1 %}",
                             "\n{{ 'open }}", "\n{# open", "\n{% for x %}{% endfor %}", "\n{% break %}",
                             "\n{{ x[1:2:3:4] }}", "\n{% raw %}", "\n{{ ~ }}", "\n{%", "\n{{ a..b }}"}) {
    const auto parsed = ChatTemplate::Parse(source);
    ASSERT_FALSE(parsed) << source;
    EXPECT_NE(parsed.error().message.find("line 2"), std::string::npos)
        << source << ": " << parsed.error().message;
  }
}

TEST(ChatTemplate, NamesWhatIsUndefinedAndItsLine) {
  EXPECT_NE(ErrorOf("\n{{ nothing.at_all }}").find("line 2: 'nothing' is undefined"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ nothing + 'x' }}").find("'nothing' is undefined"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ nothing() }}").find("'nothing' is undefined"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ 1 + 'x' }}").find("'int' + 'str'"), std::string::npos);
  EXPECT_EQ(ErrorOf("{{ nothing }}{% for x in nothing %}{% endfor %}"), "rendered: ");
}

// Templates come from model files: none may hang the server or take its memory.
TEST(ChatTemplate, StopsAtItsLimits) {
  EXPECT_NE(ErrorOf("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}")
                .find("steps"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ 'x' * 1000000000000 }}").find("larger than"), std::string::npos);
  EXPECT_NE(
      ErrorOf(
          "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}")
          .find("larger than"),
      std::string::npos);
  EXPECT_NE(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nest deeper"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ range(1000000) }}").find("longer than"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}")
                .find("nested deeper"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100000, '-') + "1 }}").find("nested deeper"), std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += "+1";
  EXPECT_NE(ErrorOf(chain + " }}").find("more than 500 operators"), std::string::npos);
  std::string ifs;
  for (int i = 0; i < 100000; ++i) ifs += "{% if true %}";
  EXPECT_NE(ErrorOf(ifs).find("nested deeper"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ 9223372036854775807 + 1 }}").find("integer"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ 1 // 0 }}").find("division by zero"), std::string::npos);
}

TEST(ChatTemplate, BadJsonInputsAreErrorsThatNameTheField) {
  const auto parsed = ChatTemplate::Parse("{{ messages | length }}");
  ASSERT_TRUE(parsed);
  ChatTemplateInputs inputs;
  inputs.tools_json = "[1,";
  EXPECT_EQ(parsed->Render(inputs).error().field, "tools");
  inputs.tools_json.clear();
  inputs.extra_json = "[]";
  EXPECT_EQ(parsed->Render(inputs).error().field, "chat_template_kwargs");
}

}  // namespace
}  // namespace attest
