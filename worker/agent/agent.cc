#include "worker/agent/agent.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <prometheus/registry.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/metrics/exposer.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/agent_state_spool.h"
#include "worker/agent/attempt_dir.h"
#include "worker/agent/contact.h"
#include "worker/agent/housekeeping.h"
#include "worker/agent/janitor.h"
#include "worker/agent/mailbox.h"
#include "worker/agent/record_log.h"
#include "worker/agent/trainers.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;  // nanoseconds
constexpr uint64_t kSecond = 1000 * kMs;
constexpr uint64_t kTickNs = 250 * kMs;
constexpr uint64_t kFlushNs = 1 * kSecond;  // how long events of a running trainer gather
constexpr uint64_t kHousekeepingNs = 5 * kSecond;

// Tags of descriptors in epoll; adopted trainers are watched by their epoch.
constexpr uint64_t kMailboxTag = 1;
constexpr uint64_t kForkServerTag = 2;
constexpr uint64_t kSignalTag = 3;
constexpr uint64_t kFirstPidfdTag = 16;

// A number kept in a small file; `otherwise` where there is none.
uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  const Result<std::string> text = ReadFile(path, 64);
  return text.ok() ? ParseUint64(StripWhitespace(*text)).value_or(otherwise) : otherwise;
}

Result<std::string> ReadOrMakeWorkerId(const std::string& path) {
  const Result<std::string> id = ReadFile(path, 64);
  if (id.ok()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Uuid parsed, Uuid::Parse(StripWhitespace(*id)));
    return parsed.ToString();
  }
  if (id.status().code() != Code::kNotFound) return id.status();
  const std::string made = NewUuidV4().ToString();
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(path, made + "\n", 0600));
  return made;
}

}  // namespace

struct Agent::Impl {
  Impl(AgentOptions agent_options, std::unique_ptr<ForkServer> server)
      : options(std::move(agent_options)), fork_server(std::move(server)) {}

  AgentOptions options;
  std::unique_ptr<ForkServer> fork_server;
  std::string worker_id;
  std::string checkpoint_store;

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
  UploadContext uploads;
  std::optional<Trainers> trainers;
  std::optional<Contact> contact;

  Actions pending;
  std::optional<Outcome> outcome;
  uint64_t tick_at_ns = 0;
  uint64_t housekeeping_at_ns = 0;
  DiskSpace disk;
  uint64_t drain_until_ns = 0;  // 0: not draining

  Status Open();
  Status OpenLoop();
  void Watch(int fd, uint64_t tag);
  Status WriteReady();

  Outcome Run();
  int TimeoutMs(uint64_t now) const;
  void OnForkServer();
  void OnSignal();
  void Drain(uint64_t now);
  bool OnDesired(HeartbeatIn reply);
  HeartbeatOut Observe();
  void Execute();
  void KeepSeen();
  void Compact();

  void Tick(uint64_t now);
  void CheckSpooled();
  void DoHousekeeping(uint64_t now);
  void TrimSpool();
  void UpdateMetrics();
  uint64_t Jitter(uint64_t span) {
    return std::uniform_int_distribution<uint64_t>(0, std::max<uint64_t>(span, 1))(random);
  }
};

// ---------------------------------------------------------------- start

void Agent::Impl::Watch(int fd, uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  SWITCHYARD_CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0)
      << "epoll_ctl: errno " << errno;
}

Status Agent::Impl::OpenLoop() {
  epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_valid()) return ErrnoStatus("cannot make", "an epoll", errno);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&mask, signal);
  signals = UniqueFd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.is_valid()) return ErrnoStatus("cannot make", "a signalfd", errno);
  Watch(mailbox.fd(), kMailboxTag);
  Watch(fork_server->fd(), kForkServerTag);
  Watch(signals.get(), kSignalTag);
  return OkStatus();
}

