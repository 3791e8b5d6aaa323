#include <algorithm>
#include <map>
#include <set>

#include "common/base/strings.h"
#include "common/spec/checker.h"
#include "common/spec/path.h"
#include "common/spec/report.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr int kStagesMax = 32;
// Parent cells for which the children of a stage are tried at submission.
constexpr uint64_t kSampleCellsMax = 16;

// Stands for a checkpoint that a parent will have.
constexpr char kSampleDigest[] =
    "sha256:0000000000000000000000000000000000000000000000000000000000000000";

class StageChecker {
 public:
  StageChecker(const pb::SweepSpec& sweep, std::vector<Fault>* faults, uint64_t cells_checked)
      : sweep_(sweep), faults_(faults), cells_checked_(cells_checked) {}

  std::unique_ptr<SweepPlan> Check() {
    if (!CheckNames()) return nullptr;
    std::unique_ptr<SweepPlan> first;
    // Parents before children: each round takes the stages whose parents are through.
    std::set<std::string> through;
    while (through.size() < static_cast<size_t>(sweep_.stages_size())) {
      const size_t before = through.size();
      for (const pb::StageSpec& stage : sweep_.stages()) {
        const bool is_ready = !through.contains(stage.id()) &&
                              (!stage.has_needs() || !stage.needs().sweep().empty() ||
                               through.contains(stage.needs().stage()));
        if (!is_ready) continue;
        through.insert(stage.id());
        if (stage.has_needs()) {
          CheckChild(stage);
        } else {
          CheckRoot(stage, &first);
        }
      }
      if (through.size() == before) break;
    }
    for (const pb::StageSpec& stage : sweep_.stages()) {
      if (through.contains(stage.id())) continue;
      Fail(stage, ".needs",
           StrCat("the stages need each other in a circle: ", stage.needs().stage(),
                  " comes after ", stage.id()));
    }
    return first;
  }

  // Columns by stage, for the report.
  const std::map<std::string, std::vector<std::string>>& columns() const { return columns_; }

 private:
  void Fail(const pb::StageSpec& stage, const std::string& field, std::string message) {
    faults_->push_back(
        {"", StrCat("stages.", EscapeForTerminal(stage.id()), field), std::move(message)});
  }

  bool CheckNames() {
    const size_t before = faults_->size();
    if (sweep_.stages_size() > kStagesMax) {
      faults_->push_back(
          {"", "stages", StrCat("has ", sweep_.stages_size(), ", at most ", kStagesMax)});
      return false;
    }
    std::vector<std::string> known;
    for (const pb::StageSpec& stage : sweep_.stages()) {
      if (!IsValidName(stage.id()) || stage.id().find('.') != std::string::npos) {
        Fail(stage, "",
             "is not a name for a stage: a-z, 0-9, '_' and '-', beginning and ending "
             "with a letter or digit");
      }
      if (std::ranges::find(known, stage.id()) != known.end()) Fail(stage, "", "is given twice");
      known.push_back(stage.id());
    }
    for (const pb::StageSpec& stage : sweep_.stages()) CheckFields(stage, known);
    return faults_->size() == before;
  }

  void CheckFields(const pb::StageSpec& stage, const std::vector<std::string>& known) {
    if (!stage.has_needs()) {
      if (stage.has_select()) Fail(stage, ".select", "chooses parents; the stage has no needs");
      if (stage.from() != 0) Fail(stage, ".from", "is about parents; the stage has no needs");
      if (stage.has_each()) Fail(stage, ".each", "is about parents; the stage has no needs");
      return;
    }
    const pb::NeedsSpec& needs = stage.needs();
    const bool is_elsewhere = !needs.sweep().empty();
    if (!is_elsewhere && std::ranges::find(known, needs.stage()) == known.end()) {
      Fail(stage, ".needs",
           StrCat("'", EscapeForTerminal(needs.stage()), "' is not a stage; ",
                  WordHint(needs.stage(), known)));
    }
    if (!is_elsewhere && !needs.where().empty()) {
      Fail(stage, ".needs.where", "goes with another sweep; write it under select");
    }
    CheckExpression(stage, ".needs.where", needs.where());
    CheckExpression(stage, ".select.where", stage.select().where());
    if (stage.select().has_top() && stage.select().top() == 0) {
      Fail(stage, ".select.top", "is 0; at least 1 is wanted");
    }
    if (!stage.select().per().empty() && !stage.select().has_top()) {
      Fail(stage, ".select.per", "goes with top");
    }
    CheckEach(stage);
  }

