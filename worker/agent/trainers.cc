#include "worker/agent/trainers.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/events/exit_record.h"
#include "worker/agent/attempt_dir.h"
#include "worker/agent/housekeeping.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kFirstFlushNs = 1'000'000'000;
// Each so much that is unsent halves what is recorded of the derived series once more.
constexpr uint64_t kPressureBytes = uint64_t{1} << 30;
constexpr uint64_t kOutputTailBytes = (kOutputTailBytesMax - 1) / 2;  // of each stream

}  // namespace

Trainers::Trainers(Parts parts, uint64_t first_tag)
    : parts_(std::move(parts)),
      first_tag_(first_tag),
      boot_id_(BootId()),
      root_(parts_.options->state_dir + "/attempts"),
      oom_kills_(ReadOomKills()) {}

Attempt* Trainers::Find(AttemptKey key) {
  const auto it = attempts_.find(key);
  return it == attempts_.end() ? nullptr : &it->second;
}

Attempt& Trainers::Add(const Record& record) {
  Attempt attempt{.path = StrCat(root_, "/", AttemptName(record.key))};
  attempt.upload = std::make_shared<Upload>(StreamId{.worker_id = parts_.worker_id,
                                                     .run_id = record.run_id,
                                                     .ordinal = record.ordinal,
                                                     .key = record.key},
                                            attempt.path, parts_.uploads);
  return attempts_[record.key] = std::move(attempt);
}

// ---------------------------------------------------------------- launching

void Trainers::KeepDocs(AttemptDocs docs) { docs_[docs.key] = std::move(docs); }

std::string Trainers::Prepare(const Actions::Prepare& prepare) {
  const AgentOptions& options = *parts_.options;
  const Record* record = parts_.state->Find(prepare.key);
  const auto documents = docs_.extract(prepare.key);
  SWITCHYARD_CHECK(record != nullptr && !documents.empty()) << "prepare without documents";
  Attempt& attempt = Add(*record);
  const size_t slots = std::max<size_t>(record->slots.size(), 1);
  const bool is_gpu = !record->slots.empty() && options.slots[record->slots[0]].is_gpu;
  const Result<std::string> run_json = RunJson(documents.mapped().run_spec);
  if (!run_json.ok()) return run_json.status().message();
  const Result<std::string> attempt_json =
      AttemptJson(documents.mapped(), record->run_id, record->ordinal,
                  {.threads = static_cast<uint32_t>(slots) * options.cores_per_slot,
                   .checkpoint_dir = StrCat(options.checkpoint_dir, "/", record->run_id),
                   .device = is_gpu ? "gpu" : "cpu"});
  if (!attempt_json.ok()) return attempt_json.status().message();
  const Status made = CreateAttemptDir(attempt.path, *run_json, *attempt_json);
  if (!made.ok()) return made.message();
  Result<events::LeaseWriter> lease = events::LeaseWriter::Create(
      attempt.path + "/lease.page", prepare.key.epoch, prepare.deadline_ns);
  if (!lease.ok()) return lease.status().message();
  attempt.lease = *std::move(lease);
  SWITCHYARD_FAILPOINT("launch.prepared");
  return "";
}

Actions Trainers::Spawn(AttemptKey key) {
  const AgentOptions& options = *parts_.options;
  const Record* record = parts_.state->Find(key);
  Attempt* attempt = Find(key);
  if (record == nullptr || attempt == nullptr || attempt->ended) return {};
  const size_t threads = std::max<size_t>(record->slots.size(), 1) * options.cores_per_slot;
  SpawnRequest request{
      .id = next_spawn_id_++,
      .directory = attempt->path,
      .argv = {options.trainer, "--attempt-dir", attempt->path},
      .env = {StrCat("OMP_NUM_THREADS=", threads), StrCat("MKL_NUM_THREADS=", threads),
              StrCat("SWITCHYARD_ATTEMPT_DIR=", attempt->path)}};
  std::vector<std::string> gpus;
  for (const uint32_t slot : record->slots) {
    if (options.slots[slot].is_gpu) gpus.push_back(options.slots[slot].uuid);
    for (uint32_t i = 0; i < options.cores_per_slot && !options.cores.empty(); ++i) {
      const size_t core = size_t{slot} * options.cores_per_slot + i;
      request.cores.push_back(options.cores[core % options.cores.size()]);
    }
  }
  if (!gpus.empty()) request.env.push_back("CUDA_VISIBLE_DEVICES=" + StrJoin(gpus, ","));
  attempt->requested_ns = BoottimeNanoseconds();
  spawns_[request.id] = key;
  parts_.janitor->Postpone();
  SWITCHYARD_FAILPOINT("launch.recorded");
  if (const Status status = parts_.fork_server->Spawn(request); !status.ok()) {
    spawns_.erase(request.id);
    return FailLaunch(key, status.message());
  }
  SWITCHYARD_FAILPOINT("launch.requested");
  return {};
}

