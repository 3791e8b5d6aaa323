// The invariants that are checked at intervals, while nothing fails any more, and at the end.
#include <algorithm>

#include "server/results/lineage.h"
#include "server/scheduler/plan.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using scheduler::IsTerminal;
using scheduler::RunState;
using scheduler::SweepState;

// ---------------------------------------------------------------- everything, now and then

void World::CheckAll() {
  std::map<SweepId, scheduler::StateCounts> counts;
  for (const scheduler::LinkRow& link : image.links) {
    ++counts[link.sweep][static_cast<size_t>(image.runs.at(link.run).second.state)];
  }
  for (const auto& [id, sweep] : image.sweeps) {
    if (IsTerminal(sweep.second.state)) continue;
    if (counts[id] != sweep.second.counts) Fail("S19", "the counts of a sweep are not a recount");
  }
  for (const auto& [epoch, attempt] : image.attempts) {
    uint64_t next = 1;
    for (const auto& [first, last] : attempt.chunks) {
      if (first != next || last < first) {
        Fail("S9",
             StrCat("chunks of ", epoch.value, ": ", first, "..", last, " behind ", next - 1));
        break;
      }
      next = last + 1;
    }
    if (next != attempt.lines.size() + 1) {
      Fail("S9", StrCat("chunks of ", epoch.value, " end at ", next - 1, ", lines at ",
                        attempt.lines.size()));
    }
  }
  // What a restore takes back, it takes back when a coordinator starts from it.
  const bool is_restoring =
      !coordinator.process.is_alive() && (needs_restore_decision || image.tail < sentinel);
  for (const AckedCall& acked : acked_calls) {
    if (is_restoring || acked.generation != image.generation) continue;
    const auto idem = image.idem.find(acked.call.request_id);
    if (idem == image.idem.end() || idem->second.body != acked.call.body()) {
      Fail("S16", StrCat("an acknowledged call is not there: ", acked.call.request_id));
      continue;
    }
    if (acked.call.kind == ClientCall::Kind::kSteerRun && acked.call.IsEnd()) {
      const auto run = image.runs.find(acked.call.run);
      if (run != image.runs.end() && !run->second.second.cancel_req &&
          !IsTerminal(run->second.second.state)) {
        Fail("S16", "an acknowledged cancel has no effect");
      }
    }
  }
  // Memory is a cache of the rows.
  if (!coordinator.process.is_alive() || !coordinator.state) return;
  for (const auto& [id, run] : coordinator.state->runs) {
    const auto stored = image.runs.find(id);
    if (stored == image.runs.end() || stored->second.second != run.status) {
      Fail("S16", StrCat("memory and rows differ about run ", id.value.ToString()));
    }
  }
  for (const auto& [epoch, attempt] : coordinator.state->attempts) {
    const auto stored = image.attempts.find(epoch);
    if (stored == image.attempts.end() || stored->second.status != attempt.status ||
        stored->second.stream != attempt.streams[0] ||
        stored->second.member != attempt.members[0]) {
      Fail("S16", StrCat("memory and rows differ about attempt ", epoch.value));
    }
  }
}

// S7: a run whose lease ends before a replacement executes in one place.
void World::CheckSteps() {
  std::map<RunId, const Trainer*> stepping;
  for (const auto& host : hosts) {
    for (const Trainer* trainer : host->live) {
      const Nanos awake = std::max(trainer->awake_since, trainer->starved_until) + 2 * kSec;
      const AttemptDir* own = host->FindDir(trainer->key());
      if (trainer->process.is_alive() && !trainer->process.is_stopped() && trainer->emitted_ > 0 &&
          own != nullptr && engine.now() > awake && host->Boottime() > 2 * kSec &&
          own->lease.IsPast(host->Boottime() - 2 * kSec)) {
        Fail("S8", StrCat("attempt ", trainer->key().epoch, " lives on past its lease"));
        return;
      }
      if (!trainer->is_stepping() || trainer->is_hung) continue;
      const auto run = image.runs.find(trainer->run_);
      if (run == image.runs.end()) continue;
      const scheduler::RunRow& row = run->second.first;
      const bool has_short_lease = row.timeout_ms > 0 && row.timeout_ms <= 570'000;
      if (!has_short_lease && row.policy.profile != scheduler::Profile::kExclusive) continue;
      const AttemptDir* dir = host->FindDir(trainer->key());
      // Woken past its lease, or at its end, it has two polls to notice.
      if (engine.now() < trainer->awake_since + 600 * kMs) continue;
      if (dir != nullptr && dir->lease.deadline_boottime_ns + 600 * kMs > host->Boottime() &&
          dir->lease.deadline_boottime_ns < host->Boottime()) {
        continue;
      }
      const auto [other, is_first] = stepping.emplace(trainer->run_, trainer);
      // A restored coordinator does not know what the one before it had placed since the backup;
      // only runs that ask for it wait until that has ended.
      const bool is_restored = other->second->key().epoch >> 48 != trainer->key().epoch >> 48;
      const bool is_exclusive = row.policy.profile == scheduler::Profile::kExclusive;
      if (!is_first && (!is_restored || is_exclusive)) {
        Fail("S7", StrCat("attempts ", other->second->key().epoch, " and ", trainer->key().epoch,
                          " of one run execute steps"));
      }
    }
  }
}

