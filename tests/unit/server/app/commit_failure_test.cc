#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/server/app/reducer_world.h"

namespace switchyard::app {
namespace {

// Shared with the store, which belongs to the reducer.
struct Faults {
  std::atomic<int> commits{0};    // that fail from now on; negative: all
  std::atomic<int> documents{0};  // reads of documents that fail
  std::atomic<int> loads{0};      // so far
  Code code = Code::kUnavailable;
  // The first run that is placed from now on contradicts the rows, whenever it is placed.
  std::atomic<bool> contradicts_first_placed{false};
  RunId contradicting;
};

bool Take(std::atomic<int>* count) {
  const int left = count->load();
  if (left > 0) --*count;
  return left != 0;
}

// A store whose commits fail on demand, surely: nothing of them is written.
class FaultyStore final : public store::Store {
 public:
  FaultyStore(std::unique_ptr<store::Store> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Result<store::SweepInfo> FindSweep(std::string_view selector, bool with_spec) override {
    return inner_->FindSweep(selector, with_spec);
  }
  Result<store::SweepPage> ListSweeps(bool all, std::string_view page, size_t limit) override {
    return inner_->ListSweeps(all, page, limit);
  }
  Result<store::RunInfo> FindRun(std::string_view selector) override {
    return inner_->FindRun(selector);
  }
  Result<store::RunPage> ListRuns(const store::RunFilter& filter, std::string_view page,
                                  size_t limit) override {
    return inner_->ListRuns(filter, page, limit);
  }
  Status ScanRuns(const store::ScanQuery& query,
                  const std::function<bool(const store::RunFacts&)>& visit) override {
    return inner_->ScanRuns(query, visit);
  }
  Result<std::vector<store::RunInfo>> GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                              std::span<const std::string> series) override {
    return inner_->GetRuns(sweep, numbers, series);
  }
  Result<std::string> GetStrategyState(SweepId sweep) override {
    return inner_->GetStrategyState(sweep);
  }
  Result<store::RunDocument> GetRunDocument(RunId run) override {
    if (Take(&faults_->documents)) return Unavailable("read error");
    return inner_->GetRunDocument(run);
  }
  Result<std::vector<store::AttemptInfo>> ListAttempts(RunId run) override {
    return inner_->ListAttempts(run);
  }
  Result<std::vector<scheduler::CheckpointRow>> ListCheckpoints(RunId run) override {
    return inner_->ListCheckpoints(run);
  }
  Result<std::vector<scheduler::HistoryRow>> ListHistory(Uuid ref, size_t limit) override {
    return inner_->ListHistory(ref, limit);
  }
  Result<std::vector<scheduler::SummaryRow>> ListSummaries(RunId run) override {
    return inner_->ListSummaries(run);
  }
  Result<store::CurvePage> GetCurve(const store::CurveQuery& query) override {
    return inner_->GetCurve(query);
  }
  Result<store::LogPage> ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream,
                                 uint64_t offset, size_t max_bytes) override {
    return inner_->ReadLog(run, attempt, stream, offset, max_bytes);
  }
  Result<store::SweepInfo> FindSweepByHash(std::string_view project,
                                           std::string_view spec_hash) override {
    return inner_->FindSweepByHash(project, spec_hash);
  }
  Result<std::vector<std::optional<store::ValidRun>>> FindValidRuns(
      std::string_view project, std::span<const std::string> run_keys) override {
    return inner_->FindValidRuns(project, run_keys);
  }
  Result<store::Snapshot> Load() override {
    ++faults_->loads;
    return inner_->Load();
  }
  Status Commit(std::span<const store::Write> writes) override {
    if (Take(&faults_->commits)) return {faults_->code, "injected"};
    for (const store::Write& write : writes) {
      const auto* attempt = std::get_if<scheduler::AttemptRow>(&write);
      if (attempt == nullptr || !faults_->contradicts_first_placed) continue;
      if (faults_->contradicting.value.is_nil()) faults_->contradicting = attempt->run;
      if (attempt->run == faults_->contradicting) return Internal("injected contradiction");
    }
    return inner_->Commit(writes);
  }
  Result<scheduler::IdemRow> FindIdem(std::string_view request_id, int64_t now_ms) override {
    return inner_->FindIdem(request_id, now_ms);
  }
  Result<std::vector<scheduler::SummaryRow>> RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                              uint64_t step) override {
    return inner_->RebuildSummaries(run, head, step);
  }
  Result<scheduler::RecordedAttempt> FindRecorded(RunId run, Epoch epoch) override {
    return inner_->FindRecorded(run, epoch);
  }
  Result<bool> IsSweepNameTaken(std::string_view name) override {
    return inner_->IsSweepNameTaken(name);
  }
  Result<bool> DoIdleWork(int budget_ms) override { return inner_->DoIdleWork(budget_ms); }
  bool IsCheckpointed() const override { return inner_->IsCheckpointed(); }
  store::StoreStats Stats() override { return inner_->Stats(); }
  Result<std::unique_ptr<store::ReadStore>> OpenReader() override { return inner_->OpenReader(); }
  Status Close() override { return inner_->Close(); }

