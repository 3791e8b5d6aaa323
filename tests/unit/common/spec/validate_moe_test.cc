// What the validator says about routers, losses and capacity; what defaults and properties they
// get.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::HasSubstr;

std::string With(std::string_view moe) {
  return Replaced(kSmallSweep, "experts: 8, router: smoe", StrCat("experts: 8, ", moe));
}
std::string Faults(std::string_view moe) { return PlanFaults(With(moe)); }
// The moe part with defaults.
pb::MoeSpec Filled(std::string_view moe) { return RunOf(With(moe)).run->model().moe(); }

constexpr const char* kKinds[] = {"smoe",       "hash",         "smoe_dropout", "hyper_router",
                                  "xmoe",       "random_fixed", "switch",       "gshard",
                                  "noisy_topk", "base",         "sinkhorn",     "bias_balanced",
                                  "deepseek",   "mixtral",      "olmoe",        "qwen3"};

// Every kind is right as it stands, is found again under its name, and its filled form is its own.
TEST(ValidateMoe, TakesEveryKindAsItStands) {
  for (const char* kind : kKinds) {
    EXPECT_EQ(Faults(StrCat("router: ", kind)), "") << kind;
    EXPECT_EQ(RouterKindName(Filled(StrCat("router: ", kind)).router()), kind);
  }
}

struct Wrong {
  const char* moe;
  const char* fault;
};

