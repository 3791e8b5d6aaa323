#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace switchyard::stats {

struct Assignment {
  // Column of each row; kUnassigned where there are more rows than columns.
  std::vector<int64_t> column;
  double cost = 0;
};
inline constexpr int64_t kUnassigned = -1;

// Minimum-cost assignment of a rows x columns matrix, row-major, by shortest augmenting paths
// (Jonker and Volgenant, 1987; rectangular form of Crouse, 2016): min(rows, columns) pairs,
// O(n^3). Costs are finite, else refused. Ties make the matching, not the cost, ambiguous.
Result<Assignment> MinimumCostAssignment(std::span<const double> cost, size_t rows, size_t columns);

}  // namespace switchyard::stats
