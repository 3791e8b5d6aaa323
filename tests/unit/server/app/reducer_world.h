#pragma once

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/events/batch.h"
#include "server/api/batch.h"
#include "server/app/reducer.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::app {

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

inline v1::SweepSpec SmallSweep(int seeds) {
  v1::SweepSpec spec;
  spec.set_name("demo");
  v1::RunSpec* run = spec.mutable_base();
  run->set_kind(v1::RUN_KIND_TRAIN);
  v1::Domain* domain = run->mutable_data()->mutable_files()->add_domains();
  domain->set_id("c");
  domain->add_globs("/usr/include/*.h");
  v1::DecoderSpec* decoder = run->mutable_model()->mutable_decoder();
  decoder->set_layers(1);
  decoder->set_d_model(16);
  decoder->set_heads(2);
  decoder->set_d_inner(32);
  v1::TrainSpec* train = run->mutable_train();
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
    auto store = MakeStore();
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

  virtual std::unique_ptr<store::Store> MakeStore() { return store::MakeMemoryStore(); }

  Result<api::SubmitReply> Submit(const v1::SweepSpec& spec, bool rerun = false,
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

  // Points of a wanted attempt: its first line, and a value of valid/bits_per_byte at step 10.
  api::AppendInput MakeAppend(const api::WantedAttempt& wanted, double value) {
    auto decoded = std::make_shared<events::DecodedBatch>();
    decoded->lines.push_back({.seq = 1, .covers = 1, .type = "hello", .json = "{}"});
    decoded->columns.push_back(
        {.name = "valid/bits_per_byte",
         .is_vector = false,
         .shape = {},
         .seqs = {2},
         .steps = {10},
         .ms = {5},
         .values = std::string(reinterpret_cast<const char*>(&value), sizeof(value))});
    const auto batch = api::PrepareBatch(decoded, wanted.epoch, 0, 0);
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
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
    return input;
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

}  // namespace switchyard::app
