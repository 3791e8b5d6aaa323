#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "common/events/lease_page.h"
#include "server/scheduler/core_clock.h"
#include "server/scheduler/decide.h"
#include "tests/simulation/coverage.h"
#include "tests/simulation/engine.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/image.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/agent_state_upload.h"

// A cluster in one thread: the coordinator's and the agents' production cores, and modelled shells,
// trainers, fork servers, hosts, disks, clocks and network.
namespace switchyard::simulation {

class World;
class Host;
class Trainer;

inline constexpr int kSigKill = 9;
inline constexpr int kSigTerm = 15;

// ---------------------------------------------------------------- a worker's disk

struct PidFile {
  uint32_t pid = 0;
  uint64_t start_ticks = 0;
  uint64_t boot = 0;
};
struct ExitFile {
  int code = 0;
  bool complete = false;
  uint64_t final_step = 0;
};
// An attempt directory. What is not synced may be lost with the host.
struct AttemptDir {
  std::string run_id;
  uint32_t ordinal = 0;
  std::string resume_path;
  std::optional<PidFile> pid_file;
  Trainer* lock_holder = nullptr;
  events::Lease lease;
  std::vector<Line> lines;
  uint64_t synced = 0;   // lines
  uint64_t deleted = 0;  // lines of the segments that the agent has deleted
  agent::Progress progress;
  bool is_torn = false;  // half a line behind the last one
  std::optional<ExitFile> exit;
  bool has_lost_lines = false;  // the disk did not keep what its trainer emitted
  bool is_durable = false;      // the directory itself
};
struct StoredRecord {
  agent::Record record;
  uint64_t boot = 0;
};
struct CheckpointFile {
  RunId run;
  Epoch epoch;
  uint64_t step = 0;
  bool is_damaged = false;
};

// ---------------------------------------------------------------- coordinator

enum class Site : uint8_t {
  kBeforeCommit,
  kAfterCommit,
  kBetweenReplies,
  kAgentBeforeRecords,
  kAgentAfterRecords,
  kAgentAfterSpawn,
  kAgentAfterDrop,
  kSites
};

struct Echo {
  uint64_t incarnation = 0;
  uint64_t hb_seq = 0;
  uint64_t sent_boottime_ns = 0;
};
struct RegisterReply {
  uint32_t generation = 0;
  uint32_t boot = 0;
  std::string nonce;
};
struct AppendReply {
  uint64_t committed = 0;
  uint64_t expect = 0;
  uint64_t durable = 0;     // in a backup
  bool has_credit = false;  // for more than one batch at a time
};
template <typename T>
using Reply = std::function<void(const Result<T>&)>;

// A mutation of a client; its request id stays the same over retries.
struct ClientCall {
  enum class Kind : uint8_t { kSubmit, kSteerRun, kSteerSweep, kSteerWorker };
  Kind kind = Kind::kSubmit;
  std::string request_id = {};
  uint64_t document = 0;  // kSubmit
  RunId run = {};
  SweepId sweep = {};
  WorkerId worker = {};
  scheduler::Verb verb = scheduler::Verb::kCancel;
  scheduler::WorkerVerb worker_verb = scheduler::WorkerVerb::kDrain;
  uint32_t deadline_ms = 0;  // kDrain
  std::string body() const;
  bool IsEnd() const { return verb == scheduler::Verb::kCancel || verb == scheduler::Verb::kKill; }
};

// What of the documents matters here.
struct Document {
  uint64_t number = 0;
  uint64_t runs = 0;
  uint64_t first_cell = 0;  // documents that overlap share runs
  uint64_t steps = 0;
  uint64_t timeout_ms = 0;
  bool is_exclusive = false;  // profile
  uint32_t slots = 1;
  uint32_t max_parallel = 0;
  int32_t priority = 0;
};

class Coordinator {
 public:
  explicit Coordinator(World& world) : w_(world) {}

  void Boot();
  void Kill();
  void Pause(Nanos duration);

  // Arriving calls, in the life of the process.
  void Register(scheduler::Register event, Reply<RegisterReply> done);
  void Heartbeat(scheduler::Heartbeat event, Reply<agent::Desired> done);
  void Append(scheduler::Append event, std::vector<Line> lines, Reply<AppendReply> done);
  void Client(const ClientCall& call, Reply<uint64_t> done);

