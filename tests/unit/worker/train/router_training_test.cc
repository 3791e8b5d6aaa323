// The rows of the list of known faults (docs/proofs.md) that concern segments, checkpoints and
// updates, for every kind of router.
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "tests/router_cases.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/data/batcher.h"
#include "worker/data/corpus.h"
#include "worker/data/safetensors.h"
#include "worker/eval/language_model.h"
#include "worker/eval/routing_series.h"
#include "worker/train/checkpoint.h"
#include "worker/train/optimizer.h"
#include "worker/train/window.h"

namespace switchyard::train {
namespace {

using model::LanguageModel;
using testing::HasSubstr;

constexpr uint32_t kVocab = 16;
const at::Device kCpu(at::kCPU);

class EveryRouter : public testing::TestWithParam<std::tuple<RouterCase, bool>> {
 protected:
  const RouterCase& router() const { return std::get<0>(GetParam()); }
  bool is_xl() const { return std::get<1>(GetParam()); }
  bool Is(std::string_view kind) const { return router().kind == kind; }

  std::string Text(const MoeText& around = {}, int seed = 3) const {
    return StrCat("seed: ", seed, " model { ",
                  is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0.1 "
                          : "decoder { heads: 4 dropout: 0.1 ",
                  "layers: 2 d_model: 16 d_inner: 12 init_std: 0.2 } ", Moe(router(), around),
                  "} train { steps: 10 }");
  }
  std::unique_ptr<LanguageModel> Make(const MoeText& around = {}, int seed = 3) const {
    return model::ModelOf(Text(around, seed), kVocab);
  }
};

// `rows` rows of `len` tokens; what `is_scored` denies has no target.
template <typename Scored>
data::TokenBatch Batch(uint32_t rows, uint32_t len, uint64_t seed, const Scored& is_scored) {
  data::TokenBatch batch{.rows = rows, .len = len};
  const at::Tensor tokens = model::RandomTokens(rows, len + 1, seed, kVocab);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < len; ++i) {
      batch.inputs.push_back(tokens[row][i].item<int64_t>());
      batch.targets.push_back(is_scored(row, i) ? tokens[row][i + 1].item<int64_t>() : -1);
    }
  }
  return batch;
}
bool Always(uint32_t, uint32_t) { return true; }

data::Corpus TextOf(uint64_t length) {
  const auto split = [](uint64_t tokens, uint64_t factor) {
    data::SplitTokens out{.domains = {{.domain = 0, .begin = 0, .end = tokens}}, .bytes = tokens};
    for (uint64_t i = 0; i < tokens; ++i) {
      out.ids.push_back(static_cast<uint32_t>(i * factor % 7 + i / 3) % kVocab);
    }
    return out;
  };
  return {.vocab_size = kVocab,
          .domain_names = {""},
          .domain_weights = {1},
          .valid = split(length, 5),
          .test = split(length / 2, 3)};
}

// TX1: a split scores alike the second time and behind another split, in one process.
TEST_P(EveryRouter, ScoresDoNotDependOnWhatWasScoredBefore) {
  const auto model = Make();
  const data::Corpus corpus = TextOf(61);
  const auto score = [&](data::Split split) {
    const eval::TextEvaluation evaluation = eval::EvaluateText(
        *model, corpus, split, {.batch = 2, .target_len = 7, .memory_len = is_xl() ? 9U : 0U}, kCpu,
        [] { return true; });
    EXPECT_GT(evaluation.totals.tokens, 20U);
    return evaluation.totals.nats;
  };
  const double alone = score(data::Split::kTest);
  const double valid = score(data::Split::kValid);
  EXPECT_EQ(score(data::Split::kValid), valid);
  EXPECT_EQ(score(data::Split::kTest), alone);
}

