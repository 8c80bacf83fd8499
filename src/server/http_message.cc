#include "server/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace attest {
namespace {

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";  // the phrase has no meaning to clients
  }
}

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &std::pair<std::string, std::string>::first);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

void AppendResponseHead(std::string& out, const HttpResponse& response, const ResponseFraming& framing) {
  const auto append = [&out](std::string_view name, std::string_view value) {
    fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
  };
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status,
                 ReasonPhrase(response.status));
  if (!response.content_type.empty()) append("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) append(name, value);
  if (response.status == 304) {
    // No body follows, and a length would be taken for the page's.
  } else if (framing.content_length) {
    append("Content-Length", fmt::to_string(*framing.content_length));
  } else if (framing.chunked) {
    append("Transfer-Encoding", "chunked");
  }
  append("X-Request-Id", framing.request_id);
  out += framing.more;
  append("Connection", framing.keep_alive ? "keep-alive" : "close");
  out += "\r\n";
}

void AppendChunk(std::string& out, std::string_view data) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

void SplitTarget(std::string_view target, HttpRequest& request) {
  if (const size_t scheme = target.find("://");
      !target.starts_with('/') && scheme != std::string_view::npos) {
    target.remove_prefix(std::min(target.find('/', scheme + 3), target.size()));
    if (target.empty()) target = "/";
  }
  const size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  request.query = mark == std::string_view::npos ? std::string() : std::string(target.substr(mark + 1));
}

std::string_view FindFault(const HttpRequest& request, bool is_http_1_0) {
  size_t num_hosts = 0;
  for (const auto& [name, value] : request.headers) {
    if (name == "host" && ++num_hosts > 1) return "more than one Host";
    if (name != "transfer-encoding") continue;
    if (is_http_1_0) return "HTTP/1.0 knows no Transfer-Encoding";
    if (ToLowerAscii(value) != "chunked") return "a Transfer-Encoding other than chunked";
  }
  return {};
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string ToLowerAscii(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return out;
}

bool IsSaneRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) {
    return IsAlphanumeric(c) || c == '-' || c == '_' || c == '.' || c == ':';
  });
}

}  // namespace attest
