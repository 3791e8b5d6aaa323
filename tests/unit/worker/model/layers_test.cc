// Attention, dropout, cross-entropy, experts, routers and losses, each against plain loops, an
// oracle, or numbers worked out by hand.
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/experts.h"
#include "worker/model/feed_forward.h"
#include "worker/model/losses.h"
#include "worker/model/ops.h"
#include "worker/model/routers/router.h"

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

// ---------------------------------------------------------------- routers

TokenFacts FactsOf(const at::Tensor& token_ids, int64_t sequences) {
  const at::Tensor flat = token_ids.view({-1});
  return {.sequences = sequences,
          .tokens_per_sequence = flat.size(0) / sequences,
          .token_ids = flat.clamp_min(0),
          .valid = flat.ge(0),
          .all_valid = flat.ge(0).all().item<bool>()};
}

struct RouterUnderTest {
  ParameterStore store{RandomKey::For(1, "init")};
  std::vector<uint64_t> frequency;
  std::unique_ptr<Router> router;

  at::Tensor Get(const std::string& name) const {
    for (const auto& [key, tensor] : store.parameters()) {
      if (key == name) return tensor;
    }
    return {};
  }
  Routing Route(const at::Tensor& hidden) {
    const TokenFacts facts = FactsOf(at::zeros({hidden.size(0)}, at::kLong), 1);
    return router->Route({.hidden = hidden, .tokens = facts});
  }
};

std::unique_ptr<RouterUnderTest> Smoe(int64_t D, int64_t E, int64_t K, GateWeights norm) {
  auto made = std::make_unique<RouterUnderTest>();
  made->router = MakeSmoeRouter({.d_model = D, .experts = E, .top_k = K}, norm,
                                {.store = made->store, .token_frequency = made->frequency});
  return made;
}

// Scores with bias, the best K by score, softmax over those (RT-1), in float64 and with gradients
// that reach weight and bias.
TEST(SmoeRouter, ChoosesTheBestScoresAndWeighsThem) {
  auto made = Smoe(5, 6, 2, GateWeights::kSoftmaxTopk);
  const at::Tensor weight = made->Get("weight"), bias = made->Get("bias");
  weight.set_data(Normal({6, 5}, 1));
  bias.set_data(Normal({6}, 2));
  const at::Tensor x = Normal({9, 5}, 3);
  const Routing routing = made->Route(x);
  for (int64_t n = 0; n < 9; ++n) {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t e = 0; e < 6; ++e) {
      double score = At(bias, {e});
      for (int64_t c = 0; c < 5; ++c) score += At(x, {n, c}) * At(weight, {e, c});
      EXPECT_NEAR(At(routing.logits, {n, e}), score, 1e-12);
      scores.emplace_back(-score, e);
    }
    std::sort(scores.begin(), scores.end());
    const double a = std::exp(-scores[0].first), b = std::exp(-scores[1].first);
    EXPECT_EQ(routing.expert_ids[n][0].item<int64_t>(), scores[0].second);
    EXPECT_EQ(routing.expert_ids[n][1].item<int64_t>(), scores[1].second);
    EXPECT_NEAR(At(routing.weights, {n, 0}), a / (a + b), 1e-12);
    EXPECT_NEAR(At(routing.weights, {n, 1}), b / (a + b), 1e-12);
  }
  const at::Tensor g = Normal({9, 2}, 4);
  const auto loss = [&] { return (made->Route(x).weights * g).sum(); };
  loss().backward();
  EXPECT_LT(GradientError(weight, loss), 1e-6);
  EXPECT_LT(GradientError(bias, loss), 1e-6);
}

// With K = E the layer is the softmax mixture of all experts (RT-2).
TEST(SmoeRouter, AllExpertsGiveTheSoftmaxMixture) {
  auto made = Smoe(6, 3, 3, GateWeights::kSoftmaxTopk);
  made->Get("weight").set_data(Normal({3, 6}, 1));
  made->Get("bias").set_data(Normal({3}, 2));
  const at::Tensor x = Normal({10, 6}, 3);
  const Experts experts = ExpertsOf(FeedForwardKind::kRelu, 3, 6, 8, at::kDouble);
  const Routing routing = made->Route(x);
  const at::Tensor y =
      MixExperts(x, {routing.expert_ids, routing.weights}, experts, {}, Products::kParameter);
  const at::Tensor p = at::softmax(routing.logits, 1);
  at::Tensor expected = at::zeros_like(x);
  for (int64_t e = 0; e < 3; ++e) {
    const at::Tensor h = at::relu(at::linear(x, experts.w_in[e], experts.b_in[e]));
    expected = expected + p.narrow(1, e, 1) * at::linear(h, experts.w_out[e], experts.b_out[e]);
  }
  EXPECT_LT(Distance(y, expected), 1e-12);
}

