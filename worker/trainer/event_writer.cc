#include "worker/trainer/event_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/events/line.h"

namespace switchyard::trainer {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kLogBytesMax = 16 << 10;
// Lines are formatted and written in pieces of about this size.
constexpr size_t kWriteBytes = 256 << 10;
// A writer that wakes for every step of a fast run would take the trainer's core.
constexpr std::chrono::milliseconds kGatherTime{20};

std::string JsonText(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Item {
  enum class Kind { kScalars, kVector, kOther };
  Kind kind = Kind::kOther;
  uint64_t step = 0;
  uint64_t ms = 0;
  std::vector<std::pair<std::string, double>> scalars;
  std::string name;     // of the vector, or the line's type
  std::string members;  // other lines
  std::vector<uint32_t> shape;
  std::vector<float> values;

  size_t Bytes() const {
    size_t bytes = sizeof(Item) + name.size() + members.size() + values.size() * sizeof(float);
    for (const auto& entry : scalars) bytes += sizeof(entry) + entry.first.size();
    return bytes;
  }
};

constexpr uint32_t kExponentMax = 10;

bool IsKept(uint64_t step, uint32_t exponent) {
  return step % (uint64_t{1} << std::min(exponent, kExponentMax)) == 0;
}

// Lines given up since the last `drop` line of their class; derived series count by the line.
struct Dropped {
  uint64_t count = 0;
  uint64_t step_from = 0;
  uint64_t step_to = 0;

  void Add(uint64_t step) {
    if (count == 0) step_from = step;
    step_to = step;
    ++count;
  }
};

}  // namespace

struct EventWriter::State {
  Options options;
  UniqueFd fd;
  std::string path;
  bool is_file = false;

  mutable std::mutex mu;
  std::condition_variable changed;
  // Guarded by mu.
  std::deque<Item> queue;
  size_t queue_bytes = 0;
  Dropped dropped_logs;
  Dropped dropped_derived;
  Dropped dropped_metrics;
  bool is_disk_full = false;
  uint64_t newest_step = 0;
  Status fault;  // of the run's own doing; the file goes on
  uint64_t fallen_points = 0;
  std::string first_fall;
  bool is_closing = false;
  SteadyClock::time_point close_by;
  bool is_closed = false;
  Status status;
  uint64_t last_seq = 0;

  // Writer thread only.
  uint64_t next_seq = 1;
  uint64_t file_bytes = 0;  // whole lines in the segment
  uint64_t segment_first_seq = 1;
  bool is_dirty = false;
  bool was_disk_full = false;  // since the last `drop` lines; guarded by mu
  SteadyClock::time_point last_sync;

  std::thread thread;

  uint64_t ElapsedMs() const {
    return (BoottimeNanoseconds() - options.start_boottime_ns) / 1'000'000;
  }

  // Whether a metric is given up; with the lock held. May take derived scalars out of it.
  bool IsGivenUp(Item* item, size_t bytes) {
    if (queue_bytes + bytes > options.queue_bytes_max) return true;
    if (is_disk_full) {
      const size_t steps = 1 + kExponentMax * queue_bytes / options.queue_bytes_max;
      if (!IsKept(item->step, static_cast<uint32_t>(steps))) return true;
    }
    const uint32_t exponent = options.pressure ? options.pressure() : 0;
    if (IsKept(item->step, exponent)) return false;
    if (item->kind == Item::Kind::kVector) {
      if (!IsDerived(item->name)) return false;
      dropped_derived.Add(item->step);
      return true;
    }
    const size_t before = item->scalars.size();
    std::erase_if(item->scalars, [](const auto& entry) { return IsDerived(entry.first); });
    if (item->scalars.size() < before) dropped_derived.Add(item->step);
    return item->scalars.empty();
  }

  // Notes a step behind the newest one; with the lock held.
  bool TakesFallenStep(uint64_t step) {
    const std::string what = StrCat("step ", step, " is recorded behind step ", newest_step);
    if (options.lenient_steps) {
      if (fallen_points++ == 0) first_fall = what;
      return true;
    }
    if (fault.ok()) fault = Internal(StrCat(what, ": steps of an attempt never go back"));
    return false;
  }

  // Queues, or drops under pressure.
  void Push(Item item) {
    item.ms = ElapsedMs();
    const size_t bytes = item.Bytes();
    {
      const std::lock_guard lock(mu);
      if (is_closing) return;
      if (item.kind == Item::Kind::kOther) {
        item.step = newest_step;
        const bool has_pressure = queue_bytes + bytes > options.queue_bytes_max / 2 ||
                                  is_disk_full || (options.pressure && options.pressure() > 0);
        if (item.name == "log" && has_pressure) {
          dropped_logs.Add(item.step);
          return;
        }
      } else {
        if (item.step < newest_step && !TakesFallenStep(item.step)) return;
        newest_step = std::max(newest_step, item.step);
        const uint64_t derived = dropped_derived.count;
        if (IsGivenUp(&item, bytes)) {
          if (dropped_derived.count == derived) dropped_metrics.Add(item.step);
          return;
        }
      }
      queue_bytes += item.Bytes();
      queue.push_back(std::move(item));
    }
    changed.notify_one();
  }

