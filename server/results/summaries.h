#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "server/scheduler/rows.h"

// Last, best and counts of a series, kept while points arrive.
namespace switchyard::results {

// One point enters `row`, whose series decides the direction of best. Points must come in the
// order of the curve. `value` may be of any class: a non-finite one is counted in both counts and
// becomes `last`, and is never `best`. Of equal bests the first stays.
void AddPoint(uint64_t step, double value, scheduler::SummaryRow* row);

// Many at once; `values` as in a chunk (server/store/chunks.h): little-endian float64, or
// `row->is_vector`, vectors of `width` float32, which count as the mean of their finite elements
// (NaN without any). Steps above `step_max` are left out.
void AddPoints(std::span<const uint64_t> steps, std::string_view values, uint32_t width,
               uint64_t step_max, scheduler::SummaryRow* row);

// Mean of the finite ones of little-endian float32 `values`; NaN when there is none.
double VectorMean(std::string_view values);

}  // namespace switchyard::results
