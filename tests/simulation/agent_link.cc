// The agent's loop and its talk with the coordinator: registration, heartbeats, lines. As
// worker/agent/agent.cc and worker/agent/upload.cc do it.
#include <algorithm>
#include <utility>

#include "tests/simulation/world.h"

namespace switchyard::simulation {

using agent::AttemptKey;
using agent::Record;
using agent::RecordState;

namespace {

constexpr Nanos kAppendTimeout = 30 * kSec;
constexpr Nanos kHeartbeatPeriod = 5 * kSec;
constexpr Nanos kQuickReply = 50 * kMs;
constexpr Nanos kIdlePoll = 200 * kMs;
constexpr int kInFlightMax = 2;
constexpr Nanos kHousekeeping = 5 * kSec;

scheduler::EndClass ClassOf(const std::string& name) {
  for (uint8_t i = 1; i <= static_cast<uint8_t>(scheduler::EndClass::kTimeout); ++i) {
    const auto end_class = static_cast<scheduler::EndClass>(i);
    if (scheduler::Name(end_class) == name) return end_class;
  }
  return scheduler::EndClass::kNone;
}

scheduler::MemberReport ReportOf(const Record& record) {
  scheduler::MemberReport report{.run = {*Uuid::Parse(record.run_id)},
                                 .ordinal = record.ordinal,
                                 .epoch = {record.key.epoch},
                                 .rank = record.key.rank,
                                 .evidence = {},
                                 .reason = {}};
  switch (record.state) {
    case RecordState::kLaunching:
      report.state = scheduler::RecordState::kLaunching;
      break;
    case RecordState::kRunning:
      report.state = scheduler::RecordState::kRunning;
      break;
    case RecordState::kExited:
      report.state = scheduler::RecordState::kExited;
      break;
    case RecordState::kRefused:
      report.state = scheduler::RecordState::kRefused;
      break;
    case RecordState::kNone:
      break;
  }
  if (record.wedged) report.state = scheduler::RecordState::kWedged;
  report.exit_code = record.end.exit_code;
  report.signal = record.end.signal;
  report.end_class = ClassOf(record.end.end_class);
  report.complete = record.end.complete;
  report.evidence = record.end.evidence;
  report.last_seq = record.end.last_seq;
  report.reason = record.end.reason;
  report.final_step = record.end.final_step;
  return report;
}

}  // namespace

void AgentShell::Turnaround() {
  const Nanos now = w_.engine.now();
  state->SetDiskLow(now < h_.disk_full_until);
  if (now < h_.disk_full_until) w_.See(Point::worker_disk_low);
  ReadProgress();
  if (h_.Boottime() >= state->NextTick()) Queue(state->OnTick(h_.Boottime()));
  while (!pending_.IsEmpty()) {
    if (!Execute()) return;
  }
  hb_wanted_ |= std::exchange(pending_.heartbeat, false);
  // Fenced from outside instead of by the trainer itself.
  if (SWITCHYARD_GUARD(X15, false)) {
    for (Trainer* trainer : std::vector<Trainer*>(h_.live)) {
      const AttemptDir* dir = h_.FindDir(trainer->key());
      if (dir != nullptr && dir->lease.IsPast(h_.Boottime())) {
        trainer->Signal(kSigKill);
      }
    }
  }
  Nanos next = now + 30 * kSec;
  for (auto& [key, attempt] : attempts_) {
    if (attempt.spooled) continue;
    if (attempt.flush_at != 0 && now >= attempt.flush_at) {
      attempt.flush_at = 0;
      SendEvents(key);
      CheckSpooled(key);
    } else if (attempt.ended && attempt.window.in_flight() == 0 && attempt.window.IsOpen(now)) {
      SendEvents(key);
      CheckSpooled(key);
    }
    const Nanos retry_at = attempt.window.retry_at_ns();
    if (attempt.flush_at != 0) next = std::min(next, std::max(attempt.flush_at, retry_at));
    if (retry_at > now) next = std::min(next, retry_at);
  }
  if (!pending_.IsEmpty()) return Turnaround();
  if (!registered_) {
    Connect();
    if (!registering_) next = std::min(next, register_at_);
  } else {
    MaybeHeartbeat();
    if (in_flight_ == 0) next = std::min(next, hb_due_);
    if (in_flight_ < kInFlightMax) next = std::min(next, hb_sent_ + kHeartbeatPeriod);
  }
  if (state->NextTick() != agent::AgentState::kNoDeadline) {
    next = std::min(next, h_.TimeOf(state->NextTick()));
  }
  PlanWake(next);
}

void AgentShell::PlanWake(Nanos at) {
  at = std::max(at, w_.engine.now() + kMs);
  if (wake_at_ > w_.engine.now() && wake_at_ <= at) return;
  wake_at_ = at;
  process.Post(w_.engine, at, [this, at] {
    if (wake_at_ != at || !state) return;
    wake_at_ = 0;
    Turnaround();
  });
}

void AgentShell::FileGrown(AttemptKey key) {
  if (!process.is_alive() || !state) return;
  const auto it = attempts_.find(key);
  if (it == attempts_.end() || it->second.spooled || it->second.flush_at != 0) return;
  it->second.flush_at = w_.engine.now() + kFlush;
  PlanWake(it->second.flush_at);
}

// ---------------------------------------------------------------- the coordinator

void AgentShell::Connect() {
  const Nanos now = w_.engine.now();
  if (registering_ || now < register_at_) return;
  registering_ = true;
  const uint64_t serial = ++registration_;
  scheduler::Register event;
  event.worker.id = h_.id;
  event.worker.incarnation = h_.incarnation;
  event.worker.instance_id = StrCat(h_.index, ".", h_.boot);
  event.worker.pool = "default";
  event.worker.host = StrCat("host", h_.index);
  event.worker.checkpoint_store = h_.store;
  for (uint32_t slot = 0; slot < h_.slots; ++slot) {
    event.worker.slots.push_back({.index = slot, .kind = scheduler::SlotKind::kCpu, .uuid = {}});
  }
  event.nonce = StrCat("n", w_.random.Next());
  event.seen_generation = h_.seen_generation;
  event.seen_boot = h_.seen_boot;
  w_.Call<RegisterReply>(
      h_, 10 * kSec,
      [this, event](Reply<RegisterReply> done) { w_.coordinator.Register(event, done); },
      [this, serial](const Result<RegisterReply>& reply) {
        if (serial != registration_ || !state) return;
        registering_ = false;
        if (!reply.ok()) {
          Disconnect();
        } else {
          registered_ = true;
          register_failures_ = 0;
          nonce_ = reply->nonce;
          in_flight_ = 0;
          hb_wanted_ = true;
          for (const AttemptKey& key : state->OnRegistered(reply->generation).resend) Resend(key);
          for (auto& [key, attempt] : attempts_) {
            attempt.window.Reset();
            SendEvents(key);
          }
        }
        Turnaround();
      });
}

void AgentShell::Disconnect() {
  registered_ = registering_ = false;
  ++registration_;
  const Nanos span =
      register_failures_ == 0
          ? kSec / 5
          : std::min<Nanos>(120 * kSec, (kSec / 5) << std::min<uint32_t>(register_failures_, 16));
  register_at_ = w_.engine.now() + span / 4 + w_.random.Below(span * 3 / 4);
  ++register_failures_;
}

void AgentShell::MaybeHeartbeat() {
  const Nanos now = w_.engine.now();
  const bool is_due =
      hb_wanted_ || (in_flight_ == 0 && now >= hb_due_) || now >= hb_sent_ + kHeartbeatPeriod;
  if (!is_due || in_flight_ >= kInFlightMax) return;
  scheduler::Heartbeat event{.worker = h_.id,
                             .nonce = nonce_,
                             .incarnation = h_.incarnation,
                             .hb_seq = ++hb_seq_,
                             .sent_boottime_ns = h_.Boottime(),
                             .observed = {},
                             .random = w_.random.Next()};
  const agent::Rev applied = state->applied();
  event.applied = {.generation = applied.generation, .boot = applied.boot, .n = applied.n};
  for (const auto& [key, record] : state->records()) event.observed.push_back(ReportOf(record));
  ++in_flight_;
  hb_wanted_ = false;
  hb_sent_ = now;
  hb_due_ = now + kHeartbeatPeriod;
  w_.Call<agent::Desired>(
      h_, 2 * kHeartbeatPeriod + 10 * kSec,
      [this, event](Reply<agent::Desired> done) { w_.coordinator.Heartbeat(event, done); },
      [this, now, serial = registration_](const Result<agent::Desired>& reply) {
        if (!state) return;
        OnHeartbeatReply(reply, now, serial);
        Turnaround();
      },
      [this](const agent::Desired& stray) { OnStrayDesired(stray); });
}

void AgentShell::OnStrayDesired(const agent::Desired& desired) {
  if (!state) return;
  OnDesired(desired);
  Turnaround();
}

void AgentShell::OnDesired(const agent::Desired& desired) {
  const agent::Rev before = state->applied();
  const bool is_foreign = desired.echo_incarnation != h_.incarnation;
  const bool is_old = desired.rev <= before;
  if (is_foreign) w_.See(Point::foreign_incarnation);
  if (!is_foreign && is_old) w_.See(Point::stale_rev);
  for (const agent::Wanted& wanted : desired.want) {
    if (state->Find(wanted.key) == nullptr &&
        w_.attempt_facts[Epoch{wanted.key.epoch}].has_record && !is_old) {
      w_.See(Point::refused_tombstone);
    }
  }
  agent::Actions actions = state->OnDesired(desired, h_.Boottime());
  if ((is_foreign || is_old) && (!actions.prepare.empty() || !actions.spawn.empty() ||
                                 !actions.stops.empty() || !actions.records.empty())) {
    w_.Fail("S20", StrCat("an old wanted set ", desired.rev.boot, ".", desired.rev.n, " after ",
                          before.boot, ".", before.n, " changed something at host ", h_.index));
  }
  for (const agent::Wanted& wanted : desired.want) {
    const Record* record = state->Find(wanted.key);
    if (record != nullptr && record->is_live() && !record->spawn_requested) {
      w_.See(Point::spawn_waited_for_slot);
    }
    const bool is_known = record != nullptr || w_.attempt_facts[Epoch{wanted.key.epoch}].has_record;
    if (!is_foreign && desired.rev <= state->applied() && !is_old && !is_known) {
      w_.Fail("S24", StrCat("host ", h_.index, " follows a wanted set without a record for ",
                            wanted.key.epoch));
    }
  }
  Queue(std::move(actions));
}

void AgentShell::OnHeartbeatReply(const Result<agent::Desired>& reply, Nanos sent,
                                  uint64_t serial) {
  const Nanos now = w_.engine.now();
  if (serial == registration_) --in_flight_;
  if (!reply.ok()) {
    if (serial == registration_) Disconnect();
    return;
  }
  const agent::Rev before = state->applied();
  OnDesired(*reply);
  const bool has_news = state->applied() != before || !pending_.drop.empty() || pending_.heartbeat;
  if (serial != registration_) return;
  hb_due_ = has_news || now - sent >= kQuickReply ? now : sent + kIdlePoll;
}

// ---------------------------------------------------------------- events

AgentShell::Attempt::Attempt(World& world, Host& host, AttemptKey key)
    : lines(world, host, key),
      window(&lines, [&world](uint64_t span) { return world.random.Below(span + 1); }) {}

void AgentShell::Lines::Acknowledge(uint64_t seq) {
  const AttemptDir* dir = h_.FindDir(key_);
  const bool goes_back = seq < acked_;
  if (goes_back) w_.See(Point::restore_rewind);
  if (!goes_back && seq > sent_) w_.See(Point::batches_overtook);
  acked_ = std::min<uint64_t>(seq, dir == nullptr ? 0 : dir->lines.size());
  if (goes_back || sent_ < acked_) sent_ = acked_;
}

void AgentShell::Lines::Skip(uint64_t deleted) {
  acked_ = std::max(acked_, deleted);
  sent_ = std::max(sent_, acked_);
}

// As worker/agent/upload.cc.
void AgentShell::SendEvents(AttemptKey key) {
  const auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  Attempt& attempt = it->second;
  const agent::StreamWindow& window = attempt.window;
  const AttemptDir* dir = h_.FindDir(key);
  if (!registered_ || attempt.spooled || dir == nullptr || !window.IsOpen(w_.engine.now())) return;
  while (attempt.lines.sent() < dir->lines.size() &&
         (window.in_flight() == 0 ||
          (attempt.has_credit && window.in_flight() < agent::StreamWindow::kBatchesInFlight))) {
    SendBatch(key, attempt, *dir);
  }
}

void AgentShell::SendBatch(AttemptKey key, Attempt& attempt, const AttemptDir& dir) {
  attempt.lines.Skip(dir.deleted);
  const uint64_t first = attempt.lines.sent() + 1;
  const uint64_t n = std::min<uint64_t>(w_.lines_per_batch, dir.lines.size() - first + 1);
  attempt.lines.Give(n);
  const agent::StreamWindow::Batch batch = attempt.window.OnSent(n);
  scheduler::Append event{.run = {*Uuid::Parse(attempt.run_id)},
                          .ordinal = attempt.ordinal,
                          .epoch = {key.epoch},
                          .rank = key.rank,
                          .worker = h_.id,
                          .first_seq = first,
                          .n = n,
                          .lines = {},
                          .random = w_.random.Next()};
  std::vector<Line> lines(dir.lines.begin() + static_cast<int64_t>(first - 1),
                          dir.lines.begin() + static_cast<int64_t>(first - 1 + n));
  for (uint64_t i = 0; i < n; ++i) {
    const Line& line = lines[i];
    scheduler::LineFact fact{.seq = first + i, .step = line.step, .digest = {}, .path = {}};
    if (line.kind == LineKind::kHello) {
      fact.kind = scheduler::LineFact::Kind::kHello;
    } else if (line.kind == LineKind::kResume) {
      fact.kind = scheduler::LineFact::Kind::kResume;
      fact.from = {line.value};
    } else if (line.kind == LineKind::kCheckpoint) {
      fact.kind = scheduler::LineFact::Kind::kCheckpoint;
      fact.path = StrCat(key.epoch, "-", line.step);
    } else {
      if (line.kind == LineKind::kMetric) event.last_step = std::max(event.last_step, line.step);
      continue;
    }
    event.lines.push_back(std::move(fact));
  }
  const auto call = std::make_shared<std::pair<scheduler::Append, std::vector<Line>>>(
      std::move(event), std::move(lines));
  w_.Call<AppendReply>(
      h_, kAppendTimeout,
      [this, call](Reply<AppendReply> done) {
        w_.coordinator.Append(call->first, call->second, done);
      },
      [this, key, batch](const Result<AppendReply>& reply) {
        if (!state || !attempts_.contains(key)) return;
        OnAppend(key, batch, reply);
        CheckSpooled(key);
        Turnaround();
      });
}

void AgentShell::OnAppend(AttemptKey key, const agent::StreamWindow::Batch& batch,
                          const Result<AppendReply>& reply) {
  Attempt& attempt = attempts_.at(key);
  const Nanos now = w_.engine.now();
  if (!attempt.window.IsCurrent(batch)) return;
  if (reply.ok()) {
    CheckAnswer(key, *reply);
    attempt.has_credit = reply->has_credit;
    if (!attempt.has_credit) attempt.window.WaitUntil(now + kFlush);
    const bool has_moved = attempt.window.OnAnswer(
        batch, {.committed = reply->committed, .expect = reply->expect, .durable = reply->durable},
        now);
    if (has_moved) DeleteSegments(key, attempt, reply->committed);
  } else if (reply.status().code() == Code::kFailedPrecondition) {
    attempt.window.OnRefusal(batch, now);
  } else {
    attempt.window.OnFailure(batch, now);
  }
  PlanFlush(key, attempt);
}

// S10 of what a coordinator says.
void AgentShell::CheckAnswer(AttemptKey key, const AppendReply& reply) {
  World::AttemptFacts& facts = w_.attempt_facts[Epoch{key.epoch}];
  const auto stored = w_.image.attempts.find(Epoch{key.epoch});
  if (reply.expect == 0 && !facts.is_rewound &&
      (stored == w_.image.attempts.end() || stored->second.lines.size() < reply.committed)) {
    w_.Fail("S10", StrCat("lines of ", key.epoch, " through ", reply.committed,
                          " were acknowledged and are not stored"));
  }
  // An answer may be old: what it asks for is missed only when it is not stored by now.
  const AttemptDir* dir = h_.FindDir(key);
  const uint64_t lines = stored == w_.image.attempts.end() ? 0 : stored->second.lines.size();
  if (reply.expect != 0 && dir != nullptr && reply.expect <= dir->deleted && lines < dir->deleted) {
    w_.Fail("S10", StrCat("line ", reply.expect, " of ", key.epoch,
                          " is asked for and was deleted, with ", dir->deleted, " lines"));
  }
  facts.acked_told = std::max(facts.acked_told, reply.committed);
}

void AgentShell::PlanFlush(AttemptKey key, Attempt& attempt) {
  const AttemptDir* dir = h_.FindDir(key);
  if (dir != nullptr && attempt.lines.sent() < dir->lines.size() && attempt.flush_at == 0) {
    attempt.flush_at =
        std::max(attempt.window.retry_at_ns(), w_.engine.now() + (attempt.ended ? 0 : kFlush));
  }
  if (attempt.ended) SendEvents(key);
}

void AgentShell::Resend(AttemptKey key) {
  const auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  w_.See(Point::resent_after_restore);
  Attempt& attempt = it->second;
  attempt.spooled = false;
  attempt.window.Resend(w_.engine.now());
  PlanFlush(key, attempt);
  CheckSpooled(key);
}

// Segments go once a backup holds their lines.
void AgentShell::DeleteSegments(AttemptKey key, const Attempt& attempt, uint64_t committed) {
  AttemptDir* dir = h_.FindDir(key);
  if (dir == nullptr) return;
  const uint64_t through = SWITCHYARD_GUARD(X27, false) ? committed : attempt.window.durable();
  const uint64_t kept = std::min<uint64_t>(through, dir->synced);
  if (kept <= dir->deleted) return;
  dir->deleted = kept;
  w_.See(Point::segments_deleted);
}

void AgentShell::ReadProgress() {
  if (w_.engine.now() < housekeeping_at_) return;
  housekeeping_at_ = w_.engine.now() + kHousekeeping;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.ended || attempt.pid == 0) continue;
    const AttemptDir* dir = h_.FindDir(key);
    if (dir != nullptr) state->OnProgress(key, dir->progress, h_.Boottime());
  }
}

