#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/results/summaries.h"
#include "server/store/chunks.h"
#include "server/store/store.h"
#include "tests/suites/store_rows.h"

// What every Store does. Instantiate StoreSuite with a factory for each implementation.
namespace switchyard::store {

// One place that keeps rows over several openings.
class StoreHome {
 public:
  virtual ~StoreHome() = default;
  // The store of this place; the one before must be closed.
  virtual std::unique_ptr<Store> Open() = 0;
  // False where rows live only as long as the object.
  virtual bool IsDurable() const = 0;
};

struct StoreParam {
  std::string name;
  std::function<std::unique_ptr<StoreHome>()> make;
};

using scheduler::AttemptState;
using scheduler::CheckpointState;
using scheduler::EndClass;
using scheduler::LogStream;
using scheduler::MemberState;
using scheduler::RunState;
using scheduler::SweepState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

inline std::vector<uint64_t> StepsOf(const std::vector<CurvePoint>& points) {
  std::vector<uint64_t> steps;
  for (const CurvePoint& point : points) steps.push_back(point.step);
  return steps;
}

class StoreSuite : public ::testing::TestWithParam<StoreParam> {
 protected:
  void SetUp() override {
    home_ = GetParam().make();
    store_ = home_->Open();
    ASSERT_NE(store_, nullptr);
  }

  void Reopen() {
    if (!home_->IsDurable()) return;
    ASSERT_TRUE(store_->Close().ok());
    store_.reset();
    store_ = home_->Open();
    ASSERT_NE(store_, nullptr);
  }

