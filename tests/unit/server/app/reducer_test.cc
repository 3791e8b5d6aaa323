#include "server/app/reducer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/unit/server/app/reducer_world.h"

namespace switchyard::app {
namespace {

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

  const api::AppendInput input = MakeAppend(wanted, 2.5);
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

// Kind 12, 13: points of a series that changes its shape are refused as lines that nobody can
// store, so that the agent puts a gap in their place. Refused as a fault of the coordinator they
// were sent again without end, and their run never ended.
TEST_F(ReducerTest, RefusesASeriesThatChangesItsShape) {
  ASSERT_TRUE(Submit(SmallSweep(1)).ok());
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt& wanted = desired->want[0];
  const auto append = [&](const api::AppendInput& input) {
    Waiter<api::AppendReply> waiter;
    reducer_->Append(input, waiter.callback());
    return waiter.Wait();
  };
  ASSERT_TRUE(append(MakeAppend(wanted, 2.5)).ok());
  const auto vector_at = [&](uint64_t seq, uint32_t width) {
    auto decoded = std::make_shared<events::DecodedBatch>();
    decoded->columns.push_back({.name = width == 0 ? "valid/bits_per_byte" : "routing/load",
                                .is_vector = true,
                                .shape = {std::max(width, 1u)},
                                .seqs = {seq},
                                .steps = {10},
                                .ms = {5},
                                .values = std::string(std::max(width, 1u) * sizeof(float), '\0')});
    const auto batch = api::PrepareBatch(decoded, wanted.epoch, 0, 0);
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    api::AppendInput input = MakeAppend(wanted, 0);
    input.event.first_seq = seq;
    input.event.n = 1;
    input.event.lines.clear();
    input.batch = *batch;
    return input;
  };
  ASSERT_TRUE(append(vector_at(3, 4)).ok());
  const auto wider = append(vector_at(4, 5));
  EXPECT_EQ(wider.status().code(), Code::kInvalidArgument);
  EXPECT_NE(wider.status().message().find("routing/load changes its kind or shape"),
            std::string::npos);
  EXPECT_EQ(append(vector_at(4, 0)).status().code(), Code::kInvalidArgument);
  // The right one goes on where the wrong one was.
  const auto right = append(vector_at(4, 4));
  ASSERT_TRUE(right.ok()) << right.status().ToString();
  EXPECT_EQ(right->committed, 4u);
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
  api::SteerInput input;
  input.sweep = submitted->sweep.row.id;
  input.request_id = NewUuidV7().ToString();
  for (int i = 0; i < 2; ++i) {
    Waiter<uint64_t> waiter;
    reducer_->Steer(input, waiter.callback());
    const auto affected = waiter.Wait();
    ASSERT_TRUE(affected.ok()) << affected.status().ToString();
    EXPECT_EQ(*affected, 3u);
  }
}

class SteerTest : public ReducerTest {
 protected:
  Result<uint64_t> Steer(api::SteerInput input) {
    Waiter<uint64_t> waiter;
    reducer_->Steer(std::move(input), waiter.callback());
    return waiter.Wait();
  }
  Result<api::RetryReply> Retry(api::RetryInput input) {
    Waiter<api::RetryReply> waiter;
    reducer_->Retry(std::move(input), waiter.callback());
    return waiter.Wait();
  }
};

// S16: the same request has the same answer and acts once; its id with another body is refused.
TEST_F(SteerTest, AnswersARequestOnce) {
  const auto sweep = Submit(SmallSweep(3));
  ASSERT_TRUE(sweep.ok());
  api::SteerInput pause;
  pause.sweep = sweep->sweep.row.id;
  pause.verb = scheduler::Verb::kPause;
  pause.request_id = "0197a000-0000-7000-8000-000000000001";
  EXPECT_EQ(*Steer(pause), 3u);
  EXPECT_EQ(*Steer(pause), 3u) << "remembered";
  api::SteerInput other = pause;
  other.verb = scheduler::Verb::kResume;
  EXPECT_EQ(Steer(other).status().code(), Code::kAlreadyExists);
  other.request_id.clear();
  EXPECT_EQ(*Steer(other), 3u);
}

// A verb on a worker nobody knows names it.
TEST_F(SteerTest, RefusesAnUnknownWorker) {
  api::SteerInput input;
  input.worker = WorkerId{Uuid{9, 9}};
  const auto answer = Steer(input);
  EXPECT_EQ(answer.status().code(), Code::kNotFound);
  EXPECT_NE(answer.status().message().find(input.worker->value.ToString()), std::string::npos);
}

// R19: a failed run of an ended sweep is made anew in a child sweep, with the same document; asked
// again by the same request, it is the same child.
TEST_F(SteerTest, RetriesInAChildSweep) {
  const auto sweep = Submit(SmallSweep(1));
  ASSERT_TRUE(sweep.ok());
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok());
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt first = desired->want[0];
  scheduler::MemberReport report;
  report.run = first.run;
  report.ordinal = first.ordinal;
  report.epoch = first.epoch;
  report.state = scheduler::RecordState::kExited;
  report.exit_code = 64;
  report.end_class = scheduler::EndClass::kSpec;
  ASSERT_TRUE(Beat({report}).ok());
  const api::RetryInput input{.sweep = sweep->sweep.row.id,
                              .runs = {first.run},
                              .request_id = "0197a000-0000-7000-8000-000000000002"};
  const auto reply = Retry(input);
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->runs_made, 1u);
  EXPECT_EQ(reply->sweep.row.name, "demo.2");
  EXPECT_EQ(reply->sweep.row.parent, sweep->sweep.row.id);
  const auto again = Retry(input);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->sweep.row.id, reply->sweep.row.id);
  const auto next = Beat({});
  ASSERT_TRUE(next.ok());
  ASSERT_EQ(next->want.size(), 1u);
  EXPECT_NE(next->want[0].run, first.run);
  EXPECT_EQ(next->want[0].run_spec, first.run_spec);
  EXPECT_EQ(next->want[0].run_key, first.run_key);
}

}  // namespace
}  // namespace switchyard::app
