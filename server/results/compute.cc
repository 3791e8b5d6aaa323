#include "server/results/compute.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/quantity.h"
#include "common/spec/router_properties.h"
#include "common/stats/descriptive.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using stats::Absence;

// Arms further apart than this in tokens or FLOPs are not called equal in compute.
constexpr double kComputeTolerance = 0.01;
constexpr size_t kCurvePoints = 100'000;

// Means over the cells of an arm, for each value of `within`.
using ByArm = std::map<std::string, double>;
using ByWithin = std::map<std::string, ByArm>;

template <typename Quantity>
ByWithin Means(const CellDocuments& documents, const ArmRuns& runs, const Quantity& quantity) {
  std::map<std::string, std::map<std::string, std::map<uint64_t, double>>> cells;
  for (const ArmRun& run : runs.runs) {
    cells[run.within][run.arm].try_emplace(run.cell, quantity(documents.at(run.cell)));
  }
  ByWithin means;
  for (const auto& [within, arms] : cells) {
    for (const auto& [arm, values] : arms) {
      double sum = 0;
      for (const auto& [cell, value] : values) sum += value;
      means[within][arm] = sum / static_cast<double>(values.size());
    }
  }
  return means;
}

struct Spread {
  std::string low_arm;
  double low = 0;
  std::string high_arm;
  double high = 0;
  std::string within;
  double relative() const { return low > 0 ? high / low - 1 : (high > 0 ? INFINITY : 0); }
};

// The furthest apart that arms are under one value of `within`.
Spread Widest(const ByWithin& means) {
  Spread widest;
  for (const auto& [within, arms] : means) {
    const auto [low, high] =
        std::ranges::minmax_element(arms, {}, [](const auto& entry) { return entry.second; });
    const Spread spread{low->first, low->second, high->first, high->second, within};
    if (spread.relative() > widest.relative()) widest = spread;
  }
  return widest;
}

std::string Text(const Spread& spread) {
  return StrCat(spread.low_arm, " ", stats::ShortNumber(spread.low), ", ", spread.high_arm, " ",
                stats::ShortNumber(spread.high),
                spread.within.empty() ? "" : StrCat(" (", spread.within, ")"));
}

Status CheckMatch(const pb::CompareSpec& compare, const CellDocuments& documents,
                  const ArmRuns& runs) {
  for (const pb::NamedNumber& match : compare.match()) {
    const Spread spread = Widest(Means(documents, runs, [&](const pb::RunSpec& run) {
      return spec::QuantityOf(run, match.id()).value_or(0);
    }));
    if (spread.relative() <= match.value()) continue;
    return FailedPrecondition(
        StrCat("match: the arms are ", stats::ShortNumber(100 * spread.relative()), " % apart in ",
               match.id(), ", at most ", stats::ShortNumber(100 * match.value()),
               " % is allowed: ", Text(spread)));
  }
  return OkStatus();
}

// Arms whose loss on a token may use later tokens.
void WarnNonCausal(const CellDocuments& documents, const ArmRuns& runs,
                   std::vector<std::string>* warnings) {
  std::map<std::string, std::set<std::string>> arms;  // by verdict
  for (const ArmRun& run : runs.runs) {
    const pb::RunSpec& document = documents.at(run.cell);
    if (!document.model().has_moe()) continue;
    const std::string_view verdict = spec::CausalityVerdict(document.model().moe());
    if (verdict != "causal") arms[std::string(verdict)].insert(run.arm);
  }
  for (const auto& [verdict, names] : arms) {
    warnings->push_back(StrCat(
        StrJoin({names.begin(), names.end()}, ", "),
        verdict == "noncausal"
            ? ": not causal in evaluation, so that its loss is none of a language model"
            : ": not causal in training; evaluation routes each token by itself and its past"));
  }
}

bool HasRunsOn(const ArmRuns& runs, bool is_gpu) {
  return std::ranges::any_of(runs.runs, [&](const ArmRun& run) { return run.is_gpu == is_gpu; });
}

// Seconds of training along a canonical curve, whose points count from the start of their own
// attempt: what an attempt did beyond the step at which the next one went on does not count.
class TrainingClock {
 public:
  double SecondsAt(const store::CurvePoint& point) {
    if (point.attempt != attempt_) {
      before_ += last_;
      attempt_ = point.attempt;
    }
    last_ = static_cast<double>(point.ms) / 1000;
    return before_ + last_;
  }

 private:
  uint32_t attempt_ = 0;
  double before_ = 0;
  double last_ = 0;
};

struct ValueAt {
  std::optional<double> value;  // none: no evaluation up to there
  bool has_passed = false;      // the run was seen at or behind the point
};

