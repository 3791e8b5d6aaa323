// The rows ML and MR of the list of known faults (docs/proofs.md) for every kind of router, inside
// whole models of both backbones.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/router_cases.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/model/losses.h"

namespace switchyard::model {
namespace {

using testing::HasSubstr;

constexpr uint32_t kVocab = 13;

// A new kind of router is in none of these tests until the list has it.
TEST(RouterCases, NameEveryKind) {
  const auto* kinds = v1::RouterSpec::descriptor()->FindOneofByName("kind");
  std::set<std::string> listed, known;
  for (const RouterCase& router : kRouterCases) listed.insert(router.kind);
  for (int i = 0; i < kinds->field_count(); ++i) {
    known.insert(std::string(kinds->field(i)->name()));
  }
  EXPECT_EQ(listed, known);
  EXPECT_EQ(listed.size(), std::size(kRouterCases));
}

at::Tensor Tokens(int64_t rows, int64_t len, uint64_t seed) {
  return RandomTokens(rows, len, seed, kVocab);
}

v1::RunSpec RunOf(const std::string& text) {
  v1::RunSpec run;
  SWITCHYARD_CHECK(google::protobuf::TextFormat::ParseFromString(text, &run)) << text;
  spec::FillDefaults(&run);
  return run;
}

class EveryKind : public testing::TestWithParam<std::tuple<RouterCase, bool>> {
 protected:
  // Without dropout of the router's own: the masks of attention depend on the number of keys.
  EveryKind() : router_(std::get<0>(GetParam())) {
    if (Is("mcf")) router_.options += " attn_dropout: 0";
  }

  const RouterCase& router() const { return router_; }
  bool is_xl() const { return std::get<1>(GetParam()); }
  bool Is(std::string_view kind) const { return router().kind == kind; }

