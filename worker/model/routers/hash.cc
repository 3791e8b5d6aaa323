#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"
#include "worker/model/routers/table.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// Ids by falling frequency (ties: lower id first), each to the K lightest experts so far (ties:
// lowest index).
at::Tensor BalancedTable(int64_t expert_count, int64_t top_k,
                         const std::vector<uint64_t>& frequency) {
  const size_t vocab = frequency.size();
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return frequency[a] > frequency[b]; });
  at::Tensor table = at::empty({static_cast<int64_t>(vocab), top_k}, at::kLong);
  auto* out = table.data_ptr<int64_t>();
  std::vector<uint64_t> load(static_cast<size_t>(expert_count), 0);
  std::vector<size_t> experts(load.size());
  for (const size_t id : order) {
    std::iota(experts.begin(), experts.end(), size_t{0});
    std::partial_sort(
        experts.begin(), experts.begin() + top_k, experts.end(),
        [&](size_t a, size_t b) { return load[a] != load[b] ? load[a] < load[b] : a < b; });
    for (int64_t k = 0; k < top_k; ++k) {
      const size_t expert = experts[static_cast<size_t>(k)];
      out[static_cast<int64_t>(id) * top_k + k] = static_cast<int64_t>(expert);
      load[expert] += frequency[id];
    }
  }
  return table;
}

// Blocks of experts: block j of the token comes from the expert that table j names.
at::Tensor MultiTable(const pb::HashRouter& options, const RouterSizes& sizes,
                      const RouterContext& context) {
  const int64_t blocks = options.multi(), experts = sizes.experts / blocks;
  std::vector<at::Tensor> columns;
  for (int64_t j = 0; j < blocks; ++j) {
    const at::Tensor table = options.balanced()
                                 ? BalancedTable(experts, 1, context.token_frequency)
                                 : RandomTable(experts, 1, context.vocab_size,
                                               TableKey(sizes, options.per_layer_table(),
                                                        context.seed, static_cast<uint64_t>(j)));
    columns.push_back(table * blocks + j);
  }
  return at::cat(columns, 1);
}

class HashRouterKind final : public Router {
 public:
  HashRouterKind(at::Tensor table, double weight) : table_(std::move(table)), weight_(weight) {}

  Routing Route(const RouterInput& input) override {
    Routing routing;
    routing.expert_ids = table_.index_select(0, input.tokens.token_ids);
    routing.weights =
        at::full({input.hidden.size(0), table_.size(1)}, weight_, input.hidden.options());
    ClearPadding(input.tokens, &routing);
    return routing;
  }
  bool has_scores() const override { return false; }

 private:
  at::Tensor table_;  // [V, K]
  const double weight_;
};

}  // namespace

RandomKey TableKey(const RouterSizes& sizes, bool is_per_layer, uint64_t seed, uint64_t block) {
  const RandomKey key = RandomKey::For(seed, "hash_table").With(block);
  return is_per_layer ? key.With("layer").With(sizes.layer) : key;
}

void DrawDistinct(RandomKey key, int64_t experts, int64_t k, int64_t* out) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t j = 0; j < k; ++j) {
    const uint64_t pick =
        static_cast<uint64_t>(j) +
        RandomBelow(key, static_cast<uint64_t>(j), static_cast<uint64_t>(experts - j));
    std::swap(order[static_cast<size_t>(j)], order[pick]);
    out[j] = order[static_cast<size_t>(j)];
  }
}

at::Tensor RandomTable(int64_t experts, int64_t k, int64_t rows, RandomKey key) {
  at::Tensor table = at::empty({rows, k}, at::kLong);
  auto* out = table.data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    DrawDistinct(key.With(static_cast<uint64_t>(row)), experts, k, out + row * k);
  }
  return table;
}

std::unique_ptr<Router> MakeTokenTableRouter(at::Tensor table, double weight,
                                             const RouterContext& context) {
  return std::make_unique<HashRouterKind>(
      context.store.AddBuffer(context.prefix + "table", std::move(table)), weight);
}

std::unique_ptr<Router> MakeHashRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context) {
  const pb::HashRouter& options = moe.router().hash();
  const double scale = RoutedScale(moe);
  TORCH_CHECK(context.vocab_size > 0, "a hash router needs the vocabulary's size");
  TORCH_CHECK(!options.balanced() || context.token_frequency.size() == context.vocab_size,
              "a balanced hash table needs the frequency of all ", context.vocab_size,
              " tokens, there are ", context.token_frequency.size());
  // The blocks of MultiHash are added, experts of one token averaged.
  if (options.multi() > 1) {
    TORCH_CHECK(sizes.experts % options.multi() == 0 && sizes.top_k == options.multi(),
                "model.moe.router.hash.multi ", options.multi(), " with ", sizes.experts,
                " experts and top_k ", sizes.top_k);
    return MakeTokenTableRouter(MultiTable(options, sizes, context), scale, context);
  }
  at::Tensor table = options.balanced()
                         ? BalancedTable(sizes.experts, sizes.top_k, context.token_frequency)
                         : RandomTable(sizes.experts, sizes.top_k, context.vocab_size,
                                       TableKey(sizes, options.per_layer_table(), context.seed, 0));
  return MakeTokenTableRouter(std::move(table), scale / static_cast<double>(sizes.top_k), context);
}

}  // namespace switchyard::model
