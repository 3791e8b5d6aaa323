#include "worker/train/loop.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "stub_model.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/corpus.h"
#include "worker/eval/language_model.h"
#include "worker/train/checkpoint.h"
#include "worker/train/event_sink.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kVocab = 16;

class RecordingSink final : public EventSink {
 public:
  void Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) override {
    const std::lock_guard lock(mu_);
    for (const auto& [name, value] : values) series[name][step] = value;
    order.push_back(StrCat("m", step));
  }
  void Vector(uint64_t step, std::string name, std::vector<uint32_t>,
              std::vector<float> values) override {
    const std::lock_guard lock(mu_);
    vectors[name][step] = std::move(values);
  }
  void Line(std::string type, std::string members) override {
    const std::lock_guard lock(mu_);
    order.push_back(type);
    lines[type] = std::move(members);
  }
  void Phase(std::string) override {}
  void Log(std::string text) override {
    const std::lock_guard lock(mu_);
    logs += text + "\n";
  }
  Status health() const override { return OkStatus(); }

  std::map<std::string, std::map<uint64_t, double>> series;
  std::map<std::string, std::map<uint64_t, std::vector<float>>> vectors;
  std::map<std::string, std::string> lines;
  std::vector<std::string> order;
  std::string logs;

 private:
  std::mutex mu_;
};

// Says stop at the n-th question, counted from 1.
class StopAt final : public StopSource {
 public:
  explicit StopAt(int question, StopIntent intent = StopIntent::kStop)
      : question_(question), intent_(intent) {}
  StopIntent Poll() override {
    return question_ > 0 && ++asked_ >= question_ ? intent_ : StopIntent::kNone;
  }

 private:
  int question_;
  StopIntent intent_;
  int asked_ = 0;
};

class LoopTest : public testing::Test {
 protected:
  LoopTest() {
    at::set_num_threads(1);
    std::string pattern = StrCat(testing::TempDir(), "/loop-XXXXXX");
    root_ = mkdtemp(pattern.data());
    corpus_.vocab_size = kVocab;
    corpus_.domain_names = {"even", "odd"};
    corpus_.primary_metric = "bits_per_byte";
    Fill(&corpus_.train, 600);
    Fill(&corpus_.valid, 200);
    corpus_.digest = "sha256:0";
    run_.set_kind(v1::RUN_KIND_TRAIN);
    run_.set_seed(3);
    auto* train = run_.mutable_train();
    train->set_steps(30);
    train->set_batch(5);
    train->set_micro_batch(3);
    train->set_target_len(7);
    train->set_memory_len(9);
    train->set_warmup_steps(4);
    train->set_schedule(v1::SCHEDULE_COSINE);
    train->set_clip_norm(0.5);
    auto* adam = train->mutable_optimizer()->mutable_adam();
    adam->set_lr(0.05);
    adam->set_beta1(0.9);
    adam->set_beta2(0.999);
    adam->set_eps(1e-8);
    auto* eval = run_.mutable_eval();
    eval->add_splits(v1::SPLIT_VALID);
    eval->set_target_len(7);
    eval->set_memory_len(9);
    eval->set_batch(4);
    run_.mutable_guards()->set_non_finite(true);
    run_.mutable_model()->mutable_moe()->add_layers(1);
    attempt_.set_run_key("key");
    attempt_.set_epoch(1);
    attempt_.mutable_telemetry()->set_every_steps(10);
  }
  ~LoopTest() override { std::filesystem::remove_all(root_); }

  static void Fill(data::SplitTokens* split, uint32_t tokens) {
    for (uint32_t i = 0; i < tokens; ++i) {
      split->ids.push_back(static_cast<uint32_t>(RandomBelow({11}, i, kVocab / 2) * 2 % kVocab));
    }
    split->domains = {{.domain = 0, .begin = 0, .end = tokens / 3},
                      {.domain = 1, .begin = tokens / 3, .end = tokens}};
    split->bytes = split->chars = split->words = tokens;
  }

  Ending Train(StubModel& model, RecordingSink& sink, StopSource& stop) {
    return RunTraining({.run = run_,
                        .attempt = attempt_,
                        .corpus = corpus_,
                        .model = model,
                        .device = device_,
                        .events = sink,
                        .stop = stop,
                        .start = start_,
                        .model_facts = {{"model/params_total", 272}}});
  }