// Renormalised and plain weights of one row (MR2); renormalising equals softmax over the chosen
// (RT-3).
TEST(GateWeights, FollowTheirNames) {
  const at::Tensor logits = at::tensor({2.0, 1.0, 0.0, -1.0}, at::kDouble).view({1, 4});
  const at::Tensor ids = SelectTopK(logits, 2);
  EXPECT_EQ(ids[0][0].item<int64_t>(), 0);
  const at::Tensor chosen = GateWeightsOf(logits, ids, GateWeights::kSoftmaxTopk);
  EXPECT_NEAR(At(chosen, {0, 0}), 0.7311, 5e-5);
  EXPECT_NEAR(At(chosen, {0, 1}), 0.2689, 5e-5);
  const at::Tensor full = GateWeightsOf(logits, ids, GateWeights::kSoftmaxFull);
  EXPECT_NEAR(At(full, {0, 0}), 0.6439, 5e-5);
  EXPECT_NEAR(At(full, {0, 1}), 0.2369, 5e-5);
  const at::Tensor uniform = GateWeightsOf(logits, ids, GateWeights::kUniform);
  EXPECT_EQ(At(uniform, {0, 1}), 0.5);
  const at::Tensor random = Normal({50, 8}, 1);
  const at::Tensor picked = SelectTopK(random, 3);
  EXPECT_LT(Distance(GateWeightsOf(random, picked, GateWeights::kSoftmaxTopk),
                     GateWeightsOf(random, picked, GateWeights::kSoftmaxFullRenorm)),
            1e-12);
}

// Equal scores: the lowest index, in every batch size and every time (MR3). NaN never wins.
TEST(SelectTopK, LowestIndexWinsTies) {
  for (const int64_t rows : {1, 64}) {
    for (int i = 0; i < 100; ++i) {
      const at::Tensor ids = SelectTopK(at::zeros({rows, 8}), 2);
      EXPECT_EQ(ids.select(1, 0).max().item<int64_t>(), 0);
      EXPECT_EQ(ids.select(1, 1).max().item<int64_t>(), 1);
      EXPECT_EQ(ids.select(1, 1).min().item<int64_t>(), 1);
    }
  }
  at::Tensor odd = at::zeros({1, 4});
  odd[0][0] = std::nan("");
  EXPECT_EQ(SelectTopK(odd, 1)[0][0].item<int64_t>(), 1);
  EXPECT_EQ(SelectTopK(at::full({1, 3}, std::nan("")), 3)[0][2].item<int64_t>(), 2);
}

// Scores of 7e4 stay finite and choose as in float32; the renormalised sum is 1 (MR7).
TEST(SmoeRouter, LargeScoresStayFinite) {
  auto made = Smoe(8, 6, 2, GateWeights::kSoftmaxFullRenorm);
  const at::Tensor x = Normal({20, 8}, 1).to(at::kFloat);
  made->Get("weight").set_data(Normal({6, 8}, 2).to(at::kFloat));
  const double top = made->Route(x).logits.max().item<double>();
  made->Get("weight").set_data(Normal({6, 8}, 2).to(at::kFloat) * (7e4 / top));
  const Routing wide = made->Route(x);
  const Routing half = made->Route(x.to(at::kBFloat16).to(at::kFloat));
  EXPECT_NEAR(wide.logits.max().item<double>(), 7e4, 1.0);
  EXPECT_EQ(wide.weights.scalar_type(), at::kFloat);
  EXPECT_TRUE(half.weights.isfinite().all().item<bool>());
  EXPECT_LT(Distance(wide.weights.sum(1), at::ones({20})), 1e-6);
}

