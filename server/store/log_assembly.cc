#include "server/store/log_assembly.h"

#include <algorithm>

namespace switchyard::store {

bool IsOutputComplete(scheduler::AttemptState state, const scheduler::StreamRow& stream) {
  if (!IsTerminal(state)) return false;
  const bool has_waited =
      state == scheduler::AttemptState::kSucceeded || state == scheduler::AttemptState::kPreempted;
  return stream.sealed ||
         (has_waited && stream.declared_last.has_value() && stream.acked >= *stream.declared_last);
}

Result<LogPage> AssembleLog(LogSource& source, const LogStreamState& state, uint64_t offset,
                            size_t max_bytes) {
  LogPage page{.next_offset = offset, .attempt = state.attempt};
  const size_t limit = std::max<size_t>(max_bytes, 1);
  while (page.data.size() < limit) {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<LogPiece> piece,
                                source.FindFrom(page.next_offset));
    if (!piece || piece->data.empty()) {
      if (page.data.empty() && state.is_complete && page.next_offset < state.end) {
        page.skipped += state.end - page.next_offset;
        page.next_offset = state.end;
      }
      break;
    }
    if (piece->offset > page.next_offset) {
      // A gap is told before data, never inside.
      if (!page.data.empty()) break;
      page.skipped = piece->offset - page.next_offset;
      page.next_offset = piece->offset;
    }
    const uint64_t start = page.next_offset - piece->offset;
    const size_t count = std::min(piece->data.size() - start, limit - page.data.size());
    page.data.append(piece->data, start, count);
    page.next_offset += count;
  }
  page.at_end = state.is_complete && page.next_offset >= state.end;
  return page;
}

}  // namespace switchyard::store
