#include "worker/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>

#include <prometheus/registry.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/events/exit_record.h"
#include "common/events/lease_page.h"
#include "common/metrics/exposer.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/attempt_dir.h"
#include "worker/agent/event_tail.h"
#include "worker/agent/janitor.h"
#include "worker/agent/log_tail.h"
#include "worker/agent/record_log.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;  // nanoseconds
constexpr uint64_t kSecond = 1000 * kMs;
constexpr uint64_t kTickNs = 250 * kMs;
constexpr uint64_t kFlushNs = 1 * kSecond;  // how long events of a running trainer gather
constexpr uint64_t kDiskCheckNs = 5 * kSecond;
constexpr uint64_t kQuickReplyNs = 50 * kMs;
constexpr uint64_t kIdlePollNs = 200 * kMs;
constexpr uint32_t kHeartbeatMsDefault = 5000;
constexpr uint64_t kReserveBytesMax = 2ULL << 30;
constexpr uint64_t kRegisterBackoffMaxNs = 120 * kSecond;
constexpr uint64_t kSendBackoffMaxNs = 10 * kSecond;
constexpr int kHeartbeatsInFlight = 2;

// Work for the loop thread, from any thread.
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int fd() const { return fd_.get(); }

  void Post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the loop wakes anyway.
    (void)!write(fd_.get(), &one, sizeof(one));
  }

  std::vector<std::function<void()>> Take() {
    uint64_t count = 0;
    (void)!read(fd_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    return std::exchange(work_, {});
  }

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;
};

// One stream of one attempt towards the coordinator: a call at a time.
struct Sender {
  bool in_flight = false;
  bool refused = false;  // sealed or unknown there: nothing more is sent
  bool skip_line = false;
  uint32_t failures = 0;
  uint64_t retry_at_ns = 0;
  uint64_t lines_max = EventTail::kLinesMax;
  uint64_t bytes_max = EventTail::kBytesMax;

  bool MaySend(uint64_t now) const { return !in_flight && !refused && now >= retry_at_ns; }
};

struct Attempt {
  Attempt(StreamId stream_id, std::string directory)
      : stream(std::move(stream_id)),
        path(std::move(directory)),
        events(path + "/events.jsonl"),
        out(path + "/stdout.log"),
        err(path + "/stderr.log") {}

  StreamId stream;
  std::string path;
  std::optional<events::LeaseWriter> lease;
  pid_t pid = 0;
  UniqueFd pidfd;
  uint64_t requested_ns = 0;
  bool killed = false;  // by us
  bool ended = false;
  bool spooled = false;
  uint64_t flush_at_ns = 0;
  uint64_t unsent_since_ns = 0;  // 0: nothing unsent
  EventTail events;
  LogTail out;
  LogTail err;
  Sender events_sender;
  Sender out_sender;
  Sender err_sender;
};

uint64_t ReadOomKills() {
  const Result<std::string> group = ReadFile("/proc/self/cgroup", 64 << 10);
  if (!group.ok()) return 0;
  for (const std::string& line : StrSplit(*group, '\n')) {
    if (!line.starts_with("0::")) continue;
    const Result<std::string> text =
        ReadFile(StrCat("/sys/fs/cgroup", line.substr(3), "/memory.events"), 64 << 10);
    if (!text.ok()) return 0;
    for (const std::string& entry : StrSplit(*text, '\n')) {
      if (entry.starts_with("oom_kill ")) return ParseUint64(entry.substr(9)).value_or(0);
    }
  }
  return 0;
}

void Append(Actions from, Actions* to) {
  const auto move = [](auto& source, auto& target) {
    target.insert(target.end(), std::make_move_iterator(source.begin()),
                  std::make_move_iterator(source.end()));
  };
  move(from.prepare, to->prepare);
  move(from.records, to->records);
  move(from.spawn, to->spawn);
  move(from.leases, to->leases);
  move(from.stops, to->stops);
  move(from.terminate, to->terminate);
  move(from.kill, to->kill);
  move(from.drop, to->drop);
  to->seen_changed |= from.seen_changed;
  to->heartbeat |= from.heartbeat;
}

bool IsEmpty(const Actions& a) {
  return a.prepare.empty() && a.records.empty() && a.spawn.empty() && a.leases.empty() &&
         a.stops.empty() && a.terminate.empty() && a.kill.empty() && a.drop.empty() &&
         !a.seen_changed;
}

// A number kept in a small file; `otherwise` where there is none.
uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  const Result<std::string> text = ReadFile(path, 64);
  return text.ok() ? ParseUint64(StripWhitespace(*text)).value_or(otherwise) : otherwise;
}

}  // namespace

struct Agent::Impl {
  Impl(AgentOptions agent_options, std::unique_ptr<ForkServer> server)
      : options(std::move(agent_options)),
        fork_server(std::move(server)),
        boot_id(BootId()),
        attempts_dir(options.state_dir + "/attempts") {}

  AgentOptions options;
  std::unique_ptr<ForkServer> fork_server;
  const std::string boot_id;
  const std::string attempts_dir;
  std::string worker_id;
  std::string checkpoint_store;
  uint64_t incarnation = 0;
  uint32_t seen_generation = 0;
  uint32_t seen_boot = 0;

  Mailbox mailbox;
  UniqueFd epoll;
  UniqueFd signals;
  std::unique_ptr<RecordLog> record_log;
  std::optional<AgentState> state;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::unique_ptr<AgentMetrics> metrics;
  std::unique_ptr<metrics::Exposer> exposer;
  Janitor janitor;
  std::unique_ptr<CoordinatorClient> client;
  std::mt19937_64 random{std::random_device{}()};

