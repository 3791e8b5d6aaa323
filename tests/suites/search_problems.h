#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "server/search/space.h"

// Synthetic objectives, all with minimum 0, that strategies are measured on; tests/bench/peers has
// the same ones for other libraries.
namespace switchyard::search {

using Objective = double (*)(const Point&);

inline double Sphere(const Point& x) {
  double sum = 0;
  for (const auto& value : x) sum += (*value - 0.3) * (*value - 0.3);
  return sum;
}
// Banana-shaped valley, minimum 0 at (1, 1).
inline double Rosenbrock(const Point& x) {
  const double a = 1 - *x[0];
  const double b = *x[1] - *x[0] * *x[0];
  return a * a + 100 * b * b;
}
// Three equal minima, 0.397887.
inline double Branin(const Point& x) {
  const double a = *x[1] - 5.1 / (4 * std::numbers::pi * std::numbers::pi) * *x[0] * *x[0] +
                   5 / std::numbers::pi * *x[0] - 6;
  return a * a + 10 * (1 - 1 / (8 * std::numbers::pi)) * std::cos(*x[0]) + 10 - 0.397887357729739;
}
// A learning rate, a categorical choice, and a rank under one of its alternatives.
inline double Tuning(const Point& x) {
  const double lr = std::log10(*x[1]) + 3.2;
  return 0.3 * lr * lr + (*x[0] == 1 ? 0.02 * std::abs(*x[2] - 11) : 0.4 + 0.2 * *x[0]);
}

struct SearchProblem {
  const char* name;
  Space space;
  Objective objective;
};

inline std::vector<SearchProblem> SearchProblems() {
  const auto real = [](std::string name, double low, double high) {
    return Dimension{.name = std::move(name), .low = low, .high = high};
  };
  Space sphere;
  for (int i = 0; i < 4; ++i) sphere.dimensions.push_back(real("x" + std::to_string(i), -1, 1));
  Space tuning{{{.name = "kind", .kind = DimensionKind::kCategorical, .choices = 4},
                real("lr", 1e-5, 1e-1),
                {.name = "rank",
                 .kind = DimensionKind::kInt,
                 .low = 2,
                 .high = 64,
                 .condition = Dimension::Condition{0, 1}}}};
  tuning.dimensions[1].is_log = true;
  return {{"sphere", sphere, Sphere},
          {"rosenbrock", {{real("x", -2, 2), real("y", -1, 3)}}, Rosenbrock},
          {"branin", {{real("x", -5, 10), real("y", 0, 15)}}, Branin},
          {"tuning", tuning, Tuning}};
}

}  // namespace switchyard::search
