#include "worker/data/batcher.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard::data {
namespace {

constexpr uint64_t kSegmentsPerBlock = 8;

// Blocks of one domain of the training split, by number.
struct DomainBlocks {
  uint32_t domain = 0;
  double weight = 1.0;
  std::vector<DomainRange> blocks;
  uint64_t tokens = 0;
  uint64_t chosen = 0;  // blocks per data epoch, repetitions counted
};

std::vector<DomainBlocks> BlocksOf(const Corpus& corpus, uint64_t block_tokens) {
  std::vector<DomainBlocks> domains;
  double weighted = 0.0;
  uint64_t total = 0;
  for (const DomainRange& range : corpus.train.domains) {
    auto at = std::find_if(domains.begin(), domains.end(),
                           [&](const DomainBlocks& d) { return d.domain == range.domain; });
    if (at == domains.end()) {
      const double weight =
          range.domain < corpus.domain_weights.size() ? corpus.domain_weights[range.domain] : 1.0;
      at = domains.insert(domains.end(), {.domain = range.domain, .weight = weight});
    }
    for (uint64_t begin = range.begin; begin < range.end; begin += block_tokens) {
      at->blocks.push_back({.domain = range.domain,
                            .begin = begin,
                            .end = std::min(begin + block_tokens, range.end)});
    }
    at->tokens += range.end - range.begin;
    weighted += at->weight * static_cast<double>(range.end - range.begin);
    total += range.end - range.begin;
  }
  for (DomainBlocks& domain : domains) {
    const double repeats = domain.weight * static_cast<double>(total) / weighted;
    const double blocks = std::round(repeats * static_cast<double>(domain.blocks.size()));
    domain.chosen = std::max<uint64_t>(1, static_cast<uint64_t>(blocks));
  }
  return domains;
}

// Tokens that every data epoch has, whichever blocks it repeats or drops.
uint64_t EpochTokens(const Corpus& corpus, uint32_t len) {
  if (corpus.train.domains.size() <= 1) return corpus.train.ids.size();
  uint64_t tokens = 0;
  for (const DomainBlocks& domain : BlocksOf(corpus, len * kSegmentsPerBlock)) {
    const uint64_t whole = domain.chosen / domain.blocks.size();
    tokens += whole * domain.tokens;
    // The rest is drawn anew each epoch: count on the smallest blocks.
    std::vector<uint64_t> sizes;
    for (const DomainRange& block : domain.blocks) sizes.push_back(block.end - block.begin);
    std::sort(sizes.begin(), sizes.end());
    const auto rest = static_cast<std::ptrdiff_t>(domain.chosen % domain.blocks.size());
    tokens = std::accumulate(sizes.begin(), sizes.begin() + rest, tokens);
  }
  return tokens;
}

template <typename T>
void Shuffle(RandomKey key, std::vector<T>* items) {
  for (size_t i = items->size(); i > 1; --i) {
    std::swap((*items)[i - 1], (*items)[RandomBelow(key, i, i)]);
  }
}

}  // namespace

void TokenLayout::Clear() {
  runs_.clear();
  size_ = 0;
}

void TokenLayout::Append(uint64_t begin, uint64_t end, uint32_t domain) {
  if (begin == end) return;
  runs_.push_back({.position = size_, .source = begin, .domain = domain});
  size_ += end - begin;
}

size_t TokenLayout::RunAt(uint64_t position) const {
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), position,
                                     [](uint64_t at, const Run& run) { return at < run.position; });
  return static_cast<size_t>(next - runs_.begin()) - 1;
}

uint32_t TokenLayout::DomainAt(uint64_t position) const { return runs_[RunAt(position)].domain; }

void TokenLayout::Copy(uint64_t position, uint64_t count, std::vector<int64_t>* out) const {
  SWITCHYARD_CHECK(position + count <= size_)
      << "tokens [" << position << ", " << position + count << ") of " << size_;
  for (size_t run = count > 0 ? RunAt(position) : 0; count > 0; ++run) {
    const uint64_t end = run + 1 < runs_.size() ? runs_[run + 1].position : size_;
    const uint64_t taken = std::min(count, end - position);
    const uint32_t* source =
        split_->ids.data() + runs_[run].source + (position - runs_[run].position);
    out->insert(out->end(), source, source + taken);
    position += taken;
    count -= taken;
  }
}

Status TrainBatcher::Validate(const Corpus& corpus, const Options& options) {
  if (options.batch == 0 || options.len == 0) {
    return InvalidArgument(StrCat("training batch ", options.batch, " of length ", options.len,
                                  ", expected both above 0"));
  }
  const uint64_t have = EpochTokens(corpus, options.len);
  const uint64_t need = uint64_t{options.batch} * (uint64_t{options.len} + 1);
  if (have < need) {
    return InvalidArgument(StrCat("the training split has ", have, " tokens, ", options.batch,
                                  " rows with segments of ", options.len, " need at least ", need));
  }
  return OkStatus();
}