 private:
  std::unique_ptr<store::Store> inner_;
  std::shared_ptr<Faults> faults_;
};

class CommitFailureTest : public ReducerTest {
 protected:
  std::unique_ptr<store::Store> MakeStore() override {
    return std::make_unique<FaultyStore>(store::MakeMemoryStore(), faults_);
  }
  Result<api::AppendReply> Append(const api::AppendInput& input) {
    Waiter<api::AppendReply> waiter;
    reducer_->Append(input, waiter.callback());
    return waiter.Wait();
  }
  std::string CoordinatorState() {
    Waiter<api::CoordinatorInfo> waiter;
    reducer_->GetInfo(waiter.callback());
    const auto info = waiter.Wait();
    return info.ok() ? info->state : info.status().ToString();
  }
  static scheduler::MemberReport Running(const api::WantedAttempt& wanted) {
    scheduler::MemberReport report;
    report.run = wanted.run;
    report.ordinal = wanted.ordinal;
    report.epoch = wanted.epoch;
    report.state = scheduler::RecordState::kRunning;
    return report;
  }

  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
};

// A sweep whose commit failed was never submitted: no name, no run and no gauge of it is left, and
// the same request works later.
TEST_F(CommitFailureTest, LeavesNothingOfASubmitBehind) {
  ASSERT_EQ(RegisterWorker(1), "nonce");
  faults_->commits = 1;
  EXPECT_EQ(Submit(SmallSweep(2)).status().code(), Code::kUnavailable);
  EXPECT_EQ(faults_->loads, 2);
  const auto idle = Beat({});
  ASSERT_TRUE(idle.ok()) << idle.status().ToString();
  EXPECT_TRUE(idle->want.empty());

  const auto again = Submit(SmallSweep(2));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_FALSE(again->existed);
  EXPECT_EQ(again->sweep.row.name, "demo");
  EXPECT_EQ(again->reused, 0u);
  EXPECT_EQ(CoordinatorState(), "serving");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok());
  ASSERT_EQ(desired->want.size(), 1u);
  EXPECT_EQ(desired->want[0].ordinal, 1u);
  live_runs_.Publish();
  std::vector<prometheus::MetricFamily> families =
      live_runs_.MakeCollectable(families_.series_dropped)->Collect();
  const auto sweep_runs = std::ranges::find_if(
      families, [](const auto& family) { return family.name == "switchyard_sweep_runs"; });
  ASSERT_NE(sweep_runs, families.end());
  const std::string id = again->sweep.row.id.value.ToString();
  for (const prometheus::ClientMetric& metric : sweep_runs->metric) {
    for (const prometheus::ClientMetric::Label& label : metric.label) {
      if (label.name == "sweep") {
        EXPECT_EQ(label.value, id) << "a sweep that was never submitted";
      }
    }
  }
}

// Revisions rise across a failure: a new attempt is not taken for one that its worker, which
// follows an older revision, has lost.
TEST_F(CommitFailureTest, NeverRepeatsARevision) {
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  ASSERT_EQ(RegisterWorker(2), "nonce");
  auto desired = Beat({});
  ASSERT_TRUE(desired.ok());
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt first = desired->want[0];
  for (int i = 0; i < 20; ++i) {
    // An overtaken heartbeat is answered at once, under a new revision.
    --beats_;
    desired = Beat({Running(first)});
    ASSERT_TRUE(desired.ok());
  }
  const scheduler::Rev before = desired->rev;

  faults_->commits = 1;
  EXPECT_EQ(Submit(SmallSweep(2)).status().code(), Code::kUnavailable);
  ASSERT_TRUE(Submit(SmallSweep(2)).ok());
  desired = Beat({Running(first)});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  EXPECT_GT(desired->rev, before);
  ASSERT_EQ(desired->want.size(), 2u);
  for (const api::WantedAttempt& wanted : desired->want) {
    EXPECT_EQ(wanted.ordinal, 1u);
    EXPECT_EQ(wanted.intent, scheduler::Intent::kRun);
  }
}

