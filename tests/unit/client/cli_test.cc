#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/connection.h"
#include "client/exit_code.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

using ::testing::HasSubstr;

class SweepFile {
 public:
  explicit SweepFile(const std::string& text) {
    std::string pattern = "/tmp/switchyard-sweep-XXXXXX";
    const int fd = mkstemp(pattern.data());
    path_ = pattern;
    EXPECT_TRUE(WriteAll(fd, text, path_).ok());
    UniqueFd closes(fd);
  }
  ~SweepFile() { std::remove(path_.c_str()); }
  SweepFile(const SweepFile&) = delete;
  SweepFile& operator=(const SweepFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr char kSweep[] =
    "name: demo\n"
    "base:\n"
    "  kind: train\n"
    "  data: {files: {domains: {c: [\"/usr/include/*.h\"]}, tokens: bytes}}\n"
    "  model:\n"
    "    transformer_xl: {layers: 2, d_model: 32, heads: 2, d_head: 16, d_inner: 64}\n"
    "    moe: {layers: [0, 1], experts: 4, top_k: 2, router: {kind: smoe}}\n"
    "  train: {steps: 10, batch: 4, target_len: 16, optimizer: {adam: {lr: 7e-4}}}\n"
    "space:\n"
    "  grid: {model.moe.router.kind: [smoe, hash]}\n"
    "replicates: {seeds: [1, 2]}\n";

// Every verb explains itself, with examples.
TEST(Cli, HasHelpWithExamplesForEveryVerb) {
  for (const char* verb :
       {"submit", "plan", "ls", "show", "watch", "wait", "logs", "results", "metrics", "cancel",
        "explain", "worker", "status", "version", "completion"}) {
    const Ran ran = Invoke({verb, "--help"});
    EXPECT_EQ(ran.code, 0) << verb;
    EXPECT_NE(ran.out.find(StrCat("Examples:\n")), std::string::npos) << verb;
    EXPECT_NE(ran.out.find(StrCat("switchyard ", verb)), std::string::npos) << verb;
  }
}

// Mistakes on the command line are exit code 1, and never reach a coordinator.
TEST(Cli, RefusesBadUsage) {
  EXPECT_EQ(Invoke({}).code, kExitUsage);
  const Ran mistyped = Invoke({"sumbit", "x.yaml"});
  EXPECT_EQ(mistyped.code, kExitUsage);
  EXPECT_NE(mistyped.err.find("did you mean submit?"), std::string::npos) << mistyped.err;
  EXPECT_EQ(Invoke({"ls", "-o", "xml"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"ls", "--timeout", "-1"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"results", "x", "--best", "--last"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"wait"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"show", "Not A Name"}).code, kExitUsage);
}

// Without a coordinator the error lists where it was looked for.
TEST(Cli, SaysWhatWasTried) {
  const Ran gone = Invoke({"ls", "--server", "unix:/tmp/switchyard-no-such-socket"});
  EXPECT_EQ(gone.code, kExitInfrastructure);
  EXPECT_NE(gone.err.find("/tmp/switchyard-no-such-socket"), std::string::npos) << gone.err;
}

// The order of looking: flag, environment, the socket of the default data directory, /run.
TEST(ChooseServer, TakesTheFirstThatIsThere) {
  std::string pattern = "/tmp/switchyard-state-XXXXXX";
  const std::string state = mkdtemp(pattern.data());
  std::string server = "host:7443";
  const auto getenv = [&](const char* name) -> const char* {
    if (std::string(name) == "SWITCHYARD_SERVER") return server.empty() ? nullptr : server.c_str();
    return std::string(name) == "XDG_STATE_HOME" ? state.c_str() : nullptr;
  };
  EXPECT_EQ(ChooseServer("/a/b.sock", getenv)->address, "unix:/a/b.sock");
  EXPECT_EQ(ChooseServer("unix:///a/b.sock", getenv)->address, "unix:/a/b.sock");
  EXPECT_EQ(ChooseServer("", getenv)->address, "host:7443");
  server.clear();
  const std::string folder = state + "/switchyard/coordinator";
  ASSERT_TRUE(MakeDirectories(folder).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/switchyard.sock", "").ok());
  EXPECT_EQ(ChooseServer("", getenv)->address, "unix:" + folder + "/switchyard.sock");
  ASSERT_TRUE(RemoveTree(state).ok());
  const Result<ServerChoice> none = ChooseServer("", getenv);
  if (!none.ok()) {  // A coordinator of the machine's own may be in /run.
    EXPECT_NE(none.status().message().find("$SWITCHYARD_SERVER"), std::string::npos);
    EXPECT_NE(none.status().message().find(folder), std::string::npos);
  }
  EXPECT_EQ(ChooseServer("/" + std::string(200, 'x'), getenv).status().code(),
            Code::kInvalidArgument);
}

// CF1, CF2, CF3: all faults of a file at once, each with its place, and nothing is submitted.
TEST(Submit, ShowsEveryFaultWithItsPlace) {
  std::string text = kSweep;
  text.replace(text.find("top_k: 2"), 8, "top_kk: 2");
  text.replace(text.find("7e-4"), 4, "7e-4x");
  const SweepFile file(text);
  const FakeServer server({});
  const Ran ran = RunOn(server, {"submit", file.path()});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_NE(ran.err.find(file.path() + ":7:"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(file.path() + ":8:"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("top_k"), std::string::npos) << ran.err;
  EXPECT_EQ(server.LastRequest("SubmitSweep"), "");
}

// A script gets the name alone; the request has an id of its own and the overrides are laid in.
TEST(Submit, PrintsTheNameAloneWhenQuiet) {
  const SweepFile file(kSweep);
  const FakeServer server({});
  const Ran ran = RunOn(server, {"submit", file.path(), "--set", "train.steps=77", "-o", "quiet"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "demo\n");
  const std::string request = server.LastRequest("SubmitSweep");
  EXPECT_NE(request.find("\"77\""), std::string::npos) << request;
  EXPECT_NE(request.find("request_id: \""), std::string::npos);
  EXPECT_NE(RunOn(server, {"submit", file.path(), "-o", "quiet"}).out, "");
  EXPECT_NE(server.LastRequest("SubmitSweep"), request);
}

// The same file again is the same sweep, and that is said.
TEST(Submit, SaysThatTheSweepIsTheSame) {
  const SweepFile file(kSweep);
  const FakeServer server({.sweep_exists = true});
  const Ran ran = RunOn(server, {"submit", file.path()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("demo: 3 cells, 6 runs (1 reused)"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("same sweep"), std::string::npos) << ran.out;
}

// --dry-run and plan change nothing, with and without a coordinator.
TEST(Plan, ChangesNothing) {
  const SweepFile file(kSweep);
  const FakeServer server({});
  const Ran ran = RunOn(server, {"submit", file.path(), "--dry-run"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("31,885,068"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("note: model.moe.top_k is not used by dense"), std::string::npos);
  EXPECT_EQ(server.LastRequest("SubmitSweep"), "");

  const Ran offline = Invoke({"plan", file.path(), "-o", "json"});
  ASSERT_EQ(offline.code, 0) << offline.err;
  const auto plan = nlohmann::json::parse(offline.out, nullptr, false);
  ASSERT_FALSE(plan.is_discarded()) << offline.out;
  EXPECT_EQ(plan["name"], "demo");
  EXPECT_EQ(plan["runs"], 4);
  EXPECT_EQ(plan["plan"].size(), 2U);
  EXPECT_EQ(plan["plan"][0]["seeds"].dump(), "[1,2]");
  EXPECT_GT(plan["plan"][0]["params_total"], 1000);
  EXPECT_EQ(plan["plan"][0]["train_tokens"], 640);
}

// A failed run is exit code 2, unless the caller asked only for infrastructure or for nothing.
TEST(Wait, ReportsFailuresByExitCode) {
  EXPECT_EQ(RunOn(FakeServer({.polls_until_done = 3}), {"wait", "demo"}).code, kExitOk);
  const FakeServer server({.polls_until_done = 2, .has_failed_run = true});
  const Ran ran = RunOn(server, {"wait", "demo"});
  EXPECT_EQ(ran.code, kExitRunFailed);
  EXPECT_NE(ran.err.find("demo/6 failed: exit code 5"), std::string::npos) << ran.err;
  EXPECT_EQ(RunOn(server, {"wait", "demo", "--fail-on", "never"}).code, kExitOk);
  EXPECT_EQ(RunOn(server, {"wait", "demo", "--fail-on", "infra"}).code, kExitOk);
  EXPECT_EQ(RunOn(server, {"wait", "demo/1-5"}).code, kExitOk);
  EXPECT_EQ(RunOn(server, {"wait", "demo/6"}).code, kExitRunFailed);
  const FakeServer lost({.has_failed_run = true, .is_lost_to_infrastructure = true});
  EXPECT_EQ(RunOn(lost, {"wait", "demo", "--fail-on", "infra"}).code, kExitRunFailed);
}

// Submit with --wait ends as the runs ended.
TEST(Submit, WaitsForTheEnd) {
  const SweepFile file(kSweep);
  const FakeServer server({.polls_until_done = 3, .has_failed_run = true});
  EXPECT_EQ(RunOn(server, {"submit", file.path(), "--wait"}).code, kExitRunFailed);
}

// What the coordinator refuses becomes the exit code of its kind.
TEST(Cli, MapsRefusalsToExitCodes) {
  EXPECT_EQ(RunOn(FakeServer({.refuse_with = 7}), {"ls"}).code, kExitPermission);
  EXPECT_EQ(RunOn(FakeServer({.refuse_with = 16}), {"ls"}).code, kExitPermission);
  EXPECT_EQ(RunOn(FakeServer({.refuse_with = 6}), {"ls"}).code, kExitConflict);
  EXPECT_EQ(RunOn(FakeServer({.refuse_with = 13}), {"ls"}).code, kExitInfrastructure);
  EXPECT_EQ(RunOn(FakeServer({}), {"show", "other"}).code, kExitUsage);
}

// GR1: a coordinator that hangs ends the call at the deadline, with an error.
TEST(Cli, GivesUpOnASilentCoordinator) {
  const FakeServer server({.delay_ms = 1500});
  const auto start = std::chrono::steady_clock::now();
  const Ran ran = RunOn(server, {"results", "demo", "--timeout", "0.3"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(ran.code, kExitInfrastructure);
  EXPECT_LT(took.count(), 1.4);
  EXPECT_NE(ran.err.find("did not answer in time"), std::string::npos) << ran.err;
}

// All pages of a listing arrive, in every format.
TEST(List, ShowsRunsOfAllPages) {
  const FakeServer server({});
  const Ran table = RunOn(server, {"ls", "demo"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("demo/6"), std::string::npos) << table.out;
  const auto json = nlohmann::json::parse(RunOn(server, {"ls", "demo", "-o", "json"}).out);
  ASSERT_EQ(json.size(), 6U);
  EXPECT_EQ(json[1]["model.moe.router.kind"], "smoe");
  EXPECT_EQ(RunOn(server, {"ls", "demo", "-o", "quiet"}).out,
            "demo/1\ndemo/2\ndemo/3\ndemo/4\ndemo/5\ndemo/6\n");
  EXPECT_EQ(RunOn(server, {"ls", "--all", "-o", "quiet"}).out, "demo\n");
  EXPECT_NE(RunOn(server, {"ls"}).out.find("no live sweeps"), std::string::npos);
}

// A limit cuts the list across pages and says what is missing; 0 lists all.
TEST(List, LimitsRunsAndSaysSo) {
  const FakeServer server({});
  const Ran some = RunOn(server, {"ls", "demo", "--limit", "3"});
  EXPECT_NE(some.out.find("demo/3"), std::string::npos) << some.out;
  EXPECT_EQ(some.out.find("demo/4"), std::string::npos) << some.out;
  EXPECT_NE(some.err.find("the first 3 of 6 runs"), std::string::npos) << some.err;
  const Ran all = RunOn(server, {"ls", "demo", "--limit", "0"});
  EXPECT_NE(all.out.find("demo/6"), std::string::npos) << all.out;
  EXPECT_EQ(all.err, "");
}

// A hostile name does not reach the terminal as it is.
TEST(List, EscapesNames) {
  const FakeServer server({.has_name_with_escape = true});
  for (const char* format : {"table", "json", "quiet"}) {
    EXPECT_EQ(RunOn(server, {"ls", "--all", "-o", format}).out.find('\x1b'), std::string::npos);
  }
}

// The best comes first, the diverged run last as NaN, and JSON stays strict.
TEST(Results, PutTheDivergedRunLast) {
  const FakeServer server({});
  const auto rows = nlohmann::json::parse(RunOn(server, {"results", "last", "-o", "json"}).out);
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0]["name"], "demo/1");
  EXPECT_EQ(rows[0]["valid/bits_per_byte"], 2.25);
  EXPECT_EQ(rows[5]["name"], "demo/5");
  EXPECT_EQ(rows[5]["valid/bits_per_byte"], "NaN");
  const auto last =
      nlohmann::json::parse(RunOn(server, {"results", "last", "--last", "-o", "json"}).out);
  EXPECT_EQ(last[0]["valid/bits_per_byte"], 2.75);
}

// A row per cell has mean, deviation, n and the best of its seeds; a deviation of one value is
// none.
TEST(Results, AverageOverSeedsByCell) {
  const FakeServer server({});
  const auto rows =
      nlohmann::json::parse(RunOn(server, {"results", "demo", "--by", "cell", "-o", "json"}).out);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["model.moe.router.kind"], "value1");
  EXPECT_EQ(rows[0]["valid/bits_per_byte.mean"], 2.25);
  EXPECT_EQ(rows[0]["valid/bits_per_byte.sd"], 0.5);
  EXPECT_EQ(rows[0]["valid/bits_per_byte.best_run"], "demo/1");
  EXPECT_EQ(rows[1]["n"], 1);
  EXPECT_EQ(rows[1]["non_finite"], 1);
  EXPECT_TRUE(rows[1]["valid/bits_per_byte.sd"].is_null());
}

// What the question says reaches the coordinator as it was written.
TEST(Results, AskTheCoordinatorToFilterGroupAndOrder) {
  const FakeServer server({});
  const std::string where = "state = \"succeeded\" and valid/bits_per_byte < 1.2";
  ASSERT_EQ(RunOn(server, {"results", "demo", "--where", where, "--by", "train.lr,seed"}).code,
            kExitOk);
  EXPECT_THAT(server.LastRequest("GroupResults"),
              HasSubstr("filter: \"state = \\\"succeeded\\\" and valid/bits_per_byte < 1.2\" by: "
                        "\"train.lr\" by: \"seed\" series: \"valid/bits_per_byte\""));
  const Ran ran =
      RunOn(server, {"results", "demo", "--sort", "valid/accuracy", "--limit", "2", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(ran.out).size(), 2U);
  EXPECT_THAT(server.LastRequest("ListResults"),
              HasSubstr("order_by: \"valid/accuracy\" descending: true"));
  EXPECT_EQ(RunOn(server, {"results", "demo", "--by", "seed", "--sort", "seed"}).code, kExitUsage);
}

// Of a few rows the coordinator knows which are the best.
TEST(Results, LetTheCoordinatorOrderAFewRows) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"results", "demo", "--limit", "2"}).code, kExitOk);
  EXPECT_THAT(server.LastRequest("ListResults"),
              HasSubstr("page_size: 2 order_by: \"best(valid/bits_per_byte)\""));
  EXPECT_EQ(RunOn(server, {"results", "demo", "--limit", "2", "--metric", "valid/accuracy"}).code,
            kExitOk);
  EXPECT_THAT(server.LastRequest("ListResults"),
              HasSubstr("order_by: \"best(valid/accuracy)\" descending: true"));
}

// ME3: the best of a series without a direction is refused.
TEST(Results, RefuseTheBestOfWhatHasNoDirection) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"results", "demo", "--best", "--metric", "train/lr"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"results", "demo", "--last", "--metric", "train/lr"}).code, kExitOk);
}

// A time limit is a number of seconds, and one that is none is no limit at all.
TEST(Cli, RefusesALimitThatIsNone) {
  const FakeServer server({});
  for (const char* limit : {"0", "-1", "nan", "inf", "1e30", "x"}) {
    EXPECT_EQ(RunOn(server, {"ls", "--timeout", limit}).code, kExitUsage) << limit;
  }
  EXPECT_EQ(RunOn(server, {"ls", "--timeout", "5"}).code, kExitOk);
}

// The verdict comes first, in its own words; then what it rests on.
TEST(Compare, PrintsTheVerdictAndWhatItRestsOn) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"compare", "demo", "--by", "model.moe.router.kind"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("mcf against smoe: equivalent within ±0.01 bits per byte, 90 % "
                                 "interval [-0.004, 0.006], 8 pairs\n"));
  EXPECT_THAT(ran.out, HasSubstr("2.5 ± 0.25"));
  EXPECT_THAT(ran.out, HasSubstr("[-0.006, 0.008]"));
  EXPECT_THAT(ran.out, HasSubstr("test: paired_t over seeds, alpha 0.05, holm over 2 comparisons, "
                                 "look 2 of 2\n"));
  EXPECT_THAT(ran.out, HasSubstr("registered at submission, sha256 0123456789ab\n"));
  EXPECT_THAT(ran.out, HasSubstr("warning: unmatched tokens: smoe 1600, mcf 3200\n"));
  EXPECT_THAT(ran.out, HasSubstr("seed 3 of rmoe (informative)"));
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
}

TEST(Compare, SaysWhyAnAnswerIsExploratoryAndWhatHoldsAtAnyLook) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"compare", "demo", "--look", "3"});
  EXPECT_THAT(ran.out, HasSubstr("exploratory: look 3 of 2 planned\n"));
  EXPECT_THAT(ran.out, HasSubstr("mcf against smoe: at any number of looks p 0.75"));
}

