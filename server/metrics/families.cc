#include "server/metrics/families.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace switchyard::server_metrics {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;
using scheduler::RunState;
using scheduler::SweepState;

// Twelve each, around the objective of the quantity.
const Histogram::BucketBoundaries kCallSeconds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                               0.05,   0.1,   0.25,   0.5,   1,    5};
const Histogram::BucketBoundaries kStepSeconds{0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003,
                                               0.01,    0.03,    0.1,    0.3,    1,     5};
const Histogram::BucketBoundaries kGroupSizes{1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256};
const Histogram::BucketBoundaries kWaitSeconds{0.1, 0.5, 1,   2,    5,    10,
                                               30,  60,  300, 1800, 7200, 43200};
const Histogram::BucketBoundaries kLagSeconds{0.05, 0.1, 0.25, 0.5, 1,   2,
                                              5,    10,  30,   120, 600, 3600};
const Histogram::BucketBoundaries kCheckpointSeconds{0.01, 0.03, 0.1, 0.3, 1,   3,
                                                     10,   30,   60,  120, 300, 600};

prometheus::Gauge* AddGauge(prometheus::Registry* registry, const std::string& name,
                            const std::string& help) {
  return &BuildGauge().Name(name).Help(help).Register(*registry).Add({});
}
prometheus::Counter* AddCounter(prometheus::Registry* registry, const std::string& name,
                                const std::string& help) {
  return &BuildCounter().Name(name).Help(help).Register(*registry).Add({});
}
prometheus::Histogram* AddHistogram(prometheus::Registry* registry, const std::string& name,
                                    const std::string& help,
                                    const Histogram::BucketBoundaries& buckets) {
  return &BuildHistogram().Name(name).Help(help).Register(*registry).Add({}, buckets);
}

constexpr std::array<std::string_view, 8> kWorkerStates{
    "retired", "lost", "cordoned", "draining", "drained", "suspect", "ready", "unknown"};
constexpr std::array<std::string_view, 3> kSlotStates{"free", "busy", "unusable"};
constexpr std::array<std::string_view, 4> kSlotClasses{"useful", "redone", "idle", "fenced"};
constexpr std::array<std::string_view, 11> kOutcomes{
    "succeeded",    "cancelled",    "preempted",    "lost",       "failed_user",   "failed_input",
    "failed_crash", "failed_infra", "failed_guard", "failed_oom", "failed_timeout"};

std::string_view OutcomeOf(const scheduler::AttemptStatus& status) {
  using scheduler::EndClass;
  switch (status.state) {
    case scheduler::AttemptState::kSucceeded:
      return "succeeded";
    case scheduler::AttemptState::kCancelled:
      return "cancelled";
    case scheduler::AttemptState::kPreempted:
      return "preempted";
    case scheduler::AttemptState::kLost:
      return "lost";
    case scheduler::AttemptState::kFailed:
      switch (status.end_class) {
        case EndClass::kUser:
          return "failed_user";
        case EndClass::kSpec:
        case EndClass::kData:
          return "failed_input";
        case EndClass::kInfra:
          return "failed_infra";
        case EndClass::kGuard:
          return "failed_guard";
        case EndClass::kOom:
          return "failed_oom";
        case EndClass::kTimeout:
          return "failed_timeout";
        case EndClass::kNone:
        case EndClass::kOk:
        case EndClass::kInternal:
        case EndClass::kStopped:
        case EndClass::kFenced:
        case EndClass::kUnknown:
          return "failed_crash";
      }
      return "failed_crash";
    case scheduler::AttemptState::kAssigned:
    case scheduler::AttemptState::kForming:
    case scheduler::AttemptState::kRunning:
    case scheduler::AttemptState::kStopping:
      break;
  }
  return {};
}

}  // namespace

std::string_view ShownState(const scheduler::Worker& worker) {
  using scheduler::AdminState;
  using scheduler::Contact;
  if (worker.row.admin == AdminState::kRetired) return "retired";
  if (worker.contact == Contact::kLost) return "lost";
  if (worker.row.cordoned) return "cordoned";
  if (worker.row.admin == AdminState::kDraining || worker.is_leaving) return "draining";
  if (worker.row.admin == AdminState::kDrained) return "drained";
  if (worker.contact == Contact::kSuspect) return "suspect";
  return worker.contact == Contact::kOnline ? "ready" : "unknown";
}

