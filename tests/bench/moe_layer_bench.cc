// One MoE layer, router included, forward and backward, beside nothing but its matrix products in
// the same process; and at::mm's rate.
//
// usage: moe_layer_bench [THREADS [REPEATS [fp32|bf16 [EXPERTS]]]]
//
// EXPERTS (16 or 64) picks one of the two layers, so that the peak memory is its own.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/feed_forward.h"
#include "worker/model/parameters.h"
#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

struct Sizes {
  int64_t experts, top_k, d, f, tokens;
};

double BestSeconds(int repeats, const std::function<void()>& work) {
  work();
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

// The layer's six products per expert, all experts equally loaded.
std::function<void()> Floor(const Sizes& s, Products products) {
  const int64_t n = s.tokens * s.top_k / s.experts;
  const auto random = [&](int64_t rows, int64_t columns) {
    return at::randn({s.experts, rows, columns})
        .to(products == Products::kBfloat16 ? at::kBFloat16 : at::kFloat);
  };
  const at::Tensor x = random(n, s.d), w_in = random(2 * s.f, s.d), w_out = random(s.d, s.f),
                   h = random(n, s.f), g_h = random(n, 2 * s.f), g_y = random(n, s.d);
  return [=] {
    for (int64_t e = 0; e < s.experts; ++e) {
      at::mm(x[e], w_in[e].t());
      at::mm(h[e], w_out[e].t());
      at::mm(g_y[e], w_out[e]);
      at::mm(g_h[e], w_in[e]);
      at::mm(g_y[e].t(), h[e]);
      at::mm(g_h[e].t(), x[e]);
    }
  };
}

std::function<void()> Layer(const Sizes& s, Products products) {
  auto store = std::make_shared<ParameterStore>(RandomKey::For(1, "bench"));
  static const std::vector<uint64_t> kNoFrequency;
  v1::RunSpec run;
  v1::DecoderSpec& decoder = *run.mutable_model()->mutable_decoder();
  decoder.set_d_model(static_cast<uint32_t>(s.d));
  decoder.set_layers(1);
  decoder.set_heads(1);
  decoder.set_d_inner(static_cast<uint32_t>(s.f));
  v1::MoeSpec& moe = *run.mutable_model()->mutable_moe();
  moe.add_layers(0);
  moe.set_experts(static_cast<uint32_t>(s.experts));
  moe.set_top_k(static_cast<uint32_t>(s.top_k));
  moe.mutable_router()->mutable_mixtral();
  spec::FillDefaults(&run);
  auto router = MakeRouter(moe, {.d_model = s.d, .experts = s.experts, .top_k = s.top_k},
                           {.store = *store, .prefix = "gate.", .token_frequency = kNoFrequency});
  std::shared_ptr<FeedForward> layer = MakeMoeFeedForward(
      {.kind = FeedForwardKind::kSwiglu, .d_model = s.d, .width = s.f, .products = products},
      {.experts = s.experts}, std::move(router), {.w_in = "in", .w_out = "out"}, *store);
  const at::Tensor x = at::randn({s.tokens, s.d}).set_requires_grad(true);
  const at::Tensor tokens = at::zeros({1, s.tokens}, at::kLong);
  return [=] {
    for (const auto& [name, tensor] : store->parameters()) tensor.mutable_grad().reset();
    x.mutable_grad().reset();
    const ForwardContext context{.is_training = true};
    Pass pass = BeginPass(tokens, context, 1);
    layer->Forward(x, pass).square().mean().backward();
  };
}

void Main(int threads, int repeats, Products products, int experts) {
  at::set_num_threads(threads);
  const bool is_bf16 = products == Products::kBfloat16;
  const auto type = is_bf16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor a = at::randn({2048, 2048}).to(type), b = at::randn({2048, 2048}).to(type);
  const double seconds = BestSeconds(5, [&] { at::mm(a, b); });
  std::printf("gemm %s gflops=%.0f threads=%d\n", is_bf16 ? "bf16" : "fp32",
              2 * 2048.0 * 2048 * 2048 / seconds / 1e9, threads);
  for (const Sizes& s : {Sizes{16, 2, 352, 512, 2048}, Sizes{64, 8, 512, 256, 1024}}) {
    if (experts != 0 && s.experts != experts) continue;
    const auto floor = Floor(s, products), layer = Layer(s, products);
    // In turns: the machine's speed wanders.
    double best_floor = 1e9, best_layer = 1e9;
    for (int round = 0; round < 3; ++round) {
      best_floor = std::min(best_floor, BestSeconds(repeats, floor));
      best_layer = std::min(best_layer, BestSeconds(repeats, layer));
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf(
        "layer precision=%s E=%lld K=%lld d=%lld f=%lld N=%lld floor_ms=%.1f layer_ms=%.1f "
        "ratio=%.3f peak_mb=%ld\n",
        is_bf16 ? "bf16" : "fp32", static_cast<long long>(s.experts),
        static_cast<long long>(s.top_k), static_cast<long long>(s.d), static_cast<long long>(s.f),
        static_cast<long long>(s.tokens), best_floor * 1e3, best_layer * 1e3,
        best_layer / best_floor, usage.ru_maxrss / 1024);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace switchyard::model

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const bool is_bf16 = argc > 3 && std::strcmp(argv[3], "bf16") == 0;
  switchyard::model::Main(
      threads, argc > 2 ? std::atoi(argv[2]) : 5,
      is_bf16 ? switchyard::model::Products::kBfloat16 : switchyard::model::Products::kParameter,
      argc > 4 ? std::atoi(argv[4]) : 0);
}
