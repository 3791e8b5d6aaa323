#include "client/plot/gnuplot.h"

#include <cerrno>
#include <csignal>
#include <ctime>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr int64_t kPatienceMs = 60'000;
constexpr uint64_t kPictureBytesMax = uint64_t{1} << 28;

Result<UniqueFd> MemoryFile(const char* name) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC));
  if (!fd.is_valid()) return ErrnoStatus("cannot create", name, errno);
  return fd;
}

Result<std::string> Content(const UniqueFd& fd) {
  return ReadFile(StrCat("/proc/self/fd/", fd.get()), kPictureBytesMax);
}

// The exit status of a child, as waitpid gives it. Past the time it is killed.
Result<int> WaitFor(pid_t child) {
  const int64_t until_ms = MonotonicNow().ms + kPatienceMs;
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return ErrnoStatus("cannot wait for", "gnuplot", errno);
    if (MonotonicNow().ms > until_ms) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return DeadlineExceeded(StrCat("gnuplot took over ", kPatienceMs / 1000, " s"));
    }
    const timespec pause{.tv_sec = 0, .tv_nsec = 5'000'000};
    nanosleep(&pause, nullptr);
  }
}

Status IsMissing() {
  return FailedPrecondition(
      "gnuplot is not installed; figures are drawn by it (Debian: apt-get install gnuplot-nox)");
}

// Starts gnuplot without the user's start files, its streams on these files.
Result<pid_t> Start(const UniqueFd& in, const UniqueFd& out, const UniqueFd& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.get(), STDERR_FILENO);
  char name[] = "gnuplot";
  char no_start_files[] = "-d";
  char* arguments[] = {name, no_start_files, nullptr};
  pid_t child = 0;
  const int failed = posix_spawnp(&child, name, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT) return IsMissing();
  if (failed != 0) return ErrnoStatus("cannot start", "gnuplot", failed);
  return child;
}

}  // namespace

Result<std::string> RunGnuplot(const std::string& script) {
  SWITCHYARD_ASSIGN_OR_RETURN(const UniqueFd in, MemoryFile("gnuplot script"));
  SWITCHYARD_ASSIGN_OR_RETURN(const UniqueFd out, MemoryFile("gnuplot picture"));
  SWITCHYARD_ASSIGN_OR_RETURN(const UniqueFd err, MemoryFile("gnuplot errors"));
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(in.get(), script, "gnuplot script"));
  if (lseek(in.get(), 0, SEEK_SET) != 0) return ErrnoStatus("cannot rewind", "script", errno);
  SWITCHYARD_ASSIGN_OR_RETURN(const pid_t child, Start(in, out, err));
  SWITCHYARD_ASSIGN_OR_RETURN(const int status, WaitFor(child));
  // What posix_spawnp says about a missing program depends on the C library.
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return IsMissing();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string errors, Content(err));
  SWITCHYARD_ASSIGN_OR_RETURN(std::string picture, Content(out));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || picture.empty()) {
    const std::string_view said = StripWhitespace(errors);
    return Internal(StrCat("gnuplot failed: ", said.empty() ? "no output" : said.substr(0, 500)));
  }
  return picture;
}

Result<std::string> Draw(const Figure& figure, const Canvas& canvas) {
  return RunGnuplot(GnuplotScript(figure, canvas));
}

}  // namespace switchyard::client
