#include "server/scheduler/apply.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/guard.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

class Applier {
 public:
  Applier(State* state, const Now& now) : state_(*state), now_(now) {}

  void operator()(const SweepRow& row) {
    Sweep& sweep = state_.sweeps[row.id];
    sweep.row = row;
    sweep.row.spec.clear();
    sweep.status.id = row.id;
  }

  void operator()(const SweepExtension& extension) {
    const auto found = state_.sweeps.find(extension.id);
    SWITCHYARD_CHECK(found != state_.sweeps.end()) << "extension of an unknown sweep";
    SweepRow& row = found->second.row;
    row.spec_hash = extension.spec_hash;
    row.axes = extension.axes;
    row.cells = extension.cells;
    row.runs = extension.runs;
    row.is_drawn = true;
  }

  void operator()(const SweepStatus& status) {
    const auto found = state_.sweeps.find(status.id);
    SWITCHYARD_CHECK(found != state_.sweeps.end()) << "status of an unknown sweep";
    found->second.status = status;
    if (!IsTerminal(status.state)) return;
    for (const RunId id : found->second.live_runs) {
      std::erase_if(state_.runs.at(id).links,
                    [&](const SweepLink& link) { return link.sweep == status.id; });
    }
    state_.sweeps.erase(found);
  }

  void operator()(const RunRow& row) {
    Run& run = state_.runs[row.id];
    run.row = row;
    run.row.spec = {};
    run.row.attempt_spec = {};
    // Not queued yet: its status follows.
    run.status.id = row.id;
    run.status.state = RunState::kPaused;
    state_.live_keys[LiveKey(row.project, row.run_key)] = row.id;
  }

  void operator()(const RunStatus& status) {
    Run& run = state_.runs.at(status.id);
    const RunState before = run.status.state;
    // A queued run with another priority or need waits in another line, as old as it is.
    const bool moves =
        before == RunState::kQueued && status.state == before &&
        (status.priority != run.status.priority || status.alternative != run.status.alternative);
    if (before != status.state || moves) Leave(run, before);
    run.status = status;
    if (moves) {
      Insert(run);
    } else if (before != status.state) {
      Enter(run, status.state);
    }
    if (IsTerminal(status.state)) {
      const auto key = state_.live_keys.find(LiveKey(run.row.project, run.row.run_key));
      if (key != state_.live_keys.end() && key->second == status.id) state_.live_keys.erase(key);
      for (const SweepLink& link : run.links) {
        const auto sweep = state_.sweeps.find(link.sweep);
        if (sweep != state_.sweeps.end()) sweep->second.live_runs.erase(status.id);
      }
      run.links.clear();
      DropRunWhenDone(status.id);
    }
  }

  void operator()(const LinkRow& row) {
    const auto run = state_.runs.find(row.run);
    if (run == state_.runs.end() || IsTerminal(run->second.status.state)) return;
    run->second.links.push_back({.sweep = row.sweep, .number = row.number});
    state_.sweeps.at(row.sweep).live_runs.insert(row.run);
  }

  void operator()(const AttemptRow& row) {
    Attempt& attempt = state_.attempts[row.epoch];
    attempt.row = row;
    attempt.status.epoch = row.epoch;
    attempt.assigned_at = now_.now;
    state_.runs.at(row.run).attempts.push_back(row.epoch);
    state_.last_epoch = std::max(state_.last_epoch, row.epoch.value);
    const auto worker = state_.workers.find(row.worker);
    if (worker != state_.workers.end()) worker->second.attempts.insert(row.epoch);
  }

  void operator()(const AttemptStatus& status) {
    Attempt& attempt = state_.attempts.at(status.epoch);
    const AttemptState before = attempt.status.state;
    attempt.status = status;
    if (status.running_ms > 0 && !attempt.running_since.has_value()) {
      // Now, or after a restart as long ago as the stored times say.
      const int64_t ago = std::max<int64_t>(0, now_.unix_ms - status.running_ms);
      attempt.running_since = now_.now + Milliseconds(-ago);
    }
    if (!IsTerminal(status.state) || IsTerminal(before)) return;
    attempt.ended_at = now_.now;
    const auto worker = state_.workers.find(attempt.row.worker);
    if (worker != state_.workers.end()) {
      worker->second.attempts.erase(status.epoch);
      worker->second.ended.insert(status.epoch);
    }
  }

