#pragma once

#include <string>
#include <string_view>

namespace attest {

// `text` as the content or the quoted attribute value of an HTML or XML element. Quotes become numeric
// references, which both languages know and which Jinja's own escaping writes.
std::string EscapeMarkup(std::string_view text);

}  // namespace attest
