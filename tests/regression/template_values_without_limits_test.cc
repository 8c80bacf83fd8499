// A chat template, which comes with a model's files, could end the process or take all memory in a few steps:
// values inside values, namespaces that hold themselves, and integers at the end of their range.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace attest {
namespace {

// The text, or "error: " and the message.
std::string Rendered(std::string_view source) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return "no template: " + chat_template.error().message;
  ChatTemplateInputs inputs;
  inputs.extra_json = R"({"least":-9223372036854775808,"most":9223372036854775807})";
  const auto text = chat_template->Render(inputs);
  return text ? *text : "error: " + text.error().message;
}

void ExpectError(std::string_view source, std::string_view words) {
  const std::string text = Rendered(source);
  EXPECT_TRUE(text.starts_with("error: ") && text.find(words) != std::string::npos) << source << "\n" << text;
}

TEST(TemplateValues, NestToADepthThatTheStackHolds) {
  ExpectError(
      "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a "
      "}}",
      "line 1: lists and dicts nest deeper than 200");
  ExpectError(
      "{% set ns = namespace(a={}) %}{% for i in range(100000) %}{% set ns.a = {'a': ns.a} %}{% endfor %}",
      "nest deeper than 200");
  ExpectError(
      "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a.count] %}{% endfor %}",
      "nest deeper than 200");
  EXPECT_EQ(
      Rendered("{% set ns = namespace(a=[]) %}{% for i in range(150) %}{% set ns.a = [ns.a] %}{% endfor %}"
               "{{ (ns.a | tojson)[:3] }}"),
      "[[[");
}

TEST(TemplateValues, ThatShareTheirPartsAreAsLargeAsTheyAreWritten) {
  for (const char* use : {"{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ns.a == ns.b }}", ""}) {
    ExpectError(std::string("{% set ns = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}"
                            "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}") +
                    use,
                "a value of more than 134217728 bytes");
  }
  ExpectError(
      "{% set s = 'x' * 1000000 %}{% set l = [s, s, s, s, s, s, s, s] %}{% set m = [l, l, l, l, l] %}"
      "{{ [m, m, m, m] }}",
      "a value of more than 134217728 bytes");
}

TEST(TemplateValues, MayHoldThemselves) {
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }} {{ ns == ns }} {{ ns.a == ns }} "
                     "{{ ns == namespace() }}"),
            "<Namespace> True True False");
  EXPECT_EQ(Rendered("{% set ns = namespace(a=1) %}{% set ns.l = [ns] %}{{ ns.l }}"), "[<Namespace>]");
}

// Each dropped the next one in a function of its own: 100,000 deep.
TEST(TemplateValues, ThatHoldEachOtherInARowAreFew) {
  ExpectError(
      "{% set ns = namespace(cur=namespace()) %}{% set ns.head = ns.cur %}"
      "{% for i in range(100000) %}{% set old = ns.cur %}{% set new = namespace() %}"
      "{% set old.next = new %}{% set ns.cur = new %}{% endfor %}",
      "namespaces and macros are put into namespaces more than 1000 times");
  ExpectError(
      "{% set ns = namespace(m=none) %}{% for i in range(100000) %}{% set before = ns.m %}"
      "{% macro f() %}{% endmacro %}{% set ns.m = f %}{% endfor %}{% set ns.m = none %}",
      "more than 1000 times");
}

TEST(TemplateExpressions, NestToADepthThatTheStackHolds) {
  const auto row = [](std::string begin, int length) {
    for (int i = 0; i < length; ++i) begin += "+1";
    return begin;
  };
  std::string rows = "1";
  for (int i = 0; i < 5; ++i) rows = "(" + row(rows, 400) + ")";
  EXPECT_EQ(Rendered("{{ " + rows + " }}"), "no template: chat template line 1: nested deeper than 1000");
  EXPECT_EQ(Rendered("{{ " + row("(" + row("1", 400) + ")", 400) + " }}"), "801");
  // A row in a macro that calls itself at the row's beginning.
  ExpectError(
      "{% macro f(n) %}{{ " + row("(f(n - 1) | int if n > 0 else 0)", 400) + " }}{% endmacro %}{{ f(50) }}",
      "expressions and blocks nest deeper than 1000");
}

TEST(TemplateStrings, AreCharacters) {
  EXPECT_EQ(Rendered(R"({{ '\u00e9\U0001F600' }})"), "\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(Rendered(R"({{ '\UFFFFFFFF' }})"),
            "no template: chat template line 1: \\UFFFFFFFF is no character");
  EXPECT_EQ(Rendered(R"({{ '\ud800' }})"), "no template: chat template line 1: \\ud800 is no character");
}

// Each place became the whole text before anybody looked at the size.
TEST(TemplateStrings, AreNotReplacedPastTheirLimit) {
  ExpectError("{% set s = 'x' * 1000000 %}{{ s | replace('', s) }}", "larger than");
  ExpectError("{% set s = 'x' * 1000000 %}{{ s.replace('x', s) }}", "larger than");
  EXPECT_EQ(
      Rendered(
          "{{ 'aXbX' | replace('X', '--') }} {{ 'ab'.replace('', '-', 2) }} {{ 'aaa'.replace('a', '', 2) }}"),
      "a--b-- -a-b a");
}

TEST(TemplateValues, KeepToTheRangeOfIntegers) {
  EXPECT_EQ(Rendered("{{ least is divisibleby(-1) }} {{ most % -1 }} {{ least // 1 }}"),
            "True 0 -9223372036854775808");
  ExpectError("{{ -least }}", "integer overflow");
  ExpectError("{{ least | abs }}", "integer overflow");
  ExpectError("{{ [most, 1] | sum }}", "integer overflow");
  EXPECT_EQ(Rendered("{{ range(most - 2, most, 5) | list }}"), "[9223372036854775805]");
  EXPECT_EQ(Rendered("{{ range(least + 2, least, -5) | list }}"), "[-9223372036854775806]");
  EXPECT_EQ(Rendered("{{ 'abc'[1::most] }}{{ 'abc'[::least] }}"), "bc");
  EXPECT_EQ(
      Rendered(
          "{{ -most }} {{ +true }} {{ -true }} {{ -1.5 }} {{ 3 | abs }} {{ -3 | abs }} {{ [1, 2.5] | sum }}"),
      "-9223372036854775807 1 -1 -1.5 3 3 3.5");
}

TEST(TemplateValues, OfAWrongTypeAreErrors) {
  ExpectError("{{ [1] | sum(start='a') }}", "sum of a 'str'");
  ExpectError("{{ [1, [2]] | tojson(indent=2000000000) }}", "'indent' is 2000000000, the limit is 64");
  EXPECT_EQ(Rendered("{{ [1] | tojson(indent=2) }}"), "[\n  1\n]");
}

}  // namespace
}  // namespace attest