  std::map<AttemptKey, std::unique_ptr<Attempt>> attempts;
  std::unordered_map<uint64_t, AttemptKey> spawns;  // by id of the request
  uint64_t next_spawn_id = 1;
  std::map<AttemptKey, AttemptDocs> docs;
  Actions pending;
  std::optional<Outcome> outcome;

  // The coordinator.
  bool registered = false;
  bool registering = false;
  uint64_t registration = 0;  // raised with each: replies to older ones count no more
  std::string nonce;
  uint64_t hb_seq = 0;
  uint32_t heartbeat_ms = kHeartbeatMsDefault;
  uint32_t workers = 1;
  int heartbeats_in_flight = 0;
  uint64_t heartbeat_sent_ns = 0;
  uint64_t heartbeat_due_ns = 0;
  bool heartbeat_wanted = false;  // the observed set has changed since the last one
  uint64_t register_at_ns = 0;
  uint32_t register_failures = 0;
  bool was_down = false;

  uint64_t tick_at_ns = 0;
  uint64_t disk_at_ns = 0;
  DiskSpace disk;
  double clock_offset_seconds = 0;
  uint64_t oom_kills = 0;

  Status Open();
  Status Recover();
  Status RecoverOne(AttemptKey key, const StoredRecord& stored);
  Status WriteReady();
  void Watch(int fd, uint64_t tag);

  Outcome Run();
  int TimeoutMs(uint64_t now) const;
  void HandleForkEvents();
  void OnProcessGone(AttemptKey key, std::optional<WaitStatus> wait);
  AttemptEnd Evaluate(Attempt& attempt, const std::string& launch_boot_id,
                      std::optional<WaitStatus> wait, bool stop_requested);
  void Execute();
  std::string Prepare(const Actions::Prepare& prepare);
  void Spawn(AttemptKey key);
  void Kill(Attempt& attempt);

  void Connect(uint64_t now);
  void Disconnect(const Status& why, uint64_t now);
  void MaybeHeartbeat(uint64_t now);
  void SendHeartbeat(uint64_t now);
  void OnHeartbeatReply(Result<HeartbeatIn> reply, uint64_t sent_ns, uint64_t serial);

  void Flush(Attempt& attempt);
  void SendEvents(Attempt& attempt);
  void SendLog(Attempt& attempt, bool is_stderr);
  void OnAppendReply(AttemptKey key, const Result<AppendReply>& reply, uint64_t n);
  void OnLogReply(AttemptKey key, bool is_stderr, const Result<AppendReply>& reply,
                  uint64_t end_offset);
  // True: nothing for the caller to do but stop.
  bool HandleSendError(const Status& status, const Attempt& attempt, Sender* sender);
  void CheckSpooled(Attempt& attempt);

  void Tick(uint64_t now);
  void CheckDisk();
  void UpdateMetrics();
  uint64_t Jitter(uint64_t span) {
    return std::uniform_int_distribution<uint64_t>(0, std::max<uint64_t>(span, 1))(random);
  }
  Attempt* Find(AttemptKey key) {
    const auto it = attempts.find(key);
    return it == attempts.end() ? nullptr : it->second.get();
  }
  Attempt& Add(const Record& record) {
    auto attempt = std::make_unique<Attempt>(StreamId{.worker_id = worker_id,
                                                      .run_id = record.run_id,
                                                      .ordinal = record.ordinal,
                                                      .key = record.key},
                                             StrCat(attempts_dir, "/", AttemptName(record.key)));
    Attempt& added = *attempt;
    attempts[record.key] = std::move(attempt);
    return added;
  }
};

namespace {

// Tags of descriptors in epoll; adopted trainers are watched by their epoch.
constexpr uint64_t kMailboxTag = 1;
constexpr uint64_t kForkServerTag = 2;
constexpr uint64_t kSignalTag = 3;
constexpr uint64_t kFirstPidfdTag = 16;

}  // namespace

void Agent::Impl::Watch(int fd, uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  SWITCHYARD_CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0)
      << "epoll_ctl: errno " << errno;
}

