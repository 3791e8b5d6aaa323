#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/output/bar.h"
#include "client/output/csv.h"
#include "client/output/json.h"
#include "client/output/number.h"
#include "client/output/sparkline.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "client/output/yaml.h"

namespace switchyard::client {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A falling curve falls from the highest block to the lowest, so that its shape can be read.
TEST(Sparkline, SpansLowestToHighestBlock) {
  EXPECT_EQ(Sparkline({8, 7, 6, 5, 4, 3, 2, 1}, 8), "█▇▆▅▄▃▂▁");
}

// More points than cells: each cell is the mean of its share, and no cell is left out.
TEST(Sparkline, AveragesIntoTheWidth) {
  EXPECT_EQ(Sparkline({0, 0, 4, 4, 8, 8}, 3), "▁▅█");
  EXPECT_EQ(CellWidth(Sparkline(std::vector<double>(1000, 1.5), 20)), 20U);
}

// A flat curve has no highest value to scale by; it is a line in the middle, not garbage.
TEST(Sparkline, DrawsAFlatCurveHalfHigh) { EXPECT_EQ(Sparkline({2, 2, 2}, 10), "▄▄▄"); }

// A diverged run must be seen as such: non-finite stretches are crosses and scale nothing.
TEST(Sparkline, MarksStretchesWithoutAFiniteValue) {
  EXPECT_EQ(Sparkline({1, 2, kNaN, kInf}, 4), "▁█××");
  EXPECT_EQ(Sparkline({kNaN, 1, 2, 2}, 2), "▁█");
  EXPECT_EQ(Sparkline({}, 5), "");
  // Ends further apart than the largest double.
  EXPECT_EQ(Sparkline({-1.7e308, 0, 1.7e308}, 3), "▁▅█");
}

// Entropy is drawn on its own scale of 0 to 1, so that two runs compare; out of it is cut.
TEST(Sparkline, KeepsAGivenScale) {
  EXPECT_EQ(Sparkline({0, 0.5, 1, 2, -1}, 5, Scale{.low = 0, .high = 1}), "▁▅██▁");
}

// The bar grows in eighths of a cell, and is full only at the end.
TEST(ProgressBar, GrowsInEighths) {
  EXPECT_EQ(ProgressBar(0, 4), "····");
  EXPECT_EQ(ProgressBar(0.5, 4), "██··");
  EXPECT_EQ(ProgressBar(0.53125, 4), "██▏·");
  EXPECT_EQ(ProgressBar(0.999, 4), "███▉");
  EXPECT_EQ(ProgressBar(1, 4), "████");
  EXPECT_EQ(ProgressBar(kNaN, 2), "··");
  EXPECT_EQ(ProgressBar(7, 2), "██");
}

// One failure among a million runs still has a cell, and the bar keeps its width.
TEST(StackedBar, ShowsTheSmallestPart) {
  EXPECT_EQ(StackedBar({{999'999, "a"}, {1, "b"}, {0, "c"}}, 8), "aaaaaaab");
  EXPECT_EQ(StackedBar({{1, "a"}, {1, "b"}, {1, "c"}}, 3), "abc");
  EXPECT_EQ(StackedBar({{1, "a"}, {2, "b"}}, 0), "");
  EXPECT_EQ(StackedBar({{0, "a"}}, 8), "");
}

// Wide characters take two cells and combining marks none; alignment counts cells.
TEST(CellText, CountsTerminalCells) {
  EXPECT_EQ(CellWidth("abc"), 3U);
  EXPECT_EQ(CellWidth("路由"), 4U);
  EXPECT_EQ(CellWidth("e\u0301"), 1U);
  EXPECT_EQ(CellWidth("██·"), 3U);
  EXPECT_EQ(CutToWidth("路由器", 5), "路由…");
  EXPECT_EQ(CutToWidth("路由器", 4), "路…");
  EXPECT_EQ(CutToWidth("abc", 3), "abc");
  EXPECT_EQ(PadToWidth("路", 4, Align::kRight), "  路");
}

// Foreign bytes cannot move the cursor, ring or reverse the text; tabs in logs stay.
TEST(CellText, EscapesWhatActsOnATerminal) {
  const std::string shown = EscapeLine("a\tb\x1b[2J\x07\u202e\xff");
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_EQ(shown.find('\x07'), std::string::npos);
  EXPECT_EQ(shown.find("\u202e"), std::string::npos);
  EXPECT_EQ(shown.find('\xff'), std::string::npos);
  EXPECT_EQ(shown.substr(0, 3), "a\tb");
}

Listing WideListing() {
  return {.columns = {{"name", "NAME"}, {"value", "VALUE", Align::kRight}, {"id", ""}},
          .rows = {{{"路由", {}}, {1.5, {}}, {"x", {}}}, {{"smoe", {}}, {-20.25, {}}, {"y", {}}}}};
}

// Columns line up by cells whatever the script, and a column without a heading stays out.
TEST(Table, AlignsWideText) {
  EXPECT_EQ(RenderTable(WideListing(), 0),
            "NAME   VALUE\n"
            "路由     1.5\n"
            "smoe  -20.25\n");
}

// In a narrow window text columns are cut, numbers are not.
TEST(Table, CutsTextToTheWindow) {
  const Listing listing{
      .columns = {{"reason", "REASON"}, {"step", "STEP", Align::kRight}},
      .rows = {{{"a very long reason for which nobody has the space", {}}, {123456, {}}}}};
  EXPECT_EQ(RenderTable(listing, 20),
            "REASON          STEP\n"
            "a very long…  123456\n");
}

// A name with an escape sequence cannot reach the terminal through a table or quiet output.
TEST(Table, EscapesCells) {
  const Listing listing{.columns = {{"name", "NAME"}}, .rows = {{{"a\x1b[2Jb", {}}}}};
  EXPECT_EQ(RenderListing(listing, Format::kTable, 0).find('\x1b'), std::string::npos);
  EXPECT_EQ(RenderListing(listing, Format::kQuiet, 0).find('\x1b'), std::string::npos);
  EXPECT_EQ(RenderListing(listing, Format::kJson, 0).find('\x1b'), std::string::npos);
}

// Any reader of strict JSON takes the output, non-finite numbers and bad bytes included.
TEST(Json, IsStrict) {
  const Value value = Value::Members{{"nan", kNaN},
                                     {"inf", -kInf},
                                     {"text", "q\"\\\n\t\x01\u202e\xff é 𝄞"},
                                     {"big", uint64_t{18446744073709551615ULL}},
                                     {"none", Value()},
                                     {"list", Value::List{1, 2.5, true}},
                                     {"empty", Value::Members{}}};
  for (const JsonStyle style : {JsonStyle::kOneLine, JsonStyle::kIndented}) {
    const auto parsed = nlohmann::json::parse(ToJson(value, style), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << ToJson(value, style);
    EXPECT_EQ(parsed["nan"], "NaN");
    EXPECT_EQ(parsed["inf"], "-Inf");
    EXPECT_EQ(parsed["text"], "q\"\\\n\t\x01\u202e\ufffd é 𝄞");
    EXPECT_EQ(parsed["big"], 18446744073709551615ULL);
    EXPECT_TRUE(parsed["none"].is_null());
    EXPECT_EQ(parsed["list"].dump(), "[1,2.5,true]");
    EXPECT_EQ(parsed["empty"].dump(), "{}");
  }
}

// A double survives JSON and CSV bit for bit.
TEST(Json, KeepsDoublesWhole) {
  EXPECT_EQ(ToJson(0.1 + 0.2, JsonStyle::kOneLine), "0.30000000000000004");
  EXPECT_EQ(CsvCell(-0.0), "-0.0");
}

// A spreadsheet must not run a name as a formula, and must still read a negative number.
TEST(Csv, DisarmsFormulasButNotNumbers) {
  EXPECT_EQ(CsvCell("=1+1"), "'=1+1");
  EXPECT_EQ(CsvCell("+cmd"), "'+cmd");
  EXPECT_EQ(CsvCell("@x"), "'@x");
  EXPECT_EQ(CsvCell("-x"), "'-x");
  EXPECT_EQ(CsvCell("\t=1"), "'\t=1");
  EXPECT_EQ(CsvCell("-7.5e-05"), "-7.5e-05");
  EXPECT_EQ(CsvCell(-2.5), "-2.5");
  EXPECT_EQ(CsvCell(-kInf), "-Inf");
}

// Commas, quotes and line ends inside a cell do not end it.
TEST(Csv, QuotesByTheRule) {
  EXPECT_EQ(CsvLine({Value("a,b"), Value("say \"x\""), Value("two\nlines"), Value()}),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\n");
}

// Words that YAML would read as something else are quoted, so that a shown spec reads back equal.
TEST(Yaml, QuotesWhatIsNotAPlainWord) {
  EXPECT_EQ(ToYaml(Value::Members{
                {"name", "no"},
                {"path", "/usr/include/**/*.h"},
                {"lr", 7e-4},
                {"layers", Value::List{0, 1}},
                {"router", Value::Members{{"smoe", Value::Members{}}}},
                {"losses", Value::List{Value::Members{{"id", "z_loss"}, {"coef", 0.001}}}},
                {"digits", "123"}}),
            "name: \"no\"\n"
            "path: \"/usr/include/**/*.h\"\n"
            "lr: 7e-04\n"
            "layers: [0, 1]\n"
            "router:\n"
            "  smoe: {}\n"
            "losses:\n"
            "  - id: z_loss\n"
            "    coef: 0.001\n"
            "digits: \"123\"\n");
}

// Documents as CSV are dotted names, one value a line.
TEST(Document, FlattensForCsv) {
  EXPECT_EQ(
      RenderDocument(Value::Members{{"a", Value::Members{{"b", 1}}}, {"c", Value::List{"x", "y"}}},
                     Format::kCsv),
      "field,value\na.b,1\nc.0,x\nc.1,y\n");
}

// Numbers for people: about five digits, grouped when large, no exponent in the usual range.
TEST(Numbers, AreShortAndReadable) {
  EXPECT_EQ(FormatValue(2.3125), "2.3125");
  EXPECT_EQ(FormatValue(31885068), "31,885,068");
  EXPECT_EQ(FormatValue(-123456.7), "-123,457");
  EXPECT_EQ(FormatValue(7e-5), "7e-05");
  EXPECT_EQ(FormatValue(0.93123456), "0.93123");
  EXPECT_EQ(FormatValue(2000), "2,000");
  EXPECT_EQ(FormatValue(kNaN), "NaN");
  EXPECT_EQ(FormatValue(-kInf), "-Inf");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatSi(63.8e6), "63.8M");
  EXPECT_EQ(FormatSi(999.7), "1k");
  EXPECT_EQ(FormatDuration(0.44), "0.4s");
  EXPECT_EQ(FormatDuration(192), "3m12s");
  EXPECT_EQ(FormatDuration(7500), "2h05m");
  EXPECT_EQ(FormatDuration(273600), "3d04h");
  EXPECT_EQ(FormatDuration(-1), "-");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
}

}  // namespace
}  // namespace switchyard::client
