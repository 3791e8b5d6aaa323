#pragma once

#include <string>
#include <vector>

#include "client/output/table.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class Run;
class Sweep;
class TableSpec;
}  // namespace switchyard::v1

namespace switchyard::client {

// A table of the sweep's report: a row per combination of `rows`, a column per combination of
// `columns`, in each place the mean (± sample standard deviation), the best, or every value of the
// metric. `runs` have its summary. kInvalidArgument: a name that is no axis of the sweep.
Result<Listing> PivotListing(const v1::Sweep& sweep, const std::vector<v1::Run>& runs,
                             const v1::TableSpec& table);

}  // namespace switchyard::client