  Process process;
  std::optional<scheduler::State> state;
  Nanos disk_full_until = 0;
  bool fail_next_sync = false;
  bool is_degraded = false;

 private:
  enum Queue : uint8_t { kHeartbeat, kMutation, kAppend, kQueues };
  struct Turn {
    scheduler::Now now;
    Group rows = {};
    std::vector<Work> releases = {};
  };
  struct Input {
    Queue queue = kMutation;
    // Reads rows: starts a group and ends it.
    bool is_barrier = false;
    std::function<void(Turn&)> decide;
    std::function<void(const Status&)> refuse;
  };
  struct Parked {
    Echo echo;
    Reply<agent::Desired> done;
    Timestamp until;
  };
  enum class Committed : uint8_t { kYes, kNo, kDied };

  Timestamp Steady() const;
  scheduler::Now MakeNow() const;
  void Push(Input input);
  void Wake(Nanos at);
  std::vector<Input> TakeGroup();
  void Pass();
  void RunGroup(std::vector<Input> group);
  Committed Commit(Turn& turn);
  void LoadState();
  scheduler::Decision Decide(Turn& turn, const scheduler::Event& event);
  void RunTick();
  void ReleaseHeartbeat(WorkerId worker, const Echo& echo, const scheduler::HeartbeatAnswer& answer,
                        const Reply<agent::Desired>& done);
  Result<agent::Desired> BuildDesired(WorkerId worker, const Echo& echo,
                                      const std::vector<scheduler::AttemptRef>& gc);
  bool HasNews(const scheduler::Worker& worker) const;
  // As the store says it: only what is committed.
  std::optional<scheduler::RecordedAttempt> FindRecorded(RunId run, Epoch epoch) const;
  void WakeParked();
  void EndParked();
  void RequestProposals();
  void MergeChunks();
  void CheckLostBySilence(const scheduler::Attempt& lost, scheduler::Profile profile);
  void PublishStaged(Turn& turn, WorkerId worker);
  Result<uint64_t> DecideClient(Turn& turn, const ClientCall& call);
  std::vector<scheduler::PlannedRun> Plan(const Document& document, uint64_t first, uint64_t count);

  World& w_;
  scheduler::CoreClock clock_{Milliseconds(30000)};
  std::array<std::deque<Input>, kQueues> inbox_;
  std::map<WorkerId, Parked> parked_;
  std::map<WorkerId, scheduler::WorkerContact> contacts_before_;
  std::set<WorkerId> woken_;
  std::set<SweepId> proposing_;
  bool needs_schedule_ = true;
  Nanos wake_at_ = 0;
  Nanos last_probe_ = 0;
  Nanos last_pass_ = 0;
};

// ---------------------------------------------------------------- a host

class Trainer {
 public:
  Trainer(World& world, Host& host, agent::AttemptKey key, uint32_t pid, uint64_t start_ticks)
      : w_(world), h_(host), key_(key), pid_(pid), start_ticks_(start_ticks) {}

  void Exec();
  void Signal(int signal);
  // The lease or the stop deadline has moved.
  void LeaseChanged();
  void Continue();
  void VanishWithHost();

  agent::AttemptKey key() const { return key_; }
  uint32_t pid() const { return pid_; }
  uint64_t start_ticks() const { return start_ticks_; }
  bool is_stepping() const { return process.is_alive() && !process.is_stopped() && is_stepping_; }

  Process process;          // executes; alive until its exit or kill
  bool is_gone = false;     // reaped: after a slow exit this is later than the end of `process`
  Nanos starved_until = 0;  // no watchdog
  Nanos awake_since = 0;    // the newest continue
  bool is_hung = false;
  Nanos slow_exit = 0;
  Nanos slow_sync_until = 0;     // its disk takes up to then
  std::optional<int> fail_with;  // exit code, or minus the signal, at the next step

