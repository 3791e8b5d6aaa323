#include <utility>

#include "server/search/sampler.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

// Random and Sobol: `cells` points that depend on nothing observed.
class Draws final : public Strategy {
 public:
  explicit Draws(const StrategyInput& input)
      : cells_(input.settings->cells), sampler_(input, input.settings->method == Method::kSobol) {}

  void Propose(uint64_t limit, Actions* actions) override {
    for (uint64_t i = 0; i < limit && !is_exhausted(); ++i) {
      std::optional<Point> point = sampler_.Next();
      if (!point.has_value()) return;
      actions->push_back({.kind = Action::Kind::kPropose,
                          .cell = ++proposed_,
                          .seeds = {},
                          .point = *std::move(point)});
    }
  }
  void Observe(uint64_t, uint64_t, double, Actions*) override {}
  void Finish(uint64_t, const CellEnd&, Actions*) override {}
  bool is_exhausted() const override { return proposed_ >= cells_ || sampler_.gave_up(); }
  bool gave_up() const override { return sampler_.gave_up(); }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(proposed_);
    sampler_.Save(writer);
  }
  void Load(SnapshotReader* reader) override {
    proposed_ = reader->Uint();
    sampler_.Load(reader);
  }

 private:
  const uint64_t cells_;
  Sampler sampler_;
  uint64_t proposed_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> MakeDraws(const StrategyInput& input) {
  return std::make_unique<Draws>(input);
}

}  // namespace switchyard::search