  // Three layers, experts in the first and the last; `train`: fields of the TrainSpec.
  std::string Text(MoeText around, const std::string& train = "", int layers = 3) const {
    if (around.layers == MoeText().layers) around.layers = "[0, 2]";
    return StrCat(
        "seed: 3 model { ",
        is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0 " : "decoder { heads: 4 ",
        "layers: ", layers, " d_model: 16 d_inner: 12 init_std: 0.2 } ", Moe(router(), around),
        "} train { steps: 10 ", train, " }");
  }
  std::string WithLosses() const { return Text({.more = Losses(router())}); }

  // Whether a validated run may have these fields; `path`: where a fault about them is.
  bool IsAllowed(const std::string& text, std::string_view path) const {
    for (const spec::Fault& fault : spec::ValidateRun(RunOf(text))) {
      if (fault.path.starts_with(path)) return false;
    }
    return true;
  }

  // Of tensors that scores come from.
  static bool IsOfGate(const std::string& name) {
    return name.find(".gate.") != std::string::npos || name.starts_with("router_gru.");
  }
  // Scores of 0 for every expert.
  static void ZeroGate(const LanguageModel& model) {
    for (const auto& [name, tensor] : model.NamedParameters()) {
      if (IsOfGate(name)) tensor.detach().zero_();
    }
  }

 private:
  RouterCase router_;
};

// ML2 and MR5: batch 2 x 8 with 5 pads against the same tokens without pads: nll, balance and z
// losses and load agree, in training too, whatever the embedding of what stands there.
TEST_P(EveryKind, PaddingCountsNothing) {
  const auto model = DoubleModelOf(WithLosses(), kVocab);
  // Padding is looked up as token 0, which no real token is.
  const at::Tensor tokens = Tokens(2, 8, 1).clamp_min(1), targets = Tokens(2, 8, 2);
  const at::Tensor pads = at::full({2, 5}, -1, at::kLong);
  const at::Tensor embedding =
      TensorOf(*model, is_xl() ? "word_emb.emb_layers.0.weight" : "model.embed_tokens.weight");
  for (const bool is_training : {false, true}) {
    const ForwardContext context{
        .is_training = is_training, .dropout = RandomKey{7}, .wants_routing = true};
    const ForwardResult bare = model->Forward(tokens, targets, context, nullptr, 0);
    for (const bool is_other_embedding : {false, true}) {
      const at::Tensor row = embedding.detach()[0], kept = row.clone();
      if (is_other_embedding) row.fill_(5);
      const ForwardResult padded = model->Forward(at::cat({tokens, pads}, 1),
                                                  at::cat({targets, pads}, 1), context, nullptr, 0);
      row.copy_(kept);
      // Transformer-XL's softmax has the changed row as well.
      if (!is_xl() || !is_other_embedding) {
        EXPECT_LT(Distance(padded.nll.narrow(1, 0, 8), bare.nll), 1e-9);
      }
      ASSERT_EQ(padded.aux.size(), bare.aux.size());
      for (size_t i = 0; i < bare.aux.size(); ++i) {
        EXPECT_LT(Distance(padded.aux[i].value, bare.aux[i].value), 1e-6) << bare.aux[i].id;
      }
      ASSERT_EQ(padded.routing.size(), 2U);
      for (size_t l = 0; l < bare.routing.size(); ++l) {
        for (int64_t e = 0; e < 4; ++e) {
          EXPECT_EQ(padded.routing[l].expert_ids.eq(e).sum().item<int64_t>(),
                    bare.routing[l].expert_ids.eq(e).sum().item<int64_t>());
        }
      }
    }
  }
}

// ML2: scores of 0 over 8 experts cost (ln 8)^2 = 4.3241 a layer, pads or not.
TEST_P(EveryKind, EqualScoresCostTheSquareOfTheLogarithm) {
  if (!router().has_scores) GTEST_SKIP() << "no scores";
  const auto model =
      DoubleModelOf(Text({.experts = 8, .more = "losses { id: 'z_loss' coef: 1 } "}), kVocab);
  ZeroGate(*model);
  at::Tensor tokens = Tokens(2, 8, 1);
  tokens[1].narrow(0, 3, 5).fill_(-1);
  const ForwardResult result = model->Forward(tokens, tokens, {}, nullptr, 0);
  ASSERT_EQ(result.aux.size(), 1U);
  EXPECT_NEAR(result.aux[0].value.item<double>() / 2, std::log(8.0) * std::log(8.0), 1e-9);
}

// ML3: four equal micro-batches, averaged, give the router gradient of one of them; each takes its
// own noise by its place, so that the same place is repeated here.
TEST_P(EveryKind, EqualMicroBatchesKeepTheStrengthOfTheLoss) {
  const auto model = DoubleModelOf(WithLosses(), kVocab);
  std::map<std::string, at::Tensor> once;
  for (const int parts : {1, 4}) {
    ClearGradients(*model);
    for (int i = 0; i < parts; ++i) {
      const ForwardResult result =
          model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0);
      at::Tensor loss = result.nll.mean();
      for (const LossTerm& term : result.aux) loss = loss + term.value;
      (loss / parts).backward();
    }
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.grad().defined()) continue;
      if (parts == 1) {
        once[name] = tensor.grad().clone();
      } else {
        EXPECT_LT(Distance(tensor.grad(), once.at(name)), 1e-6) << name;
      }
    }
  }
}

// ML4: with the main loss out, the balance losses alone move what the router trains, export on or
// off, by the gradient of finite differences; a router without scores refuses them.
TEST_P(EveryKind, LossesReachTheRouterOrAreRefused) {
  if (!router().has_scores) {
    const std::string text = Text({.more = "losses { id: 'megatron_aux' coef: 0.01 } "});
    try {
      ModelOf(text, kVocab);
      ADD_FAILURE() << "a loss without effect is taken";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("has no scores that a loss could act on"));
    }
    return;
  }
  const auto model = DoubleModelOf(WithLosses(), kVocab);
  // No layer before the first one: its gate reads no history (models.md 4.6).
  const auto is_unused = [&](const std::string& name) {
    const bool is_first = name.find("layers.0.") != std::string::npos;
    return Is("mcf") && is_first &&
           (name.find(".w_") != std::string::npos || name.find("layer_emb") != std::string::npos);
  };
  int reached = 0;
  for (const bool wants_routing : {false, true}) {
    ClearGradients(*model);
    const auto loss = [&] {
      const ForwardResult result = model->Forward(
          Tokens(2, 6, 1), Tokens(2, 6, 2),
          {.is_training = true, .dropout = RandomKey{7}, .wants_routing = wants_routing}, nullptr,
          0);
      at::Tensor total;
      for (const LossTerm& term : result.aux) {
        total = total.defined() ? total + term.value : term.value;
      }
      return total;
    };
    const at::Tensor total = loss();
    ASSERT_TRUE(total.defined());
    total.backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!IsOfGate(name) || !tensor.requires_grad() || is_unused(name)) continue;
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_GT(tensor.grad().abs().max().item<double>(), 1e-9) << name;
      EXPECT_LT(GradientError(tensor, loss, 6), 1e-4) << name;
      ++reached;
    }
  }
  const bool is_frozen = Is("smoe_dropout") || Is("random_fixed");
  EXPECT_EQ(reached == 0, is_frozen);
}

