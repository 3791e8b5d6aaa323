#include "server/scheduler/draft.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "server/scheduler/transitions.h"

namespace switchyard::scheduler {
namespace {

uint64_t LiveCount(const StateCounts& counts) {
  uint64_t live = 0;
  for (size_t i = 1; i < kRunStates; ++i) {
    if (!IsTerminal(static_cast<RunState>(i))) live += counts[i];
  }
  return live;
}

}  // namespace

SweepStatus& Draft::sweep(SweepId id) {
  const auto known = sweeps_.find(id);
  if (known != sweeps_.end()) return known->second;
  const Sweep* sweep = state_.FindSweep(id);
  SWITCHYARD_CHECK(sweep != nullptr) << "no sweep " << id.value.ToString();
  return sweeps_.emplace(id, sweep->status).first->second;
}

RunStatus& Draft::run(RunId id) {
  const auto known = runs_.find(id);
  if (known != runs_.end()) return known->second;
  const Run* run = state_.FindRun(id);
  SWITCHYARD_CHECK(run != nullptr) << "no run " << id.value.ToString();
  return runs_.emplace(id, run->status).first->second;
}

AttemptStatus& Draft::attempt(Epoch epoch) {
  const auto known = attempts_.find(epoch);
  if (known != attempts_.end()) return known->second;
  const Attempt* attempt = state_.FindAttempt(epoch);
  SWITCHYARD_CHECK(attempt != nullptr) << "no attempt " << epoch.value;
  return attempts_.emplace(epoch, attempt->status).first->second;
}

std::vector<MemberRow>& Draft::members(Epoch epoch) {
  const auto known = members_.find(epoch);
  if (known != members_.end()) return known->second;
  return members_.emplace(epoch, state_.FindAttempt(epoch)->members).first->second;
}

std::vector<StreamRow>& Draft::streams(Epoch epoch) {
  const auto known = streams_.find(epoch);
  if (known != streams_.end()) return known->second;
  return streams_.emplace(epoch, state_.FindAttempt(epoch)->streams).first->second;
}

WorkerRow& Draft::worker(WorkerId id) {
  const auto known = workers_.find(id);
  if (known != workers_.end()) return known->second;
  return workers_.emplace(id, state_.FindWorker(id)->row).first->second;
}

WorkerContact& Draft::contact(WorkerId id) {
  const auto known = contacts_.find(id);
  if (known != contacts_.end()) return known->second;
  WorkerContact contact{.worker = id};
  if (const Worker* worker = state_.FindWorker(id)) {
    contact.contact = worker->contact;
    contact.nonce = worker->nonce;
    contact.hb_seq = worker->hb_seq;
    contact.last = worker->last;
    contact.applied = worker->applied;
    contact.instance_changed = worker->instance_changed;
    contact.is_leaving = worker->is_leaving;
  }
  return contacts_.emplace(id, std::move(contact)).first->second;
}

RunState Draft::RunStateOf(RunId id) const {
  const auto known = runs_.find(id);
  if (known != runs_.end()) return known->second.state;
  return state_.FindRun(id)->status.state;
}

SweepState Draft::SweepStateOf(SweepId id) const {
  const auto known = sweeps_.find(id);
  if (known != sweeps_.end()) return known->second.state;
  return state_.FindSweep(id)->status.state;
}

void Draft::SetSweepState(SweepId id, SweepState to) {
  SweepStatus& status = sweep(id);
  SWITCHYARD_CHECK(IsAllowed(status.state, to))
      << "sweep " << Name(status.state) << " > " << Name(to);
  status.state = to;
  if (IsTerminal(to)) status.ended_ms = now_.unix_ms;
  History(StrCat("sweep_", Name(to)), id.value, status.reason);
}

void Draft::SetRunState(RunId id, RunState to, std::string_view reason) {
  RunStatus& status = run(id);
  SWITCHYARD_CHECK(IsAllowed(status.state, to))
      << "run " << Name(status.state) << " > " << Name(to);
  for (const SweepLink& link : state_.FindRun(id)->links) {
    SweepStatus& counted = sweep(link.sweep);
    --counted.counts[static_cast<size_t>(status.state)];
    ++counted.counts[static_cast<size_t>(to)];
  }
  status.state = to;
  status.reason = reason;
  if (to == RunState::kQueued) status.queued_ms = now_.unix_ms;
  if (IsTerminal(to)) status.ended_ms = now_.unix_ms;
}

void Draft::SetAttemptState(Epoch epoch, AttemptState to) {
  AttemptStatus& status = attempt(epoch);
  SWITCHYARD_CHECK(IsAllowed(status.state, to))
      << "attempt " << Name(status.state) << " > " << Name(to);
  status.state = to;
  if (to == AttemptState::kRunning) status.running_ms = now_.unix_ms;
  if (IsTerminal(to)) {
    status.ended_ms = now_.unix_ms;
    WantChanged(state_.FindAttempt(epoch)->row.worker);
  }
}

void Draft::SetMemberState(MemberRow& member, MemberState to) {
  SWITCHYARD_CHECK(IsAllowed(member.state, to))
      << "member " << Name(member.state) << " > " << Name(to);
  member.state = to;
  const Run* run =
      IsTerminal(to) ? state_.FindRun(state_.FindAttempt(member.epoch)->row.run) : nullptr;
  if (run != nullptr) used_.insert(run->row.project);
}

void Draft::Add(SweepRow row) {
  SweepStatus status{.id = row.id};
  sweeps_.emplace(row.id, status);
  new_sweeps_.emplace(row.id, row);
  inserts_.emplace_back(std::move(row));
}

void Draft::Add(RunRow row, int32_t priority) {
  RunStatus status{.id = row.id, .priority = priority, .queued_ms = now_.unix_ms};
  inserts_.emplace_back(std::move(row));
  inserts_.emplace_back(std::move(status));
}

std::vector<CheckpointRow>& Draft::checkpoints(RunId id) {
  const auto known = checkpoints_.find(id);
  if (known != checkpoints_.end()) return known->second;
  return checkpoints_.emplace(id, state_.FindRun(id)->checkpoints).first->second;
}

uint64_t Draft::PublishedStep(RunId id) {
  const std::vector<CheckpointRow>& rows = checkpoints(id);
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (row->state == CheckpointState::kPublished) return row->step;
  }
  return 0;
}

