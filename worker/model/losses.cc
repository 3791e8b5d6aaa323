#include "worker/model/losses.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/dispatch.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

struct DefinitionRow {
  const char* id;
  LossDefinition definition;
  // Set: the only scope that the definition has.
  std::optional<LossScope> scope;
  LayerReduce reduce;
};

constexpr std::array<DefinitionRow, 14> kDefinitions{{
    {"switch", LossDefinition::kSwitch, {}, LayerReduce::kSum},
    {"gshard_top1", LossDefinition::kGshardTop1, {}, LayerReduce::kSum},
    {"hf_mixtral", LossDefinition::kHfMixtral, {}, LayerReduce::kPooled},
    {"megatron_aux", LossDefinition::kMegatronAux, {}, LayerReduce::kSum},
    {"megatron_seq", LossDefinition::kMegatronSeq, LossScope::kSequence, LayerReduce::kSum},
    {"megatron_global", LossDefinition::kMegatronGlobal, LossScope::kGlobal, LayerReduce::kSum},
    {"megablocks", LossDefinition::kMegablocks, {}, LayerReduce::kMean},
    {"deepseek_seq", LossDefinition::kDeepseekSeq, LossScope::kSequence, LayerReduce::kSum},
    {"deepseek_batch", LossDefinition::kDeepseekBatch, {}, LayerReduce::kSum},
    {"naive_balance", LossDefinition::kNaiveBalance, {}, LayerReduce::kSum},
    {"cv2", LossDefinition::kCv2, LossScope::kMicro, LayerReduce::kSum},
    {"sra", LossDefinition::kSra, LossScope::kMicro, LayerReduce::kSum},
    {"flaxformer", LossDefinition::kFlaxformer, {}, LayerReduce::kSum},
    {"z_loss", LossDefinition::kZLoss, {}, LayerReduce::kSum},
}};

// Every balance definition is E sum_e (c_e / N) P_e over a number that depends on K alone.
double Divisor(LossDefinition definition, int64_t top_k) {
  const auto k = static_cast<double>(top_k);
  switch (definition) {
    case LossDefinition::kSwitch:
    case LossDefinition::kGshardTop1:
    case LossDefinition::kHfMixtral:
    case LossDefinition::kFlaxformer:
      return 1.0;
    case LossDefinition::kMegatronAux:
    case LossDefinition::kMegatronSeq:
    case LossDefinition::kMegatronGlobal:
    case LossDefinition::kMegablocks:
    case LossDefinition::kDeepseekSeq:
    case LossDefinition::kDeepseekBatch:
      return k;
    case LossDefinition::kNaiveBalance:
      return k * k;
    case LossDefinition::kCv2:
    case LossDefinition::kSra:
    case LossDefinition::kZLoss:
      break;
  }
  return 1.0;
}

// What a layer's P_e averages, [N, E].
at::Tensor ProbabilitiesOf(const LayerScores& layer) {
  return layer.probs.defined() ? layer.probs : at::softmax(layer.logits, 1);
}

// Squared coefficient of variation of values [E]; 0 for one value.
at::Tensor SquaredVariation(const at::Tensor& values, bool is_unbiased) {
  if (values.numel() < 2) return values.sum() * 0;
  constexpr double kEps = 1e-10;
  return values.var(is_unbiased) / (values.mean().square() + kEps);
}

// CV^2 of the experts' summed weights plus CV^2 of their smooth loads (Shazeer et al., 2017,
// section 4 and appendix A); 0 outside training, where there is no noise to smooth by.
at::Tensor Cv2Of(const LayerScores& layer, const at::Tensor& valid) {
  if (!layer.soft_load.defined()) return at::zeros({}, layer.logits.options());
  const int64_t rows = layer.logits.size(0), experts = layer.logits.size(1);
  const at::Tensor mask = valid.to(layer.logits.scalar_type()).unsqueeze(1);
  // One more column takes what is not routed.
  const at::Tensor ids = layer.expert_ids.masked_fill(layer.expert_ids.lt(0), experts);
  const at::Tensor importance = at::zeros({rows, experts + 1}, layer.logits.options())
                                    .scatter(1, ids, layer.weights)
                                    .narrow(1, 0, experts);
  return SquaredVariation((importance * mask).sum(0), true) +
         SquaredVariation((layer.soft_load * mask).sum(0), true);
}

// 0.4 E CV^2 of the mean probabilities plus 0.6 times the mean cosine of different anchors.
at::Tensor SraOf(const LayerScores& layer, const at::Tensor& mean_probability) {
  TORCH_CHECK(layer.anchors.defined(), "model.moe.losses.sra: the router has no expert embeddings");
  const at::Tensor unit =
      layer.anchors / layer.anchors.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-8);
  const int64_t experts = layer.anchors.size(0);
  const at::Tensor cosines = at::mm(unit, unit.t());
  const auto pairs = static_cast<double>(std::max<int64_t>(1, experts * (experts - 1)));
  const at::Tensor off_diagonal = (cosines.sum() - cosines.diagonal().sum()) / pairs;
  return 0.4 * static_cast<double>(experts) *
             SquaredVariation(mean_probability, /*is_unbiased=*/false) +
         0.6 * off_diagonal;
}

