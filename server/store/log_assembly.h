#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/store/rows.h"

namespace switchyard::store {

struct LogPiece {
  uint64_t offset = 0;
  std::string data;
};

// Pieces of one output stream: they do not overlap, and need not touch.
class LogSource {
 public:
  virtual ~LogSource() = default;
  // The piece that holds `offset`, else the next one behind it.
  virtual Result<std::optional<LogPiece>> FindFrom(uint64_t offset) = 0;
};

struct LogStreamState {
  uint32_t attempt = 0;      // ordinal
  uint64_t end = 0;          // bytes stored up to here
  bool is_complete = false;  // no more will come
};

// Whether no more output of a stream will come. Of an end that waits for its lines the worker sends
// the last line behind the output; of another one the stream is sealed when the worker is through.
bool IsOutputComplete(scheduler::AttemptState state, const scheduler::StreamRow& stream);

// At most `max_bytes` (at least 1) without a gap inside; a gap at `offset` is skipped and counted,
// that at the end of a complete stream too.
Result<LogPage> AssembleLog(LogSource& source, const LogStreamState& state, uint64_t offset,
                            size_t max_bytes);

}  // namespace switchyard::store
