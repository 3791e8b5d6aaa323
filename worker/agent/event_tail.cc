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
constexpr size_t kProgressBytes = 64 << 10;
// A line that jumps further is taken for a forged one.
constexpr uint64_t kGapMax = 100'000;
// Between segments whole segments may be missing.
constexpr uint64_t kSegmentGapMax = 1'000'000'000;

constexpr std::string_view kPrefix = "events.";
constexpr std::string_view kSuffix = ".jsonl";

// The number in `events.<first_seq>.jsonl`.
std::optional<uint64_t> SegmentNumber(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  const std::optional<uint64_t> number = ParseUint64(name);
  return number && *number > 0 && *number < UINT64_MAX ? number : std::nullopt;
}

}  // namespace

// One walk over lines: where it must stop, and where lines go.
struct EventTail::Pass {
  events::BatchBuilder* builder = nullptr;  // null: only moves on
  uint64_t lines_left = UINT64_MAX;
  uint64_t bytes_left = UINT64_MAX;
  uint64_t until = UINT64_MAX;  // no line with a larger seq
  bool shed_logs = false;
  bool hold_end = false;  // stops before an `end` line
  bool is_empty = true;
  // Log lines that are not sent, one after the other.
  uint64_t shed_first = 0;
  uint64_t shed_count = 0;

  void FlushShed() {
    if (shed_count > 0) builder->AddGap(shed_first, shed_count, "shed");
    shed_count = 0;
  }
  void Add(const events::ParsedLine& line, uint64_t expected_seq, bool has_garbage) {
    if (builder == nullptr) return;
    const uint64_t missing = line.seq - expected_seq;
    if (missing > 0) {
      FlushShed();
      builder->AddGap(expected_seq, missing, has_garbage ? "corrupt" : "missing");
    }
    if (shed_logs && line.type == "log") {
      if (shed_count++ == 0) shed_first = line.seq;
      return;
    }
    FlushShed();
    builder->Add(line);
  }
};

std::string EventTail::SegmentPath(uint64_t segment) const {
  if (segment == kOpenSegment) return path_;
  return StrCat(path_.substr(0, path_.rfind('/') + 1), kPrefix, segment, kSuffix);
}

UniqueFd EventTail::OpenRegular(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd.is_valid()) {
    if (errno != ENOENT) unusable_ = true;
  } else if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    LogWarning(path, " is not a regular file and is not read");
    unusable_ = true;
    fd.Reset();
  }
  return fd;
}

int EventTail::Descriptor(uint64_t segment) {
  if (unusable_) return -1;
  if (segment == kOpenSegment) {
    if (!open_fd_.is_valid()) open_fd_ = OpenRegular(path_);
    return open_fd_.get();
  }
  if (!sealed_fd_.is_valid() || sealed_fd_segment_ != segment) {
    sealed_fd_ = OpenRegular(SegmentPath(segment));
    sealed_fd_segment_ = segment;
  }
  return sealed_fd_.get();
}