 private:
  friend class World;
  AttemptDir* Dir();
  void Begin();
  void Step();
  void FinishStep();
  void Checkpoint(Work then);
  void Emit(LineKind kind, uint64_t step, uint64_t value);
  void Stop(bool with_checkpoint);
  void ForgetUnrecorded(const std::string& assigned);
  void End(int code, bool complete);
  void Exit(int code, int signal);
  bool MustBeGone();
  void Watchdog();
  void ArmWatchdog();
  void Sync();

  World& w_;
  Host& h_;
  agent::AttemptKey key_;
  uint32_t pid_;
  uint64_t start_ticks_;
  RunId run_;
  uint64_t step_ = 0;
  uint64_t steps_ = 0;
  uint64_t emitted_ = 0;
  bool is_stepping_ = false;
  bool is_ending_ = false;
  bool term_seen_ = false;
  bool is_sync_planned_ = false;
  Nanos watchdog_at_ = 0;
  Nanos step_time_ = 0;
};

// Starts trainers for its agent, and dies with it.
class ForkServer {
 public:
  ForkServer(World& world, Host& host) : w_(world), h_(host) {}
  void Start();
  void Kill();
  void Spawn(agent::AttemptKey key, uint64_t id);
  // The lock is held by the process and by children that have not executed yet.
  bool HoldsLock() const { return process.is_alive() || !children_.empty(); }
  void KillWithChildren();
  void HostCrashed();
  void TrainerEnded(const Trainer& trainer, agent::WaitStatus wait);

  Process process;
  Nanos slow_until = 0;

 private:
  void Child(agent::AttemptKey key, uint64_t id, uint64_t child, uint64_t life);

  World& w_;
  Host& h_;
  uint64_t next_child_ = 1;
  std::set<uint64_t> children_;
  std::map<uint32_t, uint64_t> ids_;  // pid -> request
};

class AgentShell {
 public:
  AgentShell(World& world, Host& host) : w_(world), h_(host) {}

  void Boot();
  void Kill();
  void HostCrashed();
  void FileGrown(agent::AttemptKey key);
  void OnSpawned(uint64_t id, uint32_t pid, const std::string& error);
  void OnExited(uint64_t id, agent::WaitStatus wait);
  void OnAdoptedGone(agent::AttemptKey key);
  // A reply that belongs to no call any more: an old copy from the network.
  void OnStrayDesired(const agent::Desired& desired);

  Process process;
  std::optional<agent::AgentState> state;
  bool is_registered() const { return registered_; }
  bool IsSpooled() const;
  // What it knows of an attempt, for a failure's text.
  std::string Describe(agent::AttemptKey key) const;

 private:
  friend class World;
  // The event file of an attempt, as far as sending goes.
  class Lines final : public agent::LineSource {
   public:
    Lines(World& world, Host& host, agent::AttemptKey key) : w_(world), h_(host), key_(key) {}
    uint64_t acknowledged() const override { return acked_; }
    bool has_unacknowledged() const override { return sent_ > acked_; }
    void Acknowledge(uint64_t seq) override;
    void Rewind() override { sent_ = acked_; }
    // Segments that were deleted before this agent started are not read any more.
    void Skip(uint64_t deleted);
    void Give(uint64_t n) { sent_ += n; }
    uint64_t sent() const { return sent_; }

   private:
    World& w_;
    Host& h_;
    const agent::AttemptKey key_;
    uint64_t acked_ = 0;
    uint64_t sent_ = 0;
  };
  struct Attempt {
    Attempt(World& world, Host& host, agent::AttemptKey key);

    std::string run_id;
    uint32_t ordinal = 0;
    uint32_t pid = 0;
    bool is_adopted = false;
    bool killed = false;
    bool ended = false;
    bool spooled = false;
    bool has_credit = true;
    Nanos flush_at = 0;
    Lines lines;
    agent::StreamWindow window;
  };

  // The attempt's, made where there is none.
  Attempt& AttemptOf(agent::AttemptKey key) {
    return attempts_.try_emplace(key, w_, h_, key).first->second;
  }
  // Lines gather for so long before they are sent.
  static constexpr Nanos kFlush = kSec;

