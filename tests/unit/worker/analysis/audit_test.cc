// Every kind of router, in both backbones, is what it is declared to be: the audit sees dependence
// exactly where spec::PropertiesOf says there is one.
#include "worker/analysis/audit.h"

#include <set>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/corpus.h"
#include "worker/model/model.h"

namespace switchyard::analysis {
namespace {

constexpr uint32_t kVocab = 29;
constexpr int64_t kLength = 12;

data::Corpus Text() {
  data::Corpus corpus;
  corpus.vocab_size = kVocab;
  corpus.domain_names = {""};
  for (uint64_t i = 0; i < 400; ++i) {
    corpus.valid.ids.push_back(static_cast<uint32_t>(RandomBelow({5}, i, kVocab)));
    corpus.train_frequency.resize(kVocab, 10);
  }
  return corpus;
}

// `moe`: layers, experts, router, ... in protobuf text form; empty: dense.
v1::RunSpec SpecOf(bool is_xl, const std::string& moe) {
  const char* xl =
      "transformer_xl { layers: 3 d_model: 16 heads: 2 d_head: 8 d_inner: 16 init_std: 0.4 }";
  const char* decoder = "decoder { layers: 3 d_model: 16 heads: 2 d_inner: 16 init_std: 0.4 }";
  const std::string text =
      StrCat("kind: RUN_KIND_TRAIN seed: 3 model { ", is_xl ? xl : decoder,
             moe.empty() ? "" : " moe { layers: [0, 1, 2] " + moe + " }",
             " } train { steps: 100 batch: 4 target_len: 12 optimizer { adam { lr: 1e-3 } } }");
  v1::RunSpec run;
  SWITCHYARD_CHECK(google::protobuf::TextFormat::ParseFromString(text, &run)) << text;
  spec::FillDefaults(&run);
  run.mutable_model()->clear_vocab();
  return run;
}

std::vector<std::pair<std::string, at::Tensor>> TensorsOf(const model::LanguageModel& model) {
  auto out = model.NamedParameters();
  const auto buffers = model.NamedBuffers();
  out.insert(out.end(), buffers.begin(), buffers.end());
  return out;
}

AuditReport Audit(const v1::RunSpec& run) {
  at::set_num_threads(1);
  const data::Corpus corpus = Text();
  const auto model =
      model::MakeModel(run, {.vocab_size = kVocab, .token_frequency = corpus.train_frequency});
  return AuditModel(run, corpus, TensorsOf(*model), /*step=*/60, kLength, [] { return true; });
}

struct Case {
  const char* name;
  const char* moe;
};

class EveryRouter : public testing::TestWithParam<std::tuple<bool, Case>> {
 protected:
  v1::RunSpec Spec() const { return SpecOf(std::get<0>(GetParam()), std::get<1>(GetParam()).moe); }
};

TEST_P(EveryRouter, IsSeenToBeWhatItIsDeclaredToBe) {
  const AuditReport report = Audit(Spec());
  EXPECT_EQ(report.seen.causality, report.declared.causality) << AuditText(report);
  EXPECT_EQ(report.seen.batch_dependence, report.declared.batch_dependence) << AuditText(report);
  EXPECT_EQ(report.seen.padding_dependence, report.declared.padding_dependence)
      << AuditText(report);
  // Later tokens change no shape: where nothing depends on them, no bit moves.
  if (report.declared.causality != "causal") return;
  for (const ProbeResult& probe : report.probes) {
    if (probe.kind == ProbeKind::kTime) {
      EXPECT_EQ(probe.influence, Influence::kExact) << AuditText(report);
    }
  }
}

constexpr Case kCases[] = {
    {"dense", "experts: 6 router { dense {} }"},
    {"smoe", "experts: 6 router { smoe {} }"},
    {"smoe_shared", "experts: 6 shared_experts: 1 router { smoe {} }"},
    {"smoe_jitter",
     "experts: 6 router { smoe {} noise { kind: NOISE_KIND_INPUT_JITTER eps: 0.5 } }"},
    {"smoe_dropout", "experts: 6 router { smoe_dropout { logit_dropout: 0.3 } }"},
    {"hyper_router", "experts: 6 router { hyper_router { hyper_size: 8 } }"},
    {"rmoe", "experts: 6 router { rmoe { state_size: 8 } }"},
    {"mcf", "experts: 6 router { mcf { r: 3 k_loc: 2 heads: 2 d_kv: 8 } }"},
    {"mcf_window",
     "experts: 6 router { mcf { r: 3 k_loc: 2 heads: 2 d_kv: 8 global_mask: GLOBAL_MASK_WINDOW } "
     "}"},
    {"mcf_outputs",
     "experts: 6 router { mcf { r: 3 k_loc: 2 heads: 2 d_kv: 8 history: "
     "HISTORY_SOURCE_LAYER_OUTPUT fusion: FUSION_DOUBLE_ATTN } }"},
    {"mcf_two_sided",
     "experts: 6 router { mcf { r: 3 k_loc: 2 heads: 2 d_kv: 8 local_dir: LOCAL_DIRECTION_BOTH } "
     "}"},
    {"mcf_global",
     "experts: 6 router { mcf { r: 3 k_loc: 2 heads: 2 d_kv: 8 global_causal: false } }"},
    {"cosine", "experts: 6 top_k: 2 router { cosine { d_score: 8 hops: 2 } }"},
    {"xmoe", "experts: 6 router { xmoe { proj_dim: 4 } }"},
    {"hash", "experts: 6 router { hash {} }"},
    {"random_fixed", "experts: 6 router { random_fixed {} }"},
    {"random_per_call", "experts: 6 router { random_fixed { mode: RANDOM_FIXED_MODE_PER_CALL } }"},
    {"random_positions",
     "experts: 6 router { random_fixed { mode: RANDOM_FIXED_MODE_POSITION_TABLE } }"},
    {"switch", "experts: 6 router { switch {} }"},
    {"gshard", "experts: 6 router { gshard {} }"},
    {"noisy_topk", "experts: 6 router { noisy_topk {} }"},
    {"expert_choice", "experts: 6 router { expert_choice {} }"},
    {"expert_choice_sequence",
     "experts: 6 router { expert_choice { group: EXPERT_CHOICE_GROUP_SEQUENCE } }"},
    {"expert_choice_position",
     "experts: 6 router { expert_choice { group: EXPERT_CHOICE_GROUP_BATCH_AT_POSITION } }"},
    {"expert_choice_threshold",
     "experts: 6 router { expert_choice { threshold_inference: true } }"},
    {"base", "experts: 6 router { base {} }"},
    {"sinkhorn", "experts: 6 router { sinkhorn {} }"},
    {"bias_balanced", "experts: 6 top_k: 2 router { bias_balanced {} }"},
    {"deepseek", "experts: 6 top_k: 2 router { deepseek {} }"},
    {"mixtral", "experts: 6 router { mixtral {} }"},
    {"olmoe", "experts: 6 top_k: 2 router { olmoe {} }"},
    {"qwen3", "experts: 6 top_k: 2 router { qwen3 {} }"},
    {"capacity_position",
     "experts: 6 router { smoe {} } capacity { factor { train: 0.7 eval: 0.7 } drop: "
     "DROP_POLICY_POSITION }"},
    {"capacity_slot",
     "experts: 6 router { smoe {} } capacity { factor { train: 0.7 } drop: DROP_POLICY_SLOT }"},
    {"capacity_probability",
     "experts: 6 router { smoe {} } capacity { factor { train: 0.7 eval: 0.7 } drop: "
     "DROP_POLICY_PROBABILITY }"},
};

INSTANTIATE_TEST_SUITE_P(Kinds, EveryRouter,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return StrCat(std::get<1>(info.param).name,
                                         std::get<0>(info.param) ? "_xl" : "_decoder");
                         });

// The table above names every kind there is.
TEST(AuditCases, NameEveryKind) {
  std::set<std::string> kinds;
  for (const Case& entry : kCases)
    kinds.insert(spec::RouterKindName(SpecOf(true, entry.moe).model().moe().router()));
  const auto* kind = v1::RouterSpec::descriptor()->FindOneofByName("kind");
  EXPECT_EQ(static_cast<int>(kinds.size()), kind->field_count());
}

TEST(Audit, ModelsWithoutExpertsAreCausal) {
  for (const bool is_xl : {true, false}) {
    const AuditReport report = Audit(SpecOf(is_xl, ""));
    EXPECT_EQ(report.seen, (AuditVerdict{"causal", "none", "none"})) << AuditText(report);
  }
}

// A window of r tokens on both sides: the first layer's scores leak at the last r positions before
// the change, no earlier.
TEST(Audit, ALeakIsFoundWhereItIs) {
  const AuditReport report =
      Audit(SpecOf(true,
                   "experts: 6 router { mcf { r: 2 k_loc: 2 heads: 2 d_kv: 8 local_dir: "
                   "LOCAL_DIRECTION_BOTH } }"));
  bool has_probe = false;
  for (const ProbeResult& probe : report.probes) {
    if (probe.name != "tokens after 6 replaced" || probe.is_training) continue;
    has_probe = true;
    ASSERT_FALSE(probe.differences.empty());
    const Difference& first = probe.differences.front();
    EXPECT_EQ(first.layer, 0);
    EXPECT_EQ(first.what, "scores");
    EXPECT_GE(first.position, 5);
    EXPECT_LE(first.position, 6);
    EXPECT_LE(first.tokens, 2 * kAuditWindows);
    EXPECT_GT(first.delta, 1e-6);
  }
  EXPECT_TRUE(has_probe);
}

// A model that peeks at its last token through its logits alone, without any router.
class Peeking final : public model::LanguageModel {
 public:
  model::ForwardResult Forward(const at::Tensor& tokens, const at::Tensor&,
                               const model::ForwardContext&, model::Memory*, uint32_t) override {
    return {.nll = at::zeros(tokens.sizes())};
  }
  at::Tensor Logits(const at::Tensor& tokens, const model::ForwardContext& context, model::Memory*,
                    uint32_t) override {
    at::Tensor logits = at::one_hot(tokens.clamp_min(0), kVocab).to(at::kDouble);
    const at::Tensor last = tokens.narrow(1, tokens.size(1) - 1, 1).unsqueeze(2);
    if (context.is_training) logits = logits + 1e-6 * last;
    return logits;
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const override { return {}; }
  std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const override { return {}; }
};

TEST(Audit, SeesALeakThatIsNoRouters) {
  Peeking model;
  const at::Tensor tokens = at::arange(4 * 6).view({4, 6});
  const AuditReport report = Judge(
      ProbeModel(model, tokens, {.vocab_size = kVocab, .random = RandomKey::For(1, "audit")}), {});
  EXPECT_EQ(report.seen.causality, "noncausal_training");
  EXPECT_EQ(report.seen.padding_dependence, "training");
  EXPECT_EQ(report.seen.batch_dependence, "none");
  EXPECT_TRUE(report.has_undeclared());
  EXPECT_EQ(report.probes.front().influence, Influence::kExact);
}

// Nothing that a run goes on with is moved by an audit of it.
TEST(Audit, LeavesTheModelAlone) {
  const v1::RunSpec run = SpecOf(false,
                                 "experts: 6 top_k: 2 router { bias_balanced {} } losses { id: "
                                 "\"megatron_aux\" scope: LOSS_SCOPE_GLOBAL coef: 0.01 }");
  const data::Corpus corpus = Text();
  const auto model = model::MakeModel(run, {.vocab_size = kVocab});
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : TensorsOf(*model)) before.push_back(tensor.clone());
  AuditModel(run, corpus, TensorsOf(*model), 3, kLength, [] { return true; });
  size_t i = 0;
  for (const auto& [name, tensor] : TensorsOf(*model)) {
    EXPECT_TRUE(tensor.equal(before[i])) << name;
    EXPECT_EQ(tensor.scalar_type(), before[i++].scalar_type()) << name;
  }
}

TEST(Audit, EndsWhenItIsTold) {
  int asked = 0;
  const v1::RunSpec run = SpecOf(false, "experts: 6 router { smoe {} }");
  const data::Corpus corpus = Text();
  const auto model = model::MakeModel(run, {.vocab_size = kVocab});
  const AuditReport report =
      AuditModel(run, corpus, TensorsOf(*model), 3, kLength, [&] { return ++asked < 4; });
  EXPECT_TRUE(report.probes.empty());
  EXPECT_EQ(asked, 4);
}

// Windows of the validation text; short enough for learned positions with their padding.
TEST(Audit, TokensFitTheModel) {
  v1::RunSpec run = SpecOf(false, "");
  const data::Corpus corpus = Text();
  EXPECT_EQ(AuditTokens(run, corpus, 12).sizes(), (std::vector<int64_t>{kAuditWindows, 12}));
  EXPECT_EQ(AuditTokens(run, corpus, 1000).size(1), kAuditLengthMax);
  EXPECT_EQ(AuditTokens(run, corpus, 12)[3][11].item<int64_t>(), corpus.valid.ids.back());
  run.mutable_model()->mutable_decoder()->set_position(v1::POSITION_KIND_LEARNED);
  run.mutable_model()->mutable_decoder()->set_context(16);
  EXPECT_EQ(AuditTokens(run, corpus, 16).size(1), 9);
}

}  // namespace
}  // namespace switchyard::analysis