  void Commit(const std::vector<Write>& writes) {
    const Status status = store_->Commit(writes);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  void IdleUntilDone() {
    for (int i = 0; i < 1000; ++i) {
      const Result<bool> more = store_->DoIdleWork(100);
      ASSERT_TRUE(more.ok()) << more.status().ToString();
      if (!*more) return;
    }
    FAIL() << "idle work without end";
  }

  // Sweep 1 with run 1 and its first attempt of epoch 10 on worker 1.
  void CommitOneRun() {
    Commit({MakeSweep(1), SweepStatus{.id = MakeSweepId(1), .proposed = 1, .counts = {0, 1}},
            MakeRun(1, 1), RunStatus{.id = MakeRunId(1)},
            LinkRow{.sweep = MakeSweepId(1), .number = 1, .run = MakeRunId(1), .cell = 1},
            MakeWorker(1)});
    CommitAttempt(1, 10, 1);
  }

  void CommitAttempt(uint64_t run, uint64_t epoch, uint32_t ordinal) {
    Commit({AttemptRow{.epoch = {epoch},
                       .run = MakeRunId(run),
                       .ordinal = ordinal,
                       .worker = MakeWorkerId(1)},
            AttemptStatus{.epoch = {epoch}, .start_reported = true}, StreamRow{.epoch = {epoch}},
            RunStatus{.id = MakeRunId(run),
                      .state = RunState::kActive,
                      .current_epoch = {epoch},
                      .attempts = ordinal}});
  }

  void CommitSweepOf(uint64_t sweep, uint64_t first_run, uint64_t runs) {
    std::vector<Write> writes = {MakeSweep(sweep)};
    for (uint64_t i = 0; i < runs; ++i) {
      writes.emplace_back(MakeRun(first_run + i, sweep));
      writes.emplace_back(RunStatus{.id = MakeRunId(first_run + i)});
      writes.emplace_back(LinkRow{.sweep = MakeSweepId(sweep),
                                  .number = i + 1,
                                  .run = MakeRunId(first_run + i),
                                  .cell = i + 1,
                                  .columns = {{"train.lr", std::to_string(i)}}});
    }
    writes.emplace_back(
        SweepStatus{.id = MakeSweepId(sweep), .proposed = runs, .counts = {0, runs}});
    Commit(writes);
  }

  CurvePage Curve(const CurveQuery& query) {
    Result<CurvePage> page = store_->GetCurve(query);
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    return page.ok() ? *std::move(page) : CurvePage{};
  }

  std::unique_ptr<StoreHome> home_;
  std::unique_ptr<Store> store_;
};

// Each row kind is written with every field set and read back through the query that shows it:
// a column that is bound wrongly would change an experiment's record without anybody's notice.
TEST_P(StoreSuite, GivesBackEveryFieldOfEveryRow) {
  const SweepStatus sweep_status{.id = MakeSweepId(1),
                                 .state = SweepState::kPaused,
                                 .proposed = 1,
                                 .retried = 2,
                                 .counts = {0, 0, 0, 1, 0, 0, 0, 0, 0, 0},
                                 .reason = "why",
                                 .ended_ms = 5,
                                 .slot_ms = 77,
                                 .priority = -4,
                                 .early_failures = {{.signature = "user exit 3", .count = 4}},
                                 .is_closed = true};
  const RunStatus run_status{
      .id = MakeRunId(1),
      .state = RunState::kActive,
      .current_epoch = {1ULL << 48 | 7},
      .attempts = 1,
      .priority = -9,
      .alternative = 1,
      .cancel_req = true,
      .prune_req = true,
      .user_fail = 1,
      .crash_fail = 2,
      .infra_fail = 3,
      .infra_streak = 4,
      .progress_step = 5,
      .active_ms = 6,
      .not_before_ms = 7,
      .evidence = {.signatures = {{.text = "unknown signal 11", .step = 12, .progress_step = 10}},
                   .workers = {{.worker = MakeWorkerId(1), .infra_ends = 2, .crashes = 1}},
                   .crashes = 1},
      .reason = "because",
      .queued_ms = 8,
      .started_ms = 9,
      .ended_ms = 10};
  const AttemptRow attempt{.epoch = {1ULL << 48 | 7},
                           .run = MakeRunId(1),
                           .ordinal = 1,
                           .worker = MakeWorkerId(1),
                           .pool = "default",
                           .assign_rev = 3,
                           .resume_epoch = {4},
                           .resume_step = 5,
                           .resume_path = "/checkpoints/5",
                           .created_ms = 6};
  const AttemptStatus attempt_status{.epoch = attempt.epoch,
                                     .state = AttemptState::kStopping,
                                     .intent = scheduler::Intent::kCancel,
                                     .stop_reason = scheduler::StopReason::kCancel,
                                     .grace_ms = 15000,
                                     .end_class = EndClass::kStopped,
                                     .reason = "asked",
                                     .start_reported = true,
                                     .resumed_epoch = {4},
                                     .resumed_step = 5,
                                     .final_step = 6,
                                     .running_ms = 7,
                                     .ended_ms = 8};
  const MemberRow member{.epoch = attempt.epoch,
                         .rank = 0,
                         .worker = MakeWorkerId(1),
                         .slots = {0, 1},
                         .state = MemberState::kStopping,
                         .exit_code = -1,
                         .signal = 9,
                         .end_class = EndClass::kInfra,
                         .complete = true,
                         .evidence = "pidfd"};
  const StreamRow stream{.epoch = attempt.epoch,
                         .rank = 0,
                         .acked = 11,
                         .declared_last = 12,
                         .stdout_end = 13,
                         .stderr_end = 14};
  const CheckpointRow checkpoint{.run = MakeRunId(1),
                                 .epoch = attempt.epoch,
                                 .step = 50,
                                 .state = CheckpointState::kPublished,
                                 .digest = "sha256:1",
                                 .bytes = 99,
                                 .path = "p",
                                 .store = "s",
                                 .pinned = true,
                                 .score = -0.0,
                                 .state_ms = 66};
  const CheckpointRow tombstone{.run = MakeRunId(1),
                                .epoch = attempt.epoch,
                                .step = 40,
                                .state = CheckpointState::kTombstoned,
                                .store = "s"};
  const UsageRow usage{.project = "default", .slot_seconds = 0.1, .at_ms = 5};
  const SummaryRow summary{.run = MakeRunId(1),
                           .series = "routing/load",
                           .is_vector = true,
                           .shape = {2, 4},
                           .last = -0.0,
                           .last_step = 3,
                           .has_best = true,
                           .best = 5e-324,
                           .best_step = 2,
                           .count = 4,
                           .non_finite = 1};
  const LinkRow link{.sweep = MakeSweepId(1),
                     .number = 1,
                     .run = MakeRunId(1),
                     .cell = 1,
                     .columns = {{"router", "smoe"}, {"lr", ""}}};
  const HistoryRow history{
      .at_ms = 1, .kind = "run_created", .ref = MakeRunId(1).value, .text = "created"};
  Commit({MakeSweep(1), sweep_status, MakeRun(1, 1), run_status, link, attempt, attempt_status,
          member, stream, checkpoint, tombstone, usage, summary,
          RunProgress{.run = MakeRunId(1), .step = 42}, MakeWorker(1), history});
  Reopen();

  const Result<SweepInfo> sweep = store_->FindSweep("sweep.1", true);
  ASSERT_TRUE(sweep.ok()) << sweep.status().ToString();
  const SweepRow expected = MakeSweep(1);
  EXPECT_EQ(std::tie(sweep->row.id, sweep->row.project, sweep->row.name, sweep->row.base_name,
                     sweep->row.spec_hash, sweep->row.rerun, sweep->row.spec, sweep->row.objective,
                     sweep->row.axes, sweep->row.cells, sweep->row.runs, sweep->row.created_ms),
            std::tie(expected.id, expected.project, expected.name, expected.base_name,
                     expected.spec_hash, expected.rerun, expected.spec, expected.objective,
                     expected.axes, expected.cells, expected.runs, expected.created_ms));
  EXPECT_EQ(std::tie(sweep->row.parent, sweep->row.budget_slot_ms, sweep->row.is_drawn),
            std::tie(expected.parent, expected.budget_slot_ms, expected.is_drawn));
  EXPECT_EQ(sweep->status, sweep_status);

  const Result<RunPage> runs = store_->ListRuns({.series = {"routing/load", "none"}}, "", 10);
  ASSERT_TRUE(runs.ok()) << runs.status().ToString();
  ASSERT_THAT(runs->runs, SizeIs(1));
  const RunInfo& run = runs->runs[0];
  const RunRow row = MakeRun(1, 1);
  EXPECT_EQ(
      std::tie(run.row.id, run.row.sweep, run.row.project, run.row.run_key, run.row.rerun,
               run.row.seed, run.row.router, run.row.priority, run.row.need, run.row.max_parallel,
               run.row.timeout_ms, run.row.steps_total, run.row.created_ms),
      std::tie(row.id, row.sweep, row.project, row.run_key, row.rerun, row.seed, row.router,
               row.priority, row.need, row.max_parallel, row.timeout_ms, row.steps_total,
               row.created_ms));
  EXPECT_EQ(std::tie(run.row.parent, run.row.policy), std::tie(row.parent, row.policy));
  EXPECT_EQ(run.status, run_status);
  EXPECT_EQ(run.link.columns, link.columns);
  EXPECT_EQ(run.sweep_name, "sweep.1");
  EXPECT_EQ(run.step, 42u);
  EXPECT_EQ(run.worker, MakeWorkerId(1));
  EXPECT_EQ(run.worker_host, "host1");
  ASSERT_THAT(run.summaries, SizeIs(1));
  const SummaryRow& read = run.summaries[0];
  EXPECT_EQ(std::tie(read.series, read.is_vector, read.shape, read.last_step, read.has_best,
                     read.best, read.best_step, read.count, read.non_finite),
            std::tie(summary.series, summary.is_vector, summary.shape, summary.last_step,
                     summary.has_best, summary.best, summary.best_step, summary.count,
                     summary.non_finite));
  EXPECT_TRUE(std::signbit(read.last));

  const Result<RunDocument> document = store_->GetRunDocument(MakeRunId(1));
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(document->spec, row.spec);
  EXPECT_EQ(document->attempt_spec, row.attempt_spec);

  const Result<std::vector<AttemptInfo>> attempts = store_->ListAttempts(MakeRunId(1));
  ASSERT_TRUE(attempts.ok());
  ASSERT_THAT(*attempts, SizeIs(1));
  const AttemptInfo& a = (*attempts)[0];
  EXPECT_EQ(
      std::tie(a.row.epoch, a.row.run, a.row.ordinal, a.row.worker, a.row.pool, a.row.assign_rev,
               a.row.resume_epoch, a.row.resume_step, a.row.resume_path, a.row.created_ms),
      std::tie(attempt.epoch, attempt.run, attempt.ordinal, attempt.worker, attempt.pool,
               attempt.assign_rev, attempt.resume_epoch, attempt.resume_step, attempt.resume_path,
               attempt.created_ms));
  EXPECT_EQ(a.status, attempt_status);
  ASSERT_THAT(a.members, SizeIs(1));
  const MemberRow& m = a.members[0];
  EXPECT_EQ(std::tie(m.epoch, m.rank, m.worker, m.slots, m.state, m.exit_code, m.signal,
                     m.end_class, m.complete, m.evidence),
            std::tie(member.epoch, member.rank, member.worker, member.slots, member.state,
                     member.exit_code, member.signal, member.end_class, member.complete,
                     member.evidence));
  EXPECT_THAT(a.streams, ElementsAre(stream));

  const Result<std::vector<CheckpointRow>> checkpoints = store_->ListCheckpoints(MakeRunId(1));
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_THAT(*checkpoints, SizeIs(2));
  const CheckpointRow& c = (*checkpoints)[1];
  EXPECT_EQ(std::tie(c.run, c.epoch, c.step, c.state, c.digest, c.bytes, c.path, c.store, c.pinned,
                     c.state_ms),
            std::tie(checkpoint.run, checkpoint.epoch, checkpoint.step, checkpoint.state,
                     checkpoint.digest, checkpoint.bytes, checkpoint.path, checkpoint.store,
                     checkpoint.pinned, checkpoint.state_ms));
  ASSERT_TRUE(c.score.has_value());
  EXPECT_TRUE(std::signbit(*c.score)) << "its bits are kept";
  EXPECT_FALSE((*checkpoints)[0].score.has_value());

  const Result<std::vector<HistoryRow>> events = store_->ListHistory(MakeRunId(1).value, 5);
  ASSERT_TRUE(events.ok());
  ASSERT_THAT(*events, SizeIs(1));
  EXPECT_EQ((*events)[0].kind, "run_created");
  EXPECT_EQ((*events)[0].text, "created");

  const Result<Snapshot> snapshot = store_->Load();
  ASSERT_TRUE(snapshot.ok());
  EXPECT_THAT(snapshot->workers, ElementsAre(MakeWorker(1)));
  EXPECT_EQ(snapshot->last_epoch, attempt.epoch);
  EXPECT_THAT(snapshot->sweeps, SizeIs(1));
  EXPECT_THAT(snapshot->runs, SizeIs(1));
  EXPECT_THAT(snapshot->links, SizeIs(1));
  EXPECT_THAT(snapshot->attempts, SizeIs(1));
  EXPECT_THAT(snapshot->members, SizeIs(1));
  EXPECT_THAT(snapshot->streams, ElementsAre(stream));
  EXPECT_THAT(snapshot->checkpoints, SizeIs(2)) << "the published one, and the tombstone";
  ASSERT_THAT(snapshot->usage, SizeIs(1));
  EXPECT_EQ(snapshot->usage[0].project, "default");
  EXPECT_EQ(snapshot->usage[0].slot_seconds, 0.1);
  EXPECT_THAT(snapshot->summaries, SizeIs(1));
  ASSERT_THAT(snapshot->progress, SizeIs(1));
  EXPECT_EQ(snapshot->progress[0].step, 42u);
}

// The second write of a commit contradicts the database: the first must be gone as well, or a
// decision would stand half made.
TEST_P(StoreSuite, UndoesTheWholeCommitWhenOneRowFails) {
  CommitOneRun();
  const Status status = store_->Commit(std::vector<Write>{
      MakeSweep(2), SweepStatus{.id = MakeSweepId(2)}, RunProgress{.run = MakeRunId(1), .step = 9},
      MakeChunk({10}, "train/x", 1, {1}, {1.0}), RunStatus{.id = MakeRunId(77)}});
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(store_->FindSweep("sweep.2", false).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->FindRun("sweep.1/1")->step, 0u);
  EXPECT_EQ(store_->GetCurve({.run = MakeRunId(1), .series = "train/x"}).status().code(),
            Code::kNotFound);
  // The same rows without the bad one go in afterwards: nothing is remembered wrongly.
  Commit(
      {MakeSweep(2), SweepStatus{.id = MakeSweepId(2)}, MakeChunk({10}, "train/x", 1, {1}, {1.0})});
  EXPECT_THAT(Curve({.run = MakeRunId(1), .series = "train/x"}).points, SizeIs(1));
}

// What a strategy knows is kept by sweep, bit for bit; the newest holds.
TEST_P(StoreSuite, KeepsTheStateOfAStrategy) {
  CommitOneRun();
  const auto state = [this](uint64_t sweep) {
    const Result<std::string> read = store_->GetStrategyState(MakeSweepId(sweep));
    return read.ok() ? *read : read.status().ToString();
  };
  EXPECT_THAT(state(1), HasSubstr("no strategy state"));
  const std::string first("a\0b\xff", 4);
  Commit({StrategyRow{.sweep = MakeSweepId(1), .state = first}});
  EXPECT_EQ(state(1), first);
  Commit({StrategyRow{.sweep = MakeSweepId(1), .state = std::string(100000, 'x')}});
  Reopen();
  EXPECT_EQ(state(1), std::string(100000, 'x'));
  EXPECT_THAT(state(2), HasSubstr("no strategy state"));
  const Write orphan = StrategyRow{.sweep = MakeSweepId(2), .state = first};
  EXPECT_EQ(store_->Commit(std::span(&orphan, 1)).code(), Code::kInternal);
}

// An extended sweep is found by its new document, and is drawn from then on.
TEST_P(StoreSuite, ExtendsASweep) {
  CommitOneRun();
  Commit({SweepExtension{.id = MakeSweepId(1),
                         .spec = "longer",
                         .spec_hash = "another",
                         .axes = {"a", "b"},
                         .cells = 7,
                         .runs = 14}});
  Reopen();
  const auto sweep = store_->FindSweep(MakeSweepId(1).value.ToString(), /*with_spec=*/true);
  ASSERT_TRUE(sweep.ok()) << sweep.status().ToString();
  EXPECT_EQ(sweep->row.spec, "longer");
  EXPECT_EQ(sweep->row.spec_hash, "another");
  EXPECT_THAT(sweep->row.axes, ElementsAre("a", "b"));
  EXPECT_EQ(sweep->row.cells, 7u);
  EXPECT_EQ(sweep->row.runs, 14u);
  EXPECT_TRUE(sweep->row.is_drawn);
  EXPECT_TRUE(store_->FindSweepByHash(sweep->row.project, "another").ok());
  const Write orphan = SweepExtension{.id = MakeSweepId(2)};
  EXPECT_EQ(store_->Commit(std::span(&orphan, 1)).code(), Code::kInternal);
}

// A finished sweep, run or attempt gets another state: refused, since a terminal row is what every
// other record refers to.
TEST_P(StoreSuite, LetsNoTerminalStateChange) {
  CommitOneRun();
  Commit({RunStatus{.id = MakeRunId(1), .state = RunState::kSucceeded},
          AttemptStatus{.epoch = {10}, .state = AttemptState::kSucceeded},
          SweepStatus{.id = MakeSweepId(1), .state = SweepState::kCompleted}});
  for (const Write& write :
       std::vector<Write>{RunStatus{.id = MakeRunId(1), .state = RunState::kQueued},
                          AttemptStatus{.epoch = {10}, .state = AttemptState::kLost},
                          SweepStatus{.id = MakeSweepId(1), .state = SweepState::kActive}}) {
    EXPECT_EQ(store_->Commit(std::span(&write, 1)).code(), Code::kInternal);
  }
  const Write again = RunStatus{.id = MakeRunId(1), .state = RunState::kSucceeded, .reason = "r"};
  EXPECT_TRUE(store_->Commit(std::span(&again, 1)).ok());
}

// The reply to a batch is lost and it comes again past the core's watermark: no point may be
// stored twice, before or after chunks were merged (case ME6).
TEST_P(StoreSuite, RefusesPointsThatAreStored) {
  CommitOneRun();
  for (uint64_t i = 0; i < 6; ++i) {
    std::vector<uint64_t> steps(100);
    for (size_t k = 0; k < steps.size(); ++k) steps[k] = i * 100 + k + 1;
    Commit({MakeChunk({10}, "train/x", i * 100 + 1, steps, std::vector<double>(100, 1.5))});
  }
  const std::vector<Write> again = {MakeChunk({10}, "train/x", 201, {201, 202}, {1, 2})};
  EXPECT_EQ(store_->Commit(again).code(), Code::kInternal);
  IdleUntilDone();
  Reopen();
  EXPECT_EQ(store_->Commit(again).code(), Code::kInternal);
  const std::vector<Write> event = {
      StreamEventRow{.epoch = {10}, .seq = 5, .kind = "log", .json = "{}"}};
  EXPECT_TRUE(store_->Commit(event).ok());
  EXPECT_EQ(store_->Commit(event).code(), Code::kInternal);
  EXPECT_THAT(Curve({.run = MakeRunId(1), .series = "train/x"}).points, SizeIs(600));
}

// A batch with NaN, infinities, -0.0 and a denormal comes back bit for bit: a diverged run is what
// must not be lost (case SQ3).
TEST_P(StoreSuite, KeepsEveryBitOfAValue) {
  CommitOneRun();
  std::vector<uint64_t> steps(100);
  std::vector<double> values(100, 0.1);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = i + 1;
  values[50] = std::numeric_limits<double>::quiet_NaN();
  values[51] = std::bit_cast<double>(0xfff8000000001234);
  values[52] = std::bit_cast<double>(0x7ff0000000000001);  // signalling
  values[53] = std::numeric_limits<double>::infinity();
  values[54] = -std::numeric_limits<double>::infinity();
  values[55] = -0.0;
  values[56] = 5e-324;
  Commit({MakeChunk({10}, "train/x", 1, steps, values)});
  IdleUntilDone();
  Reopen();
  const CurvePage page = Curve({.run = MakeRunId(1), .series = "train/x"});
  ASSERT_THAT(page.points, SizeIs(100));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(page.points[i].value), std::bit_cast<uint64_t>(values[i]))
        << i;
    EXPECT_EQ(page.points[i].ms, steps[i] * 10);
  }
}

