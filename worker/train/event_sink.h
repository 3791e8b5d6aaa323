#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace switchyard::train {

// Where a run says what happens to it: the lines of events.jsonl, in the order of the calls. No
// call blocks on a disk. Implementations are thread-safe.
class EventSink {
 public:
  virtual ~EventSink() = default;

  // One `m` line: scalars of a step.
  virtual void Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) = 0;
  // One `m` line: a vector of a step.
  virtual void Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
                      std::vector<float> values) = 0;
  // Lines that are never dropped: hello, resume, ckpt, result, end. `members`: JSON members without
  // braces.
  virtual void Line(std::string type, std::string members) = 0;
  // What the trainer begins to do: load_data, build_model, train, evaluate. Never dropped.
  virtual void Phase(std::string name) = 0;
  // A message for a person; the first to be dropped under pressure.
  virtual void Log(std::string text) = 0;
  // What broke recording for good (not a full disk, which is waited for); ok while it works.
  virtual Status health() const = 0;
};

}  // namespace switchyard::train
