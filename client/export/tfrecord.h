#pragma once

#include <string>
#include <string_view>

namespace switchyard::client {

// One record of a TFRecord file: length (8 bytes, little-endian), its masked CRC-32C, the data, its
// masked CRC-32C. Format: tensorflow.org, "TFRecord and tf.train.Example", section "TFRecords
// format details".
std::string TfRecord(std::string_view data);

// TensorBoard's scalars have single precision. A finite value stays finite, whatever its size.
float SinglePrecision(double value);

}  // namespace switchyard::client
