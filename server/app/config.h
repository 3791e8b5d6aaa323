#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::app {

// Settings of the coordinator; the keys of its configuration file are the names of the flags.
struct Config {
  std::string data_dir;  // default ${XDG_STATE_HOME:-~/.local/state}/switchyard/coordinator
  std::string socket;    // default switchyard.sock in the data directory
  std::optional<int> insecure_loopback;  // port; 0: a free one
  std::string metrics = "127.0.0.1:9464";
  scheduler::LeasePolicy leases;
};

// Lays the keys of a YAML file over `config`. kInvalidArgument names the key.
Status ReadConfigFile(const std::string& path, Config* config);
// Lays one setting, by its key, over `config`. kInvalidArgument: no such key, or no such value.
Status SetConfig(const std::string& key, const std::string& value, Config* config);
// Fills what was not said. kInvalidArgument: a setting that cannot work.
Status FinishConfig(Config* config);

}  // namespace switchyard::app
