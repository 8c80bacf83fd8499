// Every rendering of a chat template that defines a macro leaked its scope, because the macro held the scope
// in which it was named.
#include <gtest/gtest.h>
#include <malloc.h>

#include "text/chat_template.h"

namespace attest {
namespace {

// The address sanitizer's allocator reports no bytes here, but the leak itself at exit.
TEST(ChatTemplateLeak, RingsOfMacrosAndNamespacesAreFreed) {
  const auto chat_template = ChatTemplate::Parse(
      "{% macro turn(m) %}{{ m.role }}: {{ m.content }}\n{% endmacro %}"
      "{% set ns = namespace(last=none) %}{% set ns.self = ns %}"
      "{% for m in messages %}"
      "{% macro inner() %}{{ caller() }}{{ m.role }}{% endmacro %}"
      "{{ turn(m) }}{% call inner() %}{{ turn(m) }}{% endcall %}"
      "{% set ns.last = inner %}"
      "{% endfor %}");
  ASSERT_TRUE(chat_template) << chat_template.error().message;
  ChatTemplateInputs inputs;
  inputs.messages = {{.role = "user", .content = "Hello", .json = {}},
                     {.role = "assistant", .content = "Hi", .json = {}}};
  const auto render = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const auto text = chat_template->Render(inputs);
      ASSERT_TRUE(text) << text.error().message;
      ASSERT_EQ(*text, "user: Hello\nuser: Hello\nuserassistant: Hi\nassistant: Hi\nassistant");
    }
  };
  render(10);
  const size_t before = mallinfo2().uordblks;
  render(1000);  // leaked 3 MB before
  EXPECT_LT(mallinfo2().uordblks, before + 64 * 1024);
}

}  // namespace
}  // namespace attest