// L3, L4 while nothing fails any more.
void World::CheckLiveness() {
  if (!coordinator.process.is_alive() || !coordinator.state) return;
  const scheduler::State& state = *coordinator.state;
  std::erase_if(idle_since_, [&](const auto& entry) {
    const scheduler::Worker* worker = state.FindWorker(entry.first);
    return worker == nullptr || !worker->IsPlaceable() || !worker->attempts.empty();
  });
  // The core's clock stands still while it lags; its newest contact tells where it is.
  Timestamp now;
  for (const auto& [id, worker] : state.workers) now = std::max(now, worker.last);
  for (const auto& [id, run] : state.runs) {
    if (run.status.cancel_req && !IsTerminal(run.status.state) &&
        engine.now() - quiet_since_ > 10 * kMin + 200 * kSec) {
      const scheduler::Attempt* attempt = state.FindAttempt(run.status.current_epoch);
      const bool waits = attempt != nullptr && IsTerminal(attempt->members[0].state);
      if (!waits) Fail("L4", StrCat("a cancelled run is still ", Name(run.status.state)));
    }
    if (run.status.state == RunState::kQueued) CheckIdle(run, now);
  }
}

// L3: no healthy worker is idle while a run that fits it waits, be it for its checkpoint's store.
void World::CheckIdle(const scheduler::Run& run, Timestamp now) {
  const scheduler::State& state = *coordinator.state;
  const std::optional<Timestamp> held = scheduler::HeldAfterRestore(state, run);
  if (held.has_value() && now < *held) return See(Point::held_after_restore);
  // What was held waits for a place from then on.
  const Milliseconds waited = now - std::max(run.queued_since, held.value_or(run.queued_since));
  const Nanos quiet = engine.now() - quiet_since_;
  if (waited < Milliseconds(60'000) || quiet < kMin || run.row.max_parallel != 0) return;
  const bool is_wanted = std::ranges::any_of(run.links, [&](const scheduler::SweepLink& link) {
    return state.FindSweep(link.sweep)->status.state == SweepState::kActive;
  });
  if (!is_wanted) return;
  for (const auto& [id, worker] : state.workers) {
    const bool is_idle = worker.IsPlaceable() && worker.held.empty() && worker.attempts.empty();
    if (!is_idle || worker.CountFree(run.row.need.kind) < run.row.need.count) continue;
    idle_since_.try_emplace(id, engine.now());
    const bool is_blamed = std::ranges::any_of(
        run.status.evidence.workers,
        [&, id = id](const scheduler::WorkerBlame& blame) { return blame.worker == id; });
    const bool has_store =
        run.checkpoints.empty() || run.checkpoints.back().store == worker.row.checkpoint_store;
    if (!has_store) See(Point::waited_for_checkpoint_store);
    const Milliseconds limit(has_store ? 60'000 : 660'000);
    if (is_blamed || waited < limit || engine.now() - idle_since_[id] < kMin) continue;
    Fail("L3", StrCat("worker ", worker.row.host, " is idle while a run waits for ",
                      waited.count() / 1000, " s: ", scheduler::ExplainWait(state, run, now)));
  }
}

// ---------------------------------------------------------------- the end

// What is known of an attempt here and there, for a failure's text.
std::string World::Describe(Epoch epoch) {
  const auto found = image.attempts.find(epoch);
  if (found == image.attempts.end()) return "";
  const StoredAttempt& attempt = found->second;
  Host& host = HostOf(attempt.row.worker);
  const AttemptDir* dir = host.FindDir({epoch.value, 0});
  return StrCat("; attempt ", epoch.value, " is ", Name(attempt.status.state), ", its rank ",
                Name(attempt.member.state), ", lines through ", attempt.stream.acked, " of ",
                attempt.stream.declared_last.value_or(0), " stored; host ", host.index,
                dir == nullptr ? " has no directory" : StrCat(" has ", dir->lines.size(), " lines"),
                ", ", host.agent.Describe({epoch.value, 0}));
}

void World::CheckEnd() {
  CheckAll();
  for (const auto& [id, sweep] : image.sweeps) {
    if (sweep.second.state != SweepState::kCancelling) continue;
    Fail("L1", StrCat("sweep ", sweep.first.name, " is still being cancelled"));
  }
  for (const auto& [id, run] : image.runs) {
    if (!IsTerminal(run.second.state) && run.second.state != RunState::kPaused) {
      const bool fits = std::ranges::any_of(
          hosts, [&](const auto& host) { return host->slots >= run.first.need.count; });
      const bool is_wanted = std::ranges::any_of(image.links, [&](const scheduler::LinkRow& link) {
        return link.run == id && image.sweeps.at(link.sweep).second.state == SweepState::kActive;
      });
      if (fits && is_wanted) {
        Fail("L1", StrCat("run ", id.value.ToString(), " is ", Name(run.second.state), " with ",
                          run.second.attempts, " attempts: ", run.second.reason,
                          Describe(run.second.current_epoch)));
      }
    }
    CheckCurve(id);
  }
  for (const auto& host : hosts) CheckDisk(*host);
}

// A restore took lines of it from the record, and no disk has them any more.
bool World::IsGone(Epoch epoch) {
  const AttemptFacts& facts = attempt_facts[epoch];
  if (!facts.is_rewound || !facts.assigned.has_value()) return false;
  const auto stored = image.attempts.find(epoch);
  const uint64_t lines = stored == image.attempts.end() ? 0 : stored->second.lines.size();
  return lines < facts.emitted.size() && has_lost(*facts.assigned);
}

// S12: the canonical curve has each step once.
void World::CheckCurve(RunId id) {
  std::vector<results::AttemptStart> starts;
  for (const auto& [epoch, attempt] : image.attempts) {
    if (attempt.row.run != id) continue;
    starts.push_back({.epoch = epoch,
                      .ordinal = attempt.row.ordinal,
                      .is_reported = attempt.status.start_reported,
                      .resumed_epoch = attempt.status.resumed_epoch,
                      .resumed_step = attempt.status.resumed_step});
  }
  std::map<uint64_t, uint32_t> steps;
  uint64_t newest = 0;
  bool is_excused = false;
  for (const results::Segment& segment :
       results::CanonicalSegments(starts, results::CanonicalHead(starts))) {
    const StoredAttempt& attempt = image.attempts.at(segment.epoch);
    // What it resumed from lies before this one's own points.
    const uint64_t from = attempt.status.resumed_step;
    const Epoch before = attempt.status.resumed_epoch;
    is_excused |= IsGone(segment.epoch) || (!image.attempts.contains(before) && IsGone(before));
    if (attempt_facts[before].is_recovered) See(Point::resumed_from_recovered);
    for (const Line& line : attempt.lines) {
      if (line.kind != LineKind::kMetric || line.step > segment.step_max) continue;
      if (line.step <= from) {
        Fail("S12", StrCat("attempt ", segment.epoch.value, " repeats step ", line.step));
      }
      ++steps[line.step];
      newest = std::max(newest, line.step);
    }
  }
  for (uint64_t step = 1; step <= newest && !is_excused; ++step) {
    if (steps[step] != 1) {
      Fail("S12", StrCat("the curve of run ", id.value.ToString(), " has step ", step, " ",
                         steps[step], " times"));
      break;
    }
  }
  const auto& [row, status] = image.runs.at(id);
  if (status.state == RunState::kSucceeded && newest != row.steps_total && !is_excused) {
    Fail("S12", StrCat("a run of ", row.steps_total, " steps succeeded with ", newest));
  }
}

// What is on the disk of a host has come into the record, and nobody runs on.
void World::CheckDisk(Host& host) {
  for (const Trainer* trainer : host.live) {
    const auto attempt = image.attempts.find(Epoch{trainer->key().epoch});
    if (attempt == image.attempts.end() || IsTerminal(attempt->second.status.state)) {
      Fail("S8", StrCat("the trainer of ", trainer->key().epoch, ", which has ended, runs on"));
    }
  }
  if (host.agent.state && !host.agent.IsSpooled()) {
    Fail("L1", StrCat("host ", host.index, " has lines that were never sent"));
  }
  for (const auto& [key, dir] : host.dirs) {
    const auto attempt = image.attempts.find(Epoch{key.epoch});
    if (attempt == image.attempts.end()) {
      if (!image.runs.contains({*Uuid::Parse(dir.run_id)})) {
        See(Point::unknown_run_left);
      } else {
        Fail("S9", StrCat("host ", host.index, " has ", dir.lines.size(), " lines of attempt ",
                          key.epoch, ", of which the record knows the run alone"));
      }
      continue;
    }
    if (attempt->second.stream.sealed || dir.has_lost_lines || host.FindTrainer(key) != nullptr) {
      continue;
    }
    if (attempt->second.lines.size() < dir.lines.size()) {
      Fail("S9", StrCat("attempt ", key.epoch, " emitted ", dir.lines.size(), " lines, stored ",
                        attempt->second.lines.size()));
    }
  }
}

}  // namespace switchyard::simulation
