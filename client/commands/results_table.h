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
  uint64_t attempts = 0;
  std::string id;
  std::vector<std::pair<std::string, std::string>> columns;  // axis -> value
  std::vector<std::optional<double>> values;                 // one per metric; may be NaN or Inf
};

struct ResultTable {
  std::vector<std::string> axes;
  std::vector<ResultMetric> metrics;  // the first one orders the rows
  bool is_maximized = false;
  bool is_ordered = false;  // the rows stay in their order
  std::vector<ResultRow> rows;
};

// A row per run, the best first, with the number of attempts where one needed several; rows whose
// first metric is not finite, then those without one, come last. Equal rows by number.
Listing RunResultsListing(ResultTable table);

struct GroupedValue {
  uint64_t n = 0;           // finite values
  uint64_t non_finite = 0;  // in no mean
  double mean = 0;          // NaN: n is 0
  double sd = 0;            // sample standard deviation; NaN: n is below 2
  double best = 0;          // NaN: none
  std::string best_run;
};
struct GroupRow {
  std::vector<std::string> key;
  uint64_t runs = 0;
  std::vector<GroupedValue> values;  // one per metric
};
// A row per group, in this order: mean and deviation of every metric, n and non-finite values of
// the first one.
Listing GroupListing(const std::vector<std::string>& by, const std::vector<ResultMetric>& metrics,
                     const std::vector<GroupRow>& groups);

}  // namespace switchyard::client
