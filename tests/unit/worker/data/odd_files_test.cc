// Malformed and awkward inputs (DT-8): each loads, is skipped with a count, or is refused with a
// message that names the file; none crashes. The sample files are optional; the same faults in
// files made on the spot are in the tests of each reader.
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/data/testing.h"
#include "worker/data/corpus.h"
#include "worker/data/safetensors.h"

namespace switchyard::data {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kRefused = -1;

struct OddFile {
  std::string name;  // "text/lf.txt"
  int64_t bytes = 0;
  std::string note;
};

// Files of one folder of odd/, as its manifest lists them.
std::vector<OddFile> OddFiles(const std::string& shared, const std::string& folder) {
  std::vector<OddFile> files;
  for (const std::string& line : StrSplit(ReadAll(shared + "/odd/MANIFEST.tsv"), '\n')) {
    const std::vector<std::string> fields = StrSplit(line, '\t');
    if (fields.size() < 5 || !fields[0].starts_with(folder + "/")) continue;
    files.push_back({fields[0], ParseInt64(fields[1]).value_or(-1), fields[4]});
  }
  return files;
}

Result<std::unique_ptr<Corpus>> Load(const std::string& path, pb::TextFormat format,
                                     pb::Tokens tokens) {
  pb::DataSpec spec;
  pb::FilesData& files = *spec.mutable_files();
  files.set_format(format);
  files.set_tokens(tokens);
  for (const double share : {1.0, 0.0, 0.0}) files.mutable_split()->add_shares(share);
  pb::Domain* domain = files.add_domains();
  domain->set_id("odd");
  domain->add_globs(path);
  return LoadCorpus(spec);
}

// Text: byte mode gives one token a byte for every file but the empty one; word mode gives the
// tokens below, <eos> included, and refuses UTF-16 by its mark.
TEST(OddFiles, TextLoadsOrIsRefused) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  const std::map<std::string, int64_t> word_tokens = {
      {"text/lf.txt", 2000},
      {"text/crlf.txt", 2000},
      {"text/cr_only.txt", 1801},
      {"text/mixed_eol.txt", 1950},
      {"text/no_final_newline.txt", 2000},
      {"text/bom_utf8.txt", 2000},
      {"text/bom_utf16le.txt", kRefused},
      {"text/bom_utf16be.txt", kRefused},
      {"text/latin1.txt", 12},
      {"text/cp1252_quotes.txt", 8},
      {"text/empty.txt", kRefused},
      {"text/one_byte.txt", 2},
      {"text/only_newlines.txt", 1000},
      {"text/only_spaces.txt", 1},
      {"text/nul_bytes.txt", 6},
      {"text/all_256_bytes.bin", 194},
      {"text/one_symbol_256k.txt", 2},
      {"text/invalid_utf8.txt", 31},
      {"text/utf8_cut_at_end.txt", 4},
      {"text/unicode_spaces.txt", 2},
      {"text/normal_forms.txt", 8},
      {"text/rtl_emoji.txt", 6},
      {"text/control_chars.txt", 4},
      {"text/long_line_3MiB.txt", 524289},
      {"text/long_word_1MiB.txt", 3},
      {"text/many_short_lines.txt", 200000},
      {"text/wikitext_like_unk.txt", 2206},
  };
  const std::vector<OddFile> files = OddFiles(*shared, "text");
  EXPECT_EQ(files.size(), word_tokens.size());
  std::map<std::string, std::vector<uint32_t>> ids;
  for (const OddFile& file : files) {
    SCOPED_TRACE(file.name);
    const std::string path = StrCat(*shared, "/odd/", file.name);
    const auto bytes = Load(path, pb::TEXT_FORMAT_TEXT, pb::TOKENS_BYTES256);
    if (file.bytes == 0) {
      EXPECT_EQ(bytes.status().code(), Code::kNotFound);
      EXPECT_THAT(bytes.status().message(), HasSubstr("empty.txt"));
    } else {
      ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
      EXPECT_EQ(static_cast<int64_t>((*bytes)->train.ids.size()), file.bytes);
      EXPECT_EQ(static_cast<int64_t>((*bytes)->train.bytes), file.bytes);
    }
    ASSERT_TRUE(word_tokens.contains(file.name));
    const int64_t expected = word_tokens.at(file.name);
    const auto words = Load(path, pb::TEXT_FORMAT_TEXT, pb::TOKENS_WORD);
    if (expected == kRefused) {
      ASSERT_FALSE(words.ok());
      EXPECT_THAT(words.status().message(), HasSubstr(file.name.substr(5)));
      continue;
    }
    ASSERT_TRUE(words.ok()) << words.status().ToString();
    EXPECT_EQ(static_cast<int64_t>((*words)->train.ids.size()), expected);
    ids[file.name] = (*words)->train.ids;
  }
  for (const char* same : {"text/crlf.txt", "text/no_final_newline.txt", "text/bom_utf8.txt"}) {
    EXPECT_EQ(ids[same], ids["text/lf.txt"]) << same;
  }
}

