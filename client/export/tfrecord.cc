#include "client/export/tfrecord.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/base/crc32c.h"

namespace switchyard::client {
namespace {

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

// So that the checksum of data that holds its own checksum is not a constant.
uint32_t Masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

}  // namespace

float SinglePrecision(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(value) ? std::clamp(value, -kMax, kMax) : value);
}

std::string TfRecord(std::string_view data) {
  const std::string length = LittleEndian(static_cast<uint64_t>(data.size()));
  std::string record = length;
  record += LittleEndian(Masked(Crc32c(length)));
  record += data;
  record += LittleEndian(Masked(Crc32c(data)));
  return record;
}

}  // namespace switchyard::client