void Draft::SetCheckpointState(CheckpointRow& checkpoint, CheckpointState to) {
  SWITCHYARD_CHECK(IsAllowed(checkpoint.state, to))
      << "checkpoint " << Name(checkpoint.state) << " > " << Name(to);
  checkpoint.state = to;
  checkpoint.state_ms = now_.unix_ms;
}

void Draft::SetContact(WorkerId id, Contact to) {
  WorkerContact& known = contact(id);
  if (known.contact == to) return;
  SWITCHYARD_CHECK(IsAllowed(known.contact, to))
      << "contact " << Name(known.contact) << " > " << Name(to);
  known.contact = to;
}

void Draft::SetAdmin(WorkerId id, AdminState to, std::string_view reason) {
  WorkerRow& row = worker(id);
  SWITCHYARD_CHECK(IsAllowed(row.admin, to)) << "worker " << Name(row.admin) << " > " << Name(to);
  row.admin = to;
  if (to != AdminState::kDraining) row.drain_deadline_ms = 0;
  History(StrCat("worker_", Name(to)), id.value, std::string(reason));
}

void Draft::SetCordon(WorkerId id, bool cordoned, std::string_view reason) {
  WorkerRow& row = worker(id);
  if (row.cordoned == cordoned) return;
  row.cordoned = cordoned;
  row.cordon_reason = cordoned ? reason : "";
  History(cordoned ? "worker_cordoned" : "worker_uncordoned", id.value, std::string(reason));
}

void Draft::Add(AttemptRow row, MemberRow member) {
  AttemptStatus status{.epoch = row.epoch};
  AddAttempt(std::move(row), std::move(status), std::move(member));
}

void Draft::AddLost(AttemptRow row, MemberRow member, std::string reason) {
  const auto lost = static_cast<uint8_t>(AttemptState::kLost);
  SWITCHYARD_CHECK(IsAllowed(Machine::kAttempt, 0, lost)) << "attempt > LOST";
  AttemptStatus status{.epoch = row.epoch,
                       .state = AttemptState::kLost,
                       .end_class = EndClass::kInfra,
                       .reason = std::move(reason),
                       .ended_ms = now_.unix_ms};
  member.state = MemberState::kLost;
  member.evidence = status.reason;
  AddAttempt(std::move(row), std::move(status), std::move(member));
}

