#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/spec/space.h"
#include "server/search/search.h"

namespace switchyard::v1 {
class EarlyStopSpec;
class StrategySpec;
class SweepSpec;
}  // namespace switchyard::v1
namespace switchyard::spec {
class SweepPlan;
}

// Between a sweep's document and the pure strategies.
namespace switchyard::api {

// The plan's dimensions as a strategy's space: the same, in the same order.
search::Space SpaceOf(const std::vector<spec::Dimension>& dimensions);
// A strategy's point for SweepPlan::From and Allows.
std::vector<spec::Draw> DrawsOf(const search::Space& space, const search::Point& point);

// The strategy of a plan whose cells are drawn. kInvalidArgument names the field of `strategy`, its
// value and what would be right.
Result<std::unique_ptr<search::Search>> MakeSearch(const v1::StrategySpec& strategy,
                                                   const v1::EarlyStopSpec& early_stop,
                                                   std::shared_ptr<const spec::SweepPlan> plan,
                                                   bool is_maximized);
// Of a sweep whose plan it is: its own, or that of its first stage without `needs`.
Result<std::unique_ptr<search::Search>> MakeSearch(const v1::SweepSpec& spec,
                                                   std::shared_ptr<const spec::SweepPlan> plan,
                                                   bool is_maximized);

// A point by name and value as text, both ways: values of lists as they are written in the file,
// numbers in shortest form. Parse: kInvalidArgument names the dimension and its values.
using NamedValues = std::vector<std::pair<std::string, std::string>>;
NamedValues ShowPoint(const std::vector<spec::Dimension>& dimensions, const search::Point& point);
Result<search::Point> ParsePoint(const std::vector<spec::Dimension>& dimensions,
                                 const NamedValues& values);

}  // namespace switchyard::api
