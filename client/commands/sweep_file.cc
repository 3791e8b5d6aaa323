#include "client/commands/sweep_file.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <utility>

#include "client/commands/runs.h"
#include "client/output/number.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/yaml_reader.h"
#include "server/api/strategy.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// A little over the reader's own limit, which gives the better message.
constexpr uint64_t kFileBytesMax = (1 << 20) + 1;

Result<std::string> ReadText(const std::string& file) {
  if (file != "-") return ReadFile(file, kFileBytesMax);
  std::string text;
  char buffer[4096];
  while (text.size() < kFileBytesMax &&
         (std::cin.read(buffer, sizeof buffer), std::cin.gcount() > 0)) {
    text.append(buffer, static_cast<size_t>(std::cin.gcount()));
  }
  return text;
}

Status Report(const Context& context, const std::string& name,
              const std::vector<spec::Fault>& faults) {
  for (const spec::Fault& fault : faults) context.Note(fault.ToString());
  return InvalidArgument(StrCat(name, ": ", faults.size(),
                                faults.size() == 1 ? " fault" : " faults",
                                ", nothing was submitted"));
}

uint64_t TrainTokens(const pb::RunSpec& run) {
  return run.train().steps() * run.train().batch() * run.train().target_len();
}

}  // namespace

Status ReadSweepFile(const Context& context, const std::string& file,
                     const std::vector<std::string>& overrides, pb::SweepSpec* spec) {
  const std::string name = file == "-" ? "<stdin>" : file;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  std::vector<spec::Override> parsed;
  for (const std::string& override : overrides) {
    const size_t equals = override.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument(StrCat("--set ", override, ": expected PATH=VALUE"));
    }
    parsed.push_back({.path = override.substr(0, equals), .value = override.substr(equals + 1)});
  }
  std::vector<spec::Fault> faults = spec::ReadSweepYaml(name, text, parsed, spec);
  if (!faults.empty()) return Report(context, name, faults);
  // No plan and no fault: all stages need another sweep.
  (void)spec::SweepPlan::Make(*spec, &faults);
  return faults.empty() ? OkStatus() : Report(context, name, faults);
}

namespace {

// The cells that the sweep's strategy would propose before it has heard anything; kinds without
// such cells (external): an example.
std::vector<std::pair<spec::PlannedRun, std::vector<uint64_t>>> FirstDraws(
    const pb::SweepSpec& spec, const std::shared_ptr<const spec::SweepPlan>& plan,
    uint64_t cells_max, std::vector<spec::Fault>* faults) {
  std::vector<std::pair<spec::PlannedRun, std::vector<uint64_t>>> out;
  const auto search = api::MakeSearch(spec, plan, /*is_maximized=*/false);
  if (search.ok()) {
    for (const search::Action& action : (*search)->Propose(cells_max)) {
      if (action.kind != search::Action::Kind::kPropose) continue;
      spec::PlannedRun run = plan->From(api::DrawsOf((*search)->space(), action.point), action.cell,
                                        action.seeds.front(), faults);
      if (run.run == nullptr) break;
      out.emplace_back(std::move(run), action.seeds);
    }
  }
  if (out.empty()) out.emplace_back(plan->Example(faults), plan->seeds());
  return out;
}

}  // namespace

pb::PlanSweepResponse PlanOffline(const pb::SweepSpec& spec, uint64_t cells_max) {
  pb::PlanSweepResponse response;
  std::vector<spec::Fault> faults;
  const std::shared_ptr<const spec::SweepPlan> plan = spec::SweepPlan::Make(spec, &faults);
  if (plan == nullptr) return response;
  response.set_cells(plan->is_drawn() ? plan->drawn_cells() : plan->cell_count());
  response.set_runs(response.cells() * plan->seeds().size());
  constexpr uint64_t kCellsCompared = 1000;
  response.set_distinct_runs(plan->DistinctRuns(kCellsCompared).value_or(0));
  response.set_drawn_cells(plan->drawn_cells());
  response.set_spec_hash(spec::SweepHash(spec));
  std::vector<std::string> notices;
  const auto add = [&](const spec::PlannedRun& run, const std::vector<uint64_t>& seeds) {
    pb::PlannedCell* cell = response.add_plan();
    cell->set_number(run.cell);
    for (const auto& [axis, value] : run.columns) {
      pb::AxisValue* column = cell->add_columns();
      column->set_axis(axis);
      column->set_value(value);
    }
    cell->mutable_seeds()->Assign(seeds.begin(), seeds.end());
    cell->set_run_key(run.run_key);
    const spec::Accounting accounting = spec::Account(*run.run, spec::VocabFromData(*run.run));
    cell->set_params_total(accounting.params_total);
    cell->set_params_active(accounting.params_active);
    cell->set_flops_per_token_active(accounting.flops_per_token_active);
    cell->set_train_tokens(TrainTokens(*run.run));
    for (const std::string& notice : run.notices) {
      if (std::find(notices.begin(), notices.end(), notice) == notices.end()) {
        notices.push_back(notice);
      }
    }
  };
  if (plan->is_drawn()) {
    constexpr uint64_t kDrawsMax = 1000;
    const uint64_t wanted = cells_max == 0 ? kDrawsMax : std::min(cells_max, kDrawsMax);
    for (const auto& [run, seeds] : FirstDraws(spec, plan, wanted, &faults)) add(run, seeds);
  } else {
    const uint64_t listed =
        cells_max == 0 ? plan->cell_count() : std::min(cells_max, plan->cell_count());
    // Runs are numbered seed by seed, so that those of the first seed are the cells in order.
    for (uint64_t number = 1; number <= listed; ++number) {
      const spec::PlannedRun run = plan->At(number, &faults);
      if (run.run == nullptr) break;
      std::vector<uint64_t> seeds;
      for (uint64_t later = number; later <= plan->run_count(); later += plan->cell_count()) {
        seeds.push_back(later == number ? run.seed : plan->At(later, &faults).seed);
      }
      add(run, seeds);
    }
  }
  if (!spec.stages().empty()) notices.emplace_back("the plan is that of the first stage");
  for (const pb::StageSpec& stage : spec.stages()) {
    if (!stage.has_needs()) continue;
    const std::string& parent =
        stage.needs().sweep().empty() ? stage.needs().stage() : stage.needs().sweep();
    notices.push_back(StrCat("stage ", stage.id(), " is expanded from the runs of ", parent));
  }
  response.mutable_notices()->Assign(notices.begin(), notices.end());
  return response;
}

