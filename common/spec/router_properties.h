#pragma once

#include <string>
#include <string_view>

namespace switchyard::v1 {
class MoeSpec;
class RouterSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

// What a router kind with its options is (models.md 3.17): the validator refuses by it, verdicts
// and tests read it. Whole-model statements assume a causal backbone.
struct RouterProperties {
  // Scores that losses, noise and the gate norm can act on.
  bool has_scores = true;
  // A parameter of the router is meant to be moved by the language-model loss.
  bool is_trainable = true;
  bool needs_ids = false;
  // Layers of one pass hand something on.
  bool has_layer_state = false;
  // Routing of a token does not depend on later tokens of its sequence.
  bool is_causal_in_training = true;
  bool is_causal_in_evaluation = true;
  // ... nor on the other sequences of its micro-batch.
  bool is_batch_independent_in_training = true;
  bool is_batch_independent_in_evaluation = true;
};

// `moe` with defaults filled in, not dense.
RouterProperties PropertiesOf(const v1::MoeSpec& moe);

// "causal", "noncausal_training" (training only) or "noncausal" (evaluation too); dense and absent
// experts are causal.
std::string_view CausalityVerdict(const v1::MoeSpec& moe);
// "none", "training" or "evaluation" (both).
std::string_view BatchDependence(const v1::MoeSpec& moe);

// Name of the kind as written in a sweep file ("smoe"); empty when none is set.
std::string RouterKindName(const v1::RouterSpec& router);
// All of them, in field order: "dense, smoe, ...".
std::string KnownRouterKinds();

}  // namespace switchyard::spec
