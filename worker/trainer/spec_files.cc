#include "worker/trainer/spec_files.h"

#include <google/protobuf/util/json_util.h>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/fault.h"
#include "common/spec/path.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::trainer {
namespace {

constexpr uint64_t kSpecBytesMax = 4 << 20;

Status ReadJson(const std::string& path, google::protobuf::Message* message) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kSpecBytesMax));
  const auto status = google::protobuf::util::JsonStringToMessage(text, message);
  if (!status.ok()) return InvalidArgument(StrCat(path, ": ", std::string(status.message())));
  return OkStatus();
}

// The one job there is: `audit`, of a checkpoint that is named to the bit, with its model and data.
Status CheckAudit(const v1::RunSpec& run) {
  if (run.analyze().jobs_size() != 1 || run.analyze().jobs(0).id() != "audit") {
    return InvalidArgument("analyze.jobs: this trainer has the job audit only");
  }
  if (run.init().run().empty() || run.init().digest().empty() || !run.init().has_step()) {
    return InvalidArgument(
        "init: an audit needs run, step and digest (switchyard audit fills them)");
  }
  if (!run.has_model() || !run.has_data()) {
    return InvalidArgument("an audit needs the model and the data of the run that it audits");
  }
  return OkStatus();
}

// What a sweep file may say and this trainer does not do yet: refused, for it would otherwise train
// something else than what was asked for.
Status CheckIsDone(const v1::RunSpec& run) {
  if (run.inputs_size() > 0) return InvalidArgument("this trainer reads no inputs");
  if (run.kind() == v1::RUN_KIND_ANALYZE) return CheckAudit(run);
  if (run.kind() != v1::RUN_KIND_TRAIN && run.kind() != v1::RUN_KIND_FINETUNE) {
    return InvalidArgument("this trainer runs the kinds train, finetune and analyze only");
  }
  for (const std::string_view path :
       {"train.parallel", "train.task", "train.trainable", "guards.divergence",
        "guards.router_collapse", "guards.dead_expert", "eval.final"}) {
    if (spec::IsPresent(run, path)) return InvalidArgument(StrCat("this trainer has no ", path));
  }
  return OkStatus();
}

}  // namespace

Status ReadRunFile(const std::string& path, v1::RunSpec* run) {
  SWITCHYARD_RETURN_IF_ERROR(ReadJson(path, run));
  if (!run->has_seed()) run->set_seed(1);
  spec::FillDefaults(run);
  const std::vector<spec::Fault> faults = spec::ValidateRun(*run);
  if (!faults.empty()) return InvalidArgument(StrCat(path, ":\n", spec::ToString(faults)));
  return CheckIsDone(*run);
}

Status ReadAttemptFile(const std::string& path, v1::AttemptSpec* attempt) {
  return ReadJson(path, attempt);
}

Status CheckRunKey(const v1::RunSpec& run, const v1::AttemptSpec& attempt) {
  const std::string key = spec::RunKey(run);
  if (key == attempt.run_key()) return OkStatus();
  return InvalidArgument(
      StrCat("the run's identity is ", key, ", the attempt is one of ", attempt.run_key()));
}

}  // namespace switchyard::trainer
