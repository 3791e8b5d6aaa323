#include "server/app/reducer.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "server/scheduler/contacts.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::app {
namespace {

using scheduler::Change;
using server_metrics::QueueClass;
using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kGaugesMs = 1000;
constexpr int64_t kProbeMs = 1000;
constexpr int kIdleWorkMs = 20;
constexpr int64_t kIdleEveryMs = 1000;
constexpr int kExitOutcomeUnknown = 70;
// Reasons of DEGRADED, by their index in Families::degraded.
constexpr int kDiskFull = 0;
constexpr int kDiskLow = 1;
constexpr int kReadError = 2;
constexpr char kCannotWrite[] = "the coordinator cannot write now; try again later";

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Rows go to the store as they are; volatile changes do not.
void AppendRow(const Change& change, std::vector<store::Write>* out) {
  std::visit(
      [out](const auto& row) {
        using Row = std::decay_t<decltype(row)>;
        if constexpr (!std::is_same_v<Row, scheduler::WorkerContact> &&
                      !std::is_same_v<Row, scheduler::AttemptObserved> &&
                      !std::is_same_v<Row, scheduler::AttemptStep> &&
                      !std::is_same_v<Row, scheduler::AgentRestarted> &&
                      !std::is_same_v<Row, scheduler::InfraEnd> &&
                      !std::is_same_v<Row, scheduler::EndedRunBack> &&
                      !std::is_same_v<Row, scheduler::WantChanged>) {
          out->emplace_back(row);
        }
      },
      change);
}

// Of several statuses of a sweep, or states of a stream, the last one is enough.
void Coalesce(std::vector<store::Write>* writes) {
  std::set<SweepId> sweeps;
  std::set<std::pair<Epoch, uint32_t>> streams;
  std::vector<bool> is_stale(writes->size());
  for (size_t i = writes->size(); i-- > 0;) {
    if (const auto* status = std::get_if<scheduler::SweepStatus>(&(*writes)[i])) {
      is_stale[i] = !sweeps.insert(status->id).second;
    } else if (const auto* stream = std::get_if<scheduler::StreamRow>(&(*writes)[i])) {
      is_stale[i] = !streams.insert({stream->epoch, stream->rank}).second;
    } else if (const auto* sweep = std::get_if<scheduler::SweepRow>(&(*writes)[i])) {
      // The status behind a new row stays where it is.
      sweeps.erase(sweep->id);
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < writes->size(); ++i) {
    if (is_stale[i]) continue;
    if (kept != i) (*writes)[kept] = std::move((*writes)[i]);
    ++kept;
  }
  writes->resize(kept);
}

}  // namespace

scheduler::Decision Turn::Decide(const scheduler::Event& event) {
  const auto start = SteadyClock::now();
  scheduler::Decision decision = scheduler::Decide(reducer_.state_, event, now_);
  reducer_.families_->Observe(reducer_.state_, decision, &counts_);
  reducer_.BeforeApply(decision);
  reducer_.strategies_.Note(decision);
  scheduler::Apply(decision.changes, now_, &reducer_.state_);
  for (const Change& change : decision.changes) AppendRow(change, &writes_);
  reducer_.families_->decide_seconds->Observe(SecondsSince(start));
  return decision;
}

Reducer::Reducer(std::unique_ptr<store::Store> store, server_metrics::Families* families,
                 api::ClientTracker* clients, server_metrics::LiveRuns* live_runs, Options options)
    : store_(std::move(store)),
      families_(families),
      clients_(clients),
      live_runs_(live_runs),
      options_(std::move(options)),
      inbox_(families),
      ballast_(StrCat(options_.data_dir, "/ballast"), options_.ballast_bytes),
      strategies_(StrategyHost()),
      clock_(options_.restart_grace),
      metrics_address_(options_.metrics_address) {}

Result<std::unique_ptr<Reducer>> Reducer::Make(std::unique_ptr<store::Store> store,
                                               server_metrics::Families* families,
                                               api::ClientTracker* clients,
                                               server_metrics::LiveRuns* live_runs,
                                               Options options) {
  std::unique_ptr<Reducer> out(
      new Reducer(std::move(store), families, clients, live_runs, std::move(options)));
  SWITCHYARD_RETURN_IF_ERROR(out->LoadState());
  std::string page;
  do {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepPage sweeps,
                                out->store_->ListSweeps(/*all=*/true, page, 1000));
    for (const store::SweepInfo& sweep : sweeps.sweeps) {
      families->AddProject(sweep.row.project);
      if (IsTerminal(sweep.status.state)) {
        families->AddStoredSweep(sweep.row.project, sweep.status.state, sweep.status.counts);
      }
    }
    page = sweeps.next;
  } while (!page.empty());
  return out;
}