Actions Trainers::FailLaunch(AttemptKey key, const std::string& error) {
  LogWarning("attempt ", AttemptName(key), " was not launched: ", error);
  if (Attempt* attempt = Find(key)) attempt->ended = attempt->spooled = true;
  return parts_.state->OnSpawned(key, error, BoottimeNanoseconds());
}

Result<Actions> Trainers::OnForkEvents() {
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<ForkEvent> received, parts_.fork_server->Receive());
  const uint64_t now = BoottimeNanoseconds();
  Actions actions;
  for (ForkEvent& event : received) {
    const auto it = spawns_.find(event.id);
    if (it == spawns_.end()) continue;
    const AttemptKey key = it->second;
    Attempt* attempt = Find(key);
    if (attempt == nullptr) continue;
    switch (event.kind) {
      case ForkEvent::Kind::kSpawned:
        SWITCHYARD_FAILPOINT("launch.executed");
        attempt->pid = event.pid;
        attempt->pidfd = std::move(event.pidfd);
        attempt->flush_at_ns = now + kFirstFlushNs;
        parts_.metrics->ObserveLaunch(static_cast<double>(now - attempt->requested_ns) / 1e9);
        actions.Append(parts_.state->OnSpawned(key, "", now));
        break;
      case ForkEvent::Kind::kFailed:
        spawns_.erase(it);
        actions.Append(FailLaunch(key, event.error));
        break;
      case ForkEvent::Kind::kExited:
        spawns_.erase(it);
        actions.Append(OnGone(key, event.wait));
        break;
    }
  }
  return actions;
}

// ---------------------------------------------------------------- stopping

void Trainers::SetDeadline(const Actions::Lease& lease) {
  Attempt* attempt = Find(lease.key);
  if (attempt == nullptr || !attempt->lease) return;
  const Status status = attempt->lease->SetDeadline(lease.deadline_ns);
  if (!status.ok()) LogWarning(status.message());
}

void Trainers::SetStop(const Actions::Stop& stop) {
  Attempt* attempt = Find(stop.key);
  if (attempt == nullptr || !attempt->lease) return;
  const Status status =
      attempt->lease->SetStop(static_cast<events::LeaseIntent>(stop.intent), stop.deadline_ns);
  if (!status.ok()) LogWarning(status.message());
}

void Trainers::Signal(AttemptKey key, int number) {
  const Attempt* attempt = Find(key);
  if (attempt != nullptr && attempt->pidfd.is_valid()) {
    SignalProcess(attempt->pidfd.get(), number);
  }
}

void Trainers::Kill(AttemptKey key) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr || attempt->ended || !attempt->pidfd.is_valid()) return;
  attempt->killed = true;
  SignalProcess(attempt->pidfd.get(), SIGKILL);
  KillSession(attempt->pid);
}

void Trainers::Drop(AttemptKey key) {
  const Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  parts_.janitor->Remove(attempt->path);
  attempts_.erase(key);
}

void Trainers::Resend(AttemptKey key) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  attempt->spooled = false;
  attempt->upload->Resend();
}