void Draft::AddAttempt(AttemptRow row, AttemptStatus status, MemberRow member) {
  added_.insert(row.epoch);
  StreamRow stream{.epoch = row.epoch, .rank = member.rank};
  WantChanged(row.worker);
  appended_.emplace_back(std::move(row));
  appended_.emplace_back(std::move(status));
  appended_.emplace_back(std::move(member));
  appended_.emplace_back(std::move(stream));
}

void Draft::History(std::string_view kind, Uuid ref, std::string text) {
  appended_.emplace_back(HistoryRow{
      .at_ms = now_.unix_ms, .kind = std::string(kind), .ref = ref, .text = std::move(text)});
}

void Draft::SettleSweeps() {
  std::vector<std::pair<SweepId, SweepState>> settled;
  for (const auto& [id, status] : sweeps_) {
    if (IsTerminal(status.state)) continue;
    const auto fresh = new_sweeps_.find(id);
    const SweepRow& row = fresh != new_sweeps_.end() ? fresh->second : state_.FindSweep(id)->row;
    const bool all_ended = LiveCount(status.counts) == 0;
    const bool is_proposed = row.is_drawn ? status.is_closed : status.proposed >= row.runs;
    if (status.state == SweepState::kActive && all_ended && is_proposed) {
      settled.emplace_back(id, SweepState::kCompleted);
    } else if (status.state == SweepState::kCancelling) {
      bool is_settled = true;
      if (!all_ended) {
        for (const RunId run : state_.FindSweep(id)->live_runs) {
          if (IsTerminal(RunStateOf(run))) continue;
          bool is_kept = false;
          for (const SweepLink& link : state_.FindRun(run)->links) {
            const SweepState other = SweepStateOf(link.sweep);
            is_kept |= link.sweep != id && other <= SweepState::kPaused;
          }
          if (!is_kept) {
            is_settled = false;
            break;
          }
        }
      }
      if (is_settled) settled.emplace_back(id, SweepState::kCancelled);
    }
  }
  for (const auto& [id, to] : settled) SetSweepState(id, to);
}

Decision Draft::Finish() {
  SettleSweeps();
  std::vector<Change>& out = decision.changes;
  out = std::move(inserts_);
  for (auto& [id, row] : new_workers_) out.emplace_back(std::move(row));
  for (auto& [id, row] : workers_) {
    if (row != state_.FindWorker(id)->row) out.emplace_back(std::move(row));
  }
  for (auto& [id, contact] : contacts_) out.emplace_back(std::move(contact));
  for (auto& [id, status] : sweeps_) {
    const Sweep* sweep = state_.FindSweep(id);
    if (sweep == nullptr || status != sweep->status) out.emplace_back(std::move(status));
  }
  for (auto& [epoch, members] : members_) {
    const Attempt* attempt = state_.FindAttempt(epoch);
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] != attempt->members[i]) out.emplace_back(std::move(members[i]));
    }
  }
  for (auto& [epoch, status] : attempts_) {
    if (status != state_.FindAttempt(epoch)->status) out.emplace_back(std::move(status));
  }
  for (auto& [epoch, streams] : streams_) {
    const Attempt* attempt = state_.FindAttempt(epoch);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (streams[i] != attempt->streams[i]) out.emplace_back(std::move(streams[i]));
    }
  }
  for (auto& [id, rows] : checkpoints_) {
    const std::vector<CheckpointRow>& before = state_.FindRun(id)->checkpoints;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i >= before.size() || rows[i].state != before[i].state ||
          rows[i].pinned != before[i].pinned) {
        out.emplace_back(std::move(rows[i]));
      }
    }
  }
  for (auto& [id, status] : runs_) {
    if (status != state_.FindRun(id)->status) out.emplace_back(std::move(status));
  }
  for (Change& change : appended_) out.emplace_back(std::move(change));
  for (const std::string& project : used_) {
    out.emplace_back(UsageRow{.project = project,
                              .slot_seconds = state_.UsageOf(project, now_.now),
                              .at_ms = now_.unix_ms});
  }
  for (Change& change : volatile_) out.emplace_back(std::move(change));
  for (const WorkerId worker : want_changed_) {
    out.emplace_back(scheduler::WantChanged{worker});
  }
  return std::move(decision);
}

}  // namespace switchyard::scheduler
