#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "worker/train/exit_code.h"

namespace switchyard::trainer {

// What the agent asks of this attempt through its lease page, and what signals ask of the process.
// A thread of its own ends the process (`_exit(76)`, no file touched) once the lease or the stop
// deadline has passed or the page is another attempt's, whatever the other threads do; Poll and
// ExitIfPast check the same, should that thread be starved. Poll on the training thread only.
class LeaseWatch final : public train::StopSource {
 public:
  // kDataLoss and kNotFound as LeaseReader::Open. kFailedPrecondition: the page's epoch is not
  // `epoch`.
  static Result<std::unique_ptr<LeaseWatch>> Start(
      const std::string& lease_path, uint64_t epoch,
      std::chrono::milliseconds period = std::chrono::milliseconds(250));
  // A run by hand: signals only.
  static std::unique_ptr<LeaseWatch> SignalsOnly();
  ~LeaseWatch() override;

  train::StopIntent Poll() override;
  // Ends the process with 76 if the lease is past: before a checkpoint is published and before an
  // exit record. Any thread.
  void ExitIfPast() override;
  // How much of the derived series is to be left out (lease page); any thread.
  uint32_t pressure() const;

 private:
  struct State;
  explicit LeaseWatch(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// SIGTERM, SIGINT and SIGHUP ask for a stop, seen by every LeaseWatch::Poll; at SIGUSR2 the thread
// that gets it, which is the training thread unless it blocks the signal, prints its stack to
// standard error; SIGPIPE is ignored. Once, in main, before other threads start.
void InstallSignalHandlers();

}  // namespace switchyard::trainer
