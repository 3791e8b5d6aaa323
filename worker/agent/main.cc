#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include <yaml-cpp/yaml.h>
#include <CLI/CLI.hpp>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "worker/agent/agent.h"
#include "worker/agent/hardware.h"
#include "worker/agent/server_address.h"

namespace switchyard::agent {
namespace {

constexpr int kExitUsage = 64;
constexpr int kExitInternal = 70;
constexpr int kExitUnavailable = 69;

struct Flags {
  std::string config;
  std::string server;
  std::string state_dir;
  std::string pool = "default";
  std::string checkpoint_dir;
  std::string trainer;
  std::string metrics = "127.0.0.1:9465";
  std::vector<std::string> labels;
  uint32_t slots = 0;
  uint32_t cores_per_slot = 1;
  bool pin_cores = false;
  std::vector<std::string> drain_on = {"USR1"};
  uint32_t drain_grace = 60;
};

std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string own(path, size > 0 ? static_cast<size_t>(size) : 0);
  return std::filesystem::path(own).parent_path().string();
}

void AddFlags(CLI::App& app, Flags* flags) {
  app.add_option("--config", flags->config, "YAML file; its keys are these flags with _ for -");
  app.add_option("--server", flags->server,
                 "coordinator: unix:PATH or HOST:PORT (default: $SWITCHYARD_SERVER, the default "
                 "socket, /run/switchyard/switchyard.sock)");
  app.add_option("--state-dir", flags->state_dir, "identity, records and attempt directories");
  app.add_option("--slots", flags->slots,
                 "trainers at a time (default: one per GPU, else one per cores-per-slot cores)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--cores-per-slot", flags->cores_per_slot, "threads of a trainer per slot")
      ->check(CLI::Range(1, 4096));
  app.add_option("--pool", flags->pool, "pool that this worker joins");
  app.add_option("--labels", flags->labels, "labels for placement, comma-separated")
      ->delimiter(',');
  app.add_option("--checkpoint-dir", flags->checkpoint_dir,
                 "where trainers keep checkpoints (default: checkpoints in the state directory)");
  app.add_option("--trainer", flags->trainer, "trainer program (default: the one beside this)");
  app.add_option("--metrics", flags->metrics,
                 "HOST:PORT of /metrics on loopback, port 0 takes a free one, empty: none");
  app.add_flag("--pin-cores", flags->pin_cores,
               "bind each trainer to the cores of its slots, where there are enough");
  app.add_option("--drain-on", flags->drain_on,
                 "signals that drain the worker and end it (USR1, TERM; default USR1); otherwise "
                 "TERM ends it and leaves its trainers running")
      ->delimiter(',')
      ->check(CLI::IsMember({"USR1", "TERM"}));
  app.add_option("--drain-grace", flags->drain_grace,
                 "seconds that attempts have for a checkpoint when the worker is drained")
      ->check(CLI::Range(1, 86400));
}

// Fills flags that the command line leaves out from the file. Empty, or what is wrong.
std::string ReadConfig(const CLI::App& app, Flags* flags) {
  try {
    const YAML::Node root = YAML::LoadFile(flags->config);
    if (!root.IsMap()) return StrCat(flags->config, ": expected a map of settings");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      std::string flag = "--" + key;
      std::replace(flag.begin(), flag.end(), '_', '-');
      const CLI::Option* option = app.get_option_no_throw(flag);
      const YAML::Mark mark = entry.first.Mark();
      const std::string where = StrCat(flags->config, ":", mark.line + 1, ":", mark.column + 1);
      if (option == nullptr || key == "config") {
        return StrCat(where, ": ", EscapeForTerminal(key), " is not a setting of the worker");
      }
      if (option->count() > 0) continue;
      const YAML::Node& value = entry.second;
      if (key == "slots") flags->slots = value.as<uint32_t>();
      if (key == "cores_per_slot") flags->cores_per_slot = value.as<uint32_t>();
      if (key == "pin_cores") flags->pin_cores = value.as<bool>();
      if (key == "drain_on") flags->drain_on = value.as<std::vector<std::string>>();
      if (key == "drain_grace") flags->drain_grace = value.as<uint32_t>();
      if (key == "server") flags->server = value.as<std::string>();
      if (key == "state_dir") flags->state_dir = value.as<std::string>();
      if (key == "pool") flags->pool = value.as<std::string>();
      if (key == "checkpoint_dir") flags->checkpoint_dir = value.as<std::string>();
      if (key == "trainer") flags->trainer = value.as<std::string>();
      if (key == "metrics") flags->metrics = value.as<std::string>();
      if (key == "labels") flags->labels = value.as<std::vector<std::string>>();
    }
  } catch (const YAML::Exception& error) {
    return StrCat(flags->config, ": ", error.what());
  }
  return "";
}