  std::string root_;
  data::Corpus corpus_;
  v1::RunSpec run_;
  v1::AttemptSpec attempt_;
  at::Device device_{at::kCPU};
  StopAt never_{0};
  const Checkpoint* start_ = nullptr;
};

// A whole run: every step has its metrics, the last step is evaluated, the result is announced.
TEST_F(LoopTest, ReportsEveryStepAndTheResult) {
  StubModel model(kVocab, 0.1);
  RecordingSink sink;
  const Ending ending = Train(model, sink, never_);
  EXPECT_EQ(ending.code, ExitCode::kDone);
  EXPECT_TRUE(ending.complete);
  EXPECT_EQ(ending.final_step, 30u);
  for (const char* name :
       {"train/nats_per_token", "train/lr", "train/grad_norm", "train/step_seconds", "train/tokens",
        "train/data_wait_seconds", "train/nonfinite_steps", "train/tokens_per_second"}) {
    EXPECT_EQ(sink.series[name].size(), 30u) << name;
  }
  EXPECT_EQ(sink.series["train/tokens"][30], static_cast<double>(model.training_tokens));
  EXPECT_EQ(sink.series["train/lr"][2], 0.05 * 2 / 4);
  EXPECT_EQ(sink.series["valid/bits_per_byte"].size(), 1u);
  EXPECT_EQ(sink.series["valid/odd/bits_per_byte"].size(), 1u);
  EXPECT_EQ(sink.series["model/params_total"].size(), 1u);
  EXPECT_EQ(sink.vectors["routing/usage_entropy_norm"].size(), 4u);  // 1, 10, 20, 30
  EXPECT_FALSE(sink.vectors.contains("routing/entropy_nats"));
  EXPECT_THAT(ending.objective_json, HasSubstr("\"metric\":\"valid/bits_per_byte\""));
  EXPECT_THAT(sink.lines["result"], HasSubstr("\"step\":30"));
  EXPECT_EQ(sink.order.back(), "result");
}

// OP2: the rate moves once an update, however many micro-batches that has: warm-up over 16 updates.
TEST_F(LoopTest, TheScheduleTicksOncePerUpdate) {
  run_.mutable_train()->set_steps(20);
  run_.mutable_train()->set_batch(4);
  run_.mutable_train()->set_warmup_steps(16);
  run_.mutable_train()->set_schedule(v1::SCHEDULE_CONSTANT);
  for (const uint32_t micro_batch : {1u, 2u, 4u}) {
    run_.mutable_train()->set_micro_batch(micro_batch);
    StubModel model(kVocab);
    RecordingSink sink;
    EXPECT_EQ(Train(model, sink, never_).code, ExitCode::kDone);
    for (const uint64_t update : {1u, 8u, 16u, 17u}) {
      const double expected = 0.05 * static_cast<double>(std::min<uint64_t>(update, 16)) / 16;
      EXPECT_DOUBLE_EQ(sink.series["train/lr"][update], expected)
          << "update " << update << ", micro-batches of " << micro_batch;
    }
  }
}

// Loads come from training batches alone, tokens times K of the update, evaluations or not.
TEST_F(LoopTest, RoutingCountsTrainingTokensOnly) {
  run_.mutable_eval()->set_every_steps(2);
  StubModel model(kVocab);
  RecordingSink sink;
  Train(model, sink, never_);
  // Every id is even, so that expert 0 takes all tokens of every telemetry step.
  for (const auto& [step, load] : sink.vectors["routing/expert_load"]) {
    EXPECT_THAT(load, ElementsAre(2, 0)) << step;
  }
}

// Evaluation has its own memory and draws nothing: training is bit-equal with and without it.
TEST_F(LoopTest, EvaluationDoesNotDisturbTraining) {
  StubModel quiet(kVocab, 0.2), busy(kVocab, 0.2);
  RecordingSink quiet_sink, busy_sink;
  Train(quiet, quiet_sink, never_);
  run_.mutable_eval()->set_every_steps(1);
  Train(busy, busy_sink, never_);
  EXPECT_EQ(quiet_sink.series["train/nats_per_token"], busy_sink.series["train/nats_per_token"]);
  EXPECT_TRUE(quiet.table.equal(busy.table));
  EXPECT_TRUE(quiet.gain.equal(busy.gain));
  EXPECT_EQ(busy_sink.series["valid/bits_per_byte"].size(), 30u);
  EXPECT_EQ(quiet_sink.series["valid/bits_per_byte"][30],
            busy_sink.series["valid/bits_per_byte"][30]);
}

