// Strategies in the reducer: what a coordinator killed in the middle proposes next, and when a
// drawn sweep completes.
#include "server/app/strategies.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "common/base/strings.h"
#include "common/spec/yaml_reader.h"
#include "server/api/sweep_changes.h"
#include "switchyard/v1/sweep_service.pb.h"
#include "tests/unit/server/app/reducer_world.h"

namespace switchyard::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBase[] = R"(
name: drawn
base:
  kind: train
  data: {files: {domains: {a: ["/usr/include/*.h"]}, tokens: bytes}}
  model: {transformer_xl: {layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}
  train: {steps: 9, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-3}}}
  eval: {every_steps: 1}
)";

std::string Document(const std::string& strategy) {
  return StrCat(kBase, R"(
space:
  log_uniform: {train.optimizer.adam.lr: [1e-5, 1e-1]}
objective: {metric: valid/bits_per_byte, goal: minimize}
)",
                strategy);
}

std::string GridDocument(const std::string& rates, const std::string& seeds) {
  return StrCat(kBase, "space: {grid: {train.optimizer.adam.lr: ", rates, "}}\n",
                "replicates: {seeds: ", seeds, "}\n",
                "objective: {metric: valid/bits_per_byte, goal: minimize}\n");
}

// The reducer over a file that outlives it, and an agent that trains everything that is wanted, a
// step of each run in each round.
class StrategiesTest : public ReducerTest {
 protected:
  struct Record {
    api::WantedAttempt wanted;
    uint64_t seq = 0;
    uint64_t step = 0;
    uint64_t steps = 0;  // of the run
    scheduler::RecordState state = scheduler::RecordState::kRunning;
    int32_t code = 0;
  };

