#include "worker/train/window.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "stub_model.h"
#include "worker/data/batcher.h"

namespace switchyard::train {
namespace {

const at::Device kCpu(at::kCPU);

// NLL of a target is weight * token id: exact numbers for the weighting.
class LinearModel final : public model::LanguageModel {
 public:
  model::ForwardResult Forward(const at::Tensor& tokens, const at::Tensor& targets,
                               const model::ForwardContext&, model::Memory*, uint32_t) override {
    ++forwards;
    model::ForwardResult out{.nll = weight * tokens.to(at::kFloat) * targets.ge(0)};
    if (with_aux) out.aux.push_back({.id = "aux", .value = tokens.to(at::kFloat).mean()});
    return out;
  }
  at::Tensor Logits(const at::Tensor& tokens, const model::ForwardContext&, model::Memory*,
                    uint32_t) override {
    return tokens;
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const override {
    return {{"weight", weight}};
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const override { return {}; }

  at::Tensor weight = at::ones({}).requires_grad_(true);
  bool with_aux = false;
  int forwards = 0;
};

// Ten scored tokens at 4 in the first row, ninety at 2 in the second.
data::TokenBatch Lopsided() {
  data::TokenBatch batch{.rows = 2, .len = 90};
  batch.inputs.assign(180, 2);
  batch.targets.assign(180, 1);
  for (int i = 0; i < 90; ++i) {
    batch.inputs[i] = 4;
    if (i >= 10) batch.targets[i] = -1;
  }
  return batch;
}

// OP1: micro-batches weigh by their tokens: 10 tokens at 4.0 and 90 at 2.0 make 2.2, not 3.0.
TEST(WindowRunner, WeighsMicroBatchesByTokens) {
  LinearModel split, whole;
  split.with_aux = whole.with_aux = true;
  WindowRunner split_runner(split, {.micro_batch = 1}, kCpu);
  WindowRunner whole_runner(whole, {.micro_batch = 2}, kCpu);
  const WindowResult in_two = split_runner.Run(Lopsided(), 0, WantRouting::kNo);
  const WindowResult at_once = whole_runner.Run(Lopsided(), 0, WantRouting::kNo);
  EXPECT_EQ(split.forwards, 2);
  EXPECT_EQ(in_two.tokens, 100u);
  EXPECT_NEAR(in_two.nats_per_token, 2.2, 1e-6);
  EXPECT_NEAR(at_once.nats_per_token, 2.2, 1e-6);
  EXPECT_NEAR(split.weight.grad().item<double>(), 2.2, 1e-6);
  EXPECT_NEAR(whole.weight.grad().item<double>(), 2.2, 1e-6);
  // Balance losses: the mean over micro-batches by tokens.
  ASSERT_EQ(in_two.aux.size(), 1u);
  EXPECT_NEAR(in_two.aux[0].second, 4 * 0.1 + 2 * 0.9, 1e-6);
}

// A mean over sequences is put together by sequences, whatever their tokens.
TEST(WindowRunner, WeighsSequenceLossesBySequences) {
  LinearModel model;
  model.with_aux = true;
  WindowRunner runner(model, {.micro_batch = 1, .sequence_losses = {"aux"}}, kCpu);
  EXPECT_NEAR(runner.Run(Lopsided(), 0, WantRouting::kNo).aux[0].second, 3, 1e-6);
}

// OP1: ten rows in passes of four: three passes, the short last one counted in full.
TEST(WindowRunner, AppliesTheShortLastPass) {
  LinearModel model;
  WindowRunner runner(model, {.micro_batch = 4}, kCpu);
  data::TokenBatch batch{.rows = 10, .len = 3};
  batch.inputs.assign(30, 5);
  batch.targets.assign(30, 0);
  const WindowResult result = runner.Run(batch, 0, WantRouting::kNo);
  EXPECT_EQ(model.forwards, 3);
  EXPECT_EQ(result.tokens, 30u);
  EXPECT_NEAR(result.nats_per_token, 5, 1e-6);
}

data::TokenBatch Segment(int number, bool starts_afresh) {
  data::TokenBatch batch{.rows = 4, .len = 5, .starts_afresh = starts_afresh};
  for (int i = 0; i < 20; ++i) {
    batch.inputs.push_back((i * 7 + number * 3) % 6);
    batch.targets.push_back((i * 5 + number) % 6);
  }
  return batch;
}

// Memory stays with its row: cutting the batch changes nothing but rounding, and joining it for a
// checkpoint and cutting it again changes nothing at all.
TEST(WindowRunner, MemoryFollowsTheRows) {
  StubModel whole(6, 0.3), split(6, 0.3), resumed(6, 0.3);
  const WindowOptions options{.micro_batch = 4, .memory_len = 7, .dropout = {5}};
  WindowOptions cut = options;
  cut.micro_batch = 3;
  WindowRunner whole_runner(whole, options, kCpu), split_runner(split, cut, kCpu),
      resumed_runner(resumed, cut, kCpu);
  whole.gain.mutable_data_ptr<float>()[2] = split.gain.mutable_data_ptr<float>()[2] =
      resumed.gain.mutable_data_ptr<float>()[2] = 3.0f;
  double split_loss = 0;
  for (int s = 0; s < 3; ++s) {
    if (s == 2) resumed_runner.RestoreMemory(split_runner.JoinedMemory(), 4);
    const double whole_loss =
        whole_runner.Run(Segment(s, s == 0), s, WantRouting::kNo).nats_per_token;
    split_loss = split_runner.Run(Segment(s, s == 0), s, WantRouting::kNo).nats_per_token;
    EXPECT_NEAR(whole_loss, split_loss, 1e-6) << s;
  }
  EXPECT_EQ(resumed_runner.Run(Segment(2, false), 2, WantRouting::kNo).nats_per_token, split_loss);
}

}  // namespace
}  // namespace switchyard::train
