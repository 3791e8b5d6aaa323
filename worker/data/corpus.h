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
  // Runs of bytes between ASCII white space; in word mode eos counts too. In word mode the text is
  // the one without byte order marks and CRs.
  uint64_t words = 0;
};

// A whole tokenised data set in memory. Immutable.
struct Corpus {
  uint32_t vocab_size = 0;
  std::vector<std::string> domain_names;  // one, "", when the set has none
  // [domains], > 0. How often training sees a domain's text, relative to the other domains: equal
  // weights show each token once per data epoch, a weight twice another's shows that domain's
  // tokens twice as often.
  std::vector<double> domain_weights;
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

// Reads and tokenises what `spec` names; fields that are absent mean their defaults. Errors carry
// path and reason: kInvalidArgument (the spec, or text that its token mode cannot read), kNotFound,
// kPermissionDenied, kDataLoss (damaged gzip), kResourceExhausted (a limit), kFailedPrecondition
// (digest or row count differ from what the spec wants).
//
// `files`: the records of a domain (a file, or a row's `text`) are ordered by a hash of split seed,
// path as matched, and row. record_order cuts that sequence where train, valid and test have their
// shares of the bytes: a record goes to the split that holds its middle byte, and a split whose
// share is not zero gets at least one record while there are enough. record_hash sends each record
// to a split by its hash alone. No record is ever divided between splits, and a file that several
// names lead to (links) is taken once, under the first name in byte order. Records follow each
// other without a separator.
//
// `enwik8`: the bytes in their order, shares 90/5/5 by bytes; `txl204` leaves newlines out after
// the split. Vocabularies of `bytes205` and `txl204` are counted over all three splits, those of
// `word` over train; ids by falling frequency, equal ones in the order of their first appearance,
// `<eos>` always 0.
Result<std::unique_ptr<Corpus>> LoadCorpus(const v1::DataSpec& spec);

}  // namespace switchyard::data
