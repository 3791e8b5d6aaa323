// The invariants of rows, checked as they become durable.
#include <algorithm>

#include "server/scheduler/lease_policy.h"
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

}  // namespace switchyard::simulation
