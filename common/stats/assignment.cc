#include "common/stats/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/strings.h"

namespace switchyard::stats {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Column of each row for rows <= columns.
std::vector<int64_t> Solve(std::span<const double> cost, size_t rows, size_t columns) {
  std::vector<double> row_price(rows, 0);
  std::vector<double> column_price(columns, 0);
  std::vector<int64_t> column_of(rows, kUnassigned);
  std::vector<int64_t> row_of(columns, kUnassigned);
  std::vector<double> shortest(columns);
  std::vector<int64_t> before(columns);
  std::vector<bool> row_done(rows);
  std::vector<bool> column_done(columns);
  for (size_t start = 0; start < rows; ++start) {
    std::fill(shortest.begin(), shortest.end(), kInfinity);
    std::fill(before.begin(), before.end(), kUnassigned);
    std::fill(row_done.begin(), row_done.end(), false);
    std::fill(column_done.begin(), column_done.end(), false);
    double reached = 0;
    auto row = static_cast<int64_t>(start);
    int64_t sink = kUnassigned;
    while (sink == kUnassigned) {
      row_done[static_cast<size_t>(row)] = true;
      double lowest = kInfinity;
      size_t next = 0;
      for (size_t j = 0; j < columns; ++j) {
        if (column_done[j]) continue;
        const double through = reached + cost[static_cast<size_t>(row) * columns + j] -
                               row_price[static_cast<size_t>(row)] - column_price[j];
        if (through < shortest[j]) {
          shortest[j] = through;
          before[j] = row;
        }
        // A free column wins a tie: the path ends there.
        if (shortest[j] < lowest || (shortest[j] == lowest && row_of[j] == kUnassigned)) {
          lowest = shortest[j];
          next = j;
        }
      }
      reached = lowest;
      column_done[next] = true;
      if (row_of[next] == kUnassigned) {
        sink = static_cast<int64_t>(next);
      } else {
        row = row_of[next];
      }
    }
    row_price[start] += reached;
    for (size_t i = 0; i < rows; ++i) {
      if (!row_done[i] || i == start) continue;
      row_price[i] += reached - shortest[static_cast<size_t>(column_of[i])];
    }
    for (size_t j = 0; j < columns; ++j) {
      if (column_done[j]) column_price[j] -= reached - shortest[j];
    }
    for (int64_t j = sink;;) {
      const int64_t i = before[static_cast<size_t>(j)];
      row_of[static_cast<size_t>(j)] = i;
      std::swap(column_of[static_cast<size_t>(i)], j);
      if (i == static_cast<int64_t>(start)) break;
    }
  }
  return column_of;
}

}  // namespace

Result<Assignment> MinimumCostAssignment(std::span<const double> cost, size_t rows,
                                         size_t columns) {
  if (cost.size() != rows * columns) {
    return InvalidArgument(StrCat("assignment: ", cost.size(), " costs for ", rows, " rows and ",
                                  columns, " columns"));
  }
  for (size_t i = 0; i < cost.size(); ++i) {
    if (!std::isfinite(cost[i])) {
      return InvalidArgument(StrCat("assignment: cost of row ", i / columns, ", column ",
                                    i % columns, " is ", cost[i], ", wanted a finite number"));
    }
  }
  Assignment result;
  if (rows <= columns) {
    result.column = Solve(cost, rows, columns);
  } else {
    std::vector<double> transposed(cost.size());
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) transposed[j * rows + i] = cost[i * columns + j];
    }
    const std::vector<int64_t> row_of = Solve(transposed, columns, rows);
    result.column.assign(rows, kUnassigned);
    for (size_t j = 0; j < columns; ++j) {
      result.column[static_cast<size_t>(row_of[j])] = static_cast<int64_t>(j);
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    if (result.column[i] != kUnassigned) {
      result.cost += cost[i * columns + static_cast<size_t>(result.column[i])];
    }
  }
  return result;
}

}  // namespace switchyard::stats
