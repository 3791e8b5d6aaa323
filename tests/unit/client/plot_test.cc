#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/exit_code.h"
#include "client/output/text.h"
#include "client/plot/figures.h"
#include "client/plot/gnuplot.h"
#include "client/plot/terminal_chart.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool HasGnuplot() { return RunGnuplot("print 1\nset print \"-\"\nprint 1\n").ok(); }

#define SWITCHYARD_NEEDS_GNUPLOT() \
  if (!HasGnuplot()) GTEST_SKIP() << "gnuplot is not installed (deploy/setup.sh does it)"

// Means and bands of values whose results are known: 1, 2, 3, 6.
TEST(Spread, KnowsItsBands) {
  const std::vector<double> values = {1, 2, 3, 6};
  EXPECT_EQ(SpreadOf(values, Band::kNone).mean, 3);
  EXPECT_EQ(SpreadOf(values, Band::kRange).low, 1);
  EXPECT_EQ(SpreadOf(values, Band::kRange).high, 6);
  // Variance 14 / 3; t(0.975, 3) = 3.18245.
  EXPECT_NEAR(SpreadOf(values, Band::kSd).high, 3 + 2.160247, 1e-6);
  EXPECT_NEAR(SpreadOf(values, Band::kInterval).low, 3 - 3.182446 * 2.160247 / 2, 1e-5);
  EXPECT_EQ(SpreadOf({4}, Band::kSd).low, 4);
  EXPECT_TRUE(std::isnan(SpreadOf({}, Band::kSd).mean));
}

// Only points that no other one beats in both; of equal ones the first; nothing that is not finite.
TEST(ParetoFront, KeepsWhatIsNotBeaten) {
  EXPECT_THAT(ParetoFront({{3, 1}, {1, 3}, {2, 3}, {2, 2}, {4, 1}, {0, kNaN}}, false),
              ElementsAre(Pair(1, 3), Pair(2, 2), Pair(3, 1)));
  EXPECT_THAT(ParetoFront({{1, 1}, {2, 3}, {3, 2}}, true), ElementsAre(Pair(1, 1), Pair(2, 3)));
  EXPECT_TRUE(ParetoFront({}, false).empty());
}

pb::Sweep SweepWith(const std::vector<std::string>& axes) {
  pb::Sweep sweep;
  sweep.set_name("demo");
  for (const std::string& axis : axes) sweep.add_axes(axis);
  sweep.mutable_objective()->set_metric("valid/accuracy");
  sweep.mutable_objective()->set_goal(pb::GOAL_MAXIMIZE);
  return sweep;
}

pb::Run RunWith(uint64_t number, const std::string& value, double best) {
  pb::Run run;
  run.set_number(number);
  run.set_name(StrCat("demo/", number));
  pb::AxisValue* column = run.add_columns();
  column->set_axis("arm");
  column->set_value(value);
  pb::SeriesSummary* summary = run.add_summary();
  summary->set_name("valid/accuracy");
  summary->set_count(2);
  summary->set_has_best(true);
  summary->set_best(best);
  summary->set_last(best - 1);
  return run;
}

TEST(GroupRuns, GroupsByAxesAndFields) {
  const pb::Sweep sweep = SweepWith({"arm"});
  const std::vector<pb::Run> runs = {RunWith(1, "a", 1), RunWith(2, "b", 2), RunWith(3, "a", 3)};
  const Result<std::vector<RunGroup>> groups = GroupRuns(sweep, runs, {"arm"});
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 2U);
  EXPECT_EQ((*groups)[0].label, "a");
  EXPECT_EQ((*groups)[0].runs.size(), 2U);
  EXPECT_EQ((*GroupRuns(sweep, runs, {"run"})).size(), 3U);
  EXPECT_EQ((*GroupRuns(sweep, runs, {}))[0].label, "demo");
  EXPECT_THAT(GroupRuns(sweep, runs, {"amr"}).status().message(), HasSubstr("--by amr"));
}

// ME3: best and last are not mixed up, and an axis that is a number is one.
TEST(NumberOf, TakesBestOrLastAsTheObjectiveSays) {
  pb::Sweep sweep = SweepWith({"arm"});
  const pb::Run run = RunWith(1, "1e-3", 0.75);
  EXPECT_EQ(NumberOf(sweep, run, "valid/accuracy"), 0.75);
  sweep.mutable_objective()->set_value(pb::OBJECTIVE_VALUE_LAST);
  EXPECT_EQ(NumberOf(sweep, run, "valid/accuracy"), -0.25);
  EXPECT_EQ(NumberOf(sweep, run, "arm"), 1e-3);
  EXPECT_EQ(NumberOf(sweep, run, "no/such"), std::nullopt);
}

