#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker/train/checkpoint.h"

namespace switchyard::train {

class EventSink;

// Writes checkpoints on a thread of its own and announces each by a `ckpt` line after its rename.
// What is old is removed here only where no coordinator keeps the record of it. A checkpoint that
// cannot be written (disk full) is a log line; training goes on. Training thread only; the events
// are written from the other thread.
class CheckpointWriter {
 public:
  struct Options {
    std::string root;
    uint64_t epoch = 0;
    std::string run_key;
    // Without a coordinator: after each checkpoint those go that ChooseExpired names. With one, the
    // record says what is kept (pins, stages and forks hold some), and the worker's agent removes
    // the rest when it is told to: a checkpoint never goes while the record shows it as published.
    bool is_alone = true;
    uint32_t keep_last = 2;
    uint32_t keep_best = 1;
    bool lower_is_better = true;
    std::vector<uint64_t> keep_steps;  // stay as well
    // Called when a checkpoint is whole on disk and gets its name next; does not return when this
    // attempt may no longer publish one. Empty: nothing to ask.
    std::function<void()> before_publish;
    // How long a checkpoint that must not be missed waits for room on a full disk, where somebody
    // else removes old ones.
    std::chrono::milliseconds room_limit = std::chrono::seconds(20);
    // How long the destructor waits for a checkpoint that is being written.
    std::chrono::milliseconds close_limit = std::chrono::minutes(5);
  };
  // `events` and what `before_publish` uses must live until the process ends: see the destructor.
  CheckpointWriter(Options options, EventSink& events);
  // Waits for the checkpoint being written, at most `close_limit`: a file system that hangs must
  // not keep the trainer from saying how it ended. What is being written then goes with the
  // process.
  ~CheckpointWriter();

  // Of a checkpoint for which there is no room: another comes soon, or this is one that a run ends
  // with or is told to keep.
  enum class WhenFull { kGiveUp, kWait };
  // False while the previous one is still being written: the caller keeps training and tries again.
  bool Submit(CheckpointContent content, WhenFull when_full = WhenFull::kGiveUp);
  // Waits until nothing is being written; false after `limit`.
  bool WaitIdle(std::chrono::milliseconds limit);
  // The newest that is written or under way, none after one that failed: no step is written twice.
  std::optional<uint64_t> last_step() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too
  std::thread thread_;
};

// Paths to remove so that the newest `keep_last`, the best `keep_best` and those of `keep_steps`
// stay; at least one stays.
// `stored` in the order of ListCheckpoints.
std::vector<std::string> ChooseExpired(const std::vector<StoredCheckpoint>& stored,
                                       const CheckpointWriter::Options& options);

}  // namespace switchyard::train