Status Agent::Impl::Open() {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(attempts_dir, 0700));
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(options.checkpoint_dir, 0755));

  const std::string id_path = options.state_dir + "/worker_id";
  const Result<std::string> id = ReadFile(id_path, 64);
  if (id.ok()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Uuid parsed, Uuid::Parse(StripWhitespace(*id)));
    worker_id = parsed.ToString();
  } else {
    worker_id = NewUuidV4().ToString();
    SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(id_path, worker_id + "\n", 0600));
  }
  // Workers that see the same directory know the same store.
  const std::string store_path = options.checkpoint_dir + "/store.id";
  Result<std::string> store = ReadFile(store_path, 64);
  if (!store.ok()) {
    SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(store_path, NewUuidV4().ToString() + "\n"));
    store = ReadFile(store_path, 64);
    if (!store.ok()) return store.status();
  }
  checkpoint_store = std::string(StripWhitespace(*store));

  // Raised and synced before its first use.
  incarnation = ReadNumber(options.state_dir + "/incarnation", 0) + 1;
  SWITCHYARD_RETURN_IF_ERROR(
      WriteFileAtomically(options.state_dir + "/incarnation", StrCat(incarnation, "\n"), 0600));
  const uint64_t seen = ReadNumber(options.state_dir + "/seen", 0);
  seen_generation = static_cast<uint32_t>(seen >> 32);
  seen_boot = static_cast<uint32_t>(seen);

  epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_valid()) return ErrnoStatus("cannot make", "an epoll", errno);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&mask, signal);
  signals = UniqueFd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.is_valid()) return ErrnoStatus("cannot make", "a signalfd", errno);
  Watch(mailbox.fd(), kMailboxTag);
  Watch(fork_server->fd(), kForkServerTag);
  Watch(signals.get(), kSignalTag);

  state.emplace(AgentState::Options{.slots = static_cast<uint32_t>(options.slots.size()),
                                    .incarnation = incarnation});
  metrics = std::make_unique<AgentMetrics>(registry, worker_id, options.pool);
  oom_kills = ReadOomKills();
  SWITCHYARD_ASSIGN_OR_RETURN(record_log,
                              RecordLog::Open(options.state_dir + "/records.log", boot_id));
  SWITCHYARD_RETURN_IF_ERROR(Recover());
  if (!options.metrics.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(exposer, metrics::Exposer::Start(options.metrics, registry));
    exposer->AddCollectable(metrics::MakeProcessCollector());
  }
  client = MakeCoordinatorClient(
      options.server, [this](std::function<void()> work) { mailbox.Post(std::move(work)); });
  CheckDisk();
  UpdateMetrics();
  return WriteReady();
}

Status Agent::Impl::WriteReady() {
  std::string text =
      StrCat("{\"pid\":", static_cast<int64_t>(getpid()), ",\"worker_id\":\"", worker_id, "\"");
  if (exposer != nullptr) text += StrCat(",\"metrics\":\"", exposer->address(), "\"");
  return WriteFileAtomically(options.state_dir + "/ready.json", text + "}\n");
}

// What an earlier agent left: every directory becomes a record again, and none is ever launched.
Status Agent::Impl::Recover() {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(attempts_dir));
  for (const std::string& name : names) {
    const std::optional<AttemptKey> key = ParseAttemptName(name);
    if (!key) continue;
    const auto found = record_log->found().find(*key);
    if (found != record_log->found().end()) {
      SWITCHYARD_RETURN_IF_ERROR(RecoverOne(*key, found->second));
      continue;
    }
    // Without a record it counts as LAUNCHING: nothing was spawned before the record was durable.
    const Result<Record> record = ReadAttemptRecord(StrCat(attempts_dir, "/", name), *key);
    if (!record.ok()) {
      LogWarning("removing ", name, ": ", record.status().message());
      janitor.Remove(StrCat(attempts_dir, "/", name));
      continue;
    }
    SWITCHYARD_RETURN_IF_ERROR(RecoverOne(*key, {.record = *record, .boot_id = boot_id}));
  }
  std::vector<Record> records;
  records.reserve(state->records().size());
  for (const auto& [key, record] : state->records()) records.push_back(record);
  return record_log->Compact(records);
}

Status Agent::Impl::RecoverOne(AttemptKey key, const StoredRecord& stored) {
  Record record = stored.record;
  Attempt& attempt = Add(record);
  if (record.state == RecordState::kRefused) record.spooled = attempt.spooled = true;
  if (!record.is_live()) {
    attempt.ended = true;
    attempt.events.Finish();
    state->Restore(std::move(record));
    return OkStatus();
  }
  Result<events::LeaseWriter> lease = events::LeaseWriter::Open(attempt.path + "/lease.page");
  if (lease.ok()) {
    attempt.lease = *std::move(lease);
    const events::Lease& page = attempt.lease->lease();
    record.intent = static_cast<Intent>(page.intent);
    if (page.stop_deadline_boottime_ns != events::kNever) {
      record.stop_at_ns = page.stop_deadline_boottime_ns;
    }
  }
  const Result<PidFile> pid_file = ReadPidFile(attempt.path);
  if (pid_file.ok()) {
    attempt.pid = pid_file->pid;
    Result<UniqueFd> pidfd = AdoptProcess(attempt.path, *pid_file, boot_id);
    if (pidfd.ok()) {
      attempt.pidfd = *std::move(pidfd);
      record.state = RecordState::kRunning;
      Watch(attempt.pidfd.get(), kFirstPidfdTag + key.epoch);
      metrics->CountAdoption();
      LogInfo("adopted attempt ", AttemptName(key), ", process ", attempt.pid);
      state->Restore(std::move(record));
      return OkStatus();
    }
    // Another boot's number could mean somebody else's session today.
    if (pid_file->boot_id == boot_id && HasLeftovers(attempt.path, 0)) KillSession(attempt.pid);
  }
  const bool stop_requested = record.intent > Intent::kRun;
  record.state = RecordState::kExited;
  if (!pid_file.ok() && pid_file.status().code() == Code::kNotFound) {
    attempt.events.Finish();
    record.end = {.end_class = "infra", .evidence = "agent", .reason = "never executed"};
  } else {
    record.end = Evaluate(attempt, stored.boot_id, std::nullopt, stop_requested);
  }
  attempt.ended = true;
  SWITCHYARD_RETURN_IF_ERROR(record_log->Append(std::span(&record, 1)));
  LogInfo("attempt ", AttemptName(key), " ended while no agent ran: ", record.end.end_class);
  state->Restore(std::move(record));
  return OkStatus();
}