TEST(Compare, SendsTheQuestionAsGiven) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"compare",      "demo",
                                 "--arm",        "few=model.moe.experts < 8",
                                 "--arm",        "many=model.moe.experts >= 8",
                                 "--against",    "few",
                                 "--margins",    "0.01,0.02",
                                 "--test",       "welch_t",
                                 "--correction", "bh",
                                 "--at",         "train.flops=1e12",
                                 "--match",      "params.total=0.05",
                                 "--pool",       "train.lr",
                                 "--tune",       "--chosen-on",
                                 "1,2",          "-o",
                                 "json"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const std::string sent = server.LastRequest("Compare");
  for (const char* part :
       {"arms { name: \"few\" filter: \"model.moe.experts < 8\" }", "against: \"few\"",
        "margins: 0.01 margins: 0.02", "test: COMPARE_TEST_WELCH_T", "correction: CORRECTION_BH",
        "at { id: \"train.flops\" value: 1000000000000",
        "match { id: \"params.total\" value: 0.05 }", "pool: \"train.lr\"", "tune: true",
        "chosen_on: 1 chosen_on: 2"}) {
    EXPECT_THAT(sent, HasSubstr(part));
  }
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["comparisons"][0]["pairs"][0]["finding"], "equivalent");
  EXPECT_EQ(json["comparisons"][0]["pairs"][1]["estimate"], "NaN");
}

