#include "worker/train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

namespace switchyard::train {
namespace {

// Scalar references in double.
struct Reference {
  double w = 0, m = 0, v = 0;
  int n = 0;
  void Step(double g, double lr, double decay) {
    ++n;
    w -= lr * decay * w;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    w -= lr * (m / (1 - std::pow(0.9, n))) / (std::sqrt(v / (1 - std::pow(0.999, n))) + 1e-8);
  }
};

double Drive(AdamOptimizer::Options options, double decay) {
  at::Tensor w = at::full({70}, 1.5f).requires_grad_(true);
  AdamOptimizer optimizer({{"w", w}}, options);
  Reference reference{.w = 1.5};
  double worst = 0;
  for (int i = 1; i <= 20; ++i) {
    const double g = std::sin(0.7 * i) * 3;
    w.mutable_grad() = at::full({70}, g);
    optimizer.Step(0.01 * i, 0, 0);
    reference.Step(static_cast<float>(g), 0.01 * i, decay);
    worst = std::max(worst, std::abs(w[69].item<double>() - reference.w));
  }
  return worst;
}

// The update rules, against plain arithmetic.
TEST(AdamOptimizer, FollowsTheFormulas) {
  EXPECT_LT(Drive({.lr = 0.01}, 0), 2e-6);
  EXPECT_LT(Drive({.lr = 0.01, .weight_decay = 0.1, .is_decoupled = true}, 0.1), 2e-6);
}

// Clipping acts on the global norm over all tensors, not per tensor.
TEST(AdamOptimizer, ClipsByTheGlobalNorm) {
  at::Tensor a = at::zeros({1}).requires_grad_(true);
  at::Tensor b = at::zeros({1}).requires_grad_(true);
  AdamOptimizer optimizer({{"a", a}, {"b", b}}, {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1});
  a.mutable_grad() = at::full({1}, 3.0f);
  b.mutable_grad() = at::full({1}, 4.0f);
  const double norm = optimizer.GradNorm().item<double>();
  EXPECT_DOUBLE_EQ(norm, 5);
  optimizer.Step(1, 1, norm);
  // With zero betas the step is g / (|g| + 1), g clipped to 0.6 and 0.8.
  EXPECT_NEAR(a.item<double>(), -0.6 / 1.6, 1e-6);
  EXPECT_NEAR(b.item<double>(), -0.8 / 1.8, 1e-6);
}

// An expert that got no token decays as if its gradient were 0, under every dispatch.
TEST(AdamOptimizer, AMissingGradientCountsAsZero) {
  at::Tensor with = at::ones({4}).requires_grad_(true);
  at::Tensor without = at::ones({4}).requires_grad_(true);
  AdamOptimizer optimizer({{"with", with}, {"without", without}}, {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    optimizer.ZeroGrad();
    if (i == 0) {
      with.mutable_grad() = at::ones({4});
      without.mutable_grad() = at::ones({4});
    } else {
      with.mutable_grad() = at::zeros({4});
    }
    optimizer.Step(0.1, 0, 0);
  }
  EXPECT_TRUE(with.equal(without));
}

// A tied tensor moves once, a frozen one not at all.
TEST(AdamOptimizer, MovesTiedTensorsOnceAndFrozenOnesNever) {
  at::Tensor tied = at::ones({1}).requires_grad_(true);
  at::Tensor frozen = at::ones({1});
  AdamOptimizer optimizer({{"embedding", tied}, {"head", tied}, {"frozen", frozen}}, {.lr = 0.5});
  EXPECT_EQ(optimizer.State().size(), 2u);
  tied.mutable_grad() = at::ones({1});
  optimizer.Step(0.5, 0, 0);
  EXPECT_NEAR(tied.item<double>(), 0.5, 1e-6);
  EXPECT_EQ(frozen.item<double>(), 1);
}

}  // namespace
}  // namespace switchyard::train