// Points of a failed commit are not acknowledged; sent again they count once.
TEST_F(CommitFailureTest, CountsPointsOnce) {
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok());
  ASSERT_EQ(desired->want.size(), 1u);
  const api::AppendInput input = MakeAppend(desired->want[0], 2.5);
  faults_->commits = 1;
  EXPECT_EQ(Append(input).status().code(), Code::kUnavailable);
  EXPECT_EQ(families_.points_committed->Value(), 0);
  const auto reply = Append(input);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->committed, 2u);
  EXPECT_EQ(families_.points_committed->Value(), 1);
  EXPECT_EQ(families_.points_duplicate->Value(), 0);

  Waiter<std::vector<scheduler::SummaryRow>> rows;
  queries_->Post([&](Result<store::ReadStore*> store) {
    rows.callback()((*store)->ListSummaries(desired->want[0].run));
  });
  const auto summaries = rows.Wait();
  ASSERT_TRUE(summaries.ok());
  ASSERT_EQ(summaries->size(), 1u);
  EXPECT_EQ((*summaries)[0].count, 1u);
}

// While nothing can be written, workers keep their contact and their wanted set, and mutations are
// refused; nobody has to ask for anything to leave that mode.
TEST_F(CommitFailureTest, AnswersHeartbeatsWhileDegraded) {
  ASSERT_TRUE(Submit(SmallSweep(2)).ok());
  ASSERT_EQ(RegisterWorker(2), "nonce");
  const auto assigned = Beat({});
  ASSERT_TRUE(assigned.ok());
  ASSERT_EQ(assigned->want.size(), 2u);
  const std::vector<scheduler::MemberReport> running = {Running(assigned->want[0]),
                                                        Running(assigned->want[1])};
  ASSERT_TRUE(Beat(running).ok());
  faults_->code = Code::kResourceExhausted;
  faults_->commits = -1;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Submit(SmallSweep(5)).status().code(), Code::kUnavailable);
    EXPECT_EQ(Append(MakeAppend(assigned->want[0], 1)).status().code(), Code::kUnavailable);
    const auto desired = Beat(running);
    ASSERT_TRUE(desired.ok()) << desired.status().ToString();
    EXPECT_EQ(desired->echo_hb_seq, beats_);
    EXPECT_EQ(desired->want.size(), 2u);
  }
  EXPECT_EQ(CoordinatorState(), "degraded(disk_full)");
  faults_->commits = 0;
  for (int i = 0; i < 500 && CoordinatorState() != "serving"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(CoordinatorState(), "serving");
}

// A row that contradicts the database is its caller's fault alone: the coordinator goes on serving.
TEST_F(CommitFailureTest, RefusesWhatTheDatabaseContradicts) {
  faults_->code = Code::kInternal;
  faults_->commits = 1;
  EXPECT_EQ(Submit(SmallSweep(1)).status().code(), Code::kInternal);
  EXPECT_EQ(CoordinatorState(), "serving");
  EXPECT_TRUE(Submit(SmallSweep(1)).ok());
}

// A placement that contradicts the database keeps neither the call of its group from being answered
// nor other runs from being placed, and what was not committed is not counted.
TEST_F(CommitFailureTest, AContradictoryPlacementKeepsNobodyElseOut) {
  ASSERT_EQ(RegisterWorker(2), "nonce");
  faults_->contradicts_first_placed = true;
  ASSERT_TRUE(Submit(SmallSweep(2)).ok());
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  EXPECT_NE(desired->want[0].run, faults_->contradicting);
  EXPECT_EQ(CoordinatorState(), "serving");
  double started = 0;
  for (const prometheus::MetricFamily& family : registry_->Collect()) {
    if (family.name != "switchyard_attempts_started_total") continue;
    for (const prometheus::ClientMetric& metric : family.metric) started += metric.counter.value;
  }
  EXPECT_EQ(started, 1);
}

// A worker never gets an attempt without its documents: it would launch an empty one.
TEST_F(CommitFailureTest, SendsNoAttemptWithoutItsDocument) {
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  faults_->documents = -1;
  ASSERT_EQ(RegisterWorker(1), "nonce");
  EXPECT_EQ(Beat({}).status().code(), Code::kUnavailable);
  faults_->documents = 0;
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  EXPECT_FALSE(desired->want[0].run_spec.empty());
}

}  // namespace
}  // namespace switchyard::app
