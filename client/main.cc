#include <cstdlib>
#include <string>
#include <vector>

#include "client/cli.h"

int main(int argc, char** argv) {
  return switchyard::client::RunCli(std::vector<std::string>(argv + 1, argv + argc),
                                    switchyard::client::ProcessConsole(),
                                    [](const char* name) { return std::getenv(name); });
}