// RE2: a warm-up of 100 updates that was broken off at 120 does not begin anew, and a run of 100
// steps that is stopped every 30 ends at 100 in all.
TEST_F(LoopTest, AResumedRunKeepsItsWarmUpAndItsLength) {
  attempt_.set_checkpoint_dir(root_);
  run_.mutable_train()->set_warmup_steps(100);
  run_.mutable_train()->set_steps(140);
  StubModel whole(kVocab, 0.2), first(kVocab, 0.2), second(kVocab, 0.2);
  RecordingSink whole_sink, first_sink, second_sink;
  Train(whole, whole_sink, never_);
  attempt_.set_epoch(2);
  StopAt stop(121);
  const Ending stopped = Train(first, first_sink, stop);
  ASSERT_EQ(stopped.final_step, 120u);
  attempt_.set_resume_checkpoint(StrCat(root_, "/2-120"));
  attempt_.set_epoch(3);
  ASSERT_EQ(Train(second, second_sink, never_).code, ExitCode::kDone) << second_sink.logs;
  EXPECT_EQ(second_sink.series["train/lr"].begin()->first, 121u);
  EXPECT_EQ(second_sink.series["train/lr"][121], whole_sink.series["train/lr"][121]);
  // A warm-up that began anew would be at its first step.
  EXPECT_GT(second_sink.series["train/lr"][121], 2 * whole_sink.series["train/lr"][1]);

  run_.mutable_train()->set_steps(100);
  attempt_.set_run_key("another");
  attempt_.clear_resume_checkpoint();
  std::vector<uint64_t> ends;
  size_t steps = 0;
  Ending ending;
  for (uint64_t epoch = 10; !ending.complete && epoch < 20; ++epoch) {
    attempt_.set_epoch(epoch);
    StubModel model(kVocab, 0.2);
    RecordingSink sink;
    StopAt every_thirty(31);
    ending = Train(model, sink, every_thirty);
    ends.push_back(ending.final_step);
    steps += sink.series["train/lr"].size();
    attempt_.set_resume_checkpoint(StrCat(root_, "/", epoch, "-", ending.final_step));
  }
  EXPECT_THAT(ends, testing::ElementsAre(30, 60, 90, 100));
  EXPECT_EQ(steps, 100u);
}

// Stopped at any step and resumed, a run is the same run: losses, rates, counters, weights.
TEST_F(LoopTest, AStoppedAndResumedRunEqualsAnUninterruptedOne) {
  StubModel whole(kVocab, 0.2);
  RecordingSink whole_sink;
  run_.mutable_eval()->set_every_steps(8);
  attempt_.mutable_telemetry()->set_every_steps(2);
  Train(whole, whole_sink, never_);
  attempt_.set_checkpoint_dir(root_);
  // Epochs only rise, as a coordinator hands them out: retention keeps the newest.
  uint64_t epoch = 100;
  for (const int stop_at : {2, 9, 20}) {
    StubModel first(kVocab, 0.2), second(kVocab, 0.2);
    RecordingSink first_sink, second_sink;
    StopAt stop(stop_at);
    attempt_.clear_resume_checkpoint();
    attempt_.set_epoch(++epoch);
    const Ending stopped = Train(first, first_sink, stop);
    EXPECT_EQ(stopped.code, ExitCode::kStopped);
    EXPECT_FALSE(stopped.complete);
    attempt_.set_resume_checkpoint(StrCat(root_, "/", attempt_.epoch(), "-", stopped.final_step));
    attempt_.set_epoch(++epoch);
    const Ending resumed = Train(second, second_sink, never_);
    EXPECT_EQ(resumed.code, ExitCode::kDone) << second_sink.logs;
    EXPECT_THAT(second_sink.lines["resume"], HasSubstr(StrCat("\"step\":", stopped.final_step)));
    for (const char* name : {"train/nats_per_token", "train/lr", "train/grad_norm", "train/tokens",
                             "valid/bits_per_byte"}) {
      auto joined = first_sink.series[name];
      joined.merge(second_sink.series[name]);
      EXPECT_EQ(joined, whole_sink.series[name]) << name << " stopped at " << stop_at;
    }
    // Windows and probes reach back over the stop.
    for (const char* name : {"routing/expert_load", "routing/churn_step", "routing/dead_experts"}) {
      auto joined = first_sink.vectors[name];
      joined.merge(second_sink.vectors[name]);
      EXPECT_FALSE(joined.empty()) << name;
      EXPECT_EQ(joined, whole_sink.vectors[name]) << name << " stopped at " << stop_at;
    }
    EXPECT_TRUE(second.table.equal(whole.table));
    EXPECT_TRUE(second.gain.equal(whole.gain));
  }
}

