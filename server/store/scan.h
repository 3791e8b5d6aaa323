#pragma once

#include <string_view>

#include "common/base/status.h"
#include "server/store/rows.h"

// What scans over the runs of a sweep share, for any store.
namespace switchyard::store {

// Axis and value in turn, as a link stores them.
Result<Columns> UnpackColumns(std::string_view bytes);

// kInvalidArgument: too many series.
Status CheckScan(const ScanQuery& query);

}  // namespace switchyard::store
