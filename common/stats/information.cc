#include "common/stats/information.h"

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"
#include "common/base/strings.h"

namespace switchyard::stats {
namespace {

struct Marginals {
  std::vector<uint64_t> groups;
  std::vector<uint64_t> experts;
  uint64_t total = 0;
};

Marginals MarginalsOf(const Contingency& table) {
  Marginals m{.groups = std::vector<uint64_t>(table.groups),
              .experts = std::vector<uint64_t>(table.experts)};
  for (size_t g = 0; g < table.groups; ++g) {
    for (size_t e = 0; e < table.experts; ++e) {
      const uint64_t n = table.counts[g * table.experts + e];
      m.groups[g] += n;
      m.experts[e] += n;
      m.total += n;
    }
  }
  return m;
}

double Information(const Contingency& table, const Marginals& m) {
  const auto total = static_cast<double>(m.total);
  double information = 0;
  for (size_t g = 0; g < table.groups; ++g) {
    for (size_t e = 0; e < table.experts; ++e) {
      const auto n = static_cast<double>(table.counts[g * table.experts + e]);
      if (n == 0) continue;
      information +=
          n / total *
          std::log(total * n /
                   (static_cast<double>(m.groups[g]) * static_cast<double>(m.experts[e])));
    }
  }
  return information;
}

// Sum over the hypergeometric distribution of one cell, for every pair of marginals (Vinh et al.,
// "Information theoretic measures for clusterings comparison", 2010).
double ExpectedInformation(const Marginals& m) {
  std::vector<double> log_factorial(m.total + 1, 0);
  for (uint64_t i = 2; i <= m.total; ++i) {
    log_factorial[i] = std::lgamma(static_cast<double>(i) + 1);
  }
  const auto total = static_cast<double>(m.total);
  double expected = 0;
  for (const uint64_t a : m.groups) {
    for (const uint64_t b : m.experts) {
      if (a == 0 || b == 0) continue;
      const uint64_t first = std::max<uint64_t>(1, a + b > m.total ? a + b - m.total : 0);
      const double fixed = log_factorial[a] + log_factorial[b] + log_factorial[m.total - a] +
                           log_factorial[m.total - b] - log_factorial[m.total];
      const double scale =
          std::log(total) - std::log(static_cast<double>(a)) - std::log(static_cast<double>(b));
      for (uint64_t n = first; n <= std::min(a, b); ++n) {
        const auto count = static_cast<double>(n);
        const double log_probability = fixed - log_factorial[n] - log_factorial[a - n] -
                                       log_factorial[b - n] - log_factorial[m.total + n - a - b];
        expected += count / total * (scale + std::log(count)) * std::exp(log_probability);
      }
    }
  }
  return expected;
}

}  // namespace

Result<Contingency> Contingency::Of(std::span<const uint32_t> group,
                                    std::span<const uint32_t> expert, size_t groups,
                                    size_t experts) {
  if (group.size() != expert.size()) {
    return InvalidArgument(StrCat("contingency table: ", group.size(), " group labels and ",
                                  expert.size(), " expert labels"));
  }
  Contingency table{.groups = groups, .experts = experts};
  table.counts.resize(groups * experts);
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] >= groups || expert[i] >= experts) {
      return InvalidArgument(StrCat("contingency table: item ", i, " has labels ", group[i],
                                    " and ", expert[i], ", wanted below ", groups, " and ",
                                    experts));
    }
    ++table.counts[group[i] * experts + expert[i]];
  }
  return table;
}

double Entropy(std::span<const uint64_t> counts) {
  uint64_t total = 0;
  for (const uint64_t n : counts) total += n;
  double entropy = 0;
  for (const uint64_t n : counts) {
    if (n == 0) continue;
    const double share = static_cast<double>(n) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return std::max(0.0, entropy);
}

MutualInformation MutualInformationOf(const Contingency& table) {
  const Marginals m = MarginalsOf(table);
  MutualInformation result;
  result.group_entropy = Entropy(m.groups);
  result.expert_entropy = Entropy(m.experts);
  result.is_collapsed = result.group_entropy == 0 || result.expert_entropy == 0;
  if (result.is_collapsed) return result;
  result.information =
      std::clamp(Information(table, m), 0.0, std::min(result.group_entropy, result.expert_entropy));
  const double scale = 2 / (result.group_entropy + result.expert_entropy);
  result.normalised = scale * result.information;
  result.expected = scale * ExpectedInformation(m);
  return result;
}

double PermutedInformation(std::span<const uint32_t> group, std::span<const uint32_t> expert,
                           size_t groups, size_t experts, size_t draws, uint64_t seed) {
  std::vector<uint32_t> shuffled(group.begin(), group.end());
  const RandomKey key = RandomKey::For(seed, "permuted_information");
  double sum = 0;
  for (size_t draw = 0; draw < draws; ++draw) {
    const RandomKey row = key.With(draw);
    for (size_t i = 0; i + 1 < shuffled.size(); ++i) {
      std::swap(shuffled[i], shuffled[i + RandomBelow(row, i, shuffled.size() - i)]);
    }
    const Result<Contingency> table = Contingency::Of(shuffled, expert, groups, experts);
    if (!table.ok()) return 0;
    const Marginals m = MarginalsOf(*table);
    const double entropies = Entropy(m.groups) + Entropy(m.experts);
    if (entropies > 0) sum += 2 * std::max(0.0, Information(*table, m)) / entropies;
  }
  return draws == 0 ? 0 : sum / static_cast<double>(draws);
}

}  // namespace switchyard::stats