// Assignments to each expert per group of rows: [groups, E]. `slots` limits to the first ones.
at::Tensor CountExperts(const at::Tensor& expert_ids, int64_t slots, int64_t experts,
                        int64_t groups, at::ScalarType type) {
  const at::Tensor ids = expert_ids.narrow(1, 0, slots).contiguous();
  const int64_t per_group = ids.numel() / std::max<int64_t>(groups, 1);
  if (!UsesKernels(ids)) {
    // One more column takes what is not routed. Whole numbers: any order of adding is exact.
    const at::Tensor index = ids.view({groups, per_group});
    at::Tensor all = at::zeros({groups, experts + 1}, ids.options().dtype(at::kDouble));
    all.scatter_add_(1, index.masked_fill(index.lt(0), experts),
                     at::ones_like(index, all.options()));
    return all.narrow(1, 0, experts).to(type);
  }
  at::Tensor counts = at::zeros({groups, experts}, at::kDouble);
  const auto* id = ids.const_data_ptr<int64_t>();
  auto* out = counts.data_ptr<double>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] >= 0) out[i / per_group * experts + id[i]] += 1;
  }
  return counts.to(type);
}

// Sums over the tokens of each group, before division by their number.
struct LayerSums {
  at::Tensor counts;  // [G, E]
  at::Tensor probs;   // [G, E], part of the graph; z_loss: squares in [G, 1]
};

// [] mean over the groups that have a valid token.
at::Tensor GroupMean(const at::Tensor& values, const at::Tensor& tokens) {
  const at::Tensor present = tokens.gt(0).to(values.scalar_type());
  return (values * present).sum() / present.sum().clamp_min(1);
}

}  // namespace

std::vector<LossConfig> LossesOf(const pb::MoeSpec& moe, int64_t top_k) {
  std::vector<LossConfig> configs;
  for (const pb::LossSpec& loss : moe.losses()) {
    const DefinitionRow* row = nullptr;
    for (const DefinitionRow& candidate : kDefinitions) {
      if (loss.id() == candidate.id) row = &candidate;
    }
    TORCH_CHECK(row != nullptr, "model.moe.losses: no definition '", loss.id(), "'");
    LossConfig config{.id = loss.id(),
                      .definition = row->definition,
                      .coef = loss.coef(),
                      .scope = row->scope.value_or(LossScope::kMicro),
                      .reduce = row->reduce};
    const bool is_other_scope =
        (loss.scope() == pb::LOSS_SCOPE_MICRO && config.scope != LossScope::kMicro) ||
        (loss.scope() == pb::LOSS_SCOPE_SEQUENCE && config.scope != LossScope::kSequence) ||
        (loss.scope() == pb::LOSS_SCOPE_GLOBAL && config.scope != LossScope::kGlobal);
    TORCH_CHECK(!row->scope.has_value() || !is_other_scope, "model.moe.losses: ", loss.id(),
                " has a scope of its own");
    if (loss.scope() == pb::LOSS_SCOPE_SEQUENCE) config.scope = LossScope::kSequence;
    if (loss.scope() == pb::LOSS_SCOPE_GLOBAL) config.scope = LossScope::kGlobal;
    if (loss.layer_reduce() == pb::LAYER_REDUCE_SUM) config.reduce = LayerReduce::kSum;
    if (loss.layer_reduce() == pb::LAYER_REDUCE_MEAN) config.reduce = LayerReduce::kMean;
    if (loss.layer_reduce() == pb::LAYER_REDUCE_POOLED) config.reduce = LayerReduce::kPooled;
    TORCH_CHECK(config.definition != LossDefinition::kSwitch || top_k == 1,
                "model.moe.losses: switch is defined for top_k 1 only; megatron_aux is its form "
                "for more");
    configs.push_back(std::move(config));
  }
  return configs;
}