// What the norm makes of the chosen scores, by its definition (models.md 3.2).
at::Tensor WeightsOf(v1::GateNorm norm, const at::Tensor& logits, const at::Tensor& ids) {
  const at::Tensor wide = logits.to(at::kDouble);
  const at::Tensor chosen = ids.ge(0).to(at::kDouble);
  const auto pick = [&](const at::Tensor& of) { return of.gather(1, ids.clamp_min(0)) * chosen; };
  const auto renormalised = [](const at::Tensor& of) { return of / of.sum(1, true); };
  const at::Tensor probabilities = wide.exp() / wide.exp().sum(1, true);
  switch (norm) {
    case v1::GATE_NORM_SOFTMAX_TOPK:
    case v1::GATE_NORM_SOFTMAX_FULL_RENORM:
      return renormalised(pick(probabilities));
    case v1::GATE_NORM_SIGMOID:
      return pick(1 / (1 + (-wide).exp()));
    case v1::GATE_NORM_SIGMOID_RENORM: {
      const at::Tensor raw = pick(1 / (1 + (-wide).exp()));
      return ids.size(1) > 1 ? renormalised(raw) : raw;
    }
    default:
      return pick(probabilities);
  }
}

// MR2: every norm that the kind may have gives the weights of its definition from the exported
// scores, renormalised or not as it says.
TEST_P(EveryKind, WeightsFollowTheNamedNorm) {
  if (!router().has_scores) GTEST_SKIP() << "no scores";
  int tried = 0;
  for (const v1::GateNorm norm :
       {v1::GATE_NORM_SOFTMAX_TOPK, v1::GATE_NORM_SOFTMAX_FULL, v1::GATE_NORM_SOFTMAX_FULL_RENORM,
        v1::GATE_NORM_SIGMOID, v1::GATE_NORM_SIGMOID_RENORM}) {
    const std::string text = Text({.router = StrCat("gate_norm: ", v1::GateNorm_Name(norm)),
                                   .more = "allow_constant_gate: true "});
    if (!IsAllowed(text, "model.moe.router.gate_norm")) continue;
    ++tried;
    const auto model = DoubleModelOf(text, kVocab);
    const ForwardResult result =
        model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.wants_routing = true}, nullptr, 0);
    for (const LayerRouting& layer : result.routing) {
      // Hops after the first have scores of their own.
      const int64_t width = Is("cosine") ? router().top_k : layer.expert_ids.size(1);
      const at::Tensor ids = layer.expert_ids.narrow(1, 0, width);
      EXPECT_LT(Distance(WeightsOf(norm, layer.logits, ids), layer.weights.narrow(1, 0, width)),
                1e-9)
          << v1::GateNorm_Name(norm);
    }
  }
  EXPECT_GE(tried, 1);
}