Agent::Outcome Agent::Impl::Run() {
  std::array<epoll_event, 64> events{};
  while (!outcome) {
    const int count = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()),
                                 TimeoutMs(BoottimeNanoseconds()));
    if (count < 0 && errno != EINTR) return Outcome::kFailed;
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag == kMailboxTag) {
        for (const std::function<void()>& work : mailbox.Take()) work();
      } else if (tag == kForkServerTag) {
        HandleForkEvents();
      } else if (tag == kSignalTag) {
        signalfd_siginfo info;
        while (read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
          if (info.ssi_signo != SIGHUP) outcome = Outcome::kStopped;
        }
      } else {
        const uint64_t epoch = tag - kFirstPidfdTag;
        const auto it = std::find_if(attempts.begin(), attempts.end(), [&](const auto& entry) {
          return entry.first.epoch == epoch && !entry.second->ended &&
                 entry.second->pidfd.is_valid();
        });
        if (it != attempts.end()) OnProcessGone(it->first, std::nullopt);
      }
    }
    fork_server->Flush();
    const uint64_t now = BoottimeNanoseconds();
    if (now >= tick_at_ns || now >= state->NextTick()) Tick(now);
    Execute();
    if (outcome) break;
    if (!registered) {
      Connect(now);
    } else {
      MaybeHeartbeat(now);
    }
  }
  return *outcome;
}

int Agent::Impl::TimeoutMs(uint64_t now) const {
  uint64_t next = std::min(tick_at_ns, state->NextTick());
  if (registered && heartbeats_in_flight == 0) next = std::min(next, heartbeat_due_ns);
  if (!registered && !registering) next = std::min(next, register_at_ns);
  if (fork_server->has_backlog()) next = std::min(next, now + kMs);
  if (next <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((next - now + kMs - 1) / kMs, 1000));
}

void Agent::Impl::HandleForkEvents() {
  Result<std::vector<ForkEvent>> received = fork_server->Receive();
  if (!received.ok()) {
    LogError(received.status().message(), ": starting anew");
    outcome = Outcome::kForkServerLost;
    return;
  }
  const uint64_t now = BoottimeNanoseconds();
  for (ForkEvent& event : *received) {
    const auto it = spawns.find(event.id);
    if (it == spawns.end()) continue;
    const AttemptKey key = it->second;
    Attempt* attempt = Find(key);
    if (attempt == nullptr) continue;
    switch (event.kind) {
      case ForkEvent::Kind::kSpawned:
        attempt->pid = event.pid;
        attempt->pidfd = std::move(event.pidfd);
        attempt->flush_at_ns = now + kFlushNs;
        metrics->ObserveLaunch(static_cast<double>(now - attempt->requested_ns) / 1e9);
        Append(state->OnSpawned(key, "", now), &pending);
        break;
      case ForkEvent::Kind::kFailed:
        spawns.erase(it);
        LogWarning("attempt ", AttemptName(key), " was not launched: ", event.error);
        attempt->ended = attempt->spooled = true;
        Append(state->OnSpawned(key, event.error, now), &pending);
        break;
      case ForkEvent::Kind::kExited:
        spawns.erase(it);
        OnProcessGone(key, event.wait);
        break;
    }
  }
}

// Leftovers, torn tail, evidence, record, report: in this order.
void Agent::Impl::OnProcessGone(AttemptKey key, std::optional<WaitStatus> wait) {
  Attempt& attempt = *Find(key);
  const Record* record = state->Find(key);
  if (record == nullptr || attempt.ended) return;
  attempt.ended = true;
  if (attempt.pidfd.is_valid()) {
    // Not watched when it is our own child: then there is nothing to remove.
    epoll_ctl(epoll.get(), EPOLL_CTL_DEL, attempt.pidfd.get(), nullptr);
    attempt.pidfd.Reset();
  }
  if (HasLeftovers(attempt.path, attempt.pid)) KillSession(attempt.pid);
  AttemptEnd end = Evaluate(attempt, boot_id, wait, record->intent > Intent::kRun);
  if (end.end_class == "fenced") metrics->CountFence();
  Append(state->OnEnded(key, std::move(end), BoottimeNanoseconds()), &pending);
  attempt.lease.reset();
  Flush(attempt);
  CheckSpooled(attempt);
}

AttemptEnd Agent::Impl::Evaluate(Attempt& attempt, const std::string& launch_boot_id,
                                 std::optional<WaitStatus> wait, bool stop_requested) {
  attempt.events.Finish();
  EndFacts facts{.host_restarted = launch_boot_id != boot_id,
                 .wait = wait,
                 .stop_requested = stop_requested || attempt.killed,
                 .last_seq = attempt.events.last_seq()};
  const AttemptKey key = attempt.stream.key;
  Result<events::ExitRecord> record =
      events::ReadExitRecord(attempt.path + "/exit.json", key.epoch, key.rank);
  if (record.ok()) {
    facts.record = FoundRecord{.code = record->code,
                               .end_class = record->end_class,
                               .complete = record->complete,
                               .final_step = record->final_step,
                               .reason = record->reason};
  } else {
    facts.record_is_broken = record.status().code() != Code::kNotFound;
  }
  if (!facts.record && wait && wait->signalled && wait->value == SIGKILL && !attempt.killed) {
    const uint64_t kills = ReadOomKills();
    facts.oom_evidence = kills > oom_kills;
    oom_kills = kills;
  }
  const Result<events::Lease> lease = events::ReadLeaseFile(attempt.path + "/lease.page");
  facts.lease_past = lease.ok() && lease->IsPast(BoottimeNanoseconds());
  return JudgeEnd(facts);
}