uint64_t EventTail::SizeOf(uint64_t segment) {
  const auto it = sealed_.find(segment);
  if (it != sealed_.end()) return it->second.bytes;
  struct stat info {};
  const int fd = Descriptor(segment);
  return fd >= 0 && fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

void EventTail::ListSealed() {
  const std::string folder = path_.substr(0, path_.rfind('/'));
  const Result<std::vector<std::string>> names = ListDirectory(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> number = SegmentNumber(name);
    if (!number || sealed_.contains(*number)) continue;
    struct stat info {};
    if (lstat(StrCat(folder, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    sealed_[*number] = {.bytes = static_cast<uint64_t>(info.st_size),
                        .modified_unix_seconds = info.st_mtim.tv_sec};
  }
  if (is_listed_) return;
  is_listed_ = true;
  if (sealed_.empty()) return;
  // What is no longer there was stored before it was deleted.
  at_ = {.segment = sealed_.begin()->first, .next_seq = sealed_.begin()->first};
  sent_ = at_;
}

bool EventTail::FindSealed(Position* also) {
  struct stat ours {};
  struct stat named {};
  if (!open_fd_.is_valid() || fstat(open_fd_.get(), &ours) != 0) return false;
  if (stat(path_.c_str(), &named) == 0 && named.st_ino == ours.st_ino) return false;
  ListSealed();
  for (auto it = sealed_.rbegin(); it != sealed_.rend(); ++it) {
    if (stat(SegmentPath(it->first).c_str(), &named) != 0 || named.st_ino != ours.st_ino) continue;
    it->second.bytes = static_cast<uint64_t>(ours.st_size);
    for (Position* position : {&at_, &sent_, also}) {
      if (position->segment == kOpenSegment) position->segment = it->first;
    }
    sealed_fd_ = std::move(open_fd_);
    sealed_fd_segment_ = it->first;
    open_fd_.Reset();
    return true;
  }
  return false;
}

bool EventTail::EnterNext(Position* at) {
  if (at->segment == kOpenSegment) {
    // Its trainer may have written to it between our last read and the new name.
    return FindSealed(at);
  }
  const auto next = sealed_.upper_bound(at->segment);
  const uint64_t segment = next == sealed_.end() ? kOpenSegment : next->first;
  if (segment == kOpenSegment && Descriptor(kOpenSegment) < 0) return false;
  Sealed& left = sealed_[at->segment];
  if (at->offset < left.bytes || at->is_skipping) at->has_garbage = true;
  left.last_seq = at->next_seq - 1;
  at->segment = segment;
  at->offset = 0;
  at->is_skipping = false;
  return true;
}

void EventTail::Scan(Position* at, Pass* pass) {
  if (!is_listed_) {
    const bool is_start = at->offset == 0 && at->next_seq == 1;
    ListSealed();
    if (is_start) *at = at_;
  }
  while (ScanSegment(at, pass) && EnterNext(at)) {
  }
  if (pass->builder != nullptr) pass->FlushShed();
}

bool EventTail::ScanSegment(Position* at, Pass* pass) {
  const int fd = Descriptor(at->segment);
  if (fd < 0) return true;
  size_t wanted = kReadBytes;
  std::string buffer;
  while (true) {
    struct stat info {};
    if (fstat(fd, &info) != 0) return true;
    const auto size = static_cast<uint64_t>(info.st_size);
    if (size <= at->offset) return true;
    // Most files are far smaller than a full buffer.
    buffer.resize(static_cast<size_t>(std::min<uint64_t>(wanted, size - at->offset)));
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at->offset));
    if (got <= 0) return true;
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
        const uint64_t gap_max = at->offset == 0 ? kSegmentGapMax : kGapMax;
        if (!line.ok() || line->seq > at->next_seq + gap_max) {
          next.has_garbage = true;
        } else if (line->seq >= at->next_seq) {
          if (line->seq > pass->until) return false;
          if (pass->hold_end && line->type == "end") return false;
          const uint64_t lines = line->seq - at->next_seq + 1;
          const uint64_t bytes = raw.size() + 1;
          if (!pass->is_empty && (lines > pass->lines_left || bytes > pass->bytes_left)) {
            return false;
          }
          pass->is_empty = false;
          pass->lines_left -= std::min(lines, pass->lines_left);
          pass->bytes_left -= std::min(bytes, pass->bytes_left);
          if (line->type == "m") CheckStep(line->seq, line->step);
          pass->Add(*line, at->next_seq, at->has_garbage);
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
      return true;  // unfinished
    } else {
      wanted = std::min(wanted * 2, events::kLineBytesMax + 2);
    }
  }
}

void EventTail::CheckStep(uint64_t seq, uint64_t step) {
  if (seq <= checked_seq_) return;
  checked_seq_ = seq;
  if (step < newest_step_ && step_fault_.empty()) {
    step_fault_ = StrCat("step ", step, " is recorded behind step ", newest_step_,
                         ": steps of an attempt never go back");
  }
  newest_step_ = std::max(newest_step_, step);
}

bool EventTail::has_grown() { return SizeOf(kOpenSegment) != seen_bytes_; }

std::optional<events::BatchBuilder::Blob> EventTail::Next(const Limits& limits) {
  uint64_t last = UINT64_MAX;
  if (finished_) last = limits.hold_last && last_seq_ > 0 ? last_seq_ - 1 : last_seq_;
  if (sent_.next_seq > last) return std::nullopt;
  seen_bytes_ = SizeOf(kOpenSegment);
  events::BatchBuilder builder;
  Pass pass{.builder = &builder,
            .lines_left = std::max<uint64_t>(limits.lines, 1),
            .bytes_left = limits.bytes,
            .until = last,
            .shed_logs = limits.shed_logs,
            .hold_end = limits.hold_last && !finished_};
  Scan(&sent_, &pass);
  if (!builder.empty()) return builder.Finish();
  if (!finished_) return std::nullopt;
  // Trailing garbage, or a file that was cut behind our back: counted, so that the end can come.
  const uint64_t covers = std::min(last + 1 - sent_.next_seq, kGapMax);
  builder.AddGap(sent_.next_seq, covers, sent_.has_garbage ? "corrupt" : "missing");
  sent_.next_seq += covers;
  sent_.has_garbage = false;
  return builder.Finish();
}

events::BatchBuilder::Blob EventTail::SkipLine() {
  Position to = at_;
  Pass pass{.lines_left = 1};
  Scan(&to, &pass);
  const uint64_t from = at_.next_seq;
  const uint64_t covers = std::max<uint64_t>(1, to.next_seq - from);
  to.next_seq = from + covers;
  events::BatchBuilder builder;
  builder.AddGap(from, covers, "refused");
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
    at_ = sent_;
    at_.next_seq = last_seq_ + 1;
    at_.segment = kOpenSegment;
    at_.offset = SizeOf(kOpenSegment);
    sent_ = at_;
    return;
  }
  // Elsewhere: forward from here, or from the segment that holds the line.
  Position to = at_;
  const bool goes_back = seq + 1 < at_.next_seq;
  if (goes_back) {
    auto segment = sealed_.upper_bound(seq + 1);
    if (segment != sealed_.begin()) --segment;
    if (segment == sealed_.end()) {
      to = Position{};
    } else {
      to = Position{.segment = segment->first, .next_seq = std::min(segment->first, seq + 1)};
    }
  }
  Pass pass{.until = seq};
  Scan(&to, &pass);
  // What lies between belongs to a gap that is stored already.
  to.next_seq = std::max(to.next_seq, seq + 1);
  at_ = to;
  if (goes_back || sent_.next_seq < at_.next_seq) sent_ = at_;
}

void EventTail::Finish() {
  if (finished_) return;
  finished_ = true;
  Position end = sent_;
  Pass pass;
  Scan(&end, &pass);
  // Garbage behind the last good line stands for one line that is lost.
  last_seq_ = end.next_seq - 1 + (end.has_garbage ? 1 : 0);
  const uint64_t size = SizeOf(kOpenSegment);
  if (end.segment == kOpenSegment && size > end.offset) {
    LogWarning(path_, ": a torn last line of ", size - end.offset, " bytes is cut off");
    if (ftruncate(open_fd_.get(), static_cast<off_t>(end.offset)) != 0) {
      LogWarning("cannot cut ", path_, ": ", std::strerror(errno));
    }
  }
  // The record of the end says how many lines there are, and outlives the host: so must they. A
  // trainer that was killed has not synced the newest ones.
  if (open_fd_.is_valid() && fdatasync(open_fd_.get()) != 0) {
    LogWarning("cannot sync ", path_, ": ", std::strerror(errno));
  }
  seen_bytes_ = 0;
}

uint64_t EventTail::unsent_bytes() {
  if (is_done()) return 0;
  uint64_t bytes = SizeOf(kOpenSegment);
  if (at_.segment == kOpenSegment) return bytes - std::min(bytes, at_.offset);
  for (auto it = sealed_.lower_bound(at_.segment); it != sealed_.end(); ++it) {
    bytes += it->second.bytes;
  }
  return bytes - std::min(bytes, at_.offset);
}

uint64_t EventTail::unsent_lines() {
  if (finished_) return is_done() ? 0 : last_seq_ + 1 - at_.next_seq;
  const uint64_t bytes = unsent_bytes();
  if (bytes == 0) return 0;
  constexpr uint64_t kTypicalLineBytes = 200;
  const uint64_t first = at_.segment == kOpenSegment ? 1 : at_.segment;
  const uint64_t read = at_.next_seq - std::min(first, at_.next_seq);
  const uint64_t mean =
      read > 0 && at_.offset > 0 ? std::max<uint64_t>(at_.offset / read, 1) : kTypicalLineBytes;
  return std::max<uint64_t>(bytes / mean, 1);
}

const Progress& EventTail::ReadProgress() {
  // A descriptor of a file that was sealed meanwhile would show no progress any more, and its
  // reader may be held up: a trainer without contact must not look hung, nor its spool small.
  Position none;
  FindSealed(&none);
  const int fd = Descriptor(kOpenSegment);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0) return progress_;
  const auto size = static_cast<uint64_t>(info.st_size);
  const uint64_t from = size - std::min<uint64_t>(size, kProgressBytes);
  std::string text(static_cast<size_t>(size - from), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), static_cast<off_t>(from));
  if (got <= 0) return progress_;
  text.resize(static_cast<size_t>(got));
  size_t end = text.rfind('\n');
  bool in_phase = false;
  bool has_phase = false;
  while (end != std::string::npos && end > 0) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t start = before == std::string::npos ? 0 : before + 1;
    const Result<events::ParsedLine> line =
        events::ParseLine(std::string_view(text).substr(start, end - start));
    end = before;
    if (!line.ok()) continue;
    progress_.has_line = true;
    if (line->type == "phase" && !has_phase) {
      has_phase = true;
      in_phase = line->json.find("\"name\":\"train\"") == std::string::npos;
    } else if (line->type == "m") {
      progress_ = {.step = line->step,
                   .ms = line->ms,
                   .has_line = true,
                   .has_step = true,
                   .in_phase = in_phase};
      return progress_;
    }
  }
  if (has_phase) progress_.in_phase = in_phase;
  return progress_;
}

std::vector<EventTail::Segment> EventTail::sealed() const {
  std::vector<Segment> out;
  for (const auto& [first, segment] : sealed_) {
    if (segment.last_seq == 0) continue;
    out.push_back({.first_seq = first,
                   .last_seq = segment.last_seq,
                   .bytes = segment.bytes,
                   .modified_unix_seconds = segment.modified_unix_seconds});
  }
  return out;
}

void EventTail::Delete(uint64_t first_seq) {
  const auto it = sealed_.find(first_seq);
  if (it == sealed_.end() || it->second.last_seq == 0 || it->second.last_seq >= at_.next_seq ||
      at_.segment == first_seq) {
    return;
  }
  if (sealed_fd_segment_ == first_seq) sealed_fd_.Reset();
  if (unlink(SegmentPath(first_seq).c_str()) != 0) {
    LogWarning("cannot delete ", SegmentPath(first_seq), ": ", std::strerror(errno));
  }
  sealed_.erase(it);
}

}  // namespace switchyard::agent