RpcFamilies::RpcFamilies(prometheus::Registry* registry, const std::vector<std::string>& methods) {
  auto& handled = BuildCounter()
                      .Name("switchyard_rpc_server_handled_total")
                      .Help("Calls answered.")
                      .Register(*registry);
  auto& handling =
      BuildHistogram()
          .Name("switchyard_rpc_server_handling_seconds")
          .Help("Time from a call's arrival to its answer; parked heartbeats included.")
          .Register(*registry);
  inflight_ = AddGauge(registry, "switchyard_rpc_inflight", "Calls not answered yet.");
  for (const std::string& method : methods) {
    auto& row = handled_.emplace_back();
    for (size_t code = 0; code < kCodes; ++code) {
      const std::string name =
          code == 16 ? "UNAUTHENTICATED" : std::string(CodeName(static_cast<Code>(code)));
      row[code] = &handled.Add({{"method", method}, {"code", name}});
    }
    handling_.push_back(&handling.Add({{"method", method}}, kCallSeconds));
  }
}

void RpcFamilies::Started() { inflight_->Increment(); }

void RpcFamilies::Finished(size_t method, int code, double seconds) {
  inflight_->Decrement();
  handled_.at(method)[code >= 0 && code < static_cast<int>(kCodes) ? static_cast<size_t>(code) : 2]
      ->Increment();
  handling_[method]->Observe(seconds);
}