void Agent::Impl::Execute() {
  while (!IsEmpty(pending) && !outcome) {
    Actions actions = std::exchange(pending, {});
    std::map<AttemptKey, std::string> failed;
    for (const Actions::Prepare& prepare : actions.prepare) {
      std::string error = Prepare(prepare);
      if (!error.empty()) failed[prepare.key] = std::move(error);
    }
    if (const Status status = record_log->Append(actions.records); !status.ok()) {
      // What is on disk is not known: start-up finds out.
      LogError(status.message());
      outcome = Outcome::kFailed;
      return;
    }
    for (const Actions::Stop& stop : actions.stops) {
      Attempt* attempt = Find(stop.key);
      if (attempt == nullptr || !attempt->lease) continue;
      const Status status =
          attempt->lease->SetStop(static_cast<events::LeaseIntent>(stop.intent), stop.deadline_ns);
      if (!status.ok()) LogWarning(status.message());
    }
    for (const Actions::Lease& lease : actions.leases) {
      Attempt* attempt = Find(lease.key);
      if (attempt == nullptr || !attempt->lease) continue;
      const Status status = attempt->lease->SetDeadline(lease.deadline_ns);
      if (!status.ok()) LogWarning(status.message());
    }
    for (const AttemptKey& key : actions.spawn) {
      if (!failed.contains(key)) Spawn(key);
    }
    for (const auto& [key, error] : failed) {
      LogWarning("attempt ", AttemptName(key), " was not launched: ", error);
      if (Attempt* attempt = Find(key)) attempt->ended = attempt->spooled = true;
      Append(state->OnSpawned(key, error, BoottimeNanoseconds()), &pending);
    }
    for (const AttemptKey& key : actions.terminate) {
      Attempt* attempt = Find(key);
      if (attempt != nullptr && attempt->pidfd.is_valid()) {
        SignalProcess(attempt->pidfd.get(), SIGTERM);
      }
    }
    for (const AttemptKey& key : actions.kill) {
      if (Attempt* attempt = Find(key)) Kill(*attempt);
    }
    for (const AttemptKey& key : actions.drop) {
      if (const Attempt* attempt = Find(key)) {
        janitor.Remove(attempt->path);
        attempts.erase(key);
      }
    }
    if (actions.seen_changed) {
      const Rev rev = state->applied();
      const std::string path = options.state_dir + "/seen";
      const uint64_t seen = (uint64_t{rev.generation} << 32) | rev.boot;
      const Status status = WriteFileAtomically(path, StrCat(seen, "\n"), 0600);
      if (!status.ok()) LogWarning(status.message());
      seen_generation = rev.generation;
      seen_boot = rev.boot;
    }
    heartbeat_wanted |= actions.heartbeat;
    if (record_log->wants_compaction()) {
      std::vector<Record> records;
      for (const auto& [key, record] : state->records()) records.push_back(record);
      if (const Status status = record_log->Compact(records); !status.ok()) {
        LogError(status.message());
        outcome = Outcome::kFailed;
      }
    }
  }
  heartbeat_wanted |= std::exchange(pending.heartbeat, false);
}

// Empty, or why the attempt cannot be launched.
std::string Agent::Impl::Prepare(const Actions::Prepare& prepare) {
  const Record* record = state->Find(prepare.key);
  const auto documents = docs.extract(prepare.key);
  SWITCHYARD_CHECK(record != nullptr && !documents.empty()) << "prepare without documents";
  Attempt& attempt = Add(*record);
  const size_t slots = std::max<size_t>(record->slots.size(), 1);
  const bool is_gpu = !record->slots.empty() && options.slots[record->slots[0]].is_gpu;
  const Result<std::string> run_json = RunJson(documents.mapped().run_spec);
  if (!run_json.ok()) return run_json.status().message();
  const Result<std::string> attempt_json =
      AttemptJson(documents.mapped(), record->run_id, record->ordinal,
                  {.threads = static_cast<uint32_t>(slots) * options.cores_per_slot,
                   .checkpoint_dir = StrCat(options.checkpoint_dir, "/", record->run_id),
                   .device = is_gpu ? "gpu" : "cpu"});
  if (!attempt_json.ok()) return attempt_json.status().message();
  const Status made = CreateAttemptDir(attempt.path, *run_json, *attempt_json);
  if (!made.ok()) return made.message();
  Result<events::LeaseWriter> lease = events::LeaseWriter::Create(
      attempt.path + "/lease.page", prepare.key.epoch, prepare.deadline_ns);
  if (!lease.ok()) return lease.status().message();
  attempt.lease = *std::move(lease);
  return "";
}

void Agent::Impl::Spawn(AttemptKey key) {
  const Record* record = state->Find(key);
  Attempt* attempt = Find(key);
  if (record == nullptr || attempt == nullptr || attempt->ended) return;
  const size_t threads = std::max<size_t>(record->slots.size(), 1) * options.cores_per_slot;
  SpawnRequest request{
      .id = next_spawn_id++,
      .directory = attempt->path,
      .argv = {options.trainer, "--attempt-dir", attempt->path},
      .env = {StrCat("OMP_NUM_THREADS=", threads), StrCat("MKL_NUM_THREADS=", threads),
              StrCat("SWITCHYARD_ATTEMPT_DIR=", attempt->path)}};
  std::vector<std::string> gpus;
  for (const uint32_t slot : record->slots) {
    if (options.slots[slot].is_gpu) gpus.push_back(options.slots[slot].uuid);
  }
  if (!gpus.empty()) request.env.push_back("CUDA_VISIBLE_DEVICES=" + StrJoin(gpus, ","));
  attempt->requested_ns = BoottimeNanoseconds();
  spawns[request.id] = key;
  janitor.Postpone();
  if (const Status status = fork_server->Spawn(request); !status.ok()) {
    spawns.erase(request.id);
    attempt->ended = attempt->spooled = true;
    Append(state->OnSpawned(key, status.message(), attempt->requested_ns), &pending);
  }
}

