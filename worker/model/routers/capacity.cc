#include "worker/model/routers/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// Flat slots n K + k in the order in which they take places.
std::vector<int64_t> Order(pb::DropPolicy policy, const TokenFacts& tokens,
                           const at::Tensor& weights) {
  const int64_t B = tokens.sequences, T = tokens.tokens_per_sequence, K = weights.size(1);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(B * T * K));
  const auto add = [&](int64_t t, int64_t b, int64_t k) { order.push_back((b * T + t) * K + k); };
  if (policy == pb::DROP_POLICY_SLOT) {
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t b = 0; b < B; ++b) add(t, b, k);
      }
    }
    return order;
  }
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t k = 0; k < K; ++k) add(t, b, k);
    }
  }
  if (policy == pb::DROP_POLICY_PROBABILITY) {
    const auto* weight = weights.const_data_ptr<double>();
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return weight[a] > weight[b]; });
  }
  return order;
}

}  // namespace

CapacityOutcome ApplyCapacity(const pb::CapacitySpec& spec, bool is_training, int64_t experts,
                              const TokenFacts& tokens, Routing* routing) {
  const int64_t rows = routing->expert_ids.size(0), slots = routing->expert_ids.size(1);
  const double factor = is_training ? spec.factor().train() : spec.factor().eval();
  TORCH_CHECK(factor > 0, "capacity without a factor for this phase");
  CapacityOutcome outcome;
  outcome.capacity = std::max<int64_t>(
      spec.min(), static_cast<int64_t>(std::ceil(static_cast<double>(rows * slots) /
                                                 static_cast<double>(experts) * factor)));
  const at::Tensor ids = routing->expert_ids.cpu().contiguous();
  const at::Tensor weights = routing->weights.detach().to(at::kCPU, at::kDouble).contiguous();
  at::Tensor dropped = at::zeros({rows, slots}, at::kBool);
  const auto* id = ids.const_data_ptr<int64_t>();
  auto* is_dropped = dropped.data_ptr<bool>();
  std::vector<int64_t> taken(static_cast<size_t>(experts), 0);
  for (const int64_t slot : Order(spec.drop(), tokens, weights)) {
    if (id[slot] < 0) continue;
    if (++taken[static_cast<size_t>(id[slot])] <= outcome.capacity) continue;
    is_dropped[slot] = true;
    ++outcome.dropped;
  }
  outcome.load_max = experts > 0 ? *std::max_element(taken.begin(), taken.end()) : 0;
  if (outcome.dropped == 0) return outcome;
  const at::Tensor mask = dropped.to(routing->expert_ids.device());
  routing->expert_ids = routing->expert_ids.masked_fill(mask, -1);
  routing->weights = routing->weights.masked_fill(mask, 0.0);
  return outcome;
}

}  // namespace switchyard::model
