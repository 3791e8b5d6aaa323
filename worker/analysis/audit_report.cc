#include "worker/analysis/audit_report.h"

#include <algorithm>
#include <cstdio>

#include "common/base/strings.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::analysis {
namespace {

namespace pb = ::switchyard::v1;

// Where a dependence was seen: 0 nowhere, 1 in training's routing alone, 2 in evaluation's.
int Reach(const std::vector<ProbeResult>& probes, ProbeKind kind) {
  int reach = 0;
  for (const ProbeResult& probe : probes) {
    if (probe.kind != kind || probe.influence != Influence::kDependent) continue;
    reach = std::max(reach, probe.is_training ? 1 : 2);
  }
  return reach;
}

constexpr const char* kCausalityWords[] = {"causal", "noncausal_training", "noncausal"};
constexpr const char* kDependenceWords[] = {"none", "training", "evaluation"};

int Rank(const std::string& word) {
  for (int i = 0; i < 3; ++i) {
    if (word == kCausalityWords[i] || word == kDependenceWords[i]) return i;
  }
  return 0;
}

// A capacity counts all rows of the batch, padding included.
const char* DeclaredPadding(const pb::MoeSpec& moe) {
  if (moe.capacity().factor().has_eval()) return "evaluation";
  return moe.capacity().factor().has_train() ? "training" : "none";
}

AuditVerdict Declared(const pb::ModelSpec& model) {
  const bool is_routed = model.has_moe() && !model.moe().router().has_dense();
  if (!is_routed) return {"causal", "none", "none"};
  return {std::string(spec::CausalityVerdict(model.moe())),
          std::string(spec::BatchDependence(model.moe())), DeclaredPadding(model.moe())};
}

double LargestDelta(const std::vector<ProbeResult>& probes, ProbeKind kind) {
  double delta = 0;
  for (const ProbeResult& probe : probes) {
    if (probe.kind == kind) delta = std::max(delta, probe.delta);
  }
  return delta;
}

const char* KindWord(ProbeKind kind) {
  return kind == ProbeKind::kTime ? "time" : kind == ProbeKind::kBatch ? "batch" : "padding";
}

std::string Scientific(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2g", value);
  return buffer;
}

std::string PlaceText(const Difference& difference) {
  const std::string where =
      difference.layer < 0 ? "the model's " : StrCat("layer ", difference.layer, " ");
  const std::string size =
      difference.what == "experts" ? "" : StrCat(" by ", Scientific(difference.delta));
  return StrCat(where, difference.what, size, ", ", difference.tokens,
                difference.tokens == 1 ? " token" : " tokens", ", first at sequence ",
                difference.sequence, ", position ", difference.position);
}

std::string ProbeText(const ProbeResult& probe) {
  std::string text = StrCat(probe.influence == Influence::kDependent ? "DEPENDS  " : "bounded  ",
                            KindWord(probe.kind), ", ", probe.name, ", ",
                            probe.is_training ? "training" : "evaluation", " routing: ");
  // The lowest layer is where it came in; what follows inherits it.
  text += PlaceText(probe.differences.front());
  const Difference& last = probe.differences.back();
  if (probe.differences.size() > 1) text += StrCat("; ", PlaceText(last));
  return text + "\n";
}

std::string Words(const AuditVerdict& verdict) {
  return StrCat(verdict.causality, "; depends on the batch: ", verdict.batch_dependence,
                "; on padding: ", verdict.padding_dependence);
}

}  // namespace

bool AuditReport::has_undeclared() const {
  return Rank(seen.causality) > Rank(declared.causality) ||
         Rank(seen.batch_dependence) > Rank(declared.batch_dependence) ||
         Rank(seen.padding_dependence) > Rank(declared.padding_dependence);
}

AuditReport Judge(std::vector<ProbeResult> probes, const pb::ModelSpec& model) {
  AuditReport report{.declared = Declared(model)};
  report.seen = {kCausalityWords[Reach(probes, ProbeKind::kTime)],
                 kDependenceWords[Reach(probes, ProbeKind::kBatch)],
                 kDependenceWords[Reach(probes, ProbeKind::kPadding)]};
  report.probes = std::move(probes);
  return report;
}

std::vector<std::pair<std::string, double>> AuditSeries(const AuditReport& report) {
  const auto exact =
      std::count_if(report.probes.begin(), report.probes.end(),
                    [](const ProbeResult& probe) { return probe.influence == Influence::kExact; });
  return {{kAuditCausality, Rank(report.seen.causality)},
          {kAuditBatchDependence, Rank(report.seen.batch_dependence)},
          {kAuditPaddingDependence, Rank(report.seen.padding_dependence)},
          {kAuditUndeclared, report.has_undeclared() ? 1.0 : 0.0},
          {"audit/time_delta", LargestDelta(report.probes, ProbeKind::kTime)},
          {"audit/batch_delta", LargestDelta(report.probes, ProbeKind::kBatch)},
          {"audit/padding_delta", LargestDelta(report.probes, ProbeKind::kPadding)},
          {"audit/probes", static_cast<double>(report.probes.size())},
          {"audit/exact_probes", static_cast<double>(exact)}};
}

std::string AuditText(const AuditReport& report) {
  std::string text = StrCat("seen:      ", Words(report.seen), "\n");
  text += StrCat("declared:  ", Words(report.declared), "\n");
  size_t exact = 0;
  for (const ProbeResult& probe : report.probes) {
    if (probe.influence == Influence::kExact) {
      ++exact;
    } else {
      text += ProbeText(probe);
    }
  }
  text += StrCat(exact, " of ", report.probes.size(), " probes came out with the same bits\n");
  if (report.has_undeclared()) {
    text += "FAILED: the model depends on what its router is declared not to depend on\n";
  } else if (report.seen == report.declared) {
    text += "passed: as declared\n";
  } else {
    text += "passed: a declared dependence did not show in these windows\n";
  }
  return text;
}

}  // namespace switchyard::analysis
