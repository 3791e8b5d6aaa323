#include "common/spec/report.h"

#include <algorithm>
#include <array>
#include <set>

#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/checker.h"
#include "common/spec/expression.h"
#include "common/spec/path.h"
#include "common/spec/quantity.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using Names = google::protobuf::RepeatedPtrField<std::string>;

constexpr int kPartsMax = 100;  // of each kind in a report
constexpr std::array<std::string_view, 3> kPoints = {"wall_seconds", "tokens", "train.flops"};

class ReportChecker {
 public:
  ReportChecker(const pb::SweepSpec& sweep,
                const std::map<std::string, std::vector<std::string>>& columns,
                std::vector<Fault>* faults)
      : sweep_(sweep), columns_(columns), faults_(faults) {}

  void Check() {
    const pb::ReportSpec& report = sweep_.report();
    Count("compare", report.compare_size());
    Count("table", report.table_size());
    Count("plot", report.plot_size());
    Count("analysis", report.analysis_size());
    for (int i = 0; i < std::min(report.compare_size(), kPartsMax); ++i) {
      Begin("compare", i, report.compare(i).stage(), report.compare(i).where());
      CheckCompare(report.compare(i));
    }
    for (int i = 0; i < std::min(report.table_size(), kPartsMax); ++i) {
      Begin("table", i, report.table(i).stage(), report.table(i).where());
      CheckTable(report.table(i));
    }
    for (int i = 0; i < std::min(report.plot_size(), kPartsMax); ++i) {
      Begin("plot", i, report.plot(i).stage(), report.plot(i).where());
      CheckPlot(report.plot(i));
    }
  }

 private:
  void Fail(const std::string& field, std::string message) {
    faults_->push_back({"", field.empty() ? path_ : StrCat(path_, ".", field), std::move(message)});
  }

  void Count(const char* field, int count) {
    if (count <= kPartsMax) return;
    faults_->push_back(
        {"", StrCat("report.", field), StrCat("has ", count, ", at most ", kPartsMax)});
  }

  // Sets the place and the stage that the next part is about.
  void Begin(const char* field, int index, const std::string& stage, const std::string& where) {
    path_ = StrCat("report.", field, "[", index, "]");
    axes_.clear();
    are_axes_known_ = false;
    std::string id = stage;
    if (sweep_.stages().empty()) {
      if (!stage.empty()) Fail("stage", "is given, but the sweep has no stages");
      id.clear();
    } else if (id.empty()) {
      id = sweep_.stages(sweep_.stages_size() - 1).id();
    } else if (FindStage(sweep_, id) == nullptr) {
      std::vector<std::string> known;
      for (const pb::StageSpec& each : sweep_.stages()) known.push_back(each.id());
      Fail("stage", StrCat("'", EscapeForTerminal(id), "' is not a stage; ",
                           WordHint(id, known, "there are none")));
    }
    if (const auto at = columns_.find(id); at != columns_.end()) {
      axes_ = at->second;
      are_axes_known_ = true;
    }
    CheckWhere(where);
  }

  void CheckWhere(const std::string& where) {
    if (where.empty()) return;
    const Result<Expression> expression = Expression::Parse(where);
    if (!expression.ok()) {
      Fail("where", StrCat("'", EscapeForTerminal(where), "': ", expression.status().message()));
      return;
    }
    std::vector<std::string> names = axes_;
    names.insert(names.end(), {"cell", "seed"});
    for (const Expression::NameUse& use : expression->names()) {
      const std::string hint =
          use.is_series || !are_axes_known_ ? "" : UnknownPathHint(use.name, names);
      if (hint.empty()) continue;
      Fail("where", StrCat("column ", use.column, ": '", EscapeForTerminal(use.name),
                           "' is neither an axis nor a field; ", hint));
    }
  }

  bool CheckAxis(const std::string& field, const std::string& axis) {
    if (!are_axes_known_ || std::ranges::find(axes_, axis) != axes_.end()) return true;
    Fail(field, StrCat("'", EscapeForTerminal(axis), "' is not an axis; ",
                       WordHint(axis, axes_, "there are none")));
    return false;
  }

  void CheckAxes(const std::string& field, const Names& axes) {
    std::set<std::string> seen;
    for (const std::string& axis : axes) {
      CheckAxis(field, axis);
      if (!seen.insert(axis).second) {
        Fail(field, StrCat("'", EscapeForTerminal(axis), "' is given twice"));
      }
    }
  }

  void CheckSeries(const std::string& field, const std::string& series) {
    if (series.empty() || IsSeriesName(series)) return;
    Fail(field, StrCat("'", EscapeForTerminal(series),
                       "' is not a series SPLIT/METRIC with the split train, valid or test"));
  }

