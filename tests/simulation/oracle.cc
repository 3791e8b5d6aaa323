// The invariants: rows are checked as they become durable, the rest at intervals and at the end.
#include <algorithm>

#include "server/results/lineage.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/plan.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using scheduler::AttemptState;
using scheduler::Change;
using scheduler::IsTerminal;
using scheduler::MemberState;
using scheduler::RunState;
using scheduler::SweepState;

// ---------------------------------------------------------------- rows become durable

// Within a transaction order does not matter to what follows: attempts that come back, lines, and
// then the rest.
std::vector<const Row*> World::InOrder(const Group& group) const {
  std::vector<const Row*> rows;
  for (const Row& row : group) rows.push_back(&row);
  const auto rank = [this](const Row* row) {
    if (std::holds_alternative<NewLines>(*row)) return 1;
    const auto* change = std::get_if<Change>(row);
    const auto* attempt = change == nullptr ? nullptr : std::get_if<scheduler::AttemptRow>(change);
    return attempt != nullptr && scheduler::GenerationOf(attempt->epoch) < image.generation ? 0 : 2;
  };
  std::ranges::stable_sort(rows, {}, rank);
  return rows;
}

void World::CommitRows(const Group& group) {
  std::set<Epoch> ended;
  for (const Row* row : InOrder(group)) ApplyRow(*row, &ended);
  ++image.tail;
  for (const Row& row : group) {
    const auto* change = std::get_if<Change>(&row);
    if (change == nullptr) continue;
    if (const auto* stream = std::get_if<scheduler::StreamRow>(change)) {
      const StoredAttempt& attempt = image.attempts.at(stream->epoch);
      if (attempt.stream.acked != attempt.lines.size()) {
        Fail("S9", StrCat("attempt ", stream->epoch.value, " is acknowledged through ",
                          attempt.stream.acked, ", stored are ", attempt.lines.size()));
      }
    } else if (const auto* checkpoint = std::get_if<scheduler::CheckpointRow>(change)) {
      // S26, first half: the line itself and all before it are stored.
      const StoredAttempt& attempt = image.attempts.at(checkpoint->epoch);
      const bool has_line = std::ranges::any_of(attempt.lines, [&](const Line& line) {
        return line.kind == LineKind::kCheckpoint && line.step == checkpoint->step;
      });
      if (!has_line) Fail("S26", StrCat("checkpoint ", checkpoint->path, " before its line"));
    } else if (const auto* status = std::get_if<scheduler::AttemptStatus>(change)) {
      const StoredAttempt& attempt = image.attempts.at(status->epoch);
      if (!IsTerminal(status->state)) continue;
      CheckRun(attempt.row.run);
      CheckAnnounced(attempt);
    } else if (const auto* run = std::get_if<scheduler::RunStatus>(change)) {
      CheckRun(run->id);
    } else if (const auto* sweep = std::get_if<scheduler::SweepStatus>(change)) {
      if (!IsTerminal(sweep->state)) continue;
      for (const scheduler::LinkRow& link : image.links) {
        if (link.sweep != sweep->id || IsTerminal(image.runs.at(link.run).second.state)) continue;
        const bool is_kept = std::ranges::any_of(image.links, [&](const scheduler::LinkRow& other) {
          return other.run == link.run && other.sweep != sweep->id &&
                 image.sweeps.at(other.sweep).second.state <= SweepState::kCancelling;
        });
        if (!is_kept) Fail("S5", "a sweep has ended, a run of it alone has not");
      }
    }
  }
  if (!keeps_wal) return;
  wal.push_back(group);
  if (wal.size() >= 64) {
    checkpointed = image;
    wal.clear();
  }
}

