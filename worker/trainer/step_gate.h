#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/train/event_sink.h"
#include "worker/train/exit_code.h"

namespace switchyard::trainer {

// Lets a run go to a given step and asks it to stop there, as a worker would; everything else goes
// through. For runs by hand whose length must not change their spec, and so their schedule. Borrows
// both for its life. Thread-safe as far as they are.
class StepGate final : public train::EventSink, public train::StopSource {
 public:
  // `stop_at` 0: no gate.
  StepGate(train::EventSink& events, train::StopSource& stop, uint64_t stop_at)
      : events_(events), stop_(stop), stop_at_(stop_at) {}

  void Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) override;
  void Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
              std::vector<float> values) override;
  void Line(std::string type, std::string members) override;
  void Phase(std::string name) override;
  void Log(std::string text) override;
  Status health() const override;

  train::StopIntent Poll() override;
  void ExitIfPast() override;

 private:
  train::EventSink& events_;
  train::StopSource& stop_;
  const uint64_t stop_at_;
  std::atomic<uint64_t> step_{0};  // of the newest line
};

}  // namespace switchyard::trainer