Status Agent::Impl::Open() {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(options.state_dir + "/attempts", 0700));
  SWITCHYARD_RETURN_IF_ERROR(RefuseNetworkFileSystem(options.state_dir));
  SWITCHYARD_ASSIGN_OR_RETURN(worker_id, ReadOrMakeWorkerId(options.state_dir + "/worker_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(checkpoint_store, OpenCheckpointStore(options.checkpoint_dir));
  // Raised and synced before its first use.
  const uint64_t incarnation = ReadNumber(options.state_dir + "/incarnation", 0) + 1;
  SWITCHYARD_RETURN_IF_ERROR(
      WriteFileAtomically(options.state_dir + "/incarnation", StrCat(incarnation, "\n"), 0600));
  SWITCHYARD_RETURN_IF_ERROR(OpenLoop());

  state.emplace(AgentState::Options{.slots = static_cast<uint32_t>(options.slots.size()),
                                    .incarnation = incarnation});
  metrics = std::make_unique<AgentMetrics>(registry, worker_id, options.pool);
  client = MakeCoordinatorClient(
      options.server, [this](std::function<void()> work) { mailbox.Post(std::move(work)); });
  uploads.client = client.get();
  uploads.jitter = [this](uint64_t span) { return Jitter(span); };
  SWITCHYARD_ASSIGN_OR_RETURN(record_log,
                              RecordLog::Open(options.state_dir + "/records.log", BootId()));
  trainers.emplace(
      Trainers::Parts{
          .options = &options,
          .worker_id = worker_id,
          .fork_server = fork_server.get(),
          .record_log = record_log.get(),
          .state = &*state,
          .metrics = metrics.get(),
          .janitor = &janitor,
          .uploads = &uploads,
          .watch = [this](int fd, uint64_t tag) { Watch(fd, tag); },
          // Not watched when it is our own child: then there is nothing to remove.
          .unwatch = [this](int fd) { epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr); }},
      kFirstPidfdTag);
  SWITCHYARD_RETURN_IF_ERROR(trainers->Recover());
  if (!options.metrics.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(exposer, metrics::Exposer::Start(options.metrics, registry));
    exposer->AddCollectable(metrics::MakeProcessCollector());
  }
  const uint64_t seen = ReadNumber(options.state_dir + "/seen", 0);
  contact.emplace(
      client.get(),
      Registration{.worker_id = worker_id,
                   .incarnation = incarnation,
                   .instance_id = BootId(),
                   .seen_generation = static_cast<uint32_t>(seen >> 32),
                   .seen_boot = static_cast<uint32_t>(seen),
                   .pool = options.pool,
                   .slots = options.slots,
                   .threads_per_slot = options.cores_per_slot,
                   .labels = options.labels,
                   .checkpoint_store = checkpoint_store,
                   .metrics_address = exposer != nullptr ? exposer->address() : "",
                   .host = options.host},
      Contact::Hooks{
          .observe = [this] { return Observe(); },
          .on_desired = [this](HeartbeatIn reply) { return OnDesired(std::move(reply)); },
          .on_registered =
              [this](uint32_t generation) {
                uploads.registered = true;
                for (const AttemptKey& key : state->OnRegistered(generation).resend) {
                  trainers->Resend(key);
                }
                for (auto& [key, attempt] : trainers->attempts()) {
                  attempt.upload->Reset();
                  attempt.upload->Flush();
                }
              },
          .on_lost = [this] { uploads.registered = false; },
          .jitter = uploads.jitter});
  DoHousekeeping(BoottimeNanoseconds());
  UpdateMetrics();
  return WriteReady();
}

Status Agent::Impl::WriteReady() {
  std::string text =
      StrCat("{\"pid\":", static_cast<int64_t>(getpid()), ",\"worker_id\":\"", worker_id, "\"");
  if (exposer != nullptr) text += StrCat(",\"metrics\":\"", exposer->address(), "\"");
  return WriteFileAtomically(options.state_dir + "/ready.json", text + "}\n");
}

// ---------------------------------------------------------------- loop

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
        CheckSpooled();
      } else if (tag == kForkServerTag) {
        OnForkServer();
      } else if (tag == kSignalTag) {
        OnSignal();
      } else {
        pending.Append(trainers->OnAdoptedGone(tag));
      }
    }
    fork_server->Flush();
    const uint64_t now = BoottimeNanoseconds();
    if (now >= tick_at_ns || now >= state->NextTick()) Tick(now);
    Execute();
    if (!outcome) contact->Poll(now);
  }
  return *outcome;
}

int Agent::Impl::TimeoutMs(uint64_t now) const {
  uint64_t next = std::min({tick_at_ns, state->NextTick(), contact->NextNs()});
  if (fork_server->has_backlog()) next = std::min(next, now + kMs);
  if (next <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((next - now + kMs - 1) / kMs, 1000));
}

