#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "server/scheduler/rows.h"

// Last, best and counts of a series, kept while points arrive.
namespace switchyard::results {

// What a point counts as in a summary: a scalar as itself, a vector as the mean of its finite
// elements (NaN without any), finite when all of its elements are.
struct PointValue {
  double value = 0;
  bool is_finite = false;
};
// `bytes` of one point: a little-endian float64, or those of a vector, float32 each.
PointValue ValueOf(std::string_view bytes, bool is_vector);

// One point enters `row`, whose series decides the direction of best; a vector has none. Steps may
// come in any order: `last` is of the highest step, and of points of one step the one that came
// last counts; of equal bests that of the lowest step stays. A value that is not finite is counted
// in both counts and becomes `last`, and is never `best`.
void AddPoint(uint64_t step, PointValue value, scheduler::SummaryRow* row);

// Many at once; `values` as in a chunk (server/store/chunks.h): little-endian float64, or
// `row->is_vector`, vectors of `width` float32. Steps above `step_max` are left out.
void AddPoints(std::span<const uint64_t> steps, std::string_view values, uint32_t width,
               uint64_t step_max, scheduler::SummaryRow* row);

// The summary of points that came behind those of `row`, of the same series, enters it: the same as
// if they had been added one by one.
void Join(const scheduler::SummaryRow& newer, scheduler::SummaryRow* row);

}  // namespace switchyard::results
