#include "worker/agent/fork_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/strings.h"

extern char** environ;

namespace switchyard::agent {
namespace {

constexpr size_t kMessageBytesMax = 128 << 10;
constexpr size_t kErrorBytes = 256;
constexpr int kLockWaitMs = 5000;

// What the fork server answers; a pidfd comes along with kSpawned.
struct Reply {
  ForkEvent::Kind kind = ForkEvent::Kind::kSpawned;
  uint64_t id = 0;
  int32_t pid = 0;
  int32_t wait_signalled = 0;
  int32_t wait_value = 0;
  char error[kErrorBytes] = {};
};

void PutText(const std::string& text, std::string* out) {
  const auto size = static_cast<uint32_t>(text.size());
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(text);
}

void PutList(const std::vector<std::string>& list, std::string* out) {
  const auto size = static_cast<uint32_t>(list.size());
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  for (const std::string& text : list) PutText(text, out);
}

std::string Encode(const SpawnRequest& request) {
  std::string out(reinterpret_cast<const char*>(&request.id), sizeof(request.id));
  PutText(request.directory, &out);
  PutList(request.argv, &out);
  PutList(request.env, &out);
  const auto cores = static_cast<uint32_t>(request.cores.size());
  out.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
  for (const uint32_t core : request.cores) {
    out.append(reinterpret_cast<const char*>(&core), sizeof(core));
  }
  return out;
}

// Reads what Encode wrote; the writer is our own other half.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}
  template <typename T>
  T Number() {
    T value{};
    SWITCHYARD_CHECK(data_.size() >= sizeof(T)) << "short request";
    std::memcpy(&value, data_.data(), sizeof(T));
    data_.remove_prefix(sizeof(T));
    return value;
  }
  std::string Text() {
    const auto size = Number<uint32_t>();
    SWITCHYARD_CHECK(data_.size() >= size) << "short request";
    std::string text(data_.substr(0, size));
    data_.remove_prefix(size);
    return text;
  }
  std::vector<std::string> List() {
    std::vector<std::string> list(Number<uint32_t>());
    for (std::string& text : list) text = Text();
    return list;
  }