TEST(ValidateMoe, RefusesWhatCannotWork) {
  const Wrong cases[] = {
      {"router: expert_choice", "reads later tokens in evaluation"},
      {"top_k: 2, router: switch", "the router switch chooses 1 expert, not 2"},
      {"top_k: 2, router: base", "the router base chooses 1 expert, not 2"},
      {"top_k: 3, router: gshard", "the router gshard chooses 2 experts, not 3"},
      {"top_k: 2, router: {hash: {multi: 4}}", "2 is not the number of blocks, hash.multi 4"},
      {"router: {hash: {multi: 3}}", "3 does not divide experts 8"},
      {"router: {hash: {multi: 0}}", "model.moe.router.hash.multi: is required, or 0"},
      {"router: {smoe_dropout: {schedule: {k_max: 9}}}",
       "schedule.k_max: 9 is not between 1 and 8"},
      {"router: {smoe_dropout: {schedule: {k_min: 5, k_max: 4}}}",
       "schedule.k_min: 5 is not between 1 and 4"},
      {"router: {smoe_dropout: {schedule: {mode: multi_step}}}",
       "milestones: multi_step needs at least one"},
      {"router: {smoe_dropout: {schedule: {mode: multi_step, milestones: [5, 5]}}}",
       "5 does not rise above 5"},
      {"router: {smoe_dropout: {logit_dropout: 1}}", "logit_dropout: 1 is not in [0, 1)"},
      {"router: {hyper_router: {schedule: {k_min: 2}}}",
       "schedule.k_min: is set but has no effect"},
      {"router: {hyper_router: {hyper_size: 0}}", "hyper_router.hyper_size"},
      {"router: {xmoe: {tau: 0}}", "xmoe.tau: 0 must be above 0"},
      {"router: {sinkhorn: {tolerance: 0}}", "sinkhorn.tolerance: 0 must be above 0"},
      {"router: {bias_balanced: {bias_update_rate: -1}}", "-1 must not be negative"},
      {"top_k: 2, router: {bias_balanced: {group_limit: {groups: 3, topk_groups: 1}}}",
       "groups: 3 does not divide experts 8"},
      {"top_k: 3, router: {bias_balanced: {group_limit: {groups: 4, topk_groups: 1}}}",
       "1 groups of 2 experts hold fewer than top_k 3"},
      {"top_k: 2, router: {bias_balanced: {group_limit: {groups: 8, topk_groups: 4}}}",
       "top2_sum needs groups of at least 2 experts"},
      {"router: {base: {}, gate_norm: softmax_topk}", "the router base has only sigmoid"},
      {"router: {sinkhorn: {}, gate_norm: softmax_topk}",
       "the router sinkhorn has only sigmoid and softmax_full"},
      {"router: {bias_balanced: {}, gate_norm: softmax_full}",
       "has only sigmoid and sigmoid_renorm with sigmoid scores"},
      {"top_k: 1, router: mixtral", "gets no gradient from the language model"},
      {"top_k: 1, router: {hyper_router: {}}", "gets no gradient from the language model"},
      {"router: {smoe: {}, noise: {kind: gaussian_learned}}",
       "gaussian_learned is the router noisy_topk's"},
      {"router: {switch: {}, noise: {eps: 2}}", "noise.eps: 2 is not in [0, 1]"},
      {"router: {smoe: {}, noise: {eps: 0.1}}", "noise.eps: is set but has no effect"},
      {"router: {hash: {}, noise: {kind: none}}", "noise: is set but has no effect"},
      {"router: {smoe: {}, router_dtype: activation}", "router_dtype: is set but has no effect"},
      {"router: sinkhorn, capacity: {factor: {train: 1}}",
       "the router sinkhorn balances by itself; it takes no capacity"},
      {"router: smoe, capacity: {min: 1}", "at least one of train and eval is required"},
      {"router: smoe, capacity: {factor: {train: 0}}", "factor.train: 0 must be above 0"},
      {"router: smoe, capacity: {factor: {eval: 1}, drop: slot}",
       "reads later tokens in evaluation"},
      {"router: smoe, routed_scaling_factor: 0", "routed_scaling_factor: 0 must be above 0"},
      {"router: smoe, losses: {cv2: {coef: 1}}", "needs the learned noise"},
      {"router: smoe, losses: {sra: {coef: 1}}", "needs expert embeddings"},
      {"router: sinkhorn, losses: {megatron_aux: {coef: 1}}", "only z_loss acts on it"},
      {"router: base, losses: {switch: {coef: 1}}", "only z_loss acts on it"},
      {"router: gshard, losses: {gshard_top1: {coef: 1, scope: global}}",
       "gshard_top1 has no scope global"},
      {"router: noisy_topk, losses: {cv2: {coef: 1, scope: sequence}}",
       "cv2 has scope micro and no other"},
      // ML4: a loss that a router cannot use is an error, never silently inert.
      {"router: hash, losses: {switch: {coef: 0.01}}",
       "model.moe.losses: is set but has no effect"},
      {"router: {random_fixed: {mode: per_call}}, losses: {z_loss: {coef: 1}}",
       "model.moe.losses: is set but has no effect"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(Faults(wrong.moe), HasSubstr(wrong.fault)) << wrong.moe;
  }
}

// The right form beside each refusal.
TEST(ValidateMoe, TakesTheRightForms) {
  for (const char* moe :
       {"router: {expert_choice: {group: batch_at_position}}",
        "router: {expert_choice: {threshold_inference: true}}", "router: {hash: {multi: 4}}",
        "router: {sinkhorn: {}}, losses: {z_loss: {coef: 1}}",
        "top_k: 1, router: {mixtral: {}, gate_norm: softmax_full}",
        "top_k: 1, router: mixtral, allow_constant_gate: true",
        "top_k: 4, router: {bias_balanced: {group_limit: {groups: 4, topk_groups: 2}}}",
        "router: smoe, capacity: {factor: {train: 1.2}, drop: probability}",
        "router: smoe, capacity: {factor: {train: 1.2, eval: 2.4}}",
        "top_k: 1, router: {hyper_router: {schedule: {mode: cosine}}}",
        "router: {smoe: {}, noise: {kind: input_jitter, eps: 1}}",
        "router: smoe, shared_experts: 2", "router: xmoe, losses: {sra: {coef: 1}}"}) {
    EXPECT_EQ(Faults(moe), "") << moe;
  }
  const std::string allowed = Replaced(With("router: expert_choice"), "kind: train",
                                       "kind: train\n  eval: {allow_noncausal: true}");
  EXPECT_EQ(PlanFaults(allowed), "");
}

// models.md 3.3: what a kind leaves open.
TEST(RouterDefaults, AreTheKinds) {
  struct Expected {
    const char* kind;
    uint32_t top_k;
    pb::GateNorm norm;
    const char* loss;
    double coef;
  };
  const Expected cases[] = {{"smoe", 2, pb::GATE_NORM_SOFTMAX_TOPK, "", 0},
                            {"smoe_dropout", 2, pb::GATE_NORM_SOFTMAX_TOPK, "", 0},
                            {"hyper_router", 2, pb::GATE_NORM_SOFTMAX_TOPK, "", 0},
                            {"xmoe", 2, pb::GATE_NORM_SOFTMAX_FULL_RENORM, "gshard_top1", 0.01},
                            {"hash", 1, pb::GATE_NORM_UNIFORM, "", 0},
                            {"random_fixed", 2, pb::GATE_NORM_SOFTMAX_TOPK, "", 0},
                            {"switch", 1, pb::GATE_NORM_SOFTMAX_FULL, "switch", 0.01},
                            {"gshard", 2, pb::GATE_NORM_SOFTMAX_TOPK, "gshard_top1", 0.01},
                            {"noisy_topk", 2, pb::GATE_NORM_SOFTMAX_TOPK, "cv2", 0.01},
                            {"base", 1, pb::GATE_NORM_SIGMOID, "", 0},
                            {"sinkhorn", 1, pb::GATE_NORM_SIGMOID, "", 0},
                            {"bias_balanced", 8, pb::GATE_NORM_SIGMOID_RENORM, "", 0},
                            {"deepseek", 6, pb::GATE_NORM_SOFTMAX_FULL, "deepseek_seq", 0.001},
                            {"mixtral", 2, pb::GATE_NORM_SOFTMAX_FULL_RENORM, "hf_mixtral", 0.02},
                            {"olmoe", 8, pb::GATE_NORM_SOFTMAX_FULL, "hf_mixtral", 0.01},
                            {"qwen3", 8, pb::GATE_NORM_SOFTMAX_FULL_RENORM, "hf_mixtral", 0.001}};
  for (const Expected& expected : cases) {
    const pb::MoeSpec moe = Filled(StrCat("router: ", expected.kind));
    EXPECT_EQ(moe.top_k(), expected.top_k) << expected.kind;
    EXPECT_EQ(moe.router().gate_norm(), expected.norm) << expected.kind;
    if (*expected.loss == '\0') {
      EXPECT_EQ(moe.losses_size(), 0) << expected.kind;
    } else {
      ASSERT_EQ(moe.losses_size(), 1) << expected.kind;
      EXPECT_EQ(moe.losses(0).id(), expected.loss);
      EXPECT_EQ(moe.losses(0).coef(), expected.coef);
    }
  }
  EXPECT_EQ(Filled("router: {smoe_dropout: {}}").router().smoe_dropout().schedule().k_min(), 4U);
  EXPECT_EQ(Filled("router: {smoe_dropout: {}}").router().smoe_dropout().schedule().steps(), 100U);
  EXPECT_EQ(Filled("router: switch").router().noise().kind(), pb::NOISE_KIND_ADDITIVE_UNIFORM);
  EXPECT_EQ(Filled("router: mixtral, losses: {z_loss: {coef: 1}}").losses(0).id(), "z_loss");
}

// models.md 3.17.
TEST(RouterProperties, GiveTheVerdicts) {
  struct Expected {
    const char* moe;
    const char* causality;
    const char* batch;
  };
  const Expected cases[] = {
      {"router: smoe", "causal", "none"},
      {"router: hash", "causal", "none"},
      {"router: bias_balanced", "causal", "none"},
      {"router: base", "noncausal_training", "training"},
      {"router: sinkhorn", "noncausal_training", "training"},
      {"router: {expert_choice: {threshold_inference: true}}", "noncausal_training", "training"},
      {"router: {expert_choice: {group: batch_at_position}}", "causal", "evaluation"},
      {"router: smoe, capacity: {factor: {train: 1}}", "causal", "training"},
      {"router: smoe, capacity: {factor: {train: 1, eval: 1}}", "causal", "evaluation"},
      {"router: smoe, capacity: {factor: {train: 1}, drop: slot}", "noncausal_training",
       "training"}};
  for (const Expected& expected : cases) {
    const pb::MoeSpec moe = Filled(expected.moe);
    EXPECT_EQ(CausalityVerdict(moe), expected.causality) << expected.moe;
    EXPECT_EQ(BatchDependence(moe), expected.batch) << expected.moe;
  }
  EXPECT_TRUE(PropertiesOf(Filled("router: hash")).needs_ids);
  EXPECT_FALSE(PropertiesOf(Filled("router: smoe_dropout")).is_trainable);
  EXPECT_FALSE(PropertiesOf(Filled("router: random_fixed")).is_trainable);
  EXPECT_TRUE(PropertiesOf(Filled("router: hyper_router")).is_trainable);
}

}  // namespace
}  // namespace switchyard::spec
