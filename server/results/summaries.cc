#include "server/results/summaries.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "common/base/check.h"
#include "common/spec/series.h"

namespace switchyard::results {
namespace {

using spec::Direction;

std::optional<Direction> DirectionOf(const scheduler::SummaryRow& row) {
  return row.is_vector ? std::nullopt : spec::SeriesDirection(row.series);
}

// A curve goes by step, and within a step by arrival: a step that comes behind a later one
// (`lenient_steps`) is not its end.
void SetLast(uint64_t step, double value, scheduler::SummaryRow* row) {
  if (row->count > 0 && step < row->last_step) return;
  row->last = value;
  row->last_step = step;
}

void SetBest(uint64_t step, double value, Direction direction, scheduler::SummaryRow* row) {
  const bool is_better = direction == Direction::kMinimize ? value < row->best : value > row->best;
  const bool is_earlier = value == row->best && step < row->best_step;
  if (row->has_best && !is_better && !is_earlier) return;
  row->has_best = true;
  row->best = value;
  row->best_step = step;
}

void Add(uint64_t step, PointValue point, std::optional<Direction> direction,
         scheduler::SummaryRow* row) {
  SetLast(step, point.value, row);
  ++row->count;
  if (!point.is_finite) ++row->non_finite;
  if (point.is_finite && direction) SetBest(step, point.value, *direction, row);
}

}  // namespace

PointValue ValueOf(std::string_view bytes, bool is_vector) {
  if (!is_vector) {
    double value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return {.value = value, .is_finite = std::isfinite(value)};
  }
  double sum = 0;
  size_t finite = 0;
  const size_t count = bytes.size() / sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    float element;
    std::memcpy(&element, bytes.data() + i * sizeof(float), sizeof(element));
    if (!std::isfinite(element)) continue;
    sum += static_cast<double>(element);
    ++finite;
  }
  return {.value = finite == 0 ? std::numeric_limits<double>::quiet_NaN()
                               : sum / static_cast<double>(finite),
          .is_finite = finite == count};
}

void AddPoint(uint64_t step, PointValue value, scheduler::SummaryRow* row) {
  Add(step, value, DirectionOf(*row), row);
}

void AddPoints(std::span<const uint64_t> steps, std::string_view values, uint32_t width,
               uint64_t step_max, scheduler::SummaryRow* row) {
  const size_t point_bytes = row->is_vector ? width * sizeof(float) : sizeof(double);
  SWITCHYARD_CHECK(values.size() == steps.size() * point_bytes)
      << values.size() << " bytes for " << steps.size() << " points of " << row->series;
  const std::optional<Direction> direction = DirectionOf(*row);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] > step_max) continue;
    Add(steps[i], ValueOf(values.substr(i * point_bytes, point_bytes), row->is_vector), direction,
        row);
  }
}

void Join(const scheduler::SummaryRow& newer, scheduler::SummaryRow* row) {
  if (newer.count == 0) return;
  SetLast(newer.last_step, newer.last, row);
  row->count += newer.count;
  row->non_finite += newer.non_finite;
  const std::optional<Direction> direction = DirectionOf(newer);
  if (newer.has_best && direction) SetBest(newer.best_step, newer.best, *direction, row);
}

}  // namespace switchyard::results