 private:
  std::string_view data_;
};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Shared with the child, which runs in the fork server's memory until it executes.
struct Launch {
  const char* directory = nullptr;
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const char* boot_id = nullptr;
  const cpu_set_t* cores = nullptr;  // null: as the fork server
  const char* failed = nullptr;      // what went wrong, with `error`
  int error = 0;
};

int Fail(Launch* launch, const char* what) {
  launch->failed = what;
  launch->error = errno;
  return 127;
}

// Field 22, from the text of /proc/PID/stat; the name in field 2 may hold blanks and parentheses.
uint64_t StartTicksIn(const char* stat) {
  const char* at = std::strrchr(stat, ')');
  if (at == nullptr) return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  return std::strtoull(at + 1, nullptr, 10);
}

// Runs between clone and exec: system calls and the stack only, no allocation.
int Child(void* argument) {
  auto* launch = static_cast<Launch*>(argument);
  if (setsid() < 0) return Fail(launch, "setsid");
  SWITCHYARD_FAILPOINT("child.session");
  if (chdir(launch->directory) != 0) return Fail(launch, "cannot enter the attempt directory");
  // Held for the life of the trainer: an attempt is never launched twice.
  const int lock = open("attempt.lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (lock < 0) return Fail(launch, "cannot open attempt.lock");
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) return Fail(launch, "attempt.lock is held");

  char buffer[1024];
  const int stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  const ssize_t got = stat < 0 ? -1 : read(stat, buffer, sizeof(buffer) - 1);
  if (stat >= 0) close(stat);
  if (got <= 0) return Fail(launch, "cannot read /proc/self/stat");
  buffer[got] = '\0';
  const uint64_t ticks = StartTicksIn(buffer);
  const int size = std::snprintf(
      buffer, sizeof(buffer), "{\"pid\":%d,\"start_ticks\":%llu,\"boot_id\":\"%s\"}\n",
      static_cast<int>(getpid()), static_cast<unsigned long long>(ticks), launch->boot_id);
  SWITCHYARD_FAILPOINT("child.locked");
  const int pid_file = open("pid.json", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (pid_file < 0 || write(pid_file, buffer, static_cast<size_t>(size)) != size) {
    return Fail(launch, "cannot write pid.json");
  }
  close(pid_file);

  const int in = open("/dev/null", O_RDONLY);
  const int out = open("stdout.log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0644);
  const int err = open("stderr.log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0644);
  if (in < 0 || out < 0 || err < 0) return Fail(launch, "cannot open the output files");
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) return Fail(launch, "dup2");
  for (const int fd : {in, out, err}) {
    if (fd > 2) close(fd);
  }
  // Cores may have gone offline: a trainer that runs elsewhere is better than none.
  if (launch->cores != nullptr) sched_setaffinity(0, sizeof(*launch->cores), launch->cores);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  SWITCHYARD_FAILPOINT("child.execute");
  execve(launch->argv[0], launch->argv, launch->envp);
  return Fail(launch, "cannot execute");
}

// The other half: one thread, until the agent is gone.
class Server {
 public:
  explicit Server(int socket) : socket_(socket), boot_id_(BootId()) {}

  [[noreturn]] void Run() {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    const int signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) _exit(70);
    while (true) {
      pollfd fds[2] = {{.fd = socket_, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) _exit(70);
      // Launches first: a child is reaped only after its pidfd was passed.
      if (fds[0].revents != 0) Serve();
      if (fds[1].revents != 0) {
        signalfd_siginfo info;
        while (read(signals, &info, sizeof(info)) > 0) {
        }
        Reap();
      }
    }
  }

 private:
  void Serve() {
    const ssize_t got = recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) _exit(0);  // the agent is gone
    Reader in({buffer_.data(), static_cast<size_t>(got)});
    SpawnRequest request;
    request.id = in.Number<uint64_t>();
    request.directory = in.Text();
    request.argv = in.List();
    request.env = in.List();
    request.cores.resize(in.Number<uint32_t>());
    for (uint32_t& core : request.cores) core = in.Number<uint32_t>();
    Spawn(request);
  }

  void Spawn(const SpawnRequest& request) {
    std::vector<std::string> env = request.env;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const std::string_view name = text.substr(0, text.find('=') + 1);
      const auto same = [&](const std::string& own) { return own.starts_with(name); };
      if (std::none_of(request.env.begin(), request.env.end(), same)) env.emplace_back(text);
    }
    SWITCHYARD_FAILPOINT("fork.received");
    const std::vector<char*> argv = Pointers(request.argv);
    const std::vector<char*> envp = Pointers(env);
    Launch launch{.directory = request.directory.c_str(),
                  .argv = argv.data(),
                  .envp = envp.data(),
                  .boot_id = boot_id_.c_str()};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const uint32_t core : request.cores) {
      if (core < CPU_SETSIZE) CPU_SET(core, &cores);
    }
    if (CPU_COUNT(&cores) > 0) launch.cores = &cores;
    int pidfd = -1;
    // Like vfork: returns when the child has executed or ended, and copies no page tables.
    const pid_t pid = clone(Child, stack_.data() + stack_.size(),
                            CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &launch, &pidfd);
    SWITCHYARD_FAILPOINT("fork.executed");
    Reply reply{.id = request.id, .pid = pid};
    if (pid < 0) {
      reply.kind = ForkEvent::Kind::kFailed;
      std::snprintf(reply.error, sizeof(reply.error), "cannot clone: %s", std::strerror(errno));
    } else if (launch.failed != nullptr) {
      reply.kind = ForkEvent::Kind::kFailed;
      std::snprintf(reply.error, sizeof(reply.error), "%s: %s (%s)", launch.failed,
                    std::strerror(launch.error), request.argv[0].c_str());
    } else {
      ids_[pid] = request.id;
    }
    Send(reply, reply.kind == ForkEvent::Kind::kSpawned ? pidfd : -1);
    if (pidfd >= 0) close(pidfd);
  }

  void Reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      const auto it = ids_.find(pid);
      if (it == ids_.end()) continue;  // one that never executed
      Reply reply{.kind = ForkEvent::Kind::kExited, .id = it->second, .pid = pid};
      reply.wait_signalled = WIFSIGNALED(status) ? 1 : 0;
      reply.wait_value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
      ids_.erase(it);
      Send(reply, -1);
    }
  }

  void Send(const Reply& reply, int pidfd) {
    iovec part{.iov_base = const_cast<Reply*>(&reply), .iov_len = sizeof(reply)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{.msg_iov = &part, .msg_iovlen = 1};
    if (pidfd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &pidfd, sizeof(int));
    }
    while (sendmsg(socket_, &message, MSG_NOSIGNAL) < 0) {
      if (errno != EINTR) _exit(0);
    }
  }

  int socket_;
  std::string boot_id_;
  std::unordered_map<pid_t, uint64_t> ids_;
  std::vector<char> buffer_ = std::vector<char>(kMessageBytesMax);
  alignas(16) std::array<char, 64 << 10> stack_;
};

// The fork server that holds the lock, with its children that still run the agent's program.
void KillOldForkServer(const std::string& lock_path) {
  const Result<std::string> text = ReadFile(lock_path, 64);
  if (!text.ok()) return;
  const std::vector<std::string> parts = StrSplit(StripWhitespace(*text), ' ');
  if (parts.size() != 2) return;
  const std::optional<int64_t> pid = ParseInt64(parts[0]);
  const std::optional<uint64_t> ticks = ParseUint64(parts[1]);
  if (!pid || *pid <= 1 || *pid > INT_MAX || !ticks) return;
  if (ProcessStartTicks(static_cast<pid_t>(*pid)) != *ticks) return;
  const auto exe = [](int64_t process) {
    char link[PATH_MAX];
    const ssize_t size = readlink(StrCat("/proc/", process, "/exe").c_str(), link, sizeof(link));
    return std::string(link, size > 0 ? static_cast<size_t>(size) : 0);
  };
  const std::string own = exe(*pid);
  const Result<std::string> children =
      ReadFile(StrCat("/proc/", *pid, "/task/", *pid, "/children"), 1 << 20);
  LogWarning("killing the fork server ", *pid, " of an earlier agent");
  kill(static_cast<pid_t>(*pid), SIGKILL);
  if (!children.ok()) return;
  for (const std::string& child : StrSplit(*children, ' ')) {
    const std::optional<int64_t> child_pid = ParseInt64(child);
    if (child_pid && *child_pid > 1 && exe(*child_pid) == own) {
      kill(static_cast<pid_t>(*child_pid), SIGKILL);
    }
  }
}

