#include "worker/trainer/lease_watch.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/events/lease_page.h"

namespace switchyard::trainer {
namespace {

// A signal handler can reach nothing else.
volatile sig_atomic_t stop_signal_seen = 0;

void OnStopSignal(int) { stop_signal_seen = 1; }

constexpr int kFramesMax = 64;

// Between the lines of a hung trainer's standard error: where it hangs.
void OnDumpSignal(int) {
  std::array<void*, kFramesMax> frames{};
  const int count = backtrace(frames.data(), kFramesMax);
  constexpr std::string_view kTitle = "stack of the training thread:\n";
  (void)!write(STDERR_FILENO, kTitle.data(), kTitle.size());
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
}

[[noreturn]] void ExitFenced() { _exit(static_cast<int>(train::ExitCode::kFenced)); }

bool MustBeGone(const events::Lease& lease, uint64_t epoch) {
  return lease.epoch != epoch || lease.IsPast(BoottimeNanoseconds());
}

}  // namespace

struct LeaseWatch::State {
  uint64_t epoch = 0;
  std::chrono::milliseconds period{250};
  std::unique_ptr<events::LeaseReader> training_reader;  // null: a run by hand
  std::unique_ptr<events::LeaseReader> watchdog_reader;
  std::mutex fence_mu;
  std::unique_ptr<events::LeaseReader> fence_reader;  // guarded by fence_mu
  std::atomic<uint32_t> pressure = 0;

  std::mutex mu;
  std::condition_variable changed;
  bool is_stopping = false;  // guarded by mu
  std::thread thread;

  void Loop() {
    std::unique_lock lock(mu);
    while (!is_stopping) {
      if (MustBeGone(watchdog_reader->Read(), epoch)) ExitFenced();
      pressure = watchdog_reader->ReadPressure();
      changed.wait_for(lock, period, [this] { return is_stopping; });
    }
  }
};

LeaseWatch::LeaseWatch(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<LeaseWatch>> LeaseWatch::Start(const std::string& lease_path, uint64_t epoch,
                                                      std::chrono::milliseconds period) {
  auto state = std::make_unique<State>();
  state->epoch = epoch;
  state->period = period;
  SWITCHYARD_ASSIGN_OR_RETURN(state->training_reader, events::LeaseReader::Open(lease_path));
  SWITCHYARD_ASSIGN_OR_RETURN(state->watchdog_reader, events::LeaseReader::Open(lease_path));
  SWITCHYARD_ASSIGN_OR_RETURN(state->fence_reader, events::LeaseReader::Open(lease_path));
  const uint64_t found = state->training_reader->Read().epoch;
  if (found != epoch) {
    return FailedPrecondition(StrCat(lease_path, " is of epoch ", found, ", this is ", epoch));
  }
  state->thread = std::thread([state = state.get()] { state->Loop(); });
  return std::unique_ptr<LeaseWatch>(new LeaseWatch(std::move(state)));
}

std::unique_ptr<LeaseWatch> LeaseWatch::SignalsOnly() {
  return std::unique_ptr<LeaseWatch>(new LeaseWatch(std::make_unique<State>()));
}

LeaseWatch::~LeaseWatch() {
  {
    const std::lock_guard lock(state_->mu);
    state_->is_stopping = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

train::StopIntent LeaseWatch::Poll() {
  if (state_->training_reader != nullptr) {
    const events::Lease& lease = state_->training_reader->Read();
    if (MustBeGone(lease, state_->epoch)) ExitFenced();
    switch (lease.intent) {
      case events::LeaseIntent::kKill:
        return train::StopIntent::kKill;
      case events::LeaseIntent::kDrain:
      case events::LeaseIntent::kCancel:
        return train::StopIntent::kStop;
      case events::LeaseIntent::kRun:
        break;
    }
  }
  return stop_signal_seen != 0 ? train::StopIntent::kStop : train::StopIntent::kNone;
}

void LeaseWatch::ExitIfPast() {
  if (state_->fence_reader == nullptr) return;
  const std::lock_guard lock(state_->fence_mu);
  if (MustBeGone(state_->fence_reader->Read(), state_->epoch)) ExitFenced();
}

uint32_t LeaseWatch::pressure() const { return state_->pressure; }

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  // Its first call loads a library, which a handler must not.
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);
  action.sa_handler = OnDumpSignal;
  sigaction(SIGUSR2, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace switchyard::trainer
