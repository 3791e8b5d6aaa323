#include "worker/trainer/step_gate.h"

#include <utility>

namespace switchyard::trainer {

void StepGate::Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) {
  step_.store(step, std::memory_order_relaxed);
  events_.Scalars(step, std::move(values));
}

void StepGate::Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
                      std::vector<float> values) {
  events_.Vector(step, std::move(name), std::move(shape), std::move(values));
}

void StepGate::Line(std::string type, std::string members) {
  events_.Line(std::move(type), std::move(members));
}

void StepGate::Phase(std::string name) { events_.Phase(std::move(name)); }

void StepGate::Log(std::string text) { events_.Log(std::move(text)); }

Status StepGate::health() const { return events_.health(); }

train::StopIntent StepGate::Poll() {
  const train::StopIntent asked = stop_.Poll();
  if (asked != train::StopIntent::kNone) return asked;
  const bool is_there = stop_at_ > 0 && step_.load(std::memory_order_relaxed) >= stop_at_;
  return is_there ? train::StopIntent::kStop : train::StopIntent::kNone;
}

void StepGate::ExitIfPast() { stop_.ExitIfPast(); }

}  // namespace switchyard::trainer