  template <typename Known>
  void CheckNumbers(const std::string& field,
                    const google::protobuf::RepeatedPtrField<pb::NamedNumber>& numbers,
                    const Known& known) {
    const std::vector<std::string> names(known.begin(), known.end());
    for (const pb::NamedNumber& number : numbers) {
      if (std::ranges::find(names, number.id()) == names.end()) {
        Fail(field, StrCat("'", EscapeForTerminal(number.id()), "' is not known here; ",
                           WordHint(number.id(), names, "there are none")));
      } else if (!number.has_value() || !(number.value() > 0)) {
        Fail(StrCat(field, ".", number.id()), "a number above 0 is required");
      }
    }
  }

  void CheckCompare(const pb::CompareSpec& compare) {
    const pb::CompareUnit unit = compare.unit();
    if (compare.by().empty()) {
      Fail("by", "is required: the axis whose values are compared");
    } else if (compare.by() == "seed") {
      if (unit != pb::COMPARE_UNIT_BATCH) Fail("by", "is seed, which goes with unit batch only");
    } else {
      CheckAxis("by", compare.by());
    }
    const bool has_pairs = compare.pairs() != pb::COMPARE_PAIRS_UNSPECIFIED;
    if (compare.against().empty() == !has_pairs) {
      Fail("against", has_pairs ? "is given beside pairs; one of the two is wanted"
                                : "is required, or pairs: all");
    }
    CheckSeries("metric", compare.metric());
    std::set<double> margins;
    for (const double margin : compare.margins()) {
      if (!(margin > 0)) Fail("margins", StrCat(FormatDouble(margin), " must be above 0"));
      if (!margins.insert(margin).second) {
        Fail("margins", StrCat(FormatDouble(margin), " is given twice"));
      }
    }
    if (compare.has_alpha() && !(compare.alpha() > 0 && compare.alpha() < 0.5)) {
      Fail("alpha", StrCat(FormatDouble(compare.alpha()), " is not between 0 and 0.5"));
    }
    if (compare.has_looks() && (compare.looks() < 1 || compare.looks() > 100)) {
      Fail("looks", StrCat(compare.looks(), " is not between 1 and 100"));
    }
    if (compare.at_size() > 1) Fail("at", "names more than one point; one is wanted");
    CheckNumbers("at", compare.at(), kPoints);
    CheckNumbers("match", compare.match(), QuantityNames());
    CheckAxes("within", compare.within());
    CheckAxes("pool", compare.pool());
    for (const std::string& axis : compare.pool()) {
      if (std::ranges::find(compare.within(), axis) != compare.within().end()) {
        Fail("pool", StrCat("'", EscapeForTerminal(axis), "' is in within as well"));
      }
    }
    for (const Names* axes : {&compare.within(), &compare.pool()}) {
      if (std::ranges::find(*axes, compare.by()) != axes->end()) {
        Fail("by", StrCat("'", EscapeForTerminal(compare.by()), "' is in within or pool as well"));
      }
    }
    CheckTestUnit(compare);
  }

  // McNemar pairs examples; the others pair or pool seeds.
  void CheckTestUnit(const pb::CompareSpec& compare) {
    if (compare.test() == pb::COMPARE_TEST_MCNEMAR && compare.unit() != pb::COMPARE_UNIT_EXAMPLE) {
      Fail("test", "is mcnemar, which goes with unit example");
    }
    if (compare.unit() == pb::COMPARE_UNIT_SEED_BATCH &&
        compare.test() != pb::COMPARE_TEST_UNSPECIFIED &&
        compare.test() != pb::COMPARE_TEST_BOOTSTRAP) {
      Fail("test", "with unit seed_batch is bootstrap, and no other");
    }
  }

  void CheckTable(const pb::TableSpec& table) {
    if (table.rows().empty()) Fail("rows", "at least one is required");
    for (const auto* names : {&table.rows(), &table.columns()}) {
      const std::string field = names == &table.rows() ? "rows" : "columns";
      std::set<std::string> seen;
      for (const std::string& name : *names) {
        if (!seen.insert(name).second) {
          Fail(field, StrCat("'", EscapeForTerminal(name), "' is given twice"));
        }
        // Index columns of jobs are known only with their results; a path is an axis or nothing.
        const bool is_open =
            name == "cell" || name == "seed" ||
            (IsValidName(name) && name.find('.') == std::string::npos && HasJobs());
        if (!is_open) CheckAxis(field, name);
      }
    }
    CheckSeries("metric", table.metric());
  }

  bool HasJobs() const {
    const auto has = [](const pb::RunSpec& base) {
      return base.analyze().jobs_size() + base.benchmark().jobs_size() > 0;
    };
    return has(sweep_.base()) || sweep_.report().analysis_size() > 0 ||
           std::ranges::any_of(sweep_.stages(),
                               [&](const pb::StageSpec& stage) { return has(stage.base()); });
  }

