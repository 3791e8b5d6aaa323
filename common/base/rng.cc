#include "common/base/rng.h"

#include <array>
#include <cmath>
#include <numbers>

namespace switchyard {
namespace {

struct Block {
  uint64_t a;
  uint64_t b;
};

Block Philox(uint64_t key, uint64_t counter) {
  std::array<uint32_t, 4> x{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0,
                            0};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * x[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {(uint64_t{x[1]} << 32) | x[0], (uint64_t{x[3]} << 32) | x[2]};
}

// FNV-1a, then a finaliser: names differ in few bits, keys must not.
uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

RandomKey RandomKey::For(uint64_t seed, std::string_view purpose) {
  return {Philox(seed, HashName(purpose)).a};
}
RandomKey RandomKey::With(uint64_t index) const {
  return {Philox(value ^ 0x5851f42d4c957f2dULL, index).b};
}
RandomKey RandomKey::With(std::string_view name) const { return With(HashName(name)); }

uint64_t RandomBits(RandomKey key, uint64_t counter) { return Philox(key.value, counter).a; }

double RandomUniform(RandomKey key, uint64_t counter) {
  return static_cast<double>(RandomBits(key, counter) >> 11) * 0x1.0p-53;
}

uint64_t RandomBelow(RandomKey key, uint64_t counter, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(RandomBits(key, counter)) * bound) >>
                               64);
}

double RandomNormal(RandomKey key, uint64_t counter) {
  const Block block = Philox(key.value, counter);
  // (0, 1]: the logarithm must not see 0.
  const double u = (static_cast<double>(block.a >> 11) + 1.0) * 0x1.0p-53;
  const double v = static_cast<double>(block.b >> 11) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace switchyard