// A fork is the run that it comes from, up to what is set anew; its own objective begins with it.
// Steps to be kept are, whatever the retention says.
TEST_F(LoopTest, AForkGoesOnFromAKeptStep) {
  StubModel whole(kVocab, 0.2), same(kVocab, 0.2), other(kVocab, 0.2);
  RecordingSink whole_sink, same_sink, other_sink;
  run_.mutable_eval()->set_every_steps(8);
  run_.mutable_train()->add_keep_steps(10);
  attempt_.mutable_checkpoint()->set_keep_last(1);
  attempt_.mutable_checkpoint()->set_keep_best(0);
  attempt_.set_checkpoint_dir(root_ + "/parent");
  Train(whole, whole_sink, never_);
  const auto stored = ListCheckpoints(root_ + "/parent", "key");
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(stored[0].step, 10u);
  const auto read = ReadCheckpoint(stored[0].path, "key");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  const auto found = FindCheckpoint(root_ + "/parent", 10, (*read)->info.digest);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(FindCheckpoint(root_ + "/parent", 10, "sha256:0").status().code(), Code::kNotFound);

  start_ = found->get();
  attempt_.set_run_key("fork");
  attempt_.set_checkpoint_dir(root_ + "/fork");
  Train(same, same_sink, never_);
  EXPECT_FALSE(same_sink.lines.contains("resume"));
  EXPECT_EQ(same_sink.series["train/nats_per_token"].begin()->first, 11u);
  EXPECT_EQ(same_sink.series["train/nats_per_token"][30],
            whole_sink.series["train/nats_per_token"][30]);
  EXPECT_TRUE(same.table.equal(whole.table));
  run_.mutable_train()->mutable_optimizer()->mutable_adam()->set_lr(0.2);
  attempt_.set_run_key("other");
  attempt_.set_checkpoint_dir(root_ + "/other");
  Train(other, other_sink, never_);
  EXPECT_EQ(other_sink.series["train/nats_per_token"][11],
            whole_sink.series["train/nats_per_token"][11]);
  EXPECT_FALSE(other.table.equal(whole.table));

  run_.mutable_train()->set_batch(6);
  StubModel wrong(kVocab);
  RecordingSink wrong_sink;
  const Ending refused = Train(wrong, wrong_sink, never_);
  EXPECT_EQ(refused.code, ExitCode::kData);
  EXPECT_THAT(refused.reason, HasSubstr("6 rows"));
}

// Weights of another run: all of them, but for what may be fresh.
TEST_F(LoopTest, TakesWeightsFromACheckpoint) {
  StubModel from(kVocab, 0.3), to(kVocab, 0.9);
  RecordingSink sink;
  attempt_.set_checkpoint_dir(root_);
  Train(from, sink, never_);
  const auto stored = ReadCheckpoint(ListCheckpoints(root_, "key").back().path, "key");
  ASSERT_TRUE(stored.ok());
  std::vector<std::string> notices;
  NamedTensors live = ModelTensors(to);
  ASSERT_TRUE(CopyWeights(*(*stored)->model, live, {}, &notices).ok());
  EXPECT_TRUE(to.table.equal(from.table));
  EXPECT_TRUE(notices.empty());
  live.emplace_back("head.weight", at::ones({2, 3}));
  EXPECT_THAT(CopyWeights(*(*stored)->model, live, {}, &notices).message(),
              HasSubstr("head.weight"));
  ASSERT_TRUE(CopyWeights(*(*stored)->model, live, {"head.*"}, &notices).ok());
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0], HasSubstr("head.weight"));
  EXPECT_TRUE(live.back().second.equal(at::ones({2, 3})));
}

