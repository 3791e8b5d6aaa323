#include "server/results/arms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "common/base/strings.h"
#include "common/spec/expression.h"
#include "server/results/query.h"
#include "server/results/run_names.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using scheduler::EndClass;
using scheduler::RunState;
using stats::Absence;

constexpr double kMillisecondsPerHour = 3'600'000;
// The column that says which stage a run belongs to.
constexpr char kStageAxis[] = "stage";
// Properties that say how a run went, not what it was.
constexpr std::array<std::string_view, 5> kOutcomeNames = {"state", "end_class", "attempts", "step",
                                                           "active_seconds"};

// Why a run has no value to compare. What diverged, ran out of memory or time, or was stopped by a
// search is missing because of what it was.
Absence AbsenceOf(const store::RunFacts& run, const double* value) {
  switch (run.state) {
    case RunState::kSucceeded:
      if (value == nullptr) return Absence::kFailed;
      return std::isfinite(*value) ? Absence::kNone : Absence::kInformative;
    case RunState::kStoppedEarly:
      return Absence::kInformative;
    case RunState::kFailed:
      return run.end_class == EndClass::kGuard || run.end_class == EndClass::kOom ||
                     run.end_class == EndClass::kTimeout
                 ? Absence::kInformative
                 : Absence::kFailed;
    case RunState::kCancelled:
    case RunState::kQuarantined:
      return Absence::kFailed;
    default:
      return Absence::kUnfinished;
  }
}

// A run that satisfies the question, before its other axes are known to be within or part of the
// arm.
struct Found {
  ArmRun run;
  std::shared_ptr<const store::Columns> columns;
};

const std::string& ColumnOf(const store::Columns& columns, const std::string& axis) {
  static const std::string none;
  const auto at = std::ranges::find(columns, axis, &store::Columns::value_type::first);
  return at == columns.end() ? none : at->second;
}

std::string Labels(const store::Columns& columns, const std::vector<std::string>& axes) {
  std::string text;
  for (const std::string& axis : axes) {
    text += StrCat(text.empty() ? "" : ", ", axis, "=", ColumnOf(columns, axis));
  }
  return text;
}

class ArmCollector {
 public:
  ArmCollector(store::ReadStore& store, const store::SweepInfo& sweep,
               const pb::CompareSpec& compare, const std::vector<ArmFilter>& filters,
               const std::string& stage)
      : store_(store),
        sweep_(sweep),
        compare_(compare),
        filters_(filters),
        stage_(stage),
        names_(sweep, ObjectivePick(sweep)) {}

  Result<ArmRuns> Collect() {
    SWITCHYARD_RETURN_IF_ERROR(ReadFilters());
    if (!compare_.by().empty()) SWITCHYARD_RETURN_IF_ERROR(names_.UseName(compare_.by()));
    if (!stage_.empty()) SWITCHYARD_RETURN_IF_ERROR(names_.UseName(kStageAxis));
    names_.UseSeries(compare_.metric());
    names_.UseRun();
    SWITCHYARD_RETURN_IF_ERROR(ForEachRun(store_, sweep_, compare_.where(), &names_,
                                          [&](const store::RunFacts& run) { return Add(run); }));
    SWITCHYARD_RETURN_IF_ERROR(Separate());
    for (Found& found : found_) out_.runs.push_back(std::move(found.run));
    return std::move(out_);
  }

 private:
  Status ReadFilters() {
    if (!compare_.where().empty()) {
      SWITCHYARD_ASSIGN_OR_RETURN(const spec::Expression where,
                                  spec::Expression::Parse(compare_.where()));
      NoteOutcomes(where);
    }
    for (const ArmFilter& arm : filters_) {
      const auto refuse = [&](const Status& status) {
        return InvalidArgument(StrCat("arm ", EscapeForTerminal(arm.name), ": ", status.message()));
      };
      Result<spec::Expression> expression = spec::Expression::Parse(arm.filter);
      if (!expression.ok()) return refuse(expression.status());
      if (const Status status = names_.Use(*expression); !status.ok()) return refuse(status);
      NoteOutcomes(*expression);
      expressions_.push_back(*std::move(expression));
    }
    return OkStatus();
  }

  void NoteOutcomes(const spec::Expression& expression) {
    for (const spec::Expression::NameUse& use : expression.names()) {
      const bool is_outcome =
          use.is_series || (std::ranges::find(kOutcomeNames, use.name) != kOutcomeNames.end() &&
                            !names_.IsAxis(use.name));
      std::vector<std::string>& noted = out_.outcome_names;
      if (is_outcome && std::ranges::find(noted, use.name) == noted.end()) {
        noted.push_back(use.name);
      }
    }
  }

  // The arm of the run that the names are set to; none: of no arm.
  Result<std::optional<std::string>> ArmOf(const store::RunFacts& run) {
    if (filters_.empty()) return std::optional<std::string>(names_.Text(compare_.by()));
    std::optional<std::string> arm;
    for (size_t i = 0; i < filters_.size(); ++i) {
      const Result<spec::Truth> truth = expressions_[i].Test(names_);
      if (!truth.ok()) {
        return InvalidArgument(
            StrCat("arm ", EscapeForTerminal(filters_[i].name), ": ", truth.status().message()));
      }
      if (*truth != spec::Truth::kTrue) continue;
      if (arm) {
        return InvalidArgument(StrCat("run ", run.number, " belongs to arm ",
                                      EscapeForTerminal(*arm), " and to arm ",
                                      EscapeForTerminal(filters_[i].name)));
      }
      arm = filters_[i].name;
    }
    return arm;
  }

