#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/curves/csv_reader.h"
#include "client/curves/curve_file.h"
#include "client/exit_code.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<std::vector<std::string>> Rows(std::string_view text) {
  CsvReader reader(text);
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> cells;
  while (true) {
    const Result<bool> more = reader.Next(&cells);
    EXPECT_TRUE(more.ok()) << more.status().ToString();
    if (!more.ok() || !*more) return rows;
    rows.push_back(cells);
  }
}

Result<CurveSet> Read(std::string_view text, const CurveFileOptions& options = {}) {
  CurveFileNotes notes;
  return ReadCurveFile("f.csv", text, "base", options, &notes);
}

std::string FaultsOf(std::string_view text) { return Read(text).status().message(); }

// DA1, DA2: only LF and CRLF end a line, and a byte order mark is none of the first heading.
TEST(CsvReader, BreaksLinesAtLineFeedsOnly) {
  EXPECT_THAT(Rows("\xef\xbb\xbf"
                   "a,b\r\n1\xe2\x80\xa8,2\x0b\n\n\"x,\"\"\n\",\n"),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("1\xe2\x80\xa8", "2\x0b"),
                          ElementsAre("x,\"\n", "")));
  EXPECT_THAT(Rows("a,b"), ElementsAre(ElementsAre("a", "b")));
  EXPECT_TRUE(Rows("").empty());
}

// DA3: a quotation mark that is never closed is an error with the line where it opens.
TEST(CsvReader, RefusesAnOpenQuotation) {
  std::vector<std::string> cells;
  CsvReader open("a\n\"b\nc\n");
  ASSERT_TRUE(*open.Next(&cells));
  EXPECT_THAT(open.Next(&cells).status().message(), HasSubstr("2: a quotation mark"));
  CsvReader behind("\"a\"b,c\n");
  EXPECT_THAT(behind.Next(&cells).status().message(), HasSubstr("1: cell 1: text behind"));
}

// The long form, in any order of rows and columns, with seeds; columns of other uses are left out.
TEST(CurveFile, ReadsTheLongForm) {
  CurveFileNotes notes;
  const Result<CurveSet> set = ReadCurveFile(
      "f.csv",
      "value,Step,run,seed,series,ms\n2.5,20,a,1,loss,7\n3.5,10,a,1,loss,7\nNaN,10,a,2,loss,7\n",
      "base", {}, &notes);
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  ASSERT_EQ(set->curves.size(), 2U);
  EXPECT_EQ(set->curves[0].seed, 1U);
  EXPECT_THAT(set->curves[0].points, ElementsAre(Pair(10, 3.5), Pair(20, 2.5)));
  EXPECT_TRUE(std::isnan(set->curves[1].points[0].second));
  EXPECT_THAT(notes.ignored_columns, ElementsAre("ms"));
}

// The wide form: a column per metric, an empty cell no value, steps as a data frame writes them.
TEST(CurveFile, ReadsTheWideForm) {
  const Result<CurveSet> set = Read("step,loss,acc\n0,4,\n100.0,-7.5e-05,0.5\n",
                                    {.metrics = {"loss"}, .renames = {{"loss", "train/loss"}}});
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  ASSERT_EQ(set->curves.size(), 1U);
  EXPECT_EQ(set->curves[0].metric, "train/loss");
  EXPECT_EQ(set->curves[0].run, "base");
  EXPECT_THAT(set->curves[0].points, ElementsAre(Pair(0, 4.0), Pair(100, -7.5e-05)));
}

// Elements of vectors in an exported file are counted and no points of a scalar curve.
TEST(CurveFile, LeavesElementsOfVectorsOut) {
  CurveFileNotes notes;
  const Result<CurveSet> set = ReadCurveFile(
      "f.csv",
      "run,seed,series,step,ms,attempt,i0,i1,value\nr,1,loss,1,0,1,,,2\nr,1,load,1,0,1,0,1,2\n",
      "base", {}, &notes);
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  EXPECT_EQ(set->curves.size(), 1U);
  EXPECT_EQ(notes.vector_rows, 1U);
}