  void CheckPlot(const pb::PlotSpec& plot) {
    static constexpr std::array<std::string_view, 4> kClocks = {"step", "tokens", "wall_seconds",
                                                                "train.flops"};
    const bool is_clock = plot.x().empty() || std::ranges::find(kClocks, plot.x()) != kClocks.end();
    if (plot.kind() == pb::PLOT_KIND_CURVE || plot.kind() == pb::PLOT_KIND_UNSPECIFIED) {
      if (!is_clock) {
        Fail("x", StrCat("'", EscapeForTerminal(plot.x()),
                         "' is no clock of a curve; known: step, tokens, wall_seconds, "
                         "train.flops"));
      }
    } else if (plot.x().empty()) {
      Fail("x", "is required for this kind of plot");
    } else if (!is_clock && !IsSeriesName(plot.x())) {
      CheckAxis("x", plot.x());
    }
    CheckSeries("y", plot.y());
    CheckAxes("by", plot.by());
  }

  const pb::SweepSpec& sweep_;
  const std::map<std::string, std::vector<std::string>>& columns_;
  std::vector<Fault>* faults_;
  std::string path_;
  std::vector<std::string> axes_;
  bool are_axes_known_ = false;
};

}  // namespace

void CheckReport(const pb::SweepSpec& sweep,
                 const std::map<std::string, std::vector<std::string>>& columns,
                 std::vector<Fault>* faults) {
  ReportChecker(sweep, columns, faults).Check();
}

void FillCompareDefaults(const std::string& metric, pb::CompareSpec* compare) {
  if (compare->metric().empty()) compare->set_metric(metric);
  if (!compare->has_alpha()) compare->set_alpha(0.05);
  if (compare->correction() == pb::CORRECTION_UNSPECIFIED) {
    compare->set_correction(pb::CORRECTION_HOLM);
  }
  if (!compare->has_looks()) compare->set_looks(1);
  if (compare->unit() == pb::COMPARE_UNIT_UNSPECIFIED) compare->set_unit(pb::COMPARE_UNIT_SEED);
  if (compare->test() == pb::COMPARE_TEST_UNSPECIFIED) {
    compare->set_test(compare->unit() == pb::COMPARE_UNIT_SEED ? pb::COMPARE_TEST_PAIRED_T
                                                               : pb::COMPARE_TEST_BOOTSTRAP);
  }
  if (!compare->has_tune()) compare->set_tune(false);
  std::sort(compare->mutable_margins()->begin(), compare->mutable_margins()->end());
}

std::vector<std::string> ArmsOf(const SweepPlan& plan, const std::string& by) {
  std::vector<std::string> arms;
  const auto add = [&](const std::string& arm) {
    if (std::ranges::find(arms, arm) == arms.end()) arms.push_back(arm);
  };
  // A dimension's values are the arms, constraints apart, in the order of the file.
  std::vector<std::string> possible;
  for (const Dimension& dimension : plan.dimensions()) {
    if (dimension.name == by) {
      possible.insert(possible.end(), dimension.values.begin(), dimension.values.end());
    }
  }
  if (plan.is_drawn()) {
    for (const std::string& arm : possible) add(arm);
    return arms;
  }
  std::set<std::string> wanted(possible.begin(), possible.end());
  for (uint64_t cell = 1; cell <= plan.cell_count() && arms.size() < wanted.size(); ++cell) {
    for (const Coordinate& coordinate : plan.PointOf(cell)) {
      if (coordinate.axis->name == by && !coordinate.axis->is_distribution()) {
        add(coordinate.axis->OptionText(coordinate.option));
      }
    }
  }
  return arms;
}

std::string RegistrationHash(const pb::CompareSpec& compare, const pb::ObjectiveSpec& objective,
                             const std::vector<std::string>& arms,
                             const std::vector<uint64_t>& seeds) {
  pb::CompareSpec filled = compare;
  FillCompareDefaults(objective.metric(), &filled);
  // Lengths before texts: ["ab", "c"] is not ["a", "bc"].
  std::string text;
  const auto append = [&](const std::string& part) {
    text += StrCat(part.size(), ":", part, "\n");
  };
  append(CanonicalEncoding(filled));
  append(CanonicalEncoding(objective));
  append(StrCat(arms.size()));
  for (const std::string& arm : arms) append(arm);
  std::vector<uint64_t> sorted = seeds;
  std::ranges::sort(sorted);
  for (const uint64_t seed : sorted) append(StrCat(seed));
  return Sha256Hex(text);
}

}  // namespace switchyard::spec
