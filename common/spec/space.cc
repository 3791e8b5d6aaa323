#include "common/spec/space.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard::spec {
namespace {

// Cells of one axis.
std::optional<uint64_t> CountOf(const Axis& axis) {
  if (axis.is_distribution()) return 1;
  if (axis.kind != AxisKind::kChoice) return axis.option_count();
  uint64_t sum = 0;
  for (const Alternative& alternative : axis.alternatives) {
    const std::optional<uint64_t> inner = CountCells(alternative.space);
    if (!inner || __builtin_add_overflow(sum, *inner, &sum)) return std::nullopt;
  }
  return sum;
}

uint64_t KnownCount(const std::optional<uint64_t>& count) {
  SWITCHYARD_CHECK(count.has_value()) << "spaces are counted before they are expanded";
  return *count;
}

void AppendPoint(const Space& space, uint64_t index, Point* point) {
  // Digits of `index` in the mixed base of the axes, the last axis lowest.
  std::vector<uint64_t> digits(space.axes.size());
  for (size_t i = space.axes.size(); i-- > 0;) {
    const uint64_t count = KnownCount(CountOf(space.axes[i]));
    digits[i] = index % count;
    index /= count;
  }
  for (size_t i = 0; i < space.axes.size(); ++i) {
    const Axis& axis = space.axes[i];
    if (axis.kind != AxisKind::kChoice) {
      point->push_back({.axis = &axis, .option = digits[i]});
      continue;
    }
    uint64_t rest = digits[i];
    for (size_t k = 0; k < axis.alternatives.size(); ++k) {
      const Space& inner = axis.alternatives[k].space;
      const uint64_t count = KnownCount(CountCells(inner));
      if (rest < count) {
        point->push_back({.axis = &axis, .option = k});
        AppendPoint(inner, rest, point);
        break;
      }
      rest -= count;
    }
  }
}

struct Place {
  const Axis* axis = nullptr;
  int parent = -1;
  size_t parent_value = 0;
};

void AppendPlaces(const Space& space, int parent, size_t parent_value, std::vector<Place>* out) {
  for (const Axis& axis : space.axes) {
    const int self = static_cast<int>(out->size());
    out->push_back({.axis = &axis, .parent = parent, .parent_value = parent_value});
    for (size_t k = 0; k < axis.alternatives.size(); ++k) {
      AppendPlaces(axis.alternatives[k].space, self, k, out);
    }
  }
}

std::vector<Place> PlacesOf(const Space& space) {
  std::vector<Place> places;
  AppendPlaces(space, -1, 0, &places);
  return places;
}

Result<double> DrawnNumber(const Axis& axis, double number) {
  const auto refuse = [&] {
    return InvalidArgument(StrCat(axis.name, ": ", FormatDouble(number), " is outside of ",
                                  FormatDouble(axis.low), " to ", FormatDouble(axis.high)));
  };
  if (!std::isfinite(number)) return refuse();
  if (axis.kind == AxisKind::kNormal) {
    return RoundDrawn(number, -std::numeric_limits<double>::infinity(),
                      std::numeric_limits<double>::infinity());
  }
  const bool is_integer = axis.kind == AxisKind::kInt;
  if (number < axis.low || (is_integer ? number > axis.high : number >= axis.high)) return refuse();
  if (axis.step) {
    const double steps = std::round((number - axis.low) / *axis.step);
    double snapped = axis.low + steps * *axis.step;
    // The last whole step may lie beyond the bound.
    if (is_integer ? snapped > axis.high : snapped >= axis.high) snapped -= *axis.step;
    number = snapped;
  }
  return is_integer ? std::round(number) : RoundDrawn(number, axis.low, axis.high);
}

void AppendPaths(const Space& space, std::vector<std::string>* out) {
  for (const Axis& axis : space.axes) {
    for (const AxisPath& path : axis.paths) out->push_back(path.path);
    for (const Alternative& alternative : axis.alternatives) {
      for (const PathValue& set : alternative.set) out->push_back(set.path);
      if (alternative.match) out->push_back(alternative.match->vary);
      AppendPaths(alternative.space, out);
    }
  }
}

}  // namespace

size_t Axis::option_count() const {
  if (kind == AxisKind::kChoice) return alternatives.size();
  return paths.empty() ? 0 : paths.front().values.size();
}

std::string Axis::OptionText(size_t option) const {
  if (kind == AxisKind::kChoice) return alternatives[option].name;
  if (kind == AxisKind::kGrid) return NodeText(paths.front().values[option]);
  std::vector<std::string> parts;
  for (const AxisPath& path : paths) parts.push_back(NodeText(path.values[option]));
  return StrCat("[", StrJoin(parts, ", "), "]");
}

