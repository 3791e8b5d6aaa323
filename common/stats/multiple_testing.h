#pragma once

#include <span>
#include <vector>

// Adjusted p values of a family: reject where adjusted <= alpha. Order is that of the input.
namespace switchyard::stats {

enum class Correction { kNone, kHolm, kBenjaminiHochberg, kBenjaminiYekutieli };

// Holm controls the family-wise error, Benjamini-Hochberg the false discovery rate under
// independence or positive dependence, Benjamini-Yekutieli under any.
std::vector<double> Adjust(std::span<const double> p, Correction correction);

}  // namespace switchyard::stats