Families::Families(std::shared_ptr<prometheus::Registry> shared, const Build& build)
    : registry_(std::move(shared)) {
  prometheus::Registry* registry = registry_.get();
  BuildGauge()
      .Name("switchyard_build_info")
      .Help("1; what this coordinator is.")
      .Register(*registry)
      .Add({{"version", build.version}, {"commit", build.commit}, {"sqlite", build.sqlite}})
      .Set(1);
  AddGauge(registry, "switchyard_start_timestamp_seconds", "Start of the coordinator.")
      ->Set(build.start_unix_seconds);
  db_generation = AddGauge(registry, "switchyard_db_generation", "Raised by each restore.");
  auto& degraded_family = BuildGauge()
                              .Name("switchyard_degraded_mode")
                              .Help("1 while changes are refused for this reason.")
                              .Register(*registry);
  const std::array<std::string, 4> reasons{"disk_full", "disk_low", "read_error",
                                           "restore_decision"};
  for (size_t i = 0; i < reasons.size(); ++i) {
    degraded[i] = &degraded_family.Add({{"reason", reasons[i]}});
  }
  auto& violations = BuildCounter()
                         .Name("switchyard_invariant_violations_total")
                         .Help("Broken safety invariants, by number; must stay 0.")
                         .Register(*registry);
  for (int i = 1; i <= 28; ++i) violations.Add({{"id", "S" + std::to_string(i)}});

  const std::array<std::string, kQueueClasses> classes{"heartbeat", "mutation", "append", "query"};
  auto& depth =
      BuildGauge().Name("switchyard_queue_depth").Help("Inputs that wait.").Register(*registry);
  auto& bytes = BuildGauge()
                    .Name("switchyard_queue_bytes")
                    .Help("Bytes of the inputs that wait.")
                    .Register(*registry);
  auto& rejected = BuildCounter()
                       .Name("switchyard_queue_rejected_total")
                       .Help("Inputs turned away by a full queue.")
                       .Register(*registry);
  for (size_t i = 0; i < kQueueClasses; ++i) {
    queue_depth[i] = &depth.Add({{"class", classes[i]}});
    queue_bytes[i] = &bytes.Add({{"class", classes[i]}});
    queue_rejected[i] = &rejected.Add({{"class", classes[i]}});
  }
  decide_seconds = AddHistogram(registry, "switchyard_reducer_decide_seconds",
                                "Time to decide about one input.", kStepSeconds);
  scheduler_pass_seconds = AddHistogram(registry, "switchyard_scheduler_pass_seconds",
                                        "Time of one placement pass.", kStepSeconds);
  commit_seconds = AddHistogram(registry, "switchyard_db_commit_seconds",
                                "Time of one durable transaction.", kCallSeconds);
  group_size = AddHistogram(registry, "switchyard_db_group_size",
                            "Inputs that share a transaction.", kGroupSizes);
  wal_bytes = AddGauge(registry, "switchyard_db_wal_bytes", "Size of the write-ahead log.");
  database_bytes = AddGauge(registry, "switchyard_db_bytes", "Size of the main database file.");
  checkpoint_seconds = AddHistogram(registry, "switchyard_db_checkpoint_seconds",
                                    "Time to move the log into the main file.", kStepSeconds);
  disk_free = AddGauge(registry, "switchyard_disk_free_bytes",
                       "Free space of the data directory's file system.");
  disk_size =
      AddGauge(registry, "switchyard_disk_size_bytes", "Size of the data directory's file system.");
  AddGauge(registry, "switchyard_backup_last_success_timestamp_seconds",
           "Newest verified backup; the coordinator's start before the first.")
      ->Set(build.start_unix_seconds);
  AddGauge(registry, "switchyard_backup_duration_seconds", "Time of the newest backup.");
  AddGauge(registry, "switchyard_backup_bytes", "Size of the newest backup.");

  workers_ = &BuildGauge().Name("switchyard_workers").Help("Workers by state.").Register(*registry);
  slots_ = &BuildGauge().Name("switchyard_slots").Help("Slots by state.").Register(*registry);
  heartbeat_delay = AddHistogram(registry, "switchyard_heartbeat_delay_seconds",
                                 "Arrival of a heartbeat later than due.", kLagSeconds);
  auto& lease = BuildCounter()
                    .Name("switchyard_lease_expired_total")
                    .Help("Attempts declared lost for want of contact.")
                    .Register(*registry);
  // Of a local run no lease expires.
  lease_expired_[static_cast<size_t>(scheduler::Profile::kResilient)] =
      &lease.Add({{"profile", "resilient"}});
  lease_expired_[static_cast<size_t>(scheduler::Profile::kExclusive)] =
      &lease.Add({{"profile", "exclusive"}});
  auto& stale = BuildCounter()
                    .Name("switchyard_stale_messages_total")
                    .Help("Messages that a number proved old or foreign.")
                    .Register(*registry);
  for (size_t i = 0; i < scheduler::kStaleKinds; ++i) {
    stale_[i] =
        &stale.Add({{"kind", std::string(scheduler::Name(static_cast<scheduler::StaleKind>(i)))}});
  }
  sweeps_ = &BuildGauge().Name("switchyard_sweeps").Help("Sweeps by state.").Register(*registry);
  runs_ = &BuildGauge().Name("switchyard_runs").Help("Linked runs by state.").Register(*registry);
  queue_wait_ = &BuildHistogram()
                     .Name("switchyard_queue_wait_seconds")
                     .Help("Time in the queue before an attempt.")
                     .Register(*registry);
  attempts_started_ = &BuildCounter()
                           .Name("switchyard_attempts_started_total")
                           .Help("Attempts assigned.")
                           .Register(*registry);
  attempts_finished_ = &BuildCounter()
                            .Name("switchyard_attempts_finished_total")
                            .Help("Attempts by how they ended.")
                            .Register(*registry);
  steps_redone_ = &BuildCounter()
                       .Name("switchyard_steps_redone_total")
                       .Help("Steps trained again after a restart.")
                       .Register(*registry);
  quarantined_ = &BuildCounter()
                      .Name("switchyard_runs_quarantined_total")
                      .Help("Runs taken out as poisonous.")
                      .Register(*registry);
  points_committed =
      AddCounter(registry, "switchyard_metric_points_committed_total", "Points stored.");
  points_duplicate = AddCounter(registry, "switchyard_metric_points_duplicate_total",
                                "Points received again and dropped.");
  points_nonfinite = AddCounter(registry, "switchyard_metric_points_nonfinite_total",
                                "Stored points that are NaN or infinite.");
  gap_nacks = AddCounter(registry, "switchyard_metric_gap_nacks_total",
                         "Batches beyond a gap, asked for again.");
  auto& dropped = BuildCounter()
                      .Name("switchyard_metric_points_dropped_total")
                      .Help("Lines that a worker could not keep or send.")
                      .Register(*registry);
  const std::array<std::string, 5> drop_reasons{"spool_full", "disk_full", "corrupt", "quota",
                                                "shed"};
  for (size_t i = 0; i < drop_reasons.size(); ++i) {
    points_dropped[i] = &dropped.Add({{"reason", drop_reasons[i]}});
  }
  ingest_lag = AddHistogram(registry, "switchyard_ingest_lag_seconds",
                            "Age of a batch's oldest line at its commit.", kLagSeconds);
  slot_seconds_ = &BuildCounter()
                       .Name("switchyard_slot_seconds_total")
                       .Help("Seconds of slots by use.")
                       .Register(*registry);
  auto& checkpoints = BuildCounter()
                          .Name("switchyard_checkpoints_total")
                          .Help("Checkpoints by result.")
                          .Register(*registry);
  for (const char* result : {"published", "orphan", "corrupt", "failed"}) {
    checkpoint_results[result] = &checkpoints.Add({{"result", result}});
  }
  trainer_checkpoint_seconds =
      AddHistogram(registry, "switchyard_checkpoint_seconds",
                   "Time to write a checkpoint, as trainers report it.", kCheckpointSeconds);
  trainer_checkpoint_bytes =
      AddCounter(registry, "switchyard_checkpoint_bytes_total", "Bytes of published checkpoints.");
  // Without authentication every client has the one role that there is.
  active_clients = &BuildGauge()
                        .Name("switchyard_active_clients")
                        .Help("Clients seen in the last 5 minutes.")
                        .Register(*registry)
                        .Add({{"role", "admin"}});
  series_dropped = AddCounter(registry, "switchyard_exporter_series_dropped_total",
                              "Series withheld by the caps on live runs.");
  AddProject("default");
  AddPool("default");
}

