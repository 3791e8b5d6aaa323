#include "server/results/comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/fault.h"
#include "common/spec/quantity.h"
#include "common/spec/report.h"
#include "common/spec/sweep_plan.h"
#include "server/results/query.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using scheduler::EndClass;
using scheduler::RunState;
using stats::Absence;

// Arms further apart than this in tokens or FLOPs are not called equal in compute.
constexpr double kComputeTolerance = 0.01;

// What one (cell, seed) has come to.
struct Outcome {
  std::string arm;
  std::string within;
  std::string pool;
  uint64_t cell = 0;
  uint64_t seed = 0;
  uint64_t number = 0;
  RunId run;
  double value = 0;
  Absence absence = Absence::kNone;
};

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

// "axis=value, axis=value" of a run.
std::string Labels(const RunNames& names, const std::vector<std::string>& axes) {
  std::string text;
  for (const std::string& axis : axes) {
    text += StrCat(text.empty() ? "" : ", ", axis, "=", names.Text(axis));
  }
  return text;
}

std::optional<stats::TestKind> TestOf(pb::CompareTest test) {
  switch (test) {
    case pb::COMPARE_TEST_PAIRED_T:
      return stats::TestKind::kPairedT;
    case pb::COMPARE_TEST_WELCH_T:
      return stats::TestKind::kWelchT;
    case pb::COMPARE_TEST_WILCOXON:
      return stats::TestKind::kWilcoxon;
    case pb::COMPARE_TEST_SIGN_FLIP:
      return stats::TestKind::kSignFlip;
    case pb::COMPARE_TEST_PERMUTATION:
      return stats::TestKind::kLabelPermutation;
    case pb::COMPARE_TEST_BOOTSTRAP:
      return stats::TestKind::kBootstrap;
    default:
      return std::nullopt;
  }
}

stats::Correction CorrectionOf(pb::Correction correction) {
  switch (correction) {
    case pb::CORRECTION_BH:
      return stats::Correction::kBenjaminiHochberg;
    case pb::CORRECTION_NONE:
      return stats::Correction::kNone;
    default:
      return stats::Correction::kHolm;
  }
}

// "bits per byte" of "valid/bits_per_byte".
std::string UnitText(const std::string& series) {
  std::string unit = series.substr(series.rfind('/') + 1);
  std::ranges::replace(unit, '_', ' ');
  return unit;
}

class ArmComparer {
 public:
  ArmComparer(store::ReadStore& store, const store::SweepInfo& sweep)
      : store_(store), sweep_(sweep) {}

  Result<ComparisonAnswer> Compare(const pb::CompareSpec& asked, size_t look) {
    SWITCHYARD_RETURN_IF_ERROR(ReadSweep(asked));
    SWITCHYARD_RETURN_IF_ERROR(CheckIsServed());
    SWITCHYARD_RETURN_IF_ERROR(Collect());
    if (compare_.tune()) KeepBestCells();
    CheckRegistration(look);
    SWITCHYARD_RETURN_IF_ERROR(CheckArms());
    MakePlan(look);
    std::vector<stats::Observation> observations;
    for (const Outcome& outcome : outcomes_) {
      observations.push_back({.arm = outcome.arm,
                              .within = outcome.within,
                              .pool = outcome.pool,
                              .seed = outcome.seed,
                              .value = outcome.value,
                              .absence = outcome.absence});
    }
    SWITCHYARD_ASSIGN_OR_RETURN(answer_.comparison, stats::Compare(answer_.plan, observations));
    answer_.is_exploratory |= answer_.comparison.is_exploratory;
    return std::move(answer_);
  }

 private:
  Status ReadSweep(const pb::CompareSpec& asked) {
    if (!spec_.ParseFromString(sweep_.row.spec) ||
        !objective_.ParseFromString(sweep_.row.objective)) {
      return DataLoss(StrCat("the document of sweep ", sweep_.row.name, " cannot be read"));
    }
    // The registered comparison that the question is about: of the same axis, or the only one.
    for (const pb::CompareSpec& each : spec_.report().compare()) {
      if (!asked.by().empty() && each.by() != asked.by()) continue;
      compare_ = each;
      break;
    }
    if (!asked.against().empty()) compare_.clear_pairs();
    if (asked.pairs() != pb::COMPARE_PAIRS_UNSPECIFIED) compare_.clear_against();
    if (asked.unit() != pb::COMPARE_UNIT_UNSPECIFIED) compare_.clear_test();
    if (asked.margins_size() > 0) compare_.clear_margins();
    if (asked.within_size() > 0) compare_.clear_within();
    if (asked.pool_size() > 0) compare_.clear_pool();
    compare_.MergeFrom(asked);
    spec::FillCompareDefaults(objective_.metric(), &compare_);
    return OkStatus();
  }