  void CheckExpression(const pb::StageSpec& stage, const std::string& field,
                       const std::string& text) {
    if (text.empty()) return;
    const Result<Expression> expression = Expression::Parse(text);
    if (expression.ok()) return;
    Fail(stage, field, StrCat("'", EscapeForTerminal(text), "': ", expression.status().message()));
  }

  void CheckEach(const pb::StageSpec& stage) {
    const pb::EachSpec& each = stage.each();
    const bool is_many = each.kind() == pb::EACH_KIND_CELL || each.kind() == pb::EACH_KIND_ALL ||
                         !each.axes().empty() ||
                         (each.kind() == pb::EACH_KIND_RUN && stage.from() == pb::STAGE_FROM_EVERY);
    if (stage.from() == pb::STAGE_FROM_SPEC) {
      if (stage.has_each() && each.kind() != pb::EACH_KIND_CELL) {
        Fail(stage, ".each", "is cell with from: spec, and nothing else");
      }
      return;
    }
    const pb::RunKind kind = stage.base().kind();
    if (kind == pb::RUN_KIND_UNSPECIFIED) {
      Fail(stage, ".base.kind", "is required in a stage with needs");
    } else if (kind == pb::RUN_KIND_TRAIN) {
      Fail(stage, ".base.kind",
           "is train, but the stage starts from checkpoints: write finetune, or from: spec");
    } else if (is_many && kind != pb::RUN_KIND_ANALYZE && kind != pb::RUN_KIND_BENCHMARK) {
      Fail(stage, ".each",
           "gives several checkpoints to one run, which only analyze and benchmark "
           "take");
    }
  }

  void CheckRoot(const pb::StageSpec& stage, std::unique_ptr<SweepPlan>* first) {
    std::unique_ptr<SweepPlan> plan = PlanStage(sweep_, stage, faults_, cells_checked_);
    if (plan == nullptr) return;
    columns_[stage.id()] = plan->axes();
    samples_[stage.id()] = SamplesOf(stage, *plan);
    if (*first == nullptr) *first = std::move(plan);
  }

  // Runs as the stage will have them, of its first cells and its first seed.
  std::vector<ParentRun> SamplesOf(const pb::StageSpec& stage, const SweepPlan& plan) const {
    std::vector<ParentRun> samples;
    const uint64_t count = std::min(plan.cell_count(), kSampleCellsMax);
    for (uint64_t cell = 1; cell <= count; ++cell) {
      std::vector<Fault> ignored;  // said when the plan was made
      PlannedRun planned = plan.is_drawn() ? plan.Example(&ignored) : plan.At(cell, &ignored);
      if (!ignored.empty()) continue;
      ParentRun sample{.id = StrCat("(a run of ", stage.id(), ")"),
                       .cell = cell,
                       .seed = planned.seed,
                       .columns = std::move(planned.columns),
                       .checkpoints = {{.step = std::max<uint64_t>(planned.run->train().steps(), 1),
                                        .digest = kSampleDigest,
                                        .is_best = true}},
                       .objective = 0.0,
                       .layout = plan.layout(),
                       .point = plan.PointOf(cell)};
      sample.run = std::shared_ptr<const pb::RunSpec>(std::move(planned.run));
      samples.push_back(std::move(sample));
    }
    return samples;
  }