Reducer::~Reducer() {
  if (thread_.joinable()) {
    Drain();
    const Status status = Stop();
    if (!status.ok()) LogError("closing the store: ", status.ToString());
  }
}

Status Reducer::LoadState() {
  SWITCHYARD_ASSIGN_OR_RETURN(store::Snapshot snapshot, store_->Load());
  // What is not in rows stands as before the group that was lost: workers go on without
  // registering anew, which could not be written either, and never meet a revision twice.
  const std::vector<scheduler::WorkerContact> contacts =
      scheduler::ContactsToKeep(state_, std::exchange(contacts_before_, {}));
  const uint64_t rev_n = state_.rev_n;
  const bool is_start = state_.boot == 0;
  const Timestamp loaded_at = state_.loaded_at;
  summaries_.clear();
  dirty_summaries_.clear();
  rebuild_.clear();
  heads_.clear();
  going_live_.clear();
  documents_.clear();
  proposing_.clear();
  strategies_.Clear();
  for (scheduler::SummaryRow& row : snapshot.summaries) {
    Summaries& summaries = summaries_[row.run];
    const std::string series = row.series;
    summaries.rows.emplace(series, std::move(row));
  }
  for (const scheduler::RunProgress& progress : snapshot.progress) {
    if (progress.step > 0) summaries_[progress.run].step = progress.step;
  }
  clock_.StateLoaded(MonotonicNow());
  const scheduler::Now now = MakeNow();
  state_ = scheduler::Restore({.cluster_id = snapshot.meta.cluster_id,
                               .generation = snapshot.meta.generation,
                               .boot = snapshot.meta.boot,
                               .last_epoch = snapshot.last_epoch.value,
                               .sweeps = std::move(snapshot.sweeps),
                               .sweep_status = std::move(snapshot.sweep_status),
                               .runs = std::move(snapshot.runs),
                               .run_status = std::move(snapshot.run_status),
                               .links = std::move(snapshot.links),
                               .attempts = std::move(snapshot.attempts),
                               .attempt_status = std::move(snapshot.attempt_status),
                               .members = std::move(snapshot.members),
                               .streams = std::move(snapshot.streams),
                               .checkpoints = std::move(snapshot.checkpoints),
                               .workers = std::move(snapshot.workers),
                               .usage = std::move(snapshot.usage)},
                              now);
  state_.leases = options_.leases;
  // A wait that counts from the start of the coordinator is not begun anew.
  if (!is_start) state_.loaded_at = loaded_at;
  state_.rev_n = std::max(state_.rev_n, rev_n);
  for (const scheduler::WorkerContact& contact : contacts) {
    if (!state_.workers.contains(contact.worker)) continue;
    const Change changes[] = {contact, scheduler::WantChanged{contact.worker}};
    scheduler::Apply(changes, now, &state_);
    woken_.insert(contact.worker);
  }
  std::erase_if(expansions_,
                [&](const auto& entry) { return state_.FindSweep(entry.first) == nullptr; });
  for (const auto& [id, objective] : objectives_) {
    if (state_.FindSweep(id) == nullptr) live_runs_->EndSweep(id);
  }
  families_->db_generation->Set(state_.generation);
  for (const auto& [id, sweep] : state_.sweeps) {
    families_->AddProject(sweep.row.project);
    live_runs_->SetSweep(id, sweep.row.project, sweep.status.counts);
  }
  for (const auto& [id, worker] : state_.workers) families_->AddPool(worker.row.pool);
  for (const auto& [epoch, attempt] : state_.attempts) {
    if (!IsTerminal(attempt.status.state)) GoLive(attempt.row);
  }
  needs_schedule_ = true;
  workers_changed_ = true;
  return OkStatus();
}

