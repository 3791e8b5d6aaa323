#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace switchyard::search {

enum class DimensionKind : uint8_t { kCategorical = 1, kReal = 2, kInt = 3, kNormal = 4 };

// One thing that a strategy chooses. Existing fields are those of the kind.
struct Dimension {
  // A dimension exists only in points whose `dimension` (an earlier, categorical one that exists)
  // has the value `alternative`.
  struct Condition {
    size_t dimension = 0;
    uint64_t alternative = 0;
    auto operator<=>(const Condition&) const = default;
  };

  std::string name;
  DimensionKind kind = DimensionKind::kReal;
  uint64_t choices = 0;  // categorical: values 0..choices-1
  double low = 0;        // real: [low, high); int: [low, high]
  double high = 0;
  double step = 0;  // real, int: values are low + k * step; 0: any real, every integer
  bool is_log = false;
  double mean = 0;  // normal
  double sd = 0;
  std::optional<Condition> condition;
  // Every point has this value.
  std::optional<double> fixed;
};

// A value per dimension, empty where the dimension does not exist. Categories are their index.
// Reals have 6 significant digits, so that what is shown is what ran.
using Point = std::vector<std::optional<double>>;

struct Space {
  std::vector<Dimension> dimensions;

  // kInvalidArgument, naming the dimension, its value and what would be right.
  Status Check() const;
  // The same for a point from outside.
  Status CheckPoint(const Point& point) const;
  bool Exists(size_t dimension, const Point& point) const;
  // `unit(d)` in [0, 1) is where dimension d's value lies in its distribution; called for those
  // that exist, in order.
  Point At(const std::function<double(size_t)>& unit) const;
};

// Number of values, 0 when there is no bound: reals without a step.
uint64_t ValueCount(const Dimension& dimension);
// The value number `index` < ValueCount(dimension), ascending.
double ValueAt(const Dimension& dimension, uint64_t index);
// Value at `unit` in [0, 1) of the dimension's distribution (the inverse of its cumulative one).
double FromUnit(const Dimension& dimension, double unit);
// Middle of the part of [0, 1) that FromUnit maps to `value`; not for categories.
double ToUnit(const Dimension& dimension, double value);
// The nearest value that the dimension has.
double Nearest(const Dimension& dimension, double value);

// Quantile and distribution function of the standard normal; `p` in (0, 1).
double NormalQuantile(double p);
double NormalDistribution(double x);

}  // namespace switchyard::search