  void CheckAxes(const pb::StageSpec& stage, const std::string& field,
                 const google::protobuf::RepeatedPtrField<std::string>& axes,
                 const std::vector<std::string>& known) {
    std::set<std::string> seen;
    for (const std::string& axis : axes) {
      if (!seen.insert(axis).second) {
        Fail(stage, field, StrCat(EscapeForTerminal(axis), " is given twice"));
      }
      if (std::ranges::find(known, axis) != known.end()) continue;
      Fail(stage, field,
           StrCat("'", EscapeForTerminal(axis), "' is not an axis of ", stage.needs().stage(), "; ",
                  WordHint(axis, known, "it has none")));
    }
  }

  void CheckChild(const pb::StageSpec& stage) {
    // Parents of another sweep are known only when it is looked up.
    if (!stage.needs().sweep().empty()) return;
    const std::vector<std::string>& known = columns_[stage.needs().stage()];
    const std::vector<ParentRun>& parents = samples_[stage.needs().stage()];
    CheckAxes(stage, ".each", stage.each().axes(), known);
    CheckAxes(stage, ".select.per", stage.select().per(), known);
    if (parents.empty()) return;
    CheckWhereNames(stage, known);
    pb::StageSpec every = stage;
    every.clear_select();  // what would be selected is not known yet
    std::vector<Fault> found;
    std::vector<StageGroup> groups =
        ExpandStage(sweep_, every, parents, ParentStage::kDone, &found, cells_checked_);
    AddOnce(std::move(found));
    if (groups.empty()) return;
    columns_[stage.id()] = groups.front().plan->axes();
    std::vector<ParentRun>& samples = samples_[stage.id()];
    for (const StageGroup& group : groups) {
      if (samples.size() >= kSampleCellsMax) break;
      for (ParentRun& sample : SamplesOf(stage, *group.plan)) {
        sample.cell = samples.size() + 1;
        samples.push_back(std::move(sample));
      }
    }
  }

  void CheckWhereNames(const pb::StageSpec& stage, const std::vector<std::string>& known) {
    std::vector<std::string> names = known;
    names.insert(names.end(), {"cell", "seed"});
    const Result<Expression> where = Expression::Parse(stage.select().where());
    if (!where.ok()) return;  // empty, or said already
    for (const Expression::NameUse& use : where->names()) {
      const std::string hint = use.is_series ? "" : UnknownPathHint(use.name, names);
      if (hint.empty()) continue;
      Fail(stage, ".select.where",
           StrCat("column ", use.column, ": '", EscapeForTerminal(use.name),
                  "' is neither an axis nor a field; ", hint));
    }
  }

  // The same thing is wrong for many parents.
  void AddOnce(std::vector<Fault> found) {
    std::set<std::string> seen;
    for (Fault& fault : found) {
      const std::string plain = fault.message.substr(0, fault.message.rfind(" (child of "));
      if (seen.insert(fault.path + plain).second) faults_->push_back(std::move(fault));
    }
  }

  const pb::SweepSpec& sweep_;
  std::vector<Fault>* faults_;
  uint64_t cells_checked_;
  std::map<std::string, std::vector<std::string>> columns_;
  std::map<std::string, std::vector<ParentRun>> samples_;
};

}  // namespace

std::unique_ptr<SweepPlan> CheckStages(const pb::SweepSpec& sweep, std::vector<Fault>* faults,
                                       uint64_t cells_checked) {
  std::vector<Fault> found;
  CheckSweepFields(sweep, &found);
  std::unique_ptr<SweepPlan> plan;
  std::map<std::string, std::vector<std::string>> columns;
  if (sweep.stages().empty()) {
    std::shared_ptr<const SweepLayout> layout = SweepLayout::Make({.sweep = &sweep}, &found);
    if (layout != nullptr && found.empty()) {
      plan = SweepPlan::FromLayout(std::move(layout), &found, cells_checked);
    }
    if (plan != nullptr) columns[""] = plan->axes();
  } else if (found.empty()) {
    StageChecker checker(sweep, &found, cells_checked);
    plan = checker.Check();
    columns = checker.columns();
  }
  if (found.empty()) CheckReport(sweep, columns, &found);
  if (found.empty()) return plan;
  faults->insert(faults->end(), found.begin(), found.end());
  return nullptr;
}

}  // namespace switchyard::spec