TEST(Compare, RefusesWhatCannotBeMeant) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"compare", "demo", "--arm", "nothing"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"compare", "demo", "--at", "tokens"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"compare", "demo", "--test", "guess"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"compare", "demo/3"}).code, kExitUsage);
  const Ran csv = RunOn(server, {"compare", "demo", "-o", "quiet"});
  EXPECT_THAT(csv.out, HasSubstr("no verdict: 0 pairs"));
}

TEST(Power, PlansSeedsAndHours) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"power", "demo", "--margins", "0.01"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("to show equivalence within ±0.01: over 1,000,000 seeds (11 if "
                                 "the pilot's deviation is the true one)"));
  EXPECT_THAT(ran.out, HasSubstr("mcf: 0.5 GPU hours a run, mean of 4"));
  EXPECT_THAT(ran.out, HasSubstr("plan: 27 new seeds in every cell (the pilot's do not count), 27 "
                                 "GPU hours"));
  EXPECT_THAT(server.LastRequest("EstimatePower"), HasSubstr("power: 0.8"));
  const auto json = nlohmann::json::parse(RunOn(server, {"power", "demo", "-o", "json"}).out);
  EXPECT_EQ(json["pairs"][0]["goals"][0]["pairs_at_sd"], 11);
}

// Points with their steps; a value that is not finite is there, as text.
TEST(Metrics, PrintTheCurve) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"metrics", "3", "train/nats_per_token", "-o", "csv"}).out,
            "step,ms,attempt,train/nats_per_token\n"
            "10,1000,1,4.5\n20,2000,1,4\n30,3000,1,Inf\n40,4000,1,3\n50,5000,1,2.5\n");
  EXPECT_NE(RunOn(server, {"metrics", "demo/3"}).out.find("train/nats_per_token"),
            std::string::npos);
  EXPECT_EQ(RunOn(server, {"metrics", "3", "no/series"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"metrics", "3", "train/nats_per_token", "--attempts", "x"}).code,
            kExitUsage);
}

