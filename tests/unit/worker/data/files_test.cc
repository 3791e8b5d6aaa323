#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/data/testing.h"
#include "worker/data/batcher.h"
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

std::string Text(const SplitTokens& split, size_t begin = 0, size_t end = ~size_t{0}) {
  std::string out;
  for (size_t i = begin; i < std::min(end, split.ids.size()); ++i) {
    out.push_back(static_cast<char>(split.ids[i]));
  }
  return out;
}

class FilesTest : public ::testing::Test {
 protected:
  pb::Domain* AddDomain(const std::string& id, const std::vector<std::string>& globs) {
    pb::Domain* domain = files().add_domains();
    domain->set_id(id);
    for (const std::string& glob : globs) domain->add_globs(folder_.Path(glob));
    return domain;
  }
  pb::FilesData& files() { return *spec_.mutable_files(); }
  void SetShares(std::vector<double> shares) {
    files().mutable_split()->mutable_shares()->Assign(shares.begin(), shares.end());
  }
  std::unique_ptr<Corpus> Load() {
    auto corpus = LoadCorpus(spec_);
    EXPECT_TRUE(corpus.ok()) << corpus.status().ToString();
    return corpus.ok() ? *std::move(corpus) : std::make_unique<Corpus>();
  }
  Status Refusal() { return LoadCorpus(spec_).status(); }
  // `count` files of `bytes` bytes each, all of one letter of their own set.
  void WriteMany(const std::string& prefix, int count, size_t bytes) {
    for (int i = 0; i < count; ++i) {
      std::string text = StrCat(prefix, i, " ");
      text.resize(bytes, static_cast<char>('a' + i % 26));
      folder_.Write(StrCat(prefix, "/", i, ".txt"), text);
    }
  }

  TempFolder folder_;
  pb::DataSpec spec_;
};

// By default nine tenths of each domain's bytes train and the rest validate, all of it once, whole
// records only (DT-9): a record in two splits would leak.
TEST_F(FilesTest, DividesEachDomainByRecordsAndBytes) {
  WriteMany("x", 100, 50);
  WriteMany("y", 40, 200);
  AddDomain("x", {"x/*.txt"});
  AddDomain("y", {"y/*.txt"});
  const auto corpus = Load();
  EXPECT_EQ(corpus->vocab_size, 256U);
  EXPECT_THAT(corpus->domain_names, ElementsAre("x", "y"));
  EXPECT_EQ(corpus->train.ids.size(), 4500U + 7200U);
  EXPECT_EQ(corpus->valid.ids.size(), 500U + 800U);
  EXPECT_THAT(corpus->test.ids, IsEmpty());
  ASSERT_EQ(corpus->valid.domains.size(), 2U);
  EXPECT_EQ(corpus->valid.domains[1].domain, 1U);
  EXPECT_EQ(corpus->valid.domains[1].begin, 500U);
  EXPECT_EQ(corpus->valid.domains[1].end, 1300U);
  std::multiset<std::string> records;
  for (const auto* split : {&corpus->train, &corpus->valid}) {
    for (const DomainRange& range : split->domains) {
      const size_t size = range.domain == 0 ? 50 : 200;
      for (uint64_t at = range.begin; at < range.end; at += size) {
        const std::string record = Text(*split, at, at + size);
        EXPECT_EQ(record[0], range.domain == 0 ? 'x' : 'y');
        records.insert(record);
      }
    }
  }
  EXPECT_EQ(records.size(), 140U);
  EXPECT_EQ(std::set<std::string>(records.begin(), records.end()).size(), 140U);
  EXPECT_EQ(corpus->train.bytes, corpus->train.ids.size());
  EXPECT_EQ(corpus->primary_metric, "bits_per_byte");
  uint64_t counted = 0;
  for (const uint64_t count : corpus->train_frequency) counted += count;
  EXPECT_EQ(counted, corpus->train.ids.size());
}

// Splits depend on the split's seed alone, and a second load gives the same corpus and digest.
TEST_F(FilesTest, DividesTheSameWayEachTimeAndAnotherWayForAnotherSeed) {
  WriteMany("x", 60, 20);
  AddDomain("x", {"x/*.txt"});
  const auto first = Load();
  const auto second = Load();
  EXPECT_EQ(first->digest, second->digest);
  EXPECT_EQ(first->train.ids, second->train.ids);
  files().mutable_split()->set_seed(1);
  const auto other = Load();
  EXPECT_NE(first->digest, other->digest);
  EXPECT_NE(first->valid.ids, other->valid.ids);
  EXPECT_EQ(first->valid.ids.size(), other->valid.ids.size());
}

