#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/scheduler/rows.h"

// Parts of rows that are kept in one column each. An empty column is the default. kDataLoss: the
// bytes end early.
namespace switchyard::store {

std::string PackPolicy(const scheduler::RunPolicy& policy);
Result<scheduler::RunPolicy> UnpackPolicy(std::string_view bytes);

std::string PackEvidence(const scheduler::PoisonEvidence& evidence);
Result<scheduler::PoisonEvidence> UnpackEvidence(std::string_view bytes);

std::string PackEarlyFailures(const std::vector<scheduler::EarlyFailure>& failures);
Result<std::vector<scheduler::EarlyFailure>> UnpackEarlyFailures(std::string_view bytes);

}  // namespace switchyard::store