void Reducer::Start(QueryPool* queries) {
  queries_ = queries;
  if (const Status status = ballast_.Fill(); !status.ok()) {
    LogError(status.ToString());
    Degrade(kDiskLow);
  }
  last_pass_ms_ = MonotonicNow().ms;
  thread_ = std::thread([this] { Loop(); });
}

void Reducer::Drain() {
  is_draining_ = true;
  inbox_.Close();
  // Wakes the loop, which ends what is parked.
  inbox_.PushOwn({.queue = QueueClass::kMutation, .decide = [](Turn&) {}, .refuse = {}});
}

Status Reducer::Stop() {
  is_stopping_ = true;
  inbox_.PushOwn({.queue = QueueClass::kMutation, .decide = [](Turn&) {}, .refuse = {}});
  if (thread_.joinable()) thread_.join();
  return store_->Close();
}

bool Reducer::is_healthy() const { return MonotonicNow().ms - last_pass_ms_.load() < 20000; }

scheduler::Now Reducer::MakeNow() const {
  return {.now = clock_.Now(MonotonicNow()), .unix_ms = UnixMilliseconds()};
}

void Reducer::Loop() {
  clock_.Start(MonotonicNow());
  while (true) {
    std::vector<Input> group = inbox_.Pop(clock_.UntilTick(MonotonicNow()));
    const Timestamp pass = MonotonicNow();
    clock_.Pass(pass);
    last_pass_ms_ = pass.ms;
    const bool was_quiet = group.empty();
    if (!was_quiet) RunGroup(std::move(group));
    if (is_draining_) EndParked(/*all=*/true);
    if (is_stopping_ && inbox_.IsEmpty()) break;
    if (clock_.TakeTick(MonotonicNow(), inbox_.HasHeartbeats())) RunTick();
    // Between inputs, and at least now and then where they never cease.
    const bool is_idle =
        inbox_.IsEmpty() && (was_quiet || MonotonicNow().ms - last_idle_ms_ >= kIdleEveryMs);
    if (is_idle && was_committed_) {
      last_idle_ms_ = MonotonicNow().ms;
      const Result<bool> more = store_->DoIdleWork(kIdleWorkMs);
      if (!more.ok()) LogWarning("idle work of the store: ", more.status().ToString());
      was_committed_ = more.ok() && *more;
      if (store_->IsCheckpointed()) {
        for (const auto& [epoch, attempt] : state_.attempts) {
          durable_[epoch] = attempt.streams.empty() ? 0 : attempt.streams[0].acked;
        }
      }
    }
    if (MonotonicNow().ms - last_gauges_ms_ >= kGaugesMs) UpdateGauges();
  }
  EndParked(/*all=*/true);
}

void Reducer::RunGroup(std::vector<Input> group, bool places) {
  const bool was_degraded = degraded_ >= 0;
  Turn turn(this, MakeNow());
  if (!ballast_.is_whole()) {
    // There is room only because the ballast was given up: nothing but contacts and reading.
    std::erase_if(group, [](const Input& input) {
      const bool writes = input.writes && input.queue != QueueClass::kHeartbeat;
      if (writes && input.refuse) input.refuse(Unavailable(kCannotWrite));
      return writes;
    });
  }
  for (Input& input : group) input.decide(turn);
  // Not while nothing can be written: what has ended is settled with the next group that can.
  if (!was_degraded) strategies_.Settle(turn);
  const size_t inputs = group.size();
  // Placing writes: not in the group of a heartbeat while nothing can be written.
  const bool has_placed = places && needs_schedule_ && !was_degraded && RunSchedule(turn) > 0;
  if (CommitTurn(turn, inputs)) {
    for (const std::function<void()>& release : turn.releases_) {
      SWITCHYARD_FAILPOINT("group.reply");
      release();
    }
    SWITCHYARD_FAILPOINT("group.replied");
    WakeParked();
    RequestProposals();
    return;
  }
  if (has_placed && degraded_ < 0) {
    // The placements are not the inputs' doing.
    RunGroup(std::move(group), /*places=*/false);
    PlaceOneByOne();
    return;
  }
  for (Input& input : group) {
    // One input contradicts the rows: alone, it fails alone. A heartbeat rarely has rows: it gets
    // its answer also while nothing can be written.
    const bool is_tried_alone =
        degraded_ < 0 ? inputs > 1
                      : input.queue == QueueClass::kHeartbeat && (inputs > 1 || !was_degraded);
    if (is_tried_alone) {
      std::vector<Input> one;
      one.push_back(std::move(input));
      RunGroup(std::move(one), places);
    } else if (input.refuse) {
      input.refuse(degraded_ >= 0 ? Unavailable(kCannotWrite)
                                  : Internal("the database refused this change"));
    }
  }
}

