// The two branches of the mcf gate against the plain formulas: the local context against a masked
// dense computation, blockwise attention against one softmax over all keys.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/routers/history_attention.h"
#include "worker/model/routers/local_context.h"

namespace switchyard::model {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [B, T, D] by [T, P + T] matrices.
at::Tensor DenseLocal(const at::Tensor& x, const at::Tensor& valid, int64_t T,
                      const LocalContextOptions& options) {
  const int64_t B = x.size(0), S = x.size(1), P = S - T;
  const at::Tensor queries = x.narrow(1, P, T);
  at::Tensor scores = at::matmul(queries, x.transpose(1, 2));
  if (options.scale == LocalContextOptions::Scale::kInverseSqrt) {
    scores = scores / std::sqrt(static_cast<double>(x.size(2)));
  } else if (options.scale == LocalContextOptions::Scale::kCosine) {
    scores = scores / queries.norm(2, 2).unsqueeze(2) / x.norm(2, 2).unsqueeze(1);
  }
  const at::Tensor age = at::arange(P, S).unsqueeze(1) - at::arange(S).unsqueeze(0);
  at::Tensor allowed = age.abs().le(options.radius);
  if (!options.sees_future) allowed = allowed.logical_and(age.ge(0));
  if (!options.includes_self) allowed = allowed.logical_and(age.ne(0));
  allowed = allowed.unsqueeze(0).expand({B, T, S});
  if (valid.defined()) allowed = allowed.logical_and(valid.unsqueeze(1));
  scores = scores.masked_fill(allowed.logical_not(), -kInfinity);
  const int64_t k = std::min(options.neighbours, S);
  const at::Tensor least = std::get<0>(scores.topk(k, 2)).narrow(2, k - 1, 1);
  const at::Tensor chosen = allowed.logical_and(scores.ge(least));
  at::Tensor weights = options.weight == LocalContextOptions::Weight::kMean
                           ? chosen.to(at::kDouble)
                           : scores.exp().masked_fill(chosen.logical_not(), 0.0);
  weights = weights / weights.sum(2, /*keepdim=*/true).clamp_min(1e-300);
  return at::matmul(weights, x);
}

// Every option, with fewer rows than the radius and more, with a past, with more neighbours asked
// for than there are, and with pads in front and behind (MCF-1).
TEST(LocalContext, EqualsTheMaskedDenseFormula) {
  for (const int64_t T : {1, 4, 5, 11}) {
    for (const int64_t P : {0, 2, 9}) {
      for (const bool sees_future : {false, true}) {
        for (const bool includes_self : {false, true}) {
          for (const auto scale :
               {LocalContextOptions::Scale::kInverseSqrt, LocalContextOptions::Scale::kNone,
                LocalContextOptions::Scale::kCosine}) {
            const LocalContextOptions options{
                .radius = 4,
                .neighbours = includes_self ? 3 : 12,
                .sees_future = sees_future,
                .includes_self = includes_self,
                .scale = scale,
                .weight = P == 2 ? LocalContextOptions::Weight::kMean
                                 : LocalContextOptions::Weight::kSoftmax};
            const at::Tensor x = Normal({2, P + T, 6}, static_cast<uint64_t>(T + P));
            at::Tensor valid = at::ones({2, P + T}, at::kBool);
            valid[1].narrow(0, 0, std::min<int64_t>(2, P + T)).fill_(false);
            valid[0][P + T - 1] = T == 1;
            for (const at::Tensor& mask : {at::Tensor(), valid}) {
              EXPECT_LT(
                  Distance(LocalContext(x, mask, T, options), DenseLocal(x, mask, T, options)),
                  1e-12)
                  << "T " << T << " P " << P << " future " << sees_future << " self "
                  << includes_self;
            }
          }
        }
      }
    }
  }
}

// Equal similarities: the nearer neighbour, and at one distance the past one.
TEST(LocalContext, TiesGoToTheNearerThenThePast) {
  at::Tensor x = at::zeros({1, 7, 8}, at::kDouble);
  for (int64_t t = 0; t < 7; ++t) x[0][t][t] = 1.0;  // all similarities are 0
  const auto picked = [&](int64_t k, bool sees_future) {
    return LocalContext(x, {}, 7,
                        {.radius = 3,
                         .neighbours = k,
                         .sees_future = sees_future,
                         .weight = LocalContextOptions::Weight::kMean})[0][3];
  };
  EXPECT_EQ(picked(1, false)[2].item<double>(), 1.0);
  EXPECT_EQ(picked(1, true)[2].item<double>(), 1.0);
  EXPECT_EQ(picked(2, true)[4].item<double>(), 0.5);
  EXPECT_EQ(picked(2, false)[1].item<double>(), 0.5);
}

// Gradients through the similarities and through the neighbours themselves.
TEST(LocalContext, GradientIsThatOfFiniteDifferences) {
  for (const auto scale :
       {LocalContextOptions::Scale::kInverseSqrt, LocalContextOptions::Scale::kCosine}) {
    const LocalContextOptions options{.radius = 3, .neighbours = 2, .scale = scale};
    const at::Tensor x = Normal({2, 7, 4}, 3).requires_grad_(true);
    const at::Tensor g = Normal({2, 5, 4}, 4);
    const auto loss = [&] { return (LocalContext(x, {}, 5, options) * g).sum(); };
    loss().backward();
    EXPECT_LT(GradientError(x, loss), 1e-7);
  }
}

struct Problem {
  at::Tensor q, valid, bias;
  std::vector<at::Tensor> k, v;

