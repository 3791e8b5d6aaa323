#include "worker/data/glob.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/testing.h"

namespace switchyard::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One component against stars, question marks and brackets.
TEST(MatchesComponent, KnowsStarsMarksAndBrackets) {
  EXPECT_TRUE(MatchesComponent("*", "a.txt"));
  EXPECT_TRUE(MatchesComponent("*.txt", "a.txt"));
  EXPECT_FALSE(MatchesComponent("*.txt", "a.txt.gz"));
  EXPECT_TRUE(MatchesComponent("a?c", "abc"));
  EXPECT_FALSE(MatchesComponent("a?c", "ac"));
  EXPECT_TRUE(MatchesComponent("[a-c]x", "bx"));
  EXPECT_FALSE(MatchesComponent("[!a-c]x", "bx"));
  EXPECT_TRUE(MatchesComponent("[]]", "]"));
  EXPECT_TRUE(MatchesComponent("[x", "[x"));
  EXPECT_TRUE(MatchesComponent("a*b*c", "a-b-b-c"));
  EXPECT_FALSE(MatchesComponent("", "a"));
}

// Hidden names need a pattern with a dot: a `.git` folder is no corpus.
TEST(MatchesComponent, LeavesHiddenNamesToPatternsWithADot) {
  EXPECT_FALSE(MatchesComponent("*", ".hidden"));
  EXPECT_FALSE(MatchesComponent("?hidden", ".hidden"));
  EXPECT_TRUE(MatchesComponent(".*", ".hidden"));
}

// A pattern made to blow up a recursive matcher takes no time.
TEST(MatchesComponent, StaysFastOnManyStars) {
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesComponent(pattern + "b", std::string(255, 'a')));
}

class GlobTest : public ::testing::Test {
 protected:
  std::vector<std::string> Expand(std::string_view pattern) {
    auto matches = ExpandGlob(folder_.Path(pattern));
    EXPECT_TRUE(matches.ok());
    std::vector<std::string> names;
    for (const std::string& path : matches->paths) {
      names.push_back(path.substr(folder_.path().size() + 1));
    }
    return names;
  }
  TempFolder folder_;
};

// `**` crosses any number of folders, none included, and results come in byte order.
TEST_F(GlobTest, CrossesFoldersAndSortsByBytes) {
  for (const char* name : {"a.txt", "B.txt", "d/a.txt", "d/e/f/a.txt", "d/e/b.md", ".h/a.txt"}) {
    folder_.Write(name, "x");
  }
  EXPECT_THAT(Expand("**/*.txt"), ElementsAre("B.txt", "a.txt", "d/a.txt", "d/e/f/a.txt"));
  EXPECT_THAT(Expand("d/**/a.txt"), ElementsAre("d/a.txt", "d/e/f/a.txt"));
  EXPECT_THAT(Expand("**/**/b.md"), ElementsAre("d/e/b.md"));
  EXPECT_THAT(Expand("d/e/**"), ElementsAre("d/e/b.md", "d/e/f", "d/e/f/a.txt"));
  EXPECT_THAT(Expand("*/e/?.md"), ElementsAre("d/e/b.md"));
  EXPECT_THAT(Expand("none/*"), IsEmpty());
}

// A link to a folder above ends no walk in a loop; links to files match, and a named link is
// entered.
TEST_F(GlobTest, DoesNotWalkThroughLinkedFolders) {
  folder_.Write("d/a.txt", "x");
  ASSERT_EQ(symlink("..", folder_.Path("d/up").c_str()), 0);
  ASSERT_EQ(symlink("a.txt", folder_.Path("d/link.txt").c_str()), 0);
  EXPECT_THAT(Expand("**/*.txt"), ElementsAre("d/a.txt", "d/link.txt"));
  EXPECT_THAT(Expand("d/up/d/*.txt"), ElementsAre("d/up/d/a.txt", "d/up/d/link.txt"));
}

}  // namespace
}  // namespace switchyard::data