// Output comes whole and in order; escape sequences only where a file asks for raw bytes.
TEST(Logs, EscapeUnlessRawIntoAFile) {
  const FakeServer server({});
  const Ran safe = RunOn(server, {"logs", "demo/1"});
  EXPECT_EQ(safe.code, 0) << safe.err;
  EXPECT_EQ(safe.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(safe.out.substr(0, 14), "step 1\nstep 2 ");
  EXPECT_NE(safe.out.find("\nlast without end\n"), std::string::npos) << safe.out;
  EXPECT_EQ(RunOn(server, {"logs", "demo/1", "--raw"}).out,
            "step 1\nstep 2 \x1b[2J\nlast without end");
  EXPECT_EQ(RunOn(server, {"logs", "demo/1", "--raw"}, true).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(RunOn(server, {"logs", "demo/1", "-f"}).out, safe.out);
}

// What a worker without contact still has is told to be missing, and nobody waits for it for ever.
TEST(Logs, TellWhenTheRestHasNotCome) {
  const FakeServer server({.lacks_output = true});
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"logs", "demo/1"}, {"logs", "demo/1", "--follow"}}) {
    const Ran ran = RunOn(server, words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.out.find("\nlast without end\n"), std::string::npos) << ran.out;
    EXPECT_NE(ran.err.find("has not come from the worker yet"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(RunOn(FakeServer({}), {"logs", "demo/1"}).err, "");
}

// Cancel sends the reason, whole sweeps as one call, runs one by one.
TEST(Cancel, TakesSelectors) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"cancel", "demo", "--reason", "wrong lr"}).code, 0);
  EXPECT_NE(server.LastRequest("ControlSweep").find("wrong lr"), std::string::npos);
  EXPECT_NE(server.LastRequest("ControlSweep").find("ACTION_CANCEL"), std::string::npos);
  EXPECT_EQ(server.LastRequest("ControlRun"), "");
  const Ran ran = RunOn(server, {"cancel", "demo/2-3", "-o", "quiet"});
  EXPECT_EQ(ran.out, "demo/2\ndemo/3\n");
  EXPECT_NE(server.LastRequest("ControlRun").find("request_id"), std::string::npos);
}

