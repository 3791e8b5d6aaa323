#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

// Somebody else chooses: points arrive by Search::Tell, which numbers them with the cells of this
// strategy's only arm.
class External final : public Strategy {
 public:
  void Propose(uint64_t, Actions*) override {}
  void Observe(uint64_t, uint64_t, double, Actions*) override {}
  void Finish(uint64_t, const CellEnd&, Actions*) override {}
  // Search knows when the outside has closed it.
  bool is_exhausted() const override { return true; }
  void Save(SnapshotWriter*) const override {}
  void Load(SnapshotReader*) override {}
};

}  // namespace

std::unique_ptr<Strategy> MakeExternal(const StrategyInput&) {
  return std::make_unique<External>();
}

}  // namespace switchyard::search
