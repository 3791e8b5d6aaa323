#include "worker/data/batcher.h"

#include <array>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tokens 0, 1, 2, ... so that an id tells its place; domains of the given sizes.
SplitTokens Counting(const std::vector<uint64_t>& domain_sizes) {
  SplitTokens split;
  for (size_t domain = 0; domain < domain_sizes.size(); ++domain) {
    const uint64_t begin = split.ids.size();
    for (uint64_t i = 0; i < domain_sizes[domain]; ++i) {
      split.ids.push_back(static_cast<uint32_t>(split.ids.size()));
    }
    split.domains.push_back({static_cast<uint32_t>(domain), begin, split.ids.size()});
  }
  return split;
}

Corpus MakeCorpus(const std::vector<uint64_t>& domain_sizes, std::vector<double> weights = {}) {
  Corpus corpus;
  corpus.train = Counting(domain_sizes);
  weights.resize(domain_sizes.size(), 1.0);
  corpus.domain_weights = weights;
  return corpus;
}

TrainBatcher::Options Training(uint32_t batch, uint32_t len, uint64_t seed = 0) {
  return {.batch = batch, .len = len, .order_key = RandomKey::For(seed, "data_order")};
}

// Rows are contiguous chunks of the corpus and segments walk through them; targets are the next
// token; memory is cleared at the start of each data epoch only.
TEST(TrainBatcher, WalksThroughContiguousRows) {
  const Corpus corpus = MakeCorpus({23});
  TrainBatcher batcher(corpus, Training(2, 5));
  EXPECT_EQ(batcher.segments_per_epoch(), 2U);  // rows of 11, 10 targets
  TokenBatch batch = batcher.Next();
  EXPECT_TRUE(batch.starts_afresh);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 3, 4, 11, 12, 13, 14, 15));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 12, 13, 14, 15, 16));
  batch = batcher.Next();
  EXPECT_FALSE(batch.starts_afresh);
  EXPECT_THAT(batch.inputs, ElementsAre(5, 6, 7, 8, 9, 16, 17, 18, 19, 20));
  EXPECT_EQ(batcher.cursor().data_epoch, 1U);
  EXPECT_EQ(batcher.cursor().segment, 0U);
  batch = batcher.Next();
  EXPECT_TRUE(batch.starts_afresh);
  EXPECT_EQ(batch.inputs.front(), 0);
}

// A batcher of the same key that seeks to a cursor gives exactly the batches that were left (DT-7),
// across the end of a data epoch too.
TEST(TrainBatcher, ResumesWithTheSameRemainingBatches) {
  for (const std::vector<uint64_t>& sizes : {std::vector<uint64_t>{1000}, {700, 40, 333}}) {
    const Corpus corpus = MakeCorpus(sizes);
    TrainBatcher whole(corpus, Training(3, 4));
    for (int i = 0; i < 17; ++i) whole.Next();
    TrainBatcher resumed(corpus, Training(3, 4));
    resumed.Seek(whole.cursor());
    for (uint64_t i = 0; i < 2 * whole.segments_per_epoch(); ++i) {
      EXPECT_EQ(whole.cursor().segment, resumed.cursor().segment);
      const TokenBatch a = whole.Next();
      const TokenBatch b = resumed.Next();
      ASSERT_EQ(a.inputs, b.inputs);
      ASSERT_EQ(a.targets, b.targets);
      ASSERT_EQ(a.domains, b.domains);
      ASSERT_EQ(a.starts_afresh, b.starts_afresh);
    }
  }
}

// With several domains each row meets all of them, blocks stay in order inside, and with equal
// weights no token comes twice in a data epoch.
TEST(TrainBatcher, MixesDomainsInEachRow) {
  const Corpus corpus = MakeCorpus({8000, 8000, 4000});
  TrainBatcher batcher(corpus, Training(2, 8));
  std::map<uint32_t, std::map<uint32_t, int>> segments;  // row -> domain -> count
  std::set<int64_t> seen;
  for (uint64_t i = 0; i < batcher.segments_per_epoch(); ++i) {
    const TokenBatch batch = batcher.Next();
    for (uint32_t row = 0; row < batch.rows; ++row) ++segments[row][batch.domains[row]];
    for (const int64_t id : batch.inputs) EXPECT_TRUE(seen.insert(id).second) << id;
  }
  for (const auto& [row, domains] : segments) {
    EXPECT_EQ(domains.size(), 3U) << row;
    for (const auto& [domain, count] : domains) EXPECT_GT(count, 10) << row << " " << domain;
  }
  // All but the rows' tails.
  EXPECT_GE(seen.size(), 20000U - 2 * 9);
}

// LT1: order differs between data epochs and keys, and is the same for the same key.
TEST(TrainBatcher, ShufflesByKeyAndEpoch) {
  const Corpus corpus = MakeCorpus({3000, 3000});
  TrainBatcher a(corpus, Training(1, 4, 1));
  TrainBatcher same(corpus, Training(1, 4, 1));
  TrainBatcher other(corpus, Training(1, 4, 2));
  const auto epoch = [](TrainBatcher& batcher) {
    std::vector<int64_t> ids;
    for (uint64_t i = 0; i < batcher.segments_per_epoch(); ++i) {
      const TokenBatch batch = batcher.Next();
      ids.insert(ids.end(), batch.inputs.begin(), batch.inputs.end());
    }
    return ids;
  };
  const auto first = epoch(a);
  EXPECT_EQ(first, epoch(same));
  EXPECT_NE(first, epoch(other));
  EXPECT_NE(first, epoch(a));
}