// Every verb sends its own action, and a priority its number.
TEST(Control, SendsTheActionOfTheVerb) {
  const FakeServer server({});
  for (const auto& [verb, action] :
       {std::pair{"kill", "ACTION_KILL"}, std::pair{"pause", "ACTION_PAUSE"},
        std::pair{"resume", "ACTION_RESUME"}, std::pair{"prune", "ACTION_PRUNE"}}) {
    EXPECT_EQ(RunOn(server, {verb, "demo/2"}).code, 0) << verb;
    EXPECT_NE(server.LastRequest("ControlRun").find(action), std::string::npos) << verb;
  }
  EXPECT_EQ(RunOn(server, {"priority", "demo", "--to", "-7"}).code, 0);
  EXPECT_NE(server.LastRequest("ControlSweep").find("-7"), std::string::npos);
  EXPECT_EQ(RunOn(server, {"priority", "demo"}).code, 1) << "--to is missing";
}

// Seeds by number, or a file; not both and not neither.
TEST(Extend, SendsSeedsOrAFile) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"extend", "demo", "--replicates", "+2", "-o", "json"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)[0]["seeds_added"], 2);
  EXPECT_THAT(server.LastRequest("ExtendSweep"), HasSubstr("replicates: 2"));
  EXPECT_EQ(RunOn(server, {"extend", "demo"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"extend", "demo", "x.yaml", "--replicates", "1"}).code, kExitUsage);
}

