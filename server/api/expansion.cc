#include "server/api/expansion.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/fault.h"
#include "common/spec/series.h"
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

pb::ObjectiveSpec ResolveObjective(const pb::SweepSpec& sweep, const pb::RunSpec& run) {
  pb::ObjectiveSpec objective = sweep.objective();
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
  return out;
}

scheduler::PlannedRun MakeRow(const spec::PlannedRun& planned, const std::string& project,
                              const pb::ObjectiveSpec& objective, int64_t unix_ms) {
  scheduler::PlannedRun out;
  out.number = planned.number;
  out.cell = planned.cell;
  out.columns = planned.columns;
  scheduler::RunRow& row = out.run;
  row.project = project;
  row.run_key = planned.run_key;
  row.seed = planned.seed;
  row.router = planned.router;
  const pb::PolicySpec& policy = *planned.policy;
  row.priority = policy.priority();
  row.need = SlotsOf(policy.resources().gpus(), policy.resources().cpu_slots());
  row.policy = PolicyOf(policy, objective);
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
  if (!spec.stages().empty()) return refuse("stages");
  if (spec.strategy().has_pbt()) return refuse("strategy.pbt");
  if (spec.budget().has_runs()) return refuse("budget.runs");
  if (spec.budget().has_tokens()) return refuse("budget.tokens");
  if (spec.budget().has_active_flops()) return refuse("budget.active_flops");
  for (const pb::ResourceAlternative& alternative : policy.resources().alternatives()) {
    if (!alternative.labels().empty()) return refuse("resources.alternatives.labels");
  }
  return OkStatus();
}

}  // namespace

Expansion::~Expansion() = default;

Result<std::shared_ptr<const Expansion>> Expansion::Make(const pb::SweepSpec& spec) {
  std::vector<spec::Fault> faults;
  std::shared_ptr<Expansion> out(new Expansion);
  out->plan_ = spec::SweepPlan::Make(spec, &faults);
  if (!faults.empty() || out->plan_ == nullptr) return FaultStatus(std::move(faults));
  const spec::PlannedRun first = out->plan_->Example(&faults);
  if (!faults.empty()) return FaultStatus(std::move(faults));
  SWITCHYARD_RETURN_IF_ERROR(CheckIsServed(spec, *first.policy));
  scheduler::SweepRow& row = out->row_;
  row.project = spec.project().empty() ? "default" : spec.project();
  row.base_name = spec.name();
  row.name = spec.name();
  row.spec_hash = spec::SweepHash(spec);
  row.spec = spec.SerializeAsString();
  row.objective = ResolveObjective(spec, *first.run).SerializeAsString();
  row.axes = out->plan_->axes();
  row.is_drawn = out->plan_->is_drawn();
  row.cells = row.is_drawn ? out->plan_->drawn_cells() : out->plan_->cell_count();
  row.runs = row.cells * out->plan_->seeds().size();
  out->max_parallel_ = first.policy->max_parallel();
  row.budget_slot_ms = static_cast<uint64_t>(
      std::min(std::max(0.0, spec.budget().slot_hours()), kSlotHoursMax) * 3600 * 1000);
  if (row.is_drawn) {
    const auto search = out->MakeSearch();
    if (!search.ok()) return search.status();
  }
  return std::shared_ptr<const Expansion>(std::move(out));
}

Result<std::shared_ptr<const Expansion>> Expansion::Parse(std::string_view bytes) {
  pb::SweepSpec spec;
  if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLoss("a stored sweep document cannot be read");
  }
  return Make(spec);
}

Result<std::vector<scheduler::PlannedRun>> Expansion::Expand(uint64_t first, uint64_t count,
                                                             int64_t unix_ms) const {
  std::vector<scheduler::PlannedRun> out;
  if (row_.is_drawn) return out;
  std::vector<spec::Fault> faults;
  pb::ObjectiveSpec objective;
  objective.ParseFromString(row_.objective);
  const uint64_t end = std::min(row_.runs + 1, first + count);
  for (uint64_t number = first; number < end; ++number) {
    const spec::PlannedRun planned = plan_->At(number, &faults);
    if (!faults.empty()) {
      faults.front().message = StrCat("run ", number, ": ", faults.front().message);
      return FaultStatus(std::move(faults));
    }
    scheduler::PlannedRun run = MakeRow(planned, row_.project, objective, unix_ms);
    // The twelve bits below the time keep the order of the numbers within a batch.
    const Uuid random = NewUuidV4();
    run.run.id = {Uuid::V7(unix_ms, number - first, random.low)};
    out.push_back(std::move(run));
  }
  return out;
}

Result<std::unique_ptr<search::Search>> Expansion::MakeSearch() const {
  pb::SweepSpec spec;
  spec.ParseFromString(row_.spec);
  pb::ObjectiveSpec objective;
  objective.ParseFromString(row_.objective);
  return api::MakeSearch(spec, plan_, objective.goal() == pb::GOAL_MAXIMIZE);
}

Result<scheduler::PlannedRun> Expansion::FromPoint(const search::Space& space,
                                                   const search::Point& point, uint64_t number,
                                                   uint64_t cell, uint64_t seed,
                                                   int64_t unix_ms) const {
  pb::ObjectiveSpec objective;
  objective.ParseFromString(row_.objective);
  std::vector<spec::Fault> faults;
  spec::PlannedRun planned = plan_->From(DrawsOf(space, point), cell, seed, &faults);
  if (!faults.empty()) return FaultStatus(std::move(faults));
  planned.number = number;
  scheduler::PlannedRun run = MakeRow(planned, row_.project, objective, unix_ms);
  run.run.id = {NewUuidV7()};
  return run;
}

ObjectiveFacts ReadObjective(std::string_view bytes) {
  pb::ObjectiveSpec objective;
  objective.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return {.series = objective.metric(), .is_last = objective.value() == pb::OBJECTIVE_VALUE_LAST};
}

std::vector<uint32_t> ReadMoeLayers(std::string_view bytes) {
  pb::RunSpec run;
  run.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return {run.model().moe().layers().begin(), run.model().moe().layers().end()};
}

}  // namespace switchyard::api
