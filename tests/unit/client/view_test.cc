#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client/commands/completion.h"
#include "client/commands/results_table.h"
#include "client/commands/runs.h"
#include "client/commands/show_diff.h"
#include "client/commands/watch_frame.h"
#include "client/exit_code.h"
#include "client/output/text.h"
#include "client/selector.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"

namespace switchyard::client {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Selector Parsed(const std::string& text) {
  const Result<Selector> selector = ParseSelector(text);
  EXPECT_TRUE(selector.ok()) << text << ": " << selector.status().ToString();
  return selector.ok() ? *selector : Selector{};
}

// Every form that the documentation lists is understood.
TEST(Selectors, TakeEveryForm) {
  EXPECT_EQ(Parsed("all").kind, Selector::Kind::kAll);
  EXPECT_EQ(Parsed("last").sweep, "last");
  EXPECT_EQ(Parsed("router-comparison.2").sweep, "router-comparison.2");
  EXPECT_EQ(Parsed("sweep:3-9").sweep, "3-9");
  EXPECT_EQ(Parsed("3-9").numbers, (std::vector<NumberRange>{{3, 9}}));
  EXPECT_EQ(Parsed("3-9").sweep, "last");
  EXPECT_EQ(Parsed("9,7,7-8").numbers, (std::vector<NumberRange>{{7, 8}, {9, 9}}));
  EXPECT_EQ(Parsed("demo/12").numbers, (std::vector<NumberRange>{{12, 12}}));
  EXPECT_EQ(Parsed("demo/1-3,8").numbers, (std::vector<NumberRange>{{1, 3}, {8, 8}}));
  EXPECT_EQ(Parsed("state:failed").state, "failed");
  EXPECT_EQ(Parsed("demo/state:active").sweep, "demo");
  EXPECT_EQ(Parsed("01890a5d-ac96-774b-bcce-b302099a8057").kind, Selector::Kind::kId);
}

// What cannot mean anything is refused with the forms, before any call.
TEST(Selectors, RefuseNonsense) {
  for (const char* text : {"", "0", "9-3", "3-", "demo/", "demo/x", "Demo", "a b", "state:broken",
                           "demo/state:", "../x", "1,,2", "99999999999999999999"}) {
    const Result<Selector> selector = ParseSelector(text);
    ASSERT_FALSE(selector.ok()) << text;
    EXPECT_EQ(ExitCodeOf(selector.status()), kExitUsage);
    EXPECT_NE(selector.status().message().find("forms:"), std::string::npos);
  }
}

// Single-run verbs get the name that the coordinator understands.
TEST(Selectors, NameOneRun) {
  EXPECT_EQ(*SingleRun("demo/3"), "demo/3");
  EXPECT_EQ(*SingleRun("3"), "3");
  EXPECT_FALSE(SingleRun("3-4").ok());
  EXPECT_FALSE(SingleRun("demo").ok());
}

// Headings are short but never the same for two axes.
TEST(AxisTitles, AreTheShortestDistinctEndings) {
  EXPECT_EQ(AxisTitles({"model.moe.router.kind", "train.optimizer.adam.lr"}),
            (std::vector<std::string>{"router", "lr"}));
  EXPECT_EQ(AxisTitles({"train.batch", "eval.batch"}),
            (std::vector<std::string>{"train.batch", "eval.batch"}));
}

ResultTable Results() {
  const auto row = [](uint64_t number, uint64_t seed, const char* router,
                      std::optional<double> loss) {
    return ResultRow{.name = StrCat("demo/", number),
                     .number = number,
                     .seed = seed,
                     .state = "succeeded",
                     .id = "",
                     .columns = {{"model.moe.router.kind", router}},
                     .values = {loss}};
  };
  return {.axes = {"model.moe.router.kind"},
          .metrics = {{.series = "valid/bits_per_byte", .title = "valid/bits_per_byte"}},
          .rows = {row(1, 1, "smoe", 3.0), row(2, 1, "hash", kNaN), row(3, 2, "smoe", 2.5),
                   row(4, 2, "hash", std::nullopt)}};
}

// The best run is first; a diverged one comes after all others, one without a value last of all.
TEST(ResultRows, AreOrderedWithNonFiniteLast) {
  EXPECT_EQ(RenderTable(RunResultsListing(Results()), 0),
            "RUN     router  SEED  STATE      valid/bits_per_byte\n"
            "demo/3  smoe       2  succeeded                  2.5\n"
            "demo/1  smoe       1  succeeded                    3\n"
            "demo/2  hash       1  succeeded                  NaN\n"
            "demo/4  hash       2  succeeded                    -\n");
}

// A run that needed several attempts is seen.
TEST(ResultRows, ShowAttemptsWhereOneNeededSeveral) {
  ResultTable table = Results();
  table.rows[0].attempts = 3;
  const std::string text = RenderTable(RunResultsListing(table), 0);
  EXPECT_NE(text.find("ATTEMPTS"), std::string::npos) << text;
}

// Two documents side by side: changed values, and fields that only one has.
TEST(DiffDocuments, ListsChangedAddedAndRemovedFields) {
  const Value left = Value::Members{
      {"seed", 1},
      {"model", Value::Members{{"router", Value::Members{{"smoe", Value::Members{}}}},
                               {"layers", Value::List{0, 1}}}}};
  const Value right = Value::Members{
      {"seed", 1},
      {"model", Value::Members{{"router", Value::Members{{"mcf", Value::Members{{"r", 8}}}}},
                               {"layers", Value::List{0, 2}}}}};
  std::string text;
  for (const FieldDifference& difference : DiffDocuments(left, right)) {
    text += StrCat(difference.path, ":", difference.left, ":", difference.right, "\n");
  }
  EXPECT_EQ(text, "model.router.smoe:{}:-\nmodel.layers:0 1:0 2\nmodel.router.mcf.r:-:8\n");
}

// A goal of maximize turns the order round, and not the place of NaN.
TEST(ResultRows, FollowTheGoal) {
  ResultTable table = Results();
  table.is_maximized = true;
  const Listing listing = RunResultsListing(table);
  EXPECT_EQ(listing.rows[0][0].value.ToText(), "demo/1");
  EXPECT_EQ(listing.rows[2][0].value.ToText(), "demo/2");
}

// A group shows mean, deviation, how many runs stand behind them, and its best run; NaN is no best.
TEST(ResultGroups, ShowMeanDeviationAndBest) {
  const std::vector<GroupRow> groups = {
      {.key = {"smoe"},
       .runs = 2,
       .values = {{.n = 2, .mean = 2.75, .sd = 0.353553, .best = 2.5, .best_run = "demo/3"}}},
      {.key = {"hash"},
       .runs = 2,
       .values = {{.non_finite = 1, .mean = kNaN, .sd = kNaN, .best = kNaN}}}};
  EXPECT_EQ(RenderTable(GroupListing({"model.moe.router.kind"}, Results().metrics, groups), 0),
            "router                   N  valid/bits_per_byte  BEST  OF RUN\n"
            "smoe                   2/2          2.75 ± 0.35   2.5  demo/3\n"
            "hash    0/2 (1 not finite)                  NaN     -\n");
}

// What the coordinator has ordered stays in its order.
TEST(ResultRows, KeepTheOrderOfTheCoordinator) {
  ResultTable table = Results();
  table.is_ordered = true;
  const Listing listing = RunResultsListing(table);
  EXPECT_EQ(listing.rows[0][0].value.ToText(), "demo/1");
  EXPECT_EQ(listing.rows[1][0].value.ToText(), "demo/2");
}

// A loss stands beside the verdict on its model, in words; groups that differ say so.
TEST(ResultRows, ShowTheVerdictOfTheAudit) {
  ResultTable table = Results();
  table.metrics.push_back({.series = kAuditCausality, .title = "CAUSALITY"});
  const std::optional<double> verdicts[] = {0, 1, 2, std::nullopt};
  for (size_t i = 0; i < 4; ++i) table.rows[i].values.push_back(verdicts[i]);
  const std::string text = RenderTable(RunResultsListing(table), 0);
  for (const char* line : {"2.5           noncausal\n", "3              causal\n",
                           "NaN  noncausal_training\n", "-                   -\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  const auto group = [](double mean, double sd) {
    return GroupRow{.key = {"smoe"},
                    .runs = 2,
                    .values = {{.n = 2, .mean = 2, .best = 2, .best_run = "demo/1"},
                               {.n = 2, .mean = mean, .sd = sd}}};
  };
  const std::string groups = RenderTable(
      GroupListing({"model.moe.router.kind"}, table.metrics, {group(2, 0), group(1, 1.4)}), 0);
  EXPECT_NE(groups.find("noncausal"), std::string::npos) << groups;
  EXPECT_NE(groups.find("mixed"), std::string::npos) << groups;
}

WatchView View() {
  return {.fleet = "1 worker, 2 of 2 slots busy",
          .sweeps = {{.name = "demo",
                      .state = "active",
                      .runs = 6,
                      .succeeded = 2,
                      .failed = 1,
                      .active = 2,
                      .waiting = 1,
                      .elapsed_seconds = 192,
                      .eta_seconds = 75}},
          .runs = {{.name = "demo/4",
                    .state = "active",
                    .label = "smoe",
                    .step = 1200,
                    .steps_total = 2000,
                    .loss = 2.3125,
                    .loss_curve = {5, 4, 3, 2.3125},
                    .entropy = 0.93,
                    .entropy_curve = {1, 0.5, 0.93},
                    .tokens_per_second = 11400,
                    .eta_seconds = 72},
                   {.name = "demo/5",
                    .state = "active",
                    .label = "dense",
                    .step = 0,
                    .steps_total = 2000,
                    .loss = {},
                    .entropy = {},
                    .tokens_per_second = {}}}};
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// A wide window shows everything: counts, bar, both curves, rate and time left.
TEST(WatchFrame, ShowsAllInAWideWindow) {
  EXPECT_EQ(
      Joined(RenderWatch(View(), {.columns = 130, .rows = 24})),
      "1 worker, 2 of 2 slots busy\n"
      "demo  active  3/6 done, 2 active, 1 queued, 1 failed  3m12s  eta 1m15s\n"
      "███████████████████████████████████▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓········"
      "··"
      "··"
      "····  50%\n"
      "\n"
      "RUN     CELL   STATE        STEP  PROGRESS      LOSS  LOSS CURVE  ENTROPY  ENTROPY CURVE  "
      "TOK/S    ETA\n"
      "demo/4  smoe   active  1200/2000  ██████····  2.3125  █▆▃▁          0.930  █▅█            "
      "11.4k  1m12s\n"
      "demo/5  dense  active     0/2000  ··········       -                    -                 "
      "    -      -\n");
}

// A narrow window keeps name, state, step and loss, and no line is wider than it.
TEST(WatchFrame, ShedsColumnsInANarrowWindow) {
  const std::vector<std::string> lines = RenderWatch(View(), {.columns = 44, .rows = 24});
  for (const std::string& line : lines) EXPECT_LE(CellWidth(line), 44U) << line;
  EXPECT_EQ(lines[4], "RUN     STATE        STEP    LOSS  ENTROPY");
  EXPECT_EQ(lines[5], "demo/4  active  1200/2000  2.3125    0.930");
}

// Nothing breaks in a window of any size, and the frame never scrolls it.
TEST(WatchFrame, FitsEveryWindow) {
  for (size_t columns = 1; columns <= 200; ++columns) {
    for (const size_t rows : {1U, 2U, 5U, 9U, 50U}) {
      const auto lines = RenderWatch(View(), {.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), rows > 1 ? rows - 1 : 1U);
      for (const std::string& line : lines) ASSERT_LE(CellWidth(line), columns) << line;
    }
  }
}

// Runs without a place are counted, not forgotten.
TEST(WatchFrame, CountsWhatDoesNotFit) {
  WatchView view = View();
  for (int i = 0; i < 50; ++i) view.runs.push_back(view.runs[0]);
  view.runs_hidden = 8;
  const auto lines = RenderWatch(view, {.columns = 100, .rows = 12});
  EXPECT_EQ(lines.size(), 10U);
  EXPECT_EQ(lines.back(), "… and 56 more active");
}

// ME2: a loss that is no number says so. Where a run shows its last good value instead, nobody sees
// that it has diverged.
TEST(WatchFrame, ShowsALossThatIsNotFinite) {
  WatchView view = View();
  view.runs[0].loss = kNaN;
  view.runs[0].entropy = std::numeric_limits<double>::infinity();
  view.runs[0].tokens_per_second = kNaN;
  EXPECT_EQ(PlainLine(view.runs[0]), "demo/4 active step 1200/2000 loss NaN entropy Inf NaN tok/s");
  const std::string row = RenderWatch(view, {.columns = 130, .rows = 24})[5];
  EXPECT_NE(row.find(" NaN  █▆▃▁"), std::string::npos) << row;
  EXPECT_NE(row.find("Inf"), std::string::npos) << row;
  const std::string absent = RenderWatch(view, {.columns = 130, .rows = 24})[6];
  EXPECT_EQ(absent.find("NaN"), std::string::npos) << absent;
}

// A colour marks the state and its end is marked too, so that nothing else is coloured.
TEST(WatchFrame, ColoursTheStateAlone) {
  const auto lines = RenderWatch(View(), {.columns = 130, .rows = 24, .has_color = true});
  EXPECT_NE(lines[5].find("\x1b[36mactive\x1b[0m"), std::string::npos);
}

// A frame replaces the one before it, also when the window has become narrower meanwhile.
TEST(WatchFrame, RedrawsInPlace) {
  EXPECT_EQ(Redraw({}, {"ab"}, 80), "\rab\x1b[K\n\x1b[J");
  EXPECT_EQ(Redraw({"one", "two"}, {"1"}, 80), "\x1b[2A\r1\x1b[K\n\x1b[J");
  EXPECT_EQ(Redraw({std::string(100, 'x'), "two"}, {"1"}, 40), "\x1b[4A\r1\x1b[K\n\x1b[J");
  EXPECT_EQ(Redraw({"\x1b[1mbold\x1b[0m"}, {}, 4), "\x1b[1A\r\x1b[J");
}

// Without a terminal a line says the same in plain words.
TEST(WatchFrame, HasAPlainForm) {
  EXPECT_EQ(PlainLine(View().sweeps[0]), "demo active 3/6 done, 2 active, 1 queued, 1 failed");
  EXPECT_EQ(PlainLine(View().runs[0]),
            "demo/4 active step 1200/2000 loss 2.3125 entropy 0.93 11.4k tok/s");
}

// Exit codes are what docs/cli.md says; scripts depend on the numbers.
TEST(ExitCodes, FollowTheCodes) {
  EXPECT_EQ(ExitCodeOf(OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(InvalidArgument("x")), 1);
  EXPECT_EQ(ExitCodeOf(NotFound("x")), 1);
  EXPECT_EQ(ExitCodeOf(Unavailable("x")), 3);
  EXPECT_EQ(ExitCodeOf(DeadlineExceeded("x")), 3);
  EXPECT_EQ(ExitCodeOf(PermissionDenied("x")), 4);
  EXPECT_EQ(ExitCodeOf(AlreadyExists("x")), 5);
}

std::string OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  char buffer[256];
  while (pipe != nullptr && fgets(buffer, sizeof buffer, pipe) != nullptr) out += buffer;
  if (pipe != nullptr) pclose(pipe);
  return out;
}

// The bash script loads, and completes verbs, options, words of an option and names of sweeps.
TEST(Completion, WorksInBash) {
  const std::vector<VerbWords> verbs = {
      {.name = "watch", .summary = "Follow", .options = {"--once"}, .takes_name = true},
      {.name = "worker", .summary = "Workers", .subverbs = {"ls"}}};
  const std::string script = CompletionScript("bash", verbs);
  const auto complete = [&](const std::string& words, int at) {
    return OutputOf(StrCat("bash -c '", "switchyard() { echo demo; echo other; }; eval \"$1\"; ",
                           "COMP_WORDS=(", words, "); COMP_CWORD=", at,
                           "; _switchyard; echo ${COMPREPLY[*]}' _ \"$(cat <<'END_OF_SCRIPT'\n",
                           script, "END_OF_SCRIPT\n)\""));
  };
  EXPECT_EQ(complete("switchyard w", 1), "watch worker\n");
  EXPECT_EQ(complete("switchyard watch d", 2), "demo\n");
  EXPECT_EQ(complete("switchyard -o json watch --", 4), "--once\n");
  EXPECT_EQ(complete("switchyard -o js", 2), "json jsonl\n");
  EXPECT_EQ(complete("switchyard worker l", 2), "ls\n");
}

// Scripts exist for the three shells and for no other.
TEST(Completion, CoversThreeShells) {
  const std::vector<VerbWords> verbs = {{.name = "ls", .summary = "List what's live"}};
  EXPECT_NE(CompletionScript("zsh", verbs).find("'ls:List what'\\''s live'"), std::string::npos);
  EXPECT_NE(CompletionScript("fish", verbs).find("-a ls"), std::string::npos);
  EXPECT_EQ(CompletionScript("tcsh", verbs), "");
}

// Protocol 3: after a restore two attempts of a run may share an ordinal; they are told apart.
TEST(Attempts, AnOrdinalThatIsSharedNamesTheNewerOne) {
  v1::RunDetail run;
  for (const auto& [ordinal, epoch] :
       std::vector<std::pair<uint32_t, uint64_t>>{{1, 10}, {2, 11}, {2, 20}}) {
    v1::Attempt* attempt = run.add_attempts();
    attempt->set_ordinal(ordinal);
    attempt->set_epoch(epoch);
  }
  EXPECT_EQ(AttemptText(run, run.attempts(0)), "1");
  EXPECT_EQ(AttemptText(run, run.attempts(1)), "2@11");
  EXPECT_EQ(AttemptText(run, run.attempts(2)), "2");
}

// What a search has stopped is not called cancelled; while the sweep lives some may be paused.
TEST(PlainLine, TellsStoppedFromCancelled) {
  WatchSweep sweep{.name = "asha", .state = "completed", .runs = 9, .succeeded = 2, .set_aside = 7};
  EXPECT_EQ(PlainLine(sweep), "asha completed 9/9 done, 7 stopped early");
  sweep.state = "active";
  sweep.succeeded = 1;
  sweep.cancelled = 1;
  EXPECT_EQ(PlainLine(sweep), "asha active 9/9 done, 1 cancelled, 7 stopped early or paused");
}

}  // namespace
}  // namespace switchyard::client
