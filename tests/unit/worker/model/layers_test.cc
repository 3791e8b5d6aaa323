// Attention, dropout, cross-entropy and experts, each against plain loops, an oracle, or numbers
// worked out by hand.
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/dispatch_testing.h"
#include "worker/model/experts.h"
#include "worker/model/ops.h"

namespace switchyard::model {
namespace {

double At(const at::Tensor& t, std::vector<int64_t> index) {
  int64_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) offset += index[i] * t.stride(static_cast<int64_t>(i));
  return t.const_data_ptr<double>()[offset];
}

struct AttentionCase {
  int64_t memory;
  int64_t window;
};

class RelativeAttentionTest : public testing::TestWithParam<AttentionCase> {};

// Values and all six gradients agree with loops over (query, key) that index the distance directly.
TEST_P(RelativeAttentionTest, EqualsTheIndexFormula) {
  const auto [M, window] = GetParam();
  const int64_t B = 2, T = 3, S = M + T, h = 2, dh = 4;
  at::Tensor q = Normal({B, T, h, dh}, 1), k = Normal({B, S, h, dh}, 2);
  at::Tensor v = Normal({B, S, h, dh}, 3), r = Normal({S, h, dh}, 4);
  at::Tensor u = Normal({h, dh}, 5), w = Normal({h, dh}, 6);
  const at::Tensor g = Normal({B, T, h, dh}, 7);
  const std::vector<at::Tensor> inputs{q, k, v, r, u, w};
  for (const at::Tensor& t : inputs) t.set_requires_grad(true);
  const at::Tensor out =
      RelativeAttention({.q = q, .k = k, .v = v, .r = r, .u = u, .w = w, .window = window});
  (out * g.view({B, T, h * dh})).sum().backward();

  at::Tensor expected = at::zeros({B, T, h, dh}, at::kDouble);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& t : inputs) grads.push_back(at::zeros_like(t));
  const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
  auto add = [](at::Tensor& t, std::vector<int64_t> index, double value) {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      offset += index[i] * t.stride(static_cast<int64_t>(i));
    }
    t.data_ptr<double>()[offset] += value;
  };
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t n = 0; n < h; ++n) {
      for (int64_t i = 0; i < T; ++i) {
        const int64_t last = i + M;
        const int64_t first = window > 0 ? std::max<int64_t>(0, last - window + 1) : 0;
        std::vector<double> p(static_cast<size_t>(S), 0), dp(p);
        double sum = 0, dot = 0;
        for (int64_t j = first; j <= last; ++j) {
          const int64_t row = S - 1 - (M + i - j);  // row of this distance in r
          double score = 0;
          for (int64_t c = 0; c < dh; ++c) {
            score += (At(q, {b, i, n, c}) + At(u, {n, c})) * At(k, {b, j, n, c}) +
                     (At(q, {b, i, n, c}) + At(w, {n, c})) * At(r, {row, n, c});
          }
          p[static_cast<size_t>(j)] = std::exp(score * scale);
          sum += p[static_cast<size_t>(j)];
        }
        for (int64_t j = first; j <= last; ++j) {
          const auto s = static_cast<size_t>(j);
          p[s] /= sum;
          for (int64_t c = 0; c < dh; ++c) {
            add(expected, {b, i, n, c}, p[s] * At(v, {b, j, n, c}));
            add(grads[2], {b, j, n, c}, p[s] * At(g, {b, i, n, c}));
            dp[s] += At(g, {b, i, n, c}) * At(v, {b, j, n, c});
          }
          dot += p[s] * dp[s];
        }
        for (int64_t j = first; j <= last; ++j) {
          const auto s = static_cast<size_t>(j);
          const int64_t row = S - 1 - (M + i - j);
          const double ds = p[s] * (dp[s] - dot) * scale;
          for (int64_t c = 0; c < dh; ++c) {
            const double qc = At(q, {b, i, n, c});
            add(grads[0], {b, i, n, c}, ds * (At(k, {b, j, n, c}) + At(r, {row, n, c})));
            add(grads[1], {b, j, n, c}, ds * (qc + At(u, {n, c})));
            add(grads[3], {row, n, c}, ds * (qc + At(w, {n, c})));
            add(grads[4], {n, c}, ds * At(k, {b, j, n, c}));
            add(grads[5], {n, c}, ds * At(r, {row, n, c}));
          }
        }
      }
    }
  }
  EXPECT_LT(Distance(out.detach().view({B, T, h, dh}), expected), 1e-10);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_LT(Distance(inputs[i].grad(), grads[i]), 1e-10) << "input " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(MemoryAndWindow, RelativeAttentionTest,
                         testing::Values(AttentionCase{0, 0}, AttentionCase{5, 0},
                                         AttentionCase{4, 4}, AttentionCase{2, 4},
                                         AttentionCase{0, 1}));

