#include <set>
#include <string>

#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/checker.h"
#include "common/spec/path.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr uint64_t kStepsMax = uint64_t{1} << 40;
constexpr uint32_t kRanksMax = 1024;
constexpr int kJobsMax = 100;

bool IsDigest(const std::string& digest) {
  return digest.size() == 71 && digest.starts_with("sha256:") &&
         digest.find_first_not_of("0123456789abcdef", 7) == std::string::npos;
}

class KindChecker : private Checker {
 public:
  explicit KindChecker(const pb::RunSpec& run) : run_(run) {}

  std::vector<Fault> Check() {
    CheckSources();
    if (run_.has_init()) CheckInit(run_.init());
    for (const pb::InputSpec& input : run_.inputs()) {
      if (!IsDigest(input.digest())) Fail("inputs", "a checkpoint has no digest");
    }
    if (run_.kind() == pb::RUN_KIND_ANALYZE) CheckJobs("analyze", run_.analyze());
    if (run_.kind() == pb::RUN_KIND_BENCHMARK) CheckJobs("benchmark", run_.benchmark());
    if (run_.has_train()) CheckTrain(run_.train());
    if (run_.eval().has_final()) CheckFinal(run_.eval().final());
    CheckGuards(run_.guards());
    return std::move(faults_);
  }

 private:
  void CheckSources() {
    const bool has_init = run_.has_init();
    const bool has_inputs = run_.inputs_size() > 0;
    switch (run_.kind()) {
      case pb::RUN_KIND_FINETUNE:
      case pb::RUN_KIND_EVALUATE:
        if (!has_init) Fail("init", "is required for this kind: hf or run");
        break;
      case pb::RUN_KIND_ANALYZE:
        if (!has_init && !has_inputs) Fail("init", "is required for this kind: hf or run");
        break;
      default:  // train and benchmark draw their weights, and proto enums are open
        break;
    }
    if (has_init && has_inputs) Fail("init", "stands beside the inputs of a stage");
  }

  void CheckInit(const pb::InitSpec& init) {
    const bool has_run = !init.run().empty() || !init.digest().empty();
    if (init.has_hf() == has_run) {
      Fail("init", init.has_hf() ? "has both hf and run, of which only one can be"
                                 : "is empty; hf or run is wanted");
    }
    if (init.has_hf()) {
      if (init.hf().path().empty()) Fail("init.hf.path", "is required");
      if (init.hf().path().find('\0') != std::string::npos) {
        Fail("init.hf.path", "holds a NUL byte");
      }
      if (init.restore() == pb::RESTORE_ALL) {
        Fail("init.restore", "is all, but a folder of weights has no optimizer or cursor");
      }
      if (!init.checkpoint().empty()) Fail("init.checkpoint", "goes with run, not with hf");
    }
    const std::string& checkpoint = init.checkpoint();
    if (!checkpoint.empty() && checkpoint != "best" && checkpoint != "last" &&
        !ParseUint64(checkpoint)) {
      Fail("init.checkpoint",
           StrCat("'", EscapeForTerminal(checkpoint), "' is not best, last or a step"));
    }
    if (!init.digest().empty() && !IsDigest(init.digest())) {
      Fail("init.digest", "is not of the form sha256:<64 lower-case hex digits>");
    }
    if (init.restore() == pb::RESTORE_ALL && !IsTrained(run_.kind())) {
      Fail("init.restore", "is all, but a run of this kind does not go on training");
    }
    for (const std::string& glob : init.fresh()) {
      if (glob.empty()) Fail("init.fresh", "holds an empty glob");
    }
  }

  uint32_t Layers() const {
    return run_.model().has_decoder() ? run_.model().decoder().layers()
                                      : run_.model().transformer_xl().layers();
  }

  template <typename Spec>
  void CheckJobs(const std::string& path, const Spec& spec) {
    if (spec.jobs().empty()) Fail(path + ".jobs", "at least one job is required");
    if (spec.jobs_size() > kJobsMax) {
      Fail(path + ".jobs", StrCat("has ", spec.jobs_size(), ", at most ", kJobsMax));
    }
    std::set<std::string> names;
    for (const pb::JobSpec& job : spec.jobs()) {
      const std::string job_path = StrCat(path, ".jobs.", EscapeForTerminal(job.id()));
      if (!IsValidName(job.id())) Fail(job_path, "is not the name of a job");
      if (!names.insert(job.id()).second) Fail(job_path, "is given twice");
      std::set<std::string> options;
      for (const pb::ValueEntry& option : job.options()) {
        if (option.key().empty()) Fail(job_path, "has an option without a name");
        if (!options.insert(option.key()).second) {
          Fail(job_path, StrCat("the option ", EscapeForTerminal(option.key()), " is given twice"));
        }
      }
    }
    std::set<uint32_t> layers;
    for (const uint32_t layer : spec.layers()) {
      if (!layers.insert(layer).second) Fail(path + ".layers", StrCat(layer, " is given twice"));
      if (run_.has_model() && Layers() > 0 && layer >= Layers()) {
        Fail(path + ".layers",
             StrCat("layer ", layer, " is not in a backbone of ", Layers(), " layers"));
      }
    }
  }