  void Recover();
  void RecoverOne(agent::AttemptKey key, StoredRecord stored);
  agent::AttemptEnd Evaluate(agent::AttemptKey key, uint64_t launch_boot,
                             std::optional<agent::WaitStatus> wait, bool stop_requested);
  void OnProcessGone(agent::AttemptKey key, std::optional<agent::WaitStatus> wait);
  // The rest of a pass of the loop: what is due, what is pending, and when to wake again.
  void Turnaround();
  bool Execute();
  void Connect();
  void Disconnect();
  void MaybeHeartbeat();
  void OnDesired(const agent::Desired& desired);
  void OnHeartbeatReply(const Result<agent::Desired>& reply, Nanos sent, uint64_t serial);
  void SendEvents(agent::AttemptKey key);
  void SendBatch(agent::AttemptKey key, Attempt& attempt, const AttemptDir& dir);
  void OnAppend(agent::AttemptKey key, const agent::StreamWindow::Batch& batch,
                const Result<AppendReply>& reply);
  void CheckAnswer(agent::AttemptKey key, const AppendReply& reply);
  // When the next batch is to go out.
  void PlanFlush(agent::AttemptKey key, Attempt& attempt);
  void Resend(agent::AttemptKey key);
  void DeleteSegments(agent::AttemptKey key, const Attempt& attempt, uint64_t committed);
  void ReadProgress();
  void CheckSpooled(agent::AttemptKey key);
  void PlanWake(Nanos at);
  void Queue(agent::Actions actions);

  World& w_;
  Host& h_;
  std::map<agent::AttemptKey, Attempt> attempts_;
  std::map<uint64_t, agent::AttemptKey> spawns_;
  uint64_t next_spawn_ = 1;
  agent::Actions pending_;
  bool registered_ = false;
  bool registering_ = false;
  uint64_t registration_ = 0;
  std::string nonce_;
  uint64_t hb_seq_ = 0;
  int in_flight_ = 0;
  Nanos hb_sent_ = 0;
  Nanos hb_due_ = 0;
  bool hb_wanted_ = false;
  Nanos register_at_ = 0;
  uint32_t register_failures_ = 0;
  Nanos wake_at_ = 0;
  Nanos housekeeping_at_ = 0;
};

class Host {
 public:
  Host(World& world, uint32_t index);

  Nanos Boottime() const;
  // Virtual time of a reading of this host's clock; far away for no deadline.
  Nanos TimeOf(Nanos boottime) const;
  void SetClock(double rate);
  void Pause(Nanos duration);
  void Crash(Nanos down);
  void BootUp();
  Trainer* FindTrainer(agent::AttemptKey key);
  Trainer* FindProcess(uint32_t pid);
  AttemptDir* FindDir(agent::AttemptKey key);

  uint32_t index = 0;
  WorkerId id;
  uint32_t slots = 1;
  std::string store;
  uint64_t boot = 1;
  bool is_up = true;
  Nanos disk_full_until = 0;
  Nanos sleep_at_launch = 0;  // so long, from when the next attempt is sent to it; 0: not

  // Disk.
  uint64_t incarnation = 0;
  uint32_t seen_generation = 0;
  uint32_t seen_boot = 0;
  std::map<agent::AttemptKey, StoredRecord> record_log;
  std::map<agent::AttemptKey, AttemptDir> dirs;

  // Network: virtual time until which it is cut, either way.
  Nanos cut_to_coordinator = 0;
  Nanos cut_from_coordinator = 0;

  std::vector<std::unique_ptr<Trainer>> trainers;
  std::vector<Trainer*> live;            // of them, those that are not gone
  std::map<uint32_t, uint64_t> foreign;  // pid -> start ticks of other people's processes
  uint32_t next_pid = 100;
  AgentShell agent;
  ForkServer fork_server;

 private:
  World& w_;
  double rate_ = 1.0;
  Nanos clock_base_ = 0;
  Nanos clock_since_ = 0;
};

// ---------------------------------------------------------------- everything

struct Failure {
  std::string invariant;
  std::string text;
};

struct Options {
  uint64_t seed = 1;
  std::string mix = "swarm";
  bool with_trace = false;
  // Faults of the schedule to leave out, for a minimal one.
  std::set<size_t> left_out;
};

struct Outcome {
  std::optional<Failure> failure;
  uint64_t events = 0;
  uint64_t virtual_seconds = 0;
  uint64_t faults = 0;
  Coverage coverage{};
  std::vector<uint64_t> hashes;
  std::vector<std::string> schedule;
  std::deque<std::string> trace;
};

class World {
 public:
  explicit World(const Options& options);
  ~World();
  Outcome Run();