// TX2: behind segments of 3 the memory holds exactly the last 4 states of every layer, from the
// first segments on; limit 0 keeps none and changes nothing.
TEST_P(EveryRouter, MemoryHoldsTheLastStates) {
  if (!is_xl()) GTEST_SKIP() << "a decoder has no memory";
  const auto model = Make();
  const at::Tensor tokens = model::RandomTokens(2, 9, 1, kVocab);
  const at::Tensor embedded =
      at::embedding(model::TensorOf(*model, "word_emb.emb_layers.0.weight"), tokens) * 4.0;
  model::Memory memory, none;
  for (int64_t segment = 0; segment < 3; ++segment) {
    const at::Tensor ids = tokens.narrow(1, 3 * segment, 3);
    model->Forward(ids, ids, {}, &memory, 4);
    const int64_t seen = 3 * (segment + 1), kept = std::min<int64_t>(4, seen);
    ASSERT_GE(memory.size(), 3U);
    for (const at::Tensor& layer : memory) EXPECT_EQ(layer.size(1), kept);
    EXPECT_TRUE(at::allclose(memory[0], embedded.narrow(1, seen - kept, kept), 0, 1e-6));
    const at::Tensor without = model->Forward(ids, ids, {}, nullptr, 0).nll;
    EXPECT_TRUE(at::equal(model->Forward(ids, ids, {}, &none, 0).nll, without));
    for (const at::Tensor& layer : none) EXPECT_EQ(layer.size(1), 0);
  }
}

// LT3: a checkpoint comes back by name, tensor for tensor, whatever the model started from; one of
// another number of experts is refused whole, with the first name and both shapes.
TEST_P(EveryRouter, CheckpointsMatchByNameAndShape) {
  std::string folder = testing::TempDir() + "/router-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto saved = Make(), other = Make({}, 4), wider = Make({.experts = 8});
  const NamedTensors of_saved = ModelTensors(*saved), of_other = ModelTensors(*other),
                     of_wider = ModelTensors(*wider);
  const auto info = WriteCheckpoint(folder, 1, {.run_key = "key", .model = of_saved});
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  const auto read = ReadCheckpoint(info->path, "key");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  NamedTensors reversed(of_other.rbegin(), of_other.rend());
  EXPECT_TRUE(MatchTensors(*(*read)->model, reversed).ok());
  CopyTensors(*(*read)->model, reversed);
  for (size_t i = 0; i < of_saved.size(); ++i) {
    ASSERT_EQ(of_other[i].first, of_saved[i].first);
    EXPECT_TRUE(at::equal(of_other[i].second, of_saved[i].second)) << of_saved[i].first;
  }
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : of_wider) before.push_back(tensor.detach().clone());
  const Status refused = MatchTensors(*(*read)->model, of_wider);
  ASSERT_FALSE(refused.ok());
  std::string first;
  for (size_t i = 0; i < of_wider.size() && first.empty(); ++i) {
    if (of_wider[i].second.sizes() != of_saved[i].second.sizes()) first = of_wider[i].first;
  }
  EXPECT_THAT(refused.message(), HasSubstr(first));
  for (const auto* tensors : {&of_saved, &of_wider}) {
    for (const auto& [name, tensor] : *tensors) {
      if (name != first) continue;
      std::string shape;
      for (const int64_t size : tensor.sizes()) shape += StrCat(shape.empty() ? "" : ", ", size);
      EXPECT_THAT(refused.message(), HasSubstr(shape));
    }
  }
  for (size_t i = 0; i < of_wider.size(); ++i) {
    EXPECT_TRUE(at::equal(of_wider[i].second, before[i])) << of_wider[i].first;
  }
  std::filesystem::remove_all(folder);
}

