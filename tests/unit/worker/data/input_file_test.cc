#include "worker/data/input_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/testing.h"

namespace switchyard::data {
namespace {

using ::testing::HasSubstr;

// Members one behind the other are one stream, zero padding is none of it.
TEST(Gunzip, TakesMembersAsOneStream) {
  const std::string two = Gzip("hello ") + Gzip("") + Gzip("world");
  EXPECT_EQ(*Gunzip(two, "x"), "hello world");
  EXPECT_EQ(*Gunzip(two + std::string(512, '\0'), "x"), "hello world");
  EXPECT_EQ(*Gunzip(Gzip(""), "x"), "");
  const std::string large(3 << 20, 'q');
  EXPECT_EQ(*Gunzip(Gzip(large.substr(0, 1000) + "end"), "x"), large.substr(0, 1000) + "end");
  EXPECT_EQ(*Gunzip(Gzip(large), "x"), large);
}

// Whatever is damaged is refused by name and reason: half a corpus must not pass for a whole one.
TEST(Gunzip, RefusesDamagedStreams) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i * 7919);
  const std::string whole = Gzip(text);
  for (const size_t kept : {size_t{2}, size_t{9}, whole.size() / 2, whole.size() - 8,
                            whole.size() - 5, whole.size() - 1}) {
    const auto result = Gunzip(whole.substr(0, kept), "cut.gz");
    ASSERT_FALSE(result.ok()) << kept;
    EXPECT_EQ(result.status().code(), Code::kDataLoss);
    EXPECT_THAT(result.status().message(), HasSubstr("cut.gz: the gzip stream is cut off"));
  }
  std::string changed = whole;
  changed[whole.size() - 6] ^= 1;
  EXPECT_THAT(Gunzip(changed, "crc").status().message(), HasSubstr("incorrect data check"));
  changed = whole;
  changed[whole.size() - 2] ^= 1;
  EXPECT_THAT(Gunzip(changed, "len").status().message(), HasSubstr("incorrect length check"));
  changed = whole;
  changed[whole.size() / 2] ^= 0x10;
  EXPECT_EQ(Gunzip(changed, "bit").status().code(), Code::kDataLoss);
  EXPECT_THAT(Gunzip(whole + "garbage", "g").status().message(),
              HasSubstr("7 bytes behind the gzip stream"));
  EXPECT_THAT(Gunzip("plain text", "p").status().message(), HasSubstr("does not begin as gzip"));
  EXPECT_THAT(Gunzip("", "e").status().message(), HasSubstr("is empty"));
}

// A small file that grows without end is stopped long before memory is.
TEST(Gunzip, RefusesBombs) {
  const auto result = Gunzip(Gzip(std::string(size_t{64} << 20, 'a')), "bomb.gz");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(result.status().message(), HasSubstr("refused as a gzip bomb"));
}

// Only regular files are read; a pipe without a writer does not park the loader.
TEST(ReadInput, ReadsRegularFilesOnly) {
  const TempFolder folder;
  EXPECT_EQ(*ReadInput(folder.Write("a", "text")), "text");
  EXPECT_EQ(*ReadInput(folder.Write("b", "")), "");
  EXPECT_EQ(ReadInput(folder.path()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadInput("/dev/zero").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadInput(folder.Path("none")).status().code(), Code::kNotFound);
  ASSERT_EQ(mkfifo(folder.Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadInput(folder.Path("fifo")).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(symlink("a", folder.Path("link").c_str()), 0);
  EXPECT_EQ(*ReadInput(folder.Path("link")), "text");
  EXPECT_EQ(ReadInput(folder.Path("a"), 3).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(*ReadInput(folder.Path("a"), 4), "text");
}

}  // namespace
}  // namespace switchyard::data