// Allowed keys per query equal the hand-made list for 0, 2 and 5 past states under a limit of 4;
// no query is left without a key (TX2).
TEST(RelativeAttention, SameLengthWindowIsTheHandMadeList) {
  const std::map<int64_t, std::vector<std::set<int64_t>>> lists{
      {0, {{0}, {0, 1}, {0, 1, 2}}},
      {2, {{0, 1, 2}, {0, 1, 2, 3}, {1, 2, 3, 4}}},
      {5, {{2, 3, 4, 5}, {3, 4, 5, 6}, {4, 5, 6, 7}}}};
  for (const auto& [M, expected] : lists) {
    const int64_t T = 3, S = M + T;
    // Values are unit vectors: the output is the row of weights.
    const at::Tensor zero = at::zeros({1, T, 1, S}, at::kDouble);
    const at::Tensor keys = at::zeros({1, S, 1, S}, at::kDouble);
    const at::Tensor bias = at::zeros({1, S}, at::kDouble);
    const at::Tensor out = RelativeAttention({.q = zero,
                                              .k = keys,
                                              .v = at::eye(S, at::kDouble).view({1, S, 1, S}),
                                              .r = at::zeros({S, 1, S}, at::kDouble),
                                              .u = bias,
                                              .w = bias,
                                              .window = 4});
    for (int64_t i = 0; i < T; ++i) {
      std::set<int64_t> allowed;
      for (int64_t j = 0; j < S; ++j) {
        if (At(out, {0, i, j}) > 0) allowed.insert(j);
      }
      EXPECT_EQ(allowed, expected[static_cast<size_t>(i)]) << "memory " << M << " query " << i;
    }
  }
}

// bfloat16 and float32 follow the float64 result within their precision.
TEST(RelativeAttention, NarrowTypesFollowTheWideOne) {
  const int64_t B = 2, T = 17, S = 40, h = 2, dh = 16;
  const at::Tensor q = Normal({B, T, h, dh}, 1), k = Normal({B, S, h, dh}, 2),
                   v = Normal({B, S, h, dh}, 3), r = Normal({S, h, dh}, 4), u = Normal({h, dh}, 5);
  const at::Tensor wide = RelativeAttention({.q = q, .k = k, .v = v, .r = r, .u = u, .w = u});
  for (const auto& [type, limit] : {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 0.1}}) {
    const at::Tensor uf = u.to(at::kFloat);
    const at::Tensor narrow = RelativeAttention(
        {.q = q.to(type), .k = k.to(type), .v = v.to(type), .r = r.to(type), .u = uf, .w = uf});
    EXPECT_LT(Distance(narrow.to(at::kDouble), wide), limit) << type;
  }
}

