#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

// exit.json of an attempt directory (docs/attempt-directory.md): how a rank says that it ended.
namespace switchyard::events {

struct ExitRecord {
  int code = 0;           // the process's exit status, 0 to 255
  std::string end_class;  // ok spec data infra internal oom stopped fenced guard user
  bool complete = false;  // the last step or a finishing rule was reached
  uint64_t last_seq = 0;  // of the event file
  uint64_t final_step = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  std::string reason;          // for a person; guard: which one
  std::string objective_json;  // a JSON object, or empty: none

  bool operator==(const ExitRecord&) const = default;
};

inline constexpr uint64_t kExitRecordBytesMax = 64 << 10;

// Temporary name and rename, without a sync: a record lost with its host costs a retry, never a
// wrong end. Of a reason the first 4,096 bytes are kept. kInvalidArgument: code or objective_json
// is not what the fields say, or too long.
Status WriteExitRecord(const std::string& path, const ExitRecord& record);

// kNotFound: there is none. kDataLoss: link, size, checksum, JSON, a missing or ill-typed member,
// or the record of another epoch or rank.
Result<ExitRecord> ReadExitRecord(const std::string& path, uint64_t epoch, uint32_t rank);

}  // namespace switchyard::events
