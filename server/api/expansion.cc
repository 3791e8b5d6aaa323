#include "server/api/expansion.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/change.h"
#include "common/spec/fault.h"
#include "common/spec/series.h"
#include "common/spec/space.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_plan.h"
#include "server/api/strategy.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

// Runs a person would not read further than.
constexpr size_t kFaultsShown = 20;
// More than any cluster has; keeps the milliseconds exact.
constexpr double kSlotHoursMax = 1e9;

Status FaultStatus(std::vector<spec::Fault> faults) {
  const size_t all = faults.size();
  if (all > kFaultsShown) faults.resize(kFaultsShown);
  std::string text = spec::ToString(faults);
  if (all > kFaultsShown) text += StrCat("and ", all - kFaultsShown, " more");
  return InvalidArgument(std::move(text));
}

std::string PrimaryMetric(const pb::RunSpec& run) {
  switch (spec::TokensOf(run)) {
    case pb::TOKENS_WORD:
      return "word_ppl";
    case pb::TOKENS_TXL204:
      return "bits_per_token";
    default:
      return "bits_per_byte";
  }
}

pb::ObjectiveSpec ResolveObjective(const pb::ObjectiveSpec& written, const pb::RunSpec& run) {
  pb::ObjectiveSpec objective = written;
  if (objective.metric().empty()) objective.set_metric("valid/primary");
  objective.set_metric(spec::ResolvePrimary(objective.metric(), PrimaryMetric(run)));
  if (objective.goal() == pb::GOAL_UNSPECIFIED) {
    objective.set_goal(spec::SeriesDirection(objective.metric()) == spec::Direction::kMaximize
                           ? pb::GOAL_MAXIMIZE
                           : pb::GOAL_MINIMIZE);
  }
  if (objective.value() == pb::OBJECTIVE_VALUE_UNSPECIFIED) {
    objective.set_value(pb::OBJECTIVE_VALUE_BEST);
  }
  return objective;
}

scheduler::SlotNeed SlotsOf(uint32_t gpus, uint32_t cpu_slots) {
  return gpus > 0 ? scheduler::SlotNeed{scheduler::SlotKind::kGpu, gpus}
                  : scheduler::SlotNeed{scheduler::SlotKind::kCpu, std::max(1u, cpu_slots)};
}

scheduler::RunPolicy PolicyOf(const pb::PolicySpec& policy, const pb::ObjectiveSpec& objective) {
  scheduler::RunPolicy out;
  const pb::ResourceSpec& resources = policy.resources();
  switch (policy.on_disconnect()) {
    case pb::ON_DISCONNECT_EXCLUSIVE:
      out.profile = scheduler::Profile::kExclusive;
      break;
    case pb::ON_DISCONNECT_LOCAL:
      out.profile = scheduler::Profile::kLocal;
      break;
    default:
      out.profile = scheduler::Profile::kResilient;
  }
  out.memory_bytes = resources.memory_bytes();
  out.exclusive = resources.exclusive();
  out.labels = {resources.labels().begin(), resources.labels().end()};
  for (const pb::ResourceAlternative& alternative : resources.alternatives()) {
    // Fields that it does not set are those of the resources.
    scheduler::ResourceNeed need;
    need.slots =
        SlotsOf(alternative.has_gpus() ? alternative.gpus() : resources.gpus(),
                alternative.has_cpu_slots() ? alternative.cpu_slots() : resources.cpu_slots());
    need.memory_bytes =
        alternative.has_memory_bytes() ? alternative.memory_bytes() : resources.memory_bytes();
    out.alternatives.push_back(need);
  }
  for (const uint32_t code : policy.retry().exit_codes()) {
    out.user_codes.push_back(static_cast<int32_t>(code));
  }
  const auto& texts = policy.retry().log_patterns();
  out.user_texts = {texts.begin(), texts.end()};
  if (!out.user_codes.empty() || !out.user_texts.empty()) {
    out.user_budget = policy.retry().has_max() ? policy.retry().max() : 2;
  }
  if (policy.checkpoint().has_keep_last()) out.keep_last = policy.checkpoint().keep_last();
  if (policy.checkpoint().has_keep_best()) out.keep_best = policy.checkpoint().keep_best();
  out.is_maximized = objective.goal() == pb::GOAL_MAXIMIZE;
  out.objective = objective.metric();
  out.is_objective_last = objective.value() == pb::OBJECTIVE_VALUE_LAST;
  return out;
}

// The checkpoint of another run that it begins with: of several, the first one.
std::optional<scheduler::PlannedRun::Start> StartOf(const pb::RunSpec& run) {
  const bool has_inputs = run.inputs_size() > 0;
  if (!has_inputs && run.init().run().empty()) return std::nullopt;
  const Result<Uuid> id = Uuid::Parse(has_inputs ? run.inputs(0).run() : run.init().run());
  if (!id.ok()) return std::nullopt;
  return scheduler::PlannedRun::Start{
      .run = {*id}, .step = has_inputs ? run.inputs(0).step() : run.init().step()};
}

