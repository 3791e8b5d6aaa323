#include "common/spec/constraint.h"

#include <algorithm>
#include <memory>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/path.h"
#include "common/spec/policy.h"
#include "common/spec/quantity.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/unused.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Names of a constraint for one cell: axes first, which cost nothing, then the cell's documents,
// which are laid when the first name needs them.
class CellNames : public ExpressionNames {
 public:
  CellNames(const SweepLayout& layout, const Point& point)
      : layout_(layout), point_(point), columns_(layout.Columns(point)) {}

  ExpressionValue Name(std::string_view name) const override {
    const auto column =
        std::ranges::find(columns_, name, &std::pair<std::string, std::string>::first);
    if (column != columns_.end()) {
      if (name.find('.') == std::string_view::npos && !IsFieldAxis(name)) return column->second;
      if (const std::optional<double> number = ParseDouble(column->second)) return *number;
    }
    Fill();
    if (run_ == nullptr) return std::monostate{};
    if (const std::optional<double> quantity = QuantityOf(*run_, name)) return *quantity;
    ExpressionValue value = ReadAt(*run_, name);
    if (value.index() == 0) value = ReadAt(*policy_, name);
    if (value.index() == 0 && column != columns_.end()) return column->second;
    return value;
  }
  ExpressionValue Series(std::string_view, SeriesValue) const override { return std::monostate{}; }

 private:
  // An axis whose name is a path of one segment (`priority`), not a zip or a choice.
  bool IsFieldAxis(std::string_view name) const {
    return std::ranges::any_of(point_, [&](const Coordinate& coordinate) {
      return coordinate.axis->name == name && coordinate.axis->kind != AxisKind::kZip &&
             coordinate.axis->kind != AxisKind::kChoice;
    });
  }

  void Fill() const {
    if (is_filled_) return;
    is_filled_ = true;
    auto run = std::make_unique<pb::RunSpec>();
    auto policy = std::make_unique<pb::PolicySpec>();
    std::vector<Fault> faults;
    layout_.Lay(point_, run.get(), policy.get(), &faults);
    if (!faults.empty()) return;
    DropUnused(run.get());
    FillDefaults(run.get());
    FillPolicyDefaults(policy.get());
    run_ = std::move(run);
    policy_ = std::move(policy);
  }

  const SweepLayout& layout_;
  const Point& point_;
  std::vector<std::pair<std::string, std::string>> columns_;
  // Laid at most once; one thread at a time has these names.
  mutable bool is_filled_ = false;
  mutable std::unique_ptr<pb::RunSpec> run_;
  mutable std::unique_ptr<pb::PolicySpec> policy_;
};

// True when the space, or an alternative that the point chooses, has a constraint that is false.
Result<bool> IsDropped(const Space& space, const Point& point, size_t* at, const CellNames& names,
                       std::vector<Fault>* faults) {
  bool is_dropped = false;
  for (const Axis& axis : space.axes) {
    SWITCHYARD_CHECK(*at < point.size()) << "a point follows the axes of its space";
    const Coordinate& coordinate = point[(*at)++];
    if (axis.kind != AxisKind::kChoice) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const bool is_inner,
        IsDropped(axis.alternatives[coordinate.option].space, point, at, names, faults));
    is_dropped |= is_inner;
  }
  for (const Constraint& constraint : space.constraints) {
    if (is_dropped) break;
    const bool applies = std::ranges::none_of(
        constraint.expression.names(),
        [&](const Expression::NameUse& use) { return names.Name(use.name).index() == 0; });
    if (!applies) continue;
    const Result<Truth> truth = constraint.expression.Test(names);
    if (!truth.ok()) {
      faults->push_back({"", constraint.path,
                         StrCat("'", EscapeForTerminal(constraint.expression.text()),
                                "': ", truth.status().message())});
      return truth.status();
    }
    is_dropped = *truth == Truth::kFalse;
  }
  return is_dropped;
}

}  // namespace

bool HasConstraints(const Space& space) {
  return !space.constraints.empty() || std::ranges::any_of(space.axes, [](const Axis& axis) {
    return std::ranges::any_of(axis.alternatives, [](const Alternative& alternative) {
      return HasConstraints(alternative.space);
    });
  });
}

Result<bool> IsAllowed(const SweepLayout& layout, const Point& point, std::vector<Fault>* faults) {
  if (!HasConstraints(layout.space())) return true;
  const CellNames names(layout, point);
  size_t at = 0;
  SWITCHYARD_ASSIGN_OR_RETURN(const bool is_dropped,
                              IsDropped(layout.space(), point, &at, names, faults));
  return !is_dropped;
}

}  // namespace switchyard::spec
