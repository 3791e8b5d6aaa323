#include "tests/unit/client/invoke.h"

#include <cstdlib>
#include <sstream>

#include <gtest/gtest.h>

#include "client/cli.h"
#include "common/base/file.h"

namespace switchyard::client {

Ran Invoke(const std::vector<std::string>& arguments, bool is_terminal,
           const std::map<std::string, std::string>& environment) {
  std::ostringstream out;
  std::ostringstream err;
  const Console console{.out = &out,
                        .err = &err,
                        .out_is_terminal = is_terminal,
                        .size = [] { return TerminalSize{.columns = 120, .rows = 30}; },
                        .sleep = [](int) {}};
  const auto getenv = [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
  Ran ran;
  ran.code = RunCli(arguments, console, getenv);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

Ran RunOn(const FakeServer& server, std::vector<std::string> arguments, bool is_terminal,
          const std::map<std::string, std::string>& environment) {
  arguments.insert(arguments.end(), {"--server", server.address()});
  return Invoke(arguments, is_terminal, environment);
}

TemporaryFolder::TemporaryFolder() {
  path_ = "/tmp/switchyard-client-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
}

TemporaryFolder::~TemporaryFolder() { EXPECT_TRUE(RemoveTree(path_).ok()); }

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  EXPECT_TRUE(WriteFileAtomically(path_ + "/" + name, text).ok());
  return path_ + "/" + name;
}

std::string TemporaryFolder::Read(const std::string& name) const {
  const Result<std::string> text = ReadFile(path_ + "/" + name);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : "";
}

}  // namespace switchyard::client