  void SetUp() override {
    folder_ = ::testing::TempDir() + "/strategies_test_" + NewUuidV4().ToString();
    std::filesystem::create_directories(folder_);
    ReducerTest::SetUp();
  }
  void TearDown() override {
    End();
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<store::Store> MakeStore() override {
    auto store = store::OpenSqliteStore({.data_dir = folder_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return *std::move(store);
  }

  // Also its lock on the database.
  void End() {
    ReducerTest::TearDown();
    queries_.reset();
    reducer_.reset();
  }

  // As after a kill: nothing but the rows is left.
  void Restart() {
    End();
    ReducerTest::SetUp();
    ASSERT_EQ(RegisterWorker(slots_), "nonce");
  }

  static v1::SweepSpec ReadText(const std::string& text) {
    v1::SweepSpec spec;
    const auto faults = spec::ReadSweepYaml("drawn.yaml", text, {}, &spec);
    EXPECT_TRUE(faults.empty()) << spec::ToString(faults);
    return spec;
  }
  static v1::SweepSpec Read(const std::string& strategy) { return ReadText(Document(strategy)); }

  std::vector<scheduler::MemberReport> Reports() const {
    std::vector<scheduler::MemberReport> reports;
    for (const auto& [epoch, record] : records_) {
      scheduler::MemberReport& report = reports.emplace_back();
      report.run = record.wanted.run;
      report.ordinal = record.wanted.ordinal;
      report.epoch = epoch;
      report.state = record.state;
      if (record.state != scheduler::RecordState::kExited) continue;
      report.exit_code = record.code;
      report.end_class =
          record.code == 0 ? scheduler::EndClass::kOk : scheduler::EndClass::kStopped;
      report.complete = record.code == 0;
      report.evidence = "exit.json";
      report.last_seq = record.seq;
      report.final_step = record.step;
    }
    return reports;
  }

  void Append(Record& record) {
    auto decoded = std::make_shared<events::DecodedBatch>();
    const uint64_t first = record.seq + 1;
    const std::string digest = StrCat("\"digest\":\"sha256:", std::string(64, 'a'), "\"");
    if (record.seq == 0) {
      decoded->lines.push_back({.seq = ++record.seq, .covers = 1, .type = "hello", .json = "{}"});
      const std::string& resume = record.wanted.resume_path;
      if (const size_t dash = resume.rfind('-'); dash != std::string::npos) {
        record.step = *ParseUint64(resume.substr(dash + 1));
        decoded->lines.push_back({.seq = ++record.seq,
                                  .covers = 1,
                                  .type = "resume",
                                  .json = StrCat("{\"from\":\"", resume.substr(0, dash),
                                                 "\",\"step\":", record.step, ",", digest, "}")});
      }
    }
    const double value = values_.at(record.wanted.run) + 1.0 / static_cast<double>(++record.step);
    decoded->columns.push_back(
        {.name = "valid/bits_per_byte",
         .is_vector = false,
         .shape = {},
         .seqs = {++record.seq},
         .steps = {record.step},
         .ms = {5},
         .values = std::string(reinterpret_cast<const char*>(&value), sizeof(value))});
    decoded->lines.push_back(
        {.seq = ++record.seq,
         .covers = 1,
         .type = "ckpt",
         .json = StrCat("{\"step\":", record.step, ",\"bytes\":1,\"path\":\"",
                        record.wanted.epoch.value, "-", record.step, "\",", digest, "}")});
    const auto batch = api::PrepareBatch(decoded, record.wanted.epoch, 0, 0);
    ASSERT_TRUE(batch.ok()) << batch.status().ToString();
    api::AppendInput input;
    input.event = {.run = record.wanted.run,
                   .ordinal = record.wanted.ordinal,
                   .epoch = record.wanted.epoch,
                   .rank = 0,
                   .worker = worker_,
                   .first_seq = first,
                   .n = record.seq - first + 1,
                   .lines = (*batch)->facts,
                   .last_step = record.step};
    input.batch = *batch;
    Waiter<api::AppendReply> waiter;
    reducer_->Append(input, waiter.callback());
    const auto reply = waiter.Wait();
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    ASSERT_EQ(reply->committed, record.seq);
  }

  // One round; what is wanted is answered at once, for the worker says that it follows nothing yet.
  void Round() {
    applied_ = {};
    const auto desired = Beat(Reports());
    ASSERT_TRUE(desired.ok()) << desired.status().ToString();
    for (const scheduler::AttemptRef& gone : desired->gc) records_.erase(gone.epoch);
    for (const api::WantedAttempt& wanted : desired->want) {
      const auto [record, is_new] = records_.try_emplace(wanted.epoch);
      if (is_new) {
        record->second.wanted = wanted;
        v1::RunSpec& spec = specs_[wanted.run];
        ASSERT_TRUE(spec.ParseFromString(wanted.run_spec));
        record->second.steps = spec.train().steps();
        if (spec.init().restore() == v1::RESTORE_ALL) record->second.step = spec.init().step();
        values_[wanted.run] = std::abs(std::log10(spec.train().optimizer().adam().lr()) + 3);
      }
      if (wanted.intent != scheduler::Intent::kRun &&
          record->second.state == scheduler::RecordState::kRunning) {
        record->second.state = scheduler::RecordState::kExited;
        record->second.code = 75;
      }
    }
    for (auto& [epoch, record] : records_) {
      if (record.state != scheduler::RecordState::kRunning) continue;
      Append(record);
      if (record.step >= record.steps) record.state = scheduler::RecordState::kExited;
    }
  }

  store::SweepInfo Sweep(const std::string& name = "drawn") {
    Waiter<store::SweepInfo> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()((*store)->FindSweep(name, false));
    });
    auto sweep = waiter.Wait();
    EXPECT_TRUE(sweep.ok()) << sweep.status().ToString();
    return *std::move(sweep);
  }

  // Per run in order of number: its cell, its learning rate, how it ended and at which step.
  std::vector<store::RunInfo> Runs(const std::string& name = "drawn") {
    const SweepId sweep = Sweep(name).row.id;
    Waiter<store::RunPage> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()((*store)->ListRuns({.sweep = sweep, .states = {}, .series = {}}, "", 1000));
    });
    const auto page = waiter.Wait();
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    return page->runs;
  }

  std::vector<std::string> Story(const std::string& name = "drawn") {
    std::vector<std::string> story;
    for (const store::RunInfo& run : Runs(name)) {
      story.push_back(StrCat(run.link.number, " cell ", run.link.cell, " ",
                             run.link.columns.at(0).second, " seed ", run.row.seed, " ",
                             Name(run.status.state), " ", run.step));
    }
    return story;
  }

  std::vector<std::string> History(Uuid ref) {
    Waiter<std::vector<scheduler::HistoryRow>> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()((*store)->ListHistory(ref, 1000));
    });
    const auto rows = waiter.Wait();
    std::vector<std::string> kinds;
    for (const scheduler::HistoryRow& row : *rows) kinds.push_back(row.kind);
    return kinds;
  }

  // Submits and trains until the sweep has completed; `restart_every` 0: never killed.
  std::vector<std::string> Drive(const std::string& strategy, int restart_every) {
    return DriveText(Document(strategy), restart_every);
  }
  std::vector<std::string> DriveText(const std::string& text, int restart_every) {
    const auto submitted = Submit(ReadText(text));
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    EXPECT_EQ(RegisterWorker(slots_), "nonce");
    for (int round = 1; round <= 300 && !HasFatalFailure(); ++round) {
      Round();
      if (restart_every > 0 && round % restart_every == 0) Restart();
      if (IsTerminal(Sweep().status.state)) break;
    }
    EXPECT_EQ(Sweep().status.state, scheduler::SweepState::kCompleted);
    return Story();
  }

  void Finish(const std::string& name = "drawn") {
    for (int round = 0; round < 300 && !HasFatalFailure(); ++round) {
      Round();
      if (IsTerminal(Sweep(name).status.state)) break;
    }
    EXPECT_EQ(Sweep(name).status.state, scheduler::SweepState::kCompleted);
  }

  Result<api::ExtendReply> Extend(const std::string& text) {
    v1::ExtendSweepRequest request;
    request.set_sweep("drawn");
    *request.mutable_spec() = ReadText(text);
    Waiter<api::ExtendInput> planned;
    queries_->Post([&](Result<store::ReadStore*> store) {
      planned.callback()(api::PlanExtend(**store, request));
    });
    auto input = planned.Wait();
    if (!input.ok()) return input.status();
    Waiter<api::ExtendReply> waiter;
    reducer_->Extend(*std::move(input), waiter.callback());
    return waiter.Wait();
  }

  // The same in a coordinator of its own.
  void Again() {
    End();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    records_.clear();
    values_.clear();
    specs_.clear();
    ReducerTest::SetUp();
  }

  std::string folder_;
  uint32_t slots_ = 2;
  std::map<Epoch, Record> records_;
  std::map<RunId, double> values_;
  std::map<RunId, v1::RunSpec> specs_;
};