// ML5: exported scores are scores: no probabilities, and the losses recomputed from the export are
// the reported ones.
TEST_P(EveryKind, ExportedScoresGiveTheReportedLoss) {
  if (!router().has_scores) GTEST_SKIP() << "no scores";
  const std::string text = WithLosses();
  const auto model = DoubleModelOf(text, kVocab);
  const ForwardResult result =
      model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.wants_routing = true}, nullptr, 0);
  const v1::MoeSpec moe = RunOf(text).model().moe();
  const v1::GateNorm norm = moe.router().gate_norm();
  std::vector<LayerScores> layers;
  for (const LayerRouting& layer : result.routing) {
    EXPECT_GT(Distance(layer.logits.sum(1), at::ones({12}, layer.logits.options())), 1e-3);
    layers.push_back(
        {.logits = layer.logits, .expert_ids = layer.expert_ids, .weights = layer.weights});
    if (norm == v1::GATE_NORM_SIGMOID || norm == v1::GATE_NORM_SIGMOID_RENORM) {
      const at::Tensor scores = at::sigmoid(layer.logits);
      layers.back().probs = scores / scores.sum(1, true);
    }
  }
  size_t compared = 0;
  for (const LossConfig& config : LossesOf(moe, router().top_k)) {
    // Of the hops' mean probabilities and the expert embeddings, neither of which is exported.
    if (config.definition == LossDefinition::kSra) continue;
    const at::Tensor again = BalanceLoss(config, layers, at::ones({12}, at::kBool), 2, {});
    for (const LossTerm& term : result.aux) {
      if (term.id != config.id) continue;
      EXPECT_LT(Distance(again * config.coef, term.value), 1e-6) << term.id;
      ++compared;
    }
  }
  EXPECT_EQ(compared, result.aux.size() - (Is("cosine") ? 1 : 0));
}

// ML7: the mean over layers divides by the layers that have experts, 2 of 6, which are named.
TEST_P(EveryKind, TheMeanDividesByTheContributingLayers) {
  if (!router().has_scores) GTEST_SKIP() << "no scores";
  const auto run = [&](const char* reduce) {
    const std::string text =
        Text({.layers = "[2, 4]",
              .more = StrCat("losses { id: 'z_loss' coef: 1 layer_reduce: LAYER_REDUCE_", reduce,
                             " } ")},
             "", 6);
    return DoubleModelOf(text, kVocab)
        ->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.wants_routing = true}, nullptr, 0);
  };
  const ForwardResult sum = run("SUM"), mean = run("MEAN");
  EXPECT_NEAR(mean.aux[0].value.item<double>() * 2, sum.aux[0].value.item<double>(), 1e-9);
  ASSERT_EQ(sum.routing.size(), 2U);
  EXPECT_EQ(sum.routing[0].layer, 2U);
  EXPECT_EQ(sum.routing[1].layer, 4U);
}

// MR3: equal scores go to the lowest index at every batch size, and two runs of one spec are the
// same bits.
TEST_P(EveryKind, EqualScoresGoToTheLowestIndex) {
  if (router().has_scores) {
    const auto model = DoubleModelOf(Text({.experts = 8}), kVocab);
    ZeroGate(*model);
    for (const int64_t rows : {1, 64}) {
      for (uint64_t call = 0; call < (rows == 1 ? 20 : 2); ++call) {
        const ForwardResult result = model->Forward(Tokens(rows, 3, call), Tokens(rows, 3, 2),
                                                    {.wants_routing = true}, nullptr, 0);
        for (const LayerRouting& layer : result.routing) {
          // One block of top_k columns a hop.
          for (int64_t k = 0; k < layer.expert_ids.size(1); ++k) {
            const int64_t wanted = Is("cosine") ? k % router().top_k : k;
            ASSERT_TRUE(layer.expert_ids.select(1, k).eq(wanted).all().item<bool>())
                << rows << " rows, choice " << k;
          }
        }
      }
    }
  }
  std::vector<at::Tensor> ends;
  for (int i = 0; i < 2; ++i) {
    const auto model = ModelOf(WithLosses(), kVocab);
    for (uint64_t step = 0; step < 3; ++step) {
      ClearGradients(*model);
      TotalLoss(model->Forward(Tokens(2, 6, step), Tokens(2, 6, 9),
                               {.is_training = true, .step = step}, nullptr, 0))
          .backward();
      for (const auto& [name, tensor] : model->NamedParameters()) {
        if (tensor.grad().defined()) tensor.detach().sub_(tensor.grad() * 0.01);
      }
      model->EndUpdate(true);
    }
    for (const auto& [name, tensor] : model->NamedParameters()) ends.push_back(tensor.detach());
  }
  const size_t half = ends.size() / 2;
  for (size_t i = 0; i < half; ++i) EXPECT_TRUE(at::equal(ends[i], ends[half + i])) << i;
}

