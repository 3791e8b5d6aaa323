#include "common/spec/expression.h"

#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/rng.h"
#include "common/base/strings.h"

namespace switchyard::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeNames : public ExpressionNames {
 public:
  std::map<std::string, ExpressionValue, std::less<>> names;
  std::map<std::string, ExpressionValue, std::less<>> series;

  ExpressionValue Name(std::string_view name) const override {
    const auto at = names.find(name);
    return at == names.end() ? ExpressionValue() : at->second;
  }
  ExpressionValue Series(std::string_view name, SeriesValue value) const override {
    const std::string key = StrCat(value == SeriesValue::kBest   ? "best "
                                   : value == SeriesValue::kLast ? "last "
                                                                 : "",
                                   name);
    const auto at = series.find(key);
    return at == series.end() ? ExpressionValue() : at->second;
  }
};

FakeNames Names() {
  FakeNames names;
  names.names = {{"arm", std::string("smoe")},
                 {"a", 8.0},
                 {"b", 3.0},
                 {"model.moe.router.mcf.r", 16.0},
                 {"on", true},
                 {"lr", -7.5e-05},
                 {"nan", std::nan("")},
                 {"inf", std::numeric_limits<double>::infinity()},
                 {"batch-size", 64.0}};
  names.series = {{"valid/loss", 2.0}, {"best valid/loss", 1.5}, {"last valid/loss", 2.5}};
  return names;
}

// The value as text, or the message of the error.
std::string Value(std::string_view text) {
  const Result<Expression> expression = Expression::Parse(text);
  if (!expression.ok()) return expression.status().message();
  const Result<ExpressionValue> value = expression->Evaluate(Names());
  if (!value.ok()) return value.status().message();
  if (const double* number = std::get_if<double>(&*value)) return FormatDouble(*number);
  if (const bool* is_true = std::get_if<bool>(&*value)) return *is_true ? "true" : "false";
  if (const std::string* word = std::get_if<std::string>(&*value)) return *word;
  return "absent";
}

// One operator or form each, with the precedence of the field.
TEST(Expression, Evaluates) {
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"1 + 2 * 3", FormatDouble(7)},
      {"(1 + 2) * 3", FormatDouble(9)},
      {"8 - 3 - 2", FormatDouble(3)},
      {"2 / 4", FormatDouble(0.5)},
      {"a / b", FormatDouble(8.0 / 3)},
      {"a % b", FormatDouble(2)},
      {"-a", FormatDouble(-8)},
      {"--a", FormatDouble(8)},
      {"-7.5e-05", FormatDouble(-7.5e-05)},
      {".5", FormatDouble(0.5)},
      {"min(a, b, 5)", FormatDouble(3)},
      {"max(a, b)", FormatDouble(8)},
      {"abs(lr) = 7.5e-05", "true"},
      {"floor(2.7) + ceil(2.1)", FormatDouble(5)},
      {"log2(a)", FormatDouble(3)},
      {"a = 8", "true"},
      {"a == 8", "true"},
      {"a != 8", "false"},
      {"b < a and a <= 8", "true"},
      {"a > b or on = false", "true"},
      {"not a > b", "false"},
      {"on", "true"},
      {"on = true", "true"},
      {"arm = \"smoe\"", "true"},
      {"arm != 'smoe'", "false"},
      {"arm in [\"mcf\", \"smoe\"]", "true"},
      {"arm not in [\"mcf\"]", "true"},
      {"a in [1, -2, 8]", "true"},
      {"model.moe.router.mcf.r % 4 = 0", "true"},
      {"\"a\\\"b\" = \"a\\\"b\"", "true"},
      {"batch-size", FormatDouble(64)},
      {"a-1", FormatDouble(7)},
      {"arm", "smoe"},
  };
  for (const auto& [text, value] : cases) EXPECT_EQ(Value(text), value) << text;
}

// `a/b` is a series, `a / b` a division.
TEST(Expression, TellsSeriesFromDivisions) {
  EXPECT_EQ(Value("valid/loss"), FormatDouble(2));
  EXPECT_EQ(Value("best(valid/loss)"), FormatDouble(1.5));
  EXPECT_EQ(Value("last(valid/loss) - best(valid/loss)"), FormatDouble(1));
  EXPECT_EQ(Value("best(test/loss) < 3"), "absent");
  const Result<Expression> expression = Expression::Parse("a / b + valid/loss");
  ASSERT_TRUE(expression.ok());
  std::vector<std::string> uses;
  for (const Expression::NameUse& use : expression->names()) {
    uses.push_back(StrCat(use.name, "@", use.column, use.is_series ? " series" : ""));
  }
  EXPECT_THAT(uses, ElementsAre("a@1", "b@5", "valid/loss@9 series"));
}

// ME2 (kind 8): a number that is not finite matches nothing, however the comparison is turned.
TEST(Expression, NonFiniteNumbersMatchNothing) {
  for (const std::string_view text :
       {"nan < 1", "nan >= 1", "nan != 1", "nan = nan", "not (nan < 1)", "inf > 1", "inf in [1]",
        "1 / 0 > 5", "a % 0 = 1", "min(nan, 1) < 2", "max(1, nan) > 0", "log2(-1) < 9"}) {
    const Result<Expression> expression = Expression::Parse(text);
    ASSERT_TRUE(expression.ok()) << text;
    const Result<Truth> truth = expression->Test(Names());
    ASSERT_TRUE(truth.ok()) << text << ": " << truth.status().message();
    EXPECT_EQ(*truth, Truth::kUnknown) << text;
  }
}