  Status Add(const store::RunFacts& run) {
    if (!stage_.empty() && names_.Text(kStageAxis) != stage_) return OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> arm, ArmOf(run));
    if (!arm) return OkStatus();
    const double* value = names_.Value(compare_.metric(), names_.pick());
    Found found{.run = {.arm = *arm,
                        .within = {},
                        .pool = {},
                        .cell = run.cell,
                        .seed = run.seed,
                        .number = run.number,
                        .run = run.run,
                        .value = value == nullptr ? 0 : *value,
                        .absence = AbsenceOf(run, value),
                        .is_reused = run.is_reused,
                        .is_gpu = run.is_gpu,
                        .slot_hours = static_cast<double>(run.active_ms) *
                                      static_cast<double>(run.slots) / kMillisecondsPerHour},
                .columns = run.columns};
    const auto [at, is_new] = known_.try_emplace({run.cell, run.seed}, found_.size());
    if (is_new) {
      found_.push_back(std::move(found));
    } else if (found_[at->second].run.absence != Absence::kNone) {
      found_[at->second] = std::move(found);
    }
    return OkStatus();
  }

  // Which of the axes that nobody spoke of are compared separately.
  Status Separate() {
    for (const Found& found : found_) {
      if (std::ranges::find(out_.arms, found.run.arm) == out_.arms.end()) {
        out_.arms.push_back(found.run.arm);
      }
    }
    const std::vector<std::string> pool(compare_.pool().begin(), compare_.pool().end());
    std::vector<std::string> within(compare_.within().begin(), compare_.within().end());
    if (!compare_.tune() && within.empty()) {
      SWITCHYARD_ASSIGN_OR_RETURN(within, OtherAxes(pool));
    }
    for (Found& found : found_) {
      found.run.within = Labels(*found.columns, within);
      found.run.pool = Labels(*found.columns, pool);
    }
    return OkStatus();
  }

  Result<std::vector<std::string>> OtherAxes(const std::vector<std::string>& pool) const {
    std::vector<std::string> within;
    for (const std::string& axis : sweep_.row.axes) {
      if (axis == compare_.by() || std::ranges::find(pool, axis) != pool.end()) continue;
      std::map<std::string, std::set<std::string>> values;  // by arm
      for (const Found& found : found_) {
        values[found.run.arm].insert(ColumnOf(*found.columns, axis));
      }
      bool varies = false;
      for (const auto& [arm, own] : values) varies |= own.size() > 1;
      if (!varies) continue;  // part of the arms, or equal in all
      for (const auto& [arm, own] : values) {
        if (own == values.begin()->second) continue;
        return InvalidArgument(
            StrCat("axis ", axis, " takes other values in arm ", EscapeForTerminal(arm),
                   " than in arm ", EscapeForTerminal(values.begin()->first),
                   ": choose one with where, average over it with pool, or let each arm stand by "
                   "its best cell with tune"));
      }
      within.push_back(axis);
    }
    return within;
  }

  store::ReadStore& store_;
  const store::SweepInfo& sweep_;
  const pb::CompareSpec& compare_;
  const std::vector<ArmFilter>& filters_;
  const std::string& stage_;
  RunNames names_;
  std::vector<spec::Expression> expressions_;
  std::map<std::pair<uint64_t, uint64_t>, size_t> known_;  // (cell, seed)
  std::vector<Found> found_;
  ArmRuns out_;
};

}  // namespace

Result<ArmRuns> CollectArms(store::ReadStore& store, const store::SweepInfo& sweep,
                            const pb::CompareSpec& compare, const std::vector<ArmFilter>& filters,
                            const std::string& stage) {
  return ArmCollector(store, sweep, compare, filters, stage).Collect();
}

bool KeepBestCells(bool is_maximized, const std::vector<uint64_t>& chosen_on, ArmRuns* runs) {
  const auto chooses = [&](const ArmRun& run) {
    return chosen_on.empty() || std::ranges::find(chosen_on, run.seed) != chosen_on.end();
  };
  struct Sum {
    double sum = 0;
    double n = 0;
  };
  std::map<std::pair<std::string, std::string>, std::map<uint64_t, Sum>> arms;
  for (const ArmRun& run : runs->runs) {
    Sum& sum = arms[{run.arm, run.within}][run.cell];
    if (run.absence != Absence::kNone || !chooses(run)) continue;
    sum.sum += run.value;
    sum.n += 1;
  }
  const auto is_worse = [&](const auto& a, const auto& b) {
    if ((a.second.n > 0) != (b.second.n > 0)) return b.second.n > 0;
    if (a.second.n == 0) return false;
    const double mean_a = a.second.sum / a.second.n;
    const double mean_b = b.second.sum / b.second.n;
    return is_maximized ? mean_a < mean_b : mean_a > mean_b;
  };
  std::set<std::pair<std::string, uint64_t>> kept;  // (arm, cell)
  bool has_choice = false;
  for (const auto& [key, cells] : arms) {
    has_choice |= cells.size() > 1;
    kept.insert({key.first, std::ranges::max_element(cells, is_worse)->first});
  }
  std::erase_if(runs->runs, [&](const ArmRun& run) {
    return !kept.contains({run.arm, run.cell}) || (!chosen_on.empty() && chooses(run));
  });
  return has_choice;
}

}  // namespace switchyard::results
