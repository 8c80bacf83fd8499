// What a client can do to a model's chat template with the messages it sends: the work is counted, and ends.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "text/chat_template.h"

namespace attest {
namespace {

ChatTemplateInputs Messages(size_t count, size_t first_bytes, size_t other_bytes) {
  ChatTemplateInputs inputs;
  for (size_t i = 0; i < count; ++i) {
    inputs.messages.push_back({.role = i % 2 == 0 ? "user" : "assistant",
                               .content = std::string(i == 0 ? first_bytes : other_bytes, 'x'),
                               .json = {}});
  }
  return inputs;
}

std::string ErrorOf(const ChatTemplate& parsed, const ChatTemplateInputs& inputs) {
  const auto text = parsed.Render(inputs);
  return text ? "" : text.error().message;
}

TEST(TemplateBounds, ALongFirstMessageLookedAtByEveryOtherOneEnds) {
  // 14 MB and 16,000 messages, as one body may hold: 220 GB of copies.
  const ChatTemplateInputs inputs = Messages(16000, 14 << 20, 1);
  for (const char* source :
       {"{% for m in messages %}{% if messages[0].content.startswith('y') %}!{% endif %}{% endfor %}",
        "{% for m in messages %}{{ 'y' if 'y' in messages[0]['content'] }}{% endfor %}",
        "{% for m in messages %}{% set a = messages[0].content | trim %}{% endfor %}",
        "{% for m in messages %}{% set a = messages[0].content.split('y')[0] %}{% endfor %}"}) {
    const auto parsed = ChatTemplate::Parse(source);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(ErrorOf(*parsed, inputs), "chat template line 1: more than 2000000 steps") << source;
  }
}

TEST(TemplateBounds, LongChatsOfRealUseRender) {
  const auto parsed = ChatTemplate::Parse(
      "{% for m in messages %}{% if loop.first and messages[0].role != 'system' %}<|system|>be brief{% endif "
      "%}"
      "<|{{ m.role }}|>{{ m['content'] | trim }}{% if not loop.last %}\n{% endif %}{% endfor %}");
  ASSERT_TRUE(parsed);
  for (const auto& [count, first, other] : {std::tuple(size_t{1}, size_t{14} << 20, size_t{0}),
                                            std::tuple(size_t{1000}, size_t{10000}, size_t{10000}),
                                            std::tuple(size_t{16000}, size_t{100}, size_t{100})}) {
    EXPECT_EQ(ErrorOf(*parsed, Messages(count, first, other)), "") << count;
  }
}

}  // namespace
}  // namespace attest