int CountWith(const std::vector<std::string>& story, const std::string& word) {
  return static_cast<int>(std::ranges::count_if(
      story, [&](const std::string& line) { return line.find(word) != std::string::npos; }));
}

// Killed after every round or never: the same cells, the same ends at the same steps (cases S1,
// S9).
TEST_F(StrategiesTest, AKilledCoordinatorDecidesTheSame) {
  for (const char* strategy :
       {"strategy: {random: {cells: 5, seed: 3}}", "strategy: {asha: {cells: 9, min: 1, eta: 3}}",
        "strategy: {asha: {cells: 6, min: 1, eta: 3, rule: promote}}",
        "strategy: {sobol: {cells: 5, seed: 3}}", "strategy: {tpe: {cells: 8, startup: 3}}",
        "strategy: {hyperband: {min: 1, eta: 3}}", "strategy: {pbt: {population: 4, every: 3}}",
        "strategy: {pbt: {population: 3, every: 4}}\nreplicates: {seeds: [1, 2]}",
        "strategy: {random: {cells: 8}}\nearly_stop: {median_stop: {grace: 2}}",
        "strategy: {asha: {cells: 4, min: 3, eta: 3}}\nreplicates: {seeds: [1, 2]}"}) {
    SCOPED_TRACE(strategy);
    const std::vector<std::string> whole = Drive(strategy, 0);
    Again();
    const std::vector<std::string> killed = Drive(strategy, 1);
    EXPECT_EQ(whole, killed);
    Again();
    if (HasFatalFailure()) return;
  }
}

