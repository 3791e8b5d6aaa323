#include "worker/agent/log_tail.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace switchyard::agent {
namespace {

class LogTailTest : public ::testing::Test {
 protected:
  LogTailTest() {
    char name[] = "/tmp/switchyard-log-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/stdout.log";
  }
  ~LogTailTest() override { std::filesystem::remove_all(directory_); }

  void Append(const std::string& text) const {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }

  std::string directory_;
  std::string path_;
};

// Raw bytes, NUL and invalid UTF-8 among them, by offset.
TEST_F(LogTailTest, ReadsByOffset) {
  LogTail tail(path_);
  EXPECT_FALSE(tail.Next());
  const std::string bytes("a\0\xff\n", 4);
  Append(bytes);
  const auto chunk = tail.Next();
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->offset, 0u);
  EXPECT_EQ(chunk->data, bytes);
  tail.Acknowledge(4);
  EXPECT_TRUE(tail.is_done());
  Append("b");
  EXPECT_EQ(tail.Next()->offset, 4u);
}

// Of a long stream head and tail are kept: the disk is freed and the reader jumps.
TEST_F(LogTailTest, KeepsHeadAndTailOfALongStream) {
  const std::string mebibyte(1 << 20, 'x');
  for (int i = 0; i < 40; ++i) Append(mebibyte);
  LogTail tail(path_);
  uint64_t sent = 0;
  uint64_t jumps = 0;
  uint64_t offset = 0;
  while (const auto chunk = tail.Next()) {
    if (chunk->offset != offset) ++jumps;
    sent += chunk->data.size();
    offset = chunk->offset + chunk->data.size();
    tail.Acknowledge(offset);
  }
  EXPECT_EQ(jumps, 1u);
  EXPECT_EQ(offset, uint64_t{40} << 20);
  EXPECT_EQ(sent, LogTail::kHeadBytes + LogTail::kTailBytes);
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, (34 << 20));
}

// Kind 15: nobody takes the output for a long time, and the trainer goes on: the disk is freed all
// the same, and who comes later finds head and tail.
TEST_F(LogTailTest, KeepsTheDiskFreeWithoutAReader) {
  const std::string mebibyte(1 << 20, 'x');
  LogTail tail(path_);
  tail.Trim();
  struct stat info {};
  for (int i = 0; i < 80; ++i) {
    Append(mebibyte);
    tail.Trim();
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_LT(info.st_blocks * 512, (35 << 20)) << i;
  }
  EXPECT_EQ(tail.Next()->offset, 0u);
  tail.Acknowledge(LogTail::kHeadBytes);
  EXPECT_EQ(tail.Next()->offset, uint64_t{48} << 20);
}

}  // namespace
}  // namespace switchyard::agent
