#include "server/app/reducer.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <future>

#include "common/events/batch.h"
#include "server/api/batch.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::app {
namespace {

namespace pb = ::switchyard::v1;

template <typename T>
class Waiter {
 public:
  api::Callback<T> callback() {
    return [promise = promise_](Result<T> result) { promise->set_value(std::move(result)); };
  }
  Result<T> Wait() {
    auto future = promise_->get_future();
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      return DeadlineExceeded("no answer in 20 s");
    }
    return future.get();
  }

 private:
  std::shared_ptr<std::promise<Result<T>>> promise_ = std::make_shared<std::promise<Result<T>>>();
};

pb::SweepSpec SmallSweep(int seeds) {
  pb::SweepSpec spec;
  spec.set_name("demo");
  pb::RunSpec* run = spec.mutable_base();
  run->set_kind(pb::RUN_KIND_TRAIN);
  pb::Domain* domain = run->mutable_data()->mutable_files()->add_domains();
  domain->set_id("c");
  domain->add_globs("/usr/include/*.h");
  pb::DecoderSpec* decoder = run->mutable_model()->mutable_decoder();
  decoder->set_layers(1);
  decoder->set_d_model(16);
  decoder->set_heads(2);
  decoder->set_d_inner(32);
  pb::TrainSpec* train = run->mutable_train();
  train->set_steps(10);
  train->set_batch(2);
  train->set_target_len(16);
  train->mutable_optimizer()->mutable_adam()->set_lr(0.001);
  for (int i = 1; i <= seeds; ++i) spec.mutable_replicates()->add_seeds(static_cast<uint64_t>(i));
  return spec;
}

// The process without gRPC, over the store in memory.
class ReducerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = store::MakeMemoryStore();
    std::vector<std::unique_ptr<store::ReadStore>> readers;
    auto reader = store->OpenReader();
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    readers.push_back(*std::move(reader));
    auto made = Reducer::Make(std::move(store), &families_, &clients_, &live_runs_,
                              {.data_dir = "/tmp", .metrics_address = "here"});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    reducer_ = *std::move(made);
    queries_ = std::make_unique<QueryPool>(std::move(readers), &families_);
    reducer_->Start(queries_.get());
  }
  void TearDown() override {
    reducer_->Drain();
    queries_->Stop();
    EXPECT_TRUE(reducer_->Stop().ok());
  }

  Result<api::SubmitReply> Submit(const pb::SweepSpec& spec, bool rerun = false,
                                  const std::string& request_id = "") {
    auto expansion = api::Expansion::Make(spec);
    if (!expansion.ok()) return expansion.status();
    auto first = (*expansion)->Expand(1, 1000, 1700000000000);
    if (!first.ok()) return first.status();
    Waiter<api::SubmitReply> waiter;
    reducer_->Submit(
        {.expansion = *expansion, .first = *first, .rerun = rerun, .request_id = request_id},
        waiter.callback());
    return waiter.Wait();
  }

  std::string RegisterWorker(uint32_t slots) {
    scheduler::Register event{.worker = {.id = worker_, .incarnation = 1}, .nonce = "nonce"};
    event.worker.pool = "default";
    event.worker.host = "host";
    for (uint32_t i = 0; i < slots; ++i) event.worker.slots.push_back({.index = i, .uuid = {}});
    Waiter<api::RegisterReply> waiter;
    reducer_->Register(event, waiter.callback());
    const auto reply = waiter.Wait();
    return reply.ok() ? reply->nonce : "";
  }

  Result<api::Desired> Beat(std::vector<scheduler::MemberReport> observed) {
    scheduler::Heartbeat event{.worker = worker_,
                               .nonce = "nonce",
                               .incarnation = 1,
                               .hb_seq = ++beats_,
                               .sent_boottime_ns = beats_,
                               .applied = applied_,
                               .observed = std::move(observed),
                               .random = 1};
    Waiter<api::Desired> waiter;
    reducer_->Heartbeat(event, waiter.callback());
    auto desired = waiter.Wait();
    if (desired.ok()) applied_ = desired->rev;
    return desired;
  }

  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  server_metrics::Families families_{registry_, {}};
  server_metrics::LiveRuns live_runs_;
  api::ClientTracker clients_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<QueryPool> queries_;
  const WorkerId worker_{Uuid{7, 7}};
  uint64_t beats_ = 0;
  scheduler::Rev applied_;
};