bool Reducer::CommitTurn(Turn& turn, size_t inputs) {
  FinishWrites(turn);
  if (!turn.writes_.empty()) {
    SWITCHYARD_FAILPOINT("group.decided");
    Coalesce(&turn.writes_);
    const auto start = SteadyClock::now();
    const Status status = store_->Commit(turn.writes_);
    families_->commit_seconds->Observe(SecondsSince(start));
    families_->group_size->Observe(static_cast<double>(inputs));
    if (status.code() == Code::kDataLoss) {
      LogError("the outcome of a commit is unknown: ", status.message());
      _exit(kExitOutcomeUnknown);
    }
    if (!status.ok()) {
      LogError("a commit failed and was rolled back: ", status.ToString());
      if (status.code() == Code::kResourceExhausted) {
        Degrade(kDiskFull);
      } else if (status.code() == Code::kUnavailable) {
        Degrade(kReadError);
      } else if (ballast_.is_whole()) {
        degraded_ = -1;
      }
      const Status loaded = LoadState();
      if (!loaded.ok()) {
        LogError("loading the state again: ", loaded.ToString());
        _exit(kExitOutcomeUnknown);
      }
      return false;
    }
    was_committed_ = true;
    if (ballast_.is_whole()) degraded_ = -1;
    SWITCHYARD_FAILPOINT("group.committed");
  }
  contacts_before_.clear();
  for (const std::function<void()>& count : turn.counts_) count();
  for (const scheduler::AttemptRow& attempt : std::exchange(going_live_, {})) GoLive(attempt);
  for (const RunId run : std::exchange(rebuild_, {})) RebuildSummaries(run);
  return true;
}

void Reducer::PlaceOneByOne() {
  for (size_t i = 0; i < scheduler::kPlacementsMax && degraded_ < 0; ++i) {
    Turn turn(this, MakeNow());
    const scheduler::Decision decision =
        turn.Decide(scheduler::Schedule{.limit = 1, .skip = unplaceable_});
    RunId placed;
    for (const Change& change : decision.changes) {
      if (const auto* attempt = std::get_if<scheduler::AttemptRow>(&change)) placed = attempt->run;
    }
    if (placed.value.is_nil()) return;
    if (CommitTurn(turn, 1)) {
      WakeParked();
    } else if (degraded_ < 0) {
      LogError("run ", placed.value.ToString(), " cannot be placed: its rows contradict the state");
      unplaceable_.insert(placed);
    }
  }
}

// K4.
void Reducer::Degrade(int reason) {
  if (degraded_ < 0) LogError("degraded: nothing is written until the disk has room and works");
  degraded_ = reason;
  if (reason != kReadError) ballast_.Free();
}

// K5.
void Reducer::Probe() {
  const Result<DiskSpace> disk = GetDiskSpace(options_.data_dir);
  if (!ballast_.is_whole()) {
    // Room for the ballast and as much again, so that it is not given up at once.
    if (!disk.ok() || disk->free_bytes < 2 * ballast_.bytes()) return;
    if (const Status status = ballast_.Fill(); !status.ok()) {
      LogWarning(status.ToString());
      return;
    }
  }
  Turn turn(this, MakeNow());
  turn.Write(scheduler::HistoryRow{
      .at_ms = turn.now().unix_ms, .kind = "writes_resumed", .ref = {}, .text = {}});
  CommitTurn(turn, 1);
}

