#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/events/batch.h"
#include "worker/agent/agent_state_hang.h"
#include "worker/agent/agent_state_upload.h"

namespace switchyard::agent {

// Reads one attempt's event file from the first line that is not acknowledged: the sealed segments
// `events.<first_seq>.jsonl` in order, then `events.jsonl`. Lines that do not check become gap
// records, so that the watermark can pass and the loss is counted. Loop thread only.
class EventTail final : public LineSource {
 public:
  static constexpr uint64_t kLinesMax = 2000;
  static constexpr uint64_t kBytesMax = 256 << 10;

  // `path` of the open segment, DIRECTORY/events.jsonl.
  explicit EventTail(std::string path) : path_(std::move(path)) {}

  struct Limits {
    uint64_t lines = kLinesMax;  // one at least
    uint64_t bytes = kBytesMax;  // of the file
    bool shed_logs = false;      // each run of log lines as one gap record
    bool hold_last = false;      // not the `end` line; once finished, not the last line
  };
  // The lines behind those that were given last, in a batch; none while nothing new is whole.
  std::optional<events::BatchBuilder::Blob> Next(const Limits& limits);
  std::optional<events::BatchBuilder::Blob> Next() { return Next(Limits{}); }
  // What was given and is not acknowledged is given again.
  void Rewind() override { sent_ = at_; }
  bool has_unacknowledged() const override { return sent_.next_seq > at_.next_seq; }
  // A gap record in place of the first line that is not acknowledged, which the coordinator would
  // not take. Nothing else may be in flight.
  events::BatchBuilder::Blob SkipLine();
  // Lines up to `seq` are stored; may also lie before what was sent (the coordinator was restored).
  void Acknowledge(uint64_t seq) override;

  // The trainer is gone: cuts a torn last line off. From now on last_seq() is final.
  void Finish();
  bool is_finished() const { return finished_; }
  // Finished and acknowledged to the end.
  bool is_done() const { return finished_ && at_.next_seq > last_seq_; }
  uint64_t last_seq() const { return last_seq_; }
  uint64_t acknowledged() const override { return at_.next_seq - 1; }
  // Bytes of the file that are not acknowledged.
  uint64_t unsent_bytes();
  // Exact after Finish; before it an estimate from the mean length of lines.
  uint64_t unsent_lines();
  // A new line may be there: the file has grown since Next found nothing.
  bool has_grown();

  // What the last 64 KiB of the file say, whether or not they were sent; the same as before where
  // they hold no whole line.
  const Progress& ReadProgress();

  // The first metric line whose step lies behind that of an earlier line, of the lines read so far
  // (after Finish: of all that are on this disk); empty: there is none.
  const std::string& step_fault() const { return step_fault_; }

  struct Segment {
    uint64_t first_seq = 0;
    uint64_t last_seq = 0;
    uint64_t bytes = 0;
    int64_t modified_unix_seconds = 0;
  };
  // Sealed ones that were read to their end.
  std::vector<Segment> sealed() const;
  // Removes one of them from disk; it must lie below the acknowledged line.
  void Delete(uint64_t first_seq);

 private:
  static constexpr uint64_t kOpenSegment = UINT64_MAX;

  struct Position {
    uint64_t segment = kOpenSegment;  // first_seq in the name of a sealed one
    uint64_t offset = 0;
    uint64_t next_seq = 1;
    bool is_skipping = false;  // inside an endless line
    bool has_garbage = false;  // since the last good line
  };
  struct Sealed {
    uint64_t bytes = 0;
    uint64_t last_seq = 0;  // 0: not read to its end yet
    int64_t modified_unix_seconds = 0;
  };
  struct Pass;  // of Scan: limits and what was used of them

  // Of each line once, in order.
  void CheckStep(uint64_t seq, uint64_t step);

  std::string SegmentPath(uint64_t segment) const;
  // Of the file or -1; opened once.
  int Descriptor(uint64_t segment);
  UniqueFd OpenRegular(const std::string& path);
  uint64_t SizeOf(uint64_t segment);
  // Looks whether the trainer has sealed the open segment; true: positions in it have moved to the
  // name that it has now.
  bool FindSealed(Position* also);
  void ListSealed();
  // Goes on from `at` line by line over the segments; stops at the limits or where no whole line is
  // left.
  void Scan(Position* at, Pass* pass);
  // False: at a limit. True: no whole line is left in the segment.
  bool ScanSegment(Position* at, Pass* pass);
  bool EnterNext(Position* at);

  std::string path_;
  UniqueFd open_fd_;
  UniqueFd sealed_fd_;
  uint64_t sealed_fd_segment_ = 0;
  bool is_listed_ = false;
  bool unusable_ = false;
  std::map<uint64_t, Sealed> sealed_;
  Position at_;
  Position sent_;  // behind the batch that Next made last
  uint64_t seen_bytes_ = 0;
  bool finished_ = false;
  uint64_t last_seq_ = 0;
  Progress progress_;
  uint64_t checked_seq_ = 0;
  uint64_t newest_step_ = 0;
  std::string step_fault_;
};

}  // namespace switchyard::agent