void Families::AddProject(const std::string& project) {
  if (run_gauges_.contains(project)) return;
  auto& runs = run_gauges_[project];
  for (size_t i = 1; i < scheduler::kRunStates; ++i) {
    runs[i] =
        &runs_->Add({{"project", project}, {"state", std::string(Name(static_cast<RunState>(i)))}});
  }
  auto& sweeps = sweep_gauges_[project];
  for (size_t i = 1; i < sweeps.size(); ++i) {
    sweeps[i] = &sweeps_->Add(
        {{"project", project}, {"state", std::string(Name(static_cast<SweepState>(i)))}});
  }
  for (const std::string_view outcome : kOutcomes) Outcome(project, outcome);
  steps_redone_->Add({{"project", project}});
  quarantined_->Add({{"project", project}});
}

void Families::AddPool(const std::string& pool) {
  if (worker_gauges_.contains(pool)) return;
  auto& workers = worker_gauges_[pool];
  for (size_t i = 0; i < kWorkerStates.size(); ++i) {
    workers[i] = &workers_->Add({{"pool", pool}, {"state", std::string(kWorkerStates[i])}});
  }
  auto& slots = slot_gauges_[pool];
  for (size_t i = 0; i < kSlotStates.size(); ++i) {
    slots[i] = &slots_->Add({{"pool", pool}, {"state", std::string(kSlotStates[i])}});
  }
  auto& seconds = slot_second_counters_[pool];
  for (size_t i = 0; i < kSlotClasses.size(); ++i) {
    seconds[i] = &slot_seconds_->Add({{"pool", pool}, {"class", std::string(kSlotClasses[i])}});
  }
  attempts_started_->Add({{"pool", pool}});
  QueueWait(pool);
}

prometheus::Histogram& Families::QueueWait(const std::string& pool) {
  return queue_wait_->Add({{"pool", pool}}, kWaitSeconds);
}

prometheus::Counter& Families::Outcome(const std::string& project, std::string_view outcome) {
  return attempts_finished_->Add({{"project", project}, {"outcome", std::string(outcome)}});
}

