#include "worker/model/backbones/adaptive_softmax.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

struct Made {
  ParameterStore store{RandomKey::For(1, "init")};
  AdaptiveSoftmaxOptions options;
  std::unique_ptr<AdaptiveSoftmax> softmax;

  explicit Made(int64_t div_val)
      : options{.vocab_size = 23, .d_model = 16, .cutoffs = {5, 9, 17}, .div_val = div_val} {
    softmax = std::make_unique<AdaptiveSoftmax>(options, store);
    uint64_t seed = 1;
    for (const auto& [name, tensor] : store.parameters()) {
      tensor.set_data(Normal(tensor.sizes(), seed++) * 0.3);
    }
  }
  at::Tensor Get(const std::string& name) const { return store.Find(name); }
};

// log P(id | h) from the definition: the id's own score among the head's, or its cluster's column
// (the last column is the first cluster's) and its score within the cluster.
double LogProbability(const Made& made, const at::Tensor& h, int64_t id) {
  const std::vector<int64_t> ends = {5, 9, 17, 23};
  int64_t cluster = 0;
  while (id >= ends[static_cast<size_t>(cluster)]) ++cluster;
  const auto scores = [&](int64_t i, const at::Tensor& projection) {
    const int64_t begin = i == 0 ? 0 : ends[static_cast<size_t>(i) - 1];
    const int64_t size = ends[static_cast<size_t>(i)] - begin;
    at::Tensor weight, bias, x = h;
    if (made.options.div_val == 1) {
      weight = made.Get("word_emb.emb_layers.0.weight").narrow(0, begin, size);
      bias = made.Get("crit.out_layers.0.bias").narrow(0, begin, size);
    } else {
      weight = made.Get("word_emb.emb_layers." + std::to_string(i) + ".weight");
      bias = made.Get("crit.out_layers." + std::to_string(i) + ".bias");
      x = at::matmul(h, projection);
    }
    return at::matmul(weight, x) + bias;
  };
  const at::Tensor head_projection = made.Get("crit.out_projs.0");
  const at::Tensor x = head_projection.defined() ? at::matmul(h, head_projection) : h;
  const at::Tensor head = at::log_softmax(
      at::cat({scores(0, head_projection),
               at::matmul(made.Get("crit.cluster_weight"), x) + made.Get("crit.cluster_bias")}),
      0);
  if (cluster == 0) return head[id].item<double>();
  const at::Tensor tail = at::log_softmax(
      scores(cluster, made.Get("word_emb.emb_projs." + std::to_string(cluster))), 0);
  return head[8 - cluster].item<double>() +
         tail[id - ends[static_cast<size_t>(cluster) - 1]].item<double>();
}

class AdaptiveSoftmaxTest : public testing::TestWithParam<int64_t> {};

// Losses in the order of the tokens, whatever their clusters, equal the definition's; the
// probabilities sum to 1; a token that is not scored costs nothing (TXL-5).
TEST_P(AdaptiveSoftmaxTest, EqualsTheDefinition) {
  const Made made(GetParam());
  const at::Tensor hidden = Normal({25, 16}, 90);
  at::Tensor targets = at::arange(25).remainder(23);
  targets[24] = -1;
  const at::Tensor nll = made.softmax->NegativeLogLikelihood(hidden, targets, Products::kParameter);
  const at::Tensor logs = made.softmax->LogProbabilities(hidden, Products::kParameter);
  EXPECT_LT(Distance(logs.exp().sum(1), at::ones({25}, at::kDouble)), 1e-12);
  for (int64_t n = 0; n < 24; ++n) {
    const int64_t id = targets[n].item<int64_t>();
    const double expected = LogProbability(made, hidden[n], id);
    EXPECT_NEAR(nll[n].item<double>(), -expected, 1e-12) << id;
    EXPECT_NEAR(logs[n][id].item<double>(), expected, 1e-12) << id;
  }
  EXPECT_EQ(nll[24].item<double>(), 0.0);
}

// Every tensor's gradient, through the embedding and the loss.
TEST_P(AdaptiveSoftmaxTest, GradientsAreThoseOfFiniteDifferences) {
  const Made made(GetParam());
  const at::Tensor ids = at::tensor({0, 4, 5, 8, 9, 16, 17, 22, 3, 21}, at::kLong);
  const at::Tensor targets = at::tensor({22, 17, 16, 9, 8, 5, 4, 0, -1, 3}, at::kLong);
  const auto loss = [&] {
    const at::Tensor hidden = made.softmax->Embed(ids).tanh();
    return made.softmax->NegativeLogLikelihood(hidden, targets, Products::kParameter).sum();
  };
  loss().backward();
  for (const auto& [name, tensor] : made.store.parameters()) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    EXPECT_LT(GradientError(tensor, loss), 1e-7) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(DivVal, AdaptiveSoftmaxTest, testing::Values(1, 2),
                         [](const auto& info) { return "by" + std::to_string(info.param); });

TEST(AdaptiveSoftmax, RefusesCutoffsThatDoNotFit) {
  for (const std::vector<int64_t>& cutoffs : {std::vector<int64_t>{}, {0}, {5, 5}, {7, 3}, {23}}) {
    ParameterStore store(RandomKey{1});
    EXPECT_THROW(AdaptiveSoftmax({.vocab_size = 23, .d_model = 8, .cutoffs = cutoffs}, store),
                 c10::Error);
  }
  ParameterStore store(RandomKey{1});
  EXPECT_THROW(
      AdaptiveSoftmax({.vocab_size = 23, .d_model = 8, .cutoffs = {4, 8}, .div_val = 4}, store),
      c10::Error);
}

}  // namespace
}  // namespace switchyard::model