// By record hash each record has its split whatever other files there are: adding data moves none.
TEST_F(FilesTest, KeepsASplitByHashWhenFilesAreAdded) {
  files().mutable_split()->set_by(pb::SPLIT_BY_RECORD_HASH);
  SetShares({0.5, 0.25, 0.25});
  WriteMany("x", 400, 10);
  AddDomain("x", {"x/*.txt"});
  const auto before = Load();
  EXPECT_NEAR(static_cast<double>(before->train.ids.size()), 2000.0, 3 * 10 * 10.0);  // 3 sigma
  WriteMany("x", 500, 10);
  const auto after = Load();
  const auto records = [](const SplitTokens& split) {
    std::set<std::string> out;
    for (size_t i = 0; i < split.ids.size(); i += 10) out.insert(Text(split, i, i + 10));
    return out;
  };
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    EXPECT_THAT(records(after->split(split)),
                ::testing::IsSupersetOf(records(before->split(split))));
  }
}

// Three small records still give three splits, and a split of share 0 stays empty.
TEST_F(FilesTest, GivesEachWantedSplitARecordWhileThereAreEnough) {
  WriteMany("x", 3, 100);
  AddDomain("x", {"x/*.txt"});
  SetShares({0.98, 0.01, 0.01});
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size(), 100U);
  EXPECT_EQ(corpus->valid.ids.size(), 100U);
  EXPECT_EQ(corpus->test.ids.size(), 100U);
  SetShares({0.0, 0.5, 0.5});
  EXPECT_THAT(Refusal().message(), HasSubstr("training split has no token"));
}

// One record cannot be divided: all of it trains and the notice says so.
TEST_F(FilesTest, SaysWhenADomainHasTooFewRecords) {
  WriteMany("x", 1, 100);
  AddDomain("x", {"x/*.txt"});
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size(), 100U);
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("none of its 1 records went to valid")));
  EXPECT_THAT(corpus->notices, Contains("the valid split is empty"));
}

// A file of two domains is refused with both names (DT-9), through links too: it would be trained
// on in one and tested in the other.
TEST_F(FilesTest, RefusesAFileInTwoDomains) {
  folder_.Write("a/1.txt", "one");
  folder_.Write("b/2.txt", "two");
  AddDomain("first", {"a/*"});
  AddDomain("second", {"**/*.txt"});
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("'second'"), HasSubstr("a/1.txt"),
                                         HasSubstr("also in domain 'first'")));
  files().clear_domains();
  ASSERT_EQ(symlink("../a/1.txt", folder_.Path("b/link.txt").c_str()), 0);
  AddDomain("first", {"a/*"});
  AddDomain("second", {"b/*"});
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("b/link.txt"), HasSubstr("a/1.txt")));
}

// Within a domain a file counts once, however many globs and links lead to it.
TEST_F(FilesTest, TakesAFileOnceUnderItsFirstName) {
  folder_.Write("a/1.txt", "one");
  folder_.Write("a/2.txt", "two");
  ASSERT_EQ(symlink("1.txt", folder_.Path("a/z.txt").c_str()), 0);
  AddDomain("x", {"a/*.txt", "**/1.txt", "a/2.txt"});
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size() + corpus->valid.ids.size(), 6U);
  EXPECT_THAT(corpus->notices, Contains(AllOf(HasSubstr("1 further names of files already taken"),
                                              HasSubstr("a/z.txt"))));
}

// What a glob sweeps up besides files is skipped and counted; the same as a plain path is an error.
TEST_F(FilesTest, SkipsOddMatchesOfGlobsAndRefusesThemAsPaths) {
  folder_.Write("a/1.txt", "one");
  folder_.Write("a/d.txt/x", "not matched");
  folder_.Write("a/empty.txt", "");
  ASSERT_EQ(mkfifo(folder_.Path("a/fifo.txt").c_str(), 0600), 0);
  ASSERT_EQ(symlink("nowhere", folder_.Path("a/broken.txt").c_str()), 0);
  AddDomain("x", {"a/*.txt", "b/*"});
  const auto corpus = Load();
  EXPECT_EQ(Text(corpus->train), "one");
  EXPECT_THAT(corpus->notices, Contains(AllOf(HasSubstr("1 folders"), HasSubstr("a/d.txt"))));
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("1 names that are no regular files")));
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("1 links that lead nowhere")));
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("1 empty records")));
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("nothing matches")));
  for (const auto& [path, code] :
       std::vector<std::pair<std::string, Code>>{{"a/d.txt", Code::kInvalidArgument},
                                                 {"a/fifo.txt", Code::kInvalidArgument},
                                                 {"a/broken.txt", Code::kNotFound},
                                                 {"a/none.txt", Code::kNotFound},
                                                 {"a/empty.txt", Code::kNotFound}}) {
    files().clear_domains();
    AddDomain("x", {path});
    EXPECT_EQ(Refusal().code(), code) << path;
    EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("domain 'x'"), HasSubstr(path)));
  }
  files().clear_domains();
  files().add_domains()->add_globs("/dev/zero");
  EXPECT_THAT(Refusal().message(), HasSubstr("/dev/zero is not a regular file"));
}