// An evaluation broken off by a stop is owed: the resumed attempt begins with it.
TEST_F(LoopTest, AnEvaluationBrokenOffIsMadeUpFor) {
  run_.mutable_eval()->set_every_steps(5);
  attempt_.set_checkpoint_dir(root_);
  StubModel first(kVocab), second(kVocab);
  RecordingSink first_sink, second_sink;
  StopAt stop(8);  // five before the steps, then inside the first evaluation
  const Ending stopped = Train(first, first_sink, stop);
  EXPECT_EQ(stopped.final_step, 5u);
  EXPECT_EQ(first_sink.series["valid/bits_per_byte"].size(), 0u);
  attempt_.set_resume_checkpoint(StrCat(root_, "/1-5"));
  attempt_.set_epoch(2);
  Train(second, second_sink, never_);
  EXPECT_EQ(second_sink.series["valid/bits_per_byte"].begin()->first, 5u);
}

// KILL writes no checkpoint; a stop before the first step has nothing to write.
TEST_F(LoopTest, KillWritesNoCheckpoint) {
  attempt_.set_checkpoint_dir(root_);
  StubModel model(kVocab);
  RecordingSink sink;
  StopAt kill(5, StopIntent::kKill);
  EXPECT_EQ(Train(model, sink, kill).code, ExitCode::kStopped);
  EXPECT_FALSE(sink.lines.contains("ckpt"));
}

// A damaged checkpoint costs steps, not the run: an older one is taken, and reported as such.
TEST_F(LoopTest, FallsBackToAnOlderCheckpoint) {
  attempt_.set_checkpoint_dir(root_);
  for (const int stop_at : {5, 15}) {
    StubModel model(kVocab);
    RecordingSink sink;
    StopAt stop(stop_at);
    Train(model, sink, stop);
    attempt_.set_epoch(attempt_.epoch() + 1);
  }
  std::filesystem::resize_file(StrCat(root_, "/2-14/model.safetensors"), 100);
  attempt_.set_resume_checkpoint(StrCat(root_, "/2-14"));
  StubModel model(kVocab);
  RecordingSink sink;
  EXPECT_EQ(Train(model, sink, never_).code, ExitCode::kDone);
  EXPECT_THAT(sink.lines["resume"], HasSubstr("\"from\":\"1\",\"step\":4"));
  EXPECT_THAT(sink.logs, HasSubstr("2-14"));
  EXPECT_EQ(sink.series["train/lr"].begin()->first, 5u);
}

// A finished run keeps its newest checkpoints and the `ckpt` line comes behind the step's metrics.
TEST_F(LoopTest, PublishesTheLastCheckpointBehindItsStep) {
  attempt_.set_checkpoint_dir(root_);
  attempt_.mutable_checkpoint()->set_every_ms(1);
  attempt_.mutable_checkpoint()->set_keep_last(1);
  attempt_.mutable_checkpoint()->set_keep_best(0);
  StubModel model(kVocab);
  RecordingSink sink;
  Train(model, sink, never_);
  EXPECT_THAT(sink.lines["ckpt"], HasSubstr("\"step\":30"));
  EXPECT_THAT(sink.lines["ckpt"], HasSubstr("sha256:"));
  EXPECT_EQ(ListCheckpoints(root_, "key").size(), 1u);
  EXPECT_THAT(sink.order, testing::Contains("ckpt"));
  EXPECT_EQ(sink.order[sink.order.size() - 2], "ckpt");
}

// With a coordinator its record says what is kept: a trainer that removed by itself took pinned
// checkpoints, and such as the record showed as published.
TEST_F(LoopTest, RemovesNothingThatTheRecordHas) {
  attempt_.set_run_id("a-run-with-a-coordinator");
  attempt_.set_checkpoint_dir(root_);
  attempt_.mutable_checkpoint()->set_keep_last(1);
  attempt_.mutable_checkpoint()->set_keep_best(0);
  for (const uint64_t step : {5, 10, 15}) run_.mutable_train()->add_keep_steps(step);
  StubModel model(kVocab);
  RecordingSink sink;
  StopAt stop(21);
  Train(model, sink, stop);
  run_.mutable_train()->clear_keep_steps();
  const auto steps = [&] {
    std::vector<std::string> out;
    for (const StoredCheckpoint& stored : ListCheckpoints(root_, "key")) {
      out.push_back(std::filesystem::path(stored.path).filename());
    }
    return out;
  };
  ASSERT_THAT(steps(), ElementsAre("1-5", "1-10", "1-15", "1-20"));

  // The next attempt gets 1-10: the record never heard of the two behind it.
  attempt_.set_epoch(2);
  attempt_.set_resume_checkpoint(root_ + "/1-10");
  StubModel second(kVocab);
  RecordingSink second_sink;
  Train(second, second_sink, never_);
  EXPECT_EQ(second_sink.series["train/nats_per_token"].begin()->first, 11u);
  EXPECT_THAT(steps(), ElementsAre("1-5", "1-10", "2-30"));

  // Nor does it fall back to one of them when the assigned one cannot be read.
  attempt_.set_epoch(3);
  attempt_.set_resume_checkpoint(root_ + "/1-10");
  std::filesystem::resize_file(root_ + "/1-10/model.safetensors", 100);
  StubModel fallen(kVocab);
  RecordingSink fallen_sink;
  Train(fallen, fallen_sink, never_);
  EXPECT_THAT(fallen_sink.lines["resume"], HasSubstr("\"from\":\"1\",\"step\":5"));
  EXPECT_THAT(steps(), ElementsAre("1-5", "1-10", "3-30"));

  // From the start: none was ever recorded.
  attempt_.set_epoch(4);
  attempt_.clear_resume_checkpoint();
  StubModel third(kVocab);
  RecordingSink third_sink;
  Train(third, third_sink, never_);
  EXPECT_THAT(steps(), ElementsAre("4-30"));
}