// A vector point comes back with its shape and its non-finite elements.
TEST_P(StoreSuite, KeepsVectorsWhole) {
  CommitOneRun();
  ChunkColumns columns{
      .seqs = {1, 2}, .steps = {5, 10}, .ms = {1, 2}, .is_vector = true, .width = 4};
  const std::vector<float> values = {1, -0.0F, std::numeric_limits<float>::quiet_NaN(), 4,
                                     5, 6,     std::numeric_limits<float>::infinity(),  8};
  columns.values.assign(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  ChunkRow row{.epoch = {10},
               .series = "routing/load",
               .is_vector = true,
               .shape = {2, 2},
               .first_seq = 1,
               .last_seq = 2,
               .first_step = 5,
               .last_step = 10,
               .n = 2};
  EncodeChunk(columns, &row.blob);
  Commit({row});
  const CurvePage page = Curve({.run = MakeRunId(1), .series = "routing/load"});
  EXPECT_TRUE(page.is_vector);
  EXPECT_THAT(page.shape, ElementsAre(2, 2));
  ASSERT_THAT(page.points, SizeIs(2));
  EXPECT_EQ(std::memcmp(page.points[0].values.data(), values.data(), 16), 0);
  EXPECT_EQ(std::memcmp(page.points[1].values.data(), values.data() + 4, 16), 0);
}

// Attempt 2 resumed at step 4 of attempt 1, which had gone to 6: the curve shows 1-4 of the first
// and 5-8 of the second, not steps 5 and 6 twice. Pages and a first step cut the same points.
TEST_P(StoreSuite, ShowsTheCanonicalCurveByLineage) {
  CommitOneRun();
  Commit({MakeChunk({10}, "train/x", 1, {1, 2, 3}, {1, 2, 3}),
          MakeChunk({10}, "train/x", 4, {4, 5, 6}, {4, 5, 6})});
  CommitAttempt(1, 20, 2);
  Commit({AttemptStatus{
              .epoch = {20}, .start_reported = true, .resumed_epoch = {10}, .resumed_step = 4},
          MakeChunk({20}, "train/x", 1, {5, 6, 7, 8}, {50, 60, 70, 80})});
  const CurvePage page = Curve({.run = MakeRunId(1), .series = "train/x"});
  EXPECT_THAT(StepsOf(page.points), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(page.points[3].attempt, 1u);
  EXPECT_EQ(page.points[4].attempt, 2u);
  EXPECT_EQ(page.points[4].value, 50);
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x", .attempt = 1}).points),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x", .from_step = 4}).points),
              ElementsAre(4, 5, 6, 7, 8));
  EXPECT_EQ(store_->GetCurve({.run = MakeRunId(1), .series = "train/y"}).status().code(),
            Code::kNotFound);

  CurveQuery query{.run = MakeRunId(1), .series = "train/x", .limit = 3};
  std::vector<uint64_t> steps;
  do {
    const CurvePage part = Curve(query);
    ASSERT_LE(part.points.size(), 3u);
    for (const uint64_t step : StepsOf(part.points)) steps.push_back(step);
    query.page = part.next;
  } while (!query.page.empty());
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  query.page = Curve({.run = MakeRunId(1), .series = "train/x", .limit = 3}).next;
  query.series = "train/y";
  EXPECT_EQ(store_->GetCurve(query).status().code(), Code::kInvalidArgument);
}

