#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace switchyard::v1 {
class DataSpec;
}

namespace switchyard::data {

enum class Split { kTrain, kValid, kTest };
const char* SplitName(Split split);

// A contiguous stretch of one split's tokens that comes from one domain.
struct DomainRange {
  uint32_t domain = 0;
  uint64_t begin = 0;  // token index
  uint64_t end = 0;
};

struct SplitTokens {
  std::vector<uint32_t> ids;
  // In order, covering all of `ids`.
  std::vector<DomainRange> domains;
  // Of the text that `ids` stand for.
  uint64_t bytes = 0;
  uint64_t chars = 0;  // code points; an ill-formed byte counts as one
  uint64_t words = 0;  // white-space separated; in word mode eos counts too
};

// A whole tokenised data set in memory. Immutable.
struct Corpus {
  uint32_t vocab_size = 0;
  std::vector<std::string> domain_names;  // one, "", when the set has none
  SplitTokens train, valid, test;         // a split the set lacks is empty
  std::vector<uint64_t> train_frequency;  // [vocab_size], for balanced hash tables
  std::string digest;                     // "sha256:..." over content, splits and token mode
  std::string primary_metric;             // "bits_per_byte", "bits_per_token" or "word_ppl"
  // bits_per_byte is defined (one or more bytes per token known); false for txl204.
  bool has_bytes = true;
  bool is_word_level = false;
  std::vector<std::string> notices;  // skipped files and rows, counted and named

  const SplitTokens& split(Split which) const;
};

// kInvalidArgument / kNotFound / kFailedPrecondition with path and reason (spec or data error).
Result<std::unique_ptr<Corpus>> LoadCorpus(const v1::DataSpec& spec);

}  // namespace switchyard::data
