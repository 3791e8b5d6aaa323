#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "common/base/strings.h"
#include "common/spec/checker.h"
#include "common/spec/lay.h"
#include "common/spec/quantity.h"
#include "common/spec/space.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kPathBytesMax = 512;
constexpr size_t kSpaceLevelsMax = 8;  // of choices in alternatives
constexpr size_t kConstraintCountMax = 64;
// Every path is compared with every other: bounded, whatever a file of 1 MiB holds.
constexpr size_t kPathCountMax = 4096;
constexpr int kSetCountMax = 256;

// Columns that every result has.
constexpr std::array<std::string_view, 8> kTakenNames = {"cell",  "seed",  "run",   "stage",
                                                         "sweep", "state", "index", "number"};

const Node::Entry* FindEntry(const Node* node, std::string_view key) {
  if (node == nullptr) return nullptr;
  for (const Node::Entry& entry : node->entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}
const Node* ValueOf(const Node::Entry* entry) { return entry == nullptr ? nullptr : &entry->value; }

class SpaceReader {
 public:
  SpaceReader(std::string_view file_name, std::vector<Fault>* faults)
      : file_name_(file_name), faults_(faults) {}

  Space Read(const pb::SpaceSpec& spec, const std::string& path, const Node* located,
             size_t level) {
    Space space;
    if (level > kSpaceLevelsMax) {
      Fail({}, path, StrCat("more than ", kSpaceLevelsMax, " levels of alternatives"));
      return space;
    }
    std::vector<std::string> order(spec.order().begin(), spec.order().end());
    const size_t kinds_before = order.size();
    for (const std::string_view kind :
         {"grid", "zip", "choice", "uniform", "log_uniform", "int", "normal"}) {
      if (kinds_before == 0) order.emplace_back(kind);
    }
    std::set<std::string> read;
    for (const std::string& kind : order) {
      if (!read.insert(kind).second || !ReadKind(spec, kind, path, located, level, &space)) {
        Fail({}, path, StrCat("'", EscapeForTerminal(kind), "' is not a kind of axis, or twice"));
      }
    }
    if (space.axes.size() > kAxisCountMax) {
      Fail({}, path, StrCat("has more than ", kAxisCountMax, " axes"));
      return space;
    }
    CheckOverlaps(space, path);
    ReadConstraints(spec, path, located, &space);
    return space;
  }

 private:
  struct At {
    int line = 0;
    int column = 0;
  };
  static At PlaceOf(const Node::Entry* entry) {
    return entry == nullptr ? At{} : At{entry->line, entry->column};
  }

  void Fail(At at, std::string path, std::string message) {
    faults_->push_back({at.line == 0 ? std::string() : LocationText(file_name_, at.line, at.column),
                        std::move(path), std::move(message)});
  }

  // False for a kind that is unknown.
  bool ReadKind(const pb::SpaceSpec& spec, const std::string& kind, const std::string& path,
                const Node* located, size_t level, Space* space) {
    const Node* block = ValueOf(FindEntry(located, kind));
    const std::string block_path = StrCat(path, ".", kind);
    if (kind == "grid") {
      for (const pb::GridAxis& grid : spec.grid()) {
        const Node::Entry* entry = FindEntry(block, grid.id());
        Axis axis{.kind = AxisKind::kGrid, .name = grid.id()};
        axis.paths.push_back(ReadPath(grid, entry, block_path));
        Add(std::move(axis), entry, space);
      }
    } else if (kind == "zip") {
      for (const pb::ZipAxis& zip : spec.zip()) {
        const Node::Entry* entry = FindEntry(block, zip.id());
        Add(ReadZip(zip, entry, StrCat(block_path, ".", EscapeForTerminal(zip.id()))), entry,
            space);
      }
    } else if (kind == "choice") {
      for (const pb::ChoiceAxis& choice : spec.choice()) {
        const Node::Entry* entry = FindEntry(block, choice.id());
        Add(ReadChoice(choice, entry, StrCat(block_path, ".", EscapeForTerminal(choice.id())),
                       level),
            entry, space);
      }
    } else if (kind == "uniform") {
      ReadRanges(spec.uniform(), AxisKind::kUniform, block, block_path, space);
    } else if (kind == "log_uniform") {
      ReadRanges(spec.log_uniform(), AxisKind::kLogUniform, block, block_path, space);
    } else if (kind == "int") {
      ReadRanges(spec.int_(), AxisKind::kInt, block, block_path, space);
    } else if (kind == "normal") {
      for (const pb::NormalAxis& normal : spec.normal()) {
        const Node::Entry* entry = FindEntry(block, normal.id());
        Axis axis{.kind = AxisKind::kNormal,
                  .name = normal.id(),
                  .low = normal.mean(),
                  .high = normal.sd()};
        CheckPath(normal.id(), block_path, entry);
        if (!normal.has_mean() || !normal.has_sd() || !(normal.sd() > 0) ||
            !std::isfinite(normal.mean()) || !std::isfinite(normal.sd())) {
          Fail(PlaceOf(entry), EscapeForTerminal(normal.id()),
               "a normal distribution is [mean, sd] with an sd above 0");
        }
        axis.paths.push_back({normal.id(), IsPolicyPath(normal.id()), {}});
        Add(std::move(axis), entry, space);
      }
    } else {
      return false;
    }
    return true;
  }

  void Add(Axis axis, const Node::Entry* entry, Space* space) {
    if (space->axes.size() > kAxisCountMax) return;  // one too many is enough to say so
    const At at = PlaceOf(entry);
    axis.line = at.line;
    axis.column = at.column;
    for (const Axis& other : space->axes) {
      if (other.name == axis.name) {
        Fail(at, EscapeForTerminal(axis.name), "the axis is given twice");
      }
    }
    if (axis.kind != AxisKind::kGrid && !axis.is_distribution()) CheckName(axis, at);
    space->axes.push_back(std::move(axis));
  }

  void CheckName(const Axis& axis, At at) {
    if (!IsValidName(axis.name) || axis.name.find('.') != std::string::npos) {
      Fail(at, EscapeForTerminal(axis.name),
           "is not a name for a column: a-z, 0-9, '_' and '-', beginning and ending with a letter "
           "or digit");
    } else if (std::ranges::find(kTakenNames, axis.name) != kTakenNames.end()) {
      Fail(at, axis.name, "is a column that every result has; choose another name");
    }
  }

  void CheckPath(const std::string& path, const std::string& block_path, const Node::Entry* entry) {
    const At at = PlaceOf(entry);
    if (path.size() > kPathBytesMax) {
      Fail(at, block_path,
           StrCat("the path of an axis is too long: ", path.size(), " bytes, at most ",
                  kPathBytesMax));
    } else if (path == "seed") {
      Fail(at, path, "the seed is never an axis; it comes from replicates");
    } else if (path == "max_parallel") {
      Fail(at, path, "bounds the runs of the whole sweep, so is no axis");
    }
  }

  AxisPath ReadPath(const pb::GridAxis& grid, const Node::Entry* entry,
                    const std::string& block_path) {
    AxisPath out{.path = grid.id(), .is_policy = IsPolicyPath(grid.id())};
    CheckPath(grid.id(), block_path, entry);
    const auto count = static_cast<size_t>(grid.values_size());
    if (entry != nullptr && entry->value.items.size() == count) {
      out.values = entry->value.items;
    } else {
      for (const pb::Value& value : grid.values()) out.values.push_back(NodeFromValue(value));
    }
    if (out.values.empty()) {
      Fail(PlaceOf(entry), EscapeForTerminal(grid.id()), "the axis has no values");
    }
    return out;
  }

  Axis ReadZip(const pb::ZipAxis& zip, const Node::Entry* entry, const std::string& path) {
    Axis axis{.kind = AxisKind::kZip, .name = zip.id()};
    for (const pb::GridAxis& grid : zip.paths()) {
      axis.paths.push_back(ReadPath(grid, FindEntry(ValueOf(entry), grid.id()), path));
      if (axis.paths.back().values.size() != axis.paths.front().values.size()) {
        Fail(PlaceOf(FindEntry(ValueOf(entry), grid.id())), path,
             StrCat("the rows are uneven: ", EscapeForTerminal(axis.paths.front().path), " has ",
                    axis.paths.front().values.size(), " values and ", EscapeForTerminal(grid.id()),
                    " has ", axis.paths.back().values.size()));
      }
    }
    if (axis.paths.empty()) Fail(PlaceOf(entry), path, "the group has no paths");
    for (size_t i = 0; i < axis.paths.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (PathsOverlap(axis.paths[i].path, axis.paths[k].path)) {
          Fail(PlaceOf(entry), path,
               StrCat(EscapeForTerminal(axis.paths[i].path), " overlaps with ",
                      EscapeForTerminal(axis.paths[k].path)));
        }
      }
    }
    return axis;
  }

  Axis ReadChoice(const pb::ChoiceAxis& choice, const Node::Entry* entry, const std::string& path,
                  size_t level) {
    Axis axis{.kind = AxisKind::kChoice, .name = choice.id()};
    if (choice.alternatives().empty()) Fail(PlaceOf(entry), path, "there are no alternatives");
    std::set<std::string> names;
    for (const pb::Alternative& spec : choice.alternatives()) {
      const Node::Entry* body = FindEntry(ValueOf(entry), spec.id());
      const std::string body_path = StrCat(path, ".", EscapeForTerminal(spec.id()));
      Alternative out{.name = spec.id()};
      // A name that is a value of results and filters; a path would read as one.
      if (spec.id().empty() || spec.id().size() > 64 || !IsValidUtf8(spec.id()) ||
          EscapeForTerminal(spec.id()) != spec.id()) {
        Fail(PlaceOf(body), path, "the name of an alternative is 1 to 64 printable bytes");
      }
      if (!names.insert(spec.id()).second) Fail(PlaceOf(body), body_path, "is given twice");
      const Node* set_node = ValueOf(FindEntry(ValueOf(body), "set"));
      const bool is_over = spec.set_size() > kSetCountMax;
      if (is_over) {
        Fail(PlaceOf(body), body_path,
             StrCat("sets ", spec.set_size(), " paths, at most ", kSetCountMax));
      }
      for (const pb::SetEntry& set : spec.set()) {
        if (is_over) break;
        const Node::Entry* set_entry = FindEntry(set_node, set.path());
        CheckPath(set.path(), body_path, set_entry);
        out.set.push_back(
            {.path = set.path(),
             .is_policy = IsPolicyPath(set.path()),
             .value = set_entry != nullptr ? set_entry->value : NodeFromValue(set.value())});
        for (size_t i = 0; i + 1 < out.set.size(); ++i) {
          if (out.set[i].path == set.path()) Fail(PlaceOf(set_entry), set.path(), "is set twice");
        }
      }
      out.space = Read(spec.space(), body_path, ValueOf(body), level + 1);
      CheckAlternative(out, body_path, body);
      axis.alternatives.push_back(std::move(out));
    }
    for (int i = 0; i < choice.alternatives_size(); ++i) {
      if (choice.alternatives(i).has_match()) {
        const std::string body_path =
            StrCat(path, ".", EscapeForTerminal(choice.alternatives(i).id()), ".match");
        const Node* body = ValueOf(FindEntry(ValueOf(entry), choice.alternatives(i).id()));
        ReadMatch(choice, static_cast<size_t>(i), FindEntry(body, "match"), body_path, &axis);
      }
    }
    return axis;
  }

  // The nested space is laid over `set`: it may refine a part of what is set, not replace it.
  void CheckAlternative(const Alternative& alternative, const std::string& path,
                        const Node::Entry* body) {
    for (const std::string& inner : PathsOf(alternative.space)) {
      for (const PathValue& set : alternative.set) {
        if (PathsOverlap(inner, set.path) && !(IsAtOrBelow(inner, set.path) && inner != set.path)) {
          Fail(PlaceOf(body), path,
               StrCat("sets ", EscapeForTerminal(set.path), ", which its axis ",
                      EscapeForTerminal(inner), " lays over"));
        }
      }
    }
  }

  void ReadMatch(const pb::ChoiceAxis& choice, size_t self, const Node::Entry* entry,
                 const std::string& path, Axis* axis) {
    const pb::MatchSpec& spec = choice.alternatives(static_cast<int>(self)).match();
    const At at = PlaceOf(entry);
    Match match{.quantity = spec.quantity(), .vary = spec.vary()};
    if (spec.has_tolerance()) match.tolerance = spec.tolerance();
    if (!(match.tolerance >= 0) || match.tolerance > 1) {
      Fail(at, StrCat(path, ".tolerance"),
           StrCat(FormatDouble(match.tolerance), " is not between 0 and 1"));
    }
    const std::vector<std::string> known = QuantityNames();
    if (std::ranges::find(known, match.quantity) == known.end()) {
      Fail(at, StrCat(path, ".quantity"),
           StrCat("'", EscapeForTerminal(match.quantity), "' is not a quantity; ",
                  WordHint(match.quantity, known)));
    }
    std::vector<std::string> names;
    size_t to = axis->alternatives.size();
    for (size_t k = 0; k < axis->alternatives.size(); ++k) {
      if (k == self) continue;
      names.push_back(axis->alternatives[k].name);
      if (axis->alternatives[k].name == spec.to()) to = k;
    }
    if (to == axis->alternatives.size()) {
      Fail(at, StrCat(path, ".to"),
           StrCat("'", EscapeForTerminal(spec.to()),
                  "' is not another alternative of this choice; ", WordHint(spec.to(), names)));
      return;
    }
    match.to = to;
    if (choice.alternatives(static_cast<int>(to)).has_match()) {
      Fail(at, StrCat(path, ".to"), StrCat(spec.to(), " is itself matched to another one"));
    }
    if (!axis->alternatives[to].space.axes.empty()) {
      Fail(at, StrCat(path, ".to"),
           StrCat(spec.to(), " has axes of its own, so that it is not one thing to be matched"));
    }
    if (match.vary.empty()) Fail(at, StrCat(path, ".vary"), "is required");
    if (IsPolicyPath(match.vary)) {
      Fail(at, StrCat(path, ".vary"), "names a policy, on which no quantity depends");
    }
    for (const std::string& inner : PathsOf(axis->alternatives[self].space)) {
      if (PathsOverlap(inner, match.vary)) {
        Fail(at, StrCat(path, ".vary"),
             StrCat("overlaps with the axis ", EscapeForTerminal(inner)));
      }
    }
    for (const PathValue& set : axis->alternatives[self].set) {
      if (IsAtOrBelow(set.path, match.vary)) {
        Fail(at, StrCat(path, ".vary"), StrCat("overlaps with set ", EscapeForTerminal(set.path)));
      }
    }
    axis->alternatives[self].match = std::move(match);
  }

  template <typename Ranges>
  void ReadRanges(const Ranges& ranges, AxisKind kind, const Node* block,
                  const std::string& block_path, Space* space) {
    for (const pb::RangeAxis& range : ranges) {
      const Node::Entry* entry = FindEntry(block, range.id());
      CheckPath(range.id(), block_path, entry);
      Axis axis{.kind = kind, .name = range.id(), .low = range.low(), .high = range.high()};
      axis.is_log = kind == AxisKind::kLogUniform || range.log();
      if (range.has_step()) axis.step = range.step();
      CheckRange(range, axis, PlaceOf(entry));
      axis.paths.push_back({range.id(), IsPolicyPath(range.id()), {}});
      Add(std::move(axis), entry, space);
    }
  }

  void CheckRange(const pb::RangeAxis& range, const Axis& axis, At at) {
    const std::string path = EscapeForTerminal(range.id());
    const auto fail = [&](std::string message) { Fail(at, path, std::move(message)); };
    constexpr double kExactMax = 9007199254740992;  // 2^53: whole numbers that doubles hold
    if (!range.has_low() || !range.has_high()) return fail("low and high are required");
    if (!std::isfinite(axis.low) || !std::isfinite(axis.high)) {
      return fail("the bounds must be finite numbers");
    }
    if (axis.low > axis.high || (axis.low == axis.high && axis.kind != AxisKind::kInt)) {
      return fail(
          StrCat("low ", FormatDouble(axis.low), " is not below high ", FormatDouble(axis.high)));
    }
    if (axis.is_log && !(axis.low > 0)) {
      return fail(StrCat("low ", FormatDouble(axis.low), " must be above 0 for a logarithm"));
    }
    if (axis.kind == AxisKind::kLogUniform && range.has_log()) {
      fail("log_uniform is logarithmic as it is; leave log out");
    }
    if (axis.step && axis.is_log) fail("step and log exclude each other");
    if (axis.step && !(*axis.step > 0 && *axis.step <= axis.high - axis.low)) {
      fail(StrCat("step ", FormatDouble(*axis.step), " is not above 0 and at most high - low"));
    }
    if (axis.kind != AxisKind::kInt) return;
    for (const double number : {axis.low, axis.high, axis.step.value_or(1)}) {
      if (number != std::floor(number) || std::abs(number) > kExactMax) {
        fail(StrCat(FormatDouble(number), " is not a whole number up to 2^53"));
      }
    }
  }

  // Paths of an axis with those of the axes before it.
  void CheckOverlaps(const Space& space, const std::string& path) {
    std::vector<std::vector<std::string>> paths;
    size_t count = 0;
    for (const Axis& axis : space.axes) {
      Space alone;
      alone.axes.push_back(axis);
      paths.push_back(PathsOf(alone));
      // The alternatives of a choice lay the same paths, most of them.
      std::ranges::sort(paths.back());
      const auto again = std::ranges::unique(paths.back());
      paths.back().erase(again.begin(), again.end());
      count += paths.back().size();
    }
    if (count > kPathCountMax) {
      Fail({}, path, StrCat("lays ", count, " different paths, at most ", kPathCountMax));
      return;
    }
    for (size_t i = 0; i < paths.size(); ++i) {
      for (size_t k = 0; k < i; ++k) CheckPair(space, paths, i, k, path);
    }
  }

  void CheckPair(const Space& space, const std::vector<std::vector<std::string>>& paths, size_t i,
                 size_t k, const std::string& path) {
    for (const std::string& left : paths[i]) {
      for (const std::string& right : paths[k]) {
        if (!PathsOverlap(left, right)) continue;
        const Axis& axis = space.axes[i];
        At at{axis.line, axis.column};
        if (axis.kind == AxisKind::kGrid && !axis.paths.front().values.empty() &&
            axis.paths.front().values.front().line != 0) {
          const Node& first = axis.paths.front().values.front();
          at = {first.line, first.column};
        }
        const bool is_own_path = axis.name == left;
        Fail(
            at, is_own_path ? EscapeForTerminal(left) : StrCat(path, ".", axis.name),
            StrCat(is_own_path ? "overlaps" : StrCat(EscapeForTerminal(left), " overlaps"),
                   " with the axis ", EscapeForTerminal(space.axes[k].name),
                   space.axes[k].name == right ? "" : StrCat(" (", EscapeForTerminal(right), ")")));
        return;
      }
    }
  }

  void ReadConstraints(const pb::SpaceSpec& spec, const std::string& path, const Node* located,
                       Space* space) {
    const Node* block = ValueOf(FindEntry(located, "constraints"));
    if (spec.constraints_size() > static_cast<int>(kConstraintCountMax)) {
      Fail({}, StrCat(path, ".constraints"),
           StrCat("has ", spec.constraints_size(), ", at most ", kConstraintCountMax));
      return;
    }
    for (int i = 0; i < spec.constraints_size(); ++i) {
      const auto index = static_cast<size_t>(i);
      const std::string constraint_path = StrCat(path, ".constraints[", i, "]");
      At at;
      if (block != nullptr && index < block->items.size()) {
        at = {block->items[index].line, block->items[index].column};
      }
      Result<Expression> expression = Expression::Parse(spec.constraints(i));
      if (!expression.ok()) {
        Fail(at, constraint_path,
             StrCat("'", EscapeForTerminal(spec.constraints(i)),
                    "': ", expression.status().message()));
        continue;
      }
      for (const Expression::NameUse& use : expression->names()) {
        if (use.is_series) {
          Fail(at, constraint_path,
               StrCat("column ", use.column, ": ", EscapeForTerminal(use.name),
                      " is a series, and no run has begun; a division is written a / b"));
        }
      }
      space->constraints.push_back({.expression = std::move(*expression), .path = constraint_path});
    }
  }

  std::string_view file_name_;
  std::vector<Fault>* faults_;
};

}  // namespace

Space ReadSpace(const pb::SpaceSpec& spec, const std::string& path, const Node* located,
                std::string_view file_name, std::vector<Fault>* faults) {
  return SpaceReader(file_name, faults).Read(spec, path, located, 0);
}

}  // namespace switchyard::spec