void World::ApplyRow(const Row& row, std::set<Epoch>* ended) {
  const bool is_replay = ended == nullptr;
  const auto fail = [&](std::string_view id, std::string text) {
    if (!is_replay) Fail(id, std::move(text));
  };
  if (const auto* lines = std::get_if<NewLines>(&row)) {
    StoredAttempt& attempt = image.attempts.at(lines->epoch);
    if (lines->first_seq != attempt.lines.size() + 1 || lines->lines.empty()) {
      fail("S9", StrCat("lines ", lines->first_seq, ".. of ", lines->epoch.value, " behind ",
                        attempt.lines.size()));
      return;
    }
    const std::vector<Line>& emitted = attempt_facts[lines->epoch].emitted;
    for (size_t i = 0; i < lines->lines.size(); ++i) {
      const size_t at = lines->first_seq - 1 + i;
      if (at >= emitted.size() || emitted[at] != lines->lines[i]) {
        fail("S11",
             StrCat("line ", at + 1, " of ", lines->epoch.value, " is not what was emitted"));
        return;
      }
    }
    attempt.lines.insert(attempt.lines.end(), lines->lines.begin(), lines->lines.end());
    if (!is_replay && attempt_facts[lines->epoch].is_recovered) See(Point::recovered_lines_stored);
    attempt.chunks.emplace_back(lines->first_seq, attempt.lines.size());
    return;
  }
  if (const auto* gone = std::get_if<ChunkDelete>(&row)) {
    auto& chunks = image.attempts.at(gone->epoch).chunks;
    chunks.erase(chunks.begin(), chunks.begin() + static_cast<int64_t>(gone->count));
    return;
  }
  if (const auto* merged = std::get_if<ChunkInsert>(&row)) {
    auto& chunks = image.attempts.at(merged->epoch).chunks;
    chunks.insert(chunks.begin(), merged->chunk);
    return;
  }
  if (const auto* idem = std::get_if<IdemEntry>(&row)) {
    image.idem[idem->request_id] = *idem;
    return;
  }
  const Change& change = std::get<Change>(row);
  if (const auto* sweep = std::get_if<scheduler::SweepRow>(&change)) {
    image.sweeps[sweep->id].first = *sweep;
    image.sweeps[sweep->id].second.id = sweep->id;
  } else if (const auto* status = std::get_if<scheduler::SweepStatus>(&change)) {
    scheduler::SweepStatus& stored = image.sweeps.at(status->id).second;
    if (IsTerminal(stored.state) && stored.state != status->state) {
      fail("S4", StrCat("sweep ", Name(stored.state), " becomes ", Name(status->state)));
    }
    if (!is_replay && status->state == SweepState::kCancelled) See(Point::sweep_cancelled);
    if (!is_replay && status->state == SweepState::kPaused && stored.state != status->state) {
      See(Point::sweep_paused);
    }
    stored = *status;
  } else if (const auto* run = std::get_if<scheduler::RunRow>(&change)) {
    image.runs[run->id].first = *run;
    image.runs[run->id].second.id = run->id;
    run_steps[run->id] = run->steps_total;
  } else if (const auto* status = std::get_if<scheduler::RunStatus>(&change)) {
    scheduler::RunStatus& stored = image.runs.at(status->id).second;
    if (IsTerminal(stored.state) && *status != stored) {
      fail("S4", StrCat("run ", Name(stored.state), " changes to ", Name(status->state)));
    }
    if (!is_replay && status->state != stored.state) {
      if (status->state == RunState::kSucceeded) {
        See(status->cancel_req ? Point::finish_beats_cancel : Point::run_succeeded);
      }
      if (status->state == RunState::kFailed) See(Point::run_failed);
      if (status->state == RunState::kPaused) See(Point::run_paused);
      if (status->state == RunState::kStoppedEarly) See(Point::run_pruned);
      if (stored.state == RunState::kPaused && status->state == RunState::kQueued) {
        See(Point::run_resumed);
      }
      if (status->state == RunState::kQuarantined) See(Point::run_quarantined);
    }
    if (status->state == RunState::kCancelled && !status->cancel_req) {
      fail("S28", "a run is cancelled and nobody asked for it");
    }
    if (status->state == RunState::kStoppedEarly && !status->prune_req) {
      fail("S28", "a run is stopped early and nobody asked for it");
    }
    if (status->infra_streak >= scheduler::kInfraStreakMax &&
        (status->state == RunState::kQueued || status->state == RunState::kBackoff)) {
      fail("S21", StrCat("a run waits for another attempt after ", status->infra_streak,
                         " without progress"));
    }
    stored = *status;
  } else if (const auto* link = std::get_if<scheduler::LinkRow>(&change)) {
    image.links.push_back(*link);
  } else if (const auto* attempt = std::get_if<scheduler::AttemptRow>(&change)) {
    const bool is_earlier = scheduler::GenerationOf(attempt->epoch) < image.generation;
    if (!is_replay && is_earlier) CheckRecovered(*attempt);
    if (!is_replay && !is_earlier) CheckAssigned(*attempt);
    StoredAttempt& stored = image.attempts[attempt->epoch];
    stored.is_fresh = true;
    stored.row = *attempt;
    stored.status.epoch = attempt->epoch;
    image.last_epoch = std::max(image.last_epoch, attempt->epoch.value);
  } else if (const auto* status = std::get_if<scheduler::AttemptStatus>(&change)) {
    StoredAttempt& attempt = image.attempts.at(status->epoch);
    scheduler::AttemptStatus& stored = attempt.status;
    if (IsTerminal(stored.state) &&
        (stored.state != status->state || stored.stop_reason != status->stop_reason ||
         stored.end_class != status->end_class || stored.ended_ms != status->ended_ms)) {
      fail("S4", StrCat("attempt ", status->epoch.value, " ", Name(stored.state), " changes to ",
                        Name(status->state)));
    }
    if (status->intent < stored.intent) {
      fail("S15", StrCat("intent of ", status->epoch.value, " falls from ", Name(stored.intent),
                         " to ", Name(status->intent)));
    }
    if (status->state == AttemptState::kCancelled &&
        !image.runs.at(attempt.row.run).second.cancel_req) {
      fail("S28", StrCat("attempt ", status->epoch.value, " is cancelled and nobody asked for it"));
    }
    const bool is_recovered =
        attempt.is_fresh && scheduler::GenerationOf(status->epoch) < image.generation;
    if (is_recovered && status->state != AttemptState::kLost) {
      fail("S3", StrCat("attempt ", status->epoch.value, " of an earlier generation begins as ",
                        Name(status->state)));
    }
    attempt.is_fresh = false;
    const bool has_ended = IsTerminal(status->state) && !IsTerminal(stored.state);
    if (!is_replay && status->state == AttemptState::kStopping && stored.state != status->state &&
        IsTerminal(attempt.member.state)) {
      See(Point::stream_wait);
    }
    stored = *status;
    if (is_replay || !has_ended) return;
    ended->insert(status->epoch);
    Trace("attempt ", status->epoch.value, " ends ", Name(status->state), ": ", status->reason);
    if (status->end_class == scheduler::EndClass::kTimeout) See(Point::run_timed_out);
    if (status->stop_reason == scheduler::StopReason::kPreempt) See(Point::preempted_from_outside);
    if (status->stop_reason == scheduler::StopReason::kKill) See(Point::killed_by_user);
    if (attempt.member.exit_code == 0 && attempt.member.signal == 0 && !attempt.member.complete &&
        attempt.member.state == MemberState::kExited) {
      See(Point::incomplete_exit_zero);
    }
    // A process that was seen to end has ended.
    if (attempt.member.state == MemberState::kExited ||
        attempt.member.state == MemberState::kFenced ||
        attempt.member.state == MemberState::kRefused) {
      const Trainer* trainer = HostOf(attempt.row.worker).FindTrainer({status->epoch.value, 0});
      if (trainer != nullptr && !trainer->is_gone) {
        fail("S8", StrCat("attempt ", status->epoch.value, " has ended and its trainer runs"));
      }
    }
    if (status->state == AttemptState::kSucceeded) {
      const AttemptFacts& facts = attempt_facts[status->epoch];
      if (!facts.exit.has_value() || facts.exit->code != 0 || !facts.exit->complete) {
        fail("S25",
             StrCat("attempt ", status->epoch.value, " succeeded without a complete exit record"));
      } else if (attempt.lines.size() < facts.emitted.size() &&
                 attempt.stream.acked < attempt.stream.declared_last.value_or(UINT64_MAX)) {
        fail("S25", StrCat("attempt ", status->epoch.value, " succeeded with ",
                           attempt.lines.size(), " of ", facts.emitted.size(), " lines stored"));
      } else if (attempt.lines.empty() || attempt.lines.back().kind != LineKind::kEnd) {
        fail("S25", StrCat("attempt ", status->epoch.value, " succeeded without its last line"));
      }
    }
  } else if (const auto* member = std::get_if<scheduler::MemberRow>(&change)) {
    StoredAttempt& attempt = image.attempts.at(member->epoch);
    if (IsTerminal(attempt.member.state) && *member != attempt.member) {
      fail("S4", StrCat("member of ", member->epoch.value, " ", Name(attempt.member.state),
                        " changes to ", Name(member->state)));
    }
    if (!IsTerminal(member->state)) {
      for (const auto& [epoch, other] : image.attempts) {
        if (epoch == member->epoch || other.member.worker != member->worker ||
            IsTerminal(other.member.state)) {
          continue;
        }
        for (const uint32_t slot : member->slots) {
          if (std::ranges::count(other.member.slots, slot) > 0) {
            fail("S17",
                 StrCat("slot ", slot, " is held by ", epoch.value, " and ", member->epoch.value));
          }
        }
      }
    }
    attempt.member = *member;
  } else if (const auto* stream = std::get_if<scheduler::StreamRow>(&change)) {
    scheduler::StreamRow& stored = image.attempts.at(stream->epoch).stream;
    if (stream->acked < stored.acked) {
      fail("S9", StrCat("the watermark of ", stream->epoch.value, " falls from ", stored.acked,
                        " to ", stream->acked));
    }
    stored = *stream;
  } else if (const auto* checkpoint = std::get_if<scheduler::CheckpointRow>(&change)) {
    auto& of_run = image.checkpoints[checkpoint->run];
    const auto [found, is_new] =
        of_run.emplace(std::pair(checkpoint->epoch, checkpoint->step), *checkpoint);
    if (is_new) {
      if (!is_replay) CheckNewCheckpoint(*checkpoint, *ended);
    } else {
      if (!is_replay && checkpoint->state == scheduler::CheckpointState::kPublished &&
          found->second.state != checkpoint->state) {
        fail("S4", StrCat("checkpoint ", checkpoint->path, " is ", Name(found->second.state),
                          " and becomes published"));
      }
      found->second = *checkpoint;
    }
    if (!is_replay && checkpoint->state == scheduler::CheckpointState::kSuperseded) {
      See(Point::checkpoint_superseded);
    }
    if (!is_replay && checkpoint->state == scheduler::CheckpointState::kCorrupt) {
      See(Point::checkpoint_corrupt);
    }
  } else if (const auto* worker = std::get_if<scheduler::WorkerRow>(&change)) {
    image.workers[worker->id] = *worker;
  }
}

