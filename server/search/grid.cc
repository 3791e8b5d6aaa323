
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

// Every combination of the values of categorical and stepped dimensions, the last one fastest.
class Grid final : public Strategy {
 public:
  explicit Grid(const StrategyInput& input) : space_(*input.space), allowed_(*input.allowed) {}

  void Propose(uint64_t limit, Actions* actions) override {
    for (uint64_t made = 0; made < limit && !is_done_;) {
      is_done_ = !Advance();
      if (is_done_ || !allowed_(point_)) continue;
      ++made;
      actions->push_back(
          {.kind = Action::Kind::kPropose, .cell = ++cells_, .seeds = {}, .point = point_});
    }
  }
  void Observe(uint64_t, uint64_t, double, Actions*) override {}
  void Finish(uint64_t, const CellEnd&, Actions*) override {}
  bool is_exhausted() const override { return is_done_; }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(cells_);
    writer->Bool(has_started_);
    writer->Bool(is_done_);
    writer->Put(point_);
  }
  void Load(SnapshotReader* reader) override {
    cells_ = reader->Uint();
    has_started_ = reader->Bool();
    is_done_ = reader->Bool();
    point_ = reader->TakePoint();
  }

 private:
  // Sets `point_` to the next combination; false when there is none.
  bool Advance() {
    const auto& dimensions = space_.dimensions;
    size_t from = 0;
    if (!has_started_) {
      has_started_ = true;
      point_.resize(dimensions.size());
    } else {
      size_t i = dimensions.size();
      bool moved = false;
      while (!moved && i > 0) {
        --i;
        const Dimension& d = dimensions[i];
        if (!point_[i].has_value() || d.fixed.has_value()) continue;
        const uint64_t next = IndexOf(d, *point_[i]) + 1;
        moved = next < ValueCount(d);
        if (moved) point_[i] = ValueAt(d, next);
      }
      if (!moved) return false;
      from = i + 1;
    }
    for (size_t i = from; i < dimensions.size(); ++i) {
      point_[i].reset();
      if (space_.Exists(i, point_)) {
        point_[i] = dimensions[i].fixed.value_or(ValueAt(dimensions[i], 0));
      }
    }
    return true;
  }

  static uint64_t IndexOf(const Dimension& d, double value) {
    if (d.kind == DimensionKind::kCategorical) return static_cast<uint64_t>(value);
    const double step = d.step > 0 ? d.step : 1.0;
    return static_cast<uint64_t>((value - d.low) / step + 0.5);
  }

  const Space& space_;
  const Predicate& allowed_;
  uint64_t cells_ = 0;
  bool has_started_ = false;
  bool is_done_ = false;
  Point point_;
};

}  // namespace

std::unique_ptr<Strategy> MakeGrid(const StrategyInput& input) {
  return std::make_unique<Grid>(input);
}

}  // namespace switchyard::search
