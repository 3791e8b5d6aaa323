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

void Add(uint64_t step, double value, std::optional<Direction> direction,
         scheduler::SummaryRow* row) {
  row->last = value;
  row->last_step = step;
  ++row->count;
  if (!std::isfinite(value)) {
    ++row->non_finite;
    return;
  }
  if (!direction) return;
  const bool is_better = *direction == Direction::kMinimize ? value < row->best : value > row->best;
  if (!row->has_best || is_better) {
    row->has_best = true;
    row->best = value;
    row->best_step = step;
  }
}

}  // namespace

void AddPoint(uint64_t step, double value, scheduler::SummaryRow* row) {
  Add(step, value, spec::SeriesDirection(row->series), row);
}

void AddPoints(std::span<const uint64_t> steps, std::string_view values, uint32_t width,
               uint64_t step_max, scheduler::SummaryRow* row) {
  const size_t point_bytes = row->is_vector ? width * sizeof(float) : sizeof(double);
  SWITCHYARD_CHECK(values.size() == steps.size() * point_bytes)
      << values.size() << " bytes for " << steps.size() << " points of " << row->series;
  const std::optional<Direction> direction = spec::SeriesDirection(row->series);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] > step_max) continue;
    const std::string_view point = values.substr(i * point_bytes, point_bytes);
    double value = 0;
    if (row->is_vector) {
      value = VectorMean(point);
    } else {
      std::memcpy(&value, point.data(), sizeof(value));
    }
    Add(steps[i], value, direction, row);
  }
}

double VectorMean(std::string_view values) {
  double sum = 0;
  size_t finite = 0;
  for (size_t at = 0; at + sizeof(float) <= values.size(); at += sizeof(float)) {
    float element;
    std::memcpy(&element, values.data() + at, sizeof(element));
    if (!std::isfinite(element)) continue;
    sum += element;
    ++finite;
  }
  return finite == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(finite);
}

}  // namespace switchyard::results