void Families::AddStoredSweep(const std::string& project, SweepState state,
                              const scheduler::StateCounts& counts) {
  AddProject(project);
  ++stored_sweeps_[project][static_cast<size_t>(state)];
  scheduler::StateCounts& stored = stored_runs_[project];
  for (size_t i = 0; i < counts.size(); ++i) stored[i] += counts[i];
}

void Families::Observe(const scheduler::State& before, const scheduler::Decision& decision,
                       std::vector<std::function<void()>>* later) {
  const auto count = [later](prometheus::Counter* counter, double n = 1) {
    later->push_back([counter, n] { counter->Increment(n); });
  };
  for (const scheduler::StaleKind kind : decision.stale) {
    stale_[static_cast<size_t>(kind)]->Increment();
    if (kind == scheduler::StaleKind::kGap) gap_nacks->Increment();
  }
  for (size_t profile = 0; profile < lease_expired_.size(); ++profile) {
    const uint64_t expired = decision.leases_expired[profile];
    if (expired > 0 && lease_expired_[profile] != nullptr) {
      count(lease_expired_[profile], static_cast<double>(expired));
    }
  }
  if (const auto* heartbeat = std::get_if<scheduler::HeartbeatAnswer>(&decision.answer)) {
    heartbeat_delay->Observe(static_cast<double>(heartbeat->delay.count()) / 1000);
  }
  std::vector<std::string> pools;
  for (const scheduler::Change& change : decision.changes) {
    if (const auto* sweep = std::get_if<scheduler::SweepRow>(&change)) AddProject(sweep->project);
    if (const auto* worker = std::get_if<scheduler::WorkerRow>(&change)) AddPool(worker->pool);
    const auto* assigned = std::get_if<scheduler::AttemptRow>(&change);
    // One of an earlier generation is only known again.
    if (assigned != nullptr && scheduler::GenerationOf(assigned->epoch) >= before.generation) {
      count(&attempts_started_->Add({{"pool", assigned->pool}}));
      pools.push_back(assigned->pool);
    }
    if (const auto* checkpoint = std::get_if<scheduler::CheckpointRow>(&change)) {
      // Retention is no result of writing one.
      const auto result = checkpoint_results.find(std::string(Name(checkpoint->state)));
      if (result != checkpoint_results.end()) count(result->second);
      if (checkpoint->state == scheduler::CheckpointState::kPublished) {
        count(trainer_checkpoint_bytes, static_cast<double>(checkpoint->bytes));
      }
    }
    if (const auto* status = std::get_if<scheduler::AttemptStatus>(&change)) {
      const scheduler::Attempt* attempt = before.FindAttempt(status->epoch);
      if (attempt == nullptr) continue;
      const scheduler::Run* run = before.FindRun(attempt->row.run);
      if (run == nullptr) continue;
      if (IsTerminal(status->state) && !IsTerminal(attempt->status.state)) {
        count(&Outcome(run->row.project, OutcomeOf(*status)));
      }
      if (status->start_reported && !attempt->status.start_reported && attempt->row.ordinal > 1) {
        // What the attempts before it had reached beyond the point where this one starts.
        uint64_t reached = 0;
        for (const Epoch epoch : run->attempts) {
          if (epoch < status->epoch) {
            reached = std::max(reached, before.FindAttempt(epoch)->status.final_step);
          }
        }
        if (reached > status->resumed_step) {
          count(&steps_redone_->Add({{"project", run->row.project}}),
                static_cast<double>(reached - status->resumed_step));
        }
      }
    }
    if (const auto* status = std::get_if<scheduler::RunStatus>(&change)) {
      const scheduler::Run* run = before.FindRun(status->id);
      if (run != nullptr && status->state == RunState::kQuarantined &&
          run->status.state != RunState::kQuarantined) {
        count(&quarantined_->Add({{"project", run->row.project}}));
      }
    }
    if (const auto* status = std::get_if<scheduler::SweepStatus>(&change)) {
      const scheduler::Sweep* sweep = before.FindSweep(status->id);
      std::string project = sweep != nullptr ? sweep->row.project : std::string();
      if (sweep == nullptr) {
        for (const scheduler::Change& other : decision.changes) {
          const auto* row = std::get_if<scheduler::SweepRow>(&other);
          if (row != nullptr && row->id == status->id) project = row->project;
        }
      }
      if (IsTerminal(status->state)) {
        later->push_back([this, project, state = status->state, counts = status->counts] {
          AddStoredSweep(project, state, counts);
        });
      }
    }
  }
  if (const auto* placed = std::get_if<scheduler::ScheduleAnswer>(&decision.answer)) {
    for (size_t i = 0; i < placed->waits.size() && i < pools.size(); ++i) {
      later->push_back([histogram = &QueueWait(pools[i]),
                        seconds = static_cast<double>(placed->waits[i].count()) / 1000] {
        histogram->Observe(seconds);
      });
    }
  }
}

