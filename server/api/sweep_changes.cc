#include "server/api/sweep_changes.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "common/spec/change.h"
#include "common/spec/document.h"
#include "common/spec/fault.h"
#include "common/spec/lay.h"
#include "common/spec/sweep_plan.h"
#include "server/api/expansion.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kNameMax = 64;

Result<std::vector<scheduler::CheckpointRow>> KeptCheckpoints(store::ReadStore& store, RunId run) {
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<scheduler::CheckpointRow> rows,
                              store.ListCheckpoints(run));
  std::erase_if(rows, [](const scheduler::CheckpointRow& row) {
    return row.state != scheduler::CheckpointState::kPublished;
  });
  return rows;
}

std::string StepsOf(const std::vector<scheduler::CheckpointRow>& rows) {
  if (rows.empty()) return "it keeps none";
  std::vector<std::string> steps;
  for (const scheduler::CheckpointRow& row : rows) steps.push_back(StrCat(row.step));
  return StrCat("it keeps those at step ", StrJoin(steps, ", "));
}

// best (also the empty name), last, or a step. Of two of one step, that of the newest attempt.
Result<scheduler::CheckpointRow> Choose(store::ReadStore& store, const store::RunInfo& run,
                                        const std::string& name) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::CheckpointRow> rows,
                              KeptCheckpoints(store, run.row.id));
  const scheduler::CheckpointRow* found = nullptr;
  const std::optional<uint64_t> step = ParseUint64(name);
  for (const scheduler::CheckpointRow& row : rows) {
    if (step.has_value()) {
      if (row.step == *step) found = &row;
      continue;
    }
    if (name == "last") {
      found = &row;
      continue;
    }
    const bool has_score = row.score.has_value() && std::isfinite(*row.score);
    const bool found_has = found != nullptr && found->score.has_value();
    if (found == nullptr || (has_score && !found_has) ||
        (has_score &&
         (run.row.policy.is_maximized ? *row.score > *found->score : *row.score < *found->score)) ||
        (!has_score && !found_has)) {
      found = &row;
    }
  }
  if (found != nullptr) return *found;
  return FailedPrecondition(StrCat("run ", run.sweep_name, "/", run.link.number,
                                   " has no checkpoint ", EscapeForTerminal(name), ": ",
                                   StepsOf(rows)));
}

Status ResolveOne(store::ReadStore& store, const std::string& path, pb::RunSpec* base) {
  if (base->init().run().empty() || !base->init().digest().empty()) return OkStatus();
  pb::InitSpec* init = base->mutable_init();
  const auto resolve = [&]() -> Status {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(init->run()));
    SWITCHYARD_ASSIGN_OR_RETURN(const scheduler::CheckpointRow row,
                                Choose(store, run, init->checkpoint()));
    init->set_run(run.row.id.value.ToString());
    init->set_step(row.step);
    init->set_digest(row.digest);
    init->clear_checkpoint();
    // The model is the checkpoint's; what the document says lies over it.
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document,
                                store.GetRunDocument(run.row.id));
    pb::RunSpec parent;
    if (!parent.ParseFromString(document.spec)) {
      return DataLoss(StrCat("the stored document of run ", init->run(), " cannot be read"));
    }
    parent.mutable_model()->MergeFrom(base->model());
    *base->mutable_model() = std::move(*parent.mutable_model());
    return OkStatus();
  };
  const Status status = resolve();
  return status.ok() ? status : Status{status.code(), StrCat(path, ".init: ", status.message())};
}

}  // namespace

Status ResolveInit(store::ReadStore& store, pb::SweepSpec* spec) {
  SWITCHYARD_RETURN_IF_ERROR(ResolveOne(store, "base", spec->mutable_base()));
  for (pb::StageSpec& stage : *spec->mutable_stages()) {
    if (!stage.has_base()) continue;
    SWITCHYARD_RETURN_IF_ERROR(
        ResolveOne(store, StrCat("stages.", stage.id(), ".base"), stage.mutable_base()));
  }
  return OkStatus();
}

