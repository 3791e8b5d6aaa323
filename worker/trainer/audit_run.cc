#include "worker/trainer/audit_run.h"

#include <filesystem>
#include <memory>
#include <new>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/analysis/audit.h"
#include "worker/data/corpus.h"
#include "worker/model/model.h"
#include "worker/train/checkpoint.h"
#include "worker/train/event_sink.h"

namespace switchyard::trainer {
namespace {

namespace pb = ::switchyard::v1;
using train::Ending;
using train::ExitCode;

// Parameters up to which every trained model is audited: 1.6 GB in float64, and seconds to minutes.
constexpr int64_t kTrainedAuditParametersMax = 200'000'000;

Ending Failure(ExitCode code, std::string reason) {
  return {.code = code, .reason = std::move(reason)};
}

// Option `length` of the job: tokens of a window at most.
Result<int64_t> LengthOption(const pb::RunSpec& run) {
  int64_t length = analysis::kAuditLengthMax;
  for (const pb::ValueEntry& option : run.analyze().jobs(0).options()) {
    const auto number = ParseUint64(option.value().scalar());
    if (option.key() != "length") {
      return InvalidArgument(StrCat("analyze.jobs.audit: no option ",
                                    EscapeForTerminal(option.key()), "; known: length"));
    }
    if (!number || *number < 2 || *number > analysis::kAuditLengthMax) {
      return InvalidArgument(
          StrCat("analyze.jobs.audit.length: ", EscapeForTerminal(option.value().scalar()),
                 " is not a number from 2 to ", analysis::kAuditLengthMax));
    }
    length = static_cast<int64_t>(*number);
  }
  return length;
}

}  // namespace

void AuditTrained(const pb::RunSpec& run, const data::Corpus& corpus,
                  const model::LanguageModel& model, uint64_t step, train::EventSink& events,
                  train::StopSource& stop) {
  const train::NamedTensors live = train::ModelTensors(model);
  int64_t parameters = 0;
  for (const auto& [name, tensor] : live) parameters += tensor.numel();
  if (parameters > kTrainedAuditParametersMax || corpus.vocab_size < 2) {
    events.Log(StrCat("not audited on its own with ", parameters, " parameters and ",
                      corpus.vocab_size, " ids: switchyard audit does it"));
    return;
  }
  try {
    const analysis::AuditReport report =
        analysis::AuditModel(run, corpus, live, step, run.train().target_len(),
                             [&] { return stop.Poll() == train::StopIntent::kNone; });
    if (report.probes.empty()) return;
    events.Scalars(step, analysis::AuditSeries(report));
    if (report.has_undeclared()) events.Log(StrCat("audit:\n", analysis::AuditText(report)));
  } catch (const c10::Error& error) {
    events.Log(StrCat("not audited: ", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    events.Log("not audited: no memory for the model in float64");
  }
}

Ending RunAudit(const pb::RunSpec& run, const pb::AttemptSpec& attempt, const data::Corpus& corpus,
                train::EventSink& events, train::StopSource& stop,
                const std::function<void(std::string)>& say) {
  const auto length = LengthOption(run);
  if (!length.ok()) return Failure(ExitCode::kSpec, length.status().message());
  const std::filesystem::path folder =
      std::filesystem::path(attempt.checkpoint_dir()).parent_path() / run.init().run();
  const auto checkpoint =
      train::FindCheckpoint(folder.string(), run.init().step(), run.init().digest());
  if (!checkpoint.ok()) {
    return Failure(ExitCode::kData, StrCat("init, on this host: ", checkpoint.status().message()));
  }
  const auto model = model::MakeModel(
      run, {.vocab_size = corpus.vocab_size, .token_frequency = corpus.train_frequency});
  const train::NamedTensors live = train::ModelTensors(*model);
  if (const Status status = train::MatchTensors(*(*checkpoint)->model, live); !status.ok()) {
    return Failure(ExitCode::kData, status.message());
  }
  train::CopyTensors(*(*checkpoint)->model, live);
  const uint64_t step = (*checkpoint)->info.step;
  const analysis::AuditReport report = analysis::AuditModel(
      run, corpus, live, step, *length, [&] { return stop.Poll() == train::StopIntent::kNone; });
  if (report.probes.empty()) return Failure(ExitCode::kStopped, "stopped on request");
  events.Scalars(step, analysis::AuditSeries(report));
  say(analysis::AuditText(report));
  return {.code = ExitCode::kDone, .complete = true, .final_step = step};
}

}  // namespace switchyard::trainer