// Value and gradients of attention in blocks equal the whole matrix's, whatever of rows and heads
// is left over at the end, and whatever the strides; nothing later than a row is seen.
TEST(CausalAttention, BlocksEqualTheWholeMatrix) {
  for (const auto& [B, H, T] :
       {std::tuple{2, 3, 300}, std::tuple{1, 1, 1}, std::tuple{1, 8, 128}, std::tuple{1, 5, 129}}) {
    at::Tensor q = Normal({B, T, H, 6}, 1).transpose(1, 2).detach(),
               k = Normal({B, T, H, 6}, 2).transpose(1, 2).detach(), v = Normal({B, H, T, 4}, 3);
    for (at::Tensor* t : {&q, &k, &v}) t->set_requires_grad(true);
    const at::Tensor g = Normal({B, H, T, 4}, 4);
    const at::Tensor later = at::ones({T, T}, at::kBool).triu(1);
    const auto whole =
        at::softmax((at::matmul(q, k.transpose(2, 3)) * 0.4).masked_fill(later, -INFINITY), 3);
    const at::Tensor expected = at::matmul(whole, v);
    (expected * g).sum().backward();
    std::vector<at::Tensor> wanted;
    for (const at::Tensor* t : {&q, &k, &v}) {
      wanted.push_back(t->grad().clone());
      t->mutable_grad().reset();
    }
    const at::Tensor result = CausalAttention(q, k, v, 0.4);
    EXPECT_LT(Distance(result, expected), 1e-12);
    (result * g).sum().backward();
    for (size_t i = 0; i < wanted.size(); ++i) {
      const at::Tensor got = std::array{q, k, v}[i].grad();
      EXPECT_LT(Distance(got, wanted[i]), 1e-11) << T << " " << i;
    }
    for (const auto& [type, limit] : {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 0.1}}) {
      const at::Tensor narrow = CausalAttention(q.to(type), k.to(type), v.to(type), 0.4);
      EXPECT_LT(Distance(narrow.to(at::kDouble), expected), limit) << type;
    }
    const at::Tensor tail = at::cat({k.narrow(2, 0, T - 1), k.narrow(2, T - 1, 1) + 1}, 2);
    EXPECT_TRUE(at::equal(CausalAttention(q, tail, v, 0.4).narrow(2, 0, T - 1),
                          result.narrow(2, 0, T - 1)));
  }
}

// A mask is a function of key, sequence and position: neither the split of the batch nor the number
// of rows made at once shows, and its rate is the one asked for.
TEST(DropoutMask, DoesNotDependOnTheSplit) {
  for (const int64_t width : {16, 13}) {
    DropoutStream stream{.rate = 0.25, .key = RandomKey::For(3, "dropout"), .first_sequence = 4};
    const at::Tensor whole = DropoutMask(stream, 6, 50, width);
    stream.first_sequence = 7;
    const at::Tensor part = DropoutMask(stream, 2, 50, width);
    EXPECT_TRUE(at::equal(whole.narrow(0, 3, 2), part));
    const std::vector<int64_t> sequences{1, 0}, rows{49, 3};
    const at::Tensor single = DropoutMaskRows(stream, sequences.data(), rows.data(), 2, width);
    EXPECT_TRUE(at::equal(single[0], part[1][49]));
    EXPECT_TRUE(at::equal(single[1], part[0][3]));
    EXPECT_FALSE(at::equal(part[0], part[1]));
    const auto n = static_cast<double>(whole.numel());
    // Three standard deviations.
    EXPECT_NEAR(whole.to(at::kDouble).mean().item<double>(), 0.75, 3 * std::sqrt(0.1875 / n));
  }
}

// Chunked and whole cross-entropy agree in value and gradient, rows without target count nothing,
// and both equal log_softmax.
TEST(CrossEntropy, ChunksChangeNothing) {
  const int64_t N = 23, D = 7, V = 19;
  at::Tensor targets = at::arange(N).remainder(V);
  targets[4] = -1;
  std::vector<std::vector<at::Tensor>> grads;
  std::vector<at::Tensor> values;
  for (const int64_t chunk : {int64_t{0}, 5 * V, V}) {
    at::Tensor h = Normal({N, D}, 1), w = Normal({V, D}, 2), b = Normal({V}, 3);
    for (const at::Tensor& t : {h, w, b}) t.set_requires_grad(true);
    const at::Tensor nll = CrossEntropy(h, w, b, targets, Products::kParameter, chunk);
    (nll * Normal({N}, 4)).sum().backward();
    values.push_back(nll.detach());
    grads.push_back({h.grad(), w.grad(), b.grad()});
    EXPECT_LT(GradientError(w,
                            [&] {
                              return (CrossEntropy(h, w, b, targets, Products::kParameter, chunk) *
                                      Normal({N}, 4))
                                  .sum();
                            }),
              1e-7);
  }
  const at::Tensor logp =
      at::log_softmax(at::linear(Normal({N, D}, 1), Normal({V, D}, 2), Normal({V}, 3)), 1);
  at::Tensor expected = -logp.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  expected[4] = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LT(Distance(values[i], expected), 1e-12);
    for (size_t j = 0; j < 3; ++j) EXPECT_LT(Distance(grads[i][j], grads[0][j]), 1e-12);
  }
  EXPECT_THROW(CrossEntropy(Normal({1, D}, 1), Normal({V, D}, 2), {}, at::full({1}, V),
                            Products::kParameter),
               c10::Error);
}