  static Problem Of(int64_t T, const std::vector<int64_t>& pasts) {
    Problem made{.q = Normal({2, 3, T, 4}, 1).requires_grad_(true)};
    for (size_t j = 0; j < pasts.size(); ++j) {
      made.k.push_back(Normal({2, 3, pasts[j] + T, 4}, 10 + j).requires_grad_(true));
      made.v.push_back(Normal({2, 3, pasts[j] + T, 4}, 20 + j).requires_grad_(true));
    }
    made.valid = at::ones({2, T}, at::kBool);
    made.valid[1].narrow(0, T / 2, T - T / 2).fill_(false);
    made.bias = Normal({3}, 30).requires_grad_(true);
    return made;
  }
  HistoryAttentionInput Input() const {
    return {.q = q, .k = k, .v = v, .valid = valid, .same_time_bias = bias, .scale = 0.7};
  }
};

// One softmax over all keys of all blocks at once.
at::Tensor DenseAttention(const HistoryAttentionInput& in) {
  const int64_t T = in.q.size(2);
  std::vector<at::Tensor> scores;
  for (const at::Tensor& k : in.k) {
    const int64_t P = k.size(2) - T;
    const at::Tensor age = at::arange(T).unsqueeze(1) - at::arange(-P, T).unsqueeze(0);
    at::Tensor s = at::matmul(in.q, k.transpose(2, 3)) * in.scale;
    if (in.same_time_bias.defined()) s = s + in.same_time_bias.view({-1, 1, 1}) * age.eq(0);
    at::Tensor allowed = age.ge(in.age_min).logical_and(age.le(in.age_max));
    if (in.valid.defined()) {
      const at::Tensor now =
          at::cat({at::ones({in.q.size(0), P}, at::kBool), in.valid}, 1).unsqueeze(1).unsqueeze(1);
      allowed = allowed.logical_and(now);
    }
    scores.push_back(s.masked_fill(allowed.logical_not(), -kInfinity));
  }
  const at::Tensor p = at::softmax(at::cat(scores, 3), 3).nan_to_num(0.0);
  return at::matmul(p, at::cat(in.v, 2));
}

// Blocks with and without a past, every mask, pads, tiles of several rows: values and all gradients
// (MCF-2).
TEST(HistoryAttention, EqualsOneSoftmaxOverAllKeys) {
  struct Range {
    int64_t min, max;
  };
  for (const int64_t T : {1, 7, 300}) {
    for (const Range range :
         {Range{0, kAnyAge}, Range{0, 0}, Range{0, 2}, Range{-2, 2}, Range{-kAnyAge, kAnyAge}}) {
      const Problem problem = Problem::Of(T, {0, 5, 5});
      HistoryAttentionInput input = problem.Input();
      input.age_min = range.min;
      input.age_max = range.max;
      const at::Tensor g = Normal(problem.q.sizes(), 40);
      std::vector<at::Tensor> all = {problem.q, problem.bias};
      all.insert(all.end(), problem.k.begin(), problem.k.end());
      all.insert(all.end(), problem.v.begin(), problem.v.end());
      const at::Tensor expected = DenseAttention(input);
      const at::Tensor got = HistoryAttention(input);
      EXPECT_LT(Distance(got, expected), 1e-12) << T << " " << range.max;
      // A query that sees no key (padding) has no defined gradient in the dense formula.
      const at::Tensor seen = got.detach().abs().sum(3, /*keepdim=*/true).gt(0);
      (got * g).sum().backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& tensor : all) {
        gradients.push_back(tensor.grad().clone());
        tensor.mutable_grad() = at::Tensor();
      }
      at::where(seen, expected * g, at::zeros_like(g)).sum().backward();
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_LT(Distance(gradients[i], all[i].grad().nan_to_num(0.0)), 1e-11)
            << "tensor " << i << " T " << T << " range " << range.min << " " << range.max;
        EXPECT_TRUE(gradients[i].isfinite().all().item<bool>());
      }
    }
  }
}