// The settings of a fork are YAML values, checked by the coordinator.
TEST(Fork, SendsTheStepAndItsSettings) {
  const FakeServer server({});
  const Ran ran =
      RunOn(server, {"fork", "demo/3", "--at", "100", "--set", "train.steps=500", "-o", "quiet"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "demo-fork-3-100\n");
  EXPECT_THAT(server.LastRequest("ForkRun"), HasSubstr("step: 100"));
  EXPECT_THAT(server.LastRequest("ForkRun"), HasSubstr("path: \"train.steps\""));
  EXPECT_EQ(RunOn(server, {"fork", "demo/3", "--at", "100", "--set", "steps"}).code, kExitUsage);
  EXPECT_EQ(RunOn(server, {"fork", "demo/3"}).code, kExitUsage);
}

// A retry is one call per sweep, with the numbers of its runs.
TEST(Retry, AsksOncePerSweep) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"retry", "demo/2-3", "-o", "quiet"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "demo.2\n");
  EXPECT_NE(server.LastRequest("RetryRuns").find("3"), std::string::npos);
}

// Workers are named by id or host; a confirmed death has to be said.
TEST(Workers, AreControlled) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"worker", "drain", "host7", "--deadline", "120"}).code, 0);
  EXPECT_NE(server.LastRequest("ControlWorker").find("120000"), std::string::npos);
  EXPECT_EQ(RunOn(server, {"worker", "cordon", "host7", "--reason", "fan"}).code, 0);
  EXPECT_NE(server.LastRequest("ControlWorker").find("fan"), std::string::npos);
  const Ran fence = RunOn(server, {"worker", "fence", "host7"});
  EXPECT_EQ(fence.code, 1);
  EXPECT_NE(fence.err.find("--confirm-dead"), std::string::npos) << fence.err;
  EXPECT_NE(server.LastRequest("ControlWorker").find("CORDON"), std::string::npos);
  EXPECT_EQ(RunOn(server, {"worker", "fence", "host7", "--confirm-dead"}).code, 0);
}

