#include "server/search/space.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

#include "common/base/strings.h"

namespace switchyard::search {
namespace {

double SixDigits(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::scientific, 5);
  double rounded = value;
  std::from_chars(text.data(), end.ptr, rounded);
  return rounded;
}

bool IsStepped(const Dimension& d) { return d.kind == DimensionKind::kInt || d.step > 0; }
double StepOf(const Dimension& d) { return d.step > 0 ? d.step : 1.0; }

// The interval that values are spread over: each stepped value owns half a step on either side.
struct Bounds {
  double low;
  double high;
};
Bounds BoundsOf(const Dimension& d) {
  if (!IsStepped(d)) return {d.low, d.high};
  const double half = StepOf(d) / 2;
  const double last = ValueAt(d, ValueCount(d) - 1);
  return {d.is_log ? std::max(d.low - half, d.low / 2) : d.low - half, last + half};
}

std::string Described(const Dimension& d) { return StrCat("dimension ", d.name); }

}  // namespace

double NormalDistribution(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double NormalQuantile(double p) {
  // Bisection: monotone, exact to the last bits, and as fast as a draw has to be.
  double low = -39;
  double high = 39;
  for (int i = 0; i < 80 && high - low > 0; ++i) {
    const double middle = 0.5 * (low + high);
    (NormalDistribution(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

uint64_t ValueCount(const Dimension& d) {
  if (d.kind == DimensionKind::kCategorical) return d.choices;
  if (d.kind == DimensionKind::kNormal || !IsStepped(d)) return 0;
  const double steps = (d.high - d.low) / StepOf(d);
  // A quotient like 2.9999999999999996 is a whole one.
  const double whole = std::floor(steps + 1e-9);
  const bool ends_open = d.kind == DimensionKind::kReal && std::abs(steps - whole) < 1e-9;
  return static_cast<uint64_t>(whole) + (ends_open ? 0 : 1);
}

double ValueAt(const Dimension& d, uint64_t index) {
  if (d.kind == DimensionKind::kCategorical) return static_cast<double>(index);
  const double value = d.low + StepOf(d) * static_cast<double>(index);
  return d.kind == DimensionKind::kReal ? SixDigits(value) : value;
}

double FromUnit(const Dimension& d, double unit) {
  if (d.kind == DimensionKind::kCategorical) {
    return std::min(std::floor(unit * static_cast<double>(d.choices)),
                    static_cast<double>(d.choices - 1));
  }
  if (d.kind == DimensionKind::kNormal) {
    // A unit of 0 has no quantile.
    return SixDigits(d.mean + d.sd * NormalQuantile(std::max(unit, 0x1.0p-54)));
  }
  const auto [low, high] = BoundsOf(d);
  const double value = d.is_log ? std::exp(std::log(low) + unit * (std::log(high) - std::log(low)))
                                : low + unit * (high - low);
  return Nearest(d, value);
}

double ToUnit(const Dimension& d, double value) {
  if (d.kind == DimensionKind::kNormal) return NormalDistribution((value - d.mean) / d.sd);
  const auto [low, high] = BoundsOf(d);
  const double unit = d.is_log
                          ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low))
                          : (value - low) / (high - low);
  return std::clamp(unit, 0.0, std::nextafter(1.0, 0.0));
}

double Nearest(const Dimension& d, double value) {
  switch (d.kind) {
    case DimensionKind::kCategorical:
      return std::clamp(std::round(value), 0.0, static_cast<double>(d.choices - 1));
    case DimensionKind::kNormal:
      return SixDigits(value);
    default:
      break;
  }
  if (IsStepped(d)) {
    const double last = static_cast<double>(ValueCount(d) - 1);
    const double index = std::clamp(std::round((value - d.low) / StepOf(d)), 0.0, last);
    return ValueAt(d, static_cast<uint64_t>(index));
  }
  const double rounded = SixDigits(value);
  if (rounded < d.low) return d.low;
  if (rounded < d.high) return rounded;
  // Rounding up, or clamping, must not reach the open end: step back by one unit of the sixth
  // digit.
  const double back = std::pow(10.0, std::floor(std::log10(std::abs(d.high))) - 5);
  const double below = SixDigits(d.high - (d.high == 0 ? (d.high - d.low) * 1e-6 : back));
  return below >= d.low && below < d.high ? below : d.low;
}

Status Space::Check() const {
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const Dimension& d = dimensions[i];
    for (size_t j = 0; j < i; ++j) {
      // Two alternatives may each have one of the same name.
      const bool can_meet = !d.condition.has_value() || !dimensions[j].condition.has_value() ||
                            *d.condition == *dimensions[j].condition;
      if (dimensions[j].name == d.name && can_meet) {
        return InvalidArgument(StrCat(Described(d), " is given twice; names are unique"));
      }
    }
    if (d.condition.has_value()) {
      const Dimension::Condition& c = *d.condition;
      if (c.dimension >= i || dimensions[c.dimension].kind != DimensionKind::kCategorical) {
        return InvalidArgument(StrCat(Described(d), " depends on number ", c.dimension,
                                      "; it can depend on an earlier categorical dimension only"));
      }
      if (c.alternative >= dimensions[c.dimension].choices) {
        return InvalidArgument(StrCat(Described(d), " depends on alternative ", c.alternative,
                                      " of ", dimensions[c.dimension].name, ", which has ",
                                      dimensions[c.dimension].choices));
      }
    }
    switch (d.kind) {
      case DimensionKind::kCategorical:
        if (d.choices == 0) return InvalidArgument(StrCat(Described(d), " has no value"));
        break;
      case DimensionKind::kNormal:
        if (!std::isfinite(d.mean) || !std::isfinite(d.sd) || d.sd <= 0) {
          return InvalidArgument(StrCat(Described(d), ": mean ", d.mean, ", sd ", d.sd,
                                        "; wanted are a finite mean and an sd above 0"));
        }
        break;
      case DimensionKind::kReal:
      case DimensionKind::kInt: {
        const bool is_int = d.kind == DimensionKind::kInt;
        if (!std::isfinite(d.low) || !std::isfinite(d.high) ||
            (is_int ? d.low > d.high : d.low >= d.high)) {
          return InvalidArgument(
              StrCat(Described(d), ": low ", d.low, ", high ", d.high, "; low must be below high"));
        }
        if (is_int && (d.low != std::floor(d.low) || d.high != std::floor(d.high) ||
                       d.step != std::floor(d.step) || std::abs(d.low) > 0x1.0p53 ||
                       std::abs(d.high) > 0x1.0p53)) {
          return InvalidArgument(StrCat(Described(d), ": low ", d.low, ", high ", d.high, ", step ",
                                        d.step, "; an int takes whole numbers up to 2^53"));
        }
        if (d.is_log && d.low <= 0) {
          return InvalidArgument(
              StrCat(Described(d), ": low ", d.low, "; a logarithmic one begins above 0"));
        }
        if (!std::isfinite(d.step) || d.step < 0 ||
            (d.step > 0 && (d.high - d.low) / d.step > 1e15)) {
          return InvalidArgument(
              StrCat(Described(d), ": step ", d.step, "; 0 for none, or a part of high - low"));
        }
        break;
      }
    }
  }
  return OkStatus();
}

bool Space::Exists(size_t dimension, const Point& point) const {
  const auto& condition = dimensions[dimension].condition;
  if (!condition.has_value()) return true;
  const std::optional<double>& value = point[condition->dimension];
  return value.has_value() && *value == static_cast<double>(condition->alternative);
}

Status Space::CheckPoint(const Point& point) const {
  if (point.size() != dimensions.size()) {
    return InvalidArgument(StrCat("the point has ", point.size(), " values; the space has ",
                                  dimensions.size(), " dimensions"));
  }
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const Dimension& d = dimensions[i];
    if (Exists(i, point) != point[i].has_value()) {
      return InvalidArgument(StrCat(Described(d), point[i].has_value()
                                                      ? " has a value but does not exist here"
                                                      : " exists here and has no value"));
    }
    if (!point[i].has_value()) continue;
    const double value = *point[i];
    bool fits = std::isfinite(value);
    if (fits && d.fixed.has_value()) fits = value == *d.fixed;
    if (fits && d.kind == DimensionKind::kReal) fits = value >= d.low && value < d.high;
    if (fits && d.kind == DimensionKind::kInt) fits = value >= d.low && value <= d.high;
    if (fits && d.kind == DimensionKind::kCategorical) {
      fits = value >= 0 && value < static_cast<double>(d.choices);
    }
    if (fits && ValueCount(d) > 0) {
      const double nearest = Nearest(d, value);
      fits = std::abs(nearest - value) <= 1e-9 * std::max(1.0, std::abs(value));
    }
    if (!fits) {
      return InvalidArgument(
          StrCat(Described(d), ": ", FormatDouble(value), " is none of its values",
                 d.kind == DimensionKind::kReal || d.kind == DimensionKind::kInt
                     ? StrCat(" from ", d.low, " to ", d.high,
                              d.step > 0 ? StrCat(" in steps of ", d.step) : std::string())
                     : std::string()));
    }
  }
  return OkStatus();
}

Point Space::At(const std::function<double(size_t)>& unit) const {
  Point point(dimensions.size());
  for (size_t i = 0; i < dimensions.size(); ++i) {
    if (!Exists(i, point)) continue;
    const Dimension& d = dimensions[i];
    point[i] = d.fixed.has_value() ? *d.fixed : FromUnit(d, unit(i));
  }
  return point;
}

}  // namespace switchyard::search
