// switchyard_simulation: runs seeds of the simulated cluster (docs/simulation.md).
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {
namespace {

struct Flags {
  uint64_t first = 1;
  uint64_t last = 0;
  int jobs = 1;
  uint64_t twice = 0;  // so many seeds from the first on
  std::string mix = "swarm";
  std::string mutants;
  std::string trace;
  std::string minimise;
  uint64_t require_coverage = 0;
  std::string regressions;
};

constexpr size_t kTextMax = 2000;

// What a job tells its parent; in memory that both share, so that it survives an abort.
struct Report {
  std::atomic<uint64_t> seed;  // being run
  std::atomic<uint64_t> done;
  std::atomic<uint64_t> events;
  std::atomic<uint64_t> virtual_seconds;
  std::atomic<uint64_t> faults;
  std::atomic<uint64_t> coverage[kPoints];
  std::atomic<bool> has_failed;
  char text[kTextMax];
};

Report* report = nullptr;

void SetText(const std::string& text) {
  std::strncpy(report->text, text.c_str(), kTextMax - 1);
  report->text[kTextMax - 1] = '\0';
}

Report* MakeReport() {
  void* memory =
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Report{};
}

std::string Show(const Outcome& outcome) {
  return StrCat(outcome.failure->invariant, ": ", outcome.failure->text);
}

// One seed; true when nothing is broken.
bool RunSeed(const Options& options, bool twice) {
  report->seed = options.seed;
  Outcome outcome = World(options).Run();
  if (twice && !outcome.failure.has_value()) {
    const Outcome again = World(options).Run();
    if (again.hashes != outcome.hashes) {
      size_t at = 0;
      while (at < std::min(again.hashes.size(), outcome.hashes.size()) &&
             again.hashes[at] == outcome.hashes[at]) {
        ++at;
      }
      SetText(StrCat("determinism: the state differs at hash ", at));
      report->has_failed = true;
      return false;
    }
  }
  ++report->done;
  report->events += outcome.events;
  report->virtual_seconds += outcome.virtual_seconds;
  report->faults += outcome.faults;
  for (size_t i = 0; i < kPoints; ++i) report->coverage[i] += outcome.coverage[i];
  if (!outcome.failure.has_value()) return true;
  SetText(Show(outcome));
  report->has_failed = true;
  return false;
}

// In a child, because a broken check aborts. Empty: nothing is broken.
std::string RunApart(const Options& options, bool show_trace) {
  report->has_failed = false;
  report->text[0] = '\0';
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Outcome outcome = World(options).Run();
    if (outcome.failure.has_value()) {
      SetText(Show(outcome));
      report->has_failed = true;
    }
    if (show_trace) {
      for (const std::string& line : outcome.schedule) std::printf("%s\n", line.c_str());
      for (const std::string& line : outcome.trace) std::printf("%s\n", line.c_str());
      std::printf("%llu events, %llu virtual seconds\n",
                  static_cast<unsigned long long>(outcome.events),
                  static_cast<unsigned long long>(outcome.virtual_seconds));
    }
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (report->has_failed) return report->text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return "CHECK: the simulation died";
}

// Leaves faults out, in ever smaller pieces, while the seed still fails (Zeller, Hildebrandt,
// "Simplifying and isolating failure-inducing input", 2002).
int Minimise(Options options) {
  const std::string first = RunApart(options, false);
  if (first.empty()) {
    std::printf("seed %llu does not fail\n", static_cast<unsigned long long>(options.seed));
    return 1;
  }
  const std::string invariant = first.substr(0, first.find(':'));
  std::vector<size_t> kept;
  for (size_t i = 0; i < 64; ++i) kept.push_back(i);
  for (size_t piece = 16; piece >= 1; piece /= 2) {
    for (size_t at = 0; at < kept.size();) {
      Options fewer = options;
      for (size_t i = at; i < std::min(at + piece, kept.size()); ++i) {
        fewer.left_out.insert(kept[i]);
      }
      const std::string text = RunApart(fewer, false);
      if (text.substr(0, text.find(':')) == invariant) {
        options = fewer;
        kept.erase(kept.begin() + static_cast<int64_t>(at),
                   kept.begin() + static_cast<int64_t>(std::min(at + piece, kept.size())));
      } else {
        at += piece;
      }
    }
  }
  options.with_trace = true;
  const std::string text = RunApart(options, true);
  std::printf("seed %llu mix %s, %zu faults are enough: %s\n",
              static_cast<unsigned long long>(options.seed), options.mix.c_str(), kept.size(),
              text.c_str());
  return 1;
}

bool SetMutants(const std::string& list) {
  mutant::removed = 0;
  if (list.empty()) return true;
  for (const std::string& name : StrSplit(list, ',')) {
    const std::optional<uint64_t> number =
        name.size() == 3 && name[0] == 'X' ? ParseUint64(name.substr(1)) : std::nullopt;
    if (!number || *number < 1 || *number > 43) {
      std::fprintf(stderr, "--mutant %s: expected X01 to X43\n", name.c_str());
      return false;
    }
    mutant::removed |= uint64_t{1} << *number;
  }
  return true;
}

// Seeds first, first + jobs, ... each in its own job. Returns the first failing seed, which does
// not depend on the number of jobs: the others go on until they have passed it. 0: none.
uint64_t RunRange(const Flags& flags, std::string* text, Report* totals) {
  std::vector<Report*> reports;
  std::vector<pid_t> children;
  // In its `seed`: no job goes beyond it.
  Report* const shared = MakeReport();
  shared->seed = flags.last;
  for (int job = 0; job < flags.jobs; ++job) {
    report = MakeReport();
    reports.push_back(report);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (uint64_t seed = flags.first + static_cast<uint64_t>(job); seed <= shared->seed;
           seed += static_cast<uint64_t>(flags.jobs)) {
        const bool twice = seed - flags.first < flags.twice;
        if (!RunSeed({.seed = seed, .mix = flags.mix, .left_out = {}}, twice)) _exit(3);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  uint64_t failed = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const auto job = std::ranges::find(children, ended) - children.begin();
    if (static_cast<size_t>(job) >= children.size()) break;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    const Report& from = *reports[static_cast<size_t>(job)];
    if (failed != 0 && from.seed > failed) continue;
    failed = from.seed;
    shared->seed = failed;
    *text = from.text[0] != '\0' ? from.text : "CHECK: the simulation died";
  }
  for (const Report* from : reports) {
    totals->done += from->done;
    totals->events += from->events;
    totals->virtual_seconds += from->virtual_seconds;
    totals->faults += from->faults;
    for (size_t i = 0; i < kPoints; ++i) totals->coverage[i] += from->coverage[i];
  }
  report = reports[0];
  return failed;
}

int RunRegressions(const Flags& flags) {
  std::ifstream in(flags.regressions);
  if (!in) {
    std::fprintf(stderr, "cannot read %s\n", flags.regressions.c_str());
    return 2;
  }
  std::string line;
  int ran = 0;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    Options options{.left_out = {}};
    if (!(fields >> options.seed >> options.mix) || FindMix(options.mix) == nullptr) {
      std::fprintf(stderr, "%s: expected seed, mix and text: %s\n", flags.regressions.c_str(),
                   line.c_str());
      return 2;
    }
    ++ran;
    const std::string text = RunApart(options, false);
    if (!text.empty()) {
      std::printf("regression: seed %llu mix %s: %s\n",
                  static_cast<unsigned long long>(options.seed), options.mix.c_str(), text.c_str());
      return 1;
    }
  }
  std::printf("%d regression seeds hold\n", ran);
  return 0;
}

int Usage() {
  std::fprintf(stderr,
               "usage: switchyard_simulation [--seeds A..B] [--jobs N] [--twice N] [--mix NAME]\n"
               "         [--mutant X05[,X11]] [--trace SEED] [--minimise SEED]\n"
               "         [--require-coverage N] [--regressions FILE]\nmixes:");
  for (const std::string_view name : MixNames()) {
    std::fprintf(stderr, " %s", std::string(name).c_str());
  }
  std::fprintf(stderr, "\n");
  return 2;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc) return Usage();
    const std::string value = argv[++i];
    if (name == "--seeds") {
      const size_t dots = value.find("..");
      const auto first = ParseUint64(value.substr(0, dots));
      const auto last = dots == std::string::npos ? first : ParseUint64(value.substr(dots + 2));
      if (!first || !last || *first == 0 || *last < *first) return Usage();
      flags.first = *first;
      flags.last = *last;
    } else if (name == "--jobs") {
      flags.jobs = static_cast<int>(std::clamp<uint64_t>(ParseUint64(value).value_or(1), 1, 64));
    } else if (name == "--twice") {
      flags.twice = ParseUint64(value).value_or(0);
    } else if (name == "--mix") {
      flags.mix = value;
    } else if (name == "--mutant") {
      flags.mutants = value;
    } else if (name == "--trace") {
      flags.trace = value;
    } else if (name == "--minimise") {
      flags.minimise = value;
    } else if (name == "--require-coverage") {
      flags.require_coverage = ParseUint64(value).value_or(0);
    } else if (name == "--regressions") {
      flags.regressions = value;
    } else {
      return Usage();
    }
  }
  if (FindMix(flags.mix) == nullptr || !SetMutants(flags.mutants)) return Usage();
  report = MakeReport();
  if (report == nullptr) return 2;
  if (!flags.minimise.empty()) {
    return Minimise(
        {.seed = ParseUint64(flags.minimise).value_or(1), .mix = flags.mix, .left_out = {}});
  }
  if (!flags.trace.empty()) {
    const std::string text = RunApart({.seed = ParseUint64(flags.trace).value_or(1),
                                       .mix = flags.mix,
                                       .with_trace = true,
                                       .left_out = {}},
                                      true);
    if (!text.empty()) std::printf("%s\n", text.c_str());
    return text.empty() ? 0 : 1;
  }
  if (!flags.regressions.empty()) {
    const int result = RunRegressions(flags);
    if (result != 0) return result;
  }
  if (flags.last == 0) return 0;

  const auto start = std::chrono::steady_clock::now();
  std::string text;
  Report* totals = MakeReport();
  const uint64_t failed = RunRange(flags, &text, totals);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto done = static_cast<double>(std::max<uint64_t>(totals->done, 1));
  const double runs = done + std::min(done, static_cast<double>(flags.twice));
  std::printf(
      "%.0f seeds, mix %s, in %.1f s: %.0f seeds/min/job, %.0f events and %.1f faults a "
      "seed, %.0f virtual hours\n",
      done, flags.mix.c_str(), seconds, runs / seconds * 60 / flags.jobs,
      static_cast<double>(totals->events) / done, static_cast<double>(totals->faults) / done,
      static_cast<double>(totals->virtual_seconds) / 3600);
  if (failed != 0) {
    std::printf("seed %llu mix %s%s%s fails: %s\n", static_cast<unsigned long long>(failed),
                flags.mix.c_str(), flags.mutants.empty() ? "" : " mutant ", flags.mutants.c_str(),
                text.c_str());
    if (!flags.mutants.empty()) return 1;
    return Minimise({.seed = failed, .mix = flags.mix, .left_out = {}});
  }
  int result = 0;
  for (size_t i = 0; i < kPoints; ++i) {
    const uint64_t count = totals->coverage[i];
    if (flags.require_coverage == 0) {
      std::printf("%10llu %s\n", static_cast<unsigned long long>(count),
                  std::string(kPointNames[i]).c_str());
    } else if (count < flags.require_coverage) {
      std::printf("covered %llu times, %llu wanted: %s\n", static_cast<unsigned long long>(count),
                  static_cast<unsigned long long>(flags.require_coverage),
                  std::string(kPointNames[i]).c_str());
      result = 1;
    }
  }
  return result;
}

}  // namespace
}  // namespace switchyard::simulation

namespace switchyard::internal {

// In place of the one of common/base: what broke is told to the parent before the process ends.
CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << "CHECK: " << file << ":" << line << ": " << condition << " ";
}

CheckFailure::~CheckFailure() {
  if (simulation::report != nullptr) {
    simulation::SetText(stream_.str());
    simulation::report->has_failed = true;
  }
  _exit(3);
}

}  // namespace switchyard::internal

int main(int argc, char** argv) { return switchyard::simulation::Main(argc, argv); }