// No byte of a text but letters, digits and blanks reaches gnuplot as it is.
TEST(GnuplotString, EscapesEverything) {
  EXPECT_EQ(GnuplotString("a B9"), "\"a B9\"");
  EXPECT_EQ(GnuplotString("\"\\`'@%{}^_"), R"("\042\134\140\047\100\045\173\175\136\137")");
  EXPECT_EQ(GnuplotString("é"), R"("\303\251")");
  // A digit behind an escape would be read as part of it.
  EXPECT_EQ(GnuplotString("3e-37"), R"("3e\055\063\067")");
  EXPECT_THAT(GnuplotString("a\nsystem"), Not(HasSubstr("\n")));
}

Figure HostileFigure(Figure::Kind kind, const std::string& text) {
  Figure figure;
  figure.kind = kind;
  figure.title = figure.x_label = figure.y_label = text;
  figure.lines = {
      {.label = text, .points = {{1, 2, 1.5, 2.5}, {2, kNaN, kNaN, kNaN}, {3, 1, 0.5, 1.5}}},
      {.label = text + "2", .points = {{2, 1, 1, 1}}, .is_dashed = true}};
  figure.groups = {{.label = text, .points = {{1, 2, text}, {2, 1, text}}},
                   {.label = text, .points = {{3, 3, text}}}};
  figure.front = {{1, 2}, {2, 1}};
  figure.bars = {{.label = text, .mean = 1, .low = 0.5, .high = 1.5},
                 {.label = "b", .mean = 2, .low = 2, .high = 2}};
  figure.matrices = {{.title = text, .rows = 2, .columns = 2, .values = {1, 2, kNaN, 4}},
                     {.title = text, .rows = 1, .columns = 2, .values = {1, 1}}};
  figure.axes = {{.name = text, .ticks = {{0, text}, {1, text}}},
                 {.name = "y", .ticks = {{0.5, text}}}};
  figure.parallel = {{.label = text, .places = {0, 0.5}, .color = 1},
                     {.label = text, .places = {1, kNaN}, .color = 2}};
  return figure;
}

// Names are data: no text of any figure makes gnuplot run a command, and every kind is drawn.
TEST(Gnuplot, DrawsEveryKindWhateverTheNamesAre) {
  SWITCHYARD_NEEDS_GNUPLOT();
  const TemporaryFolder folder;
  const std::string touched = folder.path() + "/touched";
  const std::string hostile =
      StrCat("'; system('touch ", touched, "'); \"`touch ", touched,
             "` @x 3e-37 %s %d {/Bold b} \\n \n!touch ", touched, "\n<b>&amp;");
  for (const auto kind : {Figure::Kind::kCurves, Figure::Kind::kPoints, Figure::Kind::kBars,
                          Figure::Kind::kHeatMap, Figure::Kind::kParallel}) {
    for (const auto canvas : {Canvas::Kind::kSvg, Canvas::Kind::kPng}) {
      const Result<std::string> picture = Draw(HostileFigure(kind, hostile), {.kind = canvas});
      ASSERT_TRUE(picture.ok()) << static_cast<int>(kind) << " " << picture.status().ToString();
      if (canvas == Canvas::Kind::kSvg) {
        EXPECT_THAT(*picture, HasSubstr("&lt;b>&amp;amp;"));
        EXPECT_THAT(*picture, HasSubstr("%s %d"));
        EXPECT_THAT(*picture, HasSubstr("3e-37"));
        EXPECT_THAT(*picture, HasSubstr("</svg>"));
      } else {
        EXPECT_EQ(picture->substr(1, 3), "PNG");
      }
    }
  }
  EXPECT_FALSE(FileExists(touched));
}