void Agent::Impl::OnForkServer() {
  Result<Actions> actions = trainers->OnForkEvents();
  if (!actions.ok()) {
    LogError(actions.status().message(), ": starting anew");
    outcome = Outcome::kForkServerLost;
    return;
  }
  pending.Append(*std::move(actions));
}

void Agent::Impl::OnSignal() {
  signalfd_siginfo info;
  while (read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (number == SIGHUP) continue;
    if (number == SIGUSR1 || (number == SIGTERM && options.drains_on_term)) {
      Drain(BoottimeNanoseconds());
    } else {
      outcome = Outcome::kStopped;
    }
  }
}

void Agent::Impl::Drain(uint64_t now) {
  if (drain_until_ns != 0) return;
  LogInfo("draining: attempts have ", options.drain_grace_ms, " ms");
  drain_until_ns = now + 2 * uint64_t{options.drain_grace_ms} * kMs;
  pending.Append(state->OnDrain(options.drain_grace_ms, now));
}

HeartbeatOut Agent::Impl::Observe() {
  HeartbeatOut out{.applied = state->applied(),
                   .disk_free_bytes = disk.free_bytes,
                   .disk_size_bytes = disk.size_bytes,
                   .draining = state->is_draining(),
                   .drain_grace_ms = state->is_draining() ? options.drain_grace_ms : 0};
  out.observed.reserve(state->records().size());
  for (const auto& [key, record] : state->records()) out.observed.push_back(record);
  for (auto& [key, attempt] : trainers->attempts()) {
    if (!attempt.spooled) out.unacked_lines += attempt.upload->events().unsent_lines();
  }
  return out;
}

bool Agent::Impl::OnDesired(HeartbeatIn reply) {
  const uint64_t now = BoottimeNanoseconds();
  for (const CheckpointRef& ref : reply.delete_checkpoints) {
    const Result<std::string> path = CheckpointPath(options.checkpoint_dir, checkpoint_store, ref);
    if (path.ok()) {
      janitor.Remove(*path);
    } else {
      LogWarning("a checkpoint is not deleted: ", path.status().message());
    }
  }
  const Rev before = state->applied();
  for (AttemptDocs& documents : reply.docs) {
    if (state->Find(documents.key) == nullptr) trainers->KeepDocs(documents);
  }
  Actions actions = state->OnDesired(reply.desired, now);
  for (const AttemptDocs& documents : reply.docs) {
    const Record* record = state->Find(documents.key);
    if (record == nullptr || !record->is_live()) trainers->ForgetDocs(documents.key);
  }
  const bool has_news = state->applied() != before || !actions.drop.empty() || actions.heartbeat;
  pending.Append(std::move(actions));
  return has_news;
}

void Agent::Impl::Execute() {
  while (!pending.IsEmpty() && !outcome) {
    Actions actions = std::exchange(pending, {});
    std::map<AttemptKey, std::string> failed;
    for (const Actions::Prepare& prepare : actions.prepare) {
      std::string error = trainers->Prepare(prepare);
      if (!error.empty()) failed[prepare.key] = std::move(error);
    }
    if (const Status status = record_log->Append(actions.records); !status.ok()) {
      // What is on disk is not known: start-up finds out.
      LogError(status.message());
      outcome = Outcome::kFailed;
      return;
    }
    for (const Actions::Stop& stop : actions.stops) trainers->SetStop(stop);
    for (const Actions::Lease& lease : actions.leases) trainers->SetDeadline(lease);
    for (const AttemptKey& key : actions.spawn) {
      if (!failed.contains(key)) pending.Append(trainers->Spawn(key));
    }
    for (const auto& [key, error] : failed) pending.Append(trainers->FailLaunch(key, error));
    for (const AttemptKey& key : actions.dump) {
      LogWarning("attempt ", AttemptName(key), ": ", state->Find(key)->agent_reason);
      trainers->Signal(key, SIGUSR2);
    }
    for (const AttemptKey& key : actions.terminate) trainers->Signal(key, SIGTERM);
    for (const AttemptKey& key : actions.kill) trainers->Kill(key);
    for (const AttemptKey& key : actions.drop) trainers->Drop(key);
    for (const AttemptKey& key : actions.resend) trainers->Resend(key);
    if (actions.seen_changed) KeepSeen();
    if (actions.heartbeat) contact->WantHeartbeat();
    if (record_log->wants_compaction()) Compact();
  }
  if (std::exchange(pending.heartbeat, false)) contact->WantHeartbeat();
}

