#include "worker/agent/record_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kCompactFrom = 16 << 20;
// In order of RecordState; nobody writes the first.
constexpr const char* kStates[] = {"none", "launching", "running", "exited", "refused"};

std::string Checksum(std::string_view text) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", Crc32c(text));
  return digits;
}

}  // namespace

std::string EncodeRecord(const Record& record, const std::string& boot_id) {
  nlohmann::ordered_json object = {{"epoch", record.key.epoch},
                                   {"rank", record.key.rank},
                                   {"state", kStates[static_cast<size_t>(record.state)]},
                                   {"run", record.run_id},
                                   {"k", record.ordinal},
                                   {"slots", record.slots},
                                   {"boot_id", boot_id}};
  if (!record.is_live()) {
    const AttemptEnd& end = record.end;
    object["code"] = end.exit_code;
    object["signal"] = end.signal;
    object["class"] = end.end_class;
    object["complete"] = end.complete;
    object["evidence"] = end.evidence;
    object["reason"] = end.reason;
    object["last_seq"] = end.last_seq;
    object["final_step"] = end.final_step;
    if (!end.output_tail.empty()) object["output_tail"] = end.output_tail;
  }
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return StrCat(Checksum(text), " ", text, "\n");
}

Result<StoredRecord> DecodeRecord(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.size() < 10 || line[8] != ' ' || Checksum(line.substr(9)) != line.substr(0, 8)) {
    return DataLoss("record does not check");
  }
  const auto object = nlohmann::json::parse(line.substr(9), nullptr, false);
  const auto has = [&](const char* key, auto is) {
    const auto it = object.find(key);
    return it != object.end() && is(*it);
  };
  const auto number = [](const nlohmann::json& v) { return v.is_number_unsigned(); };
  const auto text = [](const nlohmann::json& v) { return v.is_string(); };
  const auto list = [](const nlohmann::json& v) { return v.is_array(); };
  if (!object.is_object() || !has("epoch", number) || !has("rank", number) || !has("k", number) ||
      !has("state", text) || !has("run", text) || !has("boot_id", text) || !has("slots", list)) {
    return DataLoss("record lacks a member");
  }
  StoredRecord stored;
  Record& record = stored.record;
  record.key = {object["epoch"].get<uint64_t>(), object["rank"].get<uint32_t>()};
  record.run_id = object["run"].get<std::string>();
  record.ordinal = object["k"].get<uint32_t>();
  stored.boot_id = object["boot_id"].get<std::string>();
  for (const auto& slot : object["slots"]) {
    if (!slot.is_number_unsigned()) return DataLoss("record has an ill-typed slot");
    record.slots.push_back(slot.get<uint32_t>());
  }
  const auto state = object["state"].get<std::string>();
  const auto* const found = std::find(std::begin(kStates), std::end(kStates), state);
  if (found == std::end(kStates) || found == std::begin(kStates))
    return DataLoss("record has an unknown state");
  record.state = static_cast<RecordState>(found - std::begin(kStates));
  if (!record.is_live()) {
    record.end = {.exit_code = object.value("code", 0),
                  .signal = object.value("signal", 0),
                  .end_class = object.value("class", ""),
                  .complete = object.value("complete", false),
                  .evidence = object.value("evidence", ""),
                  .reason = object.value("reason", ""),
                  .last_seq = object.value("last_seq", uint64_t{0}),
                  .final_step = object.value("final_step", uint64_t{0}),
                  .output_tail = object.value("output_tail", "")};
  }
  return stored;
}

Result<std::unique_ptr<RecordLog>> RecordLog::Open(const std::string& path, std::string boot_id) {
  std::unique_ptr<RecordLog> log(new RecordLog(path, std::move(boot_id)));
  Result<std::string> text = ReadFile(path);
  if (!text.ok() && text.status().code() != Code::kNotFound) return text.status();
  if (text.ok()) {
    size_t bad = 0;
    for (const std::string& line : StrSplit(*text, '\n')) {
      if (line.empty()) continue;
      Result<StoredRecord> stored = DecodeRecord(line);
      if (!stored.ok()) {
        ++bad;
        continue;
      }
      log->found_[stored->record.key] = *std::move(stored);
    }
    if (bad > 0) LogWarning(path, ": ", bad, " lines do not check and are skipped");
  }
  log->fd_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log->fd_.is_valid()) return ErrnoStatus("cannot open", path, errno);
  log->size_ = text.ok() ? text->size() : 0;
  log->compact_at_ = kCompactFrom;
  // The next record must not continue a torn line.
  if (text.ok() && !text->empty() && text->back() != '\n') {
    SWITCHYARD_RETURN_IF_ERROR(WriteAll(log->fd_.get(), "\n", path));
  }
  return log;
}

Status RecordLog::Append(std::span<const Record> records) {
  if (records.empty()) return OkStatus();
  std::string text;
  for (const Record& record : records) text += EncodeRecord(record, boot_id_);
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd_.get(), text, path_));
  size_ += text.size();
  if (fdatasync(fd_.get()) != 0) return ErrnoStatus("cannot sync", path_, errno);
  return OkStatus();
}

Status RecordLog::Compact(std::span<const Record> records) {
  std::string text;
  for (const Record& record : records) {
    const auto it = found_.find(record.key);
    // The launch's boot id is evidence and must survive.
    text += EncodeRecord(record, it == found_.end() ? boot_id_ : it->second.boot_id);
  }
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(path_, text, 0600));
  fd_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd_.is_valid()) return ErrnoStatus("cannot open", path_, errno);
  size_ = text.size();
  compact_at_ = std::max(kCompactFrom, 2 * size_);
  return OkStatus();
}

}  // namespace switchyard::agent
