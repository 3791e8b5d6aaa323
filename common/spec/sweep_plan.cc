#include "common/spec/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/constraint.h"
#include "common/spec/path.h"
#include "common/spec/policy.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/unused.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kCellFaultsMax = 100;

// One cell, resolved but for its seed.
struct Cell {
  pb::RunSpec run;
  pb::PolicySpec policy;
  std::vector<UnusedField> dropped;
};

std::string RouterOf(const pb::RunSpec& run) {
  const ExpressionValue kind = ReadAt(run, "model.moe.router.kind");
  const std::string* name = std::get_if<std::string>(&kind);
  return name == nullptr ? "dense" : *name;
}

// At the lower end of every distribution.
Point ExamplePoint(const Space& space) {
  Point point = PointAt(space, 0);
  for (Coordinate& coordinate : point) {
    if (coordinate.axis->is_distribution()) coordinate.number = coordinate.axis->low;
  }
  return point;
}

// What is wrong in cells, each thing once, with the first cell that has it.
class CellFaults {
 public:
  explicit CellFaults(const SweepLayout& layout) : layout_(layout) {}

  void Add(const Point& point, const std::vector<Fault>& found) {
    for (const Fault& fault : found) {
      const auto key = std::pair(fault.path, fault.message);
      const auto [at, is_new] = seen_.emplace(key, Seen{});
      if (is_new) {
        at->second.first_cell = Describe(point);
        order_.push_back(key);
      }
      ++at->second.count;
    }
    ++checked_;
  }

  uint64_t checked() const { return checked_; }

  void Report(std::vector<Fault>* faults) {
    for (const auto& key : order_) {
      if (faults->size() >= kCellFaultsMax) break;
      const Seen& where = seen_[key];
      std::string message = key.second;
      if (where.count < checked_ && !where.first_cell.empty()) {
        message += StrCat(" (where ", where.first_cell);
        if (where.count > 1)
          message += StrCat(", and in ", where.count - 1, " more of ", checked_, " cells checked");
        message += ")";
      }
      faults->push_back({"", key.first, std::move(message)});
    }
  }

 private:
  struct Seen {
    std::string first_cell;
    uint64_t count = 0;
  };

  // "train.steps=10, model.moe.router.kind=hash".
  std::string Describe(const Point& point) const {
    std::string text;
    for (const auto& [axis, value] : layout_.Columns(point)) {
      text += StrCat(text.empty() ? "" : ", ", axis, "=", EscapeForTerminal(value));
    }
    return text;
  }

  const SweepLayout& layout_;
  std::map<std::pair<std::string, std::string>, Seen> seen_;  // path, message -> where
  std::vector<std::pair<std::string, std::string>> order_;
  uint64_t checked_ = 0;
};

}  // namespace

struct SweepPlan::Impl {
  std::shared_ptr<const SweepLayout> layout;
  std::vector<std::string> axis_names;
  std::vector<Dimension> dimensions;
  bool is_constrained = false;
  std::vector<uint32_t> kept;  // constrained: cells before constraints, by cell after them

  uint64_t cells() const { return is_constrained ? kept.size() : layout->cell_count(); }
  Point PointOf(uint64_t cell_index) const {
    if (layout->is_drawn()) return ExamplePoint(layout->space());
    return PointAt(layout->space(), is_constrained ? kept[cell_index] : cell_index);
  }
  void Resolve(const Point& point, Cell* cell, std::vector<Fault>* faults) const;
  void Constrain(std::vector<Fault>* faults);
  void CheckCells(uint64_t cells_checked, std::vector<Fault>* faults) const;
  PlannedRun Make(const Point& point, std::vector<Fault>* faults) const;
  uint64_t SeedOf(uint64_t seed, uint64_t cell) const {
    if (layout->is_paired()) return seed;
    // 63 bits: what every store and language that meets it holds.
    return RandomBits(RandomKey::For(seed, "replicate").With(cell), 0) >> 1;
  }
};

void SweepPlan::Impl::Resolve(const Point& point, Cell* cell, std::vector<Fault>* faults) const {
  const size_t faults_before = faults->size();
  layout->Lay(point, &cell->run, &cell->policy, faults);
  if (faults->size() != faults_before) return;
  cell->dropped = DropUnused(&cell->run);
  for (const UnusedField& field : cell->dropped) {
    if (layout->IsLaid(point, field.path)) {
      faults->push_back({"", field.path, StrCat("is set but has no effect: ", field.reason)});
    }
  }
  FillDefaults(&cell->run);
  FillPolicyDefaults(&cell->policy);
  for (Fault& fault : ValidateRun(cell->run)) faults->push_back(std::move(fault));
  for (Fault& fault : ValidatePolicy(cell->policy)) faults->push_back(std::move(fault));
}