// Every bad row is named by file, line, column and value; nothing is guessed.
TEST(CurveFile, NamesEveryBadRow) {
  const std::string faults = FaultsOf(
      "run,step,metric,value\na,1,loss,2.5x\na,-1,loss,2\na,1.5,loss,2\na,2,,2\na,3,loss\na,4,loss,"
      "\n");
  EXPECT_THAT(faults, HasSubstr("f.csv:2: column 4 (value): \"2.5x\" is not a number"));
  EXPECT_THAT(faults, HasSubstr("f.csv:3: column 2 (step): \"-1\" is not a step"));
  EXPECT_THAT(faults, HasSubstr("f.csv:4: column 2 (step): \"1.5\" is not a step"));
  EXPECT_THAT(faults, HasSubstr("f.csv:5: column 3 (metric): \"\" is no name of a metric"));
  EXPECT_THAT(faults, HasSubstr("f.csv:6: 3 cells; the heading has 4"));
  EXPECT_THAT(faults, HasSubstr("f.csv:7: column 4 (value): \"\" is not a number"));
  EXPECT_THAT(FaultsOf("step,a,a\n1,2,3\n"), HasSubstr("f.csv:1: two columns are called a"));
  EXPECT_THAT(FaultsOf("time,a\n1,2\n"), HasSubstr("there is no column step; columns are time, a"));
  EXPECT_THAT(FaultsOf("step,a\n1,2\n\n1,3\n"),
              HasSubstr("f.csv:4: run base, metric a has step 1 on line 2 already"));
  EXPECT_THAT(FaultsOf("step,a\n"), HasSubstr("there is no value"));
  EXPECT_THAT(FaultsOf(""), HasSubstr("no heading"));
  EXPECT_THAT(FaultsOf("step,a\n1,\"2\n"), HasSubstr("f.csv:2: a quotation mark is not closed"));
}

// A file of nothing but faults does not fill the terminal.
TEST(CurveFile, CutsAFloodOfFaults) {
  std::string text = "step,a\n";
  for (int i = 0; i < 100; ++i) text += "x,1\n";
  EXPECT_THAT(FaultsOf(text), HasSubstr("\nand 80 more faults"));
}

// SQ3: what is written is what is read, with every class of number and every kind of name.
TEST(CurveFile, WritesWhatItReads) {
  CurveSet set{.name = "base", .curves = {}};
  set.curves.push_back({.run = "=cmd,\"x\"\ny", .seed = 3, .metric = "-a", .points = {}});
  set.curves[0].points = {{0, -0.0}, {1, 5e-324}, {2, INFINITY}, {3, NAN}, {4, 0.1}};
  const Result<CurveSet> again = Read(WriteCurveFile(set));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  ASSERT_EQ(again->curves.size(), 1U);
  EXPECT_EQ(again->curves[0].run, set.curves[0].run);
  EXPECT_EQ(again->curves[0].metric, set.curves[0].metric);
  ASSERT_EQ(again->curves[0].points.size(), 5U);
  EXPECT_TRUE(std::signbit(again->curves[0].points[0].second));
  EXPECT_EQ(again->curves[0].points[1].second, 5e-324);
  EXPECT_EQ(again->curves[0].points[2].second, INFINITY);
  EXPECT_TRUE(std::isnan(again->curves[0].points[3].second));
}

// Import keeps a set under a name, refuses to lose one, lists and removes.
TEST(Import, KeepsSetsByName) {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> home = {{"XDG_DATA_HOME", folder.path()}};
  const std::string file = folder.Write("My Baseline.csv", "step,loss\n1,2\n2,1\n");
  EXPECT_EQ(Invoke({"import", file, "-o", "quiet"}, false, home).out, "my-baseline\n");
  EXPECT_EQ(Invoke({"import", file}, false, home).code, kExitConflict);
  EXPECT_EQ(Invoke({"import", file, "--replace"}, false, home).code, kExitOk);
  EXPECT_EQ(Invoke({"import", file, "--name", "other"}, false, home).code, kExitOk);
  EXPECT_EQ(Invoke({"import", "--list", "-o", "quiet"}, false, home).out, "my-baseline\nother\n");
  EXPECT_EQ(Invoke({"import", "--remove", "other"}, false, home).code, kExitOk);
  const Ran gone = Invoke({"import", "--remove", "other"}, false, home);
  EXPECT_EQ(gone.code, kExitUsage);
  EXPECT_THAT(gone.err, HasSubstr("there are: my-baseline"));
  EXPECT_EQ(Invoke({"import"}, false, home).code, kExitUsage);
  EXPECT_EQ(Invoke({"import", file, "--name", "../up"}, false, home).code, kExitUsage);
}

// A bad file leaves nothing behind, and each of its faults is a line on standard error.
TEST(Import, KeepsNothingOfABadFile) {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> home = {{"XDG_DATA_HOME", folder.path()}};
  const std::string file = folder.Write("bad.csv", "step,loss\nx,2\n2,y\n");
  const Ran ran = Invoke({"import", file}, false, home);
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr(file + ":2: column 1 (step): \"x\""));
  EXPECT_THAT(ran.err, HasSubstr(file + ":3: column 2 (loss): \"y\" is not a number"));
  EXPECT_THAT(Invoke({"import", "--list"}, false, home).out, HasSubstr("no curves"));
}

}  // namespace
}  // namespace switchyard::client
