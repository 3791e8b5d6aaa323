#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::store {

// Where a listing goes on: the key behind the last row that was given, and a checksum of the query,
// so that a token is not taken for another query's. Text without blanks.
std::string MakePageToken(std::string_view query, std::span<const uint64_t> position);

// `count` numbers, or empty when `token` is empty. kInvalidArgument: none of this query's.
Result<std::vector<uint64_t>> ReadPageToken(std::string_view token, std::string_view query,
                                            size_t count);

}  // namespace switchyard::store