Result<ValueAt> ReadValueAt(store::ReadStore& store, RunId run, const std::string& series,
                            const pb::NamedNumber& at, const pb::RunSpec& document) {
  double per_step = 0;  // 0: seconds
  if (at.id() == "tokens") per_step = TokensPerStep(document);
  if (at.id() == "train.flops") per_step = spec::FlopsPerStep(document);
  // The evaluation at the last step scores more text than the capped ones before it.
  const bool skips_last = document.eval().max_tokens() > 0 && !series.starts_with("train/");
  store::CurveQuery query{.run = run, .series = series, .limit = kCurvePoints};
  ValueAt found;
  TrainingClock clock;
  while (true) {
    Result<store::CurvePage> page = store.GetCurve(query);
    if (!page.ok()) {
      if (page.status().code() == Code::kNotFound) return found;
      return page.status();
    }
    for (const store::CurvePoint& point : page->points) {
      const double place =
          per_step > 0 ? per_step * static_cast<double>(point.step) : clock.SecondsAt(point);
      // FLOPs of whole steps: the last digits of a product are not a difference in compute.
      const double limit = at.value() * (1 + 1e-9);
      found.has_passed |= place >= at.value() * (1 - 1e-9);
      if (place > limit) return found;
      const bool is_last = skips_last && point.step >= document.train().steps();
      if (!is_last) found.value = point.value;
    }
    if (page->next.empty()) return found;
    query.page = page->next;
  }
}

}  // namespace

Result<CellDocuments> ReadDocuments(store::ReadStore& store, const ArmRuns& runs) {
  CellDocuments documents;
  for (const ArmRun& run : runs.runs) {
    if (documents.contains(run.cell)) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, store.GetRunDocument(run.run));
    if (!documents[run.cell].ParseFromString(document.spec)) {
      return DataLoss(StrCat("the document of run ", run.run.value.ToString(), " cannot be read"));
    }
  }
  return documents;
}

double TokensPerStep(const pb::RunSpec& run) {
  return static_cast<double>(run.train().batch()) * static_cast<double>(run.train().target_len());
}

Result<std::vector<std::string>> CheckArms(const pb::CompareSpec& compare,
                                           const CellDocuments& documents, const ArmRuns& runs) {
  SWITCHYARD_RETURN_IF_ERROR(CheckMatch(compare, documents, runs));
  std::vector<std::string> warnings;
  const auto warn_unmatched = [&](std::string_view quantity, const ByWithin& means) {
    const Spread spread = Widest(means);
    if (spread.relative() <= kComputeTolerance) return;
    warnings.push_back(StrCat("unmatched ", quantity, ": ", Text(spread)));
  };
  const auto tokens = [](const pb::RunSpec& run) {
    return static_cast<double>(run.train().steps()) * TokensPerStep(run);
  };
  // At a point in tokens or FLOPs the arms are equal in it by construction.
  const std::string at = compare.at_size() > 0 ? compare.at(0).id() : "";
  if (at.empty()) warn_unmatched("tokens", Means(documents, runs, tokens));
  if (at != "train.flops") {
    warn_unmatched(at == "tokens" ? "active FLOPs per token" : "active FLOPs",
                   Means(documents, runs, [&](const pb::RunSpec& run) {
                     const auto per_token =
                         static_cast<double>(spec::Account(run).flops_per_token_active);
                     return at.empty() ? tokens(run) * per_token : per_token;
                   }));
  }
  std::set<std::string> data;
  std::set<std::string> evaluations;
  for (const auto& [cell, document] : documents) {
    data.insert(document.data().SerializeAsString());
    evaluations.insert(document.eval().SerializeAsString());
  }
  if (data.size() > 1) warnings.emplace_back("cells differ in their data");
  if (evaluations.size() > 1) warnings.emplace_back("cells differ in how they are evaluated");
  if (HasRunsOn(runs, true) && HasRunsOn(runs, false)) {
    warnings.emplace_back("the arms ran on different kinds of devices: cpu and gpu");
  }
  WarnNonCausal(documents, runs, &warnings);
  return warnings;
}

Status TakeValuesAt(store::ReadStore& store, const pb::CompareSpec& compare,
                    const CellDocuments& documents, ArmRuns* runs) {
  if (runs->runs.size() > kCurvesMax) {
    return ResourceExhausted(StrCat("at: the curves of ", runs->runs.size(),
                                    " runs would be read, at most ", kCurvesMax,
                                    "; choose some with where"));
  }
  for (ArmRun& run : runs->runs) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        const ValueAt at,
        ReadValueAt(store, run.run, compare.metric(), compare.at(0), documents.at(run.cell)));
    // What happened to a run behind the point says nothing about its value there.
    if (at.has_passed) run.absence = Absence::kNone;
    if (run.absence != Absence::kNone) continue;
    if (!at.value) {
      run.absence = Absence::kFailed;
    } else if (!std::isfinite(*at.value)) {
      run.absence = Absence::kInformative;
    } else {
      run.value = *at.value;
    }
  }
  return OkStatus();
}

}  // namespace switchyard::results