  Status CheckIsServed() const {
    const std::vector<std::string>& axes = sweep_.row.axes;
    if (compare_.by().empty()) {
      return InvalidArgument(StrCat(
          "by: is required, for the sweep registers no comparison; axes: ", StrJoin(axes, ", ")));
    }
    const auto check = [&](std::string_view field, const std::string& axis) {
      if (std::ranges::find(axes, axis) != axes.end()) return OkStatus();
      return InvalidArgument(StrCat(field, ": '", EscapeForTerminal(axis), "' is not an axis of ",
                                    sweep_.row.name, "; axes: ", StrJoin(axes, ", ")));
    };
    SWITCHYARD_RETURN_IF_ERROR(check("by", compare_.by()));
    for (const std::string& axis : compare_.within())
      SWITCHYARD_RETURN_IF_ERROR(check("within", axis));
    for (const std::string& axis : compare_.pool()) SWITCHYARD_RETURN_IF_ERROR(check("pool", axis));
    if (compare_.unit() != pb::COMPARE_UNIT_SEED) {
      return InvalidArgument(
          "unit: only seed is served: values of single batches and examples are "
          "not among the summaries");
    }
    if (!TestOf(compare_.test())) return InvalidArgument("test: goes with another unit than seed");
    if (compare_.at_size() > 0) return InvalidArgument("at: is not served by this coordinator");
    if (compare_.against().empty() && compare_.pairs() == pb::COMPARE_PAIRS_UNSPECIFIED) {
      return InvalidArgument("against: is required: the arm that the others are compared with");
    }
    return OkStatus();
  }

  Status Collect() {
    std::vector<std::string> pool(compare_.pool().begin(), compare_.pool().end());
    std::vector<std::string> within(compare_.within().begin(), compare_.within().end());
    if (within.empty() && !compare_.tune()) {
      for (const std::string& axis : sweep_.row.axes) {
        const bool is_pooled = std::ranges::find(pool, axis) != pool.end();
        if (axis != compare_.by() && !is_pooled) within.push_back(axis);
      }
    }
    const Pick pick =
        compare_.metric() == objective_.metric() ? ObjectivePick(sweep_) : Pick::kBest;
    RunNames names(sweep_, ObjectivePick(sweep_));
    names.UseSeries(compare_.metric());
    std::map<std::pair<uint64_t, uint64_t>, size_t> known;  // (cell, seed)
    return ForEachRun(
        store_, sweep_, compare_.where(), &names, [&](const store::RunFacts& run) -> Status {
          const double* value = names.Value(compare_.metric(), pick);
          Outcome outcome{.arm = names.Text(compare_.by()),
                          .within = Labels(names, within),
                          .pool = Labels(names, pool),
                          .cell = run.cell,
                          .seed = run.seed,
                          .number = run.number,
                          .run = run.run,
                          .value = value == nullptr ? 0 : *value,
                          .absence = AbsenceOf(run, value)};
          const auto [at, is_new] = known.try_emplace({run.cell, run.seed}, outcomes_.size());
          if (is_new) {
            outcomes_.push_back(std::move(outcome));
          } else if (outcomes_[at->second].absence != Absence::kNone) {
            // A retry stands for the run that it repeats, unless that one has a value.
            outcomes_[at->second] = std::move(outcome);
          }
          return OkStatus();
        });
  }

  // Of each arm, the cell with the best mean over its seeds.
  void KeepBestCells() {
    const bool is_maximized = IsMaximized(sweep_, compare_.metric()).value_or(false);
    struct Sum {
      double sum = 0;
      double n = 0;
    };
    std::map<std::pair<std::string, std::string>, std::map<uint64_t, Sum>> cells;
    for (const Outcome& outcome : outcomes_) {
      Sum& sum = cells[{outcome.arm, outcome.within}][outcome.cell];
      if (outcome.absence != Absence::kNone) continue;
      sum.sum += outcome.value;
      sum.n += 1;
    }
    std::set<uint64_t> kept;
    bool has_choice = false;
    for (const auto& [key, sums] : cells) {
      has_choice |= sums.size() > 1;
      const auto is_worse = [&](const auto& a, const auto& b) {
        if ((a.second.n > 0) != (b.second.n > 0)) return b.second.n > 0;
        if (a.second.n == 0) return false;
        const double mean_a = a.second.sum / a.second.n;
        const double mean_b = b.second.sum / b.second.n;
        return is_maximized ? mean_a < mean_b : mean_a > mean_b;
      };
      kept.insert(std::ranges::max_element(sums, is_worse)->first);
    }
    std::erase_if(outcomes_, [&](const Outcome& outcome) { return !kept.contains(outcome.cell); });
    if (has_choice) {
      answer_.warnings.push_back(
          "each arm is its best cell, chosen on the seeds that it is judged on: the difference is "
          "optimistic; compare the chosen cells on fresh seeds");
    }
  }

