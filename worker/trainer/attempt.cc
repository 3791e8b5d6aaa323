#include "worker/trainer/attempt.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "common/events/exit_record.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/batcher.h"
#include "worker/data/corpus.h"
#include "worker/dist/gpu.h"
#include "worker/model/hf/checkpoint.h"
#include "worker/model/model.h"
#include "worker/train/block_cache.h"
#include "worker/train/checkpoint.h"
#include "worker/train/exit_code.h"
#include "worker/train/loop.h"
#include "worker/trainer/audit_run.h"
#include "worker/trainer/event_writer.h"
#include "worker/trainer/initial_model.h"
#include "worker/trainer/lease_watch.h"
#include "worker/trainer/spec_files.h"
#include "worker/trainer/step_gate.h"

namespace switchyard::trainer {

namespace pb = ::switchyard::v1;
using train::Ending;
using train::ExitCode;

namespace {

// How long the last lines wait for a full disk.
constexpr std::chrono::seconds kCloseLimit{60};

Ending Failure(ExitCode code, std::string reason) {
  return {.code = code, .reason = std::move(reason)};
}

// The process's exit for a status of loading data.
ExitCode DataExit(const Status& status) {
  return status.code() == Code::kInternal ? ExitCode::kInternal : ExitCode::kData;
}

void SayHello(const pb::AttemptSpec& attempt, const std::string& data_digest,
              train::EventSink& events) {
  const nlohmann::ordered_json json = {{"run", attempt.run_id()},
                                       {"k", attempt.ordinal()},
                                       {"epoch", std::to_string(attempt.epoch())},
                                       {"rank", attempt.rank()},
                                       {"build", StrCat(kVersion, "+", kCommit)},
                                       {"threads", attempt.threads()},
                                       {"torch", TORCH_VERSION},
                                       {"isa", at::get_cpu_capability()},
                                       {"device", attempt.device()},
                                       {"data_digest", data_digest}};
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  events.Line("hello", text.substr(1, text.size() - 2));
}

// Empty when the corpus can feed the run.
std::string MissingData(const pb::RunSpec& run, const data::Corpus& corpus) {
  const Status trainable = data::TrainBatcher::Validate(
      corpus, {.batch = run.train().batch(), .len = run.train().target_len()});
  if (!trainable.ok()) return trainable.message();
  for (const int number : run.eval().splits()) {
    const data::Split split = number == pb::SPLIT_TRAIN  ? data::Split::kTrain
                              : number == pb::SPLIT_TEST ? data::Split::kTest
                                                         : data::Split::kValid;
    if (corpus.split(split).ids.size() < 2) {
      return StrCat("the split ", data::SplitName(split), " is to be evaluated and has ",
                    corpus.split(split).ids.size(), " tokens");
    }
  }
  return "";
}

// A tensor with two names (tied) counts once.
uint64_t CountParameters(const model::LanguageModel& model) {
  std::set<const void*> seen;
  uint64_t total = 0;
  for (const auto& [name, tensor] : model.NamedParameters()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      total += static_cast<uint64_t>(tensor.numel());
    }
  }
  return total;
}

std::vector<std::pair<std::string, double>> ModelFacts(const spec::Accounting& accounting) {
  return {{"model/params_total", static_cast<double>(accounting.params_total)},
          {"model/params_active", static_cast<double>(accounting.params_active)},
          {"model/params_router", static_cast<double>(accounting.params_router)},
          {"model/params_expert", static_cast<double>(accounting.params_expert)},
          {"model/params_embedding", static_cast<double>(accounting.params_embedding)},
          {"model/flops_per_token_active", static_cast<double>(accounting.flops_per_token_active)}};
}

// Torch's own classes and messages of a failed allocation.
bool IsOutOfMemory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what_without_backtrace();
  return text.find("allocate memory") != std::string_view::npos ||
         text.find("not enough memory") != std::string_view::npos;
}

