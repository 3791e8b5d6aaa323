// Strategies in the reducer: what a coordinator killed in the middle proposes next, and when a
// drawn sweep completes.
#include "server/app/strategies.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "common/base/strings.h"
#include "common/spec/yaml_reader.h"
#include "tests/unit/server/app/reducer_world.h"

namespace switchyard::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSteps = 9;

std::string Document(const std::string& strategy) {
  return StrCat(R"(
name: drawn
base:
  kind: train
  data: {files: {domains: {a: ["/usr/include/*.h"]}, tokens: bytes}}
  model: {transformer_xl: {layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}
  train: {steps: 9, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-3}}}
  eval: {every_steps: 1}
space:
  log_uniform: {train.optimizer.adam.lr: [1e-5, 1e-1]}
objective: {metric: valid/bits_per_byte, goal: minimize}
)",
                strategy);
}

// The reducer over a file that outlives it, and an agent that trains everything that is wanted, a
// step of each run in each round.
class StrategiesTest : public ReducerTest {
 protected:
  struct Record {
    api::WantedAttempt wanted;
    uint64_t seq = 0;
    uint64_t step = 0;
    scheduler::RecordState state = scheduler::RecordState::kRunning;
    int32_t code = 0;
  };

  void SetUp() override {
    folder_ = ::testing::TempDir() + "/strategies_test_" + NewUuidV4().ToString();
    std::filesystem::create_directories(folder_);
    ReducerTest::SetUp();
  }
  void TearDown() override {
    ReducerTest::TearDown();
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<store::Store> MakeStore() override {
    auto store = store::OpenSqliteStore({.data_dir = folder_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return *std::move(store);
  }

  // As after a kill: nothing but the rows is left.
  void Restart() {
    ReducerTest::TearDown();
    ReducerTest::SetUp();
    ASSERT_EQ(RegisterWorker(slots_), "nonce");
  }

  static v1::SweepSpec Read(const std::string& strategy) {
    v1::SweepSpec spec;
    const auto faults = spec::ReadSweepYaml("drawn.yaml", Document(strategy), {}, &spec);
    EXPECT_TRUE(faults.empty()) << spec::ToString(faults);
    return spec;
  }

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
    if (record.seq == 0) {
      decoded->lines.push_back({.seq = ++record.seq, .covers = 1, .type = "hello", .json = "{}"});
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
        v1::RunSpec spec;
        ASSERT_TRUE(spec.ParseFromString(wanted.run_spec));
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
      if (record.step == kSteps) record.state = scheduler::RecordState::kExited;
    }
  }

  store::SweepInfo Sweep() {
    Waiter<store::SweepInfo> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()((*store)->FindSweep("drawn", false));
    });
    auto sweep = waiter.Wait();
    EXPECT_TRUE(sweep.ok()) << sweep.status().ToString();
    return *std::move(sweep);
  }

  // Per run in order of number: its cell, its learning rate, how it ended and at which step.
  std::vector<std::string> Story() {
    Waiter<store::RunPage> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()(
          (*store)->ListRuns({.sweep = std::nullopt, .states = {}, .series = {}}, "", 1000));
    });
    const auto page = waiter.Wait();
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    std::vector<std::string> story;
    for (const store::RunInfo& run : page->runs) {
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
    const auto submitted = Submit(Read(strategy));
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

  // The same in a coordinator of its own.
  void Again() {
    ReducerTest::TearDown();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    records_.clear();
    values_.clear();
    ReducerTest::SetUp();
  }

  std::string folder_;
  uint32_t slots_ = 2;
  std::map<Epoch, Record> records_;
  std::map<RunId, double> values_;
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
        "strategy: {tpe: {cells: 8, startup: 3}}",
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
  ASSERT_TRUE(Submit(Read("strategy: {asha: {cells: 6, min: 1, eta: 3, rule: promote}}")).ok());
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
  EXPECT_EQ(story.size(), 6u) << "no run beside those of the cells";
  EXPECT_GT(CountWith(story, "succeeded 9"), 0);
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

// Other sweeps are not asked for cells, and a strategy that is not served is refused by its name.
TEST_F(StrategiesTest, SaysWhatIsNotServed) {
  const auto grid = Submit(SmallSweep(1));
  ASSERT_TRUE(grid.ok());
  Waiter<api::AskReply> waiter;
  reducer_->Ask(grid->sweep.row.id, 0, waiter.callback());
  EXPECT_EQ(waiter.Wait().status().code(), Code::kFailedPrecondition);
  const auto pbt = Submit(Read("strategy: {pbt: {population: 4, every: 3}}"));
  EXPECT_THAT(pbt.status().message(), HasSubstr("strategy.pbt"));
}

}  // namespace
}  // namespace switchyard::app