  // What was hashed at submission against what is asked and what is there.
  void CheckRegistration(size_t look) {
    std::set<uint64_t> seeds;
    for (const Outcome& outcome : outcomes_) {
      seeds.insert(outcome.seed);
      if (std::ranges::find(answer_.arms, outcome.arm) == answer_.arms.end()) {
        answer_.arms.push_back(outcome.arm);
      }
    }
    std::vector<spec::Fault> faults;
    const std::unique_ptr<spec::SweepPlan> plan = spec::SweepPlan::Make(spec_, &faults, 0);
    if (plan == nullptr) {
      Explore("the sweep's document cannot be expanded any more");
      return;
    }
    const std::vector<std::string> planned = spec::ArmsOf(*plan, compare_.by());
    if (!compare_.where().empty()) {
      // Fewer arms and seeds may satisfy it: only what it lets through counts as planned.
      std::vector<std::string> arms;
      for (const std::string& arm : planned) {
        if (std::ranges::find(answer_.arms, arm) != answer_.arms.end()) arms.push_back(arm);
      }
      answer_.arms = arms;
    }
    const std::string asked = spec::RegistrationHash(
        compare_, objective_, answer_.arms, std::vector<uint64_t>(seeds.begin(), seeds.end()));
    bool is_registered = false;
    for (const pb::CompareSpec& each : spec_.report().compare()) {
      is_registered |= spec::RegistrationHash(each, objective_, planned, plan->seeds()) == asked;
    }
    if (spec_.report().compare().empty()) {
      Explore("the sweep registers no comparison");
    } else if (!is_registered) {
      Explore("the comparison, its arms or its seeds are not those registered at submission");
    }
    if (look > compare_.looks()) {
      Explore(StrCat("look ", look, " of ", compare_.looks(), " planned"));
    }
  }

  void Explore(std::string reason) {
    answer_.is_exploratory = true;
    answer_.reasons.push_back(std::move(reason));
  }

  // Tokens, FLOPs, data and device of the arms, by one run of each.
  Status CheckArms() {
    std::map<std::string, double> tokens;
    std::map<std::string, double> flops;
    std::set<std::string> data;
    std::set<std::string> devices;
    std::set<std::string> seen;
    for (const Outcome& outcome : outcomes_) {
      if (!seen.insert(outcome.arm).second) continue;
      SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document,
                                  store_.GetRunDocument(outcome.run));
      pb::RunSpec run;
      if (!run.ParseFromString(document.spec)) {
        return DataLoss(
            StrCat("the document of run ", outcome.run.value.ToString(), " cannot be read"));
      }
      tokens[outcome.arm] =
          static_cast<double>(run.train().steps()) * run.train().batch() * run.train().target_len();
      flops[outcome.arm] =
          tokens[outcome.arm] * static_cast<double>(spec::Account(run).flops_per_token_active);
      data.insert(run.data().SerializeAsString());
      const std::vector<uint64_t> numbers = {outcome.number};
      SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<store::RunInfo> info,
                                  store_.GetRuns(sweep_.row.id, numbers, {}));
      devices.insert(std::string(scheduler::Name(info.front().row.need.kind)));
    }
    WarnUnmatched("tokens", tokens);
    WarnUnmatched("active FLOPs", flops);
    if (data.size() > 1) answer_.warnings.push_back("the arms are trained on different data");
    if (devices.size() > 1) {
      answer_.warnings.push_back("the arms ran on different kinds of devices: cpu and gpu");
    }
    return OkStatus();
  }

  void WarnUnmatched(std::string_view quantity, const std::map<std::string, double>& by_arm) {
    if (by_arm.empty()) return;
    const auto [low, high] =
        std::ranges::minmax_element(by_arm, {}, [](const auto& entry) { return entry.second; });
    if (high->second <= low->second * (1 + kComputeTolerance)) return;
    answer_.warnings.push_back(StrCat("unmatched ", quantity, ": ", low->first, " ",
                                      stats::ShortNumber(low->second), ", ", high->first, " ",
                                      stats::ShortNumber(high->second)));
  }

  void MakePlan(size_t look) {
    stats::ComparisonPlan& plan = answer_.plan;
    plan.against = compare_.against();
    plan.minimise = !IsMaximized(sweep_, compare_.metric()).value_or(false);
    plan.metric_unit = UnitText(compare_.metric());
    plan.margins = {compare_.margins().begin(), compare_.margins().end()};
    plan.alpha = compare_.alpha();
    plan.correction = CorrectionOf(compare_.correction());
    plan.looks = compare_.looks();
    plan.look = look;
    plan.test = *TestOf(compare_.test());
  }

  store::ReadStore& store_;
  const store::SweepInfo& sweep_;
  pb::SweepSpec spec_;
  pb::ObjectiveSpec objective_;
  pb::CompareSpec compare_;
  std::vector<Outcome> outcomes_;
  ComparisonAnswer answer_;
};

}  // namespace

Result<ComparisonAnswer> CompareArms(store::ReadStore& store, const store::SweepInfo& sweep,
                                     const pb::CompareSpec& asked, size_t look) {
  return ArmComparer(store, sweep).Compare(asked, look);
}

}  // namespace switchyard::results