  // Network. `request` runs in the coordinator, its reply comes back, at most one of them counts.
  template <typename T>
  void Call(Host& host, Nanos timeout, std::function<void(Reply<T>)> request,
            std::function<void(const Result<T>&)> done,
            std::function<void(const T&)> stray = nullptr);
  Nanos Delay();
  bool IsLost(const Host& host, bool to_coordinator);
  bool IsDoubled();

  void See(Point point) { ++outcome.coverage[static_cast<size_t>(point)]; }
  void Fail(std::string_view invariant, std::string text);
  bool has_failed() const { return outcome.failure.has_value(); }
  template <typename... Args>
  void Trace(const Args&... args) {
    if (options.with_trace) TraceLine(StrCat(args...));
  }
  // True: an armed crash fires here.
  bool CrashesAt(Site site, const void* where);
  int64_t UnixMs() const;
  uint64_t LineValue(Epoch epoch, uint64_t seq) const;
  Host& HostOf(WorkerId id);

  // Store: rows become durable here, and are checked against what was there.
  void CommitRows(const Group& group);
  // `ended`: attempts that have ended in this transaction; null: rows are only played again.
  void ApplyRow(const Row& row, std::set<Epoch>* ended);
  std::vector<const Row*> InOrder(const Group& group) const;
  void LoseTail(uint64_t groups);
  void RestoreBackup();
  void CheckAll();

  const Options options;
  Random random;
  Engine engine;
  Outcome outcome;

  Image image;
  Image checkpointed;
  std::vector<Group> wal;
  bool keeps_wal = false;
  std::optional<Image> backup;
  // Beside the database: newest tail that was told to anybody.
  uint64_t sentinel = 0;
  bool needs_restore_decision = false;

  Coordinator coordinator;
  std::vector<std::unique_ptr<Host>> hosts;
  std::map<std::string, std::map<std::string, CheckpointFile>> stores;  // store -> path -> file
  std::vector<Document> documents;
  std::map<RunId, uint64_t> run_steps;
  int64_t wall_offset_ms = 1'700'000'000'000;

  // Knobs of the seed.
  double loss = 0;
  double doubling = 0;
  Nanos delay_max = 20 * kMs;
  bool has_quiet = false;  // faults have stopped
  uint64_t lines_per_batch = 200;
  size_t group_max = 256;    // inputs of the coordinator that are committed together
  double short_credits = 0;  // how often an answer allows one batch at a time only
  double infra_rate = 0;     // trainers that find no device
  struct Armed {
    Site site;
    uint64_t countdown;
    uint32_t host;
    bool is_host_crash = false;  // not the process alone
  };
  std::vector<Armed> armed;

  // ---------------- the oracle's own knowledge
  struct WorkerFacts {
    uint64_t incarnation = 0;
    uint64_t hb_seq = 0;
    std::string nonce;
    Nanos heard_at = 0;       // newest heartbeat or registration in the inbox
    Nanos heard_running = 0;  // the same on the coordinator's running time
    Nanos echoed = 0;         // newest send time echoed to the present incarnation
  };
  struct AttemptFacts {
    uint32_t spawns = 0;
    uint64_t acked_told = 0;       // newest watermark told to the agent
    std::optional<ExitFile> exit;  // as the trainer wrote it
    std::vector<Line> emitted;
    std::set<uint64_t> published_steps;
    bool has_record = false;
    Nanos lease_deadline = 0;
    uint32_t lease_intent = 0;
    bool is_rewound = false;    // a restore took lines that had been acknowledged
    bool is_recovered = false;  // the record lacked it after a restore, and has it again
    std::optional<scheduler::AttemptRow> assigned = {};
  };
  struct AckedCall {
    ClientCall call;
    uint64_t reply = 0;
    uint32_t generation = 0;
  };
  std::map<WorkerId, WorkerFacts> worker_facts;
  std::map<Epoch, AttemptFacts> attempt_facts;
  std::vector<AckedCall> acked_calls;
  Nanos coordinator_ran = 0;  // time that it was up and not stopped
  Nanos coordinator_ran_at = 0;
  bool coordinator_counts = false;
  void CountCoordinator();
  Epoch last_assigned;

