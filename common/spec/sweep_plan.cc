#include "common/spec/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/policy.h"
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
  switch (run.model().moe().router().kind_case()) {
    case pb::RouterSpec::kSmoe:
      return "smoe";
    case pb::RouterSpec::kHash:
      return "hash";
    case pb::RouterSpec::kDense:
    case pb::RouterSpec::KIND_NOT_SET:
      break;
  }
  return "dense";
}

}  // namespace

struct SweepPlan::Impl {
  std::unique_ptr<SweepLayout> layout;
  std::vector<std::string> axis_paths;
  std::vector<std::vector<std::string>> value_texts;  // [axis][value]

  void Resolve(const std::vector<size_t>& choice, Cell* cell, std::vector<Fault>* faults) const;
  std::string Describe(const std::vector<size_t>& choice) const;
  void CheckCells(uint64_t cells_checked, std::vector<Fault>* faults) const;
};

void SweepPlan::Impl::Resolve(const std::vector<size_t>& choice, Cell* cell,
                              std::vector<Fault>* faults) const {
  const size_t faults_before = faults->size();
  layout->Lay(choice, &cell->run, &cell->policy, faults);
  if (faults->size() != faults_before) return;
  cell->dropped = DropUnused(&cell->run);
  for (const UnusedField& field : cell->dropped) {
    for (const Axis& axis : layout->axes()) {
      if (IsAtOrBelow(field.path, axis.path) || IsAtOrBelow(axis.path, field.path)) {
        faults->push_back({"", field.path, StrCat("is set but has no effect: ", field.reason)});
        break;
      }
    }
  }
  FillDefaults(&cell->run);
  FillPolicyDefaults(&cell->policy);
  for (Fault& fault : ValidateRun(cell->run)) faults->push_back(std::move(fault));
  for (Fault& fault : ValidatePolicy(cell->policy)) faults->push_back(std::move(fault));
}

// "train.steps=10, model.moe.router.kind=hash".
std::string SweepPlan::Impl::Describe(const std::vector<size_t>& choice) const {
  std::string text;
  for (size_t i = 0; i < choice.size(); ++i) {
    text += StrCat(i == 0 ? "" : ", ", axis_paths[i], "=",
                   EscapeForTerminal(value_texts[i][choice[i]]));
  }
  return text;
}

// All cells where there are few, else those that differ from the first in one axis, and the
// combinations of the axes that decide which fields have a use.
void SweepPlan::Impl::CheckCells(uint64_t cells_checked, std::vector<Fault>* faults) const {
  struct Seen {
    std::string first_cell;
    uint64_t count = 0;
  };
  std::map<std::pair<std::string, std::string>, Seen> seen;  // path, message -> where
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::string, std::pair<std::string, uint64_t>> dropped;  // path -> reason, cells
  uint64_t checked = 0;
  const auto check = [&](const std::vector<size_t>& choice) {
    Cell cell;
    std::vector<Fault> found;
    Resolve(choice, &cell, &found);
    for (const Fault& fault : found) {
      const auto key = std::pair(fault.path, fault.message);
      const auto [at, is_new] = seen.emplace(key, Seen{});
      if (is_new) {
        at->second.first_cell = Describe(choice);
        order.push_back(key);
      }
      ++at->second.count;
    }
    std::set<std::string> paths;
    for (const UnusedField& field : cell.dropped) {
      paths.insert(field.path);
      auto& [reason, count] = dropped[field.path];
      reason = field.reason;
      ++count;
    }
    ++checked;
    return paths;
  };

  const std::vector<Axis>& axes = layout->axes();
  bool are_all_uses_seen = true;
  if (layout->cell_count() <= cells_checked) {
    for (uint64_t cell = 0; cell < layout->cell_count(); ++cell) check(layout->Choice(cell));
  } else {
    std::vector<size_t> choice(axes.size(), 0);
    const std::set<std::string> first = check(choice);
    std::vector<size_t> deciding;
    uint64_t combinations = 1;
    for (size_t i = 0; i < axes.size(); ++i) {
      bool is_deciding = false;
      for (size_t k = 1; k < axes[i].values.size(); ++k) {
        choice[i] = k;
        is_deciding |= check(choice) != first;
      }
      choice[i] = 0;
      if (!is_deciding) continue;
      deciding.push_back(i);
      combinations *= axes[i].values.size();  // bounded by the number of cells
    }
    are_all_uses_seen = combinations <= cells_checked;
    if (are_all_uses_seen && deciding.size() > 1) {
      for (uint64_t k = 0; k < combinations; ++k) {
        uint64_t rest = k;
        for (const size_t i : deciding) {
          choice[i] = rest % axes[i].values.size();
          rest /= axes[i].values.size();
        }
        check(choice);
      }
    }
  }
  for (const auto& key : order) {
    if (faults->size() >= kCellFaultsMax) break;
    const Seen& where = seen[key];
    std::string message = key.second;
    if (where.count < checked && !where.first_cell.empty()) {
      message += StrCat(" (where ", where.first_cell);
      if (where.count > 1)
        message += StrCat(", and in ", where.count - 1, " more of ", checked, " cells checked");
      message += ")";
    }
    faults->push_back({"", key.first, std::move(message)});
  }
  if (!faults->empty() || !are_all_uses_seen) return;
  for (const auto& [path, use] : dropped) {
    // A preset may hold what a run built on it has no use for.
    if (use.second == checked && layout->IsWritten(path)) {
      faults->push_back({"", path, StrCat("is set but has no effect in any cell: ", use.first)});
    }
  }
}