void SweepPlan::Impl::Constrain(std::vector<Fault>* faults) {
  is_constrained = HasConstraints(layout->space()) && !layout->is_drawn();
  if (!is_constrained) return;
  for (uint64_t cell = 0; cell < layout->cell_count(); ++cell) {
    const Result<bool> is_allowed = IsAllowed(*layout, PointAt(layout->space(), cell), faults);
    if (!is_allowed.ok()) return;
    if (*is_allowed) kept.push_back(static_cast<uint32_t>(cell));
  }
  if (kept.empty()) {
    faults->push_back({"", layout->space_path() + ".constraints",
                       StrCat("drop all of the ", layout->cell_count(), " cells")});
  }
}

// All cells where there are few, else those that differ from the first in one axis, and the
// combinations of the axes that decide which fields have a use.
void SweepPlan::Impl::CheckCells(uint64_t cells_checked, std::vector<Fault>* faults) const {
  CellFaults cell_faults(*layout);
  std::map<std::string, std::pair<std::string, uint64_t>> dropped;  // path -> reason, cells
  const auto check = [&](uint64_t index) {
    const Point point = PointOf(index);
    Cell cell;
    std::vector<Fault> found;
    Resolve(point, &cell, &found);
    cell_faults.Add(point, found);
    std::set<std::string> paths;
    for (const UnusedField& field : cell.dropped) {
      paths.insert(field.path);
      auto& [reason, count] = dropped[field.path];
      reason = field.reason;
      ++count;
    }
    return paths;
  };

  bool are_all_uses_seen = true;
  if (cells() <= cells_checked) {
    for (uint64_t cell = 0; cell < cells(); ++cell) check(cell);
  } else if (is_constrained) {
    // Which cells are left follows no pattern: evenly through them.
    are_all_uses_seen = false;
    const uint64_t stride = cells() / std::max<uint64_t>(cells_checked, 1) + 1;
    for (uint64_t cell = 0; cell < cells(); cell += stride) check(cell);
  } else {
    // Each axis, with the axes of its alternatives, is a digit of the cell's number.
    struct Digit {
      uint64_t count = 1;
      uint64_t stride = 1;
      uint64_t checked = 1;  // the product of an alternative's axes may be large
    };
    std::vector<Digit> digits(layout->space().axes.size());
    uint64_t stride = 1;
    for (size_t i = digits.size(); i-- > 0;) {
      Space alone;
      alone.axes.push_back(layout->space().axes[i]);
      digits[i] = {.count = CountCells(alone).value_or(1), .stride = stride};
      const bool is_choice = alone.axes.front().kind == AxisKind::kChoice;
      digits[i].checked = is_choice ? std::min(digits[i].count, cells_checked) : digits[i].count;
      stride *= digits[i].count;
    }
    const std::set<std::string> first = check(0);
    std::vector<Digit> deciding;
    uint64_t combinations = 1;
    for (const Digit& digit : digits) {
      bool is_deciding = false;
      for (uint64_t k = 1; k < digit.checked; ++k) {
        is_deciding |= check(k * digit.stride) != first;
      }
      are_all_uses_seen &= digit.checked == digit.count;
      if (!is_deciding) continue;
      deciding.push_back(digit);
      combinations *= digit.count;  // bounded by the number of cells
    }
    are_all_uses_seen &= combinations <= cells_checked;
    if (are_all_uses_seen && deciding.size() > 1) {
      for (uint64_t k = 0; k < combinations; ++k) {
        uint64_t rest = k;
        uint64_t cell = 0;
        for (const Digit& digit : deciding) {
          cell += rest % digit.count * digit.stride;
          rest /= digit.count;
        }
        check(cell);
      }
    }
  }
  cell_faults.Report(faults);
  if (!faults->empty() || !are_all_uses_seen || layout->is_drawn()) return;
  for (const auto& [path, use] : dropped) {
    // A preset may hold what a run built on it has no use for.
    if (use.second == cell_faults.checked() && layout->IsWritten(path)) {
      faults->push_back({"", path, StrCat("is set but has no effect in any cell: ", use.first)});
    }
  }
}

PlannedRun SweepPlan::Impl::Make(const Point& point, std::vector<Fault>* faults) const {
  PlannedRun planned;
  planned.columns = layout->Columns(point);
  Cell cell;
  Resolve(point, &cell, faults);
  for (const UnusedField& field : cell.dropped) {
    planned.notices.push_back(StrCat(field.path, " is dropped: ", field.reason));
  }
  planned.router = RouterOf(cell.run);
  planned.run = std::make_unique<pb::RunSpec>(std::move(cell.run));
  planned.policy = std::make_unique<pb::PolicySpec>(std::move(cell.policy));
  return planned;
}

SweepPlan::SweepPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SweepPlan::~SweepPlan() = default;

