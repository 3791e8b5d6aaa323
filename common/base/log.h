#pragma once

#include <string_view>

#include "common/base/strings.h"

namespace switchyard {

enum class LogLevel { kInfo, kWarning, kError };

// One line to standard error: time, level letter, message (escaped). Thread-safe: one write a line.
void LogLine(LogLevel level, std::string_view message);

template <typename... Pieces>
void LogInfo(const Pieces&... pieces) {
  LogLine(LogLevel::kInfo, StrCat(pieces...));
}
template <typename... Pieces>
void LogWarning(const Pieces&... pieces) {
  LogLine(LogLevel::kWarning, StrCat(pieces...));
}
template <typename... Pieces>
void LogError(const Pieces&... pieces) {
  LogLine(LogLevel::kError, StrCat(pieces...));
}

}  // namespace switchyard
