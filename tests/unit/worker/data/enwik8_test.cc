#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/data/testing.h"
#include "worker/data/corpus.h"
#include "worker/data/loaders.h"

namespace switchyard::data {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::unique_ptr<Corpus>> Load(const std::string& path, pb::Tokens tokens) {
  pb::DataSpec spec;
  spec.mutable_enwik8()->set_path(path);
  spec.mutable_enwik8()->set_tokens(tokens);
  return LoadCorpus(spec);
}

// 1,000 bytes of lines, a newline every tenth byte.
std::string Sample() {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "aaaabbbcd";
    text += '\n';
  }
  return text;
}

// The splits are 90/5/5 by bytes in the file's order; byte mode keeps every byte.
TEST(Enwik8, SplitsByBytesInOrder) {
  const TempFolder folder;
  const std::string text = Sample();
  folder.Write("enwik8", text);
  for (const std::string& path : {folder.path(), folder.Path("enwik8")}) {
    const auto corpus = Load(path, pb::TOKENS_UNSPECIFIED);
    ASSERT_TRUE(corpus.ok()) << corpus.status().ToString();
    EXPECT_EQ((*corpus)->train.ids.size(), 900U);
    EXPECT_EQ((*corpus)->valid.ids.size(), 50U);
    EXPECT_EQ((*corpus)->test.ids.size(), 50U);
    EXPECT_EQ((*corpus)->vocab_size, 256U);
    EXPECT_EQ((*corpus)->primary_metric, "bits_per_byte");
    EXPECT_THAT((*corpus)->domain_names, ElementsAre(""));
    EXPECT_EQ((*corpus)->valid.ids.front(), static_cast<uint32_t>('a'));
    EXPECT_THAT((*corpus)->notices, Contains(HasSubstr("not those of the benchmark")));
  }
}

// bytes205 numbers the bytes by falling frequency, equal counts by first appearance.
TEST(Enwik8, NumbersBytesByFrequency) {
  const TempFolder folder;
  const auto corpus = Load(folder.Write("x", Sample()), pb::TOKENS_BYTES205);
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ((*corpus)->vocab_size, 5U);
  const std::vector<uint32_t> first((*corpus)->train.ids.begin(),
                                    (*corpus)->train.ids.begin() + 10);
  EXPECT_THAT(first, ElementsAre(0, 0, 0, 0, 1, 1, 1, 2, 3, 4));
  EXPECT_THAT((*corpus)->train_frequency, ElementsAre(360, 270, 90, 90, 90));
}

// txl204 drops newlines after the split: tokens and newlines together are the bytes (DT-1), and
// bits per byte are not defined.
TEST(Enwik8, DropsNewlinesForTransformerXl) {
  const TempFolder folder;
  const auto corpus = Load(folder.Write("x", Sample()), pb::TOKENS_TXL204);
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ((*corpus)->vocab_size, 4U);
  EXPECT_EQ((*corpus)->train.ids.size() + 90, 900U);
  EXPECT_EQ((*corpus)->valid.ids.size() + 5, 50U);
  EXPECT_EQ((*corpus)->test.ids.size() + 5, 50U);
  EXPECT_EQ((*corpus)->train.bytes, 900U);
  EXPECT_FALSE((*corpus)->has_bytes);
  EXPECT_EQ((*corpus)->primary_metric, "bits_per_token");
}

// The modes differ in their digests although the file is one.
TEST(Enwik8, GivesEachModeADigestOfItsOwn) {
  const TempFolder folder;
  const std::string path = folder.Write("x", Sample());
  EXPECT_NE((*Load(path, pb::TOKENS_BYTES256))->digest, (*Load(path, pb::TOKENS_TXL204))->digest);
}

// Missing, empty and wrong specs are refused by name.
TEST(Enwik8, RefusesWhatIsNoCorpus) {
  const TempFolder folder;
  EXPECT_EQ(Load(folder.Path("none"), pb::TOKENS_BYTES256).status().code(), Code::kNotFound);
  const Status no_file = Load(folder.path(), pb::TOKENS_BYTES256).status();
  EXPECT_EQ(no_file.code(), Code::kNotFound);
  EXPECT_THAT(no_file.message(), HasSubstr("/enwik8"));
  const std::string empty = folder.Write("empty", "");
  EXPECT_THAT(Load(empty, pb::TOKENS_BYTES256).status().message(), HasSubstr("empty"));
  EXPECT_EQ(Load("", pb::TOKENS_BYTES256).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(Load(empty, pb::TOKENS_WORD).status().message(), HasSubstr("word is not a mode"));
}

// On 3 MB of real Wikipedia XML the accounting of DT-1 holds: 187 symbols and 21,106 newlines.
TEST(Enwik8, AccountsForEachByteOfRealXml) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  const std::string path = *shared + "/enwik/enwiki_3000000.xml";
  const auto bytes = Load(path, pb::TOKENS_BYTES205);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_EQ((*bytes)->vocab_size, 187U);
  EXPECT_EQ((*bytes)->train.ids.size(), 2700000U);
  const auto txl = Load(path, pb::TOKENS_TXL204);
  ASSERT_TRUE(txl.ok());
  EXPECT_EQ((*txl)->vocab_size, 186U);
  EXPECT_EQ((*txl)->train.ids.size() + (*txl)->valid.ids.size() + (*txl)->test.ids.size() + 21106,
            3000000U);
}

}  // namespace
}  // namespace switchyard::data
