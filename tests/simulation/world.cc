#include "tests/simulation/world.h"

#include <algorithm>

namespace switchyard::simulation {

using scheduler::IsTerminal;

namespace {

constexpr size_t kTraceMax = 4000;
constexpr uint64_t kHashEvery = 1000;

uint64_t Mix64(uint64_t hash, uint64_t value) {
  return Random(hash ^ (value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2))).Next();
}

}  // namespace

World::World(const Options& run_options)
    : options(run_options), random(run_options.seed), coordinator(*this) {}

World::~World() = default;

int64_t World::UnixMs() const { return wall_offset_ms + static_cast<int64_t>(engine.now() / kMs); }

uint64_t World::LineValue(Epoch epoch, uint64_t seq) const {
  return Random(epoch.value * 0x100000001b3ULL + seq).Next();
}

Host& World::HostOf(WorkerId id) {
  for (const auto& host : hosts) {
    if (host->id == id) return *host;
  }
  Fail("S2", "a worker that is none");
  return *hosts[0];
}

void World::Fail(std::string_view invariant, std::string text) {
  if (outcome.failure.has_value()) return;
  outcome.failure = Failure{.invariant = std::string(invariant),
                            .text = StrCat("t=", engine.now() / kMs, " ms: ", text)};
  Trace("VIOLATION ", invariant, ": ", text);
}

void World::TraceLine(std::string text) {
  outcome.trace.push_back(StrCat("t=", engine.now() / kMs, " ", text));
  if (outcome.trace.size() > kTraceMax) outcome.trace.pop_front();
}

Nanos World::Delay() {
  if (has_quiet) return random.Below(20 * kMs);
  return random.Chance(0.9) ? random.Below(std::min<Nanos>(delay_max, 50 * kMs) + 1)
                            : random.Below(delay_max + 1);
}

bool World::IsLost(const Host& host, bool to_coordinator) {
  if (!host.is_up) return true;
  const Nanos cut = to_coordinator ? host.cut_to_coordinator : host.cut_from_coordinator;
  return engine.now() < cut || (loss > 0 && random.Chance(loss));
}

bool World::IsDoubled() { return doubling > 0 && random.Chance(doubling); }

bool World::CrashesAt(Site site, const void* where) {
  if (armed.empty() || has_failed()) return false;
  for (auto it = armed.begin(); it != armed.end(); ++it) {
    if (it->site != site) continue;
    const bool is_agent = site >= Site::kAgentBeforeRecords;
    if (is_agent && where != &hosts[it->host % hosts.size()]->agent) continue;
    if (it->countdown-- > 0) return false;
    const Armed fired = *it;
    armed.erase(it);
    const Nanos down = random.Between(100 * kMs, 8 * kSec);
    if (is_agent) {
      Host& host = *hosts[fired.host % hosts.size()];
      if (fired.is_host_crash) {
        host.Crash(down);
        return true;
      }
      host.agent.Kill();
      engine.At(engine.now() + down, [&host] { host.agent.Boot(); });
    } else {
      coordinator.Kill();
      engine.At(engine.now() + down, [this] {
        if (!coordinator.process.is_alive()) coordinator.Boot();
      });
    }
    return true;
  }
  return false;
}

void World::CountCoordinator() {
  if (coordinator_counts) coordinator_ran += engine.now() - coordinator_ran_at;
  coordinator_ran_at = engine.now();
}

// ---------------------------------------------------------------- set-up

std::string World::NewRequestId() { return StrCat("q", ++requests); }

