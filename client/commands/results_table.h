#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/commands/runs.h"
#include "client/output/table.h"

namespace switchyard::client {

struct ResultMetric {
  std::string series;
  std::string title;
  Pick pick = Pick::kLast;
};

struct ResultRow {
  std::string name;
  uint64_t number = 0;
  uint64_t seed = 0;
  std::string state;
  std::string id;
  std::vector<std::pair<std::string, std::string>> columns;  // axis -> value
  std::vector<std::optional<double>> values;                 // one per metric; may be NaN or Inf
};

struct ResultTable {
  std::vector<std::string> axes;
  std::vector<ResultMetric> metrics;  // the first one orders the rows
  bool is_maximized = false;
  std::vector<ResultRow> rows;
};

// A row per run, the best first; rows whose first metric is not finite, then those without one,
// come last. Equal rows by number.
Listing RunResultsListing(ResultTable table);

// A row per cell (equal axis values): mean and sample standard deviation over its seeds, n finite
// values and the number of non-finite ones, which no mean contains. Same order.
Listing CellResults(ResultTable table);

// Mean and sample standard deviation of the finite values.
struct SeedSummary {
  uint64_t n = 0;
  uint64_t non_finite = 0;
  double mean = 0;           // NaN when n = 0
  std::optional<double> sd;  // n >= 2
};
SeedSummary Summarize(const std::vector<double>& values);

}  // namespace switchyard::client