scheduler::PlannedRun MakeRow(const spec::PlannedRun& planned, const std::string& project,
                              const PlannedSpace& space, int64_t unix_ms) {
  pb::ObjectiveSpec objective;
  objective.ParseFromString(space.objective);
  scheduler::PlannedRun out;
  out.number = planned.number;
  out.cell = planned.cell;
  if (!space.stage.empty()) out.columns.emplace_back("stage", space.stage);
  out.columns.insert(out.columns.end(), planned.columns.begin(), planned.columns.end());
  out.start = StartOf(*planned.run);
  scheduler::RunRow& row = out.run;
  row.project = project;
  row.run_key = planned.run_key;
  row.seed = planned.seed;
  row.router = planned.router;
  const pb::PolicySpec& policy = *planned.policy;
  row.priority = policy.priority();
  row.need = SlotsOf(policy.resources().gpus(), policy.resources().cpu_slots());
  row.policy = PolicyOf(policy, objective);
  row.policy.keep_steps.assign(planned.run->train().keep_steps().begin(),
                               planned.run->train().keep_steps().end());
  row.max_parallel = policy.max_parallel();
  row.timeout_ms = policy.timeout_ms();
  row.steps_total = planned.run->train().steps();
  row.spec = planned.run->SerializeAsString();
  pb::AttemptSpec attempt;
  attempt.set_run_key(planned.run_key);
  *attempt.mutable_telemetry() = policy.telemetry();
  *attempt.mutable_checkpoint() = policy.checkpoint();
  *attempt.mutable_objective() = objective;
  row.attempt_spec = attempt.SerializeAsString();
  row.created_ms = unix_ms;
  return out;
}

// What a sweep file may say and this coordinator does not do yet: refused, for its runs would be
// others than those that were asked for.
Status CheckIsServed(const pb::SweepSpec& spec, const pb::PolicySpec& policy) {
  const auto refuse = [](std::string_view field) {
    return InvalidArgument(StrCat(field, ": is not served by this coordinator"));
  };
  if (spec.budget().has_runs()) return refuse("budget.runs");
  if (spec.budget().has_tokens()) return refuse("budget.tokens");
  if (spec.budget().has_active_flops()) return refuse("budget.active_flops");
  for (const pb::ResourceAlternative& alternative : policy.resources().alternatives()) {
    if (!alternative.labels().empty()) return refuse("resources.alternatives.labels");
  }
  return OkStatus();
}

// Every column that a run of a sweep with stages can have.
std::vector<std::string> StageAxes(const pb::SweepSpec& sweep) {
  std::vector<std::string> axes = {"stage"};
  const auto add = [&axes](const std::string& name) {
    if (std::ranges::find(axes, name) == axes.end()) axes.push_back(name);
  };
  for (const pb::StageSpec& stage : sweep.stages()) {
    std::vector<spec::Fault> ignored;  // checked before
    const spec::Space space = spec::ReadSpace(stage.space(), "space", nullptr, "", &ignored);
    for (const spec::Axis* axis : spec::AllAxes(space)) add(axis->name);
    if (stage.from() == pb::STAGE_FROM_EVERY) add("step");
  }
  return axes;
}

}  // namespace

Expansion::Expansion() = default;
Expansion::~Expansion() = default;

Result<std::shared_ptr<const Expansion>> Expansion::Make(const pb::SweepSpec& spec) {
  std::vector<spec::Fault> faults;
  std::shared_ptr<Expansion> out(new Expansion);
  out->document_ = std::make_unique<const pb::SweepSpec>(spec);
  std::shared_ptr<const spec::SweepPlan> plan = spec::SweepPlan::Make(spec, &faults);
  if (!faults.empty()) return FaultStatus(std::move(faults));
  for (const pb::StageSpec& stage : spec.stages()) {
    if (stage.has_needs()) continue;
    std::shared_ptr<const spec::SweepPlan> root = spec::PlanStage(spec, stage, &faults);
    if (root == nullptr) return FaultStatus(std::move(faults));
    SWITCHYARD_ASSIGN_OR_RETURN(PlannedSpace space, out->SpaceOf(stage.id(), std::move(root)));
    out->roots_.push_back(std::move(space));
  }
  if (spec.stages().empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(PlannedSpace space, out->SpaceOf("", std::move(plan)));
    out->roots_.push_back(std::move(space));
  }
  scheduler::SweepRow& row = out->row_;
  row.objective = spec.stages().empty() ? spec.objective().SerializeAsString()
                                        : spec.stages(0).objective().SerializeAsString();
  if (!out->roots_.empty()) {
    const PlannedSpace& first = out->roots_.front();
    const spec::PlannedRun example = first.plan->Example(&faults);
    if (!faults.empty()) return FaultStatus(std::move(faults));
    SWITCHYARD_RETURN_IF_ERROR(CheckIsServed(spec, *example.policy));
    out->max_parallel_ = example.policy->max_parallel();
    row.objective = first.objective;
  }
  row.project = spec.project().empty() ? "default" : spec.project();
  row.base_name = spec.name();
  row.name = spec.name();
  row.spec_hash = spec::SweepHash(spec);
  row.spec = spec.SerializeAsString();
  row.axes = spec.stages().empty() ? out->plan().axes() : StageAxes(spec);
  row.is_drawn = !spec.stages().empty() || out->plan().is_drawn();
  for (const PlannedSpace& root : out->roots_) {
    const uint64_t cells =
        root.plan->is_drawn() ? root.plan->drawn_cells() : root.plan->cell_count();
    row.cells += cells;
    row.runs += cells * root.plan->seeds().size();
    if (!root.plan->is_drawn()) continue;
    const auto search = out->MakeSearch(root);
    if (!search.ok()) return search.status();
  }
  row.budget_slot_ms = static_cast<uint64_t>(
      std::min(std::max(0.0, spec.budget().slot_hours()), kSlotHoursMax) * 3600 * 1000);
  return std::shared_ptr<const Expansion>(std::move(out));
}