void Agent::Impl::Kill(Attempt& attempt) {
  if (attempt.ended || !attempt.pidfd.is_valid()) return;
  attempt.killed = true;
  SignalProcess(attempt.pidfd.get(), SIGKILL);
  KillSession(attempt.pid);
}

void Agent::Impl::Connect(uint64_t now) {
  if (registering || now < register_at_ns) return;
  registering = true;
  const uint64_t serial = ++registration;
  const Registration out{.worker_id = worker_id,
                         .incarnation = incarnation,
                         .instance_id = boot_id,
                         .seen_generation = seen_generation,
                         .seen_boot = seen_boot,
                         .pool = options.pool,
                         .slots = options.slots,
                         .threads_per_slot = options.cores_per_slot,
                         .labels = options.labels,
                         .checkpoint_store = checkpoint_store,
                         .metrics_address = exposer != nullptr ? exposer->address() : "",
                         .host = options.host};
  client->Register(out, [this, serial](Result<Registered> reply) {
    if (serial != registration) return;
    registering = false;
    const uint64_t at = BoottimeNanoseconds();
    if (!reply.ok()) {
      Disconnect(reply.status(), at);
      return;
    }
    registered = true;
    register_failures = 0;
    was_down = false;
    nonce = reply->nonce;
    if (reply->heartbeat_ms > 0) heartbeat_ms = reply->heartbeat_ms;
    heartbeats_in_flight = 0;
    heartbeat_wanted = true;
    LogInfo("registered as ", worker_id, " with the coordinator at ", options.server);
    for (auto& [key, attempt] : attempts) {
      for (Sender* sender : {&attempt->events_sender, &attempt->out_sender, &attempt->err_sender}) {
        sender->retry_at_ns = 0;
        sender->failures = 0;
      }
      Flush(*attempt);
    }
  });
}

// The first new try comes after a full jitter that spreads a fleet, later ones ever more slowly.
void Agent::Impl::Disconnect(const Status& why, uint64_t now) {
  if (!was_down) LogWarning("no contact with the coordinator: ", why.ToString());
  was_down = true;
  registered = false;
  registering = false;
  ++registration;
  const uint64_t spread = std::max(kSecond / 5, uint64_t{workers} * kSecond / 300);
  const uint64_t span = register_failures == 0
                            ? spread
                            : std::min(kRegisterBackoffMaxNs,
                                       (kSecond / 5) << std::min<uint32_t>(register_failures, 16));
  register_at_ns = now + span / 4 + Jitter(span * 3 / 4);
  ++register_failures;
}

void Agent::Impl::MaybeHeartbeat(uint64_t now) {
  const uint64_t period = uint64_t{heartbeat_ms} * kMs;
  const bool is_due = heartbeat_wanted || (heartbeats_in_flight == 0 && now >= heartbeat_due_ns) ||
                      now >= heartbeat_sent_ns + period;
  if (is_due && heartbeats_in_flight < kHeartbeatsInFlight) SendHeartbeat(now);
}

void Agent::Impl::SendHeartbeat(uint64_t now) {
  HeartbeatOut out{.worker_id = worker_id,
                   .nonce = nonce,
                   .incarnation = incarnation,
                   .hb_seq = ++hb_seq,
                   .sent_boottime_ns = now,
                   .applied = state->applied(),
                   .disk_free_bytes = disk.free_bytes,
                   .disk_size_bytes = disk.size_bytes,
                   .clock_offset_seconds = clock_offset_seconds};
  out.observed.reserve(state->records().size());
  for (const auto& [key, record] : state->records()) out.observed.push_back(record);
  for (const auto& [key, attempt] : attempts) {
    if (!attempt->spooled) out.unacked_lines += attempt->events.unsent_lines();
  }
  ++heartbeats_in_flight;
  heartbeat_wanted = false;
  heartbeat_sent_ns = now;
  heartbeat_due_ns = now + uint64_t{heartbeat_ms} * kMs;
  client->Heartbeat(out, 2 * heartbeat_ms + 10'000,
                    [this, now, serial = registration](Result<HeartbeatIn> reply) {
                      OnHeartbeatReply(std::move(reply), now, serial);
                    });
}

