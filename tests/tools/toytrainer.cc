// A trainer that trains nothing: it fills an attempt directory as a real one does, and misbehaves
// on demand. Usage: PROGRAM --attempt-dir DIR
//
// Settings come from the environment, and then from the file $TOY_PLANS/<run id> (NAME=VALUE
// lines):
//   TOY_STEPS      metric lines to write (10)
//   TOY_STEP_MS    pause after each (0)
//   TOY_CODE       exit status (0); other than 0 the run is not complete
//   TOY_SIGNAL     ends by this signal after the steps, without exit.json
//   TOY_NO_RECORD  1: ends without exit.json
//   TOY_PRINT      lines to print to standard output (0)
//   TOY_IGNORE     1: takes no notice of intents and SIGTERM
//   TOY_CHILD      1: leaves a child behind
//   TOY_TORN       1: ends with half a line
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>

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
    const Result<std::string> text = ReadFile(StrCat(plans, "/", run_id), 1 << 16);
    if (!text.ok()) return;
    for (const std::string& line : StrSplit(*text, '\n')) {
      const size_t equals = line.find('=');
      if (equals != std::string::npos) plan_[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  int64_t Get(const char* name, int64_t otherwise) const {
    const auto it = plan_.find(name);
    const char* variable = std::getenv(name);
    const std::string text = it != plan_.end() ? it->second : variable != nullptr ? variable : "";
    return ParseInt64(text).value_or(otherwise);
  }

 private:
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

int Main(const std::string& directory) {
  const Result<std::string> attempt = ReadFile(directory + "/attempt.json", 1 << 20);
  if (!attempt.ok()) return 64;
  const std::string run_id = Member(*attempt, "run_id");
  const std::string epoch_text = Member(*attempt, "epoch");
  const uint64_t epoch = ParseUint64(epoch_text).value_or(0);
  const Settings settings(run_id);
  auto lease = events::LeaseReader::Open(directory + "/lease.page");
  if (!lease.ok()) return 64;
  const bool ignores = settings.Get("TOY_IGNORE", 0) != 0;
  signal(
      SIGTERM, ignores ? SIG_IGN : [](int) { g_terminated = 1; });

  const UniqueFd file(
      open((directory + "/events.jsonl").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.is_valid()) return 70;
  uint64_t seq = 0;
  const auto put = [&](const std::string& line) {
    return WriteAll(file.get(), line, "events").ok();
  };
  const auto other = [&](std::string_view type, const std::string& members) {
    std::string line;
    events::AppendOtherLine(++seq, type, members, &line);
    return put(line);
  };
  if (!other("hello",
             StrCat("\"run\":\"", run_id, "\",\"epoch\":\"", epoch_text, "\",\"rank\":0"))) {
    return 70;
  }
  const uint64_t start_ns = BoottimeNanoseconds();
  for (int64_t i = 0; i < settings.Get("TOY_PRINT", 0); ++i) {
    std::printf("line %lld\n", static_cast<long long>(i));
  }
  std::fflush(stdout);
  if (settings.Get("TOY_CHILD", 0) != 0 && fork() == 0) {
    // A process group of its own, as a shell's job would have.
    setpgid(0, 0);
    sleep(1000);
    _exit(0);
  }

  int code = static_cast<int>(settings.Get("TOY_CODE", 0));
  const int64_t steps = settings.Get("TOY_STEPS", 10);
  const int64_t pause_ms = settings.Get("TOY_STEP_MS", 0);
  int64_t step = 0;
  while (step < steps && code != 75) {
    const events::Lease& page = (*lease)->Read();
    if (page.IsPast(BoottimeNanoseconds())) _exit(76);
    if (!ignores && (g_terminated != 0 || page.intent != events::LeaseIntent::kRun)) {
      code = 75;
      break;
    }
    ++step;
    std::string line;
    const events::Scalar values[] = {{"train/loss", 5.0 / static_cast<double>(step)},
                                     {"train/tokens", static_cast<double>(step) * 256}};
    const uint64_t ms = (BoottimeNanoseconds() - start_ns) / 1'000'000;
    events::AppendScalarLine(++seq, static_cast<uint64_t>(step), ms, values, &line);
    if (!put(line)) return 70;
    if (pause_ms > 0) usleep(static_cast<useconds_t>(pause_ms) * 1000);
  }
  if (const int64_t signal_number = settings.Get("TOY_SIGNAL", 0); signal_number != 0) {
    kill(getpid(), static_cast<int>(signal_number));
  }
  if (!other("end", StrCat("\"code\":", code))) return 70;
  if (settings.Get("TOY_TORN", 0) != 0 && !put("{\"v\":1,\"seq\":")) return 70;
  if (settings.Get("TOY_NO_RECORD", 0) == 0) {
    const Status status = events::WriteExitRecord(directory + "/exit.json",
                                                  {.code = code,
                                                   .end_class = code == 0 ? "ok" : "user",
                                                   .complete = code == 0,
                                                   .last_seq = seq,
                                                   .final_step = static_cast<uint64_t>(step),
                                                   .epoch = epoch});
    if (!status.ok()) return 70;
  }
  return code;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--attempt-dir") return 64;
  return switchyard::Main(argv[2]);
}
