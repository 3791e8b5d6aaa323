#include "worker/train/checkpoint_writer.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "worker/train/event_sink.h"

namespace switchyard::train {
namespace {

constexpr std::chrono::milliseconds kRoomPause{250};

std::string CheckpointMembers(const CheckpointInfo& info) {
  const nlohmann::ordered_json json = {
      {"step", info.step}, {"digest", info.digest}, {"bytes", info.bytes}, {"path", info.path}};
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

}  // namespace

struct CheckpointWriter::State {
  Options options;
  EventSink& events;

  std::mutex mu;
  std::optional<uint64_t> last_step;  // guarded by mu
  std::condition_variable changed;
  std::optional<CheckpointContent> pending;  // guarded by mu
  WhenFull when_full = WhenFull::kGiveUp;    // of the pending one; guarded by mu
  bool is_busy = false;                      // guarded by mu
  bool is_clean = false;                     // leftovers are gone; guarded by mu
  bool is_stopping = false;                  // guarded by mu

  void RemoveLeftovers() {
    const auto names = ListDirectory(options.root);
    if (!names.ok()) return;
    for (const std::string& name : *names) {
      if (!name.starts_with(".tmp-")) continue;
      const Status status = RemoveTree(StrCat(options.root, "/", name));
      if (!status.ok()) events.Log(StrCat("leftover checkpoint: ", status.message()));
    }
  }

  Result<CheckpointInfo> WriteWithPatience(const CheckpointContent& content, WhenFull when) {
    const auto give_up = std::chrono::steady_clock::now() + options.room_limit;
    while (true) {
      auto info = WriteCheckpoint(options.root, options.epoch, content, options.before_publish);
      const bool is_full = info.status().code() == Code::kResourceExhausted;
      if (!is_full || when == WhenFull::kGiveUp || options.is_alone ||
          std::chrono::steady_clock::now() >= give_up) {
        return info;
      }
      std::this_thread::sleep_for(kRoomPause);
    }
  }

  void Write(const CheckpointContent& content, WhenFull when) {
    const auto info = WriteWithPatience(content, when);
    if (!info.ok()) {
      events.Log(StrCat("checkpoint of step ", content.progress.step,
                        " not written: ", info.status().message()));
      const std::lock_guard lock(mu);
      last_step.reset();
      return;
    }
    events.Line("ckpt", CheckpointMembers(*info));
    if (!options.is_alone) return;
    for (const std::string& path :
         ChooseExpired(ListCheckpoints(options.root, options.run_key), options)) {
      const Status status = RemoveTree(path);
      if (!status.ok()) events.Log(StrCat("old checkpoint: ", status.message()));
    }
  }

  void Loop() {
    RemoveLeftovers();
    std::unique_lock lock(mu);
    is_clean = true;
    changed.notify_all();
    while (true) {
      changed.wait(lock, [this] { return pending || is_stopping; });
      if (!pending) return;
      const CheckpointContent content = *std::move(pending);
      const WhenFull when = when_full;
      pending.reset();
      lock.unlock();
      Write(content, when);
      lock.lock();
      is_busy = false;
      changed.notify_all();
    }
  }
};

CheckpointWriter::CheckpointWriter(Options options, EventSink& events)
    : state_(new State{.options = std::move(options), .events = events}) {
  thread_ = std::thread([state = state_] { state->Loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(state_->mu);
    state_->is_stopping = true;
  }
  state_->changed.notify_all();
  bool is_done = false;
  {
    std::unique_lock lock(state_->mu);
    is_done = state_->changed.wait_for(lock, state_->options.close_limit,
                                       [this] { return !state_->is_busy && state_->is_clean; });
  }
  if (is_done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool CheckpointWriter::Submit(CheckpointContent content, WhenFull when_full) {
  {
    const std::lock_guard lock(state_->mu);
    if (state_->is_busy) return false;
    state_->last_step = content.progress.step;
    state_->pending = std::move(content);
    state_->when_full = when_full;
    state_->is_busy = true;
  }
  state_->changed.notify_all();
  return true;
}

bool CheckpointWriter::WaitIdle(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mu);
  return state_->changed.wait_for(lock, limit, [this] { return !state_->is_busy; });
}

std::optional<uint64_t> CheckpointWriter::last_step() const {
  const std::lock_guard lock(state_->mu);
  return state_->last_step;
}

std::vector<std::string> ChooseExpired(const std::vector<StoredCheckpoint>& stored,
                                       const CheckpointWriter::Options& options) {
  std::set<std::string> kept;
  const size_t newest = std::min<size_t>(std::max<uint32_t>(options.keep_last, 1), stored.size());
  for (size_t i = stored.size() - newest; i < stored.size(); ++i) kept.insert(stored[i].path);

  std::vector<const StoredCheckpoint*> ranked;
  for (const StoredCheckpoint& checkpoint : stored) {
    if (checkpoint.objective) ranked.push_back(&checkpoint);
  }
  const auto is_better = [&](const StoredCheckpoint* a, const StoredCheckpoint* b) {
    const double left = *a->objective;
    const double right = *b->objective;
    return options.lower_is_better ? left < right : left > right;
  };
  std::stable_sort(ranked.begin(), ranked.end(), is_better);
  for (size_t i = 0; i < std::min<size_t>(options.keep_best, ranked.size()); ++i) {
    kept.insert(ranked[i]->path);
  }

  std::vector<std::string> expired;
  for (const StoredCheckpoint& checkpoint : stored) {
    const bool is_told =
        std::ranges::find(options.keep_steps, checkpoint.step) != options.keep_steps.end();
    if (!is_told && !kept.contains(checkpoint.path)) expired.push_back(checkpoint.path);
  }
  return expired;
}

}  // namespace switchyard::train