Result<UniqueFd> TakeLock(const std::string& path) {
  for (int round = 0; round < 2; ++round) {
    for (int waited = 0; waited < kLockWaitMs; waited += 10) {
      Result<UniqueFd> lock = LockFile(path);
      if (lock.ok() || lock.status().code() != Code::kFailedPrecondition) return lock;
      usleep(10'000);
    }
    KillOldForkServer(path);
  }
  return FailedPrecondition(StrCat(path, " is held by a process that does not end"));
}

}  // namespace

std::optional<uint64_t> ProcessStartTicks(pid_t pid) {
  const Result<std::string> stat = ReadFile(StrCat("/proc/", pid, "/stat"), 4096);
  if (!stat.ok()) return std::nullopt;
  const uint64_t ticks = StartTicksIn(stat->c_str());
  return ticks == 0 ? std::nullopt : std::optional(ticks);
}

std::string BootId() {
  const Result<std::string> text = ReadFile("/proc/sys/kernel/random/boot_id", 128);
  return text.ok() ? std::string(StripWhitespace(*text)) : "unknown";
}

Result<std::unique_ptr<ForkServer>> ForkServer::Start(const std::string& state_dir) {
  const std::string lock_path = state_dir + "/forkserver.lock";
  SWITCHYARD_ASSIGN_OR_RETURN(UniqueFd lock, TakeLock(lock_path));
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return ErrnoStatus("cannot make", "a socket pair", errno);
  }
  UniqueFd own(sockets[0]);
  UniqueFd other(sockets[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus("cannot fork", "the fork server", errno);
  if (pid == 0) {
    own.Reset();
    // The agent's own lock among them: it must go with the agent.
    const int kept[] = {std::min(lock.get(), other.get()), std::max(lock.get(), other.get())};
    close_range(3, static_cast<unsigned>(kept[0]) - 1, 0);
    if (kept[0] + 1 < kept[1]) {
      close_range(static_cast<unsigned>(kept[0]) + 1, static_cast<unsigned>(kept[1]) - 1, 0);
    }
    close_range(static_cast<unsigned>(kept[1]) + 1, ~0U, 0);
    // A session of its own: the terminal's interrupt is for the agent.
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "sy-forkserver");
    if (getppid() != parent) _exit(0);
    const std::string who = StrCat(getpid(), " ", ProcessStartTicks(getpid()).value_or(0), "\n");
    if (ftruncate(lock.get(), 0) != 0 || !WriteAll(lock.get(), who, lock_path).ok()) _exit(70);
    // Large for the stack of main, and alive until the process ends.
    auto* server = new Server(other.get());
    server->Run();
  }
  if (fcntl(own.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus("cannot set up", "the fork server's socket", errno);
  }
  return std::unique_ptr<ForkServer>(new ForkServer(std::move(own)));
}

Status ForkServer::Spawn(const SpawnRequest& request) {
  std::string message = Encode(request);
  if (message.size() > kMessageBytesMax) {
    return InvalidArgument(
        StrCat("a launch of ", message.size(), " bytes, at most ", kMessageBytesMax));
  }
  backlog_.push_back(std::move(message));
  Flush();
  return OkStatus();
}

void ForkServer::Flush() {
  while (!backlog_.empty()) {
    const std::string& message = backlog_.front();
    if (send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      return;  // full: later; gone: Receive says so
    }
    backlog_.pop_front();
  }
}

Result<std::vector<ForkEvent>> ForkServer::Receive() {
  std::vector<ForkEvent> events;
  while (true) {
    Reply reply;
    iovec part{.iov_base = &reply, .iov_len = sizeof(reply)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{.msg_iov = &part,
                   .msg_iovlen = 1,
                   .msg_control = control,
                   .msg_controllen = sizeof(control)};
    const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return events;
    if (got != sizeof(reply)) {
      // What came before the end still counts.
      if (!events.empty()) return events;
      return Unavailable("the fork server is gone");
    }
    ForkEvent event{.kind = reply.kind, .id = reply.id, .pid = reply.pid};
    reply.error[kErrorBytes - 1] = '\0';
    event.error = reply.error;
    event.wait = {.signalled = reply.wait_signalled != 0, .value = reply.wait_value};
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      int pidfd = -1;
      std::memcpy(&pidfd, CMSG_DATA(header), sizeof(int));
      event.pidfd = UniqueFd(pidfd);
    }
    events.push_back(std::move(event));
  }
}

}  // namespace switchyard::agent