// ASHA ends bad cells at a rung as stopped early, never as failed, and the sweep completes.
TEST_F(StrategiesTest, AshaStopsAtRungs) {
  const std::vector<std::string> story = Drive("strategy: {asha: {cells: 9, min: 1, eta: 3}}", 0);
  ASSERT_EQ(story.size(), 9u);
  EXPECT_GT(CountWith(story, "stopped_early"), 2);
  EXPECT_GT(CountWith(story, "succeeded 9"), 0);
  EXPECT_EQ(CountWith(story, "stopped_early") + CountWith(story, "succeeded"), 9);
  const std::vector<std::string> kinds = History(Sweep().row.id.value);
  EXPECT_THAT(kinds, Contains("strategy_proposed").Times(9));
  EXPECT_THAT(kinds, Contains("strategy_stopped"));
  EXPECT_THAT(kinds, Contains("strategy_exhausted").Times(1));
}

// A promoted cell is the same run, paused at its rung and resumed. What waits for its strategy is
// not started by a resume of the whole sweep.
TEST_F(StrategiesTest, PromotionsResumeTheSameRun) {
  ASSERT_TRUE(Submit(Read("strategy: {asha: {cells: 9, min: 1, eta: 3, rule: promote}}")).ok());
  ASSERT_EQ(RegisterWorker(slots_), "nonce");
  for (int round = 0; round < 4; ++round) Round();
  const auto paused = [this] {
    return Sweep().status.counts[static_cast<size_t>(scheduler::RunState::kPaused)];
  };
  EXPECT_GT(paused(), 0u);
  for (const scheduler::Verb verb : {scheduler::Verb::kPause, scheduler::Verb::kResume}) {
    api::SteerInput input;
    input.sweep = Sweep().row.id;
    input.verb = verb;
    Waiter<uint64_t> waiter;
    reducer_->Steer(input, waiter.callback());
    ASSERT_TRUE(waiter.Wait().ok());
  }
  EXPECT_GT(paused(), 0u);
  for (int round = 0; round < 200 && !IsTerminal(Sweep().status.state); ++round) Round();
  const std::vector<std::string> story = Story();
  EXPECT_EQ(Sweep().status.state, scheduler::SweepState::kCompleted);
  EXPECT_EQ(story.size(), 9u) << "no run beside those of the cells";
  EXPECT_GT(CountWith(story, "succeeded 9"), 0) << ::testing::PrintToString(story);
  EXPECT_THAT(History(Sweep().row.id.value), Contains("strategy_resumed"));
}

// A drawn sweep proposes to what can run, not all at once; what is being cancelled proposes
// nothing.
TEST_F(StrategiesTest, ProposesAsRunsEnd) {
  slots_ = 3;
  ASSERT_EQ(RegisterWorker(slots_), "nonce");
  const auto submitted = Submit(Read("strategy: {tpe: {cells: 20}}"));
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  Round();
  EXPECT_EQ(Sweep().status.proposed, 3u);
  EXPECT_EQ(Sweep().row.runs, 20u);
  api::SteerInput input;
  input.sweep = submitted->sweep.row.id;
  Waiter<uint64_t> waiter;
  reducer_->Steer(input, waiter.callback());
  ASSERT_TRUE(waiter.Wait().ok());
  for (int round = 0; round < 20 && !IsTerminal(Sweep().status.state); ++round) Round();
  EXPECT_EQ(Sweep().status.state, scheduler::SweepState::kCancelled);
  EXPECT_EQ(Sweep().status.proposed, 3u);
}