int Run(const Flags& flags, char** argv) {
  const Hardware hardware = DetectHardware();
  AgentOptions options{.host = hardware.host,
                       .pool = flags.pool,
                       .labels = flags.labels,
                       .cores_per_slot = std::max<uint32_t>(flags.cores_per_slot, 1),
                       .metrics = flags.metrics,
                       .drain_grace_ms = flags.drain_grace * 1000};
  for (const std::string& name : flags.drain_on) {
    if (name != "USR1" && name != "TERM") {
      LogError("drain_on: ", EscapeForTerminal(name), " is neither USR1 nor TERM");
      return kExitUsage;
    }
    options.drains_on_term |= name == "TERM";
  }
  const Result<std::string> server = ResolveServer(flags.server);
  if (!server.ok()) {
    LogError(server.status().message());
    return kExitUnavailable;
  }
  options.server = *server;
  const std::string state_dir =
      flags.state_dir.empty() ? DefaultStateRoot() + "/worker" : flags.state_dir;
  if (const Status status = MakeDirectories(state_dir, 0700); !status.ok()) {
    LogError(status.message());
    return kExitUsage;
  }
  // Trainers find their folder from any working directory.
  options.state_dir = std::filesystem::canonical(state_dir).string();
  options.checkpoint_dir =
      flags.checkpoint_dir.empty()
          ? options.state_dir + "/checkpoints"
          : std::filesystem::absolute(flags.checkpoint_dir).lexically_normal().string();
  options.trainer = flags.trainer.empty()
                        ? OwnFolder() + "/switchyard-trainer"
                        : std::filesystem::absolute(flags.trainer).lexically_normal().string();
  if (access(options.trainer.c_str(), X_OK) != 0) {
    LogWarning("the trainer ", options.trainer, " cannot be executed: ", std::strerror(errno));
  }
  const bool has_gpus = !hardware.gpus.empty();
  const size_t detected = has_gpus ? hardware.gpus.size()
                                   : std::max<uint32_t>(1, hardware.cores / options.cores_per_slot);
  options.slots.resize(flags.slots > 0 ? flags.slots : detected);
  for (size_t i = 0; has_gpus && i < options.slots.size(); ++i) {
    options.slots[i] = {.is_gpu = true, .uuid = hardware.gpus[i % hardware.gpus.size()].uuid};
  }
  if (flags.pin_cores) {
    options.cores = UsableCores();
    const size_t needed = options.slots.size() * options.cores_per_slot;
    if (options.cores.size() < needed) {
      LogWarning("trainers are not bound to cores: ", needed, " are needed, there are ",
                 options.cores.size());
      options.cores.clear();
    }
  }

  const Result<UniqueFd> lock = LockFile(options.state_dir + "/LOCK");
  if (!lock.ok()) {
    LogError("another agent uses this state directory: ", lock.status().message());
    return kExitUnavailable;
  }
  // An earlier life of this process leaves its dead fork server as a child.
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
  // Before any thread: the fork server must have one only.
  Result<std::unique_ptr<ForkServer>> fork_server = ForkServer::Start(options.state_dir);
  if (!fork_server.ok()) {
    LogError(fork_server.status().message());
    return kExitInternal;
  }
  signal(SIGPIPE, SIG_IGN);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, nullptr);

  Agent::Outcome outcome = Agent::Outcome::kFailed;
  {
    Result<std::unique_ptr<Agent>> agent =
        Agent::Start(std::move(options), *std::move(fork_server));
    if (!agent.ok()) {
      LogError(agent.status().message());
      return kExitInternal;
    }
    outcome = (*agent)->Run();
  }
  switch (outcome) {
    case Agent::Outcome::kStopped:
      return 0;
    case Agent::Outcome::kForkServerLost:
      // A process with threads must not fork: this one begins again and adopts its trainers.
      execv("/proc/self/exe", argv);
      LogError("cannot execute the agent anew: ", std::strerror(errno));
      return kExitInternal;
    case Agent::Outcome::kFailed:
      return kExitInternal;
  }
  return kExitInternal;
}

int Main(int argc, char** argv) {
  CLI::App app{"Runs trainers on this host for a Switchyard coordinator."};
  app.set_version_flag("--version", StrCat("switchyard-worker ", kVersion, " (", kCommit, ")"));
  Flags flags;
  AddFlags(app, &flags);
  CLI::App* run = app.add_subcommand("run", "run the agent (the default)");
  AddFlags(*run, &flags);
  CLI::App* hwdetect = app.add_subcommand("hwdetect", "print what this host offers, as JSON");
  app.require_subcommand(0, 1);
  CLI11_PARSE(app, argc, argv);
  if (hwdetect->parsed()) {
    std::printf("%s\n", ToJson(DetectHardware()).c_str());
    return 0;
  }
  if (!flags.config.empty()) {
    const std::string fault = ReadConfig(run->parsed() ? *run : app, &flags);
    if (!fault.empty()) {
      LogError(fault);
      return kExitUsage;
    }
  }
  return Run(flags, argv);
}

}  // namespace
}  // namespace switchyard::agent

int main(int argc, char** argv) { return switchyard::agent::Main(argc, argv); }