void Agent::Impl::OnHeartbeatReply(Result<HeartbeatIn> reply, uint64_t sent_ns, uint64_t serial) {
  const uint64_t now = BoottimeNanoseconds();
  if (serial == registration) --heartbeats_in_flight;
  if (!reply.ok()) {
    // A newer heartbeat may have pushed this one out, which says nothing about the contact.
    const bool is_released = reply.status().code() == Code::kAborted && heartbeats_in_flight > 0;
    if (serial == registration && !is_released) Disconnect(reply.status(), now);
    return;
  }
  if (reply->heartbeat_ms > 0) heartbeat_ms = reply->heartbeat_ms;
  if (reply->workers > 0) workers = reply->workers;
  if (reply->sent_unix_ms != 0) {
    clock_offset_seconds = static_cast<double>(reply->sent_unix_ms - UnixMilliseconds()) / 1000.0;
  }
  const Rev before = state->applied();
  for (AttemptDocs& documents : reply->docs) {
    const AttemptKey key = documents.key;
    if (state->Find(key) == nullptr) docs[key] = std::move(documents);
  }
  Actions actions = state->OnDesired(reply->desired, now);
  for (const AttemptDocs& documents : reply->docs) {
    const Record* record = state->Find(documents.key);
    if (record == nullptr || record->state == RecordState::kRefused) docs.erase(documents.key);
  }
  const bool has_news = state->applied() != before || !actions.drop.empty() || actions.heartbeat;
  Append(std::move(actions), &pending);
  if (serial != registration) return;
  // The next one is parked by the coordinator; one that answers at once without news is not asked
  // in a tight loop.
  heartbeat_due_ns = has_news || now - sent_ns >= kQuickReplyNs ? now : sent_ns + kIdlePollNs;
}

void Agent::Impl::Flush(Attempt& attempt) {
  if (!registered || attempt.spooled) return;
  SendLog(attempt, false);
  SendLog(attempt, true);
  SendEvents(attempt);
}

void Agent::Impl::SendEvents(Attempt& attempt) {
  const uint64_t now = BoottimeNanoseconds();
  Sender& sender = attempt.events_sender;
  if (!registered || !sender.MaySend(now)) return;
  // The last batch ends the stream at the coordinator, which takes no logs of an ended one.
  const auto has_log = [](LogTail& tail, const Sender& log) {
    return !log.refused && log.failures < 3 && !tail.is_done();
  };
  if (attempt.ended &&
      (has_log(attempt.out, attempt.out_sender) || has_log(attempt.err, attempt.err_sender))) {
    return;
  }
  std::optional<events::BatchBuilder::Blob> blob;
  if (sender.skip_line) {
    blob = attempt.events.SkipLine();
  } else {
    blob = attempt.events.Next(sender.lines_max, sender.bytes_max);
  }
  if (!blob) {
    attempt.unsent_since_ns = 0;
    return;
  }
  sender.in_flight = true;
  const uint64_t age_ns = attempt.unsent_since_ns == 0 ? 0 : now - attempt.unsent_since_ns;
  client->Append(attempt.stream, *blob, static_cast<uint32_t>(age_ns / kMs),
                 [this, key = attempt.stream.key, n = blob->n](Result<AppendReply> reply) {
                   OnAppendReply(key, reply, n);
                 });
}

bool Agent::Impl::HandleSendError(const Status& status, const Attempt& attempt, Sender* sender) {
  const std::string name = AttemptName(attempt.stream.key);
  switch (status.code()) {
    case Code::kFailedPrecondition:
    case Code::kNotFound:
    case Code::kPermissionDenied:
      // Sealed, or of another cluster's life: the file stays for people, nothing more is sent.
      LogWarning("the coordinator takes no more of attempt ", name, ": ", status.message());
      sender->refused = true;
      return true;
    case Code::kInvalidArgument:
      LogWarning("the coordinator refused a batch of attempt ", name, ": ", status.message());
      break;
    default:
      break;
  }
  const uint64_t span =
      std::min(kSendBackoffMaxNs, (kSecond / 5) << std::min<uint32_t>(sender->failures, 10));
  sender->retry_at_ns = BoottimeNanoseconds() + span / 2 + Jitter(span / 2);
  ++sender->failures;
  return true;
}

void Agent::Impl::OnAppendReply(AttemptKey key, const Result<AppendReply>& reply, uint64_t n) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  Sender& sender = attempt->events_sender;
  sender.in_flight = false;
  if (!reply.ok()) {
    if (reply.status().code() == Code::kInvalidArgument) {
      // One line may be the culprit: smaller batches, and in the end a gap in its place.
      sender.skip_line = n == 1;
      sender.lines_max = std::max<uint64_t>(n / 2, 1);
    }
    HandleSendError(reply.status(), *attempt, &sender);
    CheckSpooled(*attempt);
    return;
  }
  const uint64_t before = attempt->events.acknowledged();
  attempt->events.Acknowledge(reply->expect != 0 ? reply->expect - 1 : reply->committed);
  const bool has_moved = attempt->events.acknowledged() != before;
  sender.skip_line = false;
  sender.failures = has_moved ? 0 : sender.failures + 1;
  sender.lines_max = EventTail::kLinesMax;
  sender.bytes_max = reply->credit_bytes == 0
                         ? EventTail::kBytesMax
                         : std::clamp(reply->credit_bytes, uint64_t{4096}, EventTail::kBytesMax);
  const uint64_t now = BoottimeNanoseconds();
  sender.retry_at_ns = now + uint64_t{reply->retry_after_ms} * kMs;
  if (!has_moved) sender.retry_at_ns = std::max(sender.retry_at_ns, now + kFlushNs);
  attempt->unsent_since_ns = attempt->events.unsent_bytes() > 0 ? now : 0;
  // With a backlog at once, else what gathers in the next second.
  if (attempt->ended || attempt->events.unsent_bytes() >= EventTail::kBytesMax / 2) {
    SendEvents(*attempt);
  }
  CheckSpooled(*attempt);
}