// Cells from outside: once per request, all of a call or nothing, and there after a kill.
TEST_F(StrategiesTest, TakesCellsFromOutside) {
  const auto submitted = Submit(Read("strategy: external"));
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  const SweepId sweep = submitted->sweep.row.id;
  ASSERT_EQ(RegisterWorker(slots_), "nonce");
  const auto tell = [&](api::TellInput input) {
    input.sweep = sweep;
    Waiter<api::TellReply> waiter;
    reducer_->Tell(std::move(input), waiter.callback());
    return waiter.Wait();
  };
  const auto ask = [&](uint64_t since) {
    Waiter<api::AskReply> waiter;
    reducer_->Ask(sweep, since, waiter.callback());
    return waiter.Wait();
  };
  const api::NamedValues good = {{"train.optimizer.adam.lr", "0.001"}};
  const std::string request = NewUuidV7().ToString();
  for (int i = 0; i < 2; ++i) {
    const auto told = tell({.cells = {good}, .stop = {}, .request_id = request});
    ASSERT_TRUE(told.ok()) << told.status().ToString();
    EXPECT_THAT(told->cells, ElementsAre(1u));
    Restart();
  }
  const auto refused =
      tell({.cells = {good, {{"train.optimizer.adam.lr", "7"}}}, .stop = {}, .request_id = {}});
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("cells[1]"));
  EXPECT_EQ(Sweep().status.proposed, 1u);
  const auto second = tell({.cells = {{{"train.optimizer.adam.lr", "0.01"}}},
                            .stop = {},
                            .close = true,
                            .request_id = {}});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_THAT(second->cells, ElementsAre(2u));
  for (int round = 0; round < 4; ++round) Round();
  auto asked = ask(0);
  ASSERT_TRUE(asked.ok()) << asked.status().ToString();
  ASSERT_EQ(asked->cells.size(), 2u);
  EXPECT_EQ(asked->ended, 0u);
  EXPECT_NEAR(asked->cells[1].value - asked->cells[0].value, 1, 1e-6);
  ASSERT_TRUE(tell({.cells = {}, .stop = {2}, .request_id = {}}).ok());
  EXPECT_EQ(tell({.cells = {}, .stop = {9}, .request_id = {}}).status().code(), Code::kNotFound);
  EXPECT_FALSE(tell({.cells = {good}, .stop = {}, .request_id = {}}).ok()) << "it is closed";
  for (int round = 0; round < 30 && !IsTerminal(Sweep().status.state); ++round) Round();
  EXPECT_EQ(Sweep().status.state, scheduler::SweepState::kCompleted);
  EXPECT_THAT(Story(), ElementsAre(HasSubstr("succeeded 9"), HasSubstr("stopped_early")));
  EXPECT_EQ(ask(0).status().code(), Code::kFailedPrecondition);
}