void World::Setup() {
  const Mix& mix = *FindMix(options.mix);
  fault_phase_ = random.Between(mix.phase_min / kSec, mix.phase_max / kSec) * kSec;
  schedule_ = DrawFaults(mix, options.seed, fault_phase_);
  keeps_wal = std::ranges::any_of(
      schedule_, [](const Fault& fault) { return fault.kind == FaultKind::coordinator_wal_loss; });
  infra_rate = mix.infra_rate;
  // Tiny batches, often: many small acknowledgements.
  if (random.Chance(0.25)) lines_per_batch = random.Between(1, 3);
  // Tiny groups: what belongs together arrives apart.
  if (random.Chance(0.25)) group_max = random.Between(1, 3);
  const uint64_t count = random.Between(2, 4);
  const bool is_shared = random.Chance(0.4);
  for (uint32_t i = 0; i < count; ++i) {
    hosts.push_back(std::make_unique<Host>(*this, i));
    hosts[i]->slots = static_cast<uint32_t>(random.Between(1, 3));
    if (is_shared) hosts[i]->store = "shared";
  }
  const uint64_t kinds = random.Between(2, 4);
  uint64_t cell = 0;
  for (uint64_t i = 0; i < kinds; ++i) {
    Document document{.number = i,
                      .runs = random.Between(2, 6),
                      .first_cell = cell,
                      .steps = random.Between(mix.steps_min, mix.steps_max)};
    if (random.Chance(mix.lease_share)) {
      document.is_exclusive = random.Chance(0.5);
      if (!document.is_exclusive) document.timeout_ms = random.Between(200'000, 560'000);
    }
    if (random.Chance(0.2)) document.slots = 2;
    if (random.Chance(0.2)) document.max_parallel = 2;
    document.priority = static_cast<int32_t>(random.Below(3));
    // Some documents share cells with the one before.
    cell += random.Chance(0.5) ? document.runs : document.runs - 1;
    documents.push_back(document);
  }
  // Runs must fit somewhere.
  hosts[0]->slots = std::max(hosts[0]->slots, 2U);
  coordinator.Boot();
  for (const auto& host : hosts) {
    Host* one = host.get();
    engine.At(engine.now() + random.Below(5 * kSec), [one] { one->agent.Boot(); });
  }
  for (uint64_t i = 0; i < 2; ++i) {
    engine.At(engine.now() + random.Below(20 * kSec),
              [this, i] { IssueClient({.kind = ClientCall::Kind::kSubmit, .document = i}); });
  }
  for (size_t i = 0; i < schedule_.size(); ++i) {
    if (options.left_out.contains(i)) continue;
    ++outcome.faults;
    outcome.schedule.push_back(StrCat("#", i, " ", schedule_[i].ToString()));
    engine.At(schedule_[i].at, [this, i] { Inject(schedule_[i]); });
  }
  // Backups, as an operator would make them.
  for (Nanos at = 2 * kMin; at < fault_phase_; at += 3 * kMin) {
    engine.At(at, [this] { backup = image; });
  }
}

// ---------------------------------------------------------------- clients

void World::IssueClient(ClientCall call) {
  ++open_calls;
  if (call.request_id.empty()) call.request_id = NewRequestId();
  SendClient(call, 0);
}

// Until an answer comes, with the same id.
void World::SendClient(const ClientCall& call, uint32_t attempt) {
  const auto is_done = std::make_shared<bool>(false);
  const auto again = [this, call, attempt, is_done] {
    if (*is_done) return;
    *is_done = true;
    SendClient(call, attempt + 1);
  };
  const Nanos wait = std::min<Nanos>(30 * kSec, kSec << std::min<uint32_t>(attempt, 5));
  engine.At(engine.now() + wait, again);
  if (random.Chance(loss)) return;
  engine.At(engine.now() + Delay(), [this, call, is_done] {
    if (!coordinator.process.is_alive()) return;
    coordinator.process.Post(engine, engine.now(), [this, call, is_done] {
      coordinator.Client(call, [this, call, is_done](const Result<uint64_t>& reply) {
        if (random.Chance(loss)) return;
        // What it promises holds until a restore takes it back.
        const uint32_t generation = image.generation;
        engine.At(engine.now() + Delay(), [this, call, is_done, reply, generation] {
          if (!reply.ok() && reply.status().code() == Code::kUnavailable) return;
          if (*is_done) return;
          *is_done = true;
          --open_calls;
          const auto seen = replies_seen.find(call.request_id);
          if (!reply.ok()) {
            if (reply.status().code() == Code::kAlreadyExists && seen == replies_seen.end()) {
              Fail("S16", "a new request id was refused as used");
            }
            return;
          }
          if (seen != replies_seen.end()) {
            const AckedCall* first = nullptr;
            for (const AckedCall& acked : acked_calls) {
              if (acked.call.request_id == call.request_id) first = &acked;
            }
            if (first != nullptr && first->generation == generation) {
              if (first->call.body() != call.body()) {
                Fail("S16", "a request id was accepted for another body");
              } else if (seen->second != *reply) {
                Fail("S16", "the same request id got another reply");
              }
            }
            return;
          }
          replies_seen[call.request_id] = *reply;
          OnDrained(call);
          acked_calls.push_back({.call = call, .reply = *reply, .generation = generation});
        });
      });
    });
  });
}

// ---------------------------------------------------------------- the end

// An operator takes back, now that all is well, what keeps runs from going on.
void World::Operate() {
  if (open_calls > 0 || !coordinator.process.is_alive()) return;
  for (const auto& [id, worker] : image.workers) {
    ClientCall call{.kind = ClientCall::Kind::kSteerWorker, .worker = id};
    if (worker.cordoned) {
      See(Point::worker_cordoned);
      call.worker_verb = scheduler::WorkerVerb::kUncordon;
      IssueClient(call);
    } else if (worker.admin == scheduler::AdminState::kDraining ||
               worker.admin == scheduler::AdminState::kDrained) {
      const bool is_drilled = id == drilled_ && engine.now() < drained_by_ + kMin;
      call.worker_verb = scheduler::WorkerVerb::kUndrain;
      if (!is_drilled) IssueClient(call);
    }
  }
  for (const auto& [id, sweep] : image.sweeps) {
    if (sweep.second.state != scheduler::SweepState::kPaused) continue;
    IssueClient(
        {.kind = ClientCall::Kind::kSteerSweep, .sweep = id, .verb = scheduler::Verb::kResume});
  }
  for (const auto& [id, run] : image.runs) {
    if (IsTerminal(run.second.state)) continue;
    if (run.second.state != scheduler::RunState::kPaused && !run.second.pause_req) continue;
    IssueClient({.kind = ClientCall::Kind::kSteerRun, .run = id, .verb = scheduler::Verb::kResume});
  }
}

