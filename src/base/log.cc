#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace attest {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("attest", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

LogLevel GetLogLevel() {
  switch (Logger().level()) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return LogLevel::kDebug;
    case spdlog::level::info:
      return LogLevel::kInfo;
    case spdlog::level::warn:
      return LogLevel::kWarning;
    case spdlog::level::off:
      return LogLevel::kOff;
    default:
      return LogLevel::kError;
  }
}

std::string EscapeForLog(std::string_view message) {
  std::string out;
  out.reserve(message.size());
  const auto byte = [&](size_t i) {
    return i < message.size() ? static_cast<unsigned char>(message[i]) : 0u;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  for (size_t i = 0; i < message.size();) {
    const unsigned first = byte(i);
    // Length of the code point here, 0 where there is none. C2 80 to C2 9F are control characters too.
    size_t length = 0;
    if (first >= 0x20 && first < 0x7F) length = 1;
    if (first >= 0xC2 && first < 0xE0 && continues(i + 1))
      length = first == 0xC2 && byte(i + 1) < 0xA0 ? 0 : 2;
    if (first >= 0xE0 && first < 0xF0 && continues(i + 1) && continues(i + 2)) length = 3;
    if (first >= 0xF0 && first < 0xF5 && continues(i + 1) && continues(i + 2) && continues(i + 3)) length = 4;
    // The second byte also tells a shorter code point written long (E0 82 9B is the 8-bit ESC [ again), a
    // surrogate, and what lies past U+10FFFF.
    const unsigned second = byte(i + 1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0)) length = 0;
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) length = 0;
    if (length == 0) {
      constexpr char kHex[] = "0123456789abcdef";
      out.append("\\x").push_back(kHex[first >> 4]);
      out.push_back(kHex[first & 15]);
      ++i;
      continue;
    }
    out.append(message, i, length);
    i += length;
  }
  return out;
}

void Log(LogLevel level, std::string_view message) {
  if (level < GetLogLevel()) return;
  Logger().log(ToSpdlog(level), EscapeForLog(message));
}

}  // namespace attest