// Members of a population that fall behind are ended, and go on as forks of the best ones.
TEST_F(StrategiesTest, PbtForksFromCheckpoints) {
  slots_ = 4;
  const std::vector<std::string> story = Drive("strategy: {pbt: {population: 4, every: 3}}", 0);
  ASSERT_EQ(story.size(), 6u) << "a quarter of four is replaced after each of two generations";
  EXPECT_EQ(CountWith(story, "stopped_early"), 2);
  EXPECT_EQ(CountWith(story, "succeeded 9"), 4);
  std::map<RunId, double> rates;
  for (const auto& [run, spec] : specs_) rates[run] = spec.train().optimizer().adam().lr();
  int forks = 0;
  for (const store::RunInfo& run : Runs()) {
    const v1::RunSpec& spec = specs_.at(run.row.id);
    if (!spec.has_init()) continue;
    ++forks;
    EXPECT_EQ(spec.init().restore(), v1::RESTORE_ALL);
    EXPECT_GE(spec.init().step(), 3u);
    const auto parent = Uuid::Parse(spec.init().run());
    ASSERT_TRUE(parent.ok());
    EXPECT_NE(rates.at(run.row.id), rates.at({*parent})) << "it explores";
    // The best quarter is one member.
    for (const auto& [other, value] : values_) {
      if (!specs_.at(other).has_init()) {
        EXPECT_LE(values_.at({*parent}), value);
      }
    }
  }
  EXPECT_EQ(forks, 2);
}

// Equal budgets: each arm has its own strategy with its own cells.
TEST_F(StrategiesTest, EachArmHasItsOwnBudget) {
  std::string text = Document("strategy: {random: {cells: 3, per: [train.batch]}}");
  text.replace(text.find("space:\n"), 7, "space:\n  grid: {train.batch: [1, 2]}\n");
  const std::vector<std::string> story = DriveText(text, 0);
  ASSERT_EQ(story.size(), 6u);
  std::map<std::string, int> runs;
  std::map<std::string, std::set<std::string>> rates;
  for (const store::RunInfo& run : Runs()) {
    ++runs[run.link.columns.at(0).second];
    rates[run.link.columns.at(0).second].insert(run.link.columns.at(1).second);
  }
  EXPECT_EQ(runs["1"], 3);
  EXPECT_EQ(runs["2"], 3);
  EXPECT_EQ(rates["1"], rates["2"]) << "arms with the same dimensions draw the same values";
}

constexpr char kStages[] = R"(
stages:
  search:
    space: {grid: {train.optimizer.adam.lr: [1e-2, 1e-3, 1e-4]}}
    replicates: {seeds: [1, 2]}
    objective: {metric: valid/bits_per_byte, goal: minimize}
  confirm:
    needs: search
    select: {top: 1}
    from: spec
    replicates: {seeds: [5, 6, 7]}
    objective: {metric: valid/bits_per_byte, goal: minimize}
  tune:
    needs: confirm
    base: {kind: finetune, train: {steps: 4, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-5}}}}
)";

// A search, its best cell with more seeds, and children of these: each once, killed or not.
TEST_F(StrategiesTest, StagesFollowEachOther) {
  const std::vector<std::string> whole = DriveText(StrCat(kBase, kStages), 0);
  ASSERT_EQ(whole.size(), 12u);
  std::map<std::string, std::vector<store::RunInfo>> stages;
  for (const store::RunInfo& run : Runs()) {
    ASSERT_EQ(run.link.columns.at(0).first, "stage");
    stages[run.link.columns.at(0).second].push_back(run);
    EXPECT_EQ(run.status.state, scheduler::RunState::kSucceeded);
  }
  ASSERT_EQ(stages["search"].size(), 6u);
  ASSERT_EQ(stages["confirm"].size(), 3u);
  ASSERT_EQ(stages["tune"].size(), 3u);
  std::set<std::string> confirmed;
  std::set<uint64_t> seeds;
  for (const store::RunInfo& run : stages["confirm"]) {
    EXPECT_EQ(specs_.at(run.row.id).train().optimizer().adam().lr(), 1e-3);
    confirmed.insert(run.row.id.value.ToString());
    seeds.insert(run.row.seed);
  }
  EXPECT_THAT(seeds, ElementsAre(5u, 6u, 7u));
  for (const store::RunInfo& run : stages["tune"]) {
    const v1::RunSpec& spec = specs_.at(run.row.id);
    EXPECT_TRUE(confirmed.contains(spec.init().run())) << spec.init().run();
    EXPECT_EQ(spec.init().step(), 9u);
    EXPECT_EQ(spec.train().steps(), 4u);
  }
  Again();
  EXPECT_EQ(DriveText(StrCat(kBase, kStages), 3), whole);
}

