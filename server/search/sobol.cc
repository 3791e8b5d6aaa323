#include "server/search/sobol.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/base/check.h"

namespace switchyard::search {
namespace {

using Directions = std::array<uint32_t, 32>;

constexpr int kBits = 32;
constexpr uint64_t kCandidates = 64;
// Projections are judged by their first 2^m points for m up to this.
constexpr int kJudgedMax = 10;

// x generates the field's whole multiplicative group.
bool IsPrimitive(uint32_t polynomial, int degree) {
  const uint32_t order = (uint32_t{1} << degree) - 1;
  uint32_t power = 1;
  for (uint32_t i = 1; i <= order; ++i) {
    power <<= 1;
    if ((power >> degree & 1) != 0) power ^= polynomial;
    if (power == 1) return i == order;
  }
  return false;
}

// In order of degree, then value, with the leading bit.
std::vector<uint32_t> PrimitivePolynomials(size_t count) {
  std::vector<uint32_t> found;
  for (int degree = 1; found.size() < count; ++degree) {
    SWITCHYARD_CHECK(degree < 20) << "too many dimensions: " << count;
    for (uint32_t p = (uint32_t{1} << degree) | 1;
         p < uint32_t{2} << degree && found.size() < count; p += 2) {
      if (IsPrimitive(p, degree)) found.push_back(p);
    }
  }
  return found;
}

// From the initial numbers by the recurrence of the polynomial (Sobol 1967; Bratley and Fox, 1988).
Directions Extend(uint32_t polynomial, const std::vector<uint32_t>& initial) {
  const int degree = std::bit_width(polynomial) - 1;
  Directions v{};
  for (int i = 0; i < degree; ++i) v[i] = initial[i] << (kBits - 1 - i);
  for (int i = degree; i < kBits; ++i) {
    v[i] = v[i - degree] ^ (v[i - degree] >> degree);
    for (int k = 1; k < degree; ++k) {
      if ((polynomial >> (degree - k) & 1) != 0) v[i] ^= v[i - k];
    }
  }
  return v;
}

// The t of the (t, m, 2)-net that the first 2^m points of two dimensions are: 0 is the most even.
// Row r of a dimension's generator matrix has bit 31-r of each direction number.
int Unevenness(const Directions& a, const Directions& b, int m) {
  std::array<uint32_t, kJudgedMax> rows_a{};
  std::array<uint32_t, kJudgedMax> rows_b{};
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < m; ++c) {
      rows_a[r] |= (a[c] >> (kBits - 1 - r) & 1) << c;
      rows_b[r] |= (b[c] >> (kBits - 1 - r) & 1) << c;
    }
  }
  int t = 0;
  for (int split = 0; split <= m; ++split) {
    // The first rows of `a` (as many as split says) are independent by themselves; count how many
    // of b's can join them.
    std::array<uint32_t, kJudgedMax> basis{};  // by leading bit
    const auto join = [&basis](uint32_t row) {
      while (row != 0) {
        const int lead = std::bit_width(row) - 1;
        if (basis[lead] == 0) {
          basis[lead] = row;
          return true;
        }
        row ^= basis[lead];
      }
      return false;
    };
    int joined = 0;
    for (int r = 0; r < split; ++r) joined += join(rows_a[r]) ? 1 : 0;
    for (int r = 0; joined == split + r && split + r < m; ++r) joined += join(rows_b[r]) ? 1 : 0;
    t = std::max(t, m - joined);
  }
  return t;
}

// Over all m; stops beyond `limit`.
int SumOfUnevenness(const std::vector<Directions>& before, const Directions& own, int limit) {
  int sum = 0;
  for (const Directions& other : before) {
    for (int m = 2; m <= kJudgedMax && sum < limit; ++m) {
      const int t = Unevenness(other, own, m);
      sum += t * t;
    }
  }
  return sum;
}

// Of dimension `d` > 0, after those `before` it.
Directions FindDirections(const std::vector<Directions>& before, uint32_t polynomial) {
  const size_t d = before.size();
  // Part of the definition of the sequence, not of its scramble.
  const RandomKey search = RandomKey::For(0, "search/sobol/directions");
  const int degree = std::bit_width(polynomial) - 1;
  Directions best{};
  int best_sum = std::numeric_limits<int>::max();
  for (uint64_t candidate = 0; candidate < kCandidates; ++candidate) {
    const RandomKey key = search.With(d).With(candidate);
    std::vector<uint32_t> initial;
    // The i-th is odd and below 2^(i+1).
    for (int i = 0; i < degree; ++i) {
      initial.push_back(
          static_cast<uint32_t>(RandomBelow(key, static_cast<uint64_t>(i), uint64_t{1} << i)) * 2 +
          1);
    }
    const Directions directions = Extend(polynomial, initial);
    const int sum = SumOfUnevenness(before, directions, best_sum);
    if (sum < best_sum) {
      best_sum = sum;
      best = directions;
    }
  }
  return best;
}

void Extend(size_t dimensions, std::vector<Directions>* directions) {
  const std::vector<uint32_t> polynomials = PrimitivePolynomials(dimensions);
  while (directions->size() < dimensions) {
    if (directions->empty()) {
      Directions& first = directions->emplace_back();
      for (int i = 0; i < kBits; ++i) first[i] = uint32_t{1} << (kBits - 1 - i);
    } else {
      directions->push_back(FindDirections(*directions, polynomials[directions->size() - 1]));
    }
  }
}

}  // namespace

SobolSequence::SobolSequence(size_t dimensions, RandomKey scramble) {
  // The usual number of dimensions is worked out once.
  static const std::vector<Directions> kUsual = [] {
    std::vector<Directions> usual;
    Extend(8, &usual);
    return usual;
  }();
  directions_ = kUsual;
  directions_.resize(std::min(dimensions, kUsual.size()));
  Extend(dimensions, &directions_);
  for (size_t d = 0; d < dimensions; ++d) keys_.push_back(scramble.With(d));
}

double SobolSequence::At(size_t dimension, uint64_t index) const {
  uint32_t value = 0;
  auto rest = static_cast<uint32_t>(index);
  for (int i = 0; rest != 0; ++i, rest >>= 1) {
    if ((rest & 1) != 0) value ^= directions_[dimension][i];
  }
  // Each bit is flipped or not by a coin that belongs to the bits above it: a node of a binary
  // tree, numbered as in a heap.
  uint32_t scrambled = 0;
  for (int bit = 0; bit < kBits; ++bit) {
    const uint64_t node = (uint64_t{1} << bit) | (bit == 0 ? 0 : value >> (kBits - bit));
    const auto flip = static_cast<uint32_t>(RandomBits(keys_[dimension], node) & 1);
    scrambled |= ((value >> (kBits - 1 - bit) & 1) ^ flip) << (kBits - 1 - bit);
  }
  return (static_cast<double>(scrambled) + 0.5) * 0x1.0p-32;
}

}  // namespace switchyard::search
