#pragma once

#include <string>

#include "common/base/status.h"

namespace switchyard::v1 {
class AttemptSpec;
class RunSpec;
}  // namespace switchyard::v1

namespace switchyard::trainer {

// A RunSpec in protobuf's JSON mapping, with defaults filled in and validated. A document without a
// seed gets seed 1. kInvalidArgument: all faults, one a line; kNotFound.
Status ReadRunFile(const std::string& path, v1::RunSpec* run);

// attempt.json of an attempt directory. kInvalidArgument, kNotFound.
Status ReadAttemptFile(const std::string& path, v1::AttemptSpec* attempt);

// kInvalidArgument unless the run is the one that the attempt names.
Status CheckRunKey(const v1::RunSpec& run, const v1::AttemptSpec& attempt);

}  // namespace switchyard::trainer