Result<std::shared_ptr<const Expansion>> Expansion::Parse(std::string_view bytes) {
  pb::SweepSpec spec;
  if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLoss("a stored sweep document cannot be read");
  }
  return Make(spec);
}

Result<PlannedSpace> Expansion::SpaceOf(const std::string& stage,
                                        std::shared_ptr<const spec::SweepPlan> plan) const {
  std::vector<spec::Fault> faults;
  const spec::PlannedRun example = plan->Example(&faults);
  if (!faults.empty()) return FaultStatus(std::move(faults));
  const pb::StageSpec* found = spec::FindStage(*document_, stage);
  const pb::ObjectiveSpec& objective =
      found == nullptr ? document_->objective() : found->objective();
  return PlannedSpace{.stage = stage,
                      .plan = std::move(plan),
                      .objective = ResolveObjective(objective, *example.run).SerializeAsString()};
}

Result<std::vector<scheduler::PlannedRun>> Expansion::Expand(uint64_t first, uint64_t count,
                                                             int64_t unix_ms) const {
  std::vector<scheduler::PlannedRun> out;
  if (row_.is_drawn) return out;
  const uint64_t end = std::min(row_.runs + 1, first + count);
  for (uint64_t number = first; number < end; ++number) {
    SWITCHYARD_ASSIGN_OR_RETURN(scheduler::PlannedRun run,
                                FromIndex(roots_.front(), number, number, unix_ms));
    // The twelve bits below the time keep the order of the numbers within a batch.
    const Uuid random = NewUuidV4();
    run.run.id = {Uuid::V7(unix_ms, number - first, random.low)};
    out.push_back(std::move(run));
  }
  return out;
}

Result<std::unique_ptr<search::Search>> Expansion::MakeSearch(const PlannedSpace& space) const {
  const pb::StageSpec* stage = spec::FindStage(*document_, space.stage);
  const bool is_maximized = ReadObjective(space.objective).is_maximized;
  if (stage == nullptr) return api::MakeSearch(*document_, space.plan, is_maximized);
  return api::MakeSearch(stage->strategy(), stage->early_stop(), space.plan, is_maximized);
}

Result<scheduler::PlannedRun> Expansion::FromIndex(const PlannedSpace& space, uint64_t index,
                                                   uint64_t number, int64_t unix_ms) const {
  std::vector<spec::Fault> faults;
  const spec::PlannedRun planned = space.plan->At(index, &faults);
  if (!faults.empty()) {
    faults.front().message = StrCat("run ", index, ": ", faults.front().message);
    return FaultStatus(std::move(faults));
  }
  scheduler::PlannedRun run = MakeRow(planned, row_.project, space, unix_ms);
  run.number = number;
  run.run.id = {NewUuidV7()};
  return run;
}

Result<scheduler::PlannedRun> Expansion::FromPoint(const PlannedSpace& space,
                                                   const search::Space& dimensions,
                                                   const search::Point& point, uint64_t number,
                                                   uint64_t cell, uint64_t seed,
                                                   const std::optional<ForkPoint>& start,
                                                   int64_t unix_ms) const {
  std::vector<spec::Fault> faults;
  spec::PlannedRun planned = space.plan->From(DrawsOf(dimensions, point), cell, seed, &faults);
  if (!faults.empty()) return FaultStatus(std::move(faults));
  if (start.has_value()) {
    const pb::RunSpec fresh = *planned.run;
    if (!spec::MakeFork(fresh, start->run.value.ToString(), start->step, start->digest, {},
                        planned.run.get(), &faults)) {
      return FaultStatus(std::move(faults));
    }
    planned.run_key = spec::RunKey(*planned.run);
  }
  planned.number = number;
  scheduler::PlannedRun run = MakeRow(planned, row_.project, space, unix_ms);
  run.run.id = {NewUuidV7()};
  return run;
}

ObjectiveFacts ReadObjective(std::string_view bytes) {
  pb::ObjectiveSpec objective;
  objective.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return {.series = objective.metric(),
          .is_last = objective.value() == pb::OBJECTIVE_VALUE_LAST,
          .is_maximized = objective.goal() == pb::GOAL_MAXIMIZE};
}

std::vector<uint32_t> ReadMoeLayers(std::string_view bytes) {
  pb::RunSpec run;
  run.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return {run.model().moe().layers().begin(), run.model().moe().layers().end()};
}

}  // namespace switchyard::api
