#include "worker/eval/routing_telemetry.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/base/check.h"

namespace switchyard::eval {
namespace {

// Probabilities and log-sum-exp of one token's logits; returns the latter.
double Softmax(std::span<const float> logits, std::vector<double>* p) {
  double largest = -INFINITY;
  for (const float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  double sum = 0;
  p->resize(logits.size());
  for (size_t e = 0; e < logits.size(); ++e) {
    (*p)[e] = std::exp(static_cast<double>(logits[e]) - largest);
    sum += (*p)[e];
  }
  for (double& value : *p) value /= sum;
  return largest + std::log(sum);
}

double Entropy(std::span<const double> p) {
  double h = 0;
  for (const double value : p) {
    if (value > 0) h -= value * std::log(value);
  }
  return h;
}

// What E sum f P needs, summed over some tokens.
struct BalanceSums {
  std::vector<double> assignments;    // [E]
  std::vector<double> probabilities;  // [E]
  uint64_t tokens = 0;

  explicit BalanceSums(uint32_t experts) : assignments(experts), probabilities(experts) {}
  void Add(const BalanceSums& other) {
    for (size_t e = 0; e < assignments.size(); ++e) {
      assignments[e] += other.assignments[e];
      probabilities[e] += other.probabilities[e];
    }
    tokens += other.tokens;
  }
  // E / (K N^2) sum_e c_e sum_n p_ne.
  double AuxLoss(uint32_t top_k) const {
    double sum = 0;
    for (size_t e = 0; e < assignments.size(); ++e) sum += assignments[e] * probabilities[e];
    const double n = static_cast<double>(tokens);
    return static_cast<double>(assignments.size()) * sum / (top_k * n * n);
  }
};

void CheckShape(const RoutingView& view) {
  SWITCHYARD_CHECK(view.experts > 0 && view.top_k > 0 && view.sequences > 0 &&
                   view.ids.size() == view.valid.size() * view.top_k &&
                   view.valid.size() % view.sequences == 0 &&
                   (view.logits.empty() || view.logits.size() == view.valid.size() * view.experts))
      << "routing of " << view.valid.size() << " tokens, " << view.ids.size() << " ids, "
      << view.logits.size() << " logits for E " << view.experts << ", K " << view.top_k;
}

// Running sums of ComputeScores over tokens.
struct ScoreSums {
  double entropy = 0, top1 = 0, topk = 0, margin12 = 0, boundary = 0, squares = 0, z = 0;
  double absmax = 0;
  uint64_t tokens = 0;

  void AddToken(std::span<const float> logits, uint32_t top_k, std::vector<double>* p,
                std::vector<double>* sorted) {
    const size_t experts = logits.size();
    const double log_sum = Softmax(logits, p);
    z += log_sum * log_sum;
    entropy += Entropy(*p);
    for (const float logit : logits) {
      const double value = logit;
      squares += value * value;
      absmax = std::max(absmax, std::abs(value));
    }
    const size_t head = std::min<size_t>(std::max<size_t>(top_k + 1, 2), experts);
    *sorted = *p;
    std::partial_sort(sorted->begin(), sorted->begin() + static_cast<ptrdiff_t>(head),
                      sorted->end(), std::greater<>());
    top1 += (*sorted)[0];
    margin12 += experts > 1 ? (*sorted)[0] - (*sorted)[1] : 1.0;
    for (size_t k = 0; k < std::min<size_t>(top_k, experts); ++k) topk += (*sorted)[k];
    if (top_k < experts) {
      sorted->assign(logits.begin(), logits.end());
      std::partial_sort(sorted->begin(), sorted->begin() + static_cast<ptrdiff_t>(top_k) + 1,
                        sorted->end(), std::greater<>());
      boundary += (*sorted)[top_k - 1] - (*sorted)[top_k];
    }
    ++tokens;
  }
};

}  // namespace

RoutingCounts CountAssignments(const RoutingView& view) {
  CheckShape(view);
  RoutingCounts counts;
  counts.per_expert.resize(view.experts);
  for (size_t n = 0; n < view.valid.size(); ++n) {
    if (view.valid[n] == 0) continue;
    ++counts.tokens;
    for (size_t k = 0; k < view.top_k; ++k) {
      const int64_t id = view.ids[n * view.top_k + k];
      SWITCHYARD_CHECK(id >= -1 && id < static_cast<int64_t>(view.experts))
          << "expert id " << id << " of " << view.experts;
      if (id < 0) {
        ++counts.dropped;
      } else {
        ++counts.per_expert[static_cast<size_t>(id)];
      }
    }
  }
  return counts;
}

LoadStatistics ComputeLoad(const RoutingCounts& counts, uint32_t top_k) {
  const size_t experts = counts.per_expert.size();
  LoadStatistics out;
  out.load.assign(experts, 0.0);
  const double choices = static_cast<double>(counts.tokens) * top_k;
  if (choices > 0) out.dropped_ratio = static_cast<double>(counts.dropped) / choices;
  const uint64_t total =
      std::accumulate(counts.per_expert.begin(), counts.per_expert.end(), uint64_t{0});
  if (total == 0) return out;

  std::vector<double> share(experts);
  double squares = 0;
  out.load_min_over_mean = INFINITY;
  for (size_t e = 0; e < experts; ++e) {
    share[e] = static_cast<double>(counts.per_expert[e]) / static_cast<double>(total);
    out.load[e] = share[e] * static_cast<double>(experts);
    out.load_max_over_mean = std::max(out.load_max_over_mean, out.load[e]);
    out.load_min_over_mean = std::min(out.load_min_over_mean, out.load[e]);
    squares += (out.load[e] - 1) * (out.load[e] - 1);
    out.utilisation += std::min(share[e], 1.0 / static_cast<double>(experts));
  }
  out.load_cv = std::sqrt(squares / static_cast<double>(experts));
  const double h = Entropy(share);
  out.usage_entropy_norm = experts > 1 ? h / std::log(static_cast<double>(experts)) : 1.0;
  out.effective_experts = std::exp(h);
  // Gini of sorted shares x_1 <= ... <= x_E that sum to 1: (2 sum_i i x_i - (E + 1)) / E.
  std::sort(share.begin(), share.end());
  double ranked = 0;
  for (size_t e = 0; e < experts; ++e) ranked += static_cast<double>(e + 1) * share[e];
  out.load_gini = (2 * ranked - static_cast<double>(experts + 1)) / static_cast<double>(experts);
  return out;
}

std::optional<ScoreStatistics> ComputeScores(std::span<const RoutingView> micro_batches) {
  if (micro_batches.empty() || micro_batches[0].logits.empty()) return std::nullopt;
  const uint32_t experts = micro_batches[0].experts;
  const uint32_t top_k = micro_batches[0].top_k;
  ScoreSums sums;
  BalanceSums global(experts);
  double aux_micro = 0;     // weighted by tokens
  double aux_sequence = 0;  // weighted by sequences
  uint64_t sequences = 0;
  std::vector<double> p, sorted;
  for (const RoutingView& view : micro_batches) {
    CheckShape(view);
    SWITCHYARD_CHECK(view.experts == experts && view.top_k == top_k)
        << "micro-batches of one layer differ in E or K";
    BalanceSums micro(experts);
    const size_t length = view.valid.size() / view.sequences;
    for (uint32_t s = 0; s < view.sequences; ++s) {
      BalanceSums sequence(experts);
      for (size_t n = s * length; n < (s + 1) * length; ++n) {
        if (view.valid[n] == 0) continue;
        sums.AddToken(view.logits.subspan(n * experts, experts), top_k, &p, &sorted);
        for (size_t e = 0; e < experts; ++e) sequence.probabilities[e] += p[e];
        for (size_t k = 0; k < top_k; ++k) {
          const int64_t id = view.ids[n * top_k + k];
          if (id >= 0) sequence.assignments[static_cast<size_t>(id)] += 1;
        }
        ++sequence.tokens;
      }
      if (sequence.tokens == 0) continue;
      aux_sequence += sequence.AuxLoss(top_k);
      ++sequences;
      micro.Add(sequence);
    }
    if (micro.tokens == 0) continue;
    aux_micro += micro.AuxLoss(top_k) * static_cast<double>(micro.tokens);
    global.Add(micro);
  }
  if (sums.tokens == 0) return std::nullopt;

  const double n = static_cast<double>(sums.tokens);
  ScoreStatistics out;
  out.entropy_nats = sums.entropy / n;
  out.entropy_norm = experts > 1 ? out.entropy_nats / std::log(static_cast<double>(experts)) : 1.0;
  out.top1_prob = sums.top1 / n;
  out.topk_mass = sums.topk / n;
  out.gate_margin_top12 = sums.margin12 / n;
  if (top_k < experts) out.gate_margin_boundary = sums.boundary / n;
  out.logit_rms = std::sqrt(sums.squares / (n * experts));
  out.logit_absmax = sums.absmax;
  out.z_loss = sums.z / n;
  out.aux_loss = aux_micro / n;
  out.aux_loss_sequence = aux_sequence / static_cast<double>(sequences);
  out.aux_loss_global = global.AuxLoss(top_k);
  return out;
}

double ChurnBetween(const RoutingView& before, const RoutingView& after) {
  SWITCHYARD_CHECK(before.valid.size() == after.valid.size())
      << "churn between " << before.valid.size() << " and " << after.valid.size() << " tokens";
  double shared = 0;
  uint64_t tokens = 0;
  for (size_t n = 0; n < after.valid.size(); ++n) {
    if (after.valid[n] == 0) continue;
    const auto old_ids = before.ids.subspan(n * before.top_k, before.top_k);
    const auto new_ids = after.ids.subspan(n * after.top_k, after.top_k);
    size_t old_count = 0, new_count = 0, common = 0;
    for (const int64_t id : old_ids) old_count += id >= 0 ? 1 : 0;
    for (const int64_t id : new_ids) {
      if (id < 0) continue;
      ++new_count;
      common += std::find(old_ids.begin(), old_ids.end(), id) != old_ids.end() ? 1 : 0;
    }
    if (old_count + new_count == 0) continue;
    shared += static_cast<double>(common) / static_cast<double>(std::max(old_count, new_count));
    ++tokens;
  }
  return tokens == 0 ? 0.0 : 1 - shared / static_cast<double>(tokens);
}

void LoadWindow::Add(const RoutingCounts& counts, uint32_t top_k) {
  top_k_ = top_k;
  batches_.push_back(counts);
  tokens_ += counts.tokens;
  const double wanted = 100.0 * static_cast<double>(counts.per_expert.size()) / top_k;
  while (batches_.size() > 1 && static_cast<double>(tokens_ - batches_.front().tokens) >= wanted) {
    tokens_ -= batches_.front().tokens;
    batches_.pop_front();
  }
}

std::optional<LoadWindow::Verdict> LoadWindow::Judge() const {
  if (batches_.empty()) return std::nullopt;
  const size_t experts = batches_.front().per_expert.size();
  const double e_count = static_cast<double>(experts);
  if (static_cast<double>(tokens_) < 100.0 * e_count / top_k_) return std::nullopt;
  std::vector<uint64_t> counts(experts);
  uint64_t total = 0;
  for (const RoutingCounts& batch : batches_) {
    for (size_t e = 0; e < experts; ++e) {
      counts[e] += batch.per_expert[e];
      total += batch.per_expert[e];
    }
  }
  const double fair = static_cast<double>(tokens_) * top_k_ / e_count;
  Verdict verdict;
  for (const uint64_t count : counts) {
    if (static_cast<double>(count) < 0.01 * fair) ++verdict.dead;
    if (static_cast<double>(count) < 0.1 * static_cast<double>(total) / e_count) ++verdict.starved;
  }
  return verdict;
}

NamedValues ListLoad(const LoadStatistics& load) {
  return {{"usage_entropy_norm", load.usage_entropy_norm},
          {"effective_experts", load.effective_experts},
          {"load_max_over_mean", load.load_max_over_mean},
          {"load_min_over_mean", load.load_min_over_mean},
          {"load_cv", load.load_cv},
          {"load_gini", load.load_gini},
          {"utilisation", load.utilisation},
          {"dropped_ratio", load.dropped_ratio}};
}

NamedValues ListScores(const ScoreStatistics& scores) {
  NamedValues out = {{"entropy_nats", scores.entropy_nats},
                     {"entropy_norm", scores.entropy_norm},
                     {"top1_prob", scores.top1_prob},
                     {"topk_mass", scores.topk_mass},
                     {"gate_margin_top12", scores.gate_margin_top12},
                     {"logit_rms", scores.logit_rms},
                     {"logit_absmax", scores.logit_absmax},
                     {"z_loss", scores.z_loss},
                     {"aux_loss", scores.aux_loss},
                     {"aux_loss_sequence", scores.aux_loss_sequence},
                     {"aux_loss_global", scores.aux_loss_global}};
  if (scores.gate_margin_boundary) {
    out.emplace_back("gate_margin_boundary", *scores.gate_margin_boundary);
  }
  return out;
}

}  // namespace switchyard::eval
