#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class ExpertChoiceRouterKind final : public Router {
 public:
  ExpertChoiceRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes,
                         const RouterContext& context)
      : sizes_(sizes),
        options_(moe.router().expert_choice()),
        scale_(RoutedScale(moe)),
        noise_(moe),
        weight_(context.store.Add(context.prefix + "weight", {sizes.experts, sizes.d_model},
                                  {.std = context.init_std})) {
    if (!options_.threshold_inference()) return;
    threshold_ = context.store.AddBuffer(context.gate_prefix + "threshold",
                                         at::zeros({sizes.experts}, at::kDouble));
    lowest_sum_ = at::zeros({sizes.experts}, at::kDouble);
  }

  Routing Route(const RouterInput& input) override {
    const at::Tensor hidden = noise_.OnHidden(input.hidden.to(weight_.scalar_type()), input);
    Routing routing;
    routing.has_open_slots = true;
    routing.logits = noise_.OnScores(at::linear(hidden, weight_), input, input.random);
    const at::Tensor p = at::softmax(routing.logits, 1);
    const at::Tensor on_host = p.detach().to(at::kCPU, at::kDouble).contiguous();
    const at::Tensor valid = input.tokens.valid.cpu().contiguous();
    const bool by_threshold = !input.is_training && threshold_.defined();
    Picks picks =
        by_threshold ? PickByThreshold(on_host, valid) : PickByGroup(on_host, valid, input);
    const at::Tensor ids = Layout(on_host, &picks).to(input.hidden.device());
    routing.expert_ids = ids;
    routing.weights = p.gather(1, ids.clamp_min(0)).masked_fill(ids.lt(0), 0.0) * scale_;
    return routing;
  }
  bool has_scores() const override { return true; }

  void EndUpdate(bool is_applied) override {
    if (is_applied && groups_seen_ > 0) {
      const at::Tensor mean =
          (lowest_sum_ / static_cast<double>(groups_seen_)).to(threshold_.device());
      // The first one counts whole: a mean that starts at 0 would let everything in.
      const bool is_first = threshold_.abs().max().item<double>() == 0;
      const double decay = is_first ? 0.0 : options_.threshold_decay();
      threshold_.mul_(decay).add_(mean * (1 - decay));
    }
    if (threshold_.defined()) lowest_sum_.zero_();
    groups_seen_ = 0;
  }

 private:
  using Picks = std::vector<std::vector<int64_t>>;  // experts by token

  // Rows of each group, in order, padding left out.
  std::vector<std::vector<int64_t>> Groups(const at::Tensor& valid,
                                           const TokenFacts& tokens) const {
    const int64_t B = tokens.sequences, T = tokens.tokens_per_sequence;
    const auto* is_valid = valid.const_data_ptr<bool>();
    const bool by_sequence = options_.group() == pb::EXPERT_CHOICE_GROUP_SEQUENCE;
    const bool by_position = options_.group() == pb::EXPERT_CHOICE_GROUP_BATCH_AT_POSITION;
    const int64_t count = by_sequence ? B : by_position ? T : 1;
    std::vector<std::vector<int64_t>> groups(static_cast<size_t>(count));
    for (int64_t n = 0; n < B * T; ++n) {
      if (!is_valid[n]) continue;
      const int64_t group = by_sequence ? n / T : by_position ? n % T : 0;
      groups[static_cast<size_t>(group)].push_back(n);
    }
    return groups;
  }

  Picks PickByGroup(const at::Tensor& p, const at::Tensor& valid, const RouterInput& input) {
    const int64_t experts = sizes_.experts;
    const auto* score = p.const_data_ptr<double>();
    const int64_t k = input.top_k > 0 ? input.top_k : sizes_.top_k;
    Picks picks(static_cast<size_t>(p.size(0)));
    std::vector<double> lowest(static_cast<size_t>(experts), 0.0);
    int64_t groups_seen = 0;
    for (std::vector<int64_t>& rows : Groups(valid, input.tokens)) {
      if (rows.empty()) continue;
      ++groups_seen;
      const auto size = static_cast<int64_t>(rows.size());
      const double share = static_cast<double>(k * size) / static_cast<double>(experts);
      const int64_t capacity = std::clamp<int64_t>(std::llround(share), 1, size);
      for (int64_t e = 0; e < experts; ++e) {
        std::vector<int64_t> order = rows;
        std::partial_sort(order.begin(), order.begin() + capacity, order.end(),
                          [&](int64_t a, int64_t b) {
                            const double sa = score[a * experts + e], sb = score[b * experts + e];
                            return sa != sb ? sa > sb : a < b;
                          });
        for (int64_t i = 0; i < capacity; ++i) {
          picks[static_cast<size_t>(order[static_cast<size_t>(i)])].push_back(e);
        }
        lowest[static_cast<size_t>(e)] +=
            score[order[static_cast<size_t>(capacity - 1)] * experts + e];
      }
    }
    if (input.counts && threshold_.defined()) {
      auto* sum = lowest_sum_.data_ptr<double>();
      for (int64_t e = 0; e < experts; ++e) sum[e] += lowest[static_cast<size_t>(e)];
      groups_seen_ += groups_seen;
    }
    return picks;
  }

  Picks PickByThreshold(const at::Tensor& p, const at::Tensor& valid) const {
    const int64_t experts = sizes_.experts;
    const at::Tensor threshold = threshold_.to(at::kCPU, at::kDouble).contiguous();
    const auto* score = p.const_data_ptr<double>();
    const auto* least = threshold.const_data_ptr<double>();
    const auto* is_valid = valid.const_data_ptr<bool>();
    Picks picks(static_cast<size_t>(p.size(0)));
    for (int64_t n = 0; n < p.size(0); ++n) {
      for (int64_t e = 0; is_valid[n] && e < experts; ++e) {
        if (score[n * experts + e] >= least[e]) picks[static_cast<size_t>(n)].push_back(e);
      }
    }
    return picks;
  }

  // [N, most picks of a token, at least 1], best first, -1 behind the last.
  at::Tensor Layout(const at::Tensor& p, Picks* picks) const {
    const int64_t experts = sizes_.experts;
    const auto* score = p.const_data_ptr<double>();
    size_t width = 1;
    for (const auto& own : *picks) width = std::max(width, own.size());
    at::Tensor ids = at::full({p.size(0), static_cast<int64_t>(width)}, -1,
                              at::TensorOptions().dtype(at::kLong));
    auto* out = ids.data_ptr<int64_t>();
    for (size_t n = 0; n < picks->size(); ++n) {
      std::vector<int64_t>& own = (*picks)[n];
      const double* row = score + static_cast<int64_t>(n) * experts;
      std::sort(own.begin(), own.end(),
                [&](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
      std::copy(own.begin(), own.end(), out + n * width);
    }
    return ids;
  }

  const RouterSizes sizes_;
  const pb::ExpertChoiceRouter options_;
  const double scale_;
  const ScoreNoise noise_;
  at::Tensor weight_;      // [E, D]
  at::Tensor threshold_;   // [E] float64, undefined without threshold_inference
  at::Tensor lowest_sum_;  // [E] float64, over the groups of this update
  int64_t groups_seen_ = 0;
};

}  // namespace

std::unique_ptr<Router> MakeExpertChoiceRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                               const RouterContext& context) {
  return std::make_unique<ExpertChoiceRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
