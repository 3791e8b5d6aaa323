#include "common/stats/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"

namespace switchyard::stats {

std::vector<uint32_t> GumbelTopK(std::span<const double> logits, size_t k, double temperature,
                                 RandomKey key, uint64_t draw) {
  SWITCHYARD_CHECK(k <= logits.size() && temperature > 0);
  // Away from 0 and 1, where a Gumbel variable is infinite and all ties look alike.
  constexpr double kEdge = 0x1p-33;
  std::vector<double> keys(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double u = std::clamp(RandomUniform(key, draw * logits.size() + i), kEdge, 1 - kEdge);
    keys[i] = logits[i] / temperature - std::log(-std::log(u));
  }
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(order.begin(), end, order.end(), [&](uint32_t a, uint32_t b) {
    return keys[a] > keys[b] || (keys[a] == keys[b] && a < b);
  });
  order.resize(k);
  return order;
}

}  // namespace switchyard::stats
