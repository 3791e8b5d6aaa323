#include "client/trainer_process.h"

#include <chrono>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Result<TrainerEnd> RunShell(const std::string& script, milliseconds silence,
                            const std::function<bool(std::string_view)>& on_line) {
  return RunTrainerProcess("/bin/sh", {"-c", script}, "/dev/null", on_line, silence);
}

// Lines come as they are written, and the end with its status.
TEST(TrainerProcess, HandsOutLinesAndTheEnd) {
  std::vector<std::string> lines;
  const auto end = RunShell("echo one; echo two; printf cut; exit 75", milliseconds(10'000),
                            [&](std::string_view line) {
                              lines.emplace_back(line);
                              return true;
                            });
  ASSERT_TRUE(end.ok()) << end.status().ToString();
  EXPECT_EQ(end->exit_code, 75);
  EXPECT_THAT(lines, ::testing::ElementsAre("one", "two"));
}

// Kind 12: a trainer that hangs is not waited for without end.
TEST(TrainerProcess, GivesUpOnASilentTrainer) {
  const auto start = std::chrono::steady_clock::now();
  const auto end =
      RunShell("echo one; exec sleep 60", milliseconds(300), [](std::string_view) { return true; });
  EXPECT_EQ(end.status().code(), Code::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// Kind 15: a line without an end does not fill the memory.
TEST(TrainerProcess, GivesUpOnAnEndlessLine) {
  const auto end =
      RunShell("exec cat /dev/zero", milliseconds(10'000), [](std::string_view) { return true; });
  EXPECT_EQ(end.status().code(), Code::kDataLoss);
  EXPECT_THAT(end.status().message(), HasSubstr("2097152 bytes"));
}

// At the first no it is killed.
TEST(TrainerProcess, KillsATrainerOnRequest) {
  const auto end = RunShell("echo one; exec sleep 60", milliseconds(30'000),
                            [](std::string_view) { return false; });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->signal, SIGKILL);
}

}  // namespace
}  // namespace switchyard::client
