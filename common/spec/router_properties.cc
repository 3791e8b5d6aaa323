#include "common/spec/router_properties.h"

#include <vector>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

RouterProperties OfRandomFixed(const pb::RandomFixedRouter& router) {
  switch (router.mode()) {
    case pb::RANDOM_FIXED_MODE_TOKEN_TABLE:
      return {.has_scores = false, .is_trainable = false, .needs_ids = true};
    case pb::RANDOM_FIXED_MODE_PER_CALL:
    case pb::RANDOM_FIXED_MODE_POSITION_TABLE:
      return {.has_scores = false, .is_trainable = false};
    default:
      return {.is_trainable = false};
  }
}

RouterProperties OfExpertChoice(const pb::ExpertChoiceRouter& router) {
  const bool by_position = router.group() == pb::EXPERT_CHOICE_GROUP_BATCH_AT_POSITION;
  const bool by_sequence = router.group() == pb::EXPERT_CHOICE_GROUP_SEQUENCE;
  const bool by_threshold = router.threshold_inference();
  return {.is_causal_in_training = by_position,
          .is_causal_in_evaluation = by_position || by_threshold,
          .is_batch_independent_in_training = by_sequence,
          .is_batch_independent_in_evaluation = by_sequence || by_threshold};
}

RouterProperties OfMcf(const pb::McfRouter& router) {
  const bool reads_ahead = (router.use_local() && router.local_dir() == pb::LOCAL_DIRECTION_BOTH) ||
                           (router.use_global() && !router.global_causal());
  return {.has_layer_state = true,
          .is_causal_in_training = !reads_ahead,
          .is_causal_in_evaluation = !reads_ahead};
}

RouterProperties OfKind(const pb::MoeSpec& moe) {
  const pb::RouterSpec& router = moe.router();
  switch (router.kind_case()) {
    case pb::RouterSpec::kHash:
      return {.has_scores = false, .is_trainable = false, .needs_ids = true};
    case pb::RouterSpec::kSmoeDropout:
      return {.is_trainable = false};
    case pb::RouterSpec::kRandomFixed:
      return OfRandomFixed(router.random_fixed());
    case pb::RouterSpec::kRmoe:
      return {.has_layer_state = true};
    case pb::RouterSpec::kMcf:
      return OfMcf(router.mcf());
    case pb::RouterSpec::kExpertChoice:
      return OfExpertChoice(router.expert_choice());
    case pb::RouterSpec::kBase:
    case pb::RouterSpec::kSinkhorn:
      // The assignment balances the whole micro-batch; evaluation takes the best scores.
      return {.is_causal_in_training = false, .is_batch_independent_in_training = false};
    default:
      return {};
  }
}

}  // namespace

RouterProperties PropertiesOf(const pb::MoeSpec& moe) {
  RouterProperties properties = OfKind(moe);
  if (!moe.has_capacity()) return properties;
  const bool by_position = moe.capacity().drop() == pb::DROP_POLICY_POSITION;
  if (moe.capacity().factor().has_train()) {
    properties.is_batch_independent_in_training = false;
    if (!by_position) properties.is_causal_in_training = false;
  }
  if (moe.capacity().factor().has_eval()) {
    properties.is_batch_independent_in_evaluation = false;
    if (!by_position) properties.is_causal_in_evaluation = false;
  }
  return properties;
}

std::string_view CausalityVerdict(const pb::MoeSpec& moe) {
  const RouterProperties properties = PropertiesOf(moe);
  if (!properties.is_causal_in_evaluation) return "noncausal";
  return properties.is_causal_in_training ? "causal" : "noncausal_training";
}

std::string_view BatchDependence(const pb::MoeSpec& moe) {
  const RouterProperties properties = PropertiesOf(moe);
  if (!properties.is_batch_independent_in_evaluation) return "evaluation";
  return properties.is_batch_independent_in_training ? "none" : "training";
}

std::string RouterKindName(const pb::RouterSpec& router) {
  const auto* field = pb::RouterSpec::descriptor()->FindFieldByNumber(router.kind_case());
  return field == nullptr ? std::string() : std::string(field->name());
}

std::string KnownRouterKinds() {
  const auto* kinds = pb::RouterSpec::descriptor()->oneof_decl(0);
  std::vector<std::string> names;
  for (int i = 0; i < kinds->field_count(); ++i) names.emplace_back(kinds->field(i)->name());
  return StrJoin(names, ", ");
}

}  // namespace switchyard::spec
