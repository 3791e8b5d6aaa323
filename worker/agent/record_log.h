#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/base/file.h"
#include "common/base/status.h"
#include "worker/agent/agent_state.h"

// records.log in the state directory: the agent's records, append only, a checksum a line.
namespace switchyard::agent {

struct StoredRecord {
  Record record;
  std::string boot_id;  // of the host when the record was written
};

// Loop thread only.
class RecordLog {
 public:
  // Reads what is there (the last line of a key counts; lines that do not check are skipped: a torn
  // tail). kInternal and others: the file cannot be read or written.
  static Result<std::unique_ptr<RecordLog>> Open(const std::string& path, std::string boot_id);

  const std::map<AttemptKey, StoredRecord>& found() const { return found_; }
  // Writes and syncs once. An error means that the outcome is unknown: the caller must end.
  Status Append(std::span<const Record> records);
  // Replaces the file by these records; rewrites nothing while it is small.
  Status Compact(std::span<const Record> records);
  bool wants_compaction() const { return size_ > compact_at_; }

 private:
  RecordLog(std::string path, std::string boot_id)
      : path_(std::move(path)), boot_id_(std::move(boot_id)) {}

  std::string path_;
  std::string boot_id_;
  UniqueFd fd_;
  uint64_t size_ = 0;
  uint64_t compact_at_ = 0;
  std::map<AttemptKey, StoredRecord> found_;
};

// One line with its newline, and back; kDataLoss: not such a line.
std::string EncodeRecord(const Record& record, const std::string& boot_id);
Result<StoredRecord> DecodeRecord(std::string_view line);

}  // namespace switchyard::agent
