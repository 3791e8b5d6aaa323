// What an agent finds at its start (protocol 2.2, G6).
#include <vector>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "worker/agent/attempt_dir.h"
#include "worker/agent/trainers.h"

namespace switchyard::agent {

Status Trainers::Recover() {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(root_));
  for (const std::string& name : names) {
    const std::optional<AttemptKey> key = ParseAttemptName(name);
    if (!key) continue;
    const auto found = parts_.record_log->found().find(*key);
    if (found != parts_.record_log->found().end()) {
      SWITCHYARD_RETURN_IF_ERROR(RecoverOne(*key, found->second));
      continue;
    }
    // Without a record it counts as LAUNCHING: nothing was spawned before the record was durable.
    const Result<Record> record = ReadAttemptRecord(StrCat(root_, "/", name), *key);
    if (!record.ok()) {
      LogWarning("removing ", name, ": ", record.status().message());
      parts_.janitor->Remove(StrCat(root_, "/", name));
      continue;
    }
    SWITCHYARD_RETURN_IF_ERROR(RecoverOne(*key, {.record = *record, .boot_id = boot_id_}));
  }
  // Launched once, says the record, which is synced; its directory is not, and a host crash may
  // take it. Made anew, so that the end that is recorded now is found by the next start as well.
  for (const auto& [key, stored] : parts_.record_log->found()) {
    if (!stored.record.is_live() || parts_.state->Find(key) != nullptr) continue;
    LogWarning("the directory of attempt ", AttemptName(key), " is gone; it is not launched again");
    SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(StrCat(root_, "/", AttemptName(key)), 0700));
    SWITCHYARD_RETURN_IF_ERROR(SyncDirectory(root_));
    SWITCHYARD_RETURN_IF_ERROR(RecoverOne(key, stored));
  }
  std::vector<Record> records;
  records.reserve(parts_.state->records().size());
  for (const auto& [key, record] : parts_.state->records()) records.push_back(record);
  return parts_.record_log->Compact(records);
}

Status Trainers::RecoverOne(AttemptKey key, const StoredRecord& stored) {
  Record record = stored.record;
  Attempt& attempt = Add(record);
  if (record.state == RecordState::kRefused) record.spooled = attempt.spooled = true;
  if (!record.is_live()) {
    attempt.ended = true;
    attempt.upload->End();
    parts_.state->Restore(std::move(record));
    return OkStatus();
  }
  Result<events::LeaseWriter> lease = events::LeaseWriter::Open(attempt.path + "/lease.page");
  if (lease.ok()) {
    attempt.lease = *std::move(lease);
    const events::Lease& page = attempt.lease->lease();
    // Kept, never reset: an agent's restart is no contact with the coordinator.
    record.deadline_ns = page.deadline_boottime_ns;
    record.intent = static_cast<Intent>(page.intent);
    if (page.stop_deadline_boottime_ns != events::kNever) {
      record.stop_at_ns = page.stop_deadline_boottime_ns;
    }
  }
  const Result<PidFile> pid_file = ReadPidFile(attempt.path);
  if (pid_file.ok()) {
    attempt.pid = pid_file->pid;
    Result<UniqueFd> pidfd = AdoptProcess(attempt.path, *pid_file, boot_id_);
    if (pidfd.ok()) {
      attempt.pidfd = *std::move(pidfd);
      record.state = RecordState::kRunning;
      parts_.watch(attempt.pidfd.get(), first_tag_ + key.epoch);
      parts_.metrics->CountAdoption();
      LogInfo("adopted attempt ", AttemptName(key), ", process ", attempt.pid);
      parts_.state->Restore(std::move(record));
      return OkStatus();
    }
    // Another boot's number could mean somebody else's session today.
    if (pid_file->boot_id == boot_id_ && HasLeftovers(attempt.path, 0)) KillSession(attempt.pid);
  }
  const bool was_executed = pid_file.ok() || pid_file.status().code() != Code::kNotFound;
  if (was_executed) {
    record.end = Evaluate(attempt, key, stored.boot_id, std::nullopt, record);
  } else {
    attempt.upload->End();
    record.end = {.end_class = "infra", .evidence = "agent", .reason = "never executed"};
  }
  record.state = RecordState::kExited;
  attempt.ended = true;
  SWITCHYARD_RETURN_IF_ERROR(parts_.record_log->Append(std::span(&record, 1)));
  LogInfo("attempt ", AttemptName(key), " ended while no agent ran: ", record.end.end_class);
  parts_.state->Restore(std::move(record));
  return OkStatus();
}

}  // namespace switchyard::agent