  // `reason` is one of those that the coordinator counts by.
  void AppendDrop(const char* what, const char* reason, Dropped* dropped, std::string* text) {
    if (dropped->count == 0) return;
    events::AppendOtherLine(next_seq++, "drop",
                            StrCat("\"class\":\"", reason, "\",\"what\":\"", what,
                                   "\",\"step_from\":", dropped->step_from,
                                   ",\"step_to\":", dropped->step_to, ",\"n\":", dropped->count),
                            text);
    *dropped = {};
  }

  void Append(const Item& item, std::string* text) {
    const uint64_t seq = next_seq++;
    switch (item.kind) {
      case Item::Kind::kScalars:
        events::AppendScalarLine(seq, item.step, item.ms, item.scalars, text);
        break;
      case Item::Kind::kVector:
        events::AppendVectorLine(seq, item.step, item.ms, item.name, item.shape, item.values, text);
        break;
      case Item::Kind::kOther:
        events::AppendOtherLine(seq, item.name, item.members, text);
        break;
    }
  }

  // Takes lines off the queue, at most about kWriteBytes of text. With the lock held.
  std::string Format() {
    std::string text;
    const char* reason = was_disk_full ? "disk_full" : "spool_full";
    AppendDrop("log", reason, &dropped_logs, &text);
    AppendDrop("derived", "quota", &dropped_derived, &text);
    AppendDrop("metric", reason, &dropped_metrics, &text);
    was_disk_full = false;
    while (!queue.empty() && text.size() < kWriteBytes) {
      Append(queue.front(), &text);
      queue_bytes -= queue.front().Bytes();
      queue.pop_front();
    }
    return text;
  }

  // Appends whole lines; a part that got in before an error is cut off again.
  Status Write(const std::string& text) {
    const Status written = WriteAll(fd.get(), text, path);
    if (written.ok()) {
      file_bytes += text.size();
      is_dirty = true;
      return written;
    }
    if (is_file && ftruncate(fd.get(), static_cast<off_t>(file_bytes)) != 0) {
      return ErrnoStatus("truncate", path, errno);
    }
    return written;
  }

  // Waits for room while the disk is full. With the lock held on entry and exit.
  Status WriteWithPatience(const std::string& text, std::unique_lock<std::mutex>& lock) {
    while (true) {
      lock.unlock();
      Status result = Write(text);
      lock.lock();
      is_disk_full = is_file && result.code() == Code::kResourceExhausted;
      was_disk_full |= is_disk_full;
      if (!is_disk_full) return result;
      if (is_closing && SteadyClock::now() >= close_by) return result;
      changed.wait_for(lock, options.retry_interval);
    }
  }