// Runs and sweeps are shown by the same verb, also by their ids.
TEST(Show, KnowsRunsAndSweeps) {
  const FakeServer server({});
  const Ran run = RunOn(server, {"show", "demo/3"});
  EXPECT_NE(run.out.find("steps: 100"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("attempts"), std::string::npos);
  const Ran sweep = RunOn(server, {"show", "01890a5d-ac96-774b-bcce-b302099a8057"});
  EXPECT_EQ(sweep.code, 0) << sweep.err;
  EXPECT_NE(sweep.out.find("model.moe.router.kind: [dense, smoe, hash]"), std::string::npos)
      << sweep.out;
  const auto json = nlohmann::json::parse(RunOn(server, {"show", "3", "-o", "json"}).out);
  EXPECT_EQ(json["run"]["state"], "succeeded");
  EXPECT_EQ(json["run"]["columns"]["model.moe.router.kind"], "hash");
}

// Two specs: only what differs.
TEST(Show, DiffersTwoSpecs) {
  const FakeServer server({});
  const auto rows =
      nlohmann::json::parse(RunOn(server, {"show", "demo/1", "demo/4", "-o", "json"}).out);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["field"], "seed");
  EXPECT_EQ(rows[0]["left"], "1");
  EXPECT_EQ(rows[0]["right"], "2");
  EXPECT_THAT(RunOn(server, {"show", "demo/1", "demo/2"}).out, HasSubstr("are equal"));
  EXPECT_EQ(RunOn(server, {"show", "demo/1", "demo"}).code, kExitUsage);
}

