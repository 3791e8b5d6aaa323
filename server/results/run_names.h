#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
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

  const std::vector<std::string>& series() const { return series_; }
  Pick pick() const { return pick_; }

  // Reads the documents of cells where a name needs them. Before the first SetRun.
  Status Load(store::ReadStore& store);

  // The run that the names are about from now on; it must outlive the questions.
  void SetRun(const store::RunFacts& run) { run_ = &run; }

  spec::ExpressionValue Name(std::string_view name) const override;
  spec::ExpressionValue Series(std::string_view series, spec::SeriesValue value) const override;
  const double* Value(std::string_view series, Pick pick) const;
  // As text; of an axis exactly its column. Empty: absent.
  std::string Text(std::string_view name) const;
  bool IsAxis(std::string_view name) const;

 private:
  const std::string* FindColumn(std::string_view name) const;

  const SweepId sweep_;
  const std::vector<std::string> axes_;
  const Pick pick_;
  std::vector<std::string> series_;
  std::set<std::string, std::less<>> paths_;  // what stands in documents only
  // Values of paths_ in order, by cell.
  std::unordered_map<uint64_t, std::vector<spec::ExpressionValue>> documents_;
  const store::RunFacts* run_ = nullptr;
};

}  // namespace switchyard::results