TrainBatcher::TrainBatcher(const Corpus& corpus, Options options)
    : corpus_(corpus), options_(options), layout_(&corpus.train) {
  const Status valid = Validate(corpus, options);
  SWITCHYARD_CHECK(valid.ok()) << valid.ToString();
  row_tokens_ = EpochTokens(corpus, options.len) / options.batch;
  segments_per_epoch_ = (row_tokens_ - 1) / options.len;
}

void TrainBatcher::Seek(TrainCursor cursor) {
  cursor.data_epoch += cursor.segment / segments_per_epoch_;
  cursor.segment %= segments_per_epoch_;
  cursor_ = cursor;
}

void TrainBatcher::PrepareEpoch() {
  if (prepared_epoch_ == cursor_.data_epoch) return;
  const bool has_order = corpus_.train.domains.size() > 1;
  if (!has_order && prepared_epoch_ != ~uint64_t{0}) {
    prepared_epoch_ = cursor_.data_epoch;
    return;
  }
  prepared_epoch_ = cursor_.data_epoch;
  layout_.Clear();
  if (!has_order) {
    layout_.Append(0, corpus_.train.ids.size(),
                   corpus_.train.domains.empty() ? 0 : corpus_.train.domains.front().domain);
    return;
  }
  const RandomKey key = options_.order_key.With(cursor_.data_epoch);
  std::vector<DomainRange> chosen;
  for (DomainBlocks& domain : BlocksOf(corpus_, options_.len * kSegmentsPerBlock)) {
    const uint64_t count = domain.blocks.size();
    if (domain.chosen % count != 0) Shuffle(key.With(uint64_t{domain.domain} + 1), &domain.blocks);
    for (uint64_t i = 0; i < domain.chosen; ++i) chosen.push_back(domain.blocks[i % count]);
  }
  Shuffle(key, &chosen);
  for (const DomainRange& block : chosen) layout_.Append(block.begin, block.end, block.domain);
}

TokenBatch TrainBatcher::Next() {
  PrepareEpoch();
  TokenBatch batch{
      .rows = options_.batch, .len = options_.len, .starts_afresh = cursor_.segment == 0};
  batch.inputs.reserve(size_t{batch.rows} * batch.len);
  batch.targets.reserve(size_t{batch.rows} * batch.len);
  for (uint32_t row = 0; row < batch.rows; ++row) {
    const uint64_t position = row * row_tokens_ + cursor_.segment * batch.len;
    layout_.Copy(position, batch.len, &batch.inputs);
    layout_.Copy(position + 1, batch.len, &batch.targets);
    batch.domains.push_back(layout_.DomainAt(position + 1));
  }
  Seek({.data_epoch = cursor_.data_epoch, .segment = cursor_.segment + 1});
  return batch;
}

EvalBatcher::EvalBatcher(const SplitTokens& split, Options options)
    : layout_(&split), options_(options) {
  SWITCHYARD_CHECK(options.batch > 0 && options.len > 0)
      << "evaluation batch " << options.batch << " of length " << options.len;
  std::vector<DomainRange> ranges;
  uint64_t total = 0;
  for (const DomainRange& range : split.domains) {
    if (options.domain >= 0 && range.domain != static_cast<uint32_t>(options.domain)) continue;
    if (range.begin == range.end) continue;
    ranges.push_back(range);
    total += range.end - range.begin;
  }
  const uint64_t wanted = options.max_tokens == 0 ? total : std::min(total, options.max_tokens);
  uint64_t before = 0;
  uint64_t given = 0;
  for (const DomainRange& range : ranges) {
    before += range.end - range.begin;
    // By running sums, so that rounding loses nothing over all.
    const auto until =
        static_cast<uint64_t>(static_cast<unsigned __int128>(wanted) * before / total);
    layout_.Append(range.begin, range.begin + (until - given), range.domain);
    given = until;
  }
  rows_ =
      static_cast<uint32_t>(std::clamp<uint64_t>(layout_.size() / 2, 1, uint64_t{options.batch}));
  row_tokens_ = layout_.size() < 2 ? 0 : layout_.size() / rows_;
}

bool EvalBatcher::Next(TokenBatch* batch) {
  if (row_tokens_ == 0 || position_ + 1 >= row_tokens_) return false;
  const uint64_t len = std::min<uint64_t>(options_.len, row_tokens_ - 1 - position_);
  *batch = {.rows = rows_, .len = static_cast<uint32_t>(len), .starts_afresh = position_ == 0};
  for (uint32_t row = 0; row < rows_; ++row) {
    const uint64_t position = row * row_tokens_ + position_;
    layout_.Copy(position, len, &batch->inputs);
    layout_.Copy(position + 1, len, &batch->targets);
    batch->domains.push_back(layout_.DomainAt(position + 1));
  }
  position_ += len;
  scored_ += rows_ * len;
  return true;
}

}  // namespace switchyard::data