void Agent::Impl::KeepSeen() {
  const Rev rev = state->applied();
  const uint64_t seen = (uint64_t{rev.generation} << 32) | rev.boot;
  const Status status = WriteFileAtomically(options.state_dir + "/seen", StrCat(seen, "\n"), 0600);
  if (!status.ok()) LogWarning(status.message());
  contact->SetSeen(rev.generation, rev.boot);
}

void Agent::Impl::Compact() {
  std::vector<Record> records;
  records.reserve(state->records().size());
  for (const auto& [key, record] : state->records()) records.push_back(record);
  const Status status = record_log->Compact(records);
  if (status.ok()) return;
  LogError(status.message());
  outcome = Outcome::kFailed;
}

// ---------------------------------------------------------------- now and then

void Agent::Impl::Tick(uint64_t now) {
  pending.Append(state->OnTick(now));
  if (now < tick_at_ns) return;
  tick_at_ns = now + kTickNs;
  for (auto& [key, attempt] : trainers->attempts()) {
    if (attempt.spooled) continue;
    attempt.upload->Tick(now);
    if (!attempt.ended && now < attempt.flush_at_ns) continue;
    attempt.flush_at_ns = now + kFlushNs - kTickNs / 2;
    attempt.upload->Flush();
  }
  CheckSpooled();
  if (now >= housekeeping_at_ns) DoHousekeeping(now);
  UpdateMetrics();
  const bool is_drained =
      drain_until_ns != 0 && state->IsIdle() && (now >= drain_until_ns || state->records().empty());
  if (is_drained) {
    LogInfo("drained");
    outcome = Outcome::kStopped;
  }
}

void Agent::Impl::CheckSpooled() {
  for (auto& [key, attempt] : trainers->attempts()) {
    if (!attempt.ended || attempt.spooled || !attempt.upload->is_done()) continue;
    attempt.spooled = true;
    pending.Append(state->OnSpooled(key));
  }
}

void Agent::Impl::DoHousekeeping(uint64_t now) {
  housekeeping_at_ns = now + kHousekeepingNs;
  trainers->ReadProgress(now);
  TrimSpool();
  const Result<DiskSpace> space = GetDiskSpace(options.state_dir);
  if (!space.ok()) {
    LogWarning(space.status().message());
    return;
  }
  disk = *space;
  state->SetDiskLow(disk.free_bytes < DiskReserveBytes(disk.size_bytes));
}

void Agent::Impl::TrimSpool() {
  const int64_t now_seconds = UnixMilliseconds() / 1000;
  std::vector<SegmentFacts> segments;
  for (auto& [key, attempt] : trainers->attempts()) {
    for (const EventTail::Segment& segment : attempt.upload->events().sealed()) {
      const int64_t age = std::max<int64_t>(now_seconds - segment.modified_unix_seconds, 0);
      segments.push_back({.key = key,
                          .first_seq = segment.first_seq,
                          .last_seq = segment.last_seq,
                          .bytes = segment.bytes,
                          .age_ns = static_cast<uint64_t>(age) * kSecond,
                          .state = SealedState(segment.last_seq, attempt.upload->committed(),
                                               attempt.upload->durable())});
    }
  }
  for (const size_t i : ChooseDeletions(segments, {})) {
    const SegmentFacts& segment = segments[i];
    trainers->attempts().at(segment.key).upload->events().Delete(segment.first_seq);
  }
}

void Agent::Impl::UpdateMetrics() {
  AgentMetrics::Snapshot snapshot{.connected = contact->is_registered(),
                                  .disk_free_bytes = disk.free_bytes,
                                  .disk_size_bytes = disk.size_bytes,
                                  .clock_offset_seconds = contact->clock_offset_seconds()};
  const uint64_t now = BoottimeNanoseconds();
  uint64_t oldest_ns = 0;
  for (auto& [key, attempt] : trainers->attempts()) {
    if (attempt.spooled) continue;
    snapshot.spool_bytes += attempt.upload->unsent_bytes();
    snapshot.unacked_lines += attempt.upload->events().unsent_lines();
    const uint64_t since_ns = attempt.upload->unsent_since_ns();
    if (since_ns != 0 && (oldest_ns == 0 || since_ns < oldest_ns)) oldest_ns = since_ns;
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

// ---------------------------------------------------------------- the class

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
