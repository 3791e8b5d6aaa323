#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/document.h"
#include "common/spec/expression.h"
#include "common/spec/fault.h"

namespace switchyard::v1 {
class SpaceSpec;
}

namespace switchyard::spec {

inline constexpr size_t kAxisCountMax = 64;  // of one space, without those of its alternatives
inline constexpr uint64_t kRunCountMax = 1'000'000;

struct Alternative;

// A value laid at a dotted path of the RunSpec or the policy.
struct PathValue {
  std::string path;
  bool is_policy = false;
  Node value;
};

// One path of a grid or zip axis with its values in order.
struct AxisPath {
  std::string path;
  bool is_policy = false;
  std::vector<Node> values;
};

enum class AxisKind { kGrid, kZip, kChoice, kUniform, kLogUniform, kInt, kNormal };

struct Axis {
  AxisKind kind = AxisKind::kGrid;
  std::string name;             // column of the results: the path of a grid axis or distribution
  std::vector<AxisPath> paths;  // one; zip: all that advance together; choice: none
  std::vector<Alternative> alternatives;  // choice
  // Distributions; kNormal: mean and sd.
  double low = 0;
  double high = 0;
  std::optional<double> step;
  bool is_log = false;
  int line = 0;  // where it stands in the file; 0: not known
  int column = 0;

  bool is_distribution() const {
    return kind != AxisKind::kGrid && kind != AxisKind::kZip && kind != AxisKind::kChoice;
  }
  // Values of a grid, rows of a zip, alternatives of a choice.
  size_t option_count() const;
  // Of a grid: its value as text; of a zip: "[4, 256]"; of a choice: the alternative's name.
  std::string OptionText(size_t option) const;
};

struct Constraint {
  Expression expression;
  std::string path;  // of the document: "space.constraints[0]"
};

// The axes of a sweep, of a stage or of an alternative, in file order, the last one fastest.
struct Space {
  std::vector<Axis> axes;
  std::vector<Constraint> constraints;

  bool has_distribution() const;
};

struct Match {
  std::string quantity;
  size_t to = 0;  // index of the alternative
  std::string vary;
  double tolerance = 0.01;
};

struct Alternative {
  std::string name;
  std::vector<PathValue> set;
  std::optional<Match> match;
  Space space;
};

// Where one cell stands on one axis.
struct Coordinate {
  const Axis* axis = nullptr;
  size_t option = 0;  // grid, zip, choice
  double number = 0;  // distributions, rounded as drawn numbers are
};
// Axes from the outside in: an alternative's own follow their choice.
using Point = std::vector<Coordinate>;

// A dimension as a strategy sees it.
struct Dimension {
  enum class Kind { kCategorical, kReal, kInteger, kNormal };
  std::string name;
  Kind kind = Kind::kCategorical;
  std::vector<std::string> values;  // kCategorical
  double low = 0;                   // kReal: [low, high), kInteger: [low, high]; kNormal: mean, sd
  double high = 0;
  std::optional<double> step;
  bool is_log = false;
  // It exists only where dimension `parent` has the value with index `parent_value`; -1: always.
  int parent = -1;
  size_t parent_value = 0;
};

// What a strategy says about one dimension.
struct Draw {
  size_t dimension = 0;  // index into Dimensions()
  size_t value = 0;      // kCategorical: index into its values
  double number = 0;     // the others
};

// Reads a SpaceSpec; `path` is "space", "stages.search.space". Faults: names, empty axes, uneven
// zips, overlapping paths, bounds of distributions, constraints that are no expressions, `match`
// without its alternative. `located`: the mapping in the file, for line and column; or null.
Space ReadSpace(const v1::SpaceSpec& spec, const std::string& path, const Node* located,
                std::string_view file_name, std::vector<Fault>* faults);

// Cells before constraints, distributions counted once; none when it is more than 2^63.
std::optional<uint64_t> CountCells(const Space& space);
// Cell `index` (from 0) of a space without distributions, without making the others.
Point PointAt(const Space& space, uint64_t index);
// Every dimension, in file order, those of an alternative behind their choice.
std::vector<Dimension> Dimensions(const Space& space);
// From one draw for each dimension that exists there. kInvalidArgument: a dimension is missing, is
// there twice or does not exist under the others, or a value is out of its bounds.
Result<Point> PointFrom(const Space& space, const std::vector<Draw>& draws);

// To 6 significant digits, without leaving [low, high).
double RoundDrawn(double value, double low, double high);

// True when what is laid at one path would write over the other.
bool PathsOverlap(std::string_view left, std::string_view right);
// "a.b" lies at or below "a".
bool IsAtOrBelow(std::string_view path, std::string_view ancestor);

// Every path that the space can lay something on, those of alternatives included.
std::vector<std::string> PathsOf(const Space& space);
// Every axis by name, those of alternatives included.
std::vector<const Axis*> AllAxes(const Space& space);

}  // namespace switchyard::spec
