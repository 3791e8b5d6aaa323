#include "worker/agent/janitor.h"

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

// What is asked for is removed, and a stop leaves the rest for the next start.
TEST(Janitor, RemovesFolders) {
  char name[] = "/tmp/switchyard-janitor-XXXXXX";
  const std::string folder = mkdtemp(name);
  Janitor janitor;
  janitor.Remove(folder);
  for (int i = 0; i < 1000 && FileExists(folder); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(FileExists(folder));
  janitor.Stop();
  janitor.Stop();
}

// Kind 12: a shared file system that hangs in a deletion does not keep the agent from ending.
TEST(Janitor, AHangingDeletionHoldsUpNoStop) {
  // What the detached thread uses lives as long as the process.
  static auto* const begun = new std::promise<void>;
  static auto* const gate = new std::promise<void>;
  static auto* const ended = new std::promise<void>;
  const auto start = std::chrono::steady_clock::now();
  {
    Janitor janitor([](const std::string&) {
      begun->set_value();
      gate->get_future().wait();
      ended->set_value();
      return OkStatus();
    });
    janitor.Remove("/nowhere");
    begun->get_future().wait();
    janitor.Stop(std::chrono::milliseconds(50));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  gate->set_value();
  ended->get_future().wait();
}

}  // namespace
}  // namespace switchyard::agent