// What follows from a decision outside the core's state.
void Reducer::BeforeApply(const scheduler::Decision& decision) {
  for (const Change& change : decision.changes) {
    if (const auto* sweep = std::get_if<scheduler::SweepRow>(&change)) {
      objectives_[sweep->id] = api::ReadObjective(sweep->objective);
      live_runs_->SetSweep(sweep->id, sweep->project, {});
    } else if (const auto* status = std::get_if<scheduler::SweepStatus>(&change)) {
      needs_schedule_ = true;
      if (IsTerminal(status->state)) {
        live_runs_->EndSweep(status->id);
        expansions_.erase(status->id);
      } else if (const scheduler::Sweep* known = state_.FindSweep(status->id)) {
        live_runs_->SetSweep(status->id, known->row.project, status->counts);
      }
    } else if (const auto* run = std::get_if<scheduler::RunStatus>(&change)) {
      needs_schedule_ = true;
      if (IsTerminal(run->state)) live_runs_->End(run->id);
      if (run->state != scheduler::RunState::kActive) documents_.erase(run->id);
    } else if (const auto* attempt = std::get_if<scheduler::AttemptRow>(&change)) {
      // One of an earlier generation is only known again.
      if (scheduler::GenerationOf(attempt->epoch) >= state_.generation) {
        going_live_.push_back(*attempt);
      }
    } else if (std::holds_alternative<scheduler::MemberRow>(change)) {
      needs_schedule_ = true;
    } else if (std::holds_alternative<scheduler::WorkerRow>(change)) {
      needs_schedule_ = true;
      workers_changed_ = true;
    } else if (const auto* contact = std::get_if<scheduler::WorkerContact>(&change)) {
      const scheduler::Worker* worker = state_.FindWorker(contact->worker);
      if (worker != nullptr)
        contacts_before_.try_emplace(contact->worker, scheduler::ContactOf(*worker));
      if (worker == nullptr || worker->contact != contact->contact ||
          worker->is_leaving != contact->is_leaving) {
        needs_schedule_ = true;
        workers_changed_ = true;
      }
    } else if (const auto* want = std::get_if<scheduler::WantChanged>(&change)) {
      woken_.insert(want->worker);
    } else if (const auto* observed = std::get_if<scheduler::AttemptObserved>(&change)) {
      const scheduler::Attempt* known = state_.FindAttempt(observed->epoch);
      if (known != nullptr) documents_.erase(known->row.run);
    } else if (const auto* stream = std::get_if<scheduler::StreamRow>(&change)) {
      if (!stream->sealed) continue;
      durable_.erase(stream->epoch);
      kinds_.Forget(stream->epoch, stream->rank);
    }
  }
}

size_t Reducer::RunSchedule(Turn& turn) {
  needs_schedule_ = false;
  if (state_.queued == 0) return 0;
  const auto start = SteadyClock::now();
  const scheduler::Decision decision = turn.Decide(scheduler::Schedule{.skip = unplaceable_});
  SWITCHYARD_FAILPOINT("schedule.decided");
  families_->scheduler_pass_seconds->Observe(SecondsSince(start));
  const auto* answer = std::get_if<scheduler::ScheduleAnswer>(&decision.answer);
  // A full pass has left something for the next one; a shorter one has placed what fits.
  const size_t placed = answer == nullptr ? 0 : answer->placed;
  needs_schedule_ = placed >= scheduler::kPlacementsMax;
  return placed;
}

