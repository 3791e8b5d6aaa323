#include "server/search/curves.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "common/base/rng.h"
#include "common/base/strings.h"

namespace switchyard::search {
namespace {

// Mean squared distance over the dimensions of `a`; one that `b` lacks counts 1.
double Distance(const Space& space, const Point& a, const Point& b) {
  double sum = 0;
  size_t counted = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].has_value()) continue;
    ++counted;
    const Dimension& d = space.dimensions[i];
    if (!b[i].has_value()) {
      sum += 1;
    } else if (d.kind == DimensionKind::kCategorical) {
      sum += *a[i] == *b[i] ? 0 : 1;
    } else {
      const double difference = ToUnit(d, *a[i]) - ToUnit(d, *b[i]);
      sum += difference * difference;
    }
  }
  return counted == 0 ? 0 : sum / static_cast<double>(counted);
}

// A curve of one cell: values by step.
using Values = std::map<uint64_t, double>;

double ValueOn(const Values& values, uint64_t step) {
  const auto after = values.lower_bound(step);
  if (after == values.end()) return values.rbegin()->second;
  if (after->first == step || after == values.begin()) return after->second;
  const auto before = std::prev(after);
  const double share =
      static_cast<double>(step - before->first) / static_cast<double>(after->first - before->first);
  return before->second + share * (after->second - before->second);
}

struct RecordedCell {
  Point point;
  std::map<uint64_t, Values> by_seed;
};

}  // namespace

Curve SyntheticCurve(const Space& space, uint64_t steps, uint64_t seed, double noise,
                     bool is_maximized) {
  const RandomKey key = RandomKey::For(seed, "search/synthetic");
  // A value for every dimension, also for those that do not exist together.
  Point optimum(space.dimensions.size());
  for (size_t i = 0; i < optimum.size(); ++i) {
    optimum[i] = FromUnit(space.dimensions[i], RandomUniform(key, i));
  }
  return [&space, optimum = std::move(optimum), key, steps, noise, is_maximized](
             const std::vector<Segment>& history, uint64_t run_seed, uint64_t step) {
    double floor = 0;
    uint64_t name = 0;
    for (size_t i = 0; i < history.size(); ++i) {
      const uint64_t end = i + 1 < history.size() ? history[i + 1].from_step : step;
      const double share = static_cast<double>(end - history[i].from_step) /
                           static_cast<double>(std::max<uint64_t>(step, 1));
      floor += share * Distance(space, history[i].point, optimum);
    }
    for (const auto& value : history.back().point) {
      name = name * 31 + std::bit_cast<uint64_t>(value.value_or(0.5));
    }
    const auto at = static_cast<double>(std::max<uint64_t>(step, 1));
    const double progress = 2 * std::sqrt(std::max(1.0, static_cast<double>(steps) / 100) / at);
    const double value =
        1 + floor + progress +
        noise / std::sqrt(at) * RandomNormal(key.With("noise").With(name).With(run_seed), step);
    return is_maximized ? -value : value;
  };
}

Result<Curve> RecordedCurve(const Space& space, const std::vector<RecordedPoint>& points) {
  if (points.empty()) return InvalidArgument("there is no recorded value");
  auto cells = std::make_shared<std::vector<RecordedCell>>();
  for (const RecordedPoint& recorded : points) {
    if (Status status = space.CheckPoint(recorded.point); !status.ok()) return status;
    auto cell = std::ranges::find(*cells, recorded.point, &RecordedCell::point);
    if (cell == cells->end()) cell = cells->insert(cells->end(), {recorded.point, {}});
    cell->by_seed[recorded.seed][recorded.step] = recorded.value;
  }
  return Curve([&space, cells](const std::vector<Segment>& history, uint64_t seed, uint64_t step) {
    const RecordedCell* nearest = nullptr;
    double distance = std::numeric_limits<double>::infinity();
    for (const RecordedCell& cell : *cells) {
      const double other = Distance(space, history.back().point, cell.point);
      if (nearest != nullptr && other >= distance) continue;
      nearest = &cell;
      distance = other;
    }
    const auto own = nearest->by_seed.find(seed);
    return ValueOn(own != nearest->by_seed.end() ? own->second : nearest->by_seed.begin()->second,
                   step);
  });
}

}  // namespace switchyard::search