  void operator()(const MemberRow& row) {
    Attempt& attempt = state_.attempts.at(row.epoch);
    if (attempt.members.size() <= row.rank) attempt.members.resize(row.rank + 1);
    attempt.members[row.rank] = row;
    const auto worker = state_.workers.find(row.worker);
    if (worker == state_.workers.end()) return;
    const auto run = state_.runs.find(attempt.row.run);
    for (const uint32_t slot : row.slots) {
      const auto held = worker->second.held.find(slot);
      if (!IsTerminal(row.state)) {
        SWITCHYARD_CHECK(held == worker->second.held.end() || held->second == row.epoch)
            << "slot " << slot << " is held twice";
        if (worker->second.held.emplace(slot, row.epoch).second) Use(run, 1);
      } else if (held != worker->second.held.end() && held->second == row.epoch) {
        worker->second.held.erase(held);
        Use(run, -1);
      }
    }
  }

  void operator()(const StreamRow& row) {
    const auto found = state_.attempts.find(row.epoch);
    SWITCHYARD_CHECK(found != state_.attempts.end()) << "stream of an unknown attempt";
    Attempt& attempt = found->second;
    if (attempt.streams.size() <= row.rank) attempt.streams.resize(row.rank + 1);
    attempt.streams[row.rank] = row;
    const bool all_sealed =
        std::ranges::all_of(attempt.streams, [](const StreamRow& stream) { return stream.sealed; });
    if (!all_sealed || !IsTerminal(attempt.status.state)) return;
    const RunId run = attempt.row.run;
    const auto worker = state_.workers.find(attempt.row.worker);
    if (worker != state_.workers.end()) worker->second.ended.erase(row.epoch);
    std::erase(state_.runs.at(run).attempts, row.epoch);
    state_.attempts.erase(found);
    DropRunWhenDone(run);
  }

  void operator()(const CheckpointRow& row) {
    const CheckpointRef ref{.run = row.run, .epoch = row.epoch, .step = row.step};
    const auto run = state_.runs.find(row.run);
    if (run != state_.runs.end()) {
      std::vector<CheckpointRow>& rows = run->second.checkpoints;
      const auto known = std::ranges::find_if(rows, [&](const CheckpointRow& other) {
        return other.epoch == row.epoch && other.step == row.step;
      });
      if (row.state != CheckpointState::kPublished) {
        if (known != rows.end()) rows.erase(known);
      } else if (known != rows.end()) {
        *known = row;
      } else {
        rows.push_back(row);
      }
    }
    const bool is_doomed =
        row.state == CheckpointState::kSuperseded || row.state == CheckpointState::kTombstoned;
    if (is_doomed) {
      const int64_t ago = std::max<int64_t>(0, now_.unix_ms - row.state_ms);
      state_.doomed[ref] = {.row = row, .since = now_.now + Milliseconds(-ago)};
    } else {
      state_.doomed.erase(ref);
    }
  }

  void operator()(const UsageRow& row) {
    // As of now: what is held is added by the rows of the members.
    Usage& usage = state_.usage[row.project];
    const double age = static_cast<double>(std::max<int64_t>(0, now_.unix_ms - row.at_ms)) / 1000;
    usage.slot_seconds = row.slot_seconds * std::exp2(-age / kUsageHalfLifeSeconds);
    usage.at = now_.now;
  }

  void operator()(const WorkerRow& row) {
    Worker& worker = state_.workers[row.id];
    worker.row = row;
    if (worker.want_rev == 0) worker.want_rev = state_.rev_n;
  }

  void operator()(const HistoryRow&) {}

  void operator()(const WorkerContact& contact) {
    Worker& worker = state_.workers.at(contact.worker);
    worker.contact = contact.contact;
    worker.nonce = contact.nonce;
    worker.hb_seq = contact.hb_seq;
    worker.last = contact.last;
    worker.applied = contact.applied;
    worker.instance_changed = contact.instance_changed;
    worker.is_leaving = contact.is_leaving;
  }

  void operator()(const AttemptObserved& observed) {
    const auto attempt = state_.attempts.find(observed.epoch);
    if (attempt != state_.attempts.end()) attempt->second.is_observed = true;
  }

  void operator()(const AttemptStep& step) {
    const auto attempt = state_.attempts.find(step.epoch);
    if (attempt != state_.attempts.end()) attempt->second.step = step.step;
  }

  void operator()(const AgentRestarted& restarted) {
    const auto attempt = state_.attempts.find(restarted.epoch);
    if (attempt != state_.attempts.end()) attempt->second.agent_restarted = restarted.restarted;
  }

  void operator()(const InfraEnd& end) {
    auto& ends = state_.workers.at(end.worker).infra_ends;
    ends.emplace_back(now_.now, end.run);
    while (now_.now - ends.front().first > kCordonWindow) ends.pop_front();
  }

