#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

// Every id's experts drawn apart from all others: K distinct ones by the first K steps of a
// shuffle.
at::Tensor RandomTable(const RouterSizes& sizes, bool is_per_layer, uint32_t vocab, uint64_t seed) {
  at::Tensor table = at::empty({vocab, sizes.top_k}, at::kLong);
  auto* out = table.data_ptr<int64_t>();
  RandomKey key = RandomKey::For(seed, "hash_table").With(0);
  if (is_per_layer) key = key.With("layer").With(sizes.layer);
  std::vector<int64_t> experts(static_cast<size_t>(sizes.experts));
  for (uint32_t id = 0; id < vocab; ++id) {
    std::iota(experts.begin(), experts.end(), 0);
    const RandomKey own = key.With(id);
    for (int64_t k = 0; k < sizes.top_k; ++k) {
      const auto left = static_cast<uint64_t>(sizes.experts - k);
      const uint64_t pick =
          static_cast<uint64_t>(k) + RandomBelow(own, static_cast<uint64_t>(k), left);
      std::swap(experts[static_cast<size_t>(k)], experts[pick]);
      out[id * static_cast<uint32_t>(sizes.top_k) + static_cast<uint32_t>(k)] =
          experts[static_cast<size_t>(k)];
    }
  }
  return table;
}

// Ids by falling frequency (ties: lower id first), each to the K lightest experts so far (ties:
// lowest index).
at::Tensor BalancedTable(const RouterSizes& sizes, const std::vector<uint64_t>& frequency) {
  const size_t vocab = frequency.size();
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return frequency[a] > frequency[b]; });
  at::Tensor table = at::empty({static_cast<int64_t>(vocab), sizes.top_k}, at::kLong);
  auto* out = table.data_ptr<int64_t>();
  std::vector<uint64_t> load(static_cast<size_t>(sizes.experts), 0);
  std::vector<size_t> experts(load.size());
  for (const size_t id : order) {
    std::iota(experts.begin(), experts.end(), size_t{0});
    std::partial_sort(
        experts.begin(), experts.begin() + sizes.top_k, experts.end(),
        [&](size_t a, size_t b) { return load[a] != load[b] ? load[a] < load[b] : a < b; });
    for (int64_t k = 0; k < sizes.top_k; ++k) {
      const size_t expert = experts[static_cast<size_t>(k)];
      out[static_cast<int64_t>(id) * sizes.top_k + k] = static_cast<int64_t>(expert);
      load[expert] += frequency[id];
    }
  }
  return table;
}

class HashRouter final : public Router {
 public:
  HashRouter(const RouterSizes& sizes, at::Tensor table) : sizes_(sizes), table_(table) {}

  Routing Route(const RouterInput& input) override {
    at::Tensor ids = table_.index_select(0, input.tokens.token_ids);
    at::Tensor weights = at::full({ids.size(0), sizes_.top_k},
                                  1.0 / static_cast<double>(sizes_.top_k), input.hidden.options());
    if (!input.tokens.all_valid) {
      const at::Tensor padding = input.tokens.valid.logical_not().unsqueeze(-1);
      ids = ids.masked_fill(padding, -1);
      weights = weights.masked_fill(padding, 0.0);
    }
    return {ids, weights, at::Tensor()};
  }
  bool has_scores() const override { return false; }

 private:
  const RouterSizes sizes_;
  at::Tensor table_;
};

}  // namespace

std::unique_ptr<Router> MakeHashRouter(const RouterSizes& sizes, const HashOptions& options,
                                       const RouterContext& context) {
  TORCH_CHECK(context.vocab_size > 0, "a hash router needs the vocabulary's size");
  at::Tensor table;
  if (options.is_balanced) {
    TORCH_CHECK(context.token_frequency.size() == context.vocab_size,
                "a balanced hash table needs the frequency of all ", context.vocab_size,
                " tokens, there are ", context.token_frequency.size());
    table = BalancedTable(sizes, context.token_frequency);
  } else {
    table = RandomTable(sizes, options.is_per_layer, context.vocab_size, context.seed);
  }
  return std::make_unique<HashRouter>(sizes,
                                      context.store.AddBuffer(context.prefix + "table", table));
}

}  // namespace switchyard::model