// Long labels of bars stay apart where they differ in their ends.
TEST(Gnuplot, CutsTicksInTheMiddle) {
  Figure figure;
  figure.kind = Figure::Kind::kBars;
  for (const char* end : {"A", "B"}) {
    figure.bars.push_back(
        {.label = std::string(40, 'x') + "é" + end, .mean = 1, .low = 1, .high = 1});
  }
  const std::string script = GnuplotScript(figure, {});
  EXPECT_THAT(script, HasSubstr(std::string(11, 'x') + R"(\342\200\246)" + std::string(10, 'x') +
                                R"(\303\251A")"));
  EXPECT_THAT(script, HasSubstr(R"(\303\251B")"));
}

// A gap is a gap: no line joins what lies on its two sides.
TEST(Gnuplot, LeavesGapsOpen) {
  SWITCHYARD_NEEDS_GNUPLOT();
  Figure figure;
  figure.lines = {
      {.label = "a",
       .points = {{1, 1, 1, 1}, {2, 1, 1, 1}, {3, kNaN, kNaN, kNaN}, {4, 2, 2, 2}, {5, 2, 2, 2}}}};
  const Result<std::string> gap = Draw(figure, {});
  figure.lines[0].points.erase(figure.lines[0].points.begin() + 2);
  const Result<std::string> joined = Draw(figure, {});
  ASSERT_TRUE(gap.ok() && joined.ok());
  EXPECT_NE(*gap, *joined);
}

// Without gnuplot the error says what to install.
TEST(Gnuplot, SaysWhenItIsMissing) {
  const char* path = getenv("PATH");
  const std::string before = path == nullptr ? "" : path;
  ASSERT_EQ(setenv("PATH", "/nonexistent", 1), 0);
  const Result<std::string> picture = Draw(HostileFigure(Figure::Kind::kCurves, "a"), {});
  ASSERT_EQ(setenv("PATH", before.c_str(), 1), 0);
  EXPECT_EQ(picture.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(picture.status().message(), HasSubstr("gnuplot-nox"));
}

TEST(Chart, ShadesHeatMapsFromLowestToHighest) {
  Figure figure;
  figure.kind = Figure::Kind::kHeatMap;
  figure.x_label = "expert";
  figure.y_label = "layer";
  figure.matrices = {{.title = "m", .rows = 1, .columns = 3, .values = {0, 2, kNaN}}};
  const std::string text = RenderChart(figure, {});
  EXPECT_THAT(text, HasSubstr("layer 0 │  ██××│"));
  EXPECT_THAT(text, HasSubstr("blank 0, █ 2"));
}

// A falling line goes from the upper left corner to the lower right one, between its own numbers.
TEST(Chart, DrawsACurveFromCornerToCorner) {
  Figure figure;
  figure.title = "t";
  figure.x_label = "step";
  figure.lines = {{.label = "a", .points = {{0, 8, 8, 8}, {100, 0, 0, 0}}}};
  const std::vector<std::string> lines =
      StrSplit(RenderChart(figure, {.columns = 24, .rows = 8}), '\n');
  ASSERT_EQ(lines.size(), 10U);
  EXPECT_EQ(lines[0], "t");
  EXPECT_THAT(lines[1], StartsWith("8 ┤⠉"));
  EXPECT_THAT(lines[4], AllOf(StartsWith("0 ┤"), EndsWith("A")));
  EXPECT_THAT(lines[6], AllOf(HasSubstr("0"), HasSubstr("50"), EndsWith("100")));
  EXPECT_THAT(lines[7], HasSubstr("step"));
  EXPECT_EQ(lines[8], "  A a");
}

// No text of a figure acts on the terminal, no line is wider than it, and every kind is drawn.
TEST(Chart, FitsAndIsHarmlessWhateverTheNamesAre) {
  for (const auto kind : {Figure::Kind::kCurves, Figure::Kind::kPoints, Figure::Kind::kBars,
                          Figure::Kind::kHeatMap, Figure::Kind::kParallel}) {
    Figure figure = HostileFigure(kind, "\x1b[2J\n\xe2\x80\xae" + std::string(200, 'x'));
    figure.matrices.resize(1);
    for (const size_t columns : {40U, 100U}) {
      const std::string text = RenderChart(figure, {.columns = columns, .rows = 14});
      EXPECT_THAT(text, Not(HasSubstr("\x1b")));
      for (const std::string& line : StrSplit(text, '\n')) {
        EXPECT_LE(CellWidth(line), columns) << static_cast<int>(kind) << " " << line;
      }
    }
    EXPECT_THAT(RenderChart(figure, {.has_color = true}), kind == Figure::Kind::kHeatMap
                                                              ? Not(HasSubstr("\x1b"))
                                                              : Not(HasSubstr("\x1b[2J")));
  }
  // Nothing finite is an empty frame, not a crash.
  Figure empty;
  empty.lines = {{.label = "a", .points = {{1, kNaN, kNaN, kNaN}}}, {.label = "b", .points = {}}};
  EXPECT_THAT(RenderChart(empty, {}), HasSubstr("A a"));
}

// A line per arm: the mean over its seeds at every step, values that are not finite in no mean and
// counted.
TEST(Plot, AveragesCurvesOverSeeds) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"plot", "demo", "--metric", "train/nats_per_token", "-o", "json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto points = nlohmann::json::parse(ran.out);
  ASSERT_EQ(points.size(), 15U);
  EXPECT_EQ(points[0]["line"], "dense (2 runs, 2 values not finite)");
  EXPECT_EQ(points[0]["x"], 10);
  EXPECT_EQ(points[0]["mean"], 4.5);
  EXPECT_EQ(points[2]["mean"], "NaN");
}

TEST(Plot, DrawsImportedCurvesBeside) {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> home = {{"XDG_DATA_HOME", folder.path()}};
  const std::string file =
      folder.Write("base.csv", "run,seed,step,train/nats_per_token\nx,1,10,3\nx,2,10,5\n");
  ASSERT_EQ(Invoke({"import", file}, false, home).code, 0);
  const FakeServer server({});
  const Ran ran = RunOn(server,
                        {"plot", "demo", "--metric", "train/nats_per_token", "--with", "base",
                         "--band", "range", "-o", "json"},
                        false, home);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto last = nlohmann::json::parse(ran.out).back();
  EXPECT_EQ(last["line"], "base: x (2 runs)");
  EXPECT_EQ(last["mean"], 4);
  EXPECT_EQ(last["low"], 3);
  EXPECT_EQ(last["high"], 5);
  const Ran other =
      RunOn(server, {"plot", "demo", "--metric", "train/lr", "--with", "base"}, false, home);
  EXPECT_EQ(other.code, kExitUsage);
  EXPECT_THAT(other.err, HasSubstr("it has train/nats_per_token"));
  EXPECT_EQ(RunOn(server, {"plot", "demo", "--with", "none"}, false, home).code, kExitUsage);
}

// Each arm's best run stands for it: experts of different seeds are not averaged.
TEST(Plot, ShowsTheLoadOfTheBestRun) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"plot", "demo", "--kind", "heatmap", "-o", "json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto rows = nlohmann::json::parse(ran.out);
  ASSERT_EQ(rows.size(), 18U);
  EXPECT_EQ(rows[0]["map"], "dense, demo/1, step 100");
  EXPECT_EQ(rows[5]["row"], "1");
  EXPECT_EQ(rows[5]["column"], "2");
  EXPECT_EQ(rows[5]["value"], 0.5);
  EXPECT_THAT(RunOn(server, {"plot", "demo", "--kind", "heatmap"}).out, HasSubstr("layer 1"));
}

// A scalar over two directions: rows are the other axes, columns the values of --x.
TEST(Plot, MapsAScalarOverAnAxis) {
  const FakeServer server({});
  const std::vector<std::string> ask = {"plot",    "demo", "--kind",
                                        "heatmap", "--x",  "model.moe.router.kind"};
  std::vector<std::string> as_json = ask;
  as_json.insert(as_json.end(), {"-o", "json"});
  const Ran ran = RunOn(server, as_json);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto rows = nlohmann::json::parse(ran.out);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1]["column"], "smoe");
  EXPECT_EQ(rows[0]["value"], (2.25 + 3) / 2);
  EXPECT_THAT(RunOn(server, ask).out, HasSubstr("router: dense, smoe, hash"));
}

