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

// Tokens of one split laid out in an order of their own, without a copy: runs of consecutive tokens
// one behind the other.
class TokenLayout {
 public:
  explicit TokenLayout(const SplitTokens* split) : split_(split) {}

  void Clear();
  // Appends tokens [begin, end) of the split, all of `domain`.
  void Append(uint64_t begin, uint64_t end, uint32_t domain);
  uint64_t size() const { return size_; }
  uint32_t DomainAt(uint64_t position) const;
  // Appends `count` ids from `position` on to `out`.
  void Copy(uint64_t position, uint64_t count, std::vector<int64_t>* out) const;

 private:
  struct Run {
    uint64_t position = 0;  // of its first token in the layout
    uint64_t source = 0;    // of the same token in the split
    uint32_t domain = 0;
  };
  size_t RunAt(uint64_t position) const;

  const SplitTokens* split_;
  std::vector<Run> runs_;
  uint64_t size_ = 0;
};

// Training order `txl_ordered`: the split's tokens as `batch` contiguous rows, segments of `len`
// walking through them; the next data epoch starts over with memory cleared. What is left of a row
// behind its last whole segment (fewer than `len` tokens) is not used.
//
// A set with several domains is first laid out per data epoch: each domain is cut into blocks of
// 8 * len tokens, kept in order inside; blocks are repeated or dropped by the domain's weight, so
// that a data epoch keeps its length, and all blocks are shuffled by `order_key`. So each row meets
// all domains. One domain is read in its own order.
//
// Deterministic in (corpus, options, cursor); memory beyond the corpus is one entry per block.
class TrainBatcher {
 public:
  struct Options {
    uint32_t batch = 0;
    uint32_t len = 0;
    RandomKey order_key;
  };
  // kInvalidArgument when batch or len is 0 or the training split is too short for one segment a
  // row, with the numbers.
  static Status Validate(const Corpus& corpus, const Options& options);

  // Validate must hold. The corpus must outlive the batcher.
  TrainBatcher(const Corpus& corpus, Options options);
  TokenBatch Next();
  // Of the next batch.
  TrainCursor cursor() const { return cursor_; }
  // Goes to a cursor of an equal batcher: what follows is what followed there.
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
  TokenLayout layout_;
};

// Evaluation order: `batch` contiguous rows of the split (or of one domain's part of it), every
// token but the first of each row scored once, last segment short; nothing is random. At most
// batch - 1 tokens at the end belong to no row. A text shorter than two tokens a row gets fewer
// rows.
class EvalBatcher {
 public:
  struct Options {
    uint32_t batch = 0;
    uint32_t len = 0;
    // Most tokens to lay out, 0: all. Several domains give of their beginnings by their shares.
    uint64_t max_tokens = 0;
    // -1: all domains in order.
    int domain = -1;
  };
  // The split must outlive the batcher.
  EvalBatcher(const SplitTokens& split, Options options);
  // False at the end.
  bool Next(TokenBatch* batch);
  // Tokens scored by the batches given out so far: targets that are not -1.
  uint64_t scored_tokens() const { return scored_; }
  // What scored_tokens will be at the end.
  uint64_t total_scored() const { return row_tokens_ == 0 ? 0 : rows_ * (row_tokens_ - 1); }

 private:
  TokenLayout layout_;
  Options options_;
  uint32_t rows_ = 0;
  uint64_t row_tokens_ = 0;
  uint64_t position_ = 0;
  uint64_t scored_ = 0;
};

}  // namespace switchyard::data