// A drawn stage hands its best cell on, with the values that its strategy drew.
TEST_F(StrategiesTest, ADrawnStageIsConfirmed) {
  std::string stages = kStages;
  const std::string grid = "{grid: {train.optimizer.adam.lr: [1e-2, 1e-3, 1e-4]}}";
  stages.replace(stages.find(grid), grid.size(),
                 "{log_uniform: {train.optimizer.adam.lr: [1e-5, 1e-1]}}\n"
                 "    strategy: {random: {cells: 5, seed: 2}}");
  const std::string seeds = "{seeds: [1, 2]}";
  stages.replace(stages.find(seeds), seeds.size(), "{seeds: [1]}");
  const std::vector<std::string> whole = DriveText(StrCat(kBase, stages), 0);
  ASSERT_EQ(whole.size(), 11u);
  double best = 1e9;
  std::string wanted;
  std::set<std::string> confirmed;
  for (const store::RunInfo& run : Runs()) {
    const std::string& stage = run.link.columns.at(0).second;
    const std::string& rate = run.link.columns.at(1).second;
    if (stage == "confirm") confirmed.insert(rate);
    if (stage != "search" || values_.at(run.row.id) >= best) continue;
    best = values_.at(run.row.id);
    wanted = rate;
  }
  EXPECT_THAT(confirmed, ElementsAre(wanted));
  Again();
  EXPECT_EQ(DriveText(StrCat(kBase, stages), 3), whole);
}

// A stage that needs another sweep waits for its end, and takes its runs once.
TEST_F(StrategiesTest, AStageNeedsAnotherSweep) {
  ASSERT_TRUE(Submit(ReadText(GridDocument("[1e-2, 1e-3]", "[1]"))).ok());
  ASSERT_EQ(RegisterWorker(slots_), "nonce");
  const char* follow = R"(
name: follow
stages:
  tune:
    needs: {sweep: drawn, where: "train.optimizer.adam.lr < 5e-3"}
    from: last
    base: {kind: finetune, train: {steps: 4, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-5}}}}
)";
  const auto submitted = Submit(ReadText(follow));
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  EXPECT_TRUE(Runs("follow").empty());
  Finish();
  Restart();
  Finish("follow");
  const std::vector<store::RunInfo> runs = Runs("follow");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(specs_.at(runs[0].row.id).init().step(), 9u);
  const auto missing = Submit(ReadText(
      "name: other\nstages:\n  tune: {needs: {sweep: nowhere}, base: {kind: finetune, train: "
      "{steps: 4, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-5}}}}}\n"));
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
}

// An extension of a grid in the middle: cells and runs keep their numbers, each combination once.
TEST_F(StrategiesTest, ExtendsAGrid) {
  ASSERT_TRUE(Submit(ReadText(GridDocument("[1e-2, 1e-3, 1e-4]", "[1]"))).ok());
  ASSERT_EQ(RegisterWorker(slots_), "nonce");
  for (int round = 0; round < 3; ++round) Round();
  const std::vector<store::RunInfo> before = Runs();
  ASSERT_EQ(before.size(), 3u);
  const std::string more = GridDocument("[1e-2, 1e-3, 3e-3, 1e-4]", "[1, 2]");
  const auto reply = Extend(more);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->sweep.row.name, "drawn");
  EXPECT_EQ(reply->sweep.row.runs, 8u);
  Restart();
  const auto again = Extend(more);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_TRUE(again->existed);
  Finish();
  const std::vector<store::RunInfo> runs = Runs();
  ASSERT_EQ(runs.size(), 8u);
  std::set<std::pair<std::string, uint64_t>> seen;
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].link.number, i + 1);
    seen.insert({runs[i].link.columns.at(0).second, runs[i].row.seed});
    if (i < 3) {
      EXPECT_EQ(runs[i].row.id, before[i].row.id);
    }
    EXPECT_EQ(runs[i].link.cell == 4, runs[i].link.columns.at(0).second == "3e-3");
  }
  EXPECT_EQ(seen.size(), 8u);
  const auto less = Extend(GridDocument("[1e-2]", "[1, 2]"));
  EXPECT_THAT(less.status().message(), HasSubstr("missing"));
}