  void operator()(const EndedRunBack& back) {
    const auto [run, is_new] = state_.runs.try_emplace(back.row.id);
    if (!is_new) return;
    run->second.row = back.row;
    run->second.status = back.status;
    run->second.is_loaded = true;
  }

  void operator()(const WantChanged& changed) {
    const auto worker = state_.workers.find(changed.worker);
    if (worker != state_.workers.end()) worker->second.want_rev = ++state_.rev_n;
  }

 private:
  void Leave(Run& run, RunState from) {
    if (from == RunState::kQueued) {
      const QueueKey key = QueueKeyOf(run);
      const auto line = state_.queue.find(key);
      line->second.erase({run.queue_order, run.row.id});
      if (line->second.empty()) state_.queue.erase(line);
      --state_.queued;
    }
    if (from == RunState::kBackoff) state_.backoff.erase(run.row.id);
  }

  void Enter(Run& run, RunState to) {
    if (to == RunState::kQueued) {
      run.queue_order = ++state_.queue_order;
      run.queued_since = now_.now;
      Insert(run);
    }
    if (to == RunState::kBackoff) {
      // The stored time is for people; the wait itself is on the core's clock.
      // After a restart the stored time may be far off: the wall clock may have been set meanwhile.
      run.not_before =
          now_.now + Milliseconds(std::clamp<int64_t>(run.status.not_before_ms - now_.unix_ms, 0,
                                                      kBackoffMax.count()));
      state_.backoff.insert(run.row.id);
    }
  }

  void Insert(const Run& run) {
    state_.queue[QueueKeyOf(run)].insert({run.queue_order, run.row.id});
    ++state_.queued;
  }

  void Use(std::unordered_map<RunId, Run>::const_iterator run, int32_t slots_more) {
    if (run == state_.runs.end()) return;
    state_.usage[run->second.row.project].Change(now_.now, slots_more);
  }

  void DropRunWhenDone(RunId id) {
    const auto run = state_.runs.find(id);
    if (run != state_.runs.end() && IsTerminal(run->second.status.state) &&
        run->second.attempts.empty()) {
      state_.runs.erase(run);
    }
  }

  State& state_;
  const Now& now_;
};

}  // namespace

void Apply(std::span<const Change> changes, const Now& now, State* state) {
  Applier applier(state, now);
  for (const Change& change : changes) std::visit(applier, change);
}

Rev NextRev(State* state) {
  return {.generation = state->generation, .boot = state->boot, .n = ++state->rev_n};
}

State Restore(StoredRows rows, const Now& now) {
  State state;
  state.cluster_id = std::move(rows.cluster_id);
  state.generation = rows.generation;
  state.boot = rows.boot;
  state.loaded_at = now.now;
  state.last_epoch = std::max(rows.last_epoch, uint64_t{rows.generation} << 48);
  Applier applier(&state, now);
  for (const UsageRow& row : rows.usage) applier(row);
  for (const WorkerRow& row : rows.workers) {
    applier(row);
    // Nobody could be heard while the coordinator was down.
    const bool is_unheard = SWITCHYARD_GUARD(X01, false);
    state.workers.at(row.id).last = is_unheard ? Timestamp{} : now.now;
  }
  for (const SweepRow& row : rows.sweeps) applier(row);
  for (const SweepStatus& status : rows.sweep_status) applier(status);
  for (const RunRow& row : rows.runs) {
    applier(row);
    state.runs.at(row.id).is_loaded = true;
  }
  // In the order in which they had queued up.
  std::ranges::sort(rows.run_status, [](const RunStatus& a, const RunStatus& b) {
    return std::tie(a.queued_ms, a.id) < std::tie(b.queued_ms, b.id);
  });
  // Runs stay until their attempts are in, also those that have ended.
  for (const RunStatus& status : rows.run_status) {
    if (!IsTerminal(status.state)) applier(status);
  }
  for (const LinkRow& row : rows.links) applier(row);
  for (const AttemptRow& row : rows.attempts) applier(row);
  for (const AttemptStatus& status : rows.attempt_status) applier(status);
  for (const MemberRow& row : rows.members) applier(row);
  for (const StreamRow& row : rows.streams) applier(row);
  for (const RunStatus& status : rows.run_status) {
    if (IsTerminal(status.state)) applier(status);
  }
  for (const CheckpointRow& row : rows.checkpoints) applier(row);
  // Rows of ended runs may have taken the place of a live one with the same identity.
  for (const RunRow& row : rows.runs) {
    const Run* run = state.FindRun(row.id);
    if (run == nullptr || IsTerminal(run->status.state)) continue;
    state.live_keys[LiveKey(row.project, row.run_key)] = row.id;
  }
  return state;
}

}  // namespace switchyard::scheduler
