#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/unit/client/fake_server.h"

namespace switchyard::client {

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

// The program in this process. Sleeps do not sleep; the environment is empty unless given.
Ran Invoke(const std::vector<std::string>& arguments, bool is_terminal = false,
           const std::map<std::string, std::string>& environment = {});

// Against a fake coordinator.
Ran RunOn(const FakeServer& server, std::vector<std::string> arguments, bool is_terminal = false,
          const std::map<std::string, std::string>& environment = {});

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file in it; returns its path.
  std::string Write(const std::string& name, const std::string& text) const;
  // The text of a file in it; fails the test when there is none.
  std::string Read(const std::string& name) const;

 private:
  std::string path_;
};

}  // namespace switchyard::client