// A weight of three against one shows each token of that domain three times as often, and the data
// epoch keeps its length.
TEST(TrainBatcher, WeighsDomainsByRepetition) {
  const Corpus corpus = MakeCorpus({16000, 16000}, {3.0, 1.0});
  TrainBatcher batcher(corpus, Training(1, 10));
  EXPECT_NEAR(static_cast<double>(batcher.segments_per_epoch()), 3200.0, 16.0);
  uint64_t first = 0;
  for (uint64_t i = 0; i < batcher.segments_per_epoch(); ++i) {
    for (const int64_t id : batcher.Next().inputs) first += id < 16000 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(first), 24000.0, 160.0);  // two blocks
}

// A split too short for the batch is refused with the numbers instead of a crash at the first step.
TEST(TrainBatcher, RefusesATooShortSplit) {
  const Corpus corpus = MakeCorpus({11});
  EXPECT_EQ(TrainBatcher::Validate(corpus, Training(2, 4)), OkStatus());
  const Status refused = TrainBatcher::Validate(corpus, Training(2, 5));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("has 11 tokens, 2 rows with segments of 5 need at least 12"));
  EXPECT_EQ(TrainBatcher::Validate(corpus, Training(0, 5)).code(), Code::kInvalidArgument);
}

// Scored tokens are batch * (tokens / batch - 1) and each is a target once (DT-7), whatever the
// length of the segments; the last one is short.
TEST(EvalBatcher, ScoresEachTokenButTheFirstOfEachRowOnce) {
  const SplitTokens split = Counting({1003});
  for (const uint32_t batch : {1U, 4U, 10U}) {
    for (const uint32_t len : {1U, 7U, 64U, 5000U}) {
      EvalBatcher batcher(split, {.batch = batch, .len = len});
      std::set<int64_t> targets;
      TokenBatch got;
      bool is_first = true;
      while (batcher.Next(&got)) {
        EXPECT_EQ(got.starts_afresh, is_first);
        is_first = false;
        EXPECT_EQ(got.rows, batch);
        EXPECT_LE(got.len, len);
        ASSERT_EQ(got.inputs.size(), size_t{got.rows} * got.len);
        for (size_t i = 0; i < got.inputs.size(); ++i) {
          EXPECT_EQ(got.targets[i], got.inputs[i] + 1);
          EXPECT_TRUE(targets.insert(got.targets[i]).second);
        }
      }
      EXPECT_EQ(batcher.scored_tokens(), batch * (1003 / batch - 1));
      EXPECT_EQ(batcher.total_scored(), batcher.scored_tokens());
      EXPECT_EQ(targets.size(), batcher.scored_tokens());
    }
  }
}

// 1,000 tokens in one row score 999, at any segment length (TX1).
TEST(EvalBatcher, Scores999Of1000InOneRow) {
  const SplitTokens split = Counting({1000});
  for (const uint32_t len : {7U, 64U, 1000U}) {
    EvalBatcher batcher(split, {.batch = 1, .len = len});
    TokenBatch batch;
    while (batcher.Next(&batch)) {
    }
    EXPECT_EQ(batcher.scored_tokens(), 999U);
  }
}

// One domain alone is evaluated on its own part (DT-9), and rows know their domain.
TEST(EvalBatcher, KeepsToOneDomain) {
  const SplitTokens split = Counting({50, 70});
  EvalBatcher batcher(split, {.batch = 2, .len = 10, .domain = 1});
  TokenBatch batch;
  while (batcher.Next(&batch)) {
    EXPECT_THAT(batch.domains, ElementsAre(1, 1));
    EXPECT_THAT(batch.inputs, Each(::testing::Ge(50)));
  }
  EXPECT_EQ(batcher.scored_tokens(), 68U);
  EvalBatcher all(split, {.batch = 2, .len = 100});
  ASSERT_TRUE(all.Next(&batch));
  EXPECT_THAT(batch.domains, ElementsAre(0, 1));
  EvalBatcher absent(split, {.batch = 2, .len = 10, .domain = 7});
  EXPECT_FALSE(absent.Next(&batch));
}

// A limit takes of each domain by its share: the first domain alone would not stand for the set.
TEST(EvalBatcher, TakesOfAllDomainsUnderALimit) {
  const SplitTokens split = Counting({300, 100});
  EvalBatcher batcher(split, {.batch = 1, .len = 1000, .max_tokens = 40});
  TokenBatch batch;
  ASSERT_TRUE(batcher.Next(&batch));
  EXPECT_EQ(batch.inputs.size(), 39U);
  EXPECT_EQ(batch.inputs[29], 29);
  EXPECT_EQ(batch.inputs[30], 300);
}

// Texts shorter than the batch give fewer rows, down to none.
TEST(EvalBatcher, TakesTinyTexts) {
  TokenBatch batch;
  for (const auto& [tokens, rows, scored] :
       std::vector<std::array<uint64_t, 3>>{{0, 0, 0}, {1, 0, 0}, {2, 1, 1}, {5, 2, 2}}) {
    const SplitTokens split = Counting({tokens});
    EvalBatcher batcher(split, {.batch = 10, .len = 4});
    uint64_t seen = 0;
    while (batcher.Next(&batch)) seen = batch.rows;
    EXPECT_EQ(seen, rows) << tokens;
    EXPECT_EQ(batcher.scored_tokens(), scored) << tokens;
  }
}

}  // namespace
}  // namespace switchyard::data
