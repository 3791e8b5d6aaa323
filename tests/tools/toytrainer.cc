// A trainer that trains nothing: it fills an attempt directory as a real one does, misbehaves on
// demand, and keeps a ledger outside the system under test.
//
// Usage: PROGRAM --attempt-dir DIR
//
// Settings come from the environment, then from the file $TOY_PLANS/all, then from
// $TOY_PLANS/<run id> (NAME=VALUE lines; later ones win). Files are read at start only.
//
// What it does when nothing goes wrong:
//   TOY_STEPS      steps, one metric line each (10)
//   TOY_STEP_MS    pause after each step, milliseconds (0)
//   TOY_PRINT      lines to print to standard output at start (0)
//   TOY_STEP_PRINT bytes of one line to print after each step (0: none)
//   TOY_CHECKPOINT a checkpoint every so many steps (0: none): a folder with one file in
//                  `checkpoint_dir`, written aside and renamed, then its `ckpt` line. An attempt
//                  with a `resume_checkpoint` goes on at the step in that folder's name, the
//                  first one of a fork at the step of its `init`
//   TOY_CODE       exit status (0); other than 0 the run is not complete
//
// Where it goes wrong: at the step TOY_AT, after its line was written (default: behind the last
// step, before `end`), what TOY_FAULT says:
//   segv, abort, kill      dies by that signal, without exit.json
//   exit0, exit1, exit70   `_exit` with that status, without exit.json; lines so far are whole
//   kill-agent             kills the agent that launched it and, by SIGKILL, itself; adopted by
//                          another agent it knows none and kills itself alone
//   hang                   sleeps for ever; the lease page is no longer looked at
//   hang-fenced            hangs, and a second thread still ends it with 76 at the deadline
//   starved                goes on stepping; only the check before each step looks at the page
//   oom                    touches memory until something stops it
// and at its end TOY_RECORD says what becomes of exit.json:
//   whole (default), absent, torn (cut in the middle), corrupt (a flipped byte),
//   foreign (the epoch of another attempt), oversize (beyond 64 KiB)
// and TOY_AFTER what happens behind it: none (default), segv, abort, hang, exit1.
//
// Other habits:
//   TOY_SIGNAL     ends by this signal number after the steps, without exit.json
//   TOY_NO_RECORD  1: TOY_RECORD=absent
//   TOY_IGNORE     1: takes no notice of intents and SIGTERM (the deadlines still count)
//   TOY_CHILD      1: leaves a child behind in a process group of its own
//   TOY_STOP_CODE  exit status of one that was asked to stop (75); exit.json says `complete` only
//                  after the last step
//   TOY_TORN       1: ends with half a line
//   TOY_CORRUPT_AT flips a byte of the line of this step (0: none)
//   TOY_BACK_AT    behind the line of this step it reports step 1 once more (0: never)
//   TOY_REASON     bytes of the reason in exit.json (0)
//   TOY_FIELD      name of a number in run.json: the value of a step is then that number plus 5 /
//                  step, whichever attempt reports it
//   TOY_NAN_ABOVE  with TOY_FIELD: where that number is larger, the value is NaN from the step
//                  TOY_NAN_FROM (1) on
//   TOY_SERIES     more series, "NAME=VALUE,VALUE,...;NAME=...": step n reports the n-th value, if
//                  there is one; nan, inf, -inf, -0.0 and denormal numbers as strtod reads them
//   TOY_SEED       with TOY_FIELD: this much times a deviation in [-1, 1] that the seed decides is
//                  added, and a tenth of that which seed and number decide
//   TOY_GATE       path of a file: each step beyond TOY_GATE_AT (0) waits until it is there
//
// The ledger: with TOY_LEDGER set, the file <folder>/<epoch>-<rank>-<pid> gets one line an act,
// each by one write(2), times in CLOCK_BOOTTIME nanoseconds:
//   spawn RUN K EPOCH RANK PID TIME       the program has started
//   step RUN K EPOCH RANK SEQ STEP VALUE TIME   the line SEQ is in the event file with VALUE
//   line RUN K EPOCH RANK SEQ TYPE TIME   so is any other line
//   ckpt RUN EPOCH STEP TIME              a checkpoint has its final name
//   beat TIME                             alive, every 20 ms, by a thread of its own
//   end CODE TIME                         about to `_exit`
// A life is the interval from `spawn` to the last entry. VALUE is ToyValue(epoch, step) in 17
// digits, so that a checker can compute it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/events/exit_record.h"
#include "common/events/lease_page.h"
#include "common/events/line.h"