  // Clients.
  void IssueClient(ClientCall call);
  void OnDrained(const ClientCall& call);
  void SendClient(const ClientCall& call, uint32_t attempt);
  std::string NewRequestId();
  uint64_t requests = 0;
  uint64_t open_calls = 0;
  std::map<std::string, uint64_t> replies_seen;

 private:
  void TraceLine(std::string text);
  void Setup();
  void Inject(const Fault& fault);
  RunId DamageCheckpoint(uint64_t arg);
  void RestoreAndStart(uint64_t arg, Nanos down);
  void EndFaults();
  void Operate();
  void Drill();
  void CheckEnd();
  std::string Describe(Epoch epoch);
  void CheckRun(RunId run);
  void CheckNewCheckpoint(const scheduler::CheckpointRow& row, const std::set<Epoch>& ended);
  void CheckAnnounced(const StoredAttempt& attempt);
  void CheckLiveness();
  void CheckIdle(const scheduler::Run& run, Timestamp now);
  void CheckSteps();
  bool IsSettled();
  bool has_lost(const scheduler::AttemptRow& row);
  void CheckAssigned(const scheduler::AttemptRow& row);
  void CheckRecovered(const scheduler::AttemptRow& row);
  void CheckCurve(RunId id);
  void CheckDisk(Host& host);
  bool IsGone(Epoch epoch);
  uint64_t StateHash() const;
  Trainer* PickTrainer(uint64_t arg);

  std::vector<Fault> schedule_;
  Nanos fault_phase_ = 0;
  Nanos quiet_since_ = 0;
  std::map<WorkerId, Nanos> idle_since_;
  WorkerId drilled_;
  Nanos drill_at_ = 0;
  Nanos drained_by_ = 0;  // the worker of the drill shall be empty then; 0: not drained yet
};

template <typename T>
void World::Call(Host& host, Nanos timeout, std::function<void(Reply<T>)> request,
                 std::function<void(const Result<T>&)> done, std::function<void(const T&)> stray) {
  auto is_done = std::make_shared<bool>(false);
  Process& process = host.agent.process;
  const uint64_t life = process.life();  // an answer to an earlier life is nobody's
  process.Post(engine, engine.now() + timeout, [is_done, done] {
    if (*is_done) return;
    *is_done = true;
    done(Unavailable("deadline"));
  });
  // Back at the host: the first reply is the call's, a late or doubled one is a stray.
  const auto deliver = [this, &host, life, is_done, done, stray](const Result<T>& reply) {
    const int copies = IsDoubled() ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      if (IsLost(host, false)) continue;
      engine.At(engine.now() + Delay() + static_cast<Nanos>(i) * Delay() * 20,
                [this, &host, life, is_done, done, stray, reply] {
                  AgentShell& agent = host.agent;
                  if (!agent.process.is_alive()) return;
                  const bool is_mine = agent.process.life() == life && !*is_done;
                  if (is_mine) *is_done = true;
                  agent.process.Post(engine, engine.now(), [is_mine, done, stray, reply] {
                    if (is_mine) {
                      done(reply);
                    } else if (stray && reply.ok()) {
                      stray(*reply);
                    }
                  });
                });
    }
  };
  const int copies = IsDoubled() ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    if (IsLost(host, true)) continue;
    engine.At(engine.now() + Delay() + static_cast<Nanos>(i) * Delay() * 20,
              [this, deliver, request] {
                if (!coordinator.process.is_alive()) {
                  deliver(Unavailable("connection refused"));
                  return;
                }
                coordinator.process.Post(engine, engine.now(), [deliver, request] {
                  request([deliver](const Result<T>& reply) { deliver(reply); });
                });
              });
  }
}

}  // namespace switchyard::simulation