void AgentShell::CheckSpooled(AttemptKey key) {
  const auto it = attempts_.find(key);
  if (it == attempts_.end() || !it->second.ended || it->second.spooled ||
      it->second.window.in_flight() > 0) {
    return;
  }
  const AttemptDir* dir = h_.FindDir(key);
  const bool is_refused = it->second.window.is_refused();
  if (dir != nullptr && !is_refused && it->second.lines.acknowledged() < dir->lines.size()) return;
  it->second.spooled = true;
  Queue(state->OnSpooled(key));
}

bool AgentShell::IsSpooled() const {
  return std::ranges::all_of(attempts_, [](const auto& entry) { return entry.second.spooled; });
}

std::string AgentShell::Describe(AttemptKey key) const {
  const Record* record = state ? state->Find(key) : nullptr;
  const auto found = attempts_.find(key);
  if (record == nullptr || found == attempts_.end()) return "its agent does not know it";
  const Attempt& attempt = found->second;
  return StrCat("its agent says ", agent::Name(record->state), ", acknowledged ",
                attempt.lines.acknowledged(), ", sent ", attempt.lines.sent(), ", in flight ",
                attempt.window.in_flight(), attempt.window.is_refused() ? ", refused" : "",
                attempt.spooled ? ", spooled" : "", registered_ ? "" : ", not registered");
}

}  // namespace switchyard::simulation
