// The page at /: one document, embedded at build time from src/server/page by cmake/AttestPage.cmake, that
// talks to no one but this server. Pure; any thread.
#pragma once

#include <string_view>

#include "server/http_message.h"

namespace attest {

extern const std::string_view kPageHtml;  // complete, scripts and styles inside
extern const std::string_view
    kPagePolicy;                         // Content-Security-Policy: its scripts and styles by hash, no others
extern const std::string_view kPageTag;  // ETag, quotes included

// 200 with the page, or 304 where the client's If-None-Match ("": none) names it.
[[nodiscard]] HttpResponse PageResponse(std::string_view if_none_match);

}  // namespace attest