// A third attempt reports that it fell back to step 2 while a reader pages: the reader finishes the
// curve that it began, and the next one sees the new.
TEST_P(StoreSuite, PagesOneCurveThroughAResume) {
  CommitOneRun();
  Commit({MakeChunk({10}, "train/x", 1, {1, 2, 3, 4}, {1, 2, 3, 4})});
  CurveQuery query{.run = MakeRunId(1), .series = "train/x", .limit = 2};
  query.page = Curve(query).next;
  CommitAttempt(1, 30, 2);
  Commit({AttemptStatus{
              .epoch = {30}, .start_reported = true, .resumed_epoch = {10}, .resumed_step = 2},
          MakeChunk({30}, "train/x", 1, {3}, {30})});
  EXPECT_THAT(StepsOf(Curve(query).points), ElementsAre(3, 4));
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x"}).points),
              ElementsAre(1, 2, 3));
}

// Steps that fall inside an attempt (lenient_steps) come in order of step, then of arrival, over
// pages too.
TEST_P(StoreSuite, OrdersStepsThatFell) {
  CommitOneRun();
  Commit({MakeChunk({10}, "train/x", 1, {1, 3, 2}, {1, 3, 2}),
          MakeChunk({10}, "train/x", 4, {2, 5}, {22, 5})});
  CurveQuery query{.run = MakeRunId(1), .series = "train/x", .limit = 2};
  std::vector<double> values;
  do {
    const CurvePage part = Curve(query);
    for (const CurvePoint& point : part.points) values.push_back(point.value);
    query.page = part.next;
  } while (!query.page.empty());
  EXPECT_THAT(values, ElementsAre(1, 2, 22, 3, 5));
  // Merged with what came in order, and read again: nothing is lost, and a window cuts by step.
  Commit({MakeChunk({10}, "train/x", 6, {6, 7, 1}, {6, 7, 11})});
  IdleUntilDone();
  Reopen();
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x"}).points),
              ElementsAre(1, 1, 2, 2, 3, 5, 6, 7));
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x", .from_step = 5}).points),
              ElementsAre(5, 6, 7));
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x", .limit = 1}).points),
              ElementsAre(1));
  const Result<std::vector<SummaryRow>> rows = store_->RebuildSummaries(MakeRunId(1), Epoch{10}, 6);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ((*rows)[0].count, 7u);
  EXPECT_EQ((*rows)[0].last, 6);
  EXPECT_EQ((*rows)[0].last_step, 6u);
}

// GR4: a page of large vectors is cut to what a message carries, and the next pages have the rest.
TEST_P(StoreSuite, BoundsAPageOfVectorsByItsBytes) {
  CommitOneRun();
  constexpr uint32_t kWidth = 1 << 20;
  for (uint64_t seq = 1; seq <= 6; ++seq) {
    ChunkColumns columns{
        .seqs = {seq}, .steps = {seq}, .ms = {seq}, .is_vector = true, .width = kWidth};
    columns.values.assign(kWidth * sizeof(float), '\0');
    ChunkRow row{.epoch = {10},
                 .series = "routing/load",
                 .is_vector = true,
                 .shape = {kWidth},
                 .first_seq = seq,
                 .last_seq = seq,
                 .first_step = seq,
                 .last_step = seq,
                 .n = 1};
    EncodeChunk(columns, &row.blob);
    Commit({row});
  }
  CurveQuery query{.run = MakeRunId(1), .series = "routing/load", .limit = 100};
  const CurvePage first = Curve(query);
  EXPECT_THAT(StepsOf(first.points), ElementsAre(1, 2, 3, 4));
  query.page = first.next;
  const CurvePage second = Curve(query);
  EXPECT_THAT(StepsOf(second.points), ElementsAre(5, 6));
  EXPECT_EQ(second.next, "");
}