namespace switchyard {
namespace {

volatile sig_atomic_t g_terminated = 0;

class Settings {
 public:
  explicit Settings(const std::string& run_id) {
    const char* plans = std::getenv("TOY_PLANS");
    if (plans == nullptr) return;
    for (const std::string& name : {std::string("all"), run_id}) Read(StrCat(plans, "/", name));
  }
  std::string Text(const char* name, const char* otherwise) const {
    const auto it = plan_.find(name);
    if (it != plan_.end()) return it->second;
    const char* variable = std::getenv(name);
    return variable != nullptr ? variable : otherwise;
  }
  int64_t Get(const char* name, int64_t otherwise) const {
    return ParseInt64(Text(name, "")).value_or(otherwise);
  }

 private:
  void Read(const std::string& path) {
    const Result<std::string> text = ReadFile(path, 1 << 16);
    if (!text.ok()) return;
    for (const std::string& line : StrSplit(*text, '\n')) {
      const size_t equals = line.find('=');
      if (equals != std::string::npos) plan_[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  std::map<std::string, std::string> plan_;
};

// The value of a string member in our own attempt.json.
std::string Member(const std::string& json, const std::string& name) {
  const std::string start = StrCat("\"", name, "\":\"");
  const size_t at = json.find(start);
  if (at == std::string::npos) return "";
  const size_t from = at + start.size();
  return json.substr(from, json.find('"', from) - from);
}
uint64_t NumberMember(const std::string& json, const std::string& name) {
  const std::string start = StrCat("\"", name, "\":");
  const size_t at = json.find(start);
  return at == std::string::npos ? 0 : std::strtoull(json.c_str() + at + start.size(), nullptr, 10);
}

// 0: not known.
int64_t ParentOf(pid_t pid) {
  const Result<std::string> stat =
      ReadFile(StrCat("/proc/", static_cast<int64_t>(pid), "/stat"), 4096);
  const size_t name_end = stat.ok() ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = StrSplit(stat->substr(name_end + 2), ' ');
  return fields.size() > 1 ? ParseInt64(fields[1]).value_or(0) : 0;
}

// A number of a JSON document by the first member of that name; 0 when there is none.
double RealMember(const std::string& json, const std::string& name) {
  const size_t at = json.find(StrCat("\"", name, "\":"));
  return at == std::string::npos ? 0 : std::strtod(json.c_str() + at + name.size() + 3, nullptr);
}

// The step that a fork goes on from; 0: the run is none.
int64_t ForkStep(const std::string& spec) {
  const size_t init = spec.find("\"init\":");
  if (init == std::string::npos || spec.find("RESTORE_ALL", init) == std::string::npos) return 0;
  return ParseInt64(Member(spec.substr(init), "step")).value_or(0);
}

// What a checker expects at (epoch, step): falls with the step, differs by attempt.
double ToyValue(uint64_t epoch, uint64_t step) {
  return 5.0 / static_cast<double>(step) + static_cast<double>(epoch % 1000) * 1e-6;
}

class Ledger {
 public:
  Ledger(const std::string& folder, const std::string& attempt) {
    if (folder.empty()) return;
    const std::string path = StrCat(folder, "/", attempt, "-", static_cast<int64_t>(getpid()));
    fd_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    std::thread([this] {
      while (true) {
        Write("beat");
        usleep(20'000);
      }
    }).detach();
  }
  // With the time and a newline behind it.
  void Write(const std::string& text) const {
    if (!fd_.is_valid()) return;
    const std::string line = StrCat(text, " ", BoottimeNanoseconds(), "\n");
    (void)!write(fd_.get(), line.data(), line.size());
  }

 private:
  UniqueFd fd_;
};

class Toy {
 public:
  Toy(std::string directory, std::string attempt_json)
      : directory_(std::move(directory)),
        json_(std::move(attempt_json)),
        run_(Member(json_, "run_id")),
        epoch_(ParseUint64(Member(json_, "epoch")).value_or(0)),
        rank_(static_cast<uint32_t>(NumberMember(json_, "rank"))),
        settings_(run_),
        who_(StrCat(run_, " ", NumberMember(json_, "ordinal"), " ", epoch_, " ", rank_)),
        ledger_(settings_.Text("TOY_LEDGER", ""), StrCat(epoch_, "-", rank_)) {}

  [[noreturn]] void Run() {
    ledger_.Write(StrCat("spawn ", who_, " ", static_cast<int64_t>(getpid())));
    Leave(Work());
  }

 private:
  [[noreturn]] void Leave(int code) const {
    ledger_.Write(StrCat("end ", code));
    _exit(code);
  }

  bool Put(const std::string& line) const { return WriteAll(file_.get(), line, "events").ok(); }
  bool Other(const std::string& type, const std::string& members) {
    std::string line;
    events::AppendOtherLine(++seq_, type, members, &line);
    if (!Put(line)) return false;
    ledger_.Write(StrCat("line ", who_, " ", seq_, " ", type));
    return true;
  }

  double ValueAt(uint64_t step) const {
    if (!field_.has_value()) return ToyValue(epoch_, step);
    const std::string limit = settings_.Text("TOY_NAN_ABOVE", "");
    if (!limit.empty() && *field_ > std::strtod(limit.c_str(), nullptr) &&
        static_cast<int64_t>(step) >= settings_.Get("TOY_NAN_FROM", 1)) {
      return std::nan("");
    }
    return *field_ + 5.0 / static_cast<double>(step);
  }

  void ReadSeries() {
    const std::string text = settings_.Text("TOY_SERIES", "");
    if (text.empty()) return;
    for (const std::string& entry : StrSplit(text, ';')) {
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) continue;
      std::vector<double>& listed = series_[entry.substr(0, equals)];
      for (const std::string& value : StrSplit(entry.substr(equals + 1), ',')) {
        listed.push_back(std::strtod(value.c_str(), nullptr));
      }
    }
  }

  double RealSetting(const char* name) const {
    return ParseDouble(settings_.Text(name, "0")).value_or(0);
  }

  bool PutStep(uint64_t step, uint64_t start_ns) {
    const double value = ValueAt(step);
    std::vector<events::Scalar> values = {{"train/loss", value},
                                          {"train/tokens", static_cast<double>(step) * 256}};
    for (const auto& [name, listed] : series_) {
      if (step <= listed.size()) values.push_back({name, listed[step - 1]});
    }
    std::string line;
    events::AppendScalarLine(++seq_, step, (BoottimeNanoseconds() - start_ns) / 1'000'000, values,
                             &line);
    if (static_cast<int64_t>(step) == settings_.Get("TOY_CORRUPT_AT", 0)) line[10] ^= 1;
    if (!Put(line)) return false;
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.17g", value);
    ledger_.Write(StrCat("step ", who_, " ", seq_, " ", step, " ", digits));
    return true;
  }

  bool PutCheckpoint(uint64_t step) {
    const std::string root = Member(json_, "checkpoint_dir");
    const std::string name = StrCat(epoch_, "-", step);
    const std::string aside = StrCat(root, "/.tmp-", name);
    if (!MakeDirectories(aside).ok() ||
        !WriteFileAtomically(aside + "/state.json", StrCat("{\"step\":", step, "}\n")).ok() ||
        rename(aside.c_str(), StrCat(root, "/", name).c_str()) != 0) {
      return false;
    }
    ledger_.Write(StrCat("ckpt ", run_, " ", epoch_, " ", step));
    return Other("ckpt", StrCat("\"step\":", step, ",\"digest\":\"sha256:", std::string(64, '0'),
                                "\",\"bytes\":1,\"path\":\"", root, "/", name, "\""));
  }

  // Does not return from most of them.
  void GoWrong(const std::string& fault) const {
    if (fault == "segv") raise(SIGSEGV);
    if (fault == "abort") abort();
    if (fault == "kill") raise(SIGKILL);
    if (fault == "kill-agent") {
      if (const int64_t agent = ParentOf(getppid()); getppid() > 1 && agent > 1) {
        kill(static_cast<pid_t>(agent), SIGKILL);
      }
      raise(SIGKILL);
    }
    if (fault == "exit0") Leave(0);
    if (fault == "exit1") Leave(1);
    if (fault == "exit70") Leave(70);
    if (fault == "hang") {
      while (true) pause();
    }
    if (fault == "hang-fenced") {
      auto reader = events::LeaseReader::Open(directory_ + "/lease.page");
      while (reader.ok()) {
        if ((*reader)->Read().IsPast(BoottimeNanoseconds())) Leave(76);
        usleep(50'000);
      }
    }
    if (fault == "oom") {
      std::vector<std::vector<char>> memory;
      while (true) memory.emplace_back(size_t{16} << 20, 'x');
    }
  }

  void WaitForGate(int64_t step) const {
    const std::string gate = settings_.Text("TOY_GATE", "");
    if (gate.empty() || step <= settings_.Get("TOY_GATE_AT", 0)) return;
    while (!FileExists(gate)) usleep(10'000);
  }

  // The watching thread of a real trainer; not with TOY_FAULT=starved.
  void Watch() const {
    std::thread([this] {
      auto reader = events::LeaseReader::Open(directory_ + "/lease.page");
      while (reader.ok()) {
        if (hung_) return;
        if ((*reader)->Read().IsPast(BoottimeNanoseconds())) Leave(76);
        usleep(250'000);
      }
    }).detach();
  }

  bool WriteRecord(int code, int64_t step, int64_t steps) {
    std::string kind = settings_.Text("TOY_RECORD", "whole");
    if (settings_.Get("TOY_NO_RECORD", 0) != 0) kind = "absent";
    if (kind == "absent") return true;
    const std::string path = directory_ + "/exit.json";
    const Status status = events::WriteExitRecord(
        path, {.code = code,
               .end_class = code == 0 ? "ok" : "user",
               .complete = code == 0 && step >= steps,
               .last_seq = seq_,
               .final_step = static_cast<uint64_t>(step),
               .epoch = kind == "foreign" ? epoch_ + 1 : epoch_,
               .rank = rank_,
               .reason = std::string(static_cast<size_t>(settings_.Get("TOY_REASON", 0)), 'r')});
    if (!status.ok()) return false;
    if (kind == "torn") return truncate(path.c_str(), 40) == 0;
    Result<std::string> text = ReadFile(path, 1 << 20);
    if (!text.ok()) return false;
    if (kind == "corrupt") (*text)[20] ^= 1;
    if (kind == "oversize") text->append(events::kExitRecordBytesMax, ' ');
    return kind == "whole" || kind == "foreign" || WriteFileAtomically(path, *text).ok();
  }

  int Work() {
    auto lease = events::LeaseReader::Open(directory_ + "/lease.page");
    if (!lease.ok()) return 64;
    const bool ignores = settings_.Get("TOY_IGNORE", 0) != 0;
    signal(
        SIGTERM, ignores ? SIG_IGN : [](int) { g_terminated = 1; });
    signal(SIGUSR2, SIG_IGN);
    const std::string fault = settings_.Text("TOY_FAULT", "");
    const int64_t fault_at = settings_.Get("TOY_AT", INT64_MAX);
    if (fault != "starved") Watch();

    file_ = UniqueFd(open((directory_ + "/events.jsonl").c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file_.is_valid()) return 70;
    if (!Other("hello", StrCat("\"run\":\"", run_, "\",\"epoch\":\"", epoch_,
                               "\",\"rank\":", uint64_t{rank_}))) {
      return 70;
    }
    int64_t step = 0;
    const std::string resume = Member(json_, "resume_checkpoint");
    if (const size_t slash = resume.rfind('/'); slash != std::string::npos) {
      const std::vector<std::string> parts = StrSplit(resume.substr(slash + 1), '-');
      step = parts.size() == 2 ? ParseInt64(parts[1]).value_or(0) : 0;
      if (!Other("resume", StrCat("\"from\":\"", parts[0], "\",\"step\":", step, ",\"digest\":\"",
                                  "sha256:", std::string(64, '0'), "\""))) {
        return 70;
      }
    }
    const uint64_t start_ns = BoottimeNanoseconds();
    for (int64_t i = 0; i < settings_.Get("TOY_PRINT", 0); ++i) {
      std::printf("line %lld\n", static_cast<long long>(i));
    }
    std::fflush(stdout);
    if (settings_.Get("TOY_CHILD", 0) != 0 && fork() == 0) {
      // A process group of its own, as a shell's job would have.
      setpgid(0, 0);
      sleep(1000);
      _exit(0);
    }

    const Result<std::string> spec = ReadFile(directory_ + "/run.json", 1 << 20);
    if (spec.ok() && resume.empty()) step = ForkStep(*spec);
    if (const std::string field = settings_.Text("TOY_FIELD", ""); !field.empty()) {
      if (!spec.ok()) return 70;
      const double number = RealMember(*spec, field);
      // The run's own seed comes last; 64-bit integers are texts in a message's JSON.
      const size_t at = spec->rfind("\"seed\":");
      if (at == std::string::npos) return 70;
      const double seed = ParseDouble(Member(spec->substr(at), "seed")).value_or(0);
      const double scale = RealSetting("TOY_SEED");
      field_ = number + scale * std::sin(12.9898 * seed) +
               0.1 * scale * std::sin(78.233 * seed + 1e4 * number);
    }
    ReadSeries();
    int code = static_cast<int>(settings_.Get("TOY_CODE", 0));
    const int64_t steps = settings_.Get("TOY_STEPS", 10);
    const int64_t printed_bytes = settings_.Get("TOY_STEP_PRINT", 0);
    const int64_t pause_ms = settings_.Get("TOY_STEP_MS", 0);
    const int64_t checkpoint_every = settings_.Get("TOY_CHECKPOINT", 0);
    while (step < steps) {
      const events::Lease& page = (*lease)->Read();
      if (page.IsPast(BoottimeNanoseconds())) return 76;
      if (!ignores && (g_terminated != 0 || page.intent != events::LeaseIntent::kRun)) {
        if (checkpoint_every > 0 && step > 0 && page.intent != events::LeaseIntent::kKill &&
            step % checkpoint_every != 0 && !PutCheckpoint(static_cast<uint64_t>(step))) {
          return 70;
        }
        code = static_cast<int>(settings_.Get("TOY_STOP_CODE", 75));
        break;
      }
      ++step;
      WaitForGate(step);
      if (!PutStep(static_cast<uint64_t>(step), start_ns)) return 70;
      if (step == settings_.Get("TOY_BACK_AT", 0) && !PutStep(1, start_ns)) return 70;
      if (checkpoint_every > 0 && step % checkpoint_every == 0 &&
          !PutCheckpoint(static_cast<uint64_t>(step))) {
        return 70;
      }
      if (printed_bytes > 0) {
        std::printf("%s\n", std::string(static_cast<size_t>(printed_bytes), 'x').c_str());
        std::fflush(stdout);
      }
      if (step == fault_at) {
        hung_ = fault == "hang";
        GoWrong(fault);
      }
      if (pause_ms > 0) usleep(static_cast<useconds_t>(pause_ms) * 1000);
    }
    if (fault_at == INT64_MAX) {
      hung_ = fault == "hang";
      GoWrong(fault);
    }
    if (const int64_t number = settings_.Get("TOY_SIGNAL", 0); number != 0) {
      kill(getpid(), static_cast<int>(number));
    }
    if (!Other("end", StrCat("\"code\":", code))) return 70;
    if (settings_.Get("TOY_TORN", 0) != 0 && !Put("{\"v\":1,\"seq\":")) return 70;
    if ((*lease)->Read().IsPast(BoottimeNanoseconds())) return 76;
    if (!WriteRecord(code, step, steps)) return 70;
    const std::string after = settings_.Text("TOY_AFTER", "none");
    hung_ = after == "hang";
    GoWrong(after);
    return code;
  }

  const std::string directory_;
  const std::string json_;
  const std::string run_;
  const uint64_t epoch_;
  const uint32_t rank_;
  const Settings settings_;
  const std::string who_;
  const Ledger ledger_;
  UniqueFd file_;
  std::optional<double> field_;
  std::map<std::string, std::vector<double>> series_;
  uint64_t seq_ = 0;
  std::atomic<bool> hung_ = false;
};

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;
  if (argc != 3 || std::string_view(argv[1]) != "--attempt-dir") return 64;
  const Result<std::string> attempt = ReadFile(std::string(argv[2]) + "/attempt.json", 1 << 20);
  if (!attempt.ok()) return 64;
  // On the heap and never destroyed: its threads outlive main's frame.
  (new Toy(argv[2], *attempt))->Run();
}