TEST(Plot, WritesPictures) {
  SWITCHYARD_NEEDS_GNUPLOT();
  const TemporaryFolder folder;
  const FakeServer server({});
  for (const char* kind : {"curve", "bar", "parallel"}) {
    const std::string file = StrCat(folder.path(), "/", kind, ".svg");
    const Ran ran = RunOn(
        server, {"plot", "demo", "--kind", kind, "--out", file, "--metric",
                 std::string(kind) == "curve" ? "train/nats_per_token" : "valid/bits_per_byte"});
    EXPECT_EQ(ran.code, 0) << kind << ran.err;
    EXPECT_THAT(folder.Read(StrCat(kind, ".svg")), HasSubstr("</svg>"));
  }
  EXPECT_THAT(RunOn(server, {"plot", "demo", "--kind", "bar"}).out, HasSubstr("smoe"));
}

TEST(Plot, RefusesWhatItCannotDraw) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"plot", "demo", "--kind", "pie"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"plot", "demo", "--out", "x.pdf"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"plot", "demo", "--by", "no"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"plot", "demo/3"}).code, kExitUsage);
  const Ran none = RunOn(server, {"plot", "demo", "--metric", "no/such"});
  EXPECT_EQ(none.code, kExitUsage);
  EXPECT_THAT(none.err, HasSubstr("none of the 6 chosen runs of demo has a value of no/such"));
  const Ran pareto = RunOn(server, {"plot", "demo", "--kind", "pareto"});
  EXPECT_EQ(pareto.code, kExitUsage);
  EXPECT_THAT(pareto.err, HasSubstr("model/params_active"));
}

}  // namespace
}  // namespace switchyard::client