bool Space::has_distribution() const {
  return std::ranges::any_of(axes, [](const Axis& axis) {
    return axis.is_distribution() ||
           std::ranges::any_of(axis.alternatives, [](const Alternative& alternative) {
             return alternative.space.has_distribution();
           });
  });
}

std::optional<uint64_t> CountCells(const Space& space) {
  uint64_t product = 1;
  for (const Axis& axis : space.axes) {
    const std::optional<uint64_t> count = CountOf(axis);
    if (!count || __builtin_mul_overflow(product, *count, &product)) return std::nullopt;
  }
  if (product > (uint64_t{1} << 63)) return std::nullopt;
  return product;
}

Point PointAt(const Space& space, uint64_t index) {
  Point point;
  AppendPoint(space, index, &point);
  return point;
}

std::vector<Dimension> Dimensions(const Space& space) {
  std::vector<Dimension> out;
  for (const Place& place : PlacesOf(space)) {
    const Axis& axis = *place.axis;
    Dimension dimension{.name = axis.name,
                        .low = axis.low,
                        .high = axis.high,
                        .step = axis.step,
                        .is_log = axis.is_log,
                        .parent = place.parent,
                        .parent_value = place.parent_value};
    if (axis.kind == AxisKind::kInt) {
      dimension.kind = Dimension::Kind::kInteger;
    } else if (axis.kind == AxisKind::kNormal) {
      dimension.kind = Dimension::Kind::kNormal;
    } else if (axis.is_distribution()) {
      dimension.kind = Dimension::Kind::kReal;
    } else {
      for (size_t k = 0; k < axis.option_count(); ++k) {
        dimension.values.push_back(axis.OptionText(k));
      }
    }
    out.push_back(std::move(dimension));
  }
  return out;
}

Result<Point> PointFrom(const Space& space, const std::vector<Draw>& draws) {
  const std::vector<Place> places = PlacesOf(space);
  std::vector<const Draw*> by_dimension(places.size(), nullptr);
  for (const Draw& draw : draws) {
    if (draw.dimension >= places.size()) {
      return InvalidArgument(
          StrCat("there is no dimension ", draw.dimension, " of ", places.size()));
    }
    if (by_dimension[draw.dimension] != nullptr) {
      return InvalidArgument(StrCat(places[draw.dimension].axis->name, " is given twice"));
    }
    by_dimension[draw.dimension] = &draw;
  }
  Point point;
  std::vector<bool> exists(places.size(), false);
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const auto parent = static_cast<size_t>(place.parent);
    exists[i] =
        place.parent < 0 || (exists[parent] && by_dimension[parent]->value == place.parent_value);
    const Draw* draw = by_dimension[i];
    if (exists[i] != (draw != nullptr)) {
      return InvalidArgument(StrCat(
          place.axis->name, draw == nullptr ? " is missing" : " does not exist under the others"));
    }
    if (draw == nullptr) continue;
    Coordinate coordinate{.axis = place.axis};
    if (place.axis->is_distribution()) {
      SWITCHYARD_ASSIGN_OR_RETURN(coordinate.number, DrawnNumber(*place.axis, draw->number));
    } else if (draw->value >= place.axis->option_count()) {
      return InvalidArgument(StrCat(place.axis->name, ": there is no value ", draw->value, " of ",
                                    place.axis->option_count()));
    } else {
      coordinate.option = draw->value;
    }
    point.push_back(coordinate);
  }
  return point;
}

double RoundDrawn(double value, double low, double high) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  const std::optional<double> rounded = ParseDouble(text);
  const bool is_inside = rounded && *rounded >= low && *rounded < high;
  return is_inside ? *rounded : value;
}

bool IsAtOrBelow(std::string_view path, std::string_view ancestor) {
  return path.starts_with(ancestor) &&
         (path.size() == ancestor.size() || path[ancestor.size()] == '.');
}

bool PathsOverlap(std::string_view left, std::string_view right) {
  static constexpr std::string_view kLengths[] = {"train.steps", "train.tokens",
                                                  "train.data_epochs", "train.active_flops"};
  if (std::ranges::find(kLengths, left) != std::end(kLengths) &&
      std::ranges::find(kLengths, right) != std::end(kLengths)) {
    return true;
  }
  return IsAtOrBelow(left, right) || IsAtOrBelow(right, left);
}

std::vector<std::string> PathsOf(const Space& space) {
  std::vector<std::string> paths;
  AppendPaths(space, &paths);
  return paths;
}

std::vector<const Axis*> AllAxes(const Space& space) {
  std::vector<const Axis*> axes;
  for (const Place& place : PlacesOf(space)) axes.push_back(place.axis);
  return axes;
}

}  // namespace switchyard::spec