std::string PlanSummary(const pb::SweepSpec& spec, const pb::PlanSweepResponse& plan) {
  std::string text =
      StrCat(spec.name(), ": ", plan.cells(), plan.cells() == 1 ? " cell, " : " cells, ",
             plan.runs(), plan.runs() == 1 ? " run" : " runs");
  const bool is_drawn = spec.stages().empty() && !spec.strategy().has_grid() &&
                        spec.strategy().kind_case() != pb::StrategySpec::KIND_NOT_SET;
  if (is_drawn) {
    // Of hyperband, pbt and external the number is not known before they run.
    if (plan.drawn_cells() == 0) text = StrCat(spec.name(), ": cells");
    text += " drawn by its strategy";
    if (plan.plan_size() > 0) text += StrCat(", the first ", plan.plan_size(), " below");
  }
  if (plan.distinct_runs() > 0 && plan.distinct_runs() != plan.runs()) {
    text += StrCat(" (", plan.distinct_runs(), " different)");
  }
  if (plan.reused_runs() > 0) text += StrCat(" (", plan.reused_runs(), " reused)");
  if (plan.slot_hours_estimate() > 0) {
    text += StrCat(", about ", FormatDuration(plan.slot_hours_estimate() * 3600), " of one slot");
  }
  return StrCat(text, ", hash ", plan.spec_hash().substr(0, 12));
}

Listing PlanListing(const pb::PlanSweepResponse& plan) {
  std::vector<std::string> axes;
  // An alternative has axes of its own.
  for (const pb::PlannedCell& cell : plan.plan()) {
    for (const pb::AxisValue& column : cell.columns()) {
      if (std::find(axes.begin(), axes.end(), column.axis()) == axes.end()) {
        axes.push_back(column.axis());
      }
    }
  }
  Listing listing;
  listing.columns = {{"cell", "CELL", Align::kRight}};
  const std::vector<std::string> titles = AxisTitles(axes);
  for (size_t i = 0; i < axes.size(); ++i) listing.columns.push_back({axes[i], titles[i]});
  const std::vector<Column> rest = {{"seeds", "SEEDS"},
                                    {"params_total", "PARAMS", Align::kRight},
                                    {"params_active", "ACTIVE", Align::kRight},
                                    {"flops_per_token_active", "FLOPS/TOKEN", Align::kRight},
                                    {"train_tokens", "TOKENS", Align::kRight},
                                    {"reused_runs", "REUSED"},
                                    {"run_key", "KEY"}};
  listing.columns.insert(listing.columns.end(), rest.begin(), rest.end());
  // -o quiet names cells by identity.
  listing.quiet_column = listing.columns.size() - 1;
  for (const pb::PlannedCell& cell : plan.plan()) {
    std::vector<Cell> row = {{cell.number(), {}}};
    for (const std::string& axis : axes) {
      Cell found;
      for (const pb::AxisValue& column : cell.columns()) {
        if (column.axis() == axis) found = {AxisCellValue(column.value()), column.value()};
      }
      row.push_back(std::move(found));
    }
    Value::List seeds(cell.seeds().begin(), cell.seeds().end());
    Value::List reused(cell.reused_runs().begin(), cell.reused_runs().end());
    std::string reused_text = Value(reused).ToText();
    if (reused_text.empty()) reused_text = "-";
    const std::vector<Cell> tail = {
        {seeds, {}},
        {cell.params_total(), FormatCount(cell.params_total())},
        {cell.params_active(), FormatCount(cell.params_active())},
        {cell.flops_per_token_active(),
         FormatSi(static_cast<double>(cell.flops_per_token_active()))},
        {cell.train_tokens(),
         cell.train_tokens() > 0 ? FormatSi(static_cast<double>(cell.train_tokens())) : "-"},
        {reused, reused_text},
        {cell.run_key(), cell.run_key().substr(0, 12)}};
    row.insert(row.end(), tail.begin(), tail.end());
    listing.rows.push_back(std::move(row));
  }
  return listing;
}

}  // namespace switchyard::client
