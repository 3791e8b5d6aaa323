#include "server/app/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/file.h"

namespace switchyard::app {
namespace {

Status Finish(const std::vector<std::pair<std::string, std::string>>& settings, Config* config) {
  config->data_dir = "/tmp";
  for (const auto& [key, value] : settings) {
    SWITCHYARD_RETURN_IF_ERROR(SetConfig(key, value, config));
  }
  return FinishConfig(config);
}

TEST(Config, LeasesAreSetInSeconds) {
  Config config;
  ASSERT_TRUE(Finish({{"exclusive_lease", "10"},
                      {"exclusive_replace", "23"},
                      {"resilient_lease", "3600"},
                      {"resilient_replace", "20"}},
                     &config)
                  .ok());
  EXPECT_EQ(config.leases.exclusive.lease, Milliseconds(10000));
  EXPECT_EQ(config.leases.exclusive.replace, Milliseconds(23000));
  EXPECT_EQ(config.leases.resilient.lease, Milliseconds(3600000));
  EXPECT_EQ(config.leases.resilient.replace, Milliseconds(20000));
}

TEST(Config, TheDefaultsAreSafe) {
  Config config;
  EXPECT_TRUE(Finish({}, &config).ok());
  EXPECT_GE(config.leases.exclusive.replace,
            scheduler::SafeReplaceAfter(config.leases.exclusive.lease));
}

// Protocol 5: (10 + 0.25) * 1.01 / 0.99 + 10 * 1.01 + 2 = 22.557... s.
TEST(Config, AnExclusiveRunIsNeverReplacedBeforeItsTrainerHasEnded) {
  EXPECT_EQ(scheduler::SafeReplaceAfter(Milliseconds(10000)), Milliseconds(22558));
  Config config;
  const Status status = Finish({{"exclusive_lease", "10"}, {"exclusive_replace", "22"}}, &config);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("exclusive_replace of 22 s is too short: at least 23 s"),
            std::string::npos)
      << status.message();
}

TEST(Config, LeasesShorterThanContactIsMade) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"resilient_lease", "9"}, {"resilient_replace", "19"}, {"exclusive_lease", "0"}}) {
    Config config;
    const Status status = Finish({{key, value}}, &config);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
}

TEST(Config, NoSecondsAndNoSetting) {
  Config config;
  for (const char* value : {"", "ten", "-1", "1.5", "2592001"}) {
    EXPECT_EQ(SetConfig("resilient_lease", value, &config).code(), Code::kInvalidArgument) << value;
  }
  EXPECT_NE(SetConfig("exclusive_leas", "10", &config).message().find("exclusive_lease"),
            std::string::npos);
}

TEST(Config, AFileIsReadAndItsLineNamed) {
  Config config;
  const std::string path = ::testing::TempDir() + "config." + std::to_string(getpid()) + ".yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "socket: /tmp/s\nexclusive_lease: 20\n").ok());
  ASSERT_TRUE(ReadConfigFile(path, &config).ok());
  EXPECT_EQ(config.leases.exclusive.lease, Milliseconds(20000));
  ASSERT_TRUE(WriteFileAtomically(path, "socket: /tmp/s\nexclusive_lease: soon\n").ok());
  const Status status = ReadConfigFile(path, &config);
  EXPECT_NE(status.message().find(path + ":2: exclusive_lease 'soon'"), std::string::npos)
      << status.message();
  unlink(path.c_str());
}

}  // namespace
}  // namespace switchyard::app