at::Tensor BalanceLoss(const LossConfig& config, const std::vector<LayerScores>& layers,
                       const at::Tensor& valid, int64_t sequences,
                       const std::vector<at::Tensor>& previous_counts) {
  TORCH_CHECK(!layers.empty(), "a balance loss needs a layer with scores");
  const auto type = layers[0].logits.scalar_type();
  const int64_t groups = config.scope == LossScope::kSequence ? sequences : 1;
  const int64_t rows = layers[0].logits.size(0);
  const int64_t experts = layers[0].logits.size(1);
  const int64_t top_k = layers[0].expert_ids.size(1);
  const at::Tensor mask = valid.to(type).view({groups, rows / std::max<int64_t>(groups, 1), 1});
  const at::Tensor tokens = mask.sum({1, 2});                   // [G]
  const at::Tensor divisor = tokens.clamp_min(1).unsqueeze(1);  // [G, 1]
  const bool is_z = config.definition == LossDefinition::kZLoss;
  const bool is_own =
      config.definition == LossDefinition::kCv2 || config.definition == LossDefinition::kSra;

  std::vector<at::Tensor> loads;  // [G, E], shares c_e / N, constant
  std::vector<at::Tensor> means;  // [G, E] or, for z_loss, [G, 1]
  for (size_t l = 0; l < layers.size(); ++l) {
    const at::Tensor& logits = layers[l].logits;
    const at::Tensor per_token =
        is_z ? logits.logsumexp(1, /*keepdim=*/true).square() : ProbabilitiesOf(layers[l]);
    means.push_back((per_token.view({groups, -1, per_token.size(1)}) * mask).sum(1) / divisor);
    if (is_z || is_own) continue;
    const int64_t slots = config.definition == LossDefinition::kGshardTop1 ? 1 : top_k;
    if (config.scope == LossScope::kGlobal && l < previous_counts.size() &&
        previous_counts[l][experts].item<double>() > 0) {
      const at::Tensor& previous = previous_counts[l];
      loads.push_back((previous.narrow(0, 0, experts) / previous[experts]).to(type).unsqueeze(0));
    } else {
      loads.push_back(
          CountExperts(layers[l].expert_ids.masked_fill(valid.logical_not().unsqueeze(1), -1),
                       slots, experts, groups, type) /
          divisor);
    }
  }
  const double factor = static_cast<double>(experts) / Divisor(config.definition, top_k);
  const auto value = [&](const at::Tensor& load, const at::Tensor& mean) {
    return is_z ? GroupMean(mean.squeeze(1), tokens)
                : GroupMean((load * mean).sum(1), tokens) * factor;
  };
  const auto count = static_cast<double>(layers.size());
  if (is_own) {
    TORCH_CHECK(config.reduce != LayerReduce::kPooled, "model.moe.losses: ", config.id,
                " is of single layers and cannot be pooled");
    at::Tensor total;
    for (size_t l = 0; l < layers.size(); ++l) {
      const at::Tensor term = config.definition == LossDefinition::kCv2
                                  ? Cv2Of(layers[l], valid)
                                  : SraOf(layers[l], means[l].squeeze(0));
      total = total.defined() ? total + term : term;
    }
    return config.reduce == LayerReduce::kMean ? total / count : total;
  }
  if (config.reduce == LayerReduce::kPooled) {
    // Every layer sees the same tokens, so that means of means are means over all tokens.
    at::Tensor load = is_z ? at::Tensor() : at::stack(loads).mean(0);
    return value(load, at::stack(means).mean(0));
  }
  at::Tensor total;
  for (size_t l = 0; l < layers.size(); ++l) {
    const at::Tensor term = value(is_z ? at::Tensor() : loads[l], means[l]);
    total = total.defined() ? total + term : term;
  }
  return config.reduce == LayerReduce::kMean ? total / count : total;
}

BalanceLosses::BalanceLosses(std::vector<LossConfig> configs, int64_t layers, int64_t experts,
                             ParameterStore& store)
    : configs_(std::move(configs)) {
  bool is_global = false;
  for (const LossConfig& config : configs_) {
    is_global = is_global || config.scope == LossScope::kGlobal;
    TORCH_CHECK(
        config.scope != LossScope::kGlobal || config.definition != LossDefinition::kGshardTop1,
        "model.moe.losses: gshard_top1 has no global scope");
  }
  if (!is_global) return;
  counts_ = store.AddBuffer("balance_counts", at::zeros({2, layers, experts + 1}, at::kDouble));
  step_ = store.AddBuffer("balance_step", at::zeros({1}, at::kLong));
}

void BalanceLosses::Count(const std::vector<LayerScores>& layers, uint64_t step) {
  if (step_.item<int64_t>() != static_cast<int64_t>(step)) {
    counts_[0].copy_(counts_[1]);
    counts_[1].zero_();
    step_.fill_(static_cast<int64_t>(step));
  }
  const int64_t experts = counts_.size(2) - 1;
  for (size_t l = 0; l < layers.size(); ++l) {
    at::Tensor row = counts_[1][static_cast<int64_t>(l)];
    const at::Tensor& ids = layers[l].expert_ids;
    row.narrow(0, 0, experts)
        .add_(CountExperts(ids, ids.size(1), experts, 1, at::kDouble).squeeze(0));
    row[experts].add_(ids.narrow(1, 0, 1).ge(0).sum());
  }
}

std::vector<LossTerm> BalanceLosses::Compute(const std::vector<LayerScores>& layers,
                                             const at::Tensor& valid, int64_t sequences,
                                             const ForwardContext& context) {
  std::vector<at::Tensor> previous;
  if (counts_.defined() && context.is_training) {
    if (!context.is_recomputed) Count(layers, context.step);
    for (int64_t l = 0; l < counts_.size(1); ++l) previous.push_back(counts_[0][l]);
  }
  std::vector<LossTerm> terms;
  for (const LossConfig& config : configs_) {
    terms.push_back(
        {config.id, BalanceLoss(config, layers, valid, sequences, previous) * config.coef});
  }
  return terms;
}

}  // namespace switchyard::model
