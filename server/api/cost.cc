#include "server/api/cost.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/spec/accounting.h"
#include "common/spec/sweep_plan.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

// Runs looked at: the newest that have succeeded.
constexpr size_t kRunsRead = 64;

double MedianOf(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(middle));
  return values[middle];
}

// Active FLOPs per slot second of runs that have succeeded.
Result<std::vector<double>> PastRates(store::ReadStore& store, const std::string& project) {
  const store::RunFilter filter{
      .sweep = std::nullopt, .states = {scheduler::RunState::kSucceeded}, .series = {}};
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunPage page, store.ListRuns(filter, "", kRunsRead));
  std::vector<double> rates;
  for (const store::RunInfo& run : page.runs) {
    if (run.row.project != project || run.status.active_ms == 0) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document,
                                store.GetRunDocument(run.row.id));
    pb::RunSpec spec;
    if (!spec.ParseFromString(document.spec)) continue;
    const double tokens = static_cast<double>(spec.train().steps()) *
                          static_cast<double>(spec.train().batch()) *
                          static_cast<double>(spec.train().target_len());
    const double flops = tokens * static_cast<double>(spec::Account(spec).flops_per_token_active);
    const double seconds =
        static_cast<double>(run.status.active_ms) / 1000 * static_cast<double>(run.row.need.count);
    if (flops > 0) rates.push_back(flops / seconds);
  }
  return rates;
}

}  // namespace

Result<double> EstimateSlotHours(store::ReadStore& store, const std::string& project,
                                 const pb::PlanSweepResponse& plan) {
  if (plan.plan().empty() || plan.runs() <= plan.reused_runs()) return 0.0;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<double> rates, PastRates(store, project));
  if (rates.empty()) return 0.0;
  double flops = 0;
  for (const pb::PlannedCell& cell : plan.plan()) {
    flops += static_cast<double>(cell.flops_per_token_active()) *
             static_cast<double>(cell.train_tokens());
  }
  const auto fresh = static_cast<double>(plan.runs() - plan.reused_runs());
  return flops / plan.plan_size() * fresh / MedianOf(rates) / 3600;
}

}  // namespace switchyard::api