// A diverged run ends as an observation, with the step that shows it.
TEST_F(LoopTest, NonFiniteLossEndsTheRunByItsGuard) {
  StubModel model(kVocab);
  model.table.mutable_data_ptr<float>()[0] = std::nanf("");
  RecordingSink sink;
  const Ending ending = Train(model, sink, never_);
  EXPECT_EQ(ending.code, ExitCode::kGuard);
  EXPECT_EQ(ending.reason, "non_finite");
  EXPECT_EQ(ending.final_step, sink.series["train/nats_per_token"].rbegin()->first);
  EXPECT_TRUE(std::isnan(sink.series["train/nats_per_token"].rbegin()->second));
  EXPECT_EQ(sink.series["train/nonfinite_steps"].rbegin()->second, 1);
}

// Without the guard such a step is counted and moves no weight.
TEST_F(LoopTest, WithoutTheGuardANonFiniteStepIsCountedAndSkipped) {
  run_.mutable_guards()->set_non_finite(false);
  StubModel model(kVocab);
  model.table.mutable_data_ptr<float>()[0] = std::nanf("");
  RecordingSink sink;
  EXPECT_EQ(Train(model, sink, never_).code, ExitCode::kDone);
  EXPECT_GT(sink.series["train/nonfinite_steps"][30], 0);
  EXPECT_TRUE(model.gain.isfinite().all().item<bool>());
}

// Every batch size and segment length scores the same text: all tokens but each row's first.
TEST_F(LoopTest, UniformModelScoresLnVocabAtEverySegmentLength) {
  data::Corpus corpus = corpus_;
  corpus.domain_names = {""};
  corpus.valid = {};
  for (uint32_t i = 0; i < 1000; ++i) corpus.valid.ids.push_back(i % kVocab);
  corpus.valid.domains = {{.domain = 0, .begin = 0, .end = 1000}};
  corpus.valid.bytes = corpus.valid.chars = corpus.valid.words = 1000;
  StubModel model(kVocab);
  {
    const c10::NoGradGuard no_grad;
    model.table.zero_();
  }
  for (const uint32_t length : {7u, 64u, 1000u}) {
    const auto evaluation = eval::EvaluateText(model, corpus, data::Split::kValid,
                                               {.batch = 1, .target_len = length, .memory_len = 8},
                                               device_, [] { return true; });
    EXPECT_EQ(evaluation.totals.tokens, 999u) << length;
    EXPECT_NEAR(eval::NatsPerToken(evaluation.totals), 2.772589, 5e-7) << length;
  }
}

// Two evaluations in one process are bit-equal: no memory is left over.
TEST_F(LoopTest, EvaluatingTwiceGivesTheSameBits) {
  StubModel model(kVocab);
  model.gain.mutable_data_ptr<float>()[1] = 1.0f;
  const auto score = [&] {
    return eval::EvaluateText(model, corpus_, data::Split::kValid,
                              {.batch = 4, .target_len = 7, .memory_len = 9}, device_,
                              [] { return true; })
        .totals.nats;
  };
  const double first = score();
  EXPECT_EQ(score(), first);
}

}  // namespace
}  // namespace switchyard::train
