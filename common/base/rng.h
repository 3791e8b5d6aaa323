#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

// Counter-based random numbers (Philox 4x32-10; Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011): a value is a pure function of (key, counter), so that threads, ranks and
// micro-batch splits change nothing, and a new consumer shifts nobody else's stream.
struct RandomKey {
  uint64_t value = 0;

  // Key of the stream for `purpose` ("init", "data_order", "dropout", "router_noise", ...) under
  // `seed`; equal on every machine.
  static RandomKey For(uint64_t seed, std::string_view purpose);
  // A sub-stream.
  RandomKey With(uint64_t index) const;
  RandomKey With(std::string_view name) const;
};

// 64 uniform random bits at `counter` of the stream.
uint64_t RandomBits(RandomKey key, uint64_t counter);
// Uniform in [0, 1), 53 bits.
double RandomUniform(RandomKey key, uint64_t counter);
// Uniform in [0, bound), bound > 0, without modulo bias worth naming (128-bit multiply).
uint64_t RandomBelow(RandomKey key, uint64_t counter, uint64_t bound);
// Standard normal (Box-Muller on two uniforms of the counter).
double RandomNormal(RandomKey key, uint64_t counter);

}  // namespace switchyard