// The one place where exceptions end: torch throws, we do not.
Ending Guarded(ExitCode on_torch_error, const std::function<Ending()>& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return Failure(IsOutOfMemory(error) ? ExitCode::kOutOfMemory : on_torch_error,
                   error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return Failure(ExitCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return Failure(ExitCode::kInternal, error.what());
  }
}

// One attempt with its files open.
class Attempt {
 public:
  // `say`: text for a person that is the run's result.
  Attempt(pb::AttemptSpec* attempt, train::EventSink& events, train::StopSource& stop,
          std::function<void(std::string)> say)
      : attempt_(*attempt), events_(events), stop_(stop), say_(std::move(say)) {}

  Ending Execute(const std::string& run_path, bool is_by_hand) {
    if (const Status status = ReadRunFile(run_path, &run_); !status.ok()) {
      return Unheard(ExitCode::kSpec, status.message());
    }
    if (is_by_hand) {
      PrepareByHand();
    } else if (const Status status = CheckRunKey(run_, attempt_); !status.ok()) {
      return Unheard(ExitCode::kSpec, status.message());
    }
    const bool is_audit = run_.kind() == pb::RUN_KIND_ANALYZE;
    std::unique_ptr<model::HfCheckpoint> initial;
    if (!is_audit) {
      auto resolved = ResolveInitialModel(&run_);
      if (!resolved.ok()) {
        return Unheard(
            resolved.status().code() == Code::kInvalidArgument ? ExitCode::kSpec : ExitCode::kData,
            StrCat("init: ", resolved.status().message()));
      }
      initial = *std::move(resolved);
    }
    at::Device device(at::kCPU);
    if (attempt_.device() == "gpu") {
      // Before torch's first use: it looks for CUDA once.
      if (const Status status = PrepareGpu(); !status.ok()) {
        return Unheard(ExitCode::kDevice, StrCat("the attempt wants a GPU: ", status.message()));
      }
      device = at::Device(at::kCUDA, 0);
    }
    if (attempt_.threads() == 0) attempt_.set_threads(1);
    at::set_num_threads(static_cast<int>(attempt_.threads()));
    at::set_num_interop_threads(1);

    auto corpus = data::LoadCorpus(run_.data());
    if (!corpus.ok()) return Unheard(DataExit(corpus.status()), corpus.status().message());
    SayHello(attempt_, (*corpus)->digest, events_);
    for (const std::string& notice : (*corpus)->notices) events_.Log(notice);
    if (std::string missing = is_audit ? "" : MissingData(run_, **corpus); !missing.empty()) {
      return Failure(ExitCode::kData, std::move(missing));
    }
    if (run_.model().vocab() != 0 && run_.model().vocab() != (*corpus)->vocab_size) {
      return Failure(ExitCode::kSpec, StrCat("model.vocab is ", run_.model().vocab(),
                                             ", the data has ", (*corpus)->vocab_size, " ids"));
    }
    if (is_audit) {
      events_.Phase("audit");
      return Guarded(ExitCode::kSpec,
                     [&] { return RunAudit(run_, attempt_, **corpus, events_, stop_, say_); });
    }

    const Result<std::unique_ptr<train::Checkpoint>> start = FindStart();
    if (!start.ok()) return Failure(ExitCode::kData, StrCat("init: ", start.status().message()));
    events_.Phase("build_model");
    if (run_.train().recompute() && device.is_cpu()) train::KeepLargeBlocks();
    std::unique_ptr<model::LanguageModel> model;
    Ending built = Guarded(ExitCode::kSpec, [&] {
      model = model::MakeModel(run_, {.vocab_size = (*corpus)->vocab_size,
                                      .token_frequency = (*corpus)->train_frequency});
      if (initial != nullptr && run_.init().restore() != pb::RESTORE_NONE) {
        std::vector<std::string> notices;
        const Status copied = initial->CopyTo(
            *model, {run_.init().fresh().begin(), run_.init().fresh().end()}, &notices);
        if (!copied.ok()) return Failure(ExitCode::kData, copied.message());
        for (const std::string& notice : notices) events_.Log(notice);
      }
      if (*start != nullptr && run_.init().restore() == pb::RESTORE_WEIGHTS) {
        std::vector<std::string> notices;
        const Status copied =
            train::CopyWeights(*(*start)->model, train::ModelTensors(*model),
                               {run_.init().fresh().begin(), run_.init().fresh().end()}, &notices);
        if (!copied.ok()) return Failure(ExitCode::kData, StrCat("init: ", copied.message()));
        for (const std::string& notice : notices) events_.Log(notice);
      }
      MoveTo(device, *model);
      return Ending{.code = ExitCode::kDone};
    });
    if (built.code != ExitCode::kDone) return built;
    const spec::Accounting accounting = spec::Account(run_, (*corpus)->vocab_size);
    if (const uint64_t counted = CountParameters(*model); counted != accounting.params_total) {
      return Failure(ExitCode::kInternal,
                     StrCat("the model has ", counted, " parameters, accounting says ",
                            accounting.params_total));
    }
    return Guarded(ExitCode::kInternal, [&] {
      Ending ending = train::RunTraining(
          {.run = run_,
           .attempt = attempt_,
           .corpus = **corpus,
           .model = *model,
           .device = device,
           .events = events_,
           .stop = stop_,
           .start = run_.init().restore() == pb::RESTORE_ALL ? start->get() : nullptr,
           .model_facts = ModelFacts(accounting)});
      if (ending.complete) {
        events_.Phase("audit");
        AuditTrained(run_, **corpus, *model, ending.final_step, events_, stop_);
      }
      return ending;
    });
  }

 private:
  // An end before the data was seen: the stream still starts with its hello.
  Ending Unheard(ExitCode code, std::string reason) {
    SayHello(attempt_, "", events_);
    return Failure(code, std::move(reason));
  }

  // The checkpoint of another run that this one begins with, from the same store; null: none.
  Result<std::unique_ptr<train::Checkpoint>> FindStart() const {
    const pb::InitSpec& init = run_.init();
    if (init.run().empty() || init.restore() == pb::RESTORE_NONE) {
      return std::unique_ptr<train::Checkpoint>();
    }
    if (attempt_.checkpoint_dir().empty()) {
      return InvalidArgument("init.run is found beside the run's own checkpoints: give a folder");
    }
    const std::string folder =
        (std::filesystem::path(attempt_.checkpoint_dir()).parent_path() / init.run()).string();
    return train::FindCheckpoint(folder, init.step(), init.digest());
  }

  // Identity and resumption of a run without an agent: the newest checkpoint in the folder goes on.
  void PrepareByHand() {
    attempt_.set_run_key(spec::RunKey(run_));
    attempt_.set_epoch(1);
    if (attempt_.checkpoint_dir().empty()) return;
    for (const train::StoredCheckpoint& stored :
         train::ListCheckpoints(attempt_.checkpoint_dir(), attempt_.run_key())) {
      attempt_.set_resume_checkpoint(stored.path);
      if (stored.epoch >= attempt_.epoch()) attempt_.set_epoch(stored.epoch + 1);
    }
  }

  // Loads the CUDA parts and makes equal runs give equal bits there.
  static Status PrepareGpu() {
    // cuBLAS reads it when its first handle is made; without it, its results vary with its streams.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    if (Status status = dist::LoadGpuSupport(); !status.ok()) return status;
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(true, /*warn_only=*/true);
    context.setDeterministicFillUninitializedMemory(false);
    return OkStatus();
  }

  static void MoveTo(const at::Device& device, model::LanguageModel& model) {
    if (device.is_cpu()) return;
    const c10::NoGradGuard no_grad;
    for (auto [name, tensor] : model.NamedParameters()) tensor.set_data(tensor.to(device));
    for (auto [name, tensor] : model.NamedBuffers()) tensor.set_data(tensor.to(device));
  }

  pb::AttemptSpec& attempt_;
  train::EventSink& events_;
  train::StopSource& stop_;
  const std::function<void(std::string)> say_;
  pb::RunSpec run_;
};

[[noreturn]] void ExitWith(ExitCode code) {
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

[[noreturn]] void ExitWith(ExitCode code, std::string_view reason) {
  LogError(reason);
  ExitWith(code);
}

// A run whose recording broke has not succeeded.
void FailRecording(const Status& status, Ending* ending) {
  if (status.ok() || ending->code != ExitCode::kDone) return;
  ending->code = ExitCode::kInternal;
  ending->complete = false;
  ending->reason = StrCat("events: ", status.message());
}

// Says how it ended in the stream, and closes it.
void CloseStream(EventWriter& events, Ending* ending) {
  // The loop asks before a step: a fault of the last lines is heard here.
  FailRecording(events.health(), ending);
  if (const std::string warning = events.step_warning(); !warning.empty()) {
    LogWarning(warning);
    events.Log(warning);
  }
  if (ending->code != ExitCode::kDone) {
    LogError(train::ExitClass(ending->code), ": ", ending->reason);
    events.Log(StrCat(train::ExitClass(ending->code), ": ", ending->reason));
  }
  events.Line("end", StrCat("\"code\":", static_cast<int>(ending->code)));
  const Status closed = events.Close(kCloseLimit);
  if (!closed.ok()) LogError("events: ", closed.message());
  FailRecording(closed, ending);
}

[[noreturn]] void RunDirectory(const std::string& dir, uint64_t start_ns) {
  pb::AttemptSpec attempt;
  if (const Status status = ReadAttemptFile(StrCat(dir, "/attempt.json"), &attempt); !status.ok()) {
    ExitWith(ExitCode::kSpec, status.message());
  }
  // Before anything slow: from here on a passed deadline ends the process.
  auto watch = LeaseWatch::Start(StrCat(dir, "/lease.page"), attempt.epoch());
  if (!watch.ok()) ExitWith(ExitCode::kInternal, watch.status().message());
  auto events = EventWriter::Open(StrCat(dir, "/events.jsonl"),
                                  {.start_boottime_ns = start_ns,
                                   .pressure = [watch = watch->get()] { return watch->pressure(); },
                                   .lenient_steps = attempt.telemetry().lenient_steps()});
  if (!events.ok()) ExitWith(ExitCode::kInternal, events.status().message());

  Ending ending = Guarded(ExitCode::kInternal, [&] {
    const auto say = [](const std::string& text) { std::fputs(text.c_str(), stdout); };
    return Attempt(&attempt, **events, **watch, say).Execute(StrCat(dir, "/run.json"), false);
  });
  CloseStream(**events, &ending);
  (*watch)->ExitIfPast();
  const Status written = events::WriteExitRecord(StrCat(dir, "/exit.json"),
                                                 {.code = static_cast<int>(ending.code),
                                                  .end_class = train::ExitClass(ending.code),
                                                  .complete = ending.complete,
                                                  .last_seq = (*events)->last_seq(),
                                                  .final_step = ending.final_step,
                                                  .epoch = attempt.epoch(),
                                                  .rank = attempt.rank(),
                                                  .reason = ending.reason,
                                                  .objective_json = ending.objective_json});
  if (!written.ok()) LogError("exit record: ", written.message());
  ExitWith(ending.code);
}

[[noreturn]] void RunByHand(const TrainerOptions& options, uint64_t start_ns) {
  pb::AttemptSpec attempt;
  attempt.set_threads(options.threads);
  attempt.set_device(options.device);
  if (!options.dir.empty()) attempt.set_checkpoint_dir(options.dir);
  if (options.checkpoint_every_ms > 0) {
    attempt.mutable_checkpoint()->set_every_ms(options.checkpoint_every_ms);
  }
  const auto watch = LeaseWatch::SignalsOnly();
  const auto events =
      EventWriter::ForDescriptor(UniqueFd(dup(STDOUT_FILENO)), {.start_boottime_ns = start_ns});
  StepGate gate(*events, *watch, options.stop_at);
  Ending ending = Guarded(ExitCode::kInternal, [&] {
    const auto say = [&gate](std::string text) { gate.Log(std::move(text)); };
    return Attempt(&attempt, gate, gate, say).Execute(options.spec_path, true);
  });
  CloseStream(*events, &ending);
  ExitWith(ending.code);
}

}  // namespace

void RunTrainer(const TrainerOptions& options) {
  const uint64_t start_ns = BoottimeNanoseconds();
  InstallSignalHandlers();
  if (!options.attempt_dir.empty()) RunDirectory(options.attempt_dir, start_ns);
  RunByHand(options, start_ns);
}

}  // namespace switchyard::trainer
