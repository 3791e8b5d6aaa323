#include "client/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "common/base/file.h"
#include "common/base/strings.h"

extern char** environ;

namespace switchyard::client {
namespace {

// Twice the longest line of an event file.
constexpr size_t kLineBytesMax = size_t{2} << 20;

// Hands out the lines of a descriptor to its end, whatever `on_line` says; calls `on_no` at its
// first no. What was written before the writer's end counts. kDeadlineExceeded, kDataLoss: as
// RunTrainerProcess.
Status ReadLines(int fd, std::chrono::milliseconds silence_max,
                 const std::function<bool(std::string_view)>& on_line,
                 const std::function<void()>& on_no) {
  std::string held;
  std::vector<char> buffer(64 << 10);
  bool goes_on = true;
  while (true) {
    pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, static_cast<int>(silence_max.count()));
    if (ready == 0) {
      return DeadlineExceeded(
          StrCat("the trainer has said nothing for ", silence_max.count() / 1000, " s"));
    }
    const ssize_t n = ready < 0 ? -1 : read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return OkStatus();  // a line without its end was cut off with the process
    held.append(buffer.data(), static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end = held.find('\n'); end != std::string::npos; end = held.find('\n', begin)) {
      if (!on_line(std::string_view(held).substr(begin, end - begin)) && goes_on) {
        goes_on = false;
        on_no();
      }
      begin = end + 1;
    }
    held.erase(0, begin);
    if (held.size() > kLineBytesMax) {
      return DataLoss(StrCat("a line of the trainer has over ", kLineBytesMax, " bytes"));
    }
  }
}

}  // namespace

Result<std::string> FindTrainer() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (self.parent_path() / "switchyard-trainer").string();
  if (!error && FileExists(path)) return path;
  return NotFound(StrCat("no trainer at ", path, "; --trainer names one"));
}

Result<TrainerEnd> RunTrainerProcess(const std::string& trainer,
                                     const std::vector<std::string>& arguments,
                                     const std::string& error_path,
                                     const std::function<bool(std::string_view line)>& on_line,
                                     std::chrono::milliseconds silence_max) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe for", trainer, errno);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, error_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  std::vector<char*> argv = {const_cast<char*>(trainer.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, trainer.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return ErrnoStatus("start", trainer, failed);
  writing = UniqueFd();

  const Status read = ReadLines(reading.get(), silence_max, on_line, [pid] { kill(pid, SIGKILL); });
  if (!read.ok()) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus("wait for", trainer, errno);
  }
  if (!read.ok()) return read;
  if (WIFSIGNALED(status)) return TrainerEnd{.signal = WTERMSIG(status)};
  return TrainerEnd{.exit_code = WEXITSTATUS(status)};
}

}  // namespace switchyard::client