// Norm and rotation have the gradients of their formulas.
TEST(NormAndRotation, GradientsAreThoseOfFiniteDifferences) {
  at::Tensor x = Normal({3, 6}, 1), weight = Normal({6}, 2);
  x.set_requires_grad(true);
  weight.set_requires_grad(true);
  const at::Tensor g = Normal({3, 6}, 3);
  const auto norm = [&] { return (RmsNorm(x, weight, 1e-5) * g).sum(); };
  norm().backward();
  EXPECT_LT(GradientError(x, norm), 1e-8);
  EXPECT_LT(GradientError(weight, norm), 1e-8);
  at::Tensor y = Normal({1, 2, 3, 6}, 4);
  y.set_requires_grad(true);
  const at::Tensor angle = Normal({3, 3}, 5), gy = Normal({1, 2, 3, 6}, 6);
  const auto rope = [&] { return (Rope(y, angle.cos(), angle.sin()) * gy).sum(); };
  rope().backward();
  EXPECT_LT(GradientError(y, rope), 1e-8);
}

// ---------------------------------------------------------------- experts

Experts ExpertsOf(FeedForwardKind kind, int64_t E, int64_t D, int64_t F, at::ScalarType type) {
  const int64_t in = kind == FeedForwardKind::kSwiglu ? 2 * F : F;
  Experts experts{.kind = kind,
                  .w_in = Normal({E, in, D}, 11).to(type),
                  .w_out = Normal({E, D, F}, 12).to(type)};
  if (kind == FeedForwardKind::kRelu) {
    experts.b_in = Normal({E, F}, 13).to(type);
    experts.b_out = Normal({E, D}, 14).to(type);
  }
  for (const at::Tensor& t : {experts.w_in, experts.w_out, experts.b_in, experts.b_out}) {
    if (t.defined()) t.set_requires_grad(true);
  }
  return experts;
}

at::Tensor Ids(const std::string& shape, int64_t N, int64_t K, int64_t E) {
  at::Tensor ids = at::empty({N, K}, at::kLong);
  auto* out = ids.data_ptr<int64_t>();
  const RandomKey key = RandomKey::For(5, "ids");
  for (int64_t n = 0; n < N; ++n) {
    const auto start = static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(n), 7));
    for (int64_t k = 0; k < K; ++k) {
      int64_t e = (start + k * (1 + n % 2)) % E;
      if (shape == "one" || shape == "all") e = k;
      if (shape == "reversed") e = K - 1 - k;
      if (shape == "dropped" && (n + k) % 3 == 0) e = -1;
      if (shape == "pads") e = -1;
      if (shape == "idle") e = 2 + k;
      out[n * K + k] = e;
    }
  }
  return ids;
}

struct MixCase {
  std::string ids;
  int64_t N, K, E;
  FeedForwardKind kind = FeedForwardKind::kRelu;
  double dropout = 0;
};

class MixExpertsTest : public testing::TestWithParam<MixCase> {};