  void CheckTrain(const pb::TrainSpec& train) {
    if (train.has_active_flops()) {
      if (!(train.active_flops() > 0)) {
        Fail("train.active_flops", StrCat(train.active_flops(), " must be above 0"));
      } else if (Account(run_).vocab_known) {
        Fail("train.active_flops",
             StrCat(FormatDouble(train.active_flops()), " is less than one step, or too much"));
      }
    }
    const uint32_t data = train.parallel().has_data() ? train.parallel().data() : 1;
    const uint32_t expert = train.parallel().has_expert() ? train.parallel().expert() : 1;
    const auto rank = [&](const char* path, uint32_t count) {
      if (count >= 1 && count <= kRanksMax) return true;
      Fail(path, StrCat(count, " is not between 1 and ", kRanksMax));
      return false;
    };
    if (rank("train.parallel.data", data) && rank("train.parallel.expert", expert)) {
      if (data * expert > kRanksMax) {
        Fail("train.parallel", StrCat(data, " times ", expert, " ranks are more than ", kRanksMax));
      }
      if (train.batch() > 0 && train.batch() % (data * expert) != 0) {
        Fail("train.parallel", StrCat(data * expert, " ranks do not divide the batch of ",
                                      train.batch(), " sequences"));
      }
      const uint32_t experts = run_.model().moe().experts();
      if (expert > 1 && (experts == 0 || experts % expert != 0)) {
        Fail("train.parallel.expert",
             StrCat(expert, " does not divide the ", experts, " experts of a layer"));
      }
    }
    std::set<uint64_t> steps;
    for (const uint64_t step : train.keep_steps()) {
      if (step < 1 || step > kStepsMax) {
        Fail("train.keep_steps", StrCat(step, " is not between 1 and ", kStepsMax));
      }
      if (train.has_steps() && step > train.steps()) {
        Fail("train.keep_steps", StrCat(step, " comes after the last step, ", train.steps()));
      }
      if (!steps.insert(step).second) Fail("train.keep_steps", StrCat(step, " is given twice"));
    }
    std::set<std::string> globs;
    for (const std::string& glob : train.trainable()) {
      if (glob.empty()) Fail("train.trainable", "holds an empty glob");
      if (!globs.insert(glob).second) {
        Fail("train.trainable", StrCat("'", EscapeForTerminal(glob), "' is given twice"));
      }
    }
    CheckTask(train.task());
  }

  void CheckTask(pb::TrainTask task) {
    if (task == pb::TRAIN_TASK_UNSPECIFIED) return;
    const ExpressionValue kind = ReadAt(run_, "data.kind");
    const std::string* name = std::get_if<std::string>(&kind);
    const bool is_glue = name != nullptr && *name == "glue";
    if (is_glue && task != pb::TRAIN_TASK_CLASSIFICATION) {
      Fail("train.task", "of glue is classification, and no other");
    }
    if (!is_glue && task == pb::TRAIN_TASK_CLASSIFICATION) {
      Fail("train.task", "is classification, which needs data: glue");
    }
    if (task == pb::TRAIN_TASK_ROUTER_UPDATE &&
        (!run_.model().has_moe() || run_.model().moe().router().has_dense())) {
      Fail("train.task", "is router_update, but the model has no router");
    }
  }

  void CheckFinal(const pb::FinalEval& final_eval) {
    std::set<int> splits;
    for (const int split : final_eval.splits()) {
      if (split == pb::SPLIT_UNSPECIFIED) Fail("eval.final.splits", "holds an unspecified split");
      if (!splits.insert(split).second) Fail("eval.final.splits", "names a split twice");
    }
  }

  void CheckGuards(const pb::GuardSpec& guards) {
    const auto steps = [&](const char* path, uint64_t value) {
      if (value < 1 || value > kStepsMax) {
        Fail(path, StrCat(value, " is not between 1 and ", kStepsMax));
      }
    };
    if (guards.has_divergence()) {
      if (!(guards.divergence().factor() > 1)) {
        Fail("guards.divergence.factor",
             StrCat(FormatDouble(guards.divergence().factor()), " must be above 1"));
      }
      steps("guards.divergence.window_steps", guards.divergence().window_steps());
    }
    if (guards.has_router_collapse()) {
      const double bound = guards.router_collapse().min_usage_entropy();
      if (!(bound > 0 && bound <= 1)) {
        Fail("guards.router_collapse.min_usage_entropy",
             StrCat(FormatDouble(bound), " is not above 0 and at most 1"));
      }
      steps("guards.router_collapse.steps", guards.router_collapse().steps());
    }
    if (guards.has_dead_expert()) {
      steps("guards.dead_expert.steps", guards.dead_expert().steps());
    }
  }

  const pb::RunSpec& run_;
};

}  // namespace

std::vector<Fault> CheckKind(const pb::RunSpec& run) { return KindChecker(run).Check(); }

}  // namespace switchyard::spec