// What is absent decides nothing; what is there may.
TEST(Expression, AbsentNamesFollowThreeValuedLogic) {
  const auto test = [](std::string_view text) { return *Expression::Parse(text)->Test(Names()); };
  EXPECT_EQ(test("missing = 1"), Truth::kUnknown);
  EXPECT_EQ(test("not missing = 1"), Truth::kUnknown);
  EXPECT_EQ(test("missing + 1 > 0"), Truth::kUnknown);
  EXPECT_EQ(test("missing = 1 or a = 8"), Truth::kTrue);
  EXPECT_EQ(test("missing = 1 or a = 9"), Truth::kUnknown);
  EXPECT_EQ(test("missing = 1 and a = 9"), Truth::kFalse);
  EXPECT_EQ(test("missing = 1 and a = 8"), Truth::kUnknown);
  EXPECT_EQ(test("missing in [1]"), Truth::kUnknown);
}

// Each with the column where it is.
TEST(Expression, ExplainsWhatIsWrong) {
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"", "column 1: the expression is empty"},
      {"a +", "column 4: a value was expected, found the end"},
      {"a b", "column 3: an operator was expected, found 'b'"},
      {"3e-4x < a", "column 1: '3e-4x' is not a number"},
      {"1e999", "column 1: '1e999' is not a number"},
      {"1.2.3", "column 1: '1.2.3' is not a number"},
      {"a < b < 3", "column 7: comparisons do not chain; join them with and"},
      {"(a", "column 3: ')' was expected, found the end"},
      {"a ! b", "column 3: '!' is not part of an expression; not is written as a word"},
      {"a && b", "column 3: '&&' is written and"},
      {"a | b", "column 3: '|' is not part of an expression; or is written as a word"},
      {"\"x", "column 1: the quote is not closed"},
      {"arm in [smoe]", "column 9: a list holds numbers and texts; write \"smoe\""},
      {"arm in []", "column 9: a value was expected, found ']'"},
      {"arm in smoe", "column 8: '[' was expected, found 'smoe'"},
      {"sqrt(a)",
       "column 1: 'sqrt' is not a function; known: min, max, abs, floor, ceil, log2, "
       "best, last"},
      {"min(a)", "column 1: min takes at least two values, 1 given"},
      {"abs(a, b)", "column 1: abs takes one value, 2 given"},
      {"best(a)", "column 6: best takes a series such as valid/loss, found 'a'"},
      // ME3: what has no direction has no best value; the last one is not to pass for it.
      {"best(train/lr) < 1",
       "column 6: 'train/lr' has no direction, so no best value; use last(...)"},
      {"not in", "column 5: a value was expected, found 'in'"},
      {"arm = 1", "column 5: \"smoe\" and 1 are of different types"},
      {"arm < \"x\"",
       "column 5: \"smoe\" and \"x\" have no order; only = and != are known for "
       "them"},
      {"arm + 1", "column 5: \"smoe\" is not a number"},
      {"arm and on", "column 1: \"smoe\" is not true or false; compare it with something"},
  };
  for (const auto& [text, message] : cases) {
    std::string expected = message;
    if (text == "arm = 1") {
      expected = StrCat("column 5: \"smoe\" and ", FormatDouble(1), " are of different types");
    }
    EXPECT_EQ(Value(text), expected) << text;
  }
  EXPECT_THAT(Value("a \xc3\xa9 b"), HasSubstr("column 3"));
  EXPECT_THAT(Value("\xff"), HasSubstr("not valid UTF-8"));
}

// Kind 15: whatever a file holds, the work is bounded.
TEST(Expression, BoundsDepthAndLength) {
  EXPECT_THAT(Value(std::string(200, '(') + "1" + std::string(200, ')')), HasSubstr("levels"));
  EXPECT_THAT(Value(std::string(200, '-') + "1"), HasSubstr("levels"));
  std::string nots;
  for (int i = 0; i < 200; ++i) nots += "not ";
  EXPECT_THAT(Value(nots + "on"), HasSubstr("levels"));
  std::string sum = "1";
  for (int i = 0; i < 200; ++i) sum += " + 1";
  EXPECT_THAT(Value(sum), HasSubstr("operators in a row"));
  // A long chain of conditions is not deep.
  std::string chain = "a = 8";
  for (int i = 0; i < 300; ++i) chain += " and a = 8";
  EXPECT_EQ(Value(chain), "true");
  EXPECT_THAT(Value(std::string(5000, '1')), HasSubstr("bytes"));
}

// Random texts of the language's own pieces: an answer or an error, and never a crash.
TEST(Expression, SurvivesRandomTexts) {
  const std::vector<std::string> pieces = {
      "a",   "arm", "valid/loss", "1",   "-7.5e-05", "\"x\"", "+",  "-", "*",   "/", "%",
      "=",   "==",  "!=",         "<",   ">=",       "(",     ")",  "[", "]",   ",", "in",
      "not", "and", "or",         "min", "best",     "true",  "\\", "'", "nan", "."};
  const RandomKey key = RandomKey::For(7, "expression_test");
  int parsed = 0;
  for (uint64_t i = 0; i < 20'000; ++i) {
    std::string text;
    const uint64_t length = 1 + RandomBelow(key.With(i), 0, 9);
    for (uint64_t k = 0; k < length; ++k) {
      text += pieces[RandomBelow(key.With(i), 2 * k + 1, pieces.size())];
      if (RandomBelow(key.With(i), 2 * k + 2, 3) != 0) text += " ";
    }
    const Result<Expression> expression = Expression::Parse(text);
    if (!expression.ok()) {
      EXPECT_FALSE(expression.status().message().empty()) << text;
      continue;
    }
    ++parsed;
    const Result<Truth> truth = expression->Test(Names());
    if (!truth.ok()) {
      EXPECT_THAT(truth.status().message(), HasSubstr("column ")) << text;
    }
  }
  EXPECT_GT(parsed, 500);
}

}  // namespace
}  // namespace switchyard::spec