  // The full segment gets its final name once the next one is there: names never leave a gap.
  Status Seal() {
    SWITCHYARD_RETURN_IF_ERROR(Sync());
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    const std::string aside = folder + "events.next";
    UniqueFd next(open(aside.c_str(),
                       O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
    // Without room for another file this one goes on growing.
    if (!next.is_valid()) return OkStatus();
    const std::string sealed = StrCat(folder, "events.", segment_first_seq, ".jsonl");
    if (rename(path.c_str(), sealed.c_str()) != 0) return ErrnoStatus("rename", path, errno);
    if (rename(aside.c_str(), path.c_str()) != 0) return ErrnoStatus("rename", aside, errno);
    fd = std::move(next);
    file_bytes = 0;
    segment_first_seq = next_seq;
    return OkStatus();
  }

  Status Sync() {
    last_sync = SteadyClock::now();
    if (!is_dirty || !is_file) return OkStatus();
    is_dirty = false;
    if (fdatasync(fd.get()) != 0) return ErrnoStatus("sync", path, errno);
    return OkStatus();
  }

  // False when nothing more can be written.
  bool WriteQueued(std::unique_lock<std::mutex>& lock) {
    while (!queue.empty() || dropped_logs.count > 0 || dropped_derived.count > 0 ||
           dropped_metrics.count > 0) {
      const std::string text = Format();
      Status result = WriteWithPatience(text, lock);
      if (result.ok() && is_file && file_bytes >= options.segment_bytes_max) {
        lock.unlock();
        result = Seal();
        lock.lock();
      }
      if (!result.ok()) {
        status = std::move(result);
        return false;
      }
      last_seq = next_seq - 1;
    }
    return true;
  }

  void Loop() {
    std::unique_lock lock(mu);
    last_sync = SteadyClock::now();
    while (true) {
      changed.wait_for(lock, options.sync_interval,
                       [this] { return !queue.empty() || is_closing; });
      if (!is_closing && !queue.empty()) {
        changed.wait_for(lock, kGatherTime, [this] { return is_closing; });
      }
      const bool was_closing = is_closing;
      const bool is_alive = WriteQueued(lock);
      if (is_alive && (was_closing || SteadyClock::now() - last_sync >= options.sync_interval)) {
        lock.unlock();
        Status result = Sync();
        lock.lock();
        if (!result.ok()) status = std::move(result);
      }
      if (!status.ok()) {
        // After an ambiguous write nothing more is tried; what is queued is lost and said so.
        queue.clear();
        queue_bytes = 0;
      }
      if (was_closing && queue.empty()) break;
      if (!status.ok()) changed.wait(lock, [this] { return is_closing; });
    }
    is_closed = true;
    changed.notify_all();
  }
};

EventWriter::EventWriter(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->thread = std::thread([state = state_.get()] { state->Loop(); });
}

Result<std::unique_ptr<EventWriter>> EventWriter::Open(const std::string& path, Options options) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.is_valid()) return ErrnoStatus("open", path, errno);
  struct stat facts;
  if (fstat(fd.get(), &facts) != 0) return ErrnoStatus("stat", path, errno);
  if (!S_ISREG(facts.st_mode)) return FailedPrecondition(StrCat(path, " is not a regular file"));
  if (facts.st_size != 0) {
    return FailedPrecondition(
        StrCat(path, " holds ", facts.st_size, " bytes already: an attempt runs once"));
  }
  auto state = std::make_unique<State>();
  state->options = options;
  state->fd = std::move(fd);
  state->path = path;
  state->is_file = true;
  return std::unique_ptr<EventWriter>(new EventWriter(std::move(state)));
}

std::unique_ptr<EventWriter> EventWriter::ForDescriptor(UniqueFd fd, Options options) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->fd = std::move(fd);
  state->path = "standard output";
  return std::unique_ptr<EventWriter>(new EventWriter(std::move(state)));
}

EventWriter::~EventWriter() {
  // Destructors report nothing: whoever needs the outcome has called Close.
  (void)Close(std::chrono::milliseconds(0));
}

void EventWriter::Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) {
  state_->Push({.kind = Item::Kind::kScalars, .step = step, .scalars = std::move(values)});
}

void EventWriter::Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
                         std::vector<float> values) {
  state_->Push({.kind = Item::Kind::kVector,
                .step = step,
                .name = std::move(name),
                .shape = std::move(shape),
                .values = std::move(values)});
}

void EventWriter::Line(std::string type, std::string members) {
  state_->Push({.name = std::move(type), .members = std::move(members)});
}

void EventWriter::Phase(std::string name) {
  Line("phase", StrCat("\"ms\":", state_->ElapsedMs(), ",\"name\":", JsonText(name)));
}

void EventWriter::Log(std::string text) {
  if (text.size() > kLogBytesMax) text.resize(kLogBytesMax);
  state_->Push({.name = "log",
                .members = StrCat("\"ms\":", state_->ElapsedMs(), ",\"text\":", JsonText(text))});
}

Status EventWriter::health() const {
  const std::lock_guard lock(state_->mu);
  return state_->status.ok() ? state_->fault : state_->status;
}

std::string EventWriter::step_warning() const {
  const std::lock_guard lock(state_->mu);
  if (state_->fallen_points == 0) return "";
  return StrCat("warning: ", state_->first_fall, "; lenient_steps lets it stand, ",
                state_->fallen_points, " in all");
}

bool EventWriter::IsDerived(std::string_view series) {
  constexpr std::string_view kFolders[] = {"routing/", "train/aux/"};
  constexpr std::string_view kSeries[] = {"train/step_seconds", "train/tokens_per_second",
                                          "train/data_wait_seconds"};
  return std::ranges::any_of(kFolders, [&](auto folder) { return series.starts_with(folder); }) ||
         std::ranges::find(kSeries, series) != std::end(kSeries);
}

Status EventWriter::Close(std::chrono::milliseconds limit) {
  {
    const std::lock_guard lock(state_->mu);
    if (!state_->is_closing) {
      state_->is_closing = true;
      state_->close_by = SteadyClock::now() + limit;
    }
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
  const std::lock_guard lock(state_->mu);
  return state_->status;
}

uint64_t EventWriter::last_seq() const {
  const std::lock_guard lock(state_->mu);
  return state_->last_seq;
}

}  // namespace switchyard::trainer
