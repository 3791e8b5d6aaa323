#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::v1 {
class ModelSpec;
}

namespace switchyard::analysis {

// What a probe changes; everything else must not notice (models.md 3.18).
enum class ProbeKind {
  kTime,     // later tokens of the same sequences
  kBatch,    // the other sequences of the batch
  kPadding,  // padding behind the tokens
};

// How what should not notice a change came out.
enum class Influence {
  kExact,      // the same bits
  kBounded,    // the same experts, and values within 1e-12 of the largest one: rounding
  kDependent,  // it depends on what was changed
};

// One tensor of a pass that came out differently.
struct Difference {
  int layer = -1;    // of the backbone; -1: the model's logits
  std::string what;  // "scores", "experts", "weights" or "logits"
  double delta = 0;  // largest difference over the largest absolute value; experts: 1
  int64_t sequence = 0, position = 0;  // the first token that differs
  int64_t tokens = 0;                  // how many do
};

struct ProbeResult {
  ProbeKind kind = ProbeKind::kTime;
  std::string name;          // "after 3", "batch of one"
  bool is_training = false;  // routed as in training: capacity, assignment, schedule of k
  Influence influence = Influence::kExact;
  double delta = 0;                     // largest of the differences
  std::vector<Difference> differences;  // by rising layer, logits of the model last
};

// In the words of spec::CausalityVerdict and spec::BatchDependence; `padding` has the words of the
// latter.
struct AuditVerdict {
  std::string causality;         // "causal", "noncausal_training", "noncausal"
  std::string batch_dependence;  // "none", "training", "evaluation"
  std::string padding_dependence;

  bool operator==(const AuditVerdict&) const = default;
};

struct AuditReport {
  std::vector<ProbeResult> probes;
  AuditVerdict seen;
  AuditVerdict declared;  // of the router's kind and options

  // Something depends on what the declaration says it does not depend on. The other way round, a
  // declared dependence may not show in a few windows.
  bool has_undeclared() const;
};

AuditReport Judge(std::vector<ProbeResult> probes, const v1::ModelSpec& model);

// What is recorded with the run. Verdicts are numbers: 0 causal or none, 1 training only, 2
// evaluation too.
inline constexpr char kAuditCausality[] = "audit/causality";
inline constexpr char kAuditBatchDependence[] = "audit/batch_dependence";
inline constexpr char kAuditPaddingDependence[] = "audit/padding_dependence";
inline constexpr char kAuditUndeclared[] = "audit/undeclared";  // 1 or 0
std::vector<std::pair<std::string, double>> AuditSeries(const AuditReport& report);

// For a person: the verdict, and a line for each probe that is not exact.
std::string AuditText(const AuditReport& report);

}  // namespace switchyard::analysis
