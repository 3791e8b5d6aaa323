#include "worker/agent/event_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/events/line.h"

namespace switchyard::agent {
namespace {

constexpr size_t kReadBytes = 256 << 10;
// A line that jumps further is taken for a forged one.
constexpr uint64_t kGapMax = 100'000;

}  // namespace

bool EventTail::Open() {
  if (fd_.is_valid()) return true;
  if (unusable_) return false;
  fd_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd_.is_valid()) {
    if (errno != ENOENT) unusable_ = true;
    return false;
  }
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    LogWarning(path_, " is not a regular file and is not read");
    fd_.Reset();
    unusable_ = true;
    return false;
  }
  return true;
}

uint64_t EventTail::FileSize() {
  struct stat info {};
  if (!Open() || fstat(fd_.get(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_size);
}

bool EventTail::has_grown() { return FileSize() > seen_size_; }

void EventTail::Scan(Position* at, events::BatchBuilder* builder, uint64_t lines_max,
                     uint64_t bytes_max, uint64_t until) {
  if (!Open()) return;
  const uint64_t start_seq = at->next_seq;
  const uint64_t start_offset = at->offset;
  size_t wanted = kReadBytes;
  std::string buffer;
  while (true) {
    const uint64_t size = FileSize();
    if (size <= at->offset) return;
    // Most files are far smaller than a full buffer.
    buffer.resize(static_cast<size_t>(std::min<uint64_t>(wanted, size - at->offset)));
    const ssize_t got =
        pread(fd_.get(), buffer.data(), buffer.size(), static_cast<off_t>(at->offset));
    if (got <= 0) return;
    const std::string_view text(buffer.data(), static_cast<size_t>(got));
    size_t used = 0;
    while (true) {
      const size_t end = text.find('\n', used);
      if (end == std::string_view::npos) break;
      const std::string_view raw = text.substr(used, end - used);
      Position next = *at;
      next.offset += raw.size() + 1;
      if (at->is_skipping) {
        next.is_skipping = false;
        next.has_garbage = true;
      } else {
        const Result<events::ParsedLine> line = events::ParseLine(raw);
        if (!line.ok() || line->seq > at->next_seq + kGapMax) {
          next.has_garbage = true;
        } else if (line->seq >= at->next_seq) {
          if (line->seq > until) return;
          const uint64_t missing = line->seq - at->next_seq;
          const uint64_t lines = line->seq - start_seq + 1;
          const bool is_first = at->next_seq == start_seq;
          if (!is_first && (lines > lines_max || next.offset - start_offset > bytes_max)) return;
          if (builder != nullptr) {
            if (missing > 0) {
              builder->AddGap(at->next_seq, missing, at->has_garbage ? "corrupt" : "missing");
            }
            builder->Add(*line);
          }
          next.next_seq = line->seq + 1;
          next.has_garbage = false;
        }  // else a repeated line: passed over
      }
      *at = next;
      used = end + 1;
    }
    if (used > 0) {
      wanted = kReadBytes;
    } else if (text.size() > events::kLineBytesMax) {
      // No newline within the longest line there may be.
      at->offset += text.size();
      at->is_skipping = true;
      wanted = kReadBytes;
    } else if (text.size() < wanted) {
      return;  // unfinished
    } else {
      wanted = std::min(wanted * 2, events::kLineBytesMax + 2);
    }
  }
}

std::optional<events::BatchBuilder::Blob> EventTail::Next(uint64_t lines_max, uint64_t bytes_max) {
  if (finished_ && at_.next_seq > last_seq_) return std::nullopt;
  seen_size_ = FileSize();
  events::BatchBuilder builder;
  Position to = at_;
  Scan(&to, &builder, std::max<uint64_t>(lines_max, 1), bytes_max, UINT64_MAX);
  if (builder.empty()) {
    // Garbage alone is behind us for good; nothing of it can be sent before a good line comes.
    at_ = to;
    if (!finished_) return std::nullopt;
    // Trailing garbage, or a file that was cut behind our back: counted, so that the end can come.
    const uint64_t covers = std::min(last_seq_ + 1 - at_.next_seq, kGapMax);
    builder.AddGap(at_.next_seq, covers, at_.has_garbage ? "corrupt" : "missing");
    to.next_seq = at_.next_seq + covers;
    to.has_garbage = false;
  }
  sent_ = to;
  return builder.Finish();
}

events::BatchBuilder::Blob EventTail::SkipLine() {
  events::BatchBuilder ignored;
  Position to = at_;
  Scan(&to, &ignored, 1, kBytesMax, UINT64_MAX);
  const uint64_t covers = std::max<uint64_t>(1, to.next_seq - at_.next_seq);
  if (ignored.empty()) to.next_seq = at_.next_seq + 1;
  ignored.Finish();
  events::BatchBuilder builder;
  builder.AddGap(at_.next_seq, covers, "refused");
  sent_ = to;
  return builder.Finish();
}

void EventTail::Acknowledge(uint64_t seq) {
  if (seq + 1 == at_.next_seq) return;
  if (seq + 1 == sent_.next_seq) {
    at_ = sent_;
    return;
  }
  if (finished_ && seq >= last_seq_) {
    at_.next_seq = last_seq_ + 1;
    at_.offset = FileSize();
    return;
  }
  // Elsewhere: forward from here (after a restart of the agent), or from the top.
  Position to = seq + 1 > at_.next_seq ? at_ : Position{};
  Scan(&to, nullptr, UINT64_MAX, UINT64_MAX, seq);
  // What lies between belongs to a gap that is stored already.
  to.next_seq = std::max(to.next_seq, seq + 1);
  at_ = to;
}

void EventTail::Finish() {
  if (finished_) return;
  finished_ = true;
  Position end = at_;
  Scan(&end, nullptr, UINT64_MAX, UINT64_MAX, UINT64_MAX);
  // Garbage behind the last good line stands for one line that is lost.
  last_seq_ = end.next_seq - 1 + (end.has_garbage ? 1 : 0);
  if (fd_.is_valid() && FileSize() > end.offset) {
    LogWarning(path_, ": a torn last line of ", FileSize() - end.offset, " bytes is cut off");
    if (ftruncate(fd_.get(), static_cast<off_t>(end.offset)) != 0) {
      LogWarning("cannot cut ", path_, ": ", std::strerror(errno));
    }
  }
  seen_size_ = 0;
}

uint64_t EventTail::unsent_bytes() {
  const uint64_t size = FileSize();
  return size > at_.offset && !is_done() ? size - at_.offset : 0;
}

uint64_t EventTail::unsent_lines() {
  if (finished_) return is_done() ? 0 : last_seq_ + 1 - at_.next_seq;
  const uint64_t bytes = unsent_bytes();
  if (bytes == 0) return 0;
  constexpr uint64_t kTypicalLineBytes = 200;
  const uint64_t mean =
      at_.next_seq > 1 ? std::max<uint64_t>(at_.offset / (at_.next_seq - 1), 1) : kTypicalLineBytes;
  return std::max<uint64_t>(bytes / mean, 1);
}

}  // namespace switchyard::agent