// A domain without any text stops the run, with its globs.
TEST_F(FilesTest, RefusesADomainWithoutText) {
  AddDomain("de", {"none/**/*.txt"});
  EXPECT_EQ(Refusal().code(), Code::kNotFound);
  EXPECT_THAT(Refusal().message(), AllOf(HasSubstr("'de'"), HasSubstr("none/**/*.txt")));
  files().clear_domains();
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
  EXPECT_EQ(LoadCorpus(pb::DataSpec()).status().code(), Code::kInvalidArgument);
}

// The cap takes whole records in hash order as long as they fit, the same ones each time.
TEST_F(FilesTest, CapsADomainByWholeRecords) {
  WriteMany("x", 50, 100);
  AddDomain("x", {"x/*.txt"});
  files().set_max_bytes_per_domain(1050);
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size() + corpus->valid.ids.size(), 1000U);
  EXPECT_EQ(corpus->digest, Load()->digest);
}

// Where no record fits under the cap, one is cut, and not within a character.
TEST_F(FilesTest, CutsARecordOnlyWhenNoneFits) {
  folder_.Write("a", "abc\u00e9\u00e9\u00e9");
  AddDomain("x", {"a"});
  SetShares({1.0, 0.0, 0.0});
  files().set_max_bytes_per_domain(6);
  EXPECT_EQ(Text(Load()->train), "abc\u00e9");
  files().set_max_bytes_per_domain(7);
  EXPECT_EQ(Text(Load()->train), "abc\u00e9\u00e9");
  folder_.Write("b", "short");
  files().clear_domains();
  AddDomain("x", {"[ab]"});
  files().set_max_bytes_per_domain(6);
  EXPECT_EQ(Text(Load()->train), "short");
}

// Rows are records; broken ones are skipped, counted and named by line until there are too many.
TEST_F(FilesTest, ReadsRowsAndCountsBrokenOnes) {
  files().set_format(pb::TEXT_FORMAT_JSONL);
  SetShares({1.0, 0.0, 0.0});
  folder_.Write(
      "a.jsonl",
      "{\"text\":\"a\u00e9\"}\r\n\n{\"text\":1}\n{nope\n[\"text\"]\n{\"x\":{\"text\":\"no\"}}\n"
      "{\"text\":\"b\",\"text\":\"c\"}\n{\"text\":\"\"}\n{\"x\":[{}],\"text\":\"z\"}");
  AddDomain("x", {"a.jsonl"});
  const auto corpus = Load();
  EXPECT_EQ(corpus->train.ids.size(), 4U);
  EXPECT_EQ(corpus->train.chars, 3U);
  EXPECT_THAT(corpus->notices,
              Contains(AllOf(HasSubstr("5 broken rows skipped"),
                             HasSubstr("a.jsonl:3 has a number as its text"),
                             HasSubstr("a.jsonl:4 is not valid JSON"),
                             HasSubstr("a.jsonl:5 is an array, expected an object"))));
  EXPECT_THAT(corpus->notices, Contains(HasSubstr("1 empty records")));
  files().set_max_bad_rows(5);
  EXPECT_EQ(Refusal(), OkStatus());
  files().set_max_bad_rows(4);
  EXPECT_EQ(Refusal().code(), Code::kFailedPrecondition);
  EXPECT_THAT(Refusal().message(), HasSubstr("max_bad_rows is 4"));
}

