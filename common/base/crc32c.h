#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

// CRC-32C (Castagnoli), as in iSCSI; `seed` is the checksum of what comes before. "123456789" gives
// 0xe3069283.
uint32_t Crc32c(std::string_view data, uint32_t seed = 0);

}  // namespace switchyard