std::unique_ptr<SweepPlan> SweepPlan::Make(const pb::SweepSpec& sweep, std::vector<Fault>* faults,
                                           uint64_t cells_checked) {
  return CheckStages(sweep, faults, cells_checked);
}

std::unique_ptr<SweepPlan> SweepPlan::FromLayout(std::shared_ptr<const SweepLayout> layout,
                                                 std::vector<Fault>* faults,
                                                 uint64_t cells_checked) {
  std::vector<Fault> found;
  auto impl = std::make_unique<Impl>();
  impl->layout = std::move(layout);
  impl->axis_names = impl->layout->AxisNames();
  impl->dimensions = Dimensions(impl->layout->space());
  impl->Constrain(&found);
  if (found.empty()) impl->CheckCells(cells_checked, &found);
  if (found.empty()) return std::unique_ptr<SweepPlan>(new SweepPlan(std::move(impl)));
  faults->insert(faults->end(), found.begin(), found.end());
  return nullptr;
}

uint64_t SweepPlan::cell_count() const { return impl_->cells(); }
uint64_t SweepPlan::run_count() const { return impl_->cells() * seeds().size(); }
const std::vector<std::string>& SweepPlan::axes() const { return impl_->axis_names; }
const std::vector<uint64_t>& SweepPlan::seeds() const { return impl_->layout->seeds(); }
bool SweepPlan::is_drawn() const { return impl_->layout->is_drawn(); }
uint64_t SweepPlan::drawn_cells() const { return impl_->layout->drawn_cells(); }
const std::vector<Dimension>& SweepPlan::dimensions() const { return impl_->dimensions; }
const std::shared_ptr<const SweepLayout>& SweepPlan::layout() const { return impl_->layout; }
Point SweepPlan::PointOf(uint64_t cell) const { return impl_->PointOf(cell - 1); }

std::optional<uint64_t> SweepPlan::DistinctRuns(uint64_t cells_max) const {
  if (is_drawn() || cell_count() > cells_max) return std::nullopt;
  std::set<std::string> keys;
  std::vector<Fault> faults;
  for (uint64_t cell = 1; cell <= cell_count(); ++cell) {
    const PlannedRun planned = At(cell, &faults);
    if (planned.run == nullptr) return std::nullopt;
    if (!impl_->layout->is_paired()) continue;
    keys.insert(planned.run_key);
  }
  // Derived seeds differ from cell to cell.
  const uint64_t distinct = impl_->layout->is_paired() ? keys.size() : cell_count();
  return distinct * seeds().size();
}

PlannedRun SweepPlan::At(uint64_t number, std::vector<Fault>* faults) const {
  PlannedRun planned;
  planned.number = number;
  if (is_drawn()) {
    faults->push_back({"", "", "the cells of this sweep are proposed by its strategy"});
    return planned;
  }
  if (number == 0 || number > run_count()) {
    faults->push_back({"", "", StrCat("run ", number, " is not between 1 and ", run_count())});
    return planned;
  }
  const uint64_t cell_index = (number - 1) % cell_count();
  planned = impl_->Make(impl_->PointOf(cell_index), faults);
  planned.number = number;
  planned.cell = cell_index + 1;
  planned.seed = impl_->SeedOf(seeds()[(number - 1) / cell_count()], planned.cell);
  planned.run->set_seed(planned.seed);
  planned.run_key = RunKey(*planned.run);
  return planned;
}

PlannedRun SweepPlan::Example(std::vector<Fault>* faults) const {
  if (!is_drawn()) return At(1, faults);
  PlannedRun planned = impl_->Make(impl_->PointOf(0), faults);
  planned.number = 1;
  planned.cell = 1;
  planned.seed = impl_->SeedOf(seeds().front(), 1);
  planned.run->set_seed(planned.seed);
  planned.run_key = RunKey(*planned.run);
  return planned;
}

Result<bool> SweepPlan::Allows(const std::vector<Draw>& draws) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const Point point, PointFrom(impl_->layout->space(), draws));
  std::vector<Fault> faults;
  const Result<bool> is_allowed = IsAllowed(*impl_->layout, point, &faults);
  if (!is_allowed.ok()) return InvalidArgument(ToString(faults));
  return *is_allowed;
}

PlannedRun SweepPlan::From(const std::vector<Draw>& draws, uint64_t cell, uint64_t seed,
                           std::vector<Fault>* faults) const {
  const Result<Point> point = PointFrom(impl_->layout->space(), draws);
  if (!point.ok()) {
    faults->push_back({"", impl_->layout->space_path(), point.status().message()});
    return {};
  }
  PlannedRun planned = impl_->Make(*point, faults);
  planned.cell = cell;
  planned.seed = impl_->SeedOf(seed, cell);
  planned.run->set_seed(planned.seed);
  planned.run_key = RunKey(*planned.run);
  return planned;
}

}  // namespace switchyard::spec
