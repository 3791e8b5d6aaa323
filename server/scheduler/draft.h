#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/scheduler/decision.h"

namespace switchyard::scheduler {

// A decision in the making: copies of the statuses that change, over an unchanged state. Every
// change of a state goes through the tables of transitions.h (checked).
class Draft {
 public:
  Draft(const State& state, const Now& now) : state_(state), now_(now) {}

  const State& state() const { return state_; }
  const Now& now() const { return now_; }

  // As they stand in the draft. The entity must exist.
  SweepStatus& sweep(SweepId id);
  RunStatus& run(RunId id);
  AttemptStatus& attempt(Epoch epoch);
  std::vector<MemberRow>& members(Epoch epoch);
  std::vector<StreamRow>& streams(Epoch epoch);
  WorkerRow& worker(WorkerId id);
  WorkerContact& contact(WorkerId id);
  // For reading: whatever the draft says, else the state.
  RunState RunStateOf(RunId id) const;
  SweepState SweepStateOf(SweepId id) const;
  // PUBLISHED checkpoints and what has become of them in this decision, in order of publishing.
  std::vector<CheckpointRow>& checkpoints(RunId id);
  // Step of the newest published checkpoint; 0: none.
  uint64_t PublishedStep(RunId id);

  void SetSweepState(SweepId id, SweepState to);
  // Keeps the counts of the linking sweeps.
  void SetRunState(RunId id, RunState to, std::string_view reason);
  void SetAttemptState(Epoch epoch, AttemptState to);
  void SetMemberState(MemberRow& member, MemberState to);
  void SetCheckpointState(CheckpointRow& checkpoint, CheckpointState to);
  void SetContact(WorkerId id, Contact to);
  void SetAdmin(WorkerId id, AdminState to, std::string_view reason);
  // W10, W11.
  void SetCordon(WorkerId id, bool cordoned, std::string_view reason);

  void WantChanged(WorkerId worker) { want_changed_.insert(worker); }
  void Volatile(Change change) { volatile_.push_back(std::move(change)); }
  void Add(SweepRow row);
  void Add(SweepExtension row) { inserts_.emplace_back(std::move(row)); }
  void Add(RunRow row, int32_t priority);
  void Add(LinkRow row) { inserts_.emplace_back(std::move(row)); }
  void Add(AttemptRow row, MemberRow member);
  // One that has ended before it is known. `reason`: of its loss.
  void AddLost(AttemptRow row, MemberRow member, std::string reason);
  bool HasAdded(Epoch epoch) const { return added_.contains(epoch); }
  // In memory before everything else of the decision.
  void Add(EndedRunBack run) { inserts_.emplace_back(std::move(run)); }
  // A row that is not among checkpoints().
  void Add(CheckpointRow row) { appended_.emplace_back(std::move(row)); }
  void Add(WorkerRow row) { new_workers_[row.id] = std::move(row); }
  void History(std::string_view kind, Uuid ref, std::string text);
  void Stale(StaleKind kind) { decision.stale.push_back(kind); }

  // Settles sweeps whose runs are done, and moves the changes into the decision.
  Decision Finish();

  Decision decision;

 private:
  void SettleSweeps();
  void AddAttempt(AttemptRow row, AttemptStatus status, MemberRow member);

  const State& state_;
  const Now now_;
  std::vector<Change> inserts_;
  std::vector<Change> appended_;
  std::map<SweepId, SweepRow> new_sweeps_;
  std::map<SweepId, SweepStatus> sweeps_;
  std::map<RunId, RunStatus> runs_;
  std::map<Epoch, AttemptStatus> attempts_;
  std::map<Epoch, std::vector<MemberRow>> members_;
  std::map<Epoch, std::vector<StreamRow>> streams_;
  std::map<WorkerId, WorkerRow> workers_;
  std::map<WorkerId, WorkerRow> new_workers_;
  std::map<WorkerId, WorkerContact> contacts_;
  std::map<RunId, std::vector<CheckpointRow>> checkpoints_;
  std::set<WorkerId> want_changed_;
  std::vector<Change> volatile_;
  std::set<std::string> used_;  // projects whose members have ended
  std::set<Epoch> added_;       // attempts
};

}  // namespace switchyard::scheduler