// The sorted pass equals every expert on every token, masked, in value and in every gradient
// (DP-1, DP-2): idle experts, one expert for all, no token, dropped slots, K = E.
TEST_P(MixExpertsTest, EqualsTheDenseOracle) {
  const MixCase& c = GetParam();
  const int64_t D = 6, F = 10;
  const InnerDropout dropout{{.rate = c.dropout, .key = RandomKey::For(1, "d")},
                             std::max<int64_t>(1, c.N / 2)};
  std::vector<at::Tensor> values;
  std::vector<std::vector<at::Tensor>> grads;
  for (const bool is_reference : {true, false}) {
    at::Tensor x = Normal({c.N, D}, 21), weights = Normal({c.N, c.K}, 22);
    x.set_requires_grad(true);
    weights.set_requires_grad(true);
    const Experts experts = ExpertsOf(c.kind, c.E, D, F, at::kDouble);
    const Assignment assignment{Ids(c.ids, c.N, c.K, c.E), weights};
    const at::Tensor y =
        is_reference ? MixExpertsReference(x, assignment, experts, dropout, Products::kParameter)
                     : MixExperts(x, assignment, experts, dropout, Products::kParameter);
    (y * Normal({c.N, D}, 23)).sum().backward();
    values.push_back(y.detach());
    grads.emplace_back();
    for (const at::Tensor& t :
         {x, weights, experts.w_in, experts.w_out, experts.b_in, experts.b_out}) {
      if (t.defined()) {
        grads.back().push_back(t.grad().defined() ? t.grad() : at::zeros_like(t));
      }
    }
  }
  EXPECT_LT(Distance(values[0], values[1]), 1e-12 * 50);
  for (size_t i = 0; i < grads[0].size(); ++i) {
    EXPECT_LT(Distance(grads[0][i], grads[1][i]), 1e-10) << "tensor " << i;
    EXPECT_TRUE(grads[1][i].isfinite().all().item<bool>());
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, MixExpertsTest,
                         testing::Values(MixCase{"mixed", 20, 2, 4}, MixCase{"one", 20, 1, 4},
                                         MixCase{"idle", 8, 2, 6}, MixCase{"mixed", 1, 2, 4},
                                         MixCase{"pads", 4, 2, 4}, MixCase{"mixed", 0, 2, 4},
                                         MixCase{"dropped", 20, 2, 4}, MixCase{"all", 9, 3, 3},
                                         MixCase{"reversed", 9, 3, 3},
                                         MixCase{"mixed", 20, 2, 4, FeedForwardKind::kSwiglu},
                                         MixCase{"mixed", 20, 2, 4, FeedForwardKind::kGelu},
                                         MixCase{"all", 8, 3, 3, FeedForwardKind::kSwiglu},
                                         MixCase{"mixed", 20, 2, 4, FeedForwardKind::kRelu, 0.3},
                                         MixCase{"all", 8, 3, 3, FeedForwardKind::kRelu, 0.3}));

// float32 follows float64 to 1e-6, bfloat16 products to their precision.
TEST(MixExperts, NarrowTypesFollowTheWideOne) {
  const at::Tensor ids = Ids("mixed", 40, 2, 4), weights = Normal({40, 2}, 2).abs();
  for (const auto kind :
       {FeedForwardKind::kRelu, FeedForwardKind::kSwiglu, FeedForwardKind::kGelu}) {
    const at::Tensor wide =
        MixExperts(Normal({40, 8}, 1), {ids, weights}, ExpertsOf(kind, 4, 8, 16, at::kDouble), {},
                   Products::kParameter);
    const Experts experts = ExpertsOf(kind, 4, 8, 16, at::kFloat);
    const at::Tensor x = Normal({40, 8}, 1).to(at::kFloat);
    const double size = wide.abs().max().item<double>();
    const Assignment assignment{ids, weights.to(at::kFloat)};
    const at::Tensor single = MixExperts(x, assignment, experts, {}, Products::kParameter);
    EXPECT_LT(Distance(single.to(at::kDouble), wide), 2e-6 * size);
    const at::Tensor half = MixExperts(x, assignment, experts, {}, Products::kBfloat16);
    EXPECT_EQ(half.scalar_type(), at::kFloat);
    EXPECT_LT(Distance(half.to(at::kDouble), wide), 2e-2 * size);
    half.sum().backward();
    EXPECT_EQ(experts.w_in.grad().scalar_type(), at::kFloat);
  }
}

// Experts' rows are filled up with zeros for products of bfloat16; no value or gradient shows it,
// whatever the counts: none, one, a few more than a round number, many. Nor does it show that other
// devices compute all experts' products as one.
TEST(MixExperts, FilledUpRowsCountForNothing) {
  const std::vector<int64_t> counts = {1, 0, 7, 129, 300, 33};
  std::vector<int64_t> chosen;
  for (size_t e = 0; e < counts.size(); ++e) {
    chosen.insert(chosen.end(), static_cast<size_t>(counts[e]), static_cast<int64_t>(e));
  }
  const auto N = static_cast<int64_t>(chosen.size());
  const at::Tensor ids =
      at::tensor(chosen, at::kLong).index_select(0, at::arange(N - 1, -1, -1)).unsqueeze(1);
  for (const auto kind :
       {FeedForwardKind::kRelu, FeedForwardKind::kSwiglu, FeedForwardKind::kGelu}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const int path : {0, 1, 2}) {
      const bool is_reference = path == 2;
      ForceAtenPath(path == 1);
      const Experts experts = ExpertsOf(kind, 6, 16, 24, at::kFloat);
      at::Tensor x = Normal({N, 16}, 1).to(at::kFloat), weights = Normal({N, 1}, 2).to(at::kFloat);
      x.set_requires_grad(true);
      weights.set_requires_grad(true);
      auto* const mix = is_reference ? &MixExpertsReference : &MixExperts;
      const at::Tensor y = mix(x, {ids, weights}, experts, {}, Products::kBfloat16);
      (y * Normal({N, 16}, 3).to(at::kFloat)).sum().backward();
      results.push_back(
          {y.detach(), x.grad(), weights.grad(), experts.w_in.grad(), experts.w_out.grad()});
      if (kind == FeedForwardKind::kRelu) {
        results.back().push_back(experts.b_in.grad());
        results.back().push_back(experts.b_out.grad());
      }
    }
    ForceAtenPath(false);
    for (size_t i = 0; i < results[2].size(); ++i) {
      const double size = results[2][i].abs().max().item<double>();
      EXPECT_LT(Distance(results[0][i], results[2][i]), 2e-2 * size) << i;
      EXPECT_LT(Distance(results[1][i], results[2][i]), 2e-2 * size) << i;
    }
  }
}