Result<ExtendInput> PlanExtend(store::ReadStore& store, const pb::ExtendSweepRequest& request) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/true));
  ExtendInput input{.sweep = sweep.row.id,
                    .old = nullptr,
                    .extended = nullptr,
                    .extensions = {},
                    .request_id = request.request_id()};
  SWITCHYARD_ASSIGN_OR_RETURN(input.old, Expansion::Parse(sweep.row.spec));
  pb::SweepSpec spec = request.has_spec() ? request.spec() : input.old->document();
  if (request.has_spec() == (request.replicates() > 0)) {
    return InvalidArgument("an extension takes either a document or a number of replicates");
  }
  if (request.replicates() > 0) {
    if (!spec.stages().empty()) {
      return InvalidArgument(
          "replicates of a sweep with stages are added in its file, stage by stage");
    }
    spec::AddReplicates(input.old->plan().seeds(), request.replicates(), &spec);
  }
  SWITCHYARD_RETURN_IF_ERROR(ResolveInit(store, &spec));
  SWITCHYARD_ASSIGN_OR_RETURN(input.extended, Expansion::Make(spec));
  std::vector<spec::Fault> faults;
  auto extensions = spec::PlanExtension(input.old->document(), spec, &faults);
  if (!extensions.has_value()) return InvalidArgument(spec::ToString(faults));
  input.extensions = *std::move(extensions);
  return input;
}

Status PlanFork(store::ReadStore& store, const pb::ForkRunRequest& request, pb::SweepSpec* spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  SWITCHYARD_ASSIGN_OR_RETURN(const scheduler::CheckpointRow row,
                              Choose(store, run, StrCat(request.step())));
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, store.GetRunDocument(run.row.id));
  pb::RunSpec parent;
  pb::AttemptSpec attempt;
  if (!parent.ParseFromString(document.spec) || !attempt.ParseFromString(document.attempt_spec)) {
    return DataLoss(
        StrCat("the stored document of run ", run.row.id.value.ToString(), " cannot be read"));
  }
  std::vector<spec::PathValue> sets;
  for (const pb::SetEntry& set : request.sets()) {
    if (spec::IsPolicyPath(set.path())) {
      return InvalidArgument(StrCat("--set ", EscapeForTerminal(set.path()),
                                    ": a fork has the policy of its run; only its spec is set"));
    }
    sets.push_back({.path = set.path(), .value = spec::NodeFromValue(set.value())});
  }
  std::vector<spec::Fault> faults;
  pb::RunSpec fork;
  if (!spec::MakeFork(parent, run.row.id.value.ToString(), row.step, row.digest, sets, &fork,
                      &faults)) {
    return InvalidArgument(spec::ToString(faults));
  }
  const std::string suffix = StrCat("-fork-", run.link.number, "-", row.step);
  spec->set_name(run.sweep_name.substr(0, kNameMax - std::min(kNameMax, suffix.size())) + suffix);
  spec->set_project(run.row.project);
  spec->mutable_replicates()->add_seeds(fork.seed());
  *spec->mutable_objective() = attempt.objective();
  // Filled in by whoever expands the sweep.
  fork.clear_seed();
  fork.clear_numerics_class();
  *spec->mutable_base() = std::move(fork);
  *spec->mutable_policy()->mutable_telemetry() = attempt.telemetry();
  *spec->mutable_policy()->mutable_checkpoint() = attempt.checkpoint();
  pb::ResourceSpec* resources = spec->mutable_policy()->mutable_resources();
  if (run.row.need.kind == scheduler::SlotKind::kGpu) {
    resources->set_gpus(run.row.need.count);
  } else {
    resources->set_cpu_slots(run.row.need.count);
  }
  return OkStatus();
}

}  // namespace switchyard::api
