#include "server/page.h"

namespace attest {

HttpResponse PageResponse(std::string_view if_none_match) {
  // no-cache: a browser asks each time, so that a new program shows its own page, and gets a 304 of 300
  // bytes.
  HttpResponse response{.status = 200,
                        .content_type = "text/html; charset=utf-8",
                        .body = {},
                        .headers = {{"Cache-Control", "no-cache"},
                                    {"ETag", std::string(kPageTag)},
                                    {"Content-Security-Policy", std::string(kPagePolicy)},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"}}};
  if (if_none_match == "*" || if_none_match.find(kPageTag) != std::string_view::npos) {
    response.status = 304;
    response.content_type.clear();
  } else {
    response.body = kPageHtml;
  }
  return response;
}

}  // namespace attest
