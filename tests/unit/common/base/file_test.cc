#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/switchyard-file-test-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    folder_ = path;
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(folder_).ok()); }

  std::string folder_;
};

// The file holds the new content whole and nothing is left beside it.
TEST_F(FileTest, AtomicWriteReplacesAndLeavesNothingBehind) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, std::string("t\0wo", 4)).ok());
  EXPECT_EQ(*ReadFile(path), std::string("t\0wo", 4));
  EXPECT_THAT(*ListDirectory(folder_), ElementsAre("a"));
}

// An error names the path; a failed write leaves the old content.
TEST_F(FileTest, ErrorsNameThePath) {
  const Status missing = ReadFile(folder_ + "/none").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/none"));
  EXPECT_EQ(WriteFileAtomically(folder_ + "/no/such", "x").code(), Code::kNotFound);
  EXPECT_FALSE(ReadFile(folder_).ok());
}

// A cap protects readers of files that others write.
TEST_F(FileTest, RefusesFilesOverTheCap) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/a", "12345").ok());
  EXPECT_EQ(ReadFile(folder_ + "/a", 4).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(ReadFile(folder_ + "/a", 5).ok());
}

// Two owners of one folder are told apart; the lock goes with its holder.
TEST_F(FileTest, TheLockHasOneHolder) {
  Result<UniqueFd> first = LockFile(folder_ + "/LOCK");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(LockFile(folder_ + "/LOCK").status().code(), Code::kFailedPrecondition);
  first->Reset();
  EXPECT_TRUE(LockFile(folder_ + "/LOCK").ok());
}

// A folder is made with its parents, twice without harm; a file in the way is an error.
TEST_F(FileTest, MakesFolders) {
  EXPECT_TRUE(MakeDirectories(folder_ + "/x/y").ok());
  EXPECT_TRUE(MakeDirectories(folder_ + "/x/y").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/f", "").ok());
  EXPECT_FALSE(MakeDirectories(folder_ + "/f").ok());
}

// Removing a tree removes links, never what they point to.
TEST_F(FileTest, RemoveTreeDoesNotFollowLinks) {
  ASSERT_TRUE(MakeDirectories(folder_ + "/keep").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/keep/f", "x").ok());
  ASSERT_TRUE(MakeDirectories(folder_ + "/gone").ok());
  ASSERT_EQ(symlink((folder_ + "/keep").c_str(), (folder_ + "/gone/link").c_str()), 0);
  ASSERT_TRUE(RemoveTree(folder_ + "/gone").ok());
  EXPECT_TRUE(FileExists(folder_ + "/keep/f"));
}

}  // namespace
}  // namespace switchyard