// Packed text and rows read as if unpacked; a damaged file stops the run by name.
TEST_F(FilesTest, UnpacksGzip) {
  SetShares({1.0, 0.0, 0.0});
  folder_.Write("t.gz", Gzip("packed ") + Gzip("text"));
  folder_.Write("r.jsonl.gz", Gzip("{\"text\":\"ro") + Gzip("w\"}\n"));
  AddDomain("x", {"t.gz"});
  EXPECT_EQ(Text(Load()->train), "packed text");
  files().clear_domains();
  files().set_format(pb::TEXT_FORMAT_JSONL);
  AddDomain("x", {"r.jsonl.gz"});
  EXPECT_EQ(Text(Load()->train), "row");
  folder_.Write("r.jsonl.gz", Gzip("{\"text\":\"row\"}").substr(0, 20));
  EXPECT_EQ(Refusal().code(), Code::kDataLoss);
  EXPECT_THAT(Refusal().message(), HasSubstr("r.jsonl.gz"));
}

// A digest in the spec pins the content; a changed file is refused with both digests.
TEST_F(FilesTest, ComparesTheDigest) {
  WriteMany("x", 10, 10);
  AddDomain("x", {"x/*.txt"});
  const std::string digest = Load()->digest;
  EXPECT_THAT(digest, ::testing::MatchesRegex("sha256:[0-9a-f]{64}"));
  spec_.set_digest(digest);
  EXPECT_EQ(Refusal(), OkStatus());
  folder_.Write("x/3.txt", "changed");
  EXPECT_EQ(Refusal().code(), Code::kFailedPrecondition);
  EXPECT_THAT(Refusal().message(), HasSubstr(digest));
}

// The same text as LF, CRLF, with BOM and without final newline gives the same word ids (DA2), and
// as many byte tokens as the file has bytes.
TEST_F(FilesTest, ReadsLineEndsAlikeInWordModeAndLeavesBytesAlone) {
  SetShares({1.0, 0.0, 0.0});
  const std::vector<std::string> forms = {"a b\nc a\n", "a b\r\nc a\r\n",
                                          "\xef\xbb\xbf"
                                          "a b\nc a\n",
                                          "a b\nc a"};
  std::vector<std::vector<uint32_t>> ids;
  for (size_t i = 0; i < forms.size(); ++i) {
    files().clear_domains();
    AddDomain("x", {StrCat(i, ".txt")});
    folder_.Write(StrCat(i, ".txt"), forms[i]);
    files().set_tokens(pb::TOKENS_WORD);
    const auto words = Load();
    EXPECT_THAT(words->train.ids, ElementsAre(1, 2, 0, 3, 1, 0)) << i;  // <eos>, a, b, c
    EXPECT_EQ(words->train.words, 6U);
    files().set_tokens(pb::TOKENS_BYTES256);
    EXPECT_EQ(Load()->train.ids.size(), forms[i].size());
  }
}

// Shares, weights and token numbers that make no sense are refused, with the value.
TEST_F(FilesTest, RefusesNonsenseInTheSpec) {
  WriteMany("x", 2, 10);
  pb::Domain* domain = AddDomain("x", {"x/*.txt"});
  SetShares({0.5, 0.5});
  EXPECT_THAT(Refusal().message(), HasSubstr("2 numbers, expected 3"));
  SetShares({0.5, 0.4, 0.4});
  EXPECT_THAT(Refusal().message(), HasSubstr("expected 1"));
  SetShares({1.5, -0.5, 0.0});
  EXPECT_THAT(Refusal().message(), HasSubstr("1.5 is not a share"));
  SetShares({0.5, 0.5, 0.0});
  domain->set_weight(0.0);
  EXPECT_THAT(Refusal().message(), HasSubstr("weight 0"));
  domain->set_weight(std::nan(""));
  EXPECT_EQ(Refusal().code(), Code::kInvalidArgument);
  domain->set_weight(1.0);
  files().set_tokens(static_cast<pb::Tokens>(99));
  EXPECT_THAT(Refusal().message(), HasSubstr("unknown number 99"));
}

// 12 MB in 3,000 files load in well under the two seconds that a run's start may spend on them.
TEST_F(FilesTest, LoadsManySmallFilesQuickly) {
  for (int i = 0; i < 3000; ++i) {
    folder_.Write(StrCat("x/", i % 40, "/", i, ".h"),
                  std::string(4000, static_cast<char>('a' + i % 26)) + std::to_string(i));
  }
  AddDomain("x", {"x/**/*.h"});
  const auto start = std::chrono::steady_clock::now();
  const auto corpus = Load();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GT(corpus->train.ids.size(), 10000000U);
  RecordProperty("load_ms", static_cast<int>(took.count() * 1000));
  // Generous: the machine may be busy.
  EXPECT_LT(took.count(), 2.0 * 4);
}

}  // namespace
}  // namespace switchyard::data