// JSON lines: tokens (bytes of text) and broken rows of each file that loads, or what its refusal
// says.
TEST(OddFiles, JsonLinesLoadOrAreRefused) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  struct Expected {
    int64_t tokens = kRefused;
    int64_t broken_rows = 0;
    std::string message;
  };
  const std::map<std::string, Expected> table = {
      {"jsonl/c4_like.jsonl", {91887, 0, ""}},
      {"jsonl/c4_like.json.gz", {91887, 0, ""}},
      {"jsonl/two_members.json.gz", {91887, 0, ""}},
      {"jsonl/truncated.json.gz", {kRefused, 0, "cut off"}},
      {"jsonl/truncated_in_trailer.json.gz", {kRefused, 0, "cut off"}},
      {"jsonl/bad_crc.json.gz", {kRefused, 0, "incorrect data check"}},
      {"jsonl/bad_isize.json.gz", {kRefused, 0, "incorrect length check"}},
      {"jsonl/bit_flip.json.gz", {kRefused, 0, "corrupt"}},
      {"jsonl/trailing_garbage.json.gz", {kRefused, 0, "21 bytes behind the gzip stream"}},
      {"jsonl/empty.json.gz", {kRefused, 0, "no text"}},
      {"jsonl/zero_bytes.json.gz", {kRefused, 0, "is empty"}},
      {"jsonl/not_gzip.json.gz", {kRefused, 0, "does not begin as gzip"}},
      {"jsonl/zlib_not_gzip.json.gz", {kRefused, 0, "does not begin as gzip"}},
      {"jsonl/bomb_32MiB.json.gz", {kRefused, 0, "gzip bomb"}},
      {"jsonl/bad_rows.jsonl", {116, 15, ""}},
      {"jsonl/invalid_utf8.jsonl", {4, 1, ""}},
      {"jsonl/array_not_lines.json", {kRefused, 0, "no text"}},
  };
  const std::vector<OddFile> files = OddFiles(*shared, "jsonl");
  EXPECT_EQ(files.size(), table.size());
  for (const OddFile& file : files) {
    SCOPED_TRACE(file.name);
    ASSERT_TRUE(table.contains(file.name));
    const Expected& expected = table.at(file.name);
    const auto corpus =
        Load(StrCat(*shared, "/odd/", file.name), pb::TEXT_FORMAT_JSONL, pb::TOKENS_BYTES256);
    if (expected.tokens == kRefused) {
      ASSERT_FALSE(corpus.ok());
      EXPECT_THAT(corpus.status().message(), HasSubstr(expected.message));
      EXPECT_THAT(corpus.status().message(), HasSubstr(file.name));
      continue;
    }
    ASSERT_TRUE(corpus.ok()) << corpus.status().ToString();
    EXPECT_EQ(static_cast<int64_t>((*corpus)->train.ids.size()), expected.tokens);
    if (expected.broken_rows > 0) {
      EXPECT_THAT((*corpus)->notices,
                  Contains(HasSubstr(StrCat(expected.broken_rows, " broken rows skipped"))));
    }
  }
}

// Safetensors: files that the manifest calls control or valid load, all others are refused with
// their name.
TEST(OddFiles, SafetensorsLoadOrAreRefused) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  const std::vector<OddFile> files = OddFiles(*shared, "safetensors");
  EXPECT_GE(files.size(), 19U);
  for (const OddFile& file : files) {
    SCOPED_TRACE(file.name);
    const bool is_valid = file.note.starts_with("control") || file.note.starts_with("valid");
    const auto opened = SafetensorsFile::Open(StrCat(*shared, "/odd/", file.name));
    EXPECT_EQ(opened.ok(), is_valid) << opened.status().ToString();
    if (is_valid) {
      EXPECT_FALSE((*opened)->tensors().empty());
    } else {
      EXPECT_EQ(opened.status().code(), Code::kDataLoss);
      EXPECT_THAT(opened.status().message(), HasSubstr(file.name));
    }
  }
}

// Checkpoints that other tools wrote load whole.
TEST(OddFiles, ForeignCheckpointsLoad) {
  const auto shared = SharedData();
  if (!shared) GTEST_SKIP() << "no sample data";
  for (const char* name :
       {"mixtral", "olmoe", "qwen3_moe", "deepseek_v2", "granitemoe", "gpt_oss"}) {
    const auto opened =
        SafetensorsFile::Open(StrCat(*shared, "/moe-checkpoints/", name, "/model.safetensors"));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_GT((*opened)->tensors().size(), 5U) << name;
  }
}

}  // namespace
}  // namespace switchyard::data
