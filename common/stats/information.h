#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

// Entropy and mutual information of two labelings (analyses N8, N9), in nats.
namespace switchyard::stats {

// Counts of groups by experts, `counts[group * experts + expert]`.
struct Contingency {
  size_t groups = 0;
  size_t experts = 0;
  std::vector<uint64_t> counts = {};

  // Labels below `groups` and `experts`; sizes are equal, else refused.
  static Result<Contingency> Of(std::span<const uint32_t> group, std::span<const uint32_t> expert,
                                size_t groups, size_t experts);
};

// -sum (n/N) ln(n/N) over non-zero counts; 0 for none.
double Entropy(std::span<const uint64_t> counts);

struct MutualInformation {
  double group_entropy = 0;
  double expert_entropy = 0;
  // 0 .. min(group_entropy, expert_entropy).
  double information = 0;
  // 2 I / (H_G + H_E), the arithmetic normalisation; 0 when a side has one class only.
  double normalised = 0;
  // Expectation of `normalised` over permutations of one labeling, which keep both marginals.
  double expected = 0;
  // One side has a single class: routing says nothing.
  bool is_collapsed = false;
};
// Exact expectation by the hypergeometric model; O(G E min(n_g, n_e)).
MutualInformation MutualInformationOf(const Contingency& table);
// The same with the expectation by `draws` permutations of the labels.
double PermutedInformation(std::span<const uint32_t> group, std::span<const uint32_t> expert,
                           size_t groups, size_t experts, size_t draws, uint64_t seed);

}  // namespace switchyard::stats