// A resume at step 3 rebuilds the summaries from what remains: best and last of the points that
// were cut away must not stay (cases ME2, ME3).
TEST_P(StoreSuite, RebuildsSummariesBelowAStep) {
  CommitOneRun();
  Commit({MakeChunk({10}, "valid/word_ppl", 1, {1, 2, 3, 4},
                    {30, 20, std::numeric_limits<double>::quiet_NaN(), 1}),
          MakeChunk({10}, "train/lr", 5, {1, 4}, {-1.2, -7.539e-05})});
  Result<std::vector<SummaryRow>> rows = store_->RebuildSummaries(MakeRunId(1), Epoch{10}, 3);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_THAT(*rows, SizeIs(2));
  EXPECT_EQ((*rows)[0].series, "train/lr");
  EXPECT_FALSE((*rows)[0].has_best);
  EXPECT_EQ((*rows)[0].count, 1u);
  const SummaryRow& ppl = (*rows)[1];
  EXPECT_TRUE(ppl.has_best);
  EXPECT_EQ(ppl.best, 20);
  EXPECT_EQ(ppl.best_step, 2u);
  EXPECT_TRUE(std::isnan(ppl.last));
  EXPECT_EQ(ppl.last_step, 3u);
  EXPECT_EQ(ppl.count, 3u);
  EXPECT_EQ(ppl.non_finite, 1u);
  EXPECT_THAT(*store_->RebuildSummaries(MakeRunId(1), Epoch{}, 3), IsEmpty());
  Commit({(*rows)[0], SummaryReset{.run = MakeRunId(1)}, ppl});
  ASSERT_THAT(*store_->ListSummaries(MakeRunId(1)), SizeIs(1));
}

// Protocol 10: an attempt that a restore had taken out of the record comes back: a run of two
// attempts of one ordinal shows them in the order of their epochs, and the curve of the newer one
// is whole through the step of the older one that it resumed from. Summaries without a head named
// follow it.
TEST_P(StoreSuite, TakesBackAnAttemptOfAnEarlierGeneration) {
  CommitOneRun();
  const Epoch lost{11};
  const Epoch newer{uint64_t{2} << 48 | 1};
  CommitAttempt(1, newer.value, 2);
  Commit({AttemptStatus{
              .epoch = newer, .start_reported = true, .resumed_epoch = lost, .resumed_step = 2},
          MakeChunk(newer, "train/x", 1, {3, 4}, {30, 40})});
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x"}).points), ElementsAre(3, 4));
  Commit({AttemptRow{.epoch = lost, .run = MakeRunId(1), .ordinal = 2, .worker = MakeWorkerId(1)},
          AttemptStatus{.epoch = lost, .state = AttemptState::kLost},
          MemberRow{.epoch = lost, .worker = MakeWorkerId(1), .state = MemberState::kLost},
          StreamRow{.epoch = lost}});
  Commit({MakeChunk(lost, "train/x", 1, {1, 2, 3}, {1, 2, 3}),
          StreamRow{.epoch = lost, .acked = 3, .declared_last = 3}});
  Reopen();
  EXPECT_THAT(StepsOf(Curve({.run = MakeRunId(1), .series = "train/x"}).points),
              ElementsAre(1, 2, 3, 4));
  const Result<std::vector<AttemptInfo>> attempts = store_->ListAttempts(MakeRunId(1));
  ASSERT_TRUE(attempts.ok()) << attempts.status().ToString();
  std::vector<uint64_t> epochs;
  for (const AttemptInfo& attempt : *attempts) epochs.push_back(attempt.row.epoch.value);
  EXPECT_THAT(epochs, ElementsAre(10, lost.value, newer.value));
  const Result<std::vector<SummaryRow>> rows =
      store_->RebuildSummaries(MakeRunId(1), std::nullopt, 100);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_THAT(*rows, SizeIs(1));
  EXPECT_EQ((*rows)[0].count, 4u);
  EXPECT_EQ((*rows)[0].last, 40);
}

// What the record says of an attempt and its run, also of one that has ended.
TEST_P(StoreSuite, SaysWhatIsRecorded) {
  CommitOneRun();
  Commit({RunStatus{.id = MakeRunId(1), .state = RunState::kCancelled, .current_epoch = {10}}});
  Reopen();
  Result<RecordedAttempt> recorded = store_->FindRecorded(MakeRunId(1), {10});
  ASSERT_TRUE(recorded.ok()) << recorded.status().ToString();
  EXPECT_TRUE(recorded->is_stored);
  ASSERT_TRUE(recorded->run.has_value());
  EXPECT_EQ(recorded->run->first.id, MakeRunId(1));
  EXPECT_EQ(recorded->run->first.run_key, MakeRun(1, 1).run_key);
  EXPECT_EQ(recorded->run->first.spec, "");
  EXPECT_EQ(recorded->run->second.state, RunState::kCancelled);
  recorded = store_->FindRecorded(MakeRunId(1), {11});
  ASSERT_TRUE(recorded.ok());
  EXPECT_FALSE(recorded->is_stored);
  EXPECT_TRUE(recorded->run.has_value());
  recorded = store_->FindRecorded(MakeRunId(2), {11});
  ASSERT_TRUE(recorded.ok());
  EXPECT_FALSE(recorded->is_stored);
  EXPECT_FALSE(recorded->run.has_value());
}

// Runs of a sweep come by number over pages, filtered by state, with a total that needs no scan.
TEST_P(StoreSuite, PagesRunsByNumberAndState) {
  CommitSweepOf(1, 1, 25);
  CommitSweepOf(2, 101, 5);
  Commit({RunStatus{.id = MakeRunId(7), .state = RunState::kFailed},
          RunStatus{.id = MakeRunId(9), .state = RunState::kActive},
          RunStatus{.id = MakeRunId(11), .state = RunState::kFailed},
          SweepStatus{
              .id = MakeSweepId(1), .proposed = 25, .counts = {0, 22, 0, 1, 0, 0, 0, 2, 0, 0}}});
  RunFilter filter{.sweep = MakeSweepId(1)};
  std::vector<uint64_t> numbers;
  std::string page;
  do {
    const Result<RunPage> runs = store_->ListRuns(filter, page, 10);
    ASSERT_TRUE(runs.ok()) << runs.status().ToString();
    EXPECT_EQ(runs->total, 25u);
    for (const RunInfo& run : runs->runs) numbers.push_back(run.link.number);
    page = runs->next;
  } while (!page.empty());
  ASSERT_THAT(numbers, SizeIs(25));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i + 1);

  filter.states = {RunState::kActive, RunState::kFailed};
  const Result<RunPage> first = store_->ListRuns(filter, "", 2);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->total, 3u);
  ASSERT_THAT(first->runs, SizeIs(2));
  EXPECT_EQ(first->runs[1].link.number, 9u);
  const Result<RunPage> second = store_->ListRuns(filter, first->next, 2);
  ASSERT_TRUE(second.ok());
  ASSERT_THAT(second->runs, SizeIs(1));
  EXPECT_EQ(second->runs[0].link.number, 11u);
  EXPECT_EQ(second->next, "");
  EXPECT_EQ(store_->ListRuns({}, first->next, 2).status().code(), Code::kInvalidArgument);

  // Over all sweeps: the newest first.
  const Result<RunPage> all = store_->ListRuns({}, "", 7);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->total, 30u);
  EXPECT_EQ(all->runs[0].sweep_name, "sweep.2");
  EXPECT_EQ(all->runs[5].sweep_name, "sweep.1");
  const Result<RunPage> rest = store_->ListRuns({}, all->next, 100);
  ASSERT_TRUE(rest.ok());
  EXPECT_THAT(rest->runs, SizeIs(23));
}

