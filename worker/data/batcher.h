#pragma once

#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "worker/data/corpus.h"

namespace switchyard::data {

// Token ids of one batch, row-major [rows, len]; targets are shifted by one; target -1 is not
// scored.
struct TokenBatch {
  uint32_t rows = 0;
  uint32_t len = 0;
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
  std::vector<uint32_t> domains;  // [rows], domain of each row's first target
  bool starts_afresh = false;     // memory must be cleared before this batch
};

// Where a TrainBatcher stands; part of a checkpoint.
struct TrainCursor {
  uint64_t data_epoch = 0;
  uint64_t segment = 0;
};

// Training order `txl_ordered`: the split's tokens as `batch` contiguous rows, segments of `len`
// walking through them; the next data epoch starts over with memory cleared. Rows of a set with
// several domains: the records are laid out in an order drawn from `order_key` per data epoch, by
// weight, so that each row meets all domains. Deterministic in (corpus, key, cursor).
class TrainBatcher {
 public:
  struct Options {
    uint32_t batch = 0;
    uint32_t len = 0;
    RandomKey order_key;
  };
  // The corpus must outlive the batcher.
  TrainBatcher(const Corpus& corpus, Options options);
  TokenBatch Next();
  TrainCursor cursor() const { return cursor_; }
  void Seek(TrainCursor cursor);
  uint64_t segments_per_epoch() const { return segments_per_epoch_; }

 private:
  void PrepareEpoch();

  const Corpus& corpus_;
  Options options_;
  TrainCursor cursor_;
  uint64_t segments_per_epoch_ = 0;
  uint64_t row_tokens_ = 0;
  uint64_t prepared_epoch_ = ~uint64_t{0};
  std::vector<uint32_t> order_;  // this epoch's tokens where they are not the corpus' own
};

// Evaluation order: `batch` contiguous rows of the split (or of one domain's part of it), every
// token but the first of each row scored once, last segment short; nothing is random.
class EvalBatcher {
 public:
  struct Options {
    uint32_t batch = 0;
    uint32_t len = 0;
    // 0: all.
    uint64_t max_tokens = 0;
    // -1: all domains in order.
    int domain = -1;
  };
  EvalBatcher(const SplitTokens& split, Options options);
  // False at the end.
  bool Next(TokenBatch* batch);
  uint64_t scored_tokens() const { return scored_; }

 private:
  std::vector<uint32_t> ids_;
  Options options_;
  uint64_t row_tokens_ = 0;
  uint64_t position_ = 0;
  uint64_t scored_ = 0;
};

}  // namespace switchyard::data