// With dropout the mask is a function of the step's key: value and gradient agree, and a sequence
// keeps its mask when the batch is split.
TEST(HistoryAttention, DropoutIsRepeatable) {
  const Problem problem = Problem::Of(6, {0, 3});
  HistoryAttentionInput input = problem.Input();
  input.dropout = {.rate = 0.4, .key = RandomKey::For(5, "test")};
  const at::Tensor g = Normal(problem.q.sizes(), 40);
  const auto loss = [&] { return (HistoryAttention(input) * g).sum(); };
  loss().backward();
  EXPECT_LT(GradientError(problem.q, loss), 1e-7);
  EXPECT_LT(GradientError(problem.k[1], loss), 1e-7);
  EXPECT_LT(GradientError(problem.v[1], loss), 1e-7);
  EXPECT_LT(GradientError(problem.bias, loss), 1e-7);
  EXPECT_GT(Distance(HistoryAttention(input), HistoryAttention(problem.Input())), 1e-3);

  HistoryAttentionInput second = input;
  second.q = input.q.narrow(0, 1, 1);
  second.valid = input.valid.narrow(0, 1, 1);
  for (at::Tensor& k : second.k) k = k.narrow(0, 1, 1);
  for (at::Tensor& v : second.v) v = v.narrow(0, 1, 1);
  second.dropout.first_sequence = 1;
  EXPECT_LT(Distance(HistoryAttention(second)[0], HistoryAttention(input)[1]), 1e-12);
}

// Keys and values that a query may not see change no bit of what it gets.
TEST(HistoryAttention, LaterKeysChangeNoBit) {
  const Problem problem = Problem::Of(300, {0, 2});
  HistoryAttentionInput input = problem.Input();
  input.valid = at::Tensor();
  const at::Tensor before = HistoryAttention(input);
  for (size_t j = 0; j < 2; ++j) {
    const int64_t past = input.k[j].size(2) - 300;
    input.k[j] = input.k[j].detach().clone();
    input.v[j] = input.v[j].detach().clone();
    input.k[j].narrow(2, past + 200, 100).mul_(-3.0);
    input.v[j].narrow(2, past + 200, 100).mul_(-3.0);
  }
  const at::Tensor after = HistoryAttention(input);
  EXPECT_TRUE(at::equal(before.narrow(2, 0, 200), after.narrow(2, 0, 200)));
  EXPECT_GT(Distance(before.narrow(2, 200, 100), after.narrow(2, 200, 100)), 1e-3);
}

}  // namespace
}  // namespace switchyard::model