// Every question over results rests on the scan: by number, in one state, with each value's class.
TEST_P(StoreSuite, ScansFactsOfRuns) {
  CommitSweepOf(1, 1, 5);
  CommitSweepOf(2, 101, 2);
  CommitAttempt(3, 30, 2);
  Commit({AttemptStatus{.epoch = {30}, .state = AttemptState::kFailed, .end_class = EndClass::kOom},
          RunStatus{.id = MakeRunId(3),
                    .state = RunState::kFailed,
                    .current_epoch = {30},
                    .attempts = 2,
                    .active_ms = 1500},
          RunProgress{.run = MakeRunId(3), .step = 70},
          SummaryRow{.run = MakeRunId(3),
                     .series = "valid/loss",
                     .last = std::numeric_limits<double>::quiet_NaN(),
                     .has_best = true,
                     .best = 1.25}});
  std::vector<RunFacts> facts;
  ASSERT_TRUE(
      store_
          ->ScanRuns({.sweep = MakeSweepId(1), .series = {"none", "valid/loss"}, .after = 1},
                     [&](const RunFacts& run) {
                       facts.push_back(run);
                       return facts.size() < 3;
                     })
          .ok());
  ASSERT_THAT(facts, SizeIs(3));
  EXPECT_EQ(facts[0].number, 2u);
  const RunFacts& run = facts[1];
  EXPECT_EQ(run.number, 3u);
  EXPECT_EQ(run.cell, 3u);
  EXPECT_EQ(run.run, MakeRunId(3));
  EXPECT_EQ(run.seed, 0xfedcba9876543210);
  EXPECT_EQ(run.router, "smoe");
  EXPECT_EQ(*run.columns, (Columns{{"train.lr", "2"}}));
  EXPECT_EQ(run.state, RunState::kFailed);
  EXPECT_EQ(run.end_class, EndClass::kOom);
  EXPECT_EQ(run.attempts, 2u);
  EXPECT_EQ(run.step, 70u);
  EXPECT_EQ(run.steps_total, 100u);
  EXPECT_EQ(run.active_ms, 1500u);
  EXPECT_EQ(run.slots, 2u);
  EXPECT_TRUE(run.is_gpu);
  EXPECT_FALSE(run.is_reused);
  ASSERT_THAT(run.values, SizeIs(2));
  EXPECT_FALSE(run.values[0].is_present);
  EXPECT_TRUE(run.values[1].is_present);
  EXPECT_TRUE(std::isnan(run.values[1].last));
  EXPECT_EQ(run.values[1].best, 1.25);
  EXPECT_EQ(facts[2].end_class, EndClass::kNone);
  EXPECT_FALSE(facts[2].values[1].is_present);
  // The cheap form says the same of what it reads.
  size_t seen = 0;
  ASSERT_TRUE(store_
                  ->ScanRuns({.sweep = MakeSweepId(1),
                              .series = {"none", "valid/loss"},
                              .after = 1,
                              .run_facts = 0},
                             [&](const RunFacts& light) {
                               const RunFacts& full = facts[seen];
                               EXPECT_EQ(light.number, full.number);
                               EXPECT_EQ(light.cell, full.cell);
                               EXPECT_EQ(*light.columns, *full.columns);
                               EXPECT_EQ(light.state, full.state);
                               EXPECT_EQ(light.values[0].is_present, full.values[0].is_present);
                               EXPECT_EQ(light.values[1].is_present, full.values[1].is_present);
                               EXPECT_EQ(light.values[1].best, full.values[1].best);
                               return ++seen < facts.size();
                             })
                  .ok());
  EXPECT_EQ(seen, facts.size());
  // Any facts may be asked for without the others.
  ASSERT_TRUE(store_
                  ->ScanRuns({.sweep = MakeSweepId(1),
                              .series = {"valid/loss"},
                              .after = 2,
                              .run_facts = kFactEndClass | kFactStep | kFactSlots},
                             [&](const RunFacts& some) {
                               EXPECT_EQ(some.number, 3u);
                               EXPECT_EQ(some.end_class, EndClass::kOom);
                               EXPECT_EQ(some.step, 70u);
                               EXPECT_EQ(some.slots, 2u);
                               EXPECT_TRUE(some.is_gpu);
                               EXPECT_EQ(some.values[0].best, 1.25);
                               return false;
                             })
                  .ok());
  const auto ignore = [](const RunFacts&) { return true; };
  EXPECT_EQ(store_->ScanRuns({.sweep = MakeSweepId(9)}, ignore).code(), Code::kNotFound);
  EXPECT_EQ(
      store_
          ->ScanRuns({.sweep = MakeSweepId(1), .series = std::vector<std::string>(33, "s")}, ignore)
          .code(),
      Code::kInvalidArgument);

  const std::vector<uint64_t> numbers = {4, 3};
  const std::vector<std::string> series = {"valid/loss"};
  const Result<std::vector<RunInfo>> runs = store_->GetRuns(MakeSweepId(1), numbers, series);
  ASSERT_TRUE(runs.ok());
  ASSERT_THAT(*runs, SizeIs(2));
  EXPECT_EQ((*runs)[0].row.id, MakeRunId(4));
  EXPECT_EQ((*runs)[1].row.id, MakeRunId(3));
  EXPECT_THAT((*runs)[1].summaries, SizeIs(1));
  EXPECT_EQ(store_->GetRuns(MakeSweepId(2), numbers, series).status().code(), Code::kNotFound);
}

// Sweeps are listed newest first, finished ones on request only, and found by name, id and `last`.
TEST_P(StoreSuite, ListsAndFindsSweeps) {
  EXPECT_EQ(store_->FindSweep("last", false).status().code(), Code::kNotFound);
  for (uint64_t n : {3, 1, 2}) Commit({MakeSweep(n), SweepStatus{.id = MakeSweepId(n)}});
  Commit({SweepStatus{.id = MakeSweepId(1), .state = SweepState::kCancelled}});
  EXPECT_EQ(store_->FindSweep("last", false)->row.name, "sweep.2");
  EXPECT_EQ(store_->FindSweep(MakeSweepId(3).value.ToString(), false)->row.name, "sweep.3");
  EXPECT_THAT(store_->ListSweeps(false, "", 10)->sweeps, SizeIs(2));
  const Result<SweepPage> page = store_->ListSweeps(true, "", 2);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->sweeps[1].row.name, "sweep.1");
  const Result<SweepPage> next = store_->ListSweeps(true, page->next, 2);
  ASSERT_TRUE(next.ok());
  ASSERT_THAT(next->sweeps, SizeIs(1));
  EXPECT_EQ(next->sweeps[0].row.name, "sweep.3");
  EXPECT_EQ(store_->ListSweeps(true, "nonsense", 2).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(*store_->IsSweepNameTaken("sweep.1"));
  EXPECT_FALSE(*store_->IsSweepNameTaken("sweep.4"));
  EXPECT_EQ(store_->FindSweepByHash("default", "hash2")->row.name, "sweep.2");
  EXPECT_EQ(store_->FindSweepByHash("default", "hash1").status().code(), Code::kNotFound);
  EXPECT_EQ(store_->FindSweepByHash("other", "hash2").status().code(), Code::kNotFound);
}