void Families::CountState(const scheduler::State& state) {
  std::map<std::string, scheduler::StateCounts> runs = stored_runs_;
  std::map<std::string, std::array<uint64_t, 6>> sweeps = stored_sweeps_;
  for (const auto& [id, sweep] : state.sweeps) {
    scheduler::StateCounts& counts = runs[sweep.row.project];
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += sweep.status.counts[i];
    ++sweeps[sweep.row.project][static_cast<size_t>(sweep.status.state)];
  }
  for (auto& [project, gauges] : run_gauges_) {
    for (size_t i = 1; i < gauges.size(); ++i) {
      gauges[i]->Set(static_cast<double>(runs[project][i]));
    }
  }
  for (auto& [project, gauges] : sweep_gauges_) {
    for (size_t i = 1; i < gauges.size(); ++i) {
      gauges[i]->Set(static_cast<double>(sweeps[project][i]));
    }
  }
  std::map<std::string, std::array<uint64_t, 8>> workers;
  std::map<std::string, std::array<uint64_t, 3>> slots;
  for (const auto& [id, worker] : state.workers) {
    const auto shown = std::ranges::find(kWorkerStates, ShownState(worker));
    ++workers[worker.row.pool][static_cast<size_t>(shown - kWorkerStates.begin())];
    for (const scheduler::SlotRow& slot : worker.row.slots) {
      const bool is_busy = worker.held.contains(slot.index);
      ++slots[worker.row.pool][is_busy ? 1 : worker.IsPlaceable() ? 0 : 2];
    }
  }
  for (auto& [pool, gauges] : worker_gauges_) {
    for (size_t i = 0; i < gauges.size(); ++i) {
      gauges[i]->Set(static_cast<double>(workers[pool][i]));
    }
  }
  for (auto& [pool, gauges] : slot_gauges_) {
    for (size_t i = 0; i < gauges.size(); ++i) {
      gauges[i]->Set(static_cast<double>(slots[pool][i]));
    }
  }
}

void Families::CountSlotSeconds(const scheduler::State& state, double seconds) {
  for (const auto& [id, worker] : state.workers) {
    if (worker.contact != scheduler::Contact::kOnline &&
        worker.contact != scheduler::Contact::kSuspect) {
      continue;
    }
    AddPool(worker.row.pool);
    auto& counters = slot_second_counters_[worker.row.pool];
    for (const scheduler::SlotRow& slot : worker.row.slots) {
      const auto held = worker.held.find(slot.index);
      if (held == worker.held.end()) {
        counters[2]->Increment(seconds);
        continue;
      }
      const scheduler::Attempt* attempt = state.FindAttempt(held->second);
      const scheduler::Run* run = attempt != nullptr ? state.FindRun(attempt->row.run) : nullptr;
      if (run == nullptr || run->status.current_epoch != held->second ||
          IsTerminal(attempt->status.state)) {
        counters[3]->Increment(seconds);
        continue;
      }
      uint64_t reached = 0;
      for (const Epoch epoch : run->attempts) {
        if (epoch < held->second) {
          reached = std::max(reached, state.FindAttempt(epoch)->status.final_step);
        }
      }
      counters[attempt->status.final_step < reached ? 1 : 0]->Increment(seconds);
    }
  }
}

}  // namespace switchyard::server_metrics
