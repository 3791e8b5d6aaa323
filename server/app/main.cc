#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>
#include <string>

#include "common/base/strings.h"
#include "common/base/version.h"
#include "server/app/app.h"
#include "server/app/config.h"

namespace {

// Flags over the file over the defaults.
switchyard::Result<switchyard::app::Config> MakeConfig(
    const std::string& file, const switchyard::app::Config& flags,
    const std::map<std::string, std::string>& leases) {
  switchyard::app::Config config;
  if (!file.empty()) {
    SWITCHYARD_RETURN_IF_ERROR(switchyard::app::ReadConfigFile(file, &config));
  }
  if (!flags.data_dir.empty()) config.data_dir = flags.data_dir;
  if (!flags.socket.empty()) config.socket = flags.socket;
  if (!flags.metrics.empty()) config.metrics = flags.metrics;
  if (flags.insecure_loopback.has_value()) config.insecure_loopback = flags.insecure_loopback;
  for (const auto& [key, seconds] : leases) {
    if (seconds.empty()) continue;
    SWITCHYARD_RETURN_IF_ERROR(switchyard::app::SetConfig(key, seconds, &config));
  }
  SWITCHYARD_RETURN_IF_ERROR(switchyard::app::FinishConfig(&config));
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Switchyard coordinator: schedules runs, records them, answers queries.");
  program.set_version_flag("--version", std::string(switchyard::kVersion));
  program.require_subcommand(1);
  std::string file;
  switchyard::app::Config flags;
  flags.metrics.clear();
  std::string loopback;
  std::map<std::string, std::string> leases;  // by key of the file
  CLI::App* serve = program.add_subcommand("serve", "Run until SIGTERM.");
  CLI::App* check = program.add_subcommand("check", "Check settings and the data directory.");
  CLI::App* health = program.add_subcommand("health", "Ask a running coordinator how it is.");
  for (CLI::App* command : {serve, check, health}) {
    command->add_option("--config", file, "YAML file with the same keys as these flags");
    command->add_option("--data-dir", flags.data_dir, "Folder of the database");
    command->add_option("--socket", flags.socket,
                        "Unix socket to listen on (default: switchyard.sock in the folder)");
    command->add_option("--metrics", flags.metrics,
                        "HOST:PORT of /metrics, loopback only (default 127.0.0.1:9464)");
    command
        ->add_option("--insecure-loopback", loopback,
                     "Listen on this port of 127.0.0.1 too; any local user can connect")
        ->expected(0, 1)
        ->default_str("7443");
    command->add_option("--resilient-lease", leases["resilient_lease"],
                        "Seconds that a `resilient` trainer goes on without contact (86400)");
    command->add_option("--resilient-replace", leases["resilient_replace"],
                        "Seconds without contact after which its run starts elsewhere (600)");
    command->add_option("--exclusive-lease", leases["exclusive_lease"],
                        "Seconds that an `exclusive` trainer goes on without contact (600)");
    command->add_option("--exclusive-replace", leases["exclusive_replace"],
                        "Seconds without contact after which its run starts elsewhere (630)");
  }
  CLI11_PARSE(program, argc, argv);

  const CLI::App* command = program.get_subcommands().front();
  if (command->count("--insecure-loopback") > 0) {
    if (loopback.empty()) loopback = "7443";
    const auto port = switchyard::ParseInt64(loopback);
    if (!port.has_value() || *port < 0 || *port > 65535) {
      std::fprintf(stderr, "switchyard-coordinator: --insecure-loopback '%s' is not a port\n",
                   loopback.c_str());
      return 1;
    }
    flags.insecure_loopback = static_cast<int>(*port);
  }
  const auto config = MakeConfig(file, flags, leases);
  switchyard::Status status = config.status();
  if (status.ok()) {
    if (command == serve) status = switchyard::app::Serve(*config);
    if (command == check) status = switchyard::app::Check(*config);
    if (command == health) status = switchyard::app::AskHealth(config->socket);
  }
  if (status.ok()) {
    if (command != serve) std::puts("ok");
    return 0;
  }
  std::fprintf(stderr, "switchyard-coordinator: %s\n", status.message().c_str());
  return status.code() == switchyard::Code::kInvalidArgument ? 1 : 3;
}