// A run is found by sweep and number, by number in the newest sweep, and by id; other words are
// refused by name.
TEST_P(StoreSuite, FindsRunsBySelector) {
  CommitSweepOf(1, 1, 3);
  CommitSweepOf(2, 11, 2);
  // Sweep 2 shares run 2 of sweep 1.
  Commit({LinkRow{.sweep = MakeSweepId(2), .number = 3, .run = MakeRunId(2), .cell = 3}});
  EXPECT_EQ(store_->FindRun("sweep.1/2")->row.id, MakeRunId(2));
  EXPECT_EQ(store_->FindRun("2")->row.id, MakeRunId(12));
  EXPECT_EQ(store_->FindRun("3")->row.id, MakeRunId(2));
  EXPECT_EQ(store_->FindRun(MakeRunId(2).value.ToString())->sweep_name, "sweep.1");
  for (const char* bad : {"sweep.1/9", "9", "sweep.1/x", "nothing/1", ""}) {
    EXPECT_EQ(store_->FindRun(bad).status().code(), Code::kNotFound) << bad;
  }
}

// Only runs that stand are reused: live, succeeded or ended by a guard; of several the one that was
// asked for last.
TEST_P(StoreSuite, FindsValidRunsByKey) {
  CommitSweepOf(1, 1, 4);
  Commit(
      {RunStatus{.id = MakeRunId(2), .state = RunState::kCancelled},
       AttemptRow{.epoch = {31}, .run = MakeRunId(3), .ordinal = 1, .worker = MakeWorkerId(1)},
       AttemptStatus{.epoch = {31}, .state = AttemptState::kFailed, .end_class = EndClass::kGuard},
       RunStatus{.id = MakeRunId(3), .state = RunState::kFailed, .current_epoch = {31}},
       RunStatus{.id = MakeRunId(4), .state = RunState::kFailed}});
  RunRow again = MakeRun(5, 1);
  again.run_key = "key1";
  again.rerun = 2;
  Commit({again, RunStatus{.id = MakeRunId(5)}});
  const std::vector<std::string> keys = {"key1", "key2", "key3", "key4", "unknown"};
  const Result<std::vector<std::optional<ValidRun>>> runs = store_->FindValidRuns("default", keys);
  ASSERT_TRUE(runs.ok());
  ASSERT_THAT(*runs, SizeIs(5));
  EXPECT_EQ((*runs)[0]->id, MakeRunId(5));
  EXPECT_FALSE((*runs)[1]);
  EXPECT_EQ((*runs)[2]->id, MakeRunId(3));
  EXPECT_FALSE((*runs)[3]);
  EXPECT_FALSE((*runs)[4]);
  EXPECT_FALSE((*store_->FindValidRuns("other", keys))[0]);
}

// A slot is held by one member until that has ended: giving it twice would run two trainers on it.
TEST_P(StoreSuite, ReservesEachSlotOnce) {
  CommitOneRun();
  CommitAttempt(1, 20, 2);
  MemberRow first{
      .epoch = {10}, .worker = MakeWorkerId(1), .slots = {0, 1}, .state = MemberState::kPending};
  const MemberRow second{
      .epoch = {20}, .worker = MakeWorkerId(1), .slots = {1}, .state = MemberState::kPending};
  Commit({first});
  const std::vector<Write> taken = {second};
  EXPECT_EQ(store_->Commit(taken).code(), Code::kInternal);
  first.state = MemberState::kLaunched;
  Commit({first});
  EXPECT_EQ(store_->Commit(taken).code(), Code::kInternal);
  first.state = MemberState::kExited;
  Commit({first, second});
}

// What is loaded at a start is everything live, and nothing that has ended.
TEST_P(StoreSuite, LoadsWhatIsLive) {
  CommitSweepOf(1, 1, 3);
  CommitSweepOf(2, 11, 1);
  CommitAttempt(1, 10, 1);
  CommitAttempt(2, 11, 1);
  CommitAttempt(11, 12, 1);
  Commit({RunStatus{.id = MakeRunId(2), .state = RunState::kSucceeded},
          AttemptStatus{.epoch = {11}, .state = AttemptState::kSucceeded},
          RunStatus{.id = MakeRunId(11), .state = RunState::kFailed},
          AttemptStatus{.epoch = {12}, .state = AttemptState::kLost},
          StreamRow{.epoch = {11}, .acked = 3, .declared_last = 3, .sealed = true},
          SweepStatus{.id = MakeSweepId(2), .state = SweepState::kCompleted}});
  Reopen();
  const Result<Snapshot> snapshot = store_->Load();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  EXPECT_THAT(snapshot->sweeps, SizeIs(1));
  EXPECT_EQ(snapshot->sweeps[0].spec, "");
  // Run 11 has ended, the stream of its attempt has not.
  ASSERT_THAT(snapshot->runs, SizeIs(3));
  EXPECT_EQ(snapshot->runs[2].id, MakeRunId(11));
  EXPECT_EQ(snapshot->run_status[2].state, RunState::kFailed);
  EXPECT_EQ(snapshot->runs[0].id, MakeRunId(1));
  EXPECT_EQ(snapshot->runs[0].spec, "");
  EXPECT_EQ(snapshot->run_status[0].state, RunState::kActive);
  EXPECT_THAT(snapshot->links, SizeIs(2));
  // Attempt 12 is over, its stream is not.
  ASSERT_THAT(snapshot->attempts, SizeIs(2));
  EXPECT_EQ(snapshot->attempts[0].epoch.value, 10u);
  EXPECT_EQ(snapshot->attempts[1].epoch.value, 12u);
  EXPECT_THAT(snapshot->streams, SizeIs(2));
  EXPECT_EQ(snapshot->last_epoch.value, 12u);
}

// The documents of many runs come back exactly, though they are stored against the first one's.
TEST_P(StoreSuite, GivesBackEveryDocument) {
  CommitSweepOf(1, 1, 20);
  Reopen();
  for (uint64_t n = 1; n <= 20; ++n) {
    const Result<RunDocument> document = store_->GetRunDocument(MakeRunId(n));
    ASSERT_TRUE(document.ok()) << document.status().ToString();
    EXPECT_EQ(document->spec, MakeRun(n, 1).spec);
    EXPECT_EQ(document->attempt_spec, MakeRun(n, 1).attempt_spec);
  }
  EXPECT_EQ(store_->GetRunDocument(MakeRunId(99)).status().code(), Code::kNotFound);
}

