#pragma once

#include <cstdint>

namespace switchyard::v1 {
class RunSpec;
enum Tokens : int;
}  // namespace switchyard::v1

namespace switchyard::spec {

// Parameters and FLOPs by the one rule of models.md 2.10: every tensor once
// (tied once), buffers not; forward FLOPs of one token at full length. What a pass computes
// besides, and what train.recompute makes it compute again, is overhead and not counted.
struct Accounting {
  uint64_t params_total = 0;
  uint64_t params_active = 0;
  uint64_t params_router = 0;
  uint64_t params_expert = 0;
  uint64_t params_embedding = 0;
  uint64_t flops_per_token_active = 0;
  bool vocab_known = false;  // false: the vocabulary depends on the data; its part counts as 0
};

// `run` with defaults filled in. `vocab` 0: from the tokens where they fix it (bytes256).
Accounting Account(const v1::RunSpec& run, uint64_t vocab = 0);

// How the run's data becomes token ids; unspecified without a data set.
v1::Tokens TokensOf(const v1::RunSpec& run);

// Vocabulary that the data's tokens fix (bytes256: 256), else 0.
uint64_t VocabFromData(const v1::RunSpec& run);

}  // namespace switchyard::spec