// A token's expert is the same in every layer, batch and call; a table per layer differs; a
// balanced table's loads differ by at most the most frequent token (RT-11).
TEST(HashRouter, DependsOnTheTokenIdAlone) {
  std::vector<uint64_t> frequency;
  for (uint64_t i = 0; i < 200; ++i) frequency.push_back(10000 / (i + 1));
  const auto table = [&](HashOptions options, uint32_t layer, int64_t top_k) {
    ParameterStore store(RandomKey::For(1, "init"));
    const auto router = MakeHashRouter(
        {.d_model = 4, .experts = 8, .top_k = top_k, .layer = layer}, options,
        {.store = store, .seed = 9, .vocab_size = 200, .token_frequency = frequency});
    const TokenFacts facts = FactsOf(at::arange(200), 2);
    const Routing routing = router->Route({.hidden = at::zeros({200, 4}), .tokens = facts});
    EXPECT_FALSE(routing.logits.defined());
    EXPECT_NEAR(routing.weights.min().item<double>(), 1.0 / static_cast<double>(top_k), 1e-7);
    EXPECT_TRUE(at::equal(routing.expert_ids, store.buffers().at(0).second));
    return routing.expert_ids;
  };
  EXPECT_TRUE(at::equal(table({}, 0, 1), table({}, 3, 1)));
  EXPECT_FALSE(at::equal(table({.is_per_layer = true}, 0, 1), table({.is_per_layer = true}, 3, 1)));
  const at::Tensor two = table({}, 0, 2);
  EXPECT_FALSE(two.select(1, 0).eq(two.select(1, 1)).any().item<bool>());
  const at::Tensor balanced = table({.is_balanced = true}, 0, 1);
  std::vector<uint64_t> load(8, 0);
  for (int64_t i = 0; i < 200; ++i) {
    load[static_cast<size_t>(balanced[i][0].item<int64_t>())] += frequency[static_cast<size_t>(i)];
  }
  EXPECT_LE(
      *std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
      frequency[0]);
}

// ---------------------------------------------------------------- losses

LossConfig Config(const char* id, LossDefinition definition, LossScope scope = LossScope::kMicro,
                  LayerReduce reduce = LayerReduce::kSum) {
  return {.id = id, .definition = definition, .coef = 1.0, .scope = scope, .reduce = reduce};
}

double ValueOf(const LossConfig& config, const std::vector<LayerScores>& layers,
               const at::Tensor& valid, int64_t sequences,
               const std::vector<at::Tensor>& previous = {}) {
  return BalanceLoss(config, layers, valid, sequences, previous).item<double>();
}

// Even scores and even counts give the published values: 1, K or 1 / K; two layers add, average or
// pool (LS-1).
TEST(BalanceLoss, EvenRoutingGivesThePublishedValue) {
  const int64_t E = 4, K = 2, N = 8;
  const at::Tensor ids =
      at::stack({at::arange(N).remainder(E), (at::arange(N) + 1).remainder(E)}, 1);
  const std::vector<LayerScores> one{{at::zeros({N, E}, at::kDouble), ids}};
  const std::vector<LayerScores> two{one[0], one[0]};
  const at::Tensor valid = at::ones({N}, at::kBool);
  const std::vector<std::pair<LossDefinition, double>> cases{
      {LossDefinition::kGshardTop1, 1},         {LossDefinition::kHfMixtral, K},
      {LossDefinition::kMegatronAux, 1},        {LossDefinition::kMegatronSeq, 1},
      {LossDefinition::kMegatronGlobal, 1},     {LossDefinition::kMegablocks, 1},
      {LossDefinition::kDeepseekSeq, 1},        {LossDefinition::kDeepseekBatch, 1},
      {LossDefinition::kNaiveBalance, 1.0 / K}, {LossDefinition::kFlaxformer, K}};
  for (const auto& [definition, expected] : cases) {
    for (const LossScope scope : {LossScope::kMicro, LossScope::kSequence, LossScope::kGlobal}) {
      const LossConfig sum = Config("x", definition, scope);
      EXPECT_NEAR(ValueOf(sum, one, valid, 2), expected, 1e-12);
      EXPECT_NEAR(ValueOf(sum, two, valid, 2), 2 * expected, 1e-12);
      LossConfig other = sum;
      other.reduce = LayerReduce::kMean;
      EXPECT_NEAR(ValueOf(other, two, valid, 2), expected, 1e-12);
      other.reduce = LayerReduce::kPooled;
      EXPECT_NEAR(ValueOf(other, two, valid, 2), expected, 1e-12);
    }
  }
  const std::vector<LayerScores> single{{at::zeros({N, E}, at::kDouble), ids.narrow(1, 0, 1)}};
  EXPECT_NEAR(ValueOf(Config("switch", LossDefinition::kSwitch), single, valid, 2), 1.0, 1e-12);
}

