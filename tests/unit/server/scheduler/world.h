#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "server/scheduler/apply.h"
#include "server/scheduler/decide.h"

namespace switchyard::scheduler {

// A core with its clock: decides and applies, and keeps what was decided last.
class World {
 public:
  World() {
    state_.generation = 1;
    state_.boot = 1;
    state_.last_epoch = uint64_t{1} << 48;
  }

  State& state() { return state_; }
  const Now& now() const { return now_; }
  void Advance(int64_t ms) {
    now_.now = now_.now + Milliseconds(ms);
    now_.unix_ms += ms;
  }

  Decision Do(const Event& event) {
    Decision decision = Decide(state_, event, now_);
    Apply(decision.changes, now_, &state_);
    return decision;
  }

  static WorkerId Worker(uint64_t n) { return {Uuid{2, n}}; }
  static RunId RunOf(uint64_t n) { return {Uuid{3, n}}; }
  static SweepId SweepOf(uint64_t n) { return {Uuid{4, n}}; }

  // One worker with a slot, and the first of `runs` runs placed on it and seen running.
  static World Running(const RunRow& like = {}, uint64_t runs = 1) {
    World world;
    world.AddWorker(1, 1);
    world.Submit(1, runs, like);
    world.Place();
    world.Beat(Worker(1), {world.Report(RunOf(101), RecordState::kRunning)});
    return world;
  }
  // Waits for the back-off, places it again and reports it running.
  void StartAgain(RunId run) {
    Advance(600001);
    for (const auto& [id, worker] : state_.workers) Beat(id, {}, /*applied=*/false);
    Do(Tick{});
    Place();
    SWITCHYARD_CHECK(StateOf(run) == RunState::kActive) << Name(StateOf(run));
    Beat(AttemptOf(run).row.worker, {Report(run, RecordState::kRunning)}, /*applied=*/false);
  }
  // Its newest attempt ends by a crash of its own.
  Decision Crash(RunId run, uint64_t step, int signal, const std::string& evidence = "") {
    MemberReport report = Exit(run, 0, EndClass::kUnknown, false);
    report.signal = signal;
    report.final_step = step;
    report.evidence = evidence;
    return Beat(AttemptOf(run).row.worker, {report}, /*applied=*/false);
  }
  // Its newest attempt ends complete, with all of its lines stored.
  Decision Succeed(RunId run) {
    const Attempt& attempt = AttemptOf(run);
    return Beat(attempt.row.worker, {Exit(run, 0, EndClass::kOk, true, attempt.streams[0].acked)},
                /*applied=*/false);
  }
  // The next line of its newest attempt announces a checkpoint.
  Decision Publish(RunId run, uint64_t step, std::optional<double> score = std::nullopt) {
    const uint64_t next = AttemptOf(run).streams[0].acked + 1;
    return Lines(run, next, 1,
                 {{.kind = LineFact::Kind::kCheckpoint,
                   .seq = next,
                   .step = step,
                   .path = std::to_string(step),
                   .score = score}});
  }

  WorkerId AddWorker(uint64_t n, uint32_t cpus, const std::string& store = "disk") {
    Register event{.worker = {.id = Worker(n),
                              .incarnation = 1,
                              .instance_id = "boot-a",
                              .pool = "default",
                              .host = "host" + std::to_string(n),
                              .version = {},
                              .metrics_address = {},
                              .checkpoint_store = store},
                   .nonce = "nonce"};
    for (uint32_t i = 0; i < cpus; ++i) event.worker.slots.push_back({.index = i, .uuid = {}});
    SWITCHYARD_CHECK(Do(event).status.ok());
    return Worker(n);
  }

  static PlannedRun Planned(uint64_t number, const std::string& key) {
    PlannedRun plan;
    plan.number = number;
    plan.cell = number;
    plan.run.project = "default";
    plan.run.run_key = key;
    return plan;
  }

  // A sweep of `runs` runs with ids 100 * n + number and keys of their own.
  SweepId Submit(uint64_t n, uint64_t runs, const RunRow& like = {}) {
    SubmitSweep event;
    event.sweep.id = SweepOf(n);
    event.sweep.project = "default";
    event.sweep.name = "sweep" + std::to_string(n);
    event.sweep.runs = runs;
    event.sweep.cells = runs;
    for (uint64_t i = 1; i <= runs; ++i) {
      PlannedRun plan = Planned(i, std::to_string(n) + "-" + std::to_string(i));
      plan.run.id = RunOf(100 * n + i);
      plan.run.priority = like.priority;
      plan.run.need = like.need;
      plan.run.max_parallel = like.max_parallel;
      plan.run.timeout_ms = like.timeout_ms;
      plan.run.policy = like.policy;
      if (!like.project.empty()) plan.run.project = like.project;
      event.first.push_back(plan);
    }
    SWITCHYARD_CHECK(Do(event).status.ok());
    return SweepOf(n);
  }

  Decision Place() { return Do(Schedule{}); }

  const Attempt& AttemptOf(RunId run) {
    return *state_.FindAttempt(state_.FindRun(run)->status.current_epoch);
  }
  RunState StateOf(RunId run) { return state_.FindRun(run)->status.state; }

  MemberReport Report(RunId run, RecordState record) {
    const Attempt& attempt = AttemptOf(run);
    MemberReport report;
    report.run = run;
    report.ordinal = attempt.row.ordinal;
    report.epoch = attempt.row.epoch;
    report.state = record;
    return report;
  }
  MemberReport Exit(RunId run, int code, EndClass end_class, bool complete, uint64_t last_seq = 0) {
    MemberReport report = Report(run, RecordState::kExited);
    report.exit_code = code;
    report.end_class = end_class;
    report.complete = complete;
    report.last_seq = last_seq;
    return report;
  }

  Decision Beat(WorkerId worker, std::vector<MemberReport> observed, bool applied = true) {
    Heartbeat event = BeatOf(worker, std::move(observed));
    if (applied) event.applied = NextRev(&state_);
    return Do(event);
  }
  // A heartbeat of an agent that a signal drains.
  Decision Leave(WorkerId worker, std::vector<MemberReport> observed, uint32_t grace_ms) {
    Heartbeat event = BeatOf(worker, std::move(observed));
    event.is_leaving = true;
    event.leaving_grace_ms = grace_ms;
    return Do(event);
  }
  Heartbeat BeatOf(WorkerId worker, std::vector<MemberReport> observed) {
    const scheduler::Worker& known = *state_.FindWorker(worker);
    return {.worker = worker,
            .nonce = known.nonce,
            .incarnation = known.row.incarnation,
            .hb_seq = known.hb_seq + 1,
            .sent_boottime_ns = 1,
            .applied = {},
            .observed = std::move(observed),
            .random = 500};
  }

  Decision Lines(RunId run, uint64_t first, uint64_t n, std::vector<LineFact> facts = {}) {
    const Attempt& attempt = AttemptOf(run);
    return Do(Append{.run = run,
                     .ordinal = attempt.row.ordinal,
                     .epoch = attempt.row.epoch,
                     .rank = 0,
                     .worker = attempt.row.worker,
                     .first_seq = first,
                     .n = n,
                     .lines = std::move(facts),
                     .random = 500});
  }

 private:
  State state_;
  Now now_{.now = {1000000}, .unix_ms = 1700000000000};
};

template <typename T>
std::vector<T> ChangesOf(const Decision& decision) {
  std::vector<T> out;
  for (const Change& change : decision.changes) {
    if (const T* row = std::get_if<T>(&change)) out.push_back(*row);
  }
  return out;
}

}  // namespace switchyard::scheduler
