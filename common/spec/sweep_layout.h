#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/document.h"
#include "common/spec/fault.h"
#include "common/spec/space.h"

namespace switchyard::v1 {
class PolicySpec;
class RunSpec;
class StageSpec;
class StrategySpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

class SweepLayout;

// What a layout is made of.
struct LayoutSource {
  const v1::SweepSpec* sweep = nullptr;
  // Null: the sweep's own space, without stages.
  const v1::StageSpec* stage = nullptr;
  // A stage with `needs` lies over one of these: the start of its children (their parent's data,
  // eval and model, init or inputs), or one cell of its parent stage.
  const v1::RunSpec* start = nullptr;
  std::shared_ptr<const SweepLayout> origin;
  Point origin_point;
  std::vector<uint64_t> parent_seeds;
  // Columns that children have from their parents; those of `origin` come by themselves.
  std::vector<std::pair<std::string, std::string>> parent_columns;
  // The document in the file, for line and column; or null.
  const Node* document = nullptr;
  std::string_view file_name;
};

// The single stage of a sweep, or one of its stages, with preset, base and --set laid over each
// other and its axes ready to be laid on top. Immutable once made.
class SweepLayout {
 public:
  // Null, with faults, when the base or an axis is wrong in itself: unknown paths, values of the
  // wrong type or given twice, overlapping axes, more than kRunCountMax runs.
  static std::shared_ptr<const SweepLayout> Make(const LayoutSource& source,
                                                 std::vector<Fault>* faults);
  ~SweepLayout();

  const Space& space() const { return space_; }
  // Columns: every axis once, those of the origin first.
  std::vector<std::string> AxisNames() const;
  const std::vector<uint64_t>& seeds() const { return seeds_; }
  bool is_paired() const { return is_paired_; }
  // Cells come from a strategy, not from counting through the space.
  bool is_drawn() const { return is_drawn_; }
  // How many cells the strategy will propose; 0: none, or not known before it runs.
  uint64_t drawn_cells() const { return drawn_cells_; }
  // Before constraints. 1 where cells are drawn.
  uint64_t cell_count() const { return cell_count_; }
  // "space", or "stages.NAME.space".
  const std::string& space_path() const { return space_path_; }

  // True when the sweep itself sets something at or below `path` of the RunSpec: by `base` or
  // --set, not by a preset or an axis.
  bool IsWritten(std::string_view path) const;
  // True when an axis, a `set` or a `match` of the point's cell lays something that decides `path`.
  bool IsLaid(const Point& point, std::string_view path) const;

  // Base and policy with the point's values laid on them and `match` solved; as written, without
  // defaults.
  void Lay(const Point& point, v1::RunSpec* run, v1::PolicySpec* policy,
           std::vector<Fault>* faults) const;
  // Axis and value as text, in file order, those of the origin first.
  std::vector<std::pair<std::string, std::string>> Columns(const Point& point) const;

 private:
  // One alternative instead of the point's.
  struct Swap {
    const Axis* axis = nullptr;
    size_t alternative = 0;
  };
  struct Entry {
    std::string path;
    bool is_policy = false;
    Node value;
  };
  struct MatchTask {
    const Axis* axis = nullptr;
    const Match* match = nullptr;
  };

  SweepLayout();

  void LayBase(const LayoutSource& source, std::vector<Fault>* faults);
  void TakeSets(const LayoutSource& source, std::vector<Fault>* faults);
  void LaySets(v1::RunSpec* run, v1::PolicySpec* policy, std::vector<Fault>* faults) const;
  void TakeSeeds(const LayoutSource& source);
  void TakeSpace(const LayoutSource& source, std::vector<Fault>* faults);
  // Checks `per` of the strategy and counts its cells.
  void TakeStrategy(const v1::StrategySpec& strategy, std::vector<Fault>* faults);
  void CheckSets(const LayoutSource& source, std::vector<Fault>* faults) const;
  void CheckConstraintNames(const Space& space, std::string_view file_name,
                            std::vector<Fault>* faults) const;
  void CheckValues(const Space& space, std::string_view file_name, v1::RunSpec* run,
                   v1::PolicySpec* policy, std::vector<Fault>* faults) const;
  void CheckOptions(const Axis& axis, std::string_view file_name, const v1::RunSpec& run,
                    const v1::PolicySpec& policy, std::vector<Fault>* faults) const;

  static void Collect(const Space& space, const Point& point, size_t* at, const Swap* swap,
                      bool is_kept, std::vector<Entry>* entries, std::vector<MatchTask>* matches);
  std::vector<Entry> EntriesOf(const Point& point, const Swap* swap,
                               std::vector<MatchTask>* matches) const;
  // Without `match`.
  void LayWritten(const Point& point, const Swap* swap, v1::RunSpec* run, v1::PolicySpec* policy,
                  std::vector<MatchTask>* matches, std::vector<Fault>* faults) const;
  void Solve(const MatchTask& task, const Point& point, v1::RunSpec* run,
             std::vector<Fault>* faults) const;

  std::unique_ptr<v1::RunSpec> base_;     // laid over the origin where there is one
  std::unique_ptr<v1::RunSpec> written_;  // what the sweep or its stage itself sets
  std::unique_ptr<v1::PolicySpec> policy_;
  std::vector<PathValue> sets_;  // --set, in order
  std::shared_ptr<const SweepLayout> origin_;
  Point origin_point_;
  std::vector<std::pair<std::string, std::string>> parent_columns_;
  Space space_;
  std::string space_path_ = "space";
  std::vector<uint64_t> seeds_;
  bool is_paired_ = true;
  bool is_drawn_ = false;
  uint64_t cell_count_ = 1;
  uint64_t drawn_cells_ = 0;
};

// The faults of a sweep's own fields, its layouts apart: names, seeds, objectives, policies,
// strategies, budget, stages, report.
void CheckSweepFields(const v1::SweepSpec& sweep, std::vector<Fault>* faults);

}  // namespace switchyard::spec