void Reducer::RunTick() {
  const int64_t now_ms = MonotonicNow().ms;
  std::vector<Input> group;
  needs_schedule_ |= clock_.TakeReview({now_ms});
  if (clock_.MayExpire({now_ms}) && degraded_ < 0) {
    group.push_back(
        {.queue = QueueClass::kMutation,
         .decide = [](Turn& turn) { turn.Decide(scheduler::Tick{.random = NewUuidV4().low}); },
         .refuse = [](const Status&) {}});
  } else if (degraded_ >= 0 && now_ms - last_probe_ms_ >= kProbeMs) {
    last_probe_ms_ = now_ms;
    Probe();
  } else if (needs_schedule_ && degraded_ < 0) {
    group.push_back(
        {.queue = QueueClass::kMutation, .decide = [](Turn&) {}, .refuse = [](const Status&) {}});
  }
  if (!group.empty()) RunGroup(std::move(group));
  SWITCHYARD_FAILPOINT("tick.done");
  families_->CountSlotSeconds(
      state_, static_cast<double>(scheduler::CoreClock::kTickPeriod.count()) / 1000);
  EndParked(/*all=*/false);
  RequestProposals();
}

// ---------------------------------------------------------------- gauges

void Reducer::UpdateGauges() {
  last_gauges_ms_ = MonotonicNow().ms;
  families_->CountState(state_);
  const store::StoreStats stats = store_->Stats();
  families_->database_bytes->Set(static_cast<double>(stats.database_bytes));
  families_->wal_bytes->Set(static_cast<double>(stats.wal_bytes));
  if (stats.checkpoints > checkpoints_seen_) {
    checkpoints_seen_ = stats.checkpoints;
    families_->checkpoint_seconds->Observe(stats.last_checkpoint_seconds);
  }
  if (const Result<DiskSpace> disk = GetDiskSpace(options_.data_dir); disk.ok()) {
    families_->disk_free->Set(static_cast<double>(disk->free_bytes));
    families_->disk_size->Set(static_cast<double>(disk->size_bytes));
    if (ballast_.is_whole() && disk->free_bytes < ballast_.bytes() && degraded_ < 0) {
      Degrade(kDiskLow);
    }
  }
  const int reason = degraded_;
  for (size_t i = 0; i < families_->degraded.size(); ++i) {
    families_->degraded[i]->Set(reason == static_cast<int>(i) ? 1 : 0);
  }
  families_->active_clients->Set(static_cast<double>(clients_->Count()));
  std::erase_if(summaries_, [&](const auto& entry) {
    return state_.FindRun(entry.first) == nullptr && !dirty_summaries_.contains(entry.first);
  });
  std::erase_if(heads_, [&](const auto& entry) { return state_.FindRun(entry.first) == nullptr; });
  std::erase_if(objectives_,
                [&](const auto& entry) { return state_.FindSweep(entry.first) == nullptr; });
  std::erase_if(run_objectives_,
                [&](const auto& entry) { return state_.FindRun(entry.first) == nullptr; });
  if (workers_changed_) {
    workers_changed_ = false;
    inbox_.SetHeartbeatBound(std::max<size_t>(4096, 2 * state_.workers.size()));
    RefreshServiceDiscovery();
  }
  live_runs_->Publish();
}

void Reducer::RefreshServiceDiscovery() {
  std::string json = "[";
  for (const auto& [id, worker] : state_.workers) {
    const std::string& address = worker.row.metrics_address;
    const bool is_plain = !address.empty() && std::ranges::all_of(address, [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             c == '.' || c == ':' || c == '-' || c == '[' || c == ']' || c == '_';
    });
    if (!is_plain || (worker.contact != scheduler::Contact::kOnline &&
                      worker.contact != scheduler::Contact::kSuspect)) {
      continue;
    }
    if (json.size() > 1) json += ",";
    json += StrCat("{\"targets\":[\"", address, "\"],\"labels\":{}}");
  }
  json += "]\n";
  const std::lock_guard lock(shared_mu_);
  service_discovery_ = std::move(json);
}

std::string Reducer::ServiceDiscovery() {
  const std::lock_guard lock(shared_mu_);
  return service_discovery_;
}

void Reducer::SetMetricsAddress(std::string address) {
  const std::lock_guard lock(shared_mu_);
  metrics_address_ = std::move(address);
}

}  // namespace switchyard::app