// L5: one worker that is well and has work is drained with a deadline.
void World::Drill() {
  constexpr uint32_t kDrainMs = 30'000;
  if (drill_at_ == 0 || engine.now() < drill_at_ || open_calls > 0) return;
  if (engine.now() > drill_at_ + 10 * kMin) drill_at_ = 0;
  for (const auto& [epoch, attempt] : image.attempts) {
    if (attempt.status.state != scheduler::AttemptState::kRunning) continue;
    Host& host = HostOf(attempt.row.worker);
    const bool is_slow = std::ranges::any_of(
        host.live, [](const Trainer* trainer) { return trainer->slow_exit > 0; });
    if (is_slow || !host.is_up || !host.agent.is_registered()) continue;
    drill_at_ = 0;
    drilled_ = host.id;
    IssueClient({.kind = ClientCall::Kind::kSteerWorker,
                 .worker = host.id,
                 .worker_verb = scheduler::WorkerVerb::kDrain,
                 .deadline_ms = kDrainMs});
    return;
  }
}

void World::OnDrained(const ClientCall& call) {
  if (!has_quiet || call.kind != ClientCall::Kind::kSteerWorker || call.worker != drilled_ ||
      call.worker_verb != scheduler::WorkerVerb::kDrain || drained_by_ != 0) {
    return;
  }
  // The deadline, K, and two heartbeats.
  drained_by_ = engine.now() + call.deadline_ms * kMs + 20 * kSec;
  engine.At(drained_by_, [this] {
    for (const auto& [epoch, attempt] : image.attempts) {
      if (attempt.row.worker == drilled_ && !IsTerminal(attempt.member.state)) {
        Fail("L5", StrCat("attempt ", epoch.value, " is ", Name(attempt.member.state),
                          " after the deadline of its worker's drain"));
      }
    }
    See(Point::emptied_by_deadline);
  });
}

bool World::IsSettled() {
  if (!coordinator.process.is_alive() || !coordinator.state || open_calls > 0) return false;
  for (const auto& [id, run] : image.runs) {
    if (!IsTerminal(run.second.state) && run.second.state != scheduler::RunState::kPaused) {
      return false;
    }
  }
  for (const auto& [id, sweep] : image.sweeps) {
    if (sweep.second.state == scheduler::SweepState::kActive &&
        sweep.second.proposed < sweep.first.runs) {
      return false;
    }
  }
  for (const auto& host : hosts) {
    if (!host->agent.state || !host->agent.IsSpooled() || !host->agent.state->IsIdle()) {
      return false;
    }
  }
  return true;
}

uint64_t World::StateHash() const {
  uint64_t hash = Mix64(engine.now(), random.state());
  hash = Mix64(hash, image.tail);
  hash = Mix64(hash, image.last_epoch);
  for (const auto& [epoch, attempt] : image.attempts) {
    hash = Mix64(hash, epoch.value ^ attempt.lines.size() << 32 ^
                           static_cast<uint64_t>(attempt.status.state) << 56);
  }
  for (const auto& [id, run] : image.runs) {
    hash = Mix64(hash, id.value.low ^ static_cast<uint64_t>(run.second.state));
  }
  if (coordinator.state) hash = Mix64(hash, coordinator.state->rev_n);
  for (const auto& host : hosts) hash = Mix64(hash, host->dirs.size() + host->incarnation);
  return hash;
}

Outcome World::Run() {
  Setup();
  uint64_t next_check = 500;
  const auto advance = [&](Nanos until) {
    while (!has_failed() && engine.Step(until)) {
      if (engine.events() % 16 == 0) CheckSteps();
      if (engine.events() % kHashEvery == 0) outcome.hashes.push_back(StateHash());
      if (engine.events() >= next_check) {
        next_check += 500;
        CheckAll();
      }
    }
  };
  advance(fault_phase_);
  if (!has_failed()) EndFaults();
  const Nanos end = engine.now() + FindMix(options.mix)->settle_max;
  Nanos settled_for = 0;
  while (!has_failed() && engine.now() < end && settled_for < 2 * kMin) {
    const Nanos slice = 20 * kSec;
    advance(engine.now() + slice);
    if (has_failed()) break;
    CheckLiveness();
    Drill();
    Operate();
    settled_for = IsSettled() ? settled_for + slice : 0;
  }
  if (!has_failed()) CheckEnd();
  outcome.events = engine.events();
  outcome.virtual_seconds = engine.now() / kSec;
  outcome.hashes.push_back(StateHash());
  return std::move(outcome);
}

}  // namespace switchyard::simulation