// Two tokens, two experts, worked out by hand (LS-2): P = (0.6, 0.4), c = (2, 0).
TEST(BalanceLoss, TwoByTwoByHand) {
  const at::Tensor p = at::tensor({0.7, 0.3, 0.5, 0.5}, at::kDouble).view({2, 2});
  const std::vector<LayerScores> layers{{p.log(), at::zeros({2, 1}, at::kLong)}};
  const at::Tensor valid = at::ones({2}, at::kBool);
  EXPECT_NEAR(ValueOf(Config("a", LossDefinition::kMegatronAux), layers, valid, 1), 1.2, 1e-12);
  EXPECT_NEAR(ValueOf(Config("a", LossDefinition::kSwitch), layers, valid, 1), 1.2, 1e-12);
  // Counts of the update before, 1 and 3 of 4 tokens: 2 (0.25 * 0.6 + 0.75 * 0.4).
  const at::Tensor previous = at::tensor({1.0, 3.0, 4.0}, at::kDouble);
  EXPECT_NEAR(ValueOf(Config("g", LossDefinition::kMegatronGlobal, LossScope::kGlobal), layers,
                      valid, 1, {previous}),
              0.9, 1e-12);
}

// Scores of zero give (ln E)^2 (LS-5, ML2).
TEST(BalanceLoss, ZLossOfZeroScores) {
  const std::vector<LayerScores> layers{
      {at::zeros({6, 8}, at::kDouble), at::zeros({6, 1}, at::kLong)}};
  EXPECT_NEAR(
      ValueOf(Config("z_loss", LossDefinition::kZLoss), layers, at::ones({6}, at::kBool), 2),
      4.3241, 5e-5);
}

// Padding changes no loss under any scope (LS-7, ML2): 11 tokens of two rows with and without pads.
TEST(BalanceLoss, PaddingCountsNothing) {
  const int64_t E = 4;
  const at::Tensor logits = Normal({16, E}, 1);
  at::Tensor valid = at::ones({16}, at::kBool);
  for (const int64_t i : {5, 6, 7, 14, 15}) valid[i] = false;
  const at::Tensor ids = SelectTopK(logits, 2).masked_fill(valid.logical_not().unsqueeze(1), -1);
  const at::Tensor kept = valid.nonzero().squeeze(1);
  const std::vector<LayerScores> padded{{logits, ids}};
  at::Tensor garbage = logits.clone();
  garbage.index_put_({valid.logical_not()}, at::full({E}, 1e3, at::kDouble));
  const std::vector<LayerScores> other{{garbage, ids}};
  const std::vector<LayerScores> bare{{logits.index_select(0, kept), ids.index_select(0, kept)}};
  for (const auto definition : {LossDefinition::kMegatronAux, LossDefinition::kZLoss,
                                LossDefinition::kHfMixtral, LossDefinition::kGshardTop1}) {
    const LossConfig config = Config("x", definition);
    const double expected = ValueOf(config, bare, at::ones({11}, at::kBool), 1);
    EXPECT_NEAR(ValueOf(config, padded, valid, 2), expected, 1e-12);
    EXPECT_NEAR(ValueOf(config, other, valid, 2), expected, 1e-12);
    // Per sequence: the mean over the two rows, each by itself.
    const LossConfig sequence = Config("x", definition, LossScope::kSequence);
    double sum = 0;
    for (const auto& [first, n] : {std::pair{0, 5}, std::pair{8, 6}}) {
      const std::vector<LayerScores> row{{logits.narrow(0, first, n), ids.narrow(0, first, n)}};
      sum += ValueOf(config, row, at::ones({n}, at::kBool), 1);
    }
    EXPECT_NEAR(ValueOf(sequence, padded, valid, 2), sum / 2, 1e-12);
  }
  EXPECT_EQ(
      ValueOf(Config("x", LossDefinition::kMegatronAux), padded, at::zeros({16}, at::kBool), 2),
      0.0);
}

}  // namespace
}  // namespace switchyard::model
