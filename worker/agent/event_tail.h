#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/file.h"
#include "common/events/batch.h"

namespace switchyard::agent {

// Reads one attempt's events.jsonl from the first line that is not acknowledged. Lines that do not
// check become gap records, so that the watermark can pass and the loss is counted. Loop thread
// only.
class EventTail {
 public:
  static constexpr uint64_t kLinesMax = 2000;
  static constexpr uint64_t kBytesMax = 256 << 10;

  explicit EventTail(std::string path) : path_(std::move(path)) {}

  // The next lines in a batch, at most the given numbers of lines and bytes of the file (one line
  // at least); none while nothing new is whole. Reads the same lines again until Acknowledge moves
  // on.
  std::optional<events::BatchBuilder::Blob> Next(uint64_t lines_max = kLinesMax,
                                                 uint64_t bytes_max = kBytesMax);
  // A gap record in place of the next line, which the coordinator would not take.
  events::BatchBuilder::Blob SkipLine();
  // Lines up to `seq` are stored; may also lie before what was sent (the coordinator was restored).
  void Acknowledge(uint64_t seq);

  // The trainer is gone: cuts a torn last line off. From now on last_seq() is final.
  void Finish();
  bool is_finished() const { return finished_; }
  // Finished and acknowledged to the end.
  bool is_done() const { return finished_ && at_.next_seq > last_seq_; }
  uint64_t last_seq() const { return last_seq_; }
  uint64_t acknowledged() const { return at_.next_seq - 1; }
  // Bytes of the file that are not acknowledged.
  uint64_t unsent_bytes();
  // Exact after Finish; before it an estimate from the mean length of lines.
  uint64_t unsent_lines();
  // A new line may be there: the file has grown since Next found nothing.
  bool has_grown();

 private:
  struct Position {
    uint64_t offset = 0;
    uint64_t next_seq = 1;
    bool is_skipping = false;  // inside an endless line
    bool has_garbage = false;  // since the last good line
  };

  bool Open();
  uint64_t FileSize();
  // Goes on from `at` line by line: adds to `builder` unless it is null; stops at the limits, at a
  // seq above `until`, or where no whole line is left.
  void Scan(Position* at, events::BatchBuilder* builder, uint64_t lines_max, uint64_t bytes_max,
            uint64_t until);

  std::string path_;
  UniqueFd fd_;
  bool unusable_ = false;
  Position at_;
  Position sent_;  // behind the batch that Next made last
  uint64_t seen_size_ = 0;
  bool finished_ = false;
  uint64_t last_seq_ = 0;
};

}  // namespace switchyard::agent
