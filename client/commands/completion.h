#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard::client {

// A verb as a shell needs to know it.
struct VerbWords {
  std::string name;
  std::string summary;
  std::vector<std::string> options;   // "--set", "-f"
  std::vector<std::string> subverbs;  // "ls" of `worker ls`
  bool takes_file = false;            // else: names of sweeps, asked from `switchyard ls`
  bool takes_name = false;
};

// The script that `completion SHELL` prints; empty for a shell that is not bash, zsh or fish.
std::string CompletionScript(std::string_view shell, const std::vector<VerbWords>& verbs);

}  // namespace switchyard::client