// ML3 and OP1: rows of 4 and of 12 scored tokens weigh by their tokens: three updates of
// micro-batches of one row end at the weights of whole batches, and so does their loss.
TEST_P(EveryRouter, MicroBatchesWeighByTheirTokens) {
  if (router().balances_batch) GTEST_SKIP() << "assigns a micro-batch as one, by its definition";
  std::vector<std::unique_ptr<LanguageModel>> models;
  std::vector<double> losses;
  for (const uint32_t micro_batch : {4U, 1U}) {
    // A loss of scope micro is another one for another cut, and a kind's own is of that scope.
    models.push_back(model::DoubleModelOf(
        Text({.more = router().has_scores ? "losses { id: 'z_loss' coef: 0 } " : ""}), kVocab));
    LanguageModel& model = *models.back();
    WindowRunner window(model,
                        {.micro_batch = micro_batch,
                         .memory_len = is_xl() ? 5U : 0U,
                         .dropout = RandomKey::For(3, "dropout")},
                        kCpu);
    for (uint64_t step = 0; step < 3; ++step) {
      model::ClearGradients(model);
      const data::TokenBatch batch =
          Batch(4, 12, step, [](uint32_t row, uint32_t i) { return row % 2 == 0 || i < 4; });
      const WindowResult result = window.Run(batch, step, WantRouting::kNo);
      EXPECT_EQ(result.tokens, 32U);
      losses.push_back(result.nats_per_token);
      for (const auto& [name, tensor] : model.NamedParameters()) {
        if (tensor.grad().defined()) tensor.detach().sub_(tensor.grad() * 0.1);
      }
      model.EndUpdate(true);
    }
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], losses[i + 3], 1e-9) << i;
  const auto whole = ModelTensors(*models[0]), split = ModelTensors(*models[1]);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_LT(model::Distance(whole[i].second.to(at::kDouble), split[i].second.to(at::kDouble)),
              1e-6)
        << whole[i].first;
  }
}

// ML3: micro-batches of 4 and 12 real tokens whose scores are all equal: the balance and z losses
// of the update are those of the whole batch, not their sum nor half of it.
TEST_P(EveryRouter, LossesKeepTheirStrengthOverUnequalMicroBatches) {
  if (!router().has_scores) GTEST_SKIP() << "no scores";
  // The learned noise is drawn whatever the scores are.
  const bool is_noisy = Is("noisy_topk");
  const std::string losses = is_noisy ? "losses { id: 'z_loss' coef: 0.1 } " : Losses(router());
  std::vector<std::vector<std::pair<std::string, double>>> values;
  for (const uint32_t micro_batch : {2U, 1U}) {
    const auto model = Make({.router = "noise { kind: NOISE_KIND_NONE }", .more = losses});
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (name.find(".gate.") != std::string::npos) tensor.detach().zero_();
    }
    data::TokenBatch batch =
        Batch(2, 12, 1, [](uint32_t row, uint32_t i) { return row == 0 || i < 4; });
    for (uint32_t i = 4; i < 12; ++i) batch.inputs[12 + i] = -1;
    WindowRunner window(*model, {.micro_batch = micro_batch}, kCpu);
    values.push_back(window.Run(batch, 0, WantRouting::kNo).aux);
  }
  ASSERT_EQ(values[0].size(), values[1].size());
  ASSERT_FALSE(values[0].empty());
  for (size_t i = 0; i < values[0].size(); ++i) {
    EXPECT_EQ(values[0][i].first, values[1][i].first);
    EXPECT_NEAR(values[0][i].second, values[1][i].second, 1e-6) << values[0][i].first;
  }
}

