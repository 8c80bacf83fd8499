// A chat template that cuts, strips or splits a text of 16 MB made a list of its characters: up to 0.8 GB, in
// each thread that reads requests. And one that filters all messages again for each of them took minutes.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/sanitizers.h"
#include "text/chat_template.h"

namespace attest {
namespace {

std::string RenderedWith(std::string_view source, const std::string& content, size_t messages = 1) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return "no template: " + chat_template.error().message;
  ChatTemplateInputs inputs;
  for (size_t i = 0; i < messages; ++i)
    inputs.messages.push_back({.role = "user", .content = content, .json = {}});
  const auto text = chat_template->Render(inputs);
  return text ? *text : "error: " + text.error().message;
}

TEST(TemplateTexts, AreCutAsInPython) {
  const std::string text = "h\xC3\xA9l\xF0\x9F\x99\x82o";  // h, e acute, l, a face, o
  const auto cut = [&](const std::string& slice) {
    return RenderedWith("{{ messages[0].content" + slice + " }}", text);
  };
  EXPECT_EQ(cut("[1:4]"), "\xC3\xA9l\xF0\x9F\x99\x82");
  EXPECT_EQ(cut("[::2]"), "hlo");
  EXPECT_EQ(cut("[1::2]"), "\xC3\xA9\xF0\x9F\x99\x82");
  EXPECT_EQ(cut("[::-1]"), "o\xF0\x9F\x99\x82l\xC3\xA9h");
  EXPECT_EQ(cut("[-2:0:-2]"), "\xF0\x9F\x99\x82\xC3\xA9");
  EXPECT_EQ(cut("[4:4]"), "");
  EXPECT_EQ(cut("[-100:100]"), text);
  EXPECT_EQ(cut("[100::-3]"), "o\xC3\xA9");
  EXPECT_EQ(cut("[-2]"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(cut("[5]"), "");
  EXPECT_EQ(cut(" | first") + cut(" | last") + cut(" | reverse"), "hoo\xF0\x9F\x99\x82l\xC3\xA9h");
  EXPECT_EQ(cut("[0:0] | reverse"), "");
  EXPECT_EQ(cut(" | length"), "5");
  EXPECT_EQ(cut(".strip('oh')"), "\xC3\xA9l\xF0\x9F\x99\x82");
  EXPECT_EQ(RenderedWith("{{ messages[0].content | trim }}|{{ messages[0].content.rstrip() }}",
                         " \xE3\x80\x80 a b \n"),
            "a b| \xE3\x80\x80 a b");
  EXPECT_EQ(
      RenderedWith("{{ messages[0].content.split() }}{{ messages[0].content.split(none, 1) }}", "  a\tb  c "),
      "['a', 'b', 'c']['a', 'b  c']");
}

// Of this process, in KiB: "VmRSS:" now, "VmHWM:" the most since the last ForgetPeak.
size_t StatusKib(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoul(line.substr(field.size()));
  }
  return 0;
}
bool ForgetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  return (file << "5" << std::flush).good();
}

TEST(TemplateTexts, MakeNoListOfTheirCharacters) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator keeps what is freed";
  const std::string text(size_t{16} << 20, 'x');
  for (const char* use : {"[1:]", "[::-1]", "[-1]", " | trim", ".strip()", " | length", ".isdigit()",
                          " | last", " | reverse", ".split()"}) {
    if (!ForgetPeak()) GTEST_SKIP() << "the kernel does not let a process forget its peak";
    const size_t before = StatusKib("VmRSS:");
    EXPECT_EQ(RenderedWith("{{ (messages[0].content" + std::string(use) + ") is defined }}", text), "True")
        << use;
    EXPECT_LT(StatusKib("VmHWM:"), before + 12 * (text.size() >> 10)) << use;
  }
}

TEST(TemplateTexts, BecomeListsOfSoManyPieces) {
  const auto refused = [](std::string_view use, char c) {
    const std::string text((size_t{1} << 20) + 1, c);
    EXPECT_EQ(RenderedWith("{{ messages[0].content" + std::string(use) + " }}", text),
              "error: chat template line 1: a string is made into a list of more than 1048576 pieces")
        << use;
  };
  refused(" | list", 'x');
  refused(" | join('-')", 'x');
  refused(".split('x')", 'x');
  refused(".rsplit('x')", 'x');
  refused(".splitlines()", '\n');
  EXPECT_EQ(RenderedWith("{{ messages[0].content.split('x') | length }}", std::string(1000, 'x')), "1001");
}

TEST(TemplateLists, AreNotGoneThroughAgainForEachMessage) {
  for (const char* source :
       {"{% for m in messages %}{% set u = messages | selectattr('role', 'equalto', 'x') | list %}"
        "{% endfor %}",
        "{% for m in messages %}{% set u = messages[1:] %}{% endfor %}"}) {
    EXPECT_EQ(RenderedWith(source, "a", 3000), "error: chat template line 1: more than 2000000 steps")
        << source;
    EXPECT_EQ(RenderedWith(source, "a", 500), "") << source;
  }
  // These look at one of them.
  EXPECT_EQ(RenderedWith(
                "{% for m in messages %}{% if messages | length == loop.index %}{{ (messages | last).role }}"
                "{{ messages | count }}{% endif %}{% endfor %}",
                "a", 16384),
            "user16384");
}

}  // namespace
}  // namespace attest