// S6, S14.
void World::CheckAssigned(const scheduler::AttemptRow& row) {
  if (row.epoch <= last_assigned) {
    Fail("S6", StrCat("epoch ", row.epoch.value, " after ", last_assigned.value));
  }
  last_assigned = std::max(last_assigned, row.epoch);
  attempt_facts[row.epoch].assigned = row;
  if (row.resume_epoch.value == 0) return;
  const auto& of_run = image.checkpoints[row.run];
  const auto found = of_run.find({row.resume_epoch, row.resume_step});
  if (found == of_run.end() || found->second.state != scheduler::CheckpointState::kPublished) {
    Fail("S14", StrCat("attempt ", row.epoch.value, " resumes from ", row.resume_path,
                       ", which is not published"));
  }
  const auto before = image.attempts.find(row.resume_epoch);
  if (before != image.attempts.end() && before->second.row.worker != row.worker) {
    See(Point::resumed_on_other_worker);
  }
}

// S2, S6 of an attempt that comes back after a restore: as it was once assigned, and not there yet.
void World::CheckRecovered(const scheduler::AttemptRow& row) {
  See(Point::attempt_recovered);
  AttemptFacts& facts = attempt_facts[row.epoch];
  if (!facts.assigned.has_value() || facts.assigned->run != row.run ||
      facts.assigned->worker != row.worker || facts.assigned->ordinal != row.ordinal) {
    Fail("S2", StrCat("attempt ", row.epoch.value, " comes back as it never was assigned"));
  }
  if (image.attempts.contains(row.epoch)) {
    Fail("S6", StrCat("attempt ", row.epoch.value, " comes back and is there"));
  }
  facts.is_recovered = true;
}

