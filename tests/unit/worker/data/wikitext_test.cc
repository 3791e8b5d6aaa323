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
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WikitextTest : public ::testing::Test {
 protected:
  pb::WikitextData& wikitext() { return *spec_.mutable_wikitext(); }
  std::unique_ptr<Corpus> Load() {
    auto corpus = LoadCorpus(spec_);
    EXPECT_TRUE(corpus.ok()) << corpus.status().ToString();
    return corpus.ok() ? *std::move(corpus) : std::make_unique<Corpus>();
  }
  Status Refusal() { return LoadCorpus(spec_).status(); }

  TempFolder folder_;
  pb::DataSpec spec_;
};

// <eos> is 0 and closes every line, blank ones too; other ids fall with the frequency in train, and
// equal ones come in the order of their first appearance.
TEST_F(WikitextTest, NumbersWordsByFrequencyWithEosFirst) {
  folder_.Write("wiki.train.tokens", " \n = b = \n a <unk> a c \n");
  folder_.Write("wiki.valid.tokens", " c a \n \n");
  folder_.Write("wiki.test.tokens", " b \n");
  wikitext().set_path(folder_.path());
  const auto corpus = Load();
  // Frequencies: = 2, a 2, b 1, <unk> 1, c 1.
  EXPECT_THAT(corpus->train.ids, ElementsAre(0, 1, 3, 1, 0, 2, 4, 2, 5, 0));
  EXPECT_THAT(corpus->valid.ids, ElementsAre(5, 2, 0, 0));
  EXPECT_THAT(corpus->test.ids, ElementsAre(3, 0));
  EXPECT_EQ(corpus->vocab_size, 6U);
  EXPECT_THAT(corpus->train_frequency, ElementsAre(3, 2, 2, 1, 1, 1));
  EXPECT_EQ(corpus->valid.words, corpus->valid.ids.size());
  EXPECT_TRUE(corpus->is_word_level);
  EXPECT_EQ(corpus->primary_metric, "word_ppl");
  EXPECT_THAT(corpus->notices, IsEmpty());
}

// A word that train lacks is <unk> where there is one, with a count; without <unk> it is an error,
// never a new id.
TEST_F(WikitextTest, MapsUnknownWordsOnlyWhereThereIsAnUnk) {
  folder_.Write("train.txt", "a <unk>\n");
  folder_.Write("valid.txt", "a new\x1b word\n");
  wikitext().set_path(folder_.path());
  const auto corpus = Load();
  EXPECT_THAT(corpus->valid.ids, ElementsAre(1, 2, 2, 0));
  EXPECT_THAT(corpus->notices, Contains(AllOf(HasSubstr("valid: 2 of 4 tokens"),
                                              HasSubstr("new\\x1b"), HasSubstr("read as <unk>"))));
  EXPECT_THAT(corpus->notices, Contains("no file for the test split"));
  folder_.Write("train.txt", "a b\n");
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
  EXPECT_THAT(Refusal().message(), HasSubstr("no <unk>"));
}

// Bytes mode keeps all bytes of each split.
TEST_F(WikitextTest, KeepsBytesInByteMode) {
  folder_.Write("train.txt",
                "\xef\xbb\xbf"
                "a\r\n");
  folder_.Write("valid.txt", "x");
  wikitext().set_path(folder_.path());
  wikitext().set_tokens(pb::TOKENS_BYTES256);
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size(), 6U);
  EXPECT_EQ(corpus->primary_metric, "bits_per_byte");
  wikitext().set_tokens(pb::TOKENS_TXL204);
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
}

// Two candidates for a split, none, a file instead of a folder, and UTF-16 are refused by name.
TEST_F(WikitextTest, RefusesUnclearFolders) {
  wikitext().set_path(folder_.path());
  EXPECT_EQ(Refusal().code(), Code::kNotFound);
  folder_.Write("train.txt", "a\n");
  folder_.Write("wiki.train.tokens", "b\n");
  EXPECT_THAT(Refusal().message(), HasSubstr("could both be the train split"));
  wikitext().set_train_file(folder_.Path("train.txt"));
  EXPECT_EQ(Refusal(), OkStatus());
  wikitext().set_path(folder_.Path("train.txt"));
  EXPECT_THAT(Refusal().message(), HasSubstr("is not a folder"));
  wikitext().clear_path();
  EXPECT_EQ(Refusal(), OkStatus());
  folder_.Write("train.txt", std::string_view("\xff\xfe"
                                              "a\0",
                                              4));
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("train.txt"), HasSubstr("UTF-16")));
  wikitext().clear_train_file();
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
}

// The published counts of valid and test hold exactly (DT-2).
TEST_F(WikitextTest, HasThePublishedCounts) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  wikitext().set_variant(pb::WIKITEXT_VARIANT_WT2);
  wikitext().set_train_file(*shared + "/wikitext-2/train_like.txt");
  wikitext().set_valid_file(*shared + "/wikitext-2/valid.txt");
  wikitext().set_test_file(*shared + "/wikitext-2/test.txt");
  const auto corpus = Load();
  EXPECT_EQ(corpus->valid.ids.size(), 217646U);
  EXPECT_EQ(corpus->test.ids.size(), 245569U);
  EXPECT_EQ(corpus->train.ids.size(), 497990U);
  EXPECT_EQ(corpus->valid.words, 217646U);
  EXPECT_EQ(corpus->vocab_size, 13148U + 1U);
  for (size_t i = 2; i < corpus->train_frequency.size(); ++i) {
    ASSERT_GE(corpus->train_frequency[i - 1], corpus->train_frequency[i]);
  }
}

}  // namespace
}  // namespace switchyard::data