// Of a sweep that has ended, the extension is a child that shares its runs.
TEST_F(StrategiesTest, ExtendsASweepThatHasEnded) {
  DriveText(GridDocument("[1e-2, 1e-3]", "[1]"), 0);
  const std::vector<store::RunInfo> before = Runs();
  const auto reply = Extend(GridDocument("[1e-2, 1e-3]", "[1, 2]"));
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->sweep.row.name, "drawn.2");
  EXPECT_EQ(reply->sweep.row.parent, before[0].row.sweep);
  Finish("drawn.2");
  const std::vector<store::RunInfo> runs = Runs("drawn.2");
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].row.id, before[0].row.id);
  EXPECT_EQ(runs[1].row.id, before[1].row.id);
  EXPECT_EQ(runs[2].row.seed, 2u);
}

// More cells for a strategy: it begins with the points of the short sweep, and goes on.
TEST_F(StrategiesTest, ExtendsAStrategy) {
  for (const char* method : {"random", "sobol"}) {
    SCOPED_TRACE(method);
    const auto document = [&](int cells) {
      return Document(StrCat("strategy: {", method, ": {cells: ", cells, ", seed: 4}}"));
    };
    const std::vector<std::string> whole = DriveText(document(7), 0);
    Again();
    ASSERT_TRUE(Submit(ReadText(document(4))).ok());
    ASSERT_EQ(RegisterWorker(slots_), "nonce");
    Round();
    const auto reply = Extend(document(7));
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    Restart();
    Finish();
    EXPECT_EQ(Story(), whole);
    Again();
  }
}

// A run of its own that goes on from a checkpoint with other settings.
TEST_F(StrategiesTest, ForksARun) {
  DriveText(GridDocument("[1e-2, 1e-3]", "[1]"), 0);
  const auto fork = [&](uint64_t step, const char* path, const char* value) {
    v1::ForkRunRequest request;
    request.set_run("drawn/2");
    request.set_step(step);
    v1::SetEntry* set = request.add_sets();
    set->set_path(path);
    set->mutable_value()->set_scalar(value);
    Waiter<v1::SweepSpec> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      v1::SweepSpec spec;
      const Status status = api::PlanFork(**store, request, &spec);
      waiter.callback()(status.ok() ? Result<v1::SweepSpec>(spec) : status);
    });
    return waiter.Wait();
  };
  EXPECT_THAT(fork(4, "train.steps", "12").status().message(), HasSubstr("those at step 9"));
  EXPECT_THAT(fork(9, "train.step", "12").status().message(), HasSubstr("train.step"));
  const auto spec = fork(9, "train.steps", "12");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  const auto submitted = Submit(*spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  EXPECT_EQ(submitted->sweep.row.name, "drawn-fork-2-9");
  Finish("drawn-fork-2-9");
  const std::vector<store::RunInfo> runs = Runs("drawn-fork-2-9");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].step, 12u);
  EXPECT_EQ(specs_.at(runs[0].row.id).init().step(), 9u);
  EXPECT_TRUE(Submit(*spec)->existed);
}

// Other sweeps are not asked for cells.
TEST_F(StrategiesTest, OthersAreNotAsked) {
  const auto grid = Submit(SmallSweep(1));
  ASSERT_TRUE(grid.ok());
  Waiter<api::AskReply> waiter;
  reducer_->Ask(grid->sweep.row.id, 0, waiter.callback());
  EXPECT_EQ(waiter.Wait().status().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace switchyard::app