// Output is read by offset in any cut; a gap that the worker left is skipped and counted, and the
// end is told when the attempt is over.
TEST_P(StoreSuite, ReadsOutputByOffset) {
  CommitOneRun();
  EXPECT_EQ(store_->ReadLog(MakeRunId(1), 2, LogStream::kStdout, 0, 10).status().code(),
            Code::kNotFound);
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "line " + std::to_string(i) + "\n";
  for (size_t at = 0; at < text.size(); at += 1000) {
    Commit({LogRow{.epoch = {10}, .offset = at, .data = text.substr(at, 1000)}});
  }
  const uint64_t gap = text.size() + 500;
  Commit({LogRow{.epoch = {10}, .offset = gap, .data = "after the gap"},
          StreamRow{.epoch = {10}, .acked = 2, .stdout_end = gap + 13}});
  for (int round = 0; round < 2; ++round) {
    std::string got;
    uint64_t offset = 0;
    while (got.size() < text.size()) {
      const Result<LogPage> page =
          store_->ReadLog(MakeRunId(1), 0, LogStream::kStdout, offset, 7777);
      ASSERT_TRUE(page.ok()) << page.status().ToString();
      ASSERT_FALSE(page->data.empty());
      EXPECT_EQ(page->skipped, 0u);
      EXPECT_FALSE(page->at_end);
      got += page->data;
      offset = page->next_offset;
    }
    EXPECT_EQ(got, text);
    const Result<LogPage> last = store_->ReadLog(MakeRunId(1), 1, LogStream::kStdout, offset, 1000);
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last->skipped, 500u);
    EXPECT_EQ(last->data, "after the gap");
    EXPECT_EQ(last->at_end, round == 1);
    EXPECT_EQ(store_->ReadLog(MakeRunId(1), 0, LogStream::kStderr, 0, 10)->data, "");
    Commit(
        {StreamRow{
             .epoch = {10}, .acked = 2, .declared_last = 2, .sealed = true, .stdout_end = gap + 13},
         AttemptStatus{.epoch = {10}, .state = AttemptState::kSucceeded}});
    IdleUntilDone();
  }
  // Bytes that the worker could not read: told at the end.
  Commit({StreamRow{
      .epoch = {10}, .acked = 2, .declared_last = 2, .sealed = true, .stdout_end = gap + 20}});
  const Result<LogPage> rest = store_->ReadLog(MakeRunId(1), 1, LogStream::kStdout, gap + 13, 1000);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->data, "");
  EXPECT_EQ(rest->skipped, 7u);
  EXPECT_TRUE(rest->at_end);
  const std::vector<Write> again = {LogRow{.epoch = {10}, .offset = 10, .data = "x"}};
  EXPECT_EQ(store_->Commit(again).code(), Code::kInternal);
}

// The last words of a trainer that died come after its end, which waits for no line: the output is
// over when the worker is through with it, not before.
TEST_P(StoreSuite, ExpectsOutputOfAFailedAttemptUntilItIsSealed) {
  CommitOneRun();
  Commit({StreamRow{.epoch = {10}, .acked = 2, .declared_last = 2},
          AttemptStatus{.epoch = {10}, .state = AttemptState::kFailed}});
  EXPECT_FALSE(store_->ReadLog(MakeRunId(1), 0, LogStream::kStderr, 0, 10)->at_end);
  Commit(
      {LogRow{.epoch = {10}, .stream = LogStream::kStderr, .offset = 0, .data = "why"},
       StreamRow{.epoch = {10}, .acked = 2, .declared_last = 2, .sealed = true, .stderr_end = 3}});
  const Result<LogPage> page = store_->ReadLog(MakeRunId(1), 0, LogStream::kStderr, 0, 10);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->data, "why");
  EXPECT_TRUE(page->at_end);
}

// Of long output the first MiB and the last 32 stay; what lies between is dropped and told.
TEST_P(StoreSuite, KeepsHeadAndTailOfLongOutput) {
  CommitOneRun();
  constexpr uint64_t kPiece = 512 << 10;
  constexpr uint64_t kPieces = 80;  // 40 MiB
  for (uint64_t i = 0; i < kPieces; ++i) {
    Commit({LogRow{.epoch = {10},
                   .offset = i * kPiece,
                   .data = std::string(kPiece, static_cast<char>('a' + i % 26))}});
  }
  const Result<LogPage> head = store_->ReadLog(MakeRunId(1), 0, LogStream::kStdout, kPiece, kPiece);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->data, std::string(kPiece, 'b'));
  const Result<LogPage> tail = store_->ReadLog(MakeRunId(1), 0, LogStream::kStdout, 2 * kPiece, 10);
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(tail->skipped, (kPieces - 2 - 64) * kPiece);
}

// An answer is found until it expires, and its id can be used again afterwards.
TEST_P(StoreSuite, RemembersAnswersUntilTheyExpire) {
  const IdemRow row{.request_id = "r1",
                    .method = "SubmitSweep",
                    .body_hash = "h",
                    .reply = std::string("\0\xff", 2),
                    .expires_ms = 100};
  Commit({row});
  const Result<IdemRow> found = store_->FindIdem("r1", 99);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->reply, row.reply);
  EXPECT_EQ(found->body_hash, "h");
  const std::vector<Write> again = {row};
  EXPECT_EQ(store_->Commit(again).code(), Code::kInternal);
  EXPECT_EQ(store_->FindIdem("r1", 100).status().code(), Code::kNotFound);
  Commit({IdemRow{.request_id = "r1", .method = "CancelRun", .expires_ms = 500}});
  EXPECT_EQ(store_->FindIdem("r1", 101)->method, "CancelRun");
  EXPECT_EQ(store_->FindIdem("r1", 600).status().code(), Code::kNotFound);
  IdleUntilDone();
}

// History keeps the order of being written and gives the newest.
TEST_P(StoreSuite, GivesTheNewestHistory) {
  CommitOneRun();
  for (int i = 0; i < 5; ++i) {
    Commit({HistoryRow{
        .at_ms = 5 - i, .kind = "k" + std::to_string(i), .ref = MakeRunId(1).value, .text = ""}});
  }
  const Result<std::vector<HistoryRow>> rows = store_->ListHistory(MakeRunId(1).value, 2);
  ASSERT_TRUE(rows.ok());
  ASSERT_THAT(*rows, SizeIs(2));
  EXPECT_EQ((*rows)[0].kind, "k3");
  EXPECT_EQ((*rows)[1].kind, "k4");
}

// A query thread's reader sees each commit as soon as it has returned, and idle work changes
// nothing that it sees.
TEST_P(StoreSuite, ReadersSeeCommits) {
  CommitOneRun();
  {
    const Result<std::unique_ptr<ReadStore>> reader = store_->OpenReader();
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    for (uint64_t i = 0; i < 30; ++i) {
      Commit({MakeChunk({10}, "train/x", i * 50 + 1, std::vector<uint64_t>(50, i + 1),
                        std::vector<double>(50, static_cast<double>(i) / 7))});
      const Result<CurvePage> page =
          (*reader)->GetCurve({.run = MakeRunId(1), .series = "train/x", .limit = 100000});
      ASSERT_TRUE(page.ok()) << page.status().ToString();
      EXPECT_EQ(page->points.size(), (i + 1) * 50);
    }
    Commit({StreamRow{.epoch = {10}, .sealed = true}});
    IdleUntilDone();
    const Result<CurvePage> page =
        (*reader)->GetCurve({.run = MakeRunId(1), .series = "train/x", .limit = 100000});
    ASSERT_TRUE(page.ok());
    ASSERT_THAT(page->points, SizeIs(1500));
    for (size_t i = 0; i < 1500; ++i) {
      ASSERT_EQ(page->points[i].step, i / 50 + 1);
      ASSERT_EQ(page->points[i].value, static_cast<double>(i / 50) / 7);
    }
    EXPECT_EQ((*reader)->FindRun("1")->worker_host, "host1");
  }
  IdleUntilDone();
  IdleUntilDone();
  EXPECT_TRUE(store_->IsCheckpointed());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreSuite);

}  // namespace switchyard::store
