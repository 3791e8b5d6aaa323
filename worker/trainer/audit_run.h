#pragma once

#include <functional>
#include <string>

#include "worker/train/exit_code.h"

namespace switchyard::data {
struct Corpus;
}
namespace switchyard::model {
class LanguageModel;
}
namespace switchyard::train {
class EventSink;
}
namespace switchyard::v1 {
class AttemptSpec;
class RunSpec;
}  // namespace switchyard::v1

namespace switchyard::trainer {

// Audits a model that has just been trained `step` updates, and records the verdict with its run;
// says so in the log where it cannot (too large, no memory). Never fails the run.
void AuditTrained(const v1::RunSpec& run, const data::Corpus& corpus,
                  const model::LanguageModel& model, uint64_t step, train::EventSink& events,
                  train::StopSource& stop);

// A run of kind analyze with the job `audit`, `run.model` and `run.init` {run, step, digest}: reads
// that checkpoint from where this host keeps those of the run (beside `attempt.checkpoint_dir`),
// audits it, and records the verdict. `say` gets the report for a person. Throws what the model
// throws.
train::Ending RunAudit(const v1::RunSpec& run, const v1::AttemptSpec& attempt,
                       const data::Corpus& corpus, train::EventSink& events,
                       train::StopSource& stop, const std::function<void(std::string)>& say);

}  // namespace switchyard::trainer