SweepPlan::SweepPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SweepPlan::~SweepPlan() = default;

std::unique_ptr<SweepPlan> SweepPlan::Make(const pb::SweepSpec& sweep, std::vector<Fault>* faults,
                                           uint64_t cells_checked) {
  std::vector<Fault> found;
  auto impl = std::make_unique<Impl>();
  impl->layout = CheckSweep(sweep, &found);
  if (found.empty()) {
    for (const Axis& axis : impl->layout->axes()) {
      impl->axis_paths.push_back(axis.path);
      std::vector<std::string>& texts = impl->value_texts.emplace_back();
      for (const Node& value : axis.values) texts.push_back(NodeText(value));
    }
    impl->CheckCells(cells_checked, &found);
  }
  if (found.empty()) return std::unique_ptr<SweepPlan>(new SweepPlan(std::move(impl)));
  faults->insert(faults->end(), found.begin(), found.end());
  return nullptr;
}

uint64_t SweepPlan::cell_count() const { return impl_->layout->cell_count(); }
uint64_t SweepPlan::run_count() const { return impl_->layout->run_count(); }
const std::vector<std::string>& SweepPlan::axes() const { return impl_->axis_paths; }
const std::vector<uint64_t>& SweepPlan::seeds() const { return impl_->layout->seeds(); }

PlannedRun SweepPlan::At(uint64_t number, std::vector<Fault>* faults) const {
  PlannedRun planned;
  planned.number = number;
  if (number == 0 || number > run_count()) {
    faults->push_back({"", "", StrCat("run ", number, " is not between 1 and ", run_count())});
    return planned;
  }
  const uint64_t cell_index = (number - 1) % cell_count();
  planned.cell = cell_index + 1;
  planned.seed = seeds()[(number - 1) / cell_count()];
  if (!impl_->layout->is_paired()) {
    // 63 bits: what every store and language that meets it holds.
    planned.seed = RandomBits(RandomKey::For(planned.seed, "replicate").With(planned.cell), 0) >> 1;
  }
  const std::vector<size_t> choice = impl_->layout->Choice(cell_index);
  for (size_t i = 0; i < choice.size(); ++i) {
    planned.columns.emplace_back(impl_->axis_paths[i], impl_->value_texts[i][choice[i]]);
  }
  Cell cell;
  impl_->Resolve(choice, &cell, faults);
  cell.run.set_seed(planned.seed);
  for (const UnusedField& field : cell.dropped) {
    planned.notices.push_back(StrCat(field.path, " is dropped: ", field.reason));
  }
  planned.run_key = RunKey(cell.run);
  planned.router = RouterOf(cell.run);
  planned.run = std::make_unique<pb::RunSpec>(std::move(cell.run));
  planned.policy = std::make_unique<pb::PolicySpec>(std::move(cell.policy));
  return planned;
}

}  // namespace switchyard::spec