// OP2: what moves once an update (the number of experts by a schedule, biases, thresholds) does so
// once, however many micro-batches the update has.
TEST_P(EveryRouter, SchedulesAndControllersTickOnceAnUpdate) {
  std::map<uint32_t, std::vector<std::pair<int64_t, std::vector<at::Tensor>>>> seen;
  const bool is_scheduled = Is("smoe_dropout") || Is("hyper_router");
  RouterCase with = router();
  if (is_scheduled) {
    with.options +=
        " schedule { mode: K_SCHEDULE_MODE_LINEAR_INCREASE k_min: 1 k_max: 4 steps: 3 }";
  }
  for (const uint32_t micro_batch : {4U, 2U, 1U}) {
    const auto model = model::ModelOf(
        StrCat("seed: 3 model { ",
               is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0 " : "decoder { heads: 4 ",
               "layers: 2 d_model: 16 d_inner: 12 init_std: 0.2 } ", Moe(with),
               "} train { steps: 10 }"),
        kVocab);
    WindowRunner window(*model, {.micro_batch = micro_batch}, kCpu);
    for (uint64_t step = 0; step < 4; ++step) {
      const WindowResult result = window.Run(Batch(4, 6, step, Always), step, WantRouting::kYes);
      model->EndUpdate(true);
      std::vector<at::Tensor> buffers;
      for (const auto& [name, tensor] : model->NamedBuffers()) buffers.push_back(tensor.clone());
      const auto& first = result.routing.front();
      seen[micro_batch].emplace_back(first.empty() ? 0 : first[0].expert_ids.size(1), buffers);
    }
  }
  if (is_scheduled) {
    for (size_t step = 0; step < 4; ++step) {
      EXPECT_EQ(seen[4][step].first, static_cast<int64_t>(step) + 1);
    }
  }
  for (const uint32_t micro_batch : {2U, 1U}) {
    for (size_t step = 0; step < 4; ++step) {
      // The width of expert_choice is what its busiest token got.
      if (!Is("expert_choice")) {
        EXPECT_EQ(seen[micro_batch][step].first, seen[4][step].first);
      }
      ASSERT_EQ(seen[micro_batch][step].second.size(), seen[4][step].second.size());
      for (size_t i = 0; i < seen[4][step].second.size(); ++i) {
        const at::Tensor &split = seen[micro_batch][step].second[i],
                         &whole = seen[4][step].second[i];
        if (Is("expert_choice")) {
          // Means over the groups, which are the micro-batches: moved as often, not as far.
          EXPECT_TRUE(at::equal(split.ne(0), whole.ne(0)));
          EXPECT_LT(model::Distance(split, whole), 0.2);
        } else {
          EXPECT_TRUE(at::equal(split, whole)) << micro_batch << " step " << step;
        }
      }
    }
  }
}

// MR8: all tokens on the lowest experts for 20 updates: no NaN, the idle experts keep their bits,
// and the entropy of the load is that of the experts in use, 0 for one.
TEST_P(EveryRouter, IdleExpertsStayAsTheyAre) {
  if (IsDense(router())) GTEST_SKIP() << "no experts";
  if (Is("base")) GTEST_SKIP() << "gives every expert its share, by its definition";
  RouterCase still = router();
  if (Is("gshard")) still.options = "random_second: false";
  if (Is("smoe_dropout")) still.options = "schedule { mode: K_SCHEDULE_MODE_CONSTANT }";
  if (Is("expert_choice")) still.options = "group: EXPERT_CHOICE_GROUP_BATCH";
  const auto model = model::ModelOf(
      StrCat("seed: 3 model { ",
             is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0 " : "decoder { heads: 4 ",
             "layers: 2 d_model: 16 d_inner: 12 init_std: 0.2 } ",
             Moe(still, {.router = "noise { kind: NOISE_KIND_NONE }"}), "} train { steps: 10 }"),
      kVocab);
  NamedTensors trained;
  for (const auto& [name, tensor] : model->NamedParameters()) {
    // Scores stay 0, so that every choice is a tie.
    if (name.find(".gate.") != std::string::npos) {
      tensor.detach().zero_();
    } else {
      trained.emplace_back(name, tensor);
    }
  }
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : trained) before[name] = tensor.detach().clone();
  AdamOptimizer optimizer(trained, {.lr = 1e-2});
  WindowRunner window(*model, {.micro_batch = 2}, kCpu);
  eval::RoutingReporter reporter;
  std::set<int64_t> used;
  for (uint64_t step = 0; step < 20; ++step) {
    model::ClearGradients(*model);
    data::TokenBatch batch = step % 5 == 4 ? Batch(1, 1, step, Always) : Batch(2, 6, step, Always);
    // Tables look at ids.
    std::fill(batch.inputs.begin(), batch.inputs.end(), 5);
    const WindowResult result = window.Run(batch, step, WantRouting::kYes);
    ASSERT_TRUE(std::isfinite(result.nats_per_token)) << step;
    for (const model::LayerRouting& layer : result.routing[0]) {
      for (int64_t e = 0; e < 4; ++e) {
        if (layer.expert_ids.eq(e).any().item<bool>()) used.insert(4 * layer.layer + e);
      }
    }
    for (const eval::RoutingSeries& series : reporter.Report(result.routing, result.sequences)) {
      for (const float value : series.values) EXPECT_TRUE(std::isfinite(value)) << series.name;
      if (series.name != "routing/usage_entropy_norm") continue;
      for (size_t layer = 0; layer < series.values.size(); ++layer) {
        int64_t experts = 0;
        for (int64_t e = 0; e < 4; ++e) {
          experts += result.routing[0][layer].expert_ids.eq(e).any().item<bool>() ? 1 : 0;
        }
        if (experts == 1) {
          EXPECT_EQ(series.values[layer], 0.0F);
        }
      }
    }
    optimizer.Step(1e-2, 0, 1);
    // A step that was not applied moves no controller.
    model->EndUpdate(false);
  }
  // Every expert of the layer takes tokens where it is the experts that choose.
  if (Is("expert_choice")) {
    EXPECT_EQ(used.size(), 8U);
    return;
  }
  EXPECT_LT(used.size(), 8U);
  int idle = 0, moved = 0;
  for (const auto& [name, tensor] : trained) {
    const size_t at = name.find("layers.");
    if (name.find(".experts.") == std::string::npos) continue;
    const int64_t layer = name[at + 7] - '0';
    for (int64_t e = 0; e < 4; ++e) {
      const bool is_same = at::equal(tensor.detach()[e], before.at(name)[e]);
      if (used.contains(4 * layer + e)) {
        moved += is_same ? 0 : 1;
      } else {
        EXPECT_TRUE(is_same) << name << " expert " << e;
        ++idle;
      }
    }
  }
  EXPECT_GT(idle, 0);
  EXPECT_GT(moved, 0);
}

// MR10: the series of routing count tokens times k, once each, with activations kept or made
// again, and an evaluation in between changes none of them.
TEST_P(EveryRouter, SeriesCountTrainingPassesOnce) {
  std::vector<std::vector<eval::RoutingSeries>> runs;
  for (const bool recomputes : {false, true}) {
    const auto model =
        model::ModelOf(StrCat("seed: 3 model { ",
                              is_xl() ? "transformer_xl { heads: 2 d_head: 8 dropout: 0.1 "
                                      : "decoder { heads: 4 dropout: 0.1 ",
                              "layers: 2 d_model: 16 d_inner: 12 init_std: 0.2 } ",
                              Moe(router(), {.more = Losses(router())}), "} train { steps: 10 ",
                              recomputes ? "recompute: true }" : "}"),
                       kVocab);
    WindowRunner window(*model, {.micro_batch = 2, .dropout = RandomKey::For(3, "dropout")}, kCpu);
    eval::RoutingReporter reporter;
    runs.emplace_back();
    for (uint64_t step = 0; step < 3; ++step) {
      const WindowResult result = window.Run(Batch(4, 6, step, Always), step, WantRouting::kYes);
      ASSERT_EQ(result.routing.size(), 2U);
      for (eval::RoutingSeries& series : reporter.Report(result.routing, result.sequences)) {
        runs.back().push_back(std::move(series));
      }
      model->EndUpdate(true);
      if (recomputes) {
        eval::EvaluateText(*model, TextOf(61), data::Split::kValid,
                           {.batch = 2, .target_len = 7, .memory_len = is_xl() ? 9U : 0U}, kCpu,
                           [] { return true; });
      }
    }
  }
  ASSERT_EQ(runs[0].size(), runs[1].size());
  EXPECT_EQ(runs[0].empty(), IsDense(router()));
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_EQ(runs[0][i].name, runs[1][i].name);
    EXPECT_EQ(runs[0][i].values, runs[1][i].values) << runs[0][i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryRouter,
                         testing::Combine(testing::ValuesIn(kRouterCases), testing::Bool()),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param).kind,
                                         std::get<1>(info.param) ? "_xl" : "_decoder");
                         });

}  // namespace
}  // namespace switchyard::train
