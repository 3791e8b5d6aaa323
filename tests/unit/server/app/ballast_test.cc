#include "server/app/ballast.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace switchyard::app {
namespace {

// The file takes blocks from the disk, gives them back at once, and is made again.
TEST(Ballast, TakesAndGivesBackRoom) {
  const std::string path = ::testing::TempDir() + "ballast." + std::to_string(getpid());
  Ballast ballast(path, 1 << 20);
  EXPECT_FALSE(ballast.is_whole());
  ASSERT_TRUE(ballast.Fill().ok());
  EXPECT_TRUE(ballast.is_whole());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20) << "allocated, not sparse";
  ballast.Free();
  EXPECT_FALSE(ballast.is_whole());
  EXPECT_NE(stat(path.c_str(), &info), 0);
  ASSERT_TRUE(ballast.Fill().ok());
  ballast.Free();
}

// No room, no ballast: and no half of it is left behind.
TEST(Ballast, LeavesNothingBehindWithoutRoom) {
  const std::string path = ::testing::TempDir() + "ballast2." + std::to_string(getpid());
  Ballast ballast(path, uint64_t{1} << 60);
  EXPECT_FALSE(ballast.Fill().ok());
  EXPECT_FALSE(ballast.is_whole());
  struct stat info {};
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

// 256 MiB, a sixteenth of a small disk, and none where none is asked for.
TEST(Ballast, FitsTheDisk) {
  EXPECT_EQ(Ballast::BytesFor(uint64_t{1} << 40), uint64_t{256} << 20);
  EXPECT_EQ(Ballast::BytesFor(uint64_t{1} << 30), uint64_t{64} << 20);
  EXPECT_TRUE(Ballast("", 0).is_whole());
}

}  // namespace
}  // namespace switchyard::app