// MR5: twelve pads stand before four real tokens that all want one expert; room for four is enough.
TEST_P(EveryKind, PadsTakeNoRoom) {
  const std::string text = Text({.more = "capacity { factor { train: 1 } } "});
  if (!IsAllowed(text, "model.moe.capacity")) GTEST_SKIP() << "takes no capacity";
  const auto model = DoubleModelOf(text, kVocab);
  ZeroGate(*model);
  at::Tensor tokens = at::full({4, 4}, -1, at::kLong);
  tokens[3].fill_(5);
  const ForwardResult result =
      model->Forward(tokens, tokens, {.is_training = true, .wants_routing = true}, nullptr, 0);
  for (const LayerRouting& layer : result.routing) {
    EXPECT_EQ(layer.dropped, 0);
    EXPECT_TRUE(layer.expert_ids.narrow(0, 0, 12).lt(0).all().item<bool>());
    EXPECT_TRUE(layer.expert_ids.narrow(0, 12, 4).select(1, 0).ge(0).all().item<bool>());
  }
}

// MR5: evaluation drops nothing, so that neither order nor number of the sequences in a batch
// shows; in training the drops of a capacity are there and are reported.
TEST_P(EveryKind, EvaluationDoesNotDependOnTheBatch) {
  const std::string limited = Text({.more = "capacity { factor { train: 0.5 } "
                                            "drop: DROP_POLICY_POSITION } "});
  const bool takes_capacity = IsAllowed(limited, "model.moe.capacity");
  const auto model = DoubleModelOf(takes_capacity ? limited : Text({}), kVocab);
  const at::Tensor tokens = Tokens(64, 5, 1), targets = Tokens(64, 5, 2);
  const ForwardContext context{.wants_routing = true};
  const ForwardResult whole = model->Forward(tokens, targets, context, nullptr, 0);
  const auto score = [&](const at::Tensor& rows) {
    return model
        ->Forward(tokens.index_select(0, rows), targets.index_select(0, rows), context, nullptr, 0)
        .nll;
  };
  const at::Tensor order = at::arange(63, -1, -1);
  EXPECT_LT(Distance(score(order).index_select(0, order), whole.nll), 1e-9);
  for (const int64_t batch : {1, 16}) {
    for (int64_t row = 0; row < 64; row += batch) {
      ASSERT_LT(Distance(score(at::arange(row, row + batch)), whole.nll.narrow(0, row, batch)),
                1e-5);
    }
  }
  for (const LayerRouting& layer : whole.routing) EXPECT_EQ(layer.dropped, 0);
  if (!takes_capacity) return;
  const ForwardResult trained =
      model->Forward(tokens, targets, {.is_training = true, .wants_routing = true}, nullptr, 0);
  for (const LayerRouting& layer : trained.routing) {
    EXPECT_GT(layer.dropped, 0);
    EXPECT_GE(layer.expert_ids.lt(0).sum().item<int64_t>(), layer.dropped);
    ASSERT_FALSE(layer.extras.empty());
    EXPECT_EQ(layer.extras.back().first, "capacity_overflow_max");
    EXPECT_GT(layer.extras.back().second.item<double>(), 0.0);
  }
}

