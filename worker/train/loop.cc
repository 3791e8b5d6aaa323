#include "worker/train/loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/spec/series.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/batcher.h"
#include "worker/data/corpus.h"
#include "worker/eval/language_model.h"
#include "worker/eval/routing_series.h"
#include "worker/model/model.h"
#include "worker/train/checkpoint.h"
#include "worker/train/checkpoint_writer.h"
#include "worker/train/event_sink.h"
#include "worker/train/optimizer.h"
#include "worker/train/schedule.h"
#include "worker/train/window.h"

namespace switchyard::train {

namespace pb = ::switchyard::v1;

namespace {

using Clock = std::chrono::steady_clock;

// Beside the segment memory in a checkpoint.
constexpr char kTelemetryPrefix[] = "memory.telemetry.";
// A checkpoint that takes longer is given up; the run goes on or ends without it.
constexpr std::chrono::minutes kCheckpointLimit{5};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

nlohmann::ordered_json Number(double value) {
  if (std::isfinite(value)) return value;
  return FormatDouble(value);
}

std::string Members(const nlohmann::ordered_json& object) {
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

// (epoch, step) of a checkpoint by the name of its folder, `<epoch>-<step>`.
std::optional<std::pair<uint64_t, uint64_t>> PlaceOf(const std::string& path) {
  const std::vector<std::string> parts =
      StrSplit(std::filesystem::path(path).filename().string(), '-');
  if (parts.size() != 2) return std::nullopt;
  const auto epoch = ParseUint64(parts[0]), step = ParseUint64(parts[1]);
  if (!epoch || !step) return std::nullopt;
  return std::pair(*epoch, *step);
}

data::Split ToSplit(pb::Split split) {
  switch (split) {
    case pb::SPLIT_TRAIN:
      return data::Split::kTrain;
    case pb::SPLIT_TEST:
      return data::Split::kTest;
    default:
      return data::Split::kValid;
  }
}

std::vector<std::string> SequenceLosses(const pb::RunSpec& run) {
  std::vector<std::string> ids;
  for (const pb::LossSpec& loss : run.model().moe().losses()) {
    if (loss.scope() == pb::LOSS_SCOPE_SEQUENCE || loss.id() == "megatron_seq" ||
        loss.id() == "deepseek_seq") {
      ids.push_back(loss.id());
    }
  }
  return ids;
}

// Experts of the second evaluation of routers whose number of experts grows in training: all of
// them (models.md 3.5). 0: there is none.
uint32_t DenseTopK(const pb::MoeSpec& moe) {
  const pb::RouterSpec& router = moe.router();
  const bool is_scheduled = (router.has_smoe_dropout() && router.smoe_dropout().schedule().mode() !=
                                                              pb::K_SCHEDULE_MODE_CONSTANT) ||
                            (router.has_hyper_router() && router.hyper_router().schedule().mode() !=
                                                              pb::K_SCHEDULE_MODE_CONSTANT);
  return is_scheduled && moe.top_k() != moe.experts() ? moe.experts() : 0;
}

LrSchedule ScheduleOf(const pb::TrainSpec& train, double peak, uint64_t steps_max) {
  return {
      .peak = peak,
      .decay = train.schedule() == pb::SCHEDULE_COSINE ? DecayKind::kCosine : DecayKind::kConstant,
      .warmup_steps = train.warmup_steps(),
      .steps_max = steps_max,
      .is_txl_compatible = train.txl_schedule_compat()};
}

// What counts as the run's result.
class Objective {
 public:
  Objective(const pb::ObjectiveSpec& spec, const std::string& primary_metric) {
    metric_ = spec::ResolvePrimary(spec.metric().empty() ? "valid/primary" : spec.metric(),
                                   primary_metric);
    lower_is_better_ =
        spec.goal() == pb::GOAL_UNSPECIFIED
            ? spec::SeriesDirection(metric_) != std::optional(spec::Direction::kMaximize)
            : spec.goal() == pb::GOAL_MINIMIZE;
    takes_last_ = spec.value() == pb::OBJECTIVE_VALUE_LAST;
  }

  bool lower_is_better() const { return lower_is_better_; }

  void Observe(uint64_t step, const std::vector<std::pair<std::string, double>>& series,
               ObjectiveState* state) const {
    for (const auto& [name, value] : series) {
      if (name != metric_) continue;
      state->last = value;
      state->last_step = step;
      if (!std::isfinite(value)) continue;
      if (!state->best || (lower_is_better_ ? value < *state->best : value > *state->best)) {
        state->best = value;
        state->best_step = step;
      }
    }
  }

  // Empty when it was never observed.
  nlohmann::ordered_json Describe(const ObjectiveState& state) const {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    if (!state.last && !state.best) return out;
    const std::optional<double>& value = takes_last_ ? state.last : state.best;
    out["metric"] = metric_;
    out["goal"] = lower_is_better_ ? "minimize" : "maximize";
    out["value"] = value ? Number(*value) : nlohmann::ordered_json(nullptr);
    out["step"] = takes_last_ ? state.last_step : state.best_step;
    if (state.best) out["best"] = Number(*state.best);
    if (state.best) out["best_step"] = state.best_step;
    if (state.last) out["last"] = Number(*state.last);
    if (state.last) out["last_step"] = state.last_step;
    return out;
  }

 private:
  std::string metric_;
  bool lower_is_better_ = true;
  bool takes_last_ = false;
};

NamedTensors HostCopies(const NamedTensors& tensors) {
  NamedTensors out;
  for (const auto& [name, tensor] : tensors) {
    out.emplace_back(name, tensor.detach()
                               .to(at::kCPU, tensor.scalar_type(),
                                   /*non_blocking=*/false, /*copy=*/true)
                               .contiguous());
  }
  return out;
}

// One run from its first step of this attempt to its end. Training thread only.
class TrainLoop {
 public:
  explicit TrainLoop(const LoopSetup& setup)
      : setup_(setup),
        train_(setup.run.train()),
        batcher_(setup.corpus, {.batch = train_.batch(),
                                .len = train_.target_len(),
                                .order_key = RandomKey::For(setup.run.seed(), "data_order")}),
        optimizer_(setup.model.NamedParameters(), AdamOptimizer::OptionsFrom(train_.optimizer())),
        window_(setup.model,
                {.micro_batch = train_.micro_batch(),
                 .memory_len = train_.memory_len(),
                 .dropout = RandomKey::For(setup.run.seed(), "dropout"),
                 .sequence_losses = SequenceLosses(setup.run)},
                setup.device),
        objective_(setup.attempt.objective(), setup.corpus.primary_metric) {
    steps_max_ = train_.steps();
    if (steps_max_ == 0) {
      steps_max_ = static_cast<uint64_t>(
          std::ceil(train_.data_epochs() * static_cast<double>(batcher_.segments_per_epoch())));
    }
    schedule_ = ScheduleOf(train_, AdamOptimizer::OptionsFrom(train_.optimizer()).lr, steps_max_);
    const pb::AttemptSpec& attempt = setup.attempt;
    telemetry_every_ = std::max<uint32_t>(attempt.telemetry().every_steps(), 1);
    if (!attempt.telemetry().has_every_steps()) telemetry_every_ = 20;
    if (!attempt.checkpoint_dir().empty()) {
      const pb::CheckpointPolicy& policy = attempt.checkpoint();
      checkpoint_every_ms_ = policy.has_every_ms() ? policy.every_ms() : 600'000;
      checkpoints_ = std::make_unique<CheckpointWriter>(
          CheckpointWriter::Options{
              .root = attempt.checkpoint_dir(),
              .epoch = attempt.epoch(),
              .run_key = attempt.run_key(),
              .is_alone = attempt.run_id().empty(),
              .keep_last = policy.has_keep_last() ? policy.keep_last() : 2,
              .keep_best = policy.has_keep_best() ? policy.keep_best() : 1,
              .lower_is_better = objective_.lower_is_better(),
              .keep_steps = {train_.keep_steps().begin(), train_.keep_steps().end()},
              .before_publish = [&stop = setup.stop] { stop.ExitIfPast(); }},
          setup.events);
    }
  }

  Ending Run() {
    if (checkpoints_ != nullptr && !setup_.attempt.run_id().empty()) RemoveUnrecorded();
    if (const Status status = Resume(); !status.ok()) {
      return Finish({.code = ExitCode::kData, .reason = status.message()});
    }
    setup_.events.Scalars(progress_.step, setup_.model_facts);
    last_checkpoint_ = Clock::now();
    if (progress_.owes_evaluation && !Evaluate()) return Stop();
    setup_.events.Phase("train");
    while (progress_.step < steps_max_) {
      if (setup_.stop.Poll() != StopIntent::kNone) return Stop();
      if (!setup_.events.health().ok()) {
        return Finish({.code = ExitCode::kInternal,
                       .reason = StrCat("events: ", setup_.events.health().message())});
      }
      const bool is_finite = Step();
      if (!is_finite && setup_.run.guards().non_finite()) {
        return Finish({.code = ExitCode::kGuard, .reason = "non_finite"});
      }
      if (IsEvaluationDue() && !Evaluate()) return Stop();
      if (IsStepKept()) {
        SubmitFinalCheckpoint();
      } else if (IsCheckpointDue()) {
        SubmitCheckpoint();
      }
    }
    SubmitFinalCheckpoint();
    return Finish({.code = ExitCode::kDone, .complete = true});
  }

 private:
  // One update and its metric line. False when the loss or a gradient was not finite; such a step
  // moves no weight.
  bool Step() {
    const Clock::time_point start = Clock::now();
    const data::TokenBatch batch = batcher_.Next();
    progress_.data_wait_seconds += SecondsSince(start);
    const uint64_t update = progress_.step + 1;
    const bool wants_routing =
        setup_.run.model().has_moe() &&
        (update == 1 || update == steps_max_ || update % telemetry_every_ == 0);

    optimizer_.ZeroGrad();
    WindowResult window =
        window_.Run(batch, progress_.step, wants_routing ? WantRouting::kYes : WantRouting::kNo);
    const double grad_norm = optimizer_.GradNorm().item<double>();
    const double lr = schedule_.Rate(update);
    const bool is_finite = std::isfinite(window.nats_per_token) && std::isfinite(grad_norm);
    if (is_finite) {
      optimizer_.Step(lr, train_.has_clip_norm() ? train_.clip_norm() : 0, grad_norm);
    } else {
      ++progress_.nonfinite_steps;
    }
    setup_.model.EndUpdate(is_finite);
    progress_.step = update;
    progress_.cursor = batcher_.cursor();
    progress_.tokens += window.tokens;

    const double seconds = SecondsSince(start);
    std::vector<std::pair<std::string, double>> values = {
        {"train/nats_per_token", window.nats_per_token},
        {"train/lr", lr},
        {"train/grad_norm", grad_norm},
        {"train/step_seconds", seconds},
        {"train/tokens_per_second", static_cast<double>(window.tokens) / seconds},
        {"train/tokens", static_cast<double>(progress_.tokens)},
        {"train/data_wait_seconds", progress_.data_wait_seconds},
        {"train/nonfinite_steps", static_cast<double>(progress_.nonfinite_steps)}};
    for (const auto& [id, value] : window.aux) values.emplace_back(StrCat("train/aux/", id), value);
    setup_.events.Scalars(update, std::move(values));
    for (eval::RoutingSeries& series : routing_.Report(window.routing, window.sequences)) {
      setup_.events.Vector(update, std::move(series.name), std::move(series.shape),
                           std::move(series.values));
    }
    return is_finite;
  }

  bool IsEvaluationDue() const {
    const uint64_t every = setup_.run.eval().every_steps();
    return progress_.step == steps_max_ || (every > 0 && progress_.step % every == 0);
  }

  // False when it was broken off by a request to stop; the evaluation is then owed.
  bool Evaluate() {
    const pb::EvalSpec& eval = setup_.run.eval();
    setup_.events.Phase("evaluate");
    progress_.owes_evaluation = true;
    std::vector<std::pair<std::string, double>> values;
    for (const int split_number : eval.splits()) {
      const data::Split split = ToSplit(static_cast<pb::Split>(split_number));
      eval::TextEvalOptions options{
          .batch = eval.batch(),
          .target_len = eval.target_len(),
          .memory_len = eval.memory_len(),
          .max_tokens = progress_.step == steps_max_ ? 0 : eval.max_tokens(),
          .step = progress_.step};
      const auto evaluate = [&] {
        return eval::EvaluateText(setup_.model, setup_.corpus, split, options, setup_.device,
                                  [this] { return setup_.stop.Poll() == StopIntent::kNone; });
      };
      const eval::TextEvaluation evaluation = evaluate();
      if (evaluation.was_stopped) return false;
      const auto series = eval::EvaluationSeries(evaluation, setup_.corpus, split);
      values.insert(values.end(), series.begin(), series.end());
      options.top_k = DenseTopK(setup_.run.model().moe());
      if (options.top_k == 0) continue;
      const eval::TextEvaluation dense = evaluate();
      if (dense.was_stopped) return false;
      const auto dense_series = eval::TextSeries(
          StrCat(data::SplitName(split), "/k", options.top_k), dense.units, dense.totals);
      values.insert(values.end(), dense_series.begin(), dense_series.end());
    }
    if (setup_.run.model().has_moe()) ReportProbe(eval);
    progress_.owes_evaluation = false;
    objective_.Observe(progress_.step, values, &progress_.objective);
    setup_.events.Scalars(progress_.step, std::move(values));
    if (progress_.step < steps_max_) setup_.events.Phase("train");
    return true;
  }

  // How far routing has moved since the evaluation before.
  void ReportProbe(const pb::EvalSpec& eval) {
    const auto layers = eval::ProbeRouting(
        setup_.model, setup_.corpus, data::Split::kValid,
        {.batch = eval.batch(), .target_len = eval.target_len(), .step = progress_.step},
        setup_.device);
    for (eval::RoutingSeries& series : routing_.ReportProbe(layers)) {
      setup_.events.Vector(progress_.step, std::move(series.name), std::move(series.shape),
                           std::move(series.values));
    }
  }

  bool IsStepKept() const {
    const auto& steps = train_.keep_steps();
    return std::find(steps.begin(), steps.end(), progress_.step) != steps.end();
  }

  bool IsCheckpointDue() const {
    return checkpoints_ != nullptr && progress_.step < steps_max_ && checkpoint_every_ms_ > 0 &&
           SecondsSince(last_checkpoint_) * 1000 >= static_cast<double>(checkpoint_every_ms_);
  }

  void SubmitCheckpoint(
      CheckpointWriter::WhenFull when_full = CheckpointWriter::WhenFull::kGiveUp) {
    if (checkpoints_ == nullptr || checkpoints_->last_step() == progress_.step) return;
    CheckpointContent content{.run_key = setup_.attempt.run_key(),
                              .progress = progress_,
                              .model = HostCopies(ModelTensors(setup_.model)),
                              .state = HostCopies(optimizer_.State())};
    const std::vector<at::Tensor> memory = window_.JoinedMemory();
    NamedTensors named;
    for (size_t i = 0; i < memory.size(); ++i) named.emplace_back(StrCat("memory.", i), memory[i]);
    for (const auto& [name, tensor] : routing_.State()) {
      named.emplace_back(StrCat(kTelemetryPrefix, name), tensor);
    }
    content.memory = HostCopies(named);
    if (checkpoints_->Submit(std::move(content), when_full)) last_checkpoint_ = Clock::now();
  }

  // One that must not be skipped because another is under way: the last one, or one to be kept.
  void SubmitFinalCheckpoint() {
    if (checkpoints_ == nullptr) return;
    if (checkpoints_->WaitIdle(kCheckpointLimit)) {
      SubmitCheckpoint(CheckpointWriter::WhenFull::kWait);
    }
    if (!checkpoints_->WaitIdle(kCheckpointLimit)) {
      setup_.events.Log(StrCat("the checkpoint of step ", progress_.step,
                               " is not written after 5 minutes, giving it up"));
    }
  }

  Ending Stop() {
    if (setup_.stop.Poll() != StopIntent::kKill && progress_.step > 0) SubmitFinalCheckpoint();
    return Finish({.code = ExitCode::kStopped, .reason = "stopped on request"});
  }

  Ending Finish(Ending ending) {
    ending.final_step = progress_.step;
    const nlohmann::ordered_json objective = objective_.Describe(progress_.objective);
    if (!objective.empty()) {
      ending.objective_json = objective.dump();
      setup_.events.Line("result", Members({{"step", progress_.step}, {"objective", objective}}));
    }
    return ending;
  }

  // The assigned checkpoint, else an older one of this run that is whole, else from the start.
  Status Resume() {
    const std::string& assigned = setup_.attempt.resume_checkpoint();
    if (assigned.empty()) return Begin();
    std::vector<std::string> candidates = {assigned};
    // No candidate may be ahead of what was assigned.
    const auto place = PlaceOf(assigned);
    const uint64_t step_max = place ? place->second : UINT64_MAX;
    const std::string root = std::filesystem::path(assigned).parent_path().string();
    const std::vector<StoredCheckpoint> stored = ListCheckpoints(root, setup_.attempt.run_key());
    for (auto it = stored.rbegin(); it != stored.rend(); ++it) {
      if (it->step <= step_max && it->path != assigned) candidates.push_back(it->path);
    }
    for (const std::string& path : candidates) {
      const Status status = ResumeFrom(path);
      if (status.ok()) return OkStatus();
      setup_.events.Log(StrCat("cannot resume from ", path, ": ", status.message()));
    }
    setup_.events.Log("no checkpoint can be read, starting anew");
    return Begin();
  }

  // Earlier attempts' checkpoints that are newer than the one assigned, which is the newest that
  // the record has: they were not announced in time, and nobody else knows of them. Before any is
  // read: a run that fell back to one of them would have a curve with a hole, where the record ends
  // and the checkpoint begins.
  void RemoveUnrecorded() {
    std::pair<uint64_t, uint64_t> newest{0, 0};  // epoch, step
    if (const std::string& assigned = setup_.attempt.resume_checkpoint(); !assigned.empty()) {
      const auto place = PlaceOf(assigned);
      if (!place) return;
      newest = *place;
    }
    for (const StoredCheckpoint& stored :
         ListCheckpoints(setup_.attempt.checkpoint_dir(), setup_.attempt.run_key())) {
      if (std::pair(stored.epoch, stored.step) <= newest ||
          stored.epoch >= setup_.attempt.epoch()) {
        continue;
      }
      const Status status = RemoveTree(stored.path);
      if (!status.ok()) setup_.events.Log(StrCat("unrecorded checkpoint: ", status.message()));
    }
  }

  // Step 0, or where the run that this one goes on from was; its objective begins here.
  Status Begin() {
    if (setup_.start == nullptr) return OkStatus();
    SWITCHYARD_RETURN_IF_ERROR(Load(*setup_.start));
    progress_.objective = {};
    return OkStatus();
  }

  Status ResumeFrom(const std::string& path) {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto checkpoint,
                                ReadCheckpoint(path, setup_.attempt.run_key()));
    SWITCHYARD_RETURN_IF_ERROR(Load(*checkpoint));
    setup_.events.Line("resume", Members({{"from", std::to_string(checkpoint->info.epoch)},
                                          {"step", checkpoint->info.step},
                                          {"digest", checkpoint->info.digest}}));
    return OkStatus();
  }

  // Everything, or with an error nothing.
  Status Load(const Checkpoint& checkpoint) {
    const NamedTensors model = ModelTensors(setup_.model);
    const NamedTensors state = optimizer_.State();
    SWITCHYARD_RETURN_IF_ERROR(MatchTensors(*checkpoint.model, model));
    SWITCHYARD_RETURN_IF_ERROR(MatchTensors(*checkpoint.state, state, "memory."));
    const std::vector<at::Tensor> memory = ReadMemory(*checkpoint.state);
    for (const at::Tensor& rows : memory) {
      if (rows.dim() == 0 || rows.size(0) != train_.batch()) {
        return DataLoss(
            StrCat(checkpoint.info.path, ": memory is not one of ", train_.batch(), " rows"));
      }
    }
    CopyTensors(*checkpoint.model, model);
    CopyTensors(*checkpoint.state, state);
    window_.RestoreMemory(memory, train_.batch());
    routing_.Restore(ReadTensors(*checkpoint.state, kTelemetryPrefix));
    progress_ = checkpoint.progress;
    optimizer_.set_updates(progress_.step - progress_.nonfinite_steps);
    batcher_.Seek(progress_.cursor);
    return OkStatus();
  }

  const LoopSetup& setup_;
  const pb::TrainSpec& train_;
  uint64_t steps_max_ = 0;
  uint32_t telemetry_every_ = 20;
  uint64_t checkpoint_every_ms_ = 0;
  LrSchedule schedule_;

  data::TrainBatcher batcher_;
  AdamOptimizer optimizer_;
  WindowRunner window_;
  eval::RoutingReporter routing_;
  Objective objective_;
  TrainProgress progress_;
  Clock::time_point last_checkpoint_;
  // Last: its thread ends before what it uses.
  std::unique_ptr<CheckpointWriter> checkpoints_;
};

}  // namespace

Ending RunTraining(const LoopSetup& setup) { return TrainLoop(setup).Run(); }

}  // namespace switchyard::train
