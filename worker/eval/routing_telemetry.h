#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Live routing statistics as pure functions of what a router said (analyses.md section 10):
// float64 throughout, padding left out. Dimensions: N tokens, K choices per token, E experts. f_e =
// c_e / sum c is the share of expert e in the assignments that were kept.
namespace switchyard::eval {

// One layer, one batch of training; row-major, borrowed.
struct RoutingView {
  uint32_t experts = 0;            // E >= 1
  uint32_t top_k = 0;              // K >= 1
  std::span<const int64_t> ids;    // [N, K], -1 = not routed (dropped)
  std::span<const float> logits;   // [N, E]; empty for a router without scores
  std::span<const uint8_t> valid;  // [N], 0 = padding
  // Rows of the batch: N = sequences * tokens per sequence, token index rising within a row.
  uint32_t sequences = 1;
};

struct RoutingCounts {
  std::vector<uint64_t> per_expert;  // [E] kept assignments of valid tokens
  uint64_t tokens = 0;               // valid ones
  uint64_t dropped = 0;              // choices of valid tokens without an expert
};

// Aborts on an id outside -1..E-1 or sizes that do not fit: the model broke its contract.
RoutingCounts CountAssignments(const RoutingView& view);

// From counts alone; every router has these.
struct LoadStatistics {
  double usage_entropy_norm = 0;  // H(f) / ln E; 1 for one expert
  double effective_experts = 0;   // exp(H(f)), 1..E
  double load_max_over_mean = 0;  // max_e f_e E
  double load_min_over_mean = 0;  // min_e f_e E
  double load_cv = 0;             // population standard deviation over mean
  double load_gini = 0;           // 0 uniform, 1 - 1/E collapsed
  double utilisation = 0;         // sum_e min(f_e, 1/E)
  double dropped_ratio = 0;       // dropped / (N K)
  std::vector<double> load;       // [E] f_e E
};
// All 0 when nothing was assigned.
LoadStatistics ComputeLoad(const RoutingCounts& counts, uint32_t top_k);

// From the logits; p = softmax over all experts of one token.
struct ScoreStatistics {
  double entropy_nats = 0;       // mean_t -sum_e p ln p
  double entropy_norm = 0;       // that / ln E; 1 for one expert
  double top1_prob = 0;          // mean of the largest p
  double topk_mass = 0;          // mean of the sum of the K largest p
  double gate_margin_top12 = 0;  // mean p_(1) - p_(2); 1 for one expert
  // Mean logit_(K) - logit_(K+1), the boundary of the choice; none when K = E.
  std::optional<double> gate_margin_boundary;
  double logit_rms = 0;
  double logit_absmax = 0;
  double z_loss = 0;  // mean_t (logsumexp logits)^2
  // E sum_e f_e P_e with unit coefficient, f_e = c_e / (N K), P_e the mean of p_e: over each batch
  // given (weighted by its tokens), over each sequence, over all batches of the update together.
  double aux_loss = 0;
  double aux_loss_sequence = 0;
  double aux_loss_global = 0;
};
// `micro_batches`: the parts of one update, all of one layer. None where the router has no scores
// or no token is valid.
std::optional<ScoreStatistics> ComputeScores(std::span<const RoutingView> micro_batches);

// 1 - mean over valid tokens of |T and T'| / K, where T and T' are the experts of one token in two
// routings of the same tokens (K: the larger of their numbers); 0 when no token has an expert.
// Aborts when the tokens differ in number.
double ChurnBetween(const RoutingView& before, const RoutingView& after);

// Dead and starved experts need a window of at least 100 E / K tokens, however small the batches
// are: the newest batches that reach it. One layer's. Training thread only.
class LoadWindow {
 public:
  void Add(const RoutingCounts& counts, uint32_t top_k);
  struct Verdict {
    uint32_t dead = 0;     // fewer than 0.01 N K / E assignments
    uint32_t starved = 0;  // f_e < 0.1 / E
  };
  // None until the window is filled.
  std::optional<Verdict> Judge() const;
  // What it holds, the oldest first, for checkpoints; an equal window comes from Add in that order.
  const std::deque<RoutingCounts>& batches() const { return batches_; }
  uint32_t top_k() const { return top_k_; }

 private:
  std::deque<RoutingCounts> batches_;
  uint64_t tokens_ = 0;
  uint32_t top_k_ = 0;
};

// Names and values of a layer's series, without the prefix `routing/`. The order is fixed.
using NamedValues = std::vector<std::pair<std::string, double>>;
NamedValues ListLoad(const LoadStatistics& load);
NamedValues ListScores(const ScoreStatistics& scores);

}  // namespace switchyard::eval