// MR6: noise touches the router's copy alone (one expert, whose scores are all 0, gives what it
// gives without), is of training alone, and another at every step.
TEST_P(EveryKind, NoiseIsOfTheRouterInTrainingAlone) {
  for (const char* noise :
       {"INPUT_JITTER eps: 0.5", "ADDITIVE_UNIFORM eps: 0.5", "GAUSSIAN_FIXED std: 0.5"}) {
    const std::string around = StrCat("noise { kind: NOISE_KIND_", noise, " }");
    const std::string text = Text({.router = around});
    if (!router().has_scores || !IsAllowed(text, "model.moe.router.noise")) {
      GTEST_SKIP() << "takes no noise";
    }
    const auto model = DoubleModelOf(text, kVocab);
    const at::Tensor tokens = Tokens(2, 6, 1);
    const auto route = [&](bool is_training, uint64_t step) {
      const ForwardContext context{.is_training = is_training,
                                   .step = step,
                                   .dropout = RandomKey{step},
                                   .wants_routing = true};
      return model->Forward(tokens, tokens, context, nullptr, 0).routing[0];
    };
    EXPECT_TRUE(at::equal(route(false, 1).expert_ids, route(false, 2).expert_ids)) << noise;
    EXPECT_TRUE(at::equal(route(false, 1).logits, route(false, 2).logits)) << noise;
    EXPECT_FALSE(at::equal(route(true, 1).logits, route(true, 2).logits)) << noise;
    EXPECT_TRUE(at::equal(route(true, 1).logits, route(true, 1).logits)) << noise;
    if (std::string_view(noise).find("JITTER") == std::string_view::npos) continue;
    std::vector<at::Tensor> outputs;
    for (const std::string& with : {around, std::string("noise { kind: NOISE_KIND_NONE }")}) {
      RouterCase one = router();
      one.top_k = 1;
      const std::string single = StrCat(
          "seed: 3 model { ",
          is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0 " : "decoder { heads: 4 ",
          "layers: 3 d_model: 16 d_inner: 12 init_std: 0.2 } ",
          Moe(one, {.experts = 1, .router = with, .more = "allow_constant_gate: true "}), "}");
      const auto alone = DoubleModelOf(single, kVocab);
      ZeroGate(*alone);
      outputs.push_back(alone->Logits(
          tokens, {.is_training = true, .step = 1, .dropout = RandomKey{3}}, nullptr, 0));
    }
    EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
  }
}

// MR7: a model in half precision whose scores reach 7e4 has a finite loss and gradients, scores in
// float32, and the experts and weights that these scores give in float64.
TEST_P(EveryKind, LargeScoresInHalfPrecisionStayFinite) {
  const auto model = ModelOf(Text({.more = Losses(router())}, "precision: PRECISION_BF16"), kVocab);
  const ForwardContext context{.wants_routing = true};
  const auto forward = [&] {
    return model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), context, nullptr, 0);
  };
  // Cosines are bounded by their temperature.
  const bool is_bounded = Is("cosine") || Is("xmoe") || !router().has_scores;
  if (!is_bounded) {
    const double largest = forward().routing[0].logits.abs().max().item<double>();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      const bool makes_scores = name.ends_with(".gate.weight") || name.ends_with(".gate.bias") ||
                                name.ends_with(".hypernet.2.weight") ||
                                name.ends_with(".hypernet.2.bias");
      if (makes_scores) tensor.detach().mul_(7e4 / largest);
    }
  }
  const ForwardResult result = forward();
  const at::Tensor loss = TotalLoss(result);
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  loss.backward();
  for (const auto& [name, tensor] : model->NamedParameters()) {
    if (tensor.grad().defined()) {
      EXPECT_TRUE(tensor.grad().isfinite().all().item<bool>()) << name;
    }
  }
  for (const LayerRouting& layer : result.routing) {
    EXPECT_EQ(layer.weights.scalar_type(), at::kFloat);
    EXPECT_TRUE(layer.weights.isfinite().all().item<bool>());
    if (!router().has_scores) continue;
    EXPECT_EQ(layer.logits.scalar_type(), at::kFloat);
    if (!is_bounded && layer.layer == 0) {
      EXPECT_GT(layer.logits.abs().max().item<double>(), 6.9e4);
    }
    const int64_t k = std::min<int64_t>(router().top_k, layer.expert_ids.size(1));
    if (Is("expert_choice") || Is("bias_balanced")) continue;  // chosen by more than these scores
    const at::Tensor sorted =
        std::get<1>(layer.logits.to(at::kDouble).sort(/*stable=*/true, 1, true));
    EXPECT_TRUE(at::equal(sorted.narrow(1, 0, k), layer.expert_ids.narrow(1, 0, k)));
  }
}

// MR8: twenty steps without NaN, on batches down to one token.
TEST_P(EveryKind, TrainsWithoutNan) {
  const auto model = ModelOf(WithLosses(), kVocab);
  for (uint64_t step = 0; step < 20; ++step) {
    ClearGradients(*model);
    const int64_t rows = step % 2 == 0 ? 2 : 1, len = step % 3 == 0 ? 1 : 5;
    const at::Tensor loss =
        TotalLoss(model->Forward(Tokens(rows, len, step), Tokens(rows, len, 99),
                                 {.is_training = true, .step = step}, nullptr, 0));
    ASSERT_TRUE(std::isfinite(loss.item<double>())) << step;
    loss.backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.grad().defined()) continue;
      ASSERT_TRUE(tensor.grad().isfinite().all().item<bool>()) << name;
      tensor.detach().sub_(tensor.grad() * 0.01);
    }
    model->EndUpdate(true);
  }
}