// Small answers: why a run waits, who works, how the coordinator is.
TEST(Cli, AnswersAboutTheFleet) {
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"explain", "3"}).out, "waits for a slot: 2 of 2 busy\n");
  EXPECT_NE(RunOn(server, {"worker", "ls"}).out.find("host1"), std::string::npos);
  const auto status = nlohmann::json::parse(RunOn(server, {"status", "-o", "json"}).out);
  EXPECT_EQ(status["state"], "serving");
  EXPECT_EQ(status["slots"], 2);
  EXPECT_EQ(Invoke({"version"}).code, 0);
  EXPECT_NE(Invoke({"completion", "bash"}).out.find("watch)"), std::string::npos);
}

// In a pipe a line for each change; it ends with the sweep.
TEST(Watch, PrintsPlainLinesIntoAPipe) {
  const FakeServer server({.polls_until_done = 4});
  const Ran ran = RunOn(server, {"watch", "demo"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(ran.out.find("demo active 2/6 done, 4 active\n"), 0U) << ran.out;
  EXPECT_NE(ran.out.find("demo/3 active step 50/100 loss 2.5 entropy 0.75"), std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("demo completed 6/6 done\n"), std::string::npos) << ran.out;
}

// On a terminal frames replace each other, and the cursor is back at the end.
TEST(Watch, RedrawsOnATerminalAndRestoresIt) {
  const FakeServer server({.polls_until_done = 3});
  const Ran ran = RunOn(server, {"watch", "demo"}, true);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.find("\x1b[?25l"), 0U);
  EXPECT_NE(ran.out.find("A\r"), std::string::npos);
  EXPECT_EQ(ran.out.substr(ran.out.size() - 6), "\x1b[?25h");
  EXPECT_NE(ran.out.find("█▇×▃▁"), std::string::npos) << ran.out;
}

// One frame for a script or a document.
TEST(Watch, PrintsOneFrame) {
  const FakeServer server({.polls_until_done = 100});
  const Ran ran = RunOn(server, {"watch", "--once"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("1 worker, 2 of 2 slots busy"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("ENTROPY CURVE"), std::string::npos) << ran.out;
}

}  // namespace
}  // namespace switchyard::client