// S13 of a checkpoint whose line has just been stored. One that is published and at once superseded
// by a later one of the same batch counts as published.
void World::CheckNewCheckpoint(const scheduler::CheckpointRow& row, const std::set<Epoch>& ended) {
  if (row.state == scheduler::CheckpointState::kOrphan) return See(Point::checkpoint_orphaned);
  const StoredAttempt& attempt = image.attempts.at(row.epoch);
  const bool has_ended = IsTerminal(attempt.status.state) && !ended.contains(row.epoch);
  if (has_ended || image.runs.at(row.run).second.current_epoch != row.epoch) {
    Fail("S13", StrCat("checkpoint ", row.path, " of an attempt that is ",
                       Name(attempt.status.state), " is published"));
  }
  const auto& newest = image.checkpoints[row.run].rbegin()->second;
  if (newest.epoch > row.epoch && newest.state != scheduler::CheckpointState::kOrphan) {
    Fail("S13", StrCat("checkpoint ", row.path, " after one of epoch ", newest.epoch.value));
  }
  attempt_facts[row.epoch].published_steps.insert(row.step);
  See(Point::checkpoint_published);
}

bool World::has_lost(const scheduler::AttemptRow& row) {
  Host& host = HostOf(row.worker);
  const AttemptDir* dir = host.FindDir({row.epoch.value, 0});
  return dir == nullptr || dir->has_lost_lines;
}