void Trainers::ReadProgress(uint64_t now_ns) {
  for (auto& [key, attempt] : attempts_) {
    if (attempt.ended || !attempt.pidfd.is_valid()) continue;
    EventTail& tail = attempt.upload->events();
    parts_.state->OnProgress(key, tail.ReadProgress(), now_ns);
    if (!attempt.lease) continue;
    const uint64_t exponent = tail.unsent_bytes() / kPressureBytes;
    const Status status = attempt.lease->SetPressure(
        static_cast<uint32_t>(std::min<uint64_t>(exponent, events::kPressureMax)));
    if (!status.ok()) LogWarning(status.message());
  }
}

// ---------------------------------------------------------------- ends

Actions Trainers::OnAdoptedGone(uint64_t tag) {
  const uint64_t epoch = tag - first_tag_;
  for (const auto& [key, attempt] : attempts_) {
    if (key.epoch == epoch && !attempt.ended && attempt.pidfd.is_valid()) {
      return OnGone(key, std::nullopt);
    }
  }
  return {};
}

void Trainers::KillLeftovers(Attempt& attempt) {
  if (HasLeftovers(attempt.path, attempt.pid)) KillSession(attempt.pid);
}

// Leftovers, torn tail, evidence, record, report: in this order.
Actions Trainers::OnGone(AttemptKey key, std::optional<WaitStatus> wait) {
  Attempt& attempt = *Find(key);
  const Record* record = parts_.state->Find(key);
  if (record == nullptr || attempt.ended) return {};
  attempt.ended = true;
  if (attempt.pidfd.is_valid()) {
    parts_.unwatch(attempt.pidfd.get());
    attempt.pidfd.Reset();
  }
  KillLeftovers(attempt);
  AttemptEnd end = Evaluate(attempt, key, boot_id_, wait, *record);
  if (end.end_class == "fenced") parts_.metrics->CountFence();
  SWITCHYARD_FAILPOINT("end.judged");
  Actions actions = parts_.state->OnEnded(key, std::move(end), BoottimeNanoseconds());
  attempt.lease.reset();
  attempt.upload->Flush();
  return actions;
}

AttemptEnd Trainers::Evaluate(Attempt& attempt, AttemptKey key, const std::string& launch_boot_id,
                              std::optional<WaitStatus> wait, const Record& record) {
  attempt.upload->End();
  EndFacts facts{.agent_reason = record.agent_reason,
                 .host_restarted = launch_boot_id != boot_id_,
                 .wait = wait,
                 .stop_requested = record.intent > Intent::kRun || attempt.killed,
                 .last_seq = attempt.upload->events().last_seq()};
  const std::string& step_fault = attempt.upload->events().step_fault();
  if (!step_fault.empty() && !ReadLenientSteps(attempt.path)) facts.record_fault = step_fault;
  // With lines the directory is durable as they are. Without its directory the record of an end
  // would be taken for one that the coordinator is through with.
  if (facts.last_seq == 0) {
    if (const Status synced = SyncDirectory(root_); !synced.ok()) LogWarning(synced.message());
  }
  Result<events::ExitRecord> found =
      events::ReadExitRecord(attempt.path + "/exit.json", key.epoch, key.rank);
  if (found.ok()) {
    facts.record = FoundRecord{.code = found->code,
                               .end_class = found->end_class,
                               .complete = found->complete,
                               .final_step = found->final_step,
                               .reason = found->reason};
  } else {
    facts.record_is_broken = found.status().code() != Code::kNotFound;
  }
  // Of one that is no child of ours it is not known whether a signal ended it.
  const bool may_be_oom = !wait || (wait->signalled && wait->value == SIGKILL);
  if (!facts.record && may_be_oom && !attempt.killed) {
    const uint64_t kills = ReadOomKills();
    facts.oom_evidence = kills > oom_kills_;
    oom_kills_ = kills;
  }
  const Result<events::Lease> lease = events::ReadLeaseFile(attempt.path + "/lease.page");
  facts.lease_past = lease.ok() && lease->IsPast(BoottimeNanoseconds());
  AttemptEnd end = JudgeEnd(facts);
  // The run's retry policy may go by what it said last.
  if (end.end_class == "user") {
    end.output_tail = StrCat(ReadLastBytes(attempt.path + "/stdout.log", kOutputTailBytes), "\n",
                             ReadLastBytes(attempt.path + "/stderr.log", kOutputTailBytes));
  }
  return end;
}

}  // namespace switchyard::agent
