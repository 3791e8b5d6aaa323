#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/train/exit_code.h"

namespace c10 {
struct Device;
}
namespace switchyard::data {
struct Corpus;
}
namespace switchyard::model {
class LanguageModel;
}
namespace switchyard::v1 {
class AttemptSpec;
class RunSpec;
}  // namespace switchyard::v1

namespace switchyard::train {

class EventSink;
struct Checkpoint;

// What a run needs; all borrowed for the call.
struct LoopSetup {
  const v1::RunSpec& run;  // with defaults filled in
  // Identity, policy, objective; without `checkpoint_dir` no checkpoint is written.
  const v1::AttemptSpec& attempt;
  const data::Corpus& corpus;
  model::LanguageModel& model;
  const c10::Device& device;
  EventSink& events;
  StopSource& stop;
  // Another run's that this one goes on from with everything restored; null: from the start.
  const Checkpoint* start = nullptr;
  // Written once, behind the resume line: sizes and cost of the model.
  std::vector<std::pair<std::string, double>> model_facts;
};

// Trains to the last step, to a stop, or to a guard; resumes first when the attempt says so. Each
// step: metric line, due evaluation, due checkpoint. The same setup gives the same bits on one
// thread, whether or not the run was stopped and resumed on the way. Throws what the model throws.
Ending RunTraining(const LoopSetup& setup);

}  // namespace switchyard::train