// A permutation of the tokens permutes the result and nothing else (DP-3, DP-5).
TEST(MixExperts, IsEquivariantUnderPermutation) {
  const at::Tensor x = Normal({30, 6}, 1), weights = Normal({30, 2}, 2),
                   ids = Ids("mixed", 30, 2, 4);
  const Experts experts = ExpertsOf(FeedForwardKind::kSwiglu, 4, 6, 8, at::kDouble);
  const at::Tensor order = at::arange(29, -1, -1);
  const at::Tensor y = MixExperts(x, {ids, weights}, experts, {}, Products::kParameter);
  const at::Tensor z = MixExperts(x.index_select(0, order),
                                  {ids.index_select(0, order), weights.index_select(0, order)},
                                  experts, {}, Products::kParameter);
  EXPECT_LT(Distance(y.index_select(0, order), z), 1e-12);
}

// Two runs, and one thread or two, give the same bits (DP-4).
TEST(MixExperts, GivesTheSameBitsForAnyThreadCount) {
  const at::Tensor ids = Ids("mixed", 400, 2, 4);
  std::vector<std::vector<at::Tensor>> runs;
  for (const int threads : {1, 1, 2}) {
    at::set_num_threads(threads);
    at::Tensor x = Normal({400, 16}, 1).to(at::kFloat);
    at::Tensor weights = Normal({400, 2}, 2).to(at::kFloat);
    x.set_requires_grad(true);
    weights.set_requires_grad(true);
    const Experts experts = ExpertsOf(FeedForwardKind::kRelu, 4, 16, 24, at::kFloat);
    const at::Tensor y = MixExperts(x, {ids, weights}, experts, {}, Products::kParameter);
    y.square().sum().backward();
    runs.push_back({y.detach(), x.grad(), weights.grad(), experts.w_in.grad(), experts.b_in.grad(),
                    experts.w_out.grad(), experts.b_out.grad()});
  }
  at::set_num_threads(1);
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(at::equal(runs[0][i], runs[1][i])) << i;
    EXPECT_TRUE(at::equal(runs[0][i], runs[2][i])) << i;
  }
}

// Counts allocations of at least `limit` bytes.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(size_t limit) : inner_(c10::GetCPUAllocator()), limit_(limit) {
    c10::SetCPUAllocator(this, 200);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, 200); }
  c10::DataPtr allocate(size_t n) override {
    if (n >= limit_) ++large_;
    return inner_->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  int large() const { return large_; }

 private:
  c10::Allocator* inner_;
  size_t limit_;
  std::atomic<int> large_ = 0;
};

// The backward pass makes one gradient per stacked tensor, not one per expert (DP-7).
TEST(MixExperts, AllocatesEachStackedGradientOnce) {
  const int64_t E = 16, D = 32, F = 64;
  at::Tensor x = Normal({8, D}, 1).to(at::kFloat);
  x.set_requires_grad(true);
  const Experts experts = ExpertsOf(FeedForwardKind::kRelu, E, D, F, at::kFloat);
  const at::Tensor loss =
      MixExperts(x, {Ids("mixed", 8, 2, E), at::ones({8, 2})}, experts, {}, Products::kParameter)
          .sum();
  const CountingAllocator counter(static_cast<size_t>(E * D * F) * sizeof(float));
  loss.backward();
  EXPECT_EQ(counter.large(), 2);
}

}  // namespace
}  // namespace switchyard::model
