#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "common/spec/expression.h"
#include "server/store/rows.h"

namespace switchyard::store {
class ReadStore;
}

namespace switchyard::results {

// Best or last value of a run's series.
enum class Pick { kBest, kLast };

// The value of one series of a run. Best of a series that has none is its last value. None without
// a point.
const double* PickValue(const store::RunFacts::Value& value, Pick pick);

// What names in expressions and groupings stand for, for the runs of one sweep: its axes, `number`,
// `cell`, `seed`, `state`, `end_class`, `router`, `attempts`, `step`, `steps_total`,
// `active_seconds`, then computed quantities and fields of the run's spec. An axis comes first.
// Series stand for best or last as `pick` says, where best() and last() do not.
class RunNames final : public spec::ExpressionNames {
 public:
  RunNames(const store::SweepInfo& sweep, Pick pick);

  // Names that will be asked for. kInvalidArgument, with the nearest one, when a name can be none.
  Status Use(const spec::Expression& expression);
  Status UseName(const std::string& name);
  void UseSeries(const std::string& series);
  // Everything about the run itself (store::RunFacts) will be asked for.
  void UseRun() { run_facts_ = store::kAllRunFacts; }
  // Of store::RunFact: what the names need.
  uint32_t run_facts() const { return run_facts_; }

  const std::vector<std::string>& series() const { return series_; }
  Pick pick() const { return pick_; }

  // Reads the documents of cells where a name needs them. Before the first SetRun.
  Status Load(store::ReadStore& store);
  // Reads the documents of cells that are not known yet, of the runs numbered above `after`.
  Status LoadMore(store::ReadStore& store, uint64_t after);

  // The same names without a run, for another thread, until more documents are read.
  RunNames Fork() const;

  // The run that the names are about from now on; it must outlive the questions. Names that were
  // not announced are absent. False: a name needs the document of its cell, which is not known
  // (LoadMore).
  [[nodiscard]] bool SetRun(const store::RunFacts& run);

  spec::ExpressionValue Name(std::string_view name) const override;
  spec::ExpressionValue Series(std::string_view series, spec::SeriesValue value) const override;
  const double* Value(std::string_view series, Pick pick) const;
  // As text; of an axis exactly its column. Empty: absent.
  std::string Text(std::string_view name) const;
  bool IsAxis(std::string_view name) const;
  // Whether runs of one cell and equal columns share the value of this announced name.
  bool IsOfCell(std::string_view name) const;

 private:
  enum class Property {
    kNumber,
    kCell,
    kSeed,
    kState,
    kEndClass,
    kRouter,
    kAttempts,
    kStep,
    kStepsTotal,
    kActiveSeconds,
  };
  // Where the value of an announced name comes from.
  struct Source {
    std::string name;
    enum class Kind { kAxis, kProperty, kDocument } kind = Kind::kProperty;
    size_t index = 0;  // of axes_, Property, of paths_
  };
  // What the columns that runs share say about each of axes_.
  struct AxisValues {
    std::shared_ptr<const store::Columns> columns;
    std::vector<const std::string*> texts;  // null: the run has no such axis
    std::vector<spec::ExpressionValue> values;
  };

  // Of the runs numbered above `after`, until so many cells are known.
  Status ReadDocuments(store::ReadStore& store, uint64_t after, size_t cells);
  Status ReadDocument(store::ReadStore& store, uint64_t cell, RunId run);
  const Source* FindSource(std::string_view name) const;
  AxisValues ReadColumns(const std::shared_ptr<const store::Columns>& columns) const;
  spec::ExpressionValue OfRun(Property property) const;

  uint32_t run_facts_ = 0;
  const SweepId sweep_;
  const size_t cells_;  // the sweep's; SIZE_MAX: not known beforehand
  const std::vector<std::string> axes_;
  const Pick pick_;
  std::vector<std::string> series_;
  std::vector<Source> sources_;
  std::vector<std::string> paths_;  // what stands in documents only
  std::vector<bool> are_fields_;    // of axes_
  // Values of paths_ in order, by cell.
  using Documents = std::unordered_map<uint64_t, std::vector<spec::ExpressionValue>>;
  std::shared_ptr<Documents> documents_ = std::make_shared<Documents>();
  const std::vector<spec::ExpressionValue>* document_ = nullptr;  // of the run's cell
  std::unordered_map<const store::Columns*, AxisValues> known_columns_;
  AxisValues other_columns_;  // when too many are known
  const AxisValues* columns_ = nullptr;
  const store::RunFacts* run_ = nullptr;
};

}  // namespace switchyard::results
