// The log: one line per event on standard error, with a level. Callers format with fmt. Kernels never log.
#pragma once

#include <string>
#include <string_view>

namespace attest {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Sets the lowest level that is written (default kInfo). Any thread.
void SetLogLevel(LogLevel level);
[[nodiscard]] LogLevel GetLogLevel();

// Writes one line. Any thread; lines never interleave. Bytes that could move a terminal's cursor or forge a
// second line (control characters, bytes that are no UTF-8) are written as \xNN.
void Log(LogLevel level, std::string_view message);
[[nodiscard]] std::string EscapeForLog(std::string_view message);
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(std::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

}  // namespace attest