void Agent::Impl::SendLog(Attempt& attempt, bool is_stderr) {
  Sender& sender = is_stderr ? attempt.err_sender : attempt.out_sender;
  if (!registered || !sender.MaySend(BoottimeNanoseconds())) return;
  LogTail& tail = is_stderr ? attempt.err : attempt.out;
  const std::optional<LogTail::Chunk> chunk = tail.Next();
  if (!chunk) return;
  sender.in_flight = true;
  const uint64_t end_offset = chunk->offset + chunk->data.size();
  client->AppendLog(
      attempt.stream, is_stderr, chunk->offset, chunk->data,
      [this, key = attempt.stream.key, is_stderr, end_offset](Result<AppendReply> reply) {
        OnLogReply(key, is_stderr, reply, end_offset);
      });
}

void Agent::Impl::OnLogReply(AttemptKey key, bool is_stderr, const Result<AppendReply>& reply,
                             uint64_t end_offset) {
  Attempt* attempt = Find(key);
  if (attempt == nullptr) return;
  Sender& sender = is_stderr ? attempt->err_sender : attempt->out_sender;
  sender.in_flight = false;
  if (!reply.ok()) {
    HandleSendError(reply.status(), *attempt, &sender);
    if (sender.refused) SendEvents(*attempt);
    CheckSpooled(*attempt);
    return;
  }
  sender.failures = 0;
  // Less than was sent: the coordinator knows less than we thought and gets it again.
  (is_stderr ? attempt->err : attempt->out).Acknowledge(reply->committed);
  if (reply->committed < end_offset || reply->retry_after_ms > 0) {
    sender.retry_at_ns =
        BoottimeNanoseconds() + std::max<uint64_t>(reply->retry_after_ms, 200) * kMs;
  }
  SendLog(*attempt, is_stderr);
  if (attempt->ended) SendEvents(*attempt);
  CheckSpooled(*attempt);
}

void Agent::Impl::CheckSpooled(Attempt& attempt) {
  if (!attempt.ended || attempt.spooled) return;
  const auto is_done = [](auto& tail, const Sender& sender) {
    return !sender.in_flight && (sender.refused || tail.is_done());
  };
  if (!is_done(attempt.events, attempt.events_sender) ||
      !is_done(attempt.out, attempt.out_sender) || !is_done(attempt.err, attempt.err_sender)) {
    return;
  }
  attempt.spooled = true;
  Append(state->OnSpooled(attempt.stream.key), &pending);
}

void Agent::Impl::Tick(uint64_t now) {
  Append(state->OnTick(now), &pending);
  if (now < tick_at_ns) return;
  tick_at_ns = now + kTickNs;
  for (auto& [key, attempt] : attempts) {
    if (attempt->spooled) continue;
    if (attempt->unsent_since_ns == 0 && attempt->events.has_grown())
      attempt->unsent_since_ns = now;
    if (!attempt->ended && now < attempt->flush_at_ns) continue;
    attempt->flush_at_ns = now + kFlushNs - kTickNs / 2;
    Flush(*attempt);
    CheckSpooled(*attempt);
  }
  if (now >= disk_at_ns) {
    disk_at_ns = now + kDiskCheckNs;
    CheckDisk();
  }
  UpdateMetrics();
}

void Agent::Impl::CheckDisk() {
  const Result<DiskSpace> space = GetDiskSpace(options.state_dir);
  if (!space.ok()) {
    LogWarning(space.status().message());
    return;
  }
  disk = *space;
  const uint64_t reserve = std::min(kReserveBytesMax, disk.size_bytes / 20);
  state->SetDiskLow(disk.free_bytes < reserve);
}

void Agent::Impl::UpdateMetrics() {
  AgentMetrics::Snapshot snapshot{.connected = registered,
                                  .disk_free_bytes = disk.free_bytes,
                                  .disk_size_bytes = disk.size_bytes,
                                  .clock_offset_seconds = clock_offset_seconds};
  const uint64_t now = BoottimeNanoseconds();
  uint64_t oldest_ns = 0;
  for (const auto& [key, attempt] : attempts) {
    if (attempt->spooled) continue;
    snapshot.spool_bytes +=
        attempt->events.unsent_bytes() + attempt->out.unsent_bytes() + attempt->err.unsent_bytes();
    snapshot.unacked_lines += attempt->events.unsent_lines();
    if (attempt->unsent_since_ns != 0 && (oldest_ns == 0 || attempt->unsent_since_ns < oldest_ns)) {
      oldest_ns = attempt->unsent_since_ns;
    }
  }
  if (oldest_ns != 0) {
    snapshot.spool_oldest_timestamp_seconds = static_cast<double>(UnixMilliseconds()) / 1000.0 -
                                              static_cast<double>(now - oldest_ns) / 1e9;
  }
  std::vector<AgentMetrics::SlotUse> uses;
  for (const auto& [key, record] : state->records()) {
    if (!record.is_live()) continue;
    ++snapshot.trainers;
    for (const uint32_t slot : record.slots) {
      if (slot >= options.slots.size()) continue;
      uses.push_back(
          {.slot = slot, .uuid = options.slots[slot].uuid, .run = record.run_id, .rank = key.rank});
    }
  }
  metrics->Set(snapshot);
  metrics->SetSlots(uses);
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  if (impl_->client != nullptr) impl_->client->Stop();
  if (impl_->exposer != nullptr) impl_->exposer->Stop();
  impl_->janitor.Stop();
  unlink((impl_->options.state_dir + "/ready.json").c_str());
}

Result<std::unique_ptr<Agent>> Agent::Start(AgentOptions options,
                                            std::unique_ptr<ForkServer> fork_server) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(fork_server));
  SWITCHYARD_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

Agent::Outcome Agent::Run() { return impl_->Run(); }

}  // namespace switchyard::agent
