#include "server/search/sampler.h"

namespace switchyard::search {

Sampler::Sampler(const StrategyInput& input, bool is_sobol, uint64_t stream)
    : space_(*input.space), allowed_(*input.allowed) {
  const RandomKey key = RandomKey::For(input.settings->seed, "search/draw").With(stream);
  for (const Dimension& dimension : space_.dimensions) keys_.push_back(key.With(dimension.name));
  if (is_sobol) {
    sobol_.emplace(space_.dimensions.size(), RandomKey::For(input.settings->seed, "search/sobol"));
  }
}

std::optional<Point> Sampler::Next() {
  for (uint64_t redraw = 0; redraw < kRedrawsMax && !gave_up_; ++redraw) {
    const uint64_t draw = draws_++;
    Point point = space_.At([&](size_t d) {
      return sobol_.has_value() ? sobol_->At(d, draw) : RandomUniform(keys_[d], draw);
    });
    if (allowed_(point)) return point;
  }
  gave_up_ = true;
  return std::nullopt;
}

void Sampler::Save(SnapshotWriter* writer) const {
  writer->Uint(draws_);
  writer->Bool(gave_up_);
}

void Sampler::Load(SnapshotReader* reader) {
  draws_ = reader->Uint();
  gave_up_ = reader->Bool();
}

}  // namespace switchyard::search