// S26, second half: an attempt that waited for its stream has published what the stream announced.
void World::CheckAnnounced(const StoredAttempt& attempt) {
  const Epoch epoch = attempt.row.epoch;
  const scheduler::MemberRow& member = attempt.member;
  const bool is_plain_exit = member.state == MemberState::kExited && member.signal == 0 &&
                             (member.exit_code == 0 || member.exit_code == 75);
  const bool has_waited = attempt.status.state == AttemptState::kSucceeded ||
                          (attempt.status.state == AttemptState::kPreempted && is_plain_exit &&
                           member.evidence != "agent");
  const AttemptFacts& facts = attempt_facts[epoch];
  if (!has_waited || facts.is_rewound || has_lost(attempt.row)) return;
  for (const Line& line : facts.emitted) {
    if (line.kind == LineKind::kCheckpoint && !facts.published_steps.contains(line.step)) {
      Fail("S26", StrCat("checkpoint ", line.step, " of ", epoch.value,
                         " was announced and is not published"));
    }
  }
}

// S3, S5 of one run.
void World::CheckRun(RunId id) {
  const auto run = image.runs.find(id);
  if (run == image.runs.end()) return;
  const scheduler::RunStatus& status = run->second.second;
  for (const auto& [epoch, attempt] : image.attempts) {
    if (attempt.row.run != id || IsTerminal(attempt.status.state)) continue;
    if (epoch != status.current_epoch) {
      Fail("S3", StrCat("attempt ", epoch.value, " is live beside ", status.current_epoch.value));
    }
    if (IsTerminal(status.state)) {
      Fail("S5", StrCat("a run is ", Name(status.state), ", its attempt ", epoch.value, " ",
                        Name(attempt.status.state)));
    }
  }
}

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