// MR10: with experts in layers 2 and 4 alone, the counters of both are the assignments of the
// update, with activations kept or made again, whatever 500 evaluations and repeated passes stand
// between; the next losses are unchanged.
TEST_P(EveryKind, OnlyTrainingPassesCountAndOnce) {
  std::vector<std::vector<double>> losses;
  for (const bool recomputes : {false, true}) {
    for (const int evaluations : {0, recomputes ? 4 : 167}) {
      std::string more = Losses(router());
      if (router().has_scores && !router().balances_batch) {
        more += "losses { id: 'deepseek_batch' coef: 0.1 scope: LOSS_SCOPE_GLOBAL } ";
      }
      const auto model = ModelOf(
          Text({.layers = "[2, 4]", .more = more}, recomputes ? "recompute: true" : "", 6), kVocab);
      losses.emplace_back();
      for (uint64_t step = 0; step < 3; ++step) {
        const ForwardContext context{.is_training = true, .step = step, .wants_routing = true};
        const ForwardResult result =
            model->Forward(Tokens(2, 6, step), Tokens(2, 6, 9), context, nullptr, 0);
        const at::Tensor loss = TotalLoss(result);
        losses.back().push_back(loss.item<double>());
        loss.backward();
        ClearGradients(*model);
        for (int i = 0; i < evaluations; ++i) {
          model->Forward(Tokens(1, 3, 40), Tokens(1, 3, 41), {.step = step}, nullptr, 0);
        }
        if (evaluations > 0) {
          ForwardContext again = context;
          again.is_recomputed = true;
          model->Forward(Tokens(2, 6, step), Tokens(2, 6, 9), again, nullptr, 0);
        }
        for (const auto& [name, counts] : model->NamedBuffers()) {
          if (name != "balance_counts") continue;
          ASSERT_EQ(counts.size(1), 2);
          for (int64_t l = 0; l < 2; ++l) {
            const at::Tensor& ids = result.routing[static_cast<size_t>(l)].expert_ids;
            EXPECT_EQ(counts[1][l].narrow(0, 0, 4).sum().item<double>(),
                      static_cast<double>(ids.ge(0).sum().item<int64_t>()));
            EXPECT_EQ(counts[1][l][4].item<double>(), 12.0);
          }
        }
        model->EndUpdate(true);
      }
    }
  }
  for (size_t i = 1; i < losses.size(); ++i) EXPECT_EQ(losses[i], losses[0]) << i;
}

std::vector<RouterCase> Routed() {
  std::vector<RouterCase> routed;
  for (const RouterCase& router : kRouterCases) {
    if (!IsDense(router)) routed.push_back(router);
  }
  return routed;
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind,
                         testing::Combine(testing::ValuesIn(Routed()), testing::Bool()),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param).kind,
                                         std::get<1>(info.param) ? "_xl" : "_decoder");
                         });

// ML7 and ML4: the router dense has no term, no series and takes no loss.
TEST(DenseRouter, HasNoLossAndNoSeries) {
  const std::string backbone =
      "seed: 3 model { decoder { layers: 2 d_model: 16 heads: 4 d_inner: 12 } ";
  const RouterCase dense{.kind = "dense"};
  for (const std::string& text : {backbone + "}", StrCat(backbone, Moe(dense), "}")}) {
    const ForwardResult result =
        ModelOf(text, kVocab)
            ->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.wants_routing = true}, nullptr, 0);
    EXPECT_TRUE(result.aux.empty());
    EXPECT_TRUE(result.routing.empty());
  }
  EXPECT_THROW(
      ModelOf(StrCat(backbone, Moe(dense, {.more = "losses { id: 'z_loss' coef: 1 } "}), "}"),
              kVocab),
      c10::Error);
}

}  // namespace
}  // namespace switchyard::model