// From a document to a succeeded run: submit, assign, record, end.
TEST_F(ReducerTest, RunsASweepToItsEnd) {
  const auto submitted = Submit(SmallSweep(1));
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  EXPECT_EQ(submitted->sweep.row.name, "demo");
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt& wanted = desired->want[0];
  EXPECT_FALSE(wanted.run_spec.empty());
  EXPECT_FALSE(wanted.attempt_spec.empty());

  auto decoded = std::make_shared<events::DecodedBatch>();
  const double loss = 2.5;
  decoded->lines.push_back({.seq = 1, .covers = 1, .type = "hello", .json = "{}"});
  decoded->columns.push_back(
      {.name = "valid/bits_per_byte",
       .is_vector = false,
       .shape = {},
       .seqs = {2},
       .steps = {10},
       .ms = {5},
       .values = std::string(reinterpret_cast<const char*>(&loss), sizeof(loss))});
  const auto batch = api::PrepareBatch(decoded, wanted.epoch, 0, 0);
  ASSERT_TRUE(batch.ok());
  api::AppendInput input;
  input.event = {.run = wanted.run,
                 .ordinal = wanted.ordinal,
                 .epoch = wanted.epoch,
                 .rank = 0,
                 .worker = worker_,
                 .first_seq = 1,
                 .n = 2,
                 .lines = (*batch)->facts};
  input.batch = *batch;
  for (int i = 0; i < 2; ++i) {
    Waiter<api::AppendReply> waiter;
    reducer_->Append(input, waiter.callback());
    const auto reply = waiter.Wait();
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->committed, 2u) << "the duplicate gets the same answer";
  }

  scheduler::MemberReport report{.run = wanted.run,
                                 .ordinal = wanted.ordinal,
                                 .epoch = wanted.epoch,
                                 .rank = 0,
                                 .state = scheduler::RecordState::kExited,
                                 .exit_code = 0,
                                 .signal = 0,
                                 .end_class = scheduler::EndClass::kOk,
                                 .complete = true,
                                 .evidence = "exit.json",
                                 .last_seq = 2,
                                 .reason = {},
                                 .final_step = 10};
  ASSERT_TRUE(Beat({report}).ok());
  const auto after = Beat({report});
  ASSERT_TRUE(after.ok());
  EXPECT_TRUE(after->want.empty());
  ASSERT_EQ(after->gc.size(), 1u);

  Waiter<store::RunInfo> found;
  queries_->Post([&](Result<store::ReadStore*> store) {
    auto page = (*store)->ListRuns(
        {.sweep = std::nullopt, .states = {}, .series = {"valid/bits_per_byte"}}, "", 10);
    found.callback()(page.ok() ? Result<store::RunInfo>(page->runs.at(0)) : page.status());
  });
  const auto run = found.Wait();
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  EXPECT_EQ(run->status.state, scheduler::RunState::kSucceeded);
  EXPECT_EQ(run->step, 10u);
  ASSERT_EQ(run->summaries.size(), 1u);
  EXPECT_EQ(run->summaries[0].best, 2.5);
  EXPECT_EQ(run->summaries[0].count, 1u);
}

// The same document is the same sweep; another one with its name gets a suffix.
TEST_F(ReducerTest, KnowsADocumentAgain) {
  const auto first = Submit(SmallSweep(1));
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto again = Submit(SmallSweep(1));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->existed);
  EXPECT_EQ(again->sweep.row.id, first->sweep.row.id);
  const auto other = Submit(SmallSweep(2));
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->existed);
  EXPECT_EQ(other->sweep.row.name, "demo.2");
  EXPECT_EQ(other->reused, 1u) << "the first seed is linked, not run again";
}

// A rerun is new once, however often its request is sent.
TEST_F(ReducerTest, MakesARerunOnce) {
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  const std::string request = NewUuidV7().ToString();
  const auto rerun = Submit(SmallSweep(1), true, request);
  ASSERT_TRUE(rerun.ok()) << rerun.status().ToString();
  EXPECT_EQ(rerun->reused, 0u);
  const auto repeated = Submit(SmallSweep(1), true, request);
  ASSERT_TRUE(repeated.ok());
  EXPECT_EQ(repeated->sweep.row.id, rerun->sweep.row.id);
  EXPECT_EQ(Submit(SmallSweep(2), true, request).status().code(), Code::kAlreadyExists);
}

// Runs beyond the first thousand follow by themselves.
TEST_F(ReducerTest, ProposesTheRestLazily) {
  const auto submitted = Submit(SmallSweep(2500));
  ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
  EXPECT_EQ(submitted->sweep.status.proposed, 1000u);
  uint64_t proposed = 0;
  for (int i = 0; i < 200 && proposed < 2500; ++i) {
    Waiter<uint64_t> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      auto sweep = (*store)->FindSweep("demo", false);
      waiter.callback()(sweep.ok() ? Result<uint64_t>(sweep->status.proposed) : sweep.status());
    });
    const auto now = waiter.Wait();
    ASSERT_TRUE(now.ok());
    proposed = *now;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(proposed, 2500u);
}

// A heartbeat without news is parked, and answered as soon as there is work.
TEST_F(ReducerTest, WakesAParkedHeartbeat) {
  ASSERT_EQ(RegisterWorker(1), "nonce");
  ASSERT_TRUE(Beat({}).ok());
  scheduler::Heartbeat event{.worker = worker_,
                             .nonce = "nonce",
                             .incarnation = 1,
                             .hb_seq = ++beats_,
                             .sent_boottime_ns = 5,
                             .applied = applied_};
  Waiter<api::Desired> parked;
  reducer_->Heartbeat(event, parked.callback());
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  const auto desired = parked.Wait();
  ASSERT_TRUE(desired.ok());
  EXPECT_EQ(desired->want.size(), 1u);
  EXPECT_EQ(desired->echo_sent_boottime_ns, 5u);
}

// A cancel is remembered by its request id.
TEST_F(ReducerTest, CancelsIdempotently) {
  const auto submitted = Submit(SmallSweep(3));
  ASSERT_TRUE(submitted.ok());
  api::CancelInput input;
  input.sweep = submitted->sweep.row.id;
  input.request_id = NewUuidV7().ToString();
  for (int i = 0; i < 2; ++i) {
    Waiter<uint64_t> waiter;
    reducer_->Cancel(input, waiter.callback());
    const auto affected = waiter.Wait();
    ASSERT_TRUE(affected.ok()) << affected.status().ToString();
    EXPECT_EQ(*affected, 3u);
  }
}

}  // namespace
}  // namespace switchyard::app
