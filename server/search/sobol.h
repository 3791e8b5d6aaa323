#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"

namespace switchyard::search {

// A Sobol sequence (Sobol, "On the distribution of points in a cube and the approximate evaluation
// of integrals", 1967) in base 2 with 32 bits, under a nested uniform scramble (Owen, "Randomly
// permuted (t,m,s)-nets and (t,s)-sequences", 1995), which keeps its evenness: of any 2^m points
// that follow each other from a multiple of 2^m, every dyadic interval of length 2^-m holds one.
// The direction numbers are found here, not read from a table: dimension d > 0 takes the d-th
// primitive polynomial over GF(2) and, of 64 candidates for its initial numbers, those whose
// two-dimensional projections with the dimensions before it are the most even.
class SobolSequence {
 public:
  SobolSequence(size_t dimensions, RandomKey scramble);

  // Coordinate in [0, 1) of point `index`, modulo 2^32.
  double At(size_t dimension, uint64_t index) const;

 private:
  using Directions = std::array<uint32_t, 32>;
  std::vector<Directions> directions_;
  std::vector<RandomKey> keys_;
};

}  // namespace switchyard::search
