#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/search/preview.h"
#include "server/search/search.h"

// Spaces, settings and objectives that the tests of the strategies share.
namespace switchyard::search {

inline Dimension Categorical(std::string name, uint64_t choices) {
  return {.name = std::move(name), .kind = DimensionKind::kCategorical, .choices = choices};
}
inline Dimension Real(std::string name, double low, double high) {
  return {.name = std::move(name), .kind = DimensionKind::kReal, .low = low, .high = high};
}
inline Dimension Log(std::string name, double low, double high) {
  Dimension d = Real(std::move(name), low, high);
  d.is_log = true;
  return d;
}
inline Dimension Int(std::string name, double low, double high) {
  Dimension d = Real(std::move(name), low, high);
  d.kind = DimensionKind::kInt;
  return d;
}
inline Dimension Under(Dimension d, size_t dimension, uint64_t alternative) {
  d.condition = Dimension::Condition{dimension, alternative};
  return d;
}

// One dimension of each kind, one of them under an alternative.
inline Space MixedSpace() {
  return {{Categorical("router", 3),
           Log("lr", 1e-4, 1e-1),
           Under(Int("rank", 4, 32), 0, 2),
           Real("dropout", 0, 0.5),
           {.name = "scale", .kind = DimensionKind::kNormal, .mean = 1, .sd = 0.25}}};
}

inline bool Anything(const Point&) { return true; }

inline std::unique_ptr<Search> MakeSearch(const Settings& settings, const Space& space,
                                          Predicate allowed = Anything) {
  return *Search::Make(settings, space, std::move(allowed));
}

// Settings of each method for a run of 81 steps with an evaluation at each third one.
inline Settings SettingsOf(Method method, AshaRule rule = AshaRule::kStop) {
  return {.method = method,
          .seed = 7,
          .cells = 40,
          .startup = 8,
          .min_steps = 3,
          .eta = 3,
          .rule = rule,
          .population = 8,
          .every_steps = 12,
          .steps = 81,
          .eval_steps = 3};
}

// A learning curve of MixedSpace that falls towards a floor set by the hyper-parameters. Seeds
// shift it a little; the rank shows only late.
inline double MixedCurve(const std::vector<Segment>& history, uint64_t seed, uint64_t step) {
  const Point& point = history.back().point;
  const double lr = std::log10(*point[1]) + 2.5;
  const double floor = 1 + 0.2 * *point[0] + 0.5 * lr * lr + *point[3] + std::abs(*point[4] - 1) +
                       (point[2].has_value() ? std::abs(*point[2] - 16) / 16 - 0.7 : 0.0);
  return floor + 4 / std::sqrt(static_cast<double>(step)) +
         0.01 * std::sin(static_cast<double>(seed * 31 + step));
}

// Gives the answers of `search` to the same calls.
inline Actions Feed(Search* search, const PreviewEvent& event) {
  switch (event.kind) {
    case PreviewEvent::Kind::kPropose:
      return search->Propose(event.limit);
    case PreviewEvent::Kind::kObserve:
      return search->Observe(event.cell, event.seed, event.step, event.value);
    case PreviewEvent::Kind::kFinish:
      return search->Finish(event.cell, event.seed, event.end);
  }
  return {};
}

inline std::vector<Action> ProposalsOf(const PreviewResult& result) {
  std::vector<Action> proposals;
  for (const PreviewEvent& event : result.events) {
    for (const Action& action : event.actions) {
      if (action.kind == Action::Kind::kPropose) proposals.push_back(action);
    }
  }
  return proposals;
}

}  // namespace switchyard::search
