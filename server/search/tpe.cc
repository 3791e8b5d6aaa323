#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <tuple>
#include <utility>

#include "server/search/sampler.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

constexpr uint64_t kDraws = 24;
constexpr uint64_t kGoodMax = 25;

struct Observation {
  Point point;
  CellEnd end;
};

// A density over points: a mixture with equal weights of one product kernel around each observation
// and the distribution of the space itself. Where an observation lacks a dimension, its kernel
// there is the space's own: this makes the mixture tree-structured.
class Mixture {
 public:
  Mixture(const Space& space, std::vector<const Point*> points)
      : space_(space), points_(std::move(points)) {
    const double n = static_cast<double>(points_.size());
    size_t free = 0;
    for (const Dimension& d : space.dimensions) free += d.fixed.has_value() ? 0 : 1;
    // Scott's rule on the unit interval; never so narrow that a kernel is a spike. Of the widths
    // tried on the objectives of search_bench (100 cells, 100 seeds), wider ones (0.1, 0.5) end
    // three times as far from the minimum of a bowl, narrower ones (0.05, 0.25) stay in the wrong
    // part of a curved valley.
    width_ = std::clamp(0.06 * std::pow(std::max(n, 1.0), -1.0 / (static_cast<double>(free) + 4)),
                        0.3 / std::min(100.0, 1 + n), 1.0);
    category_weight_ = 1.0 / (n + 1);
    kernels_.resize(points_.size() * space.dimensions.size());
    for (size_t k = 0; k < kernels_.size(); ++k) {
      const size_t i = k % space.dimensions.size();
      const std::optional<double>& centre = (*points_[k / space.dimensions.size()])[i];
      if (!centre.has_value() || !IsNumber(i)) continue;
      const double middle = ToUnit(space.dimensions[i], *centre);
      const double mass =
          NormalDistribution((1 - middle) / width_) - NormalDistribution(-middle / width_);
      kernels_[k] = {middle, -std::log(width_ * mass * std::sqrt(2 * std::numbers::pi))};
    }
  }

  Point Draw(RandomKey key) const {
    const uint64_t component = RandomBelow(key, 0, points_.size() + 1);
    const Point* centre = component < points_.size() ? points_[component] : nullptr;
    Point point(space_.dimensions.size());
    for (size_t i = 0; i < point.size(); ++i) {
      if (!space_.Exists(i, point)) continue;
      const Dimension& d = space_.dimensions[i];
      if (d.fixed.has_value()) {
        point[i] = *d.fixed;
        continue;
      }
      const double u = RandomUniform(key, 2 * i + 1);
      const bool has_centre = centre != nullptr && (*centre)[i].has_value();
      if (!has_centre) {
        point[i] = FromUnit(d, u);
      } else if (d.kind == DimensionKind::kCategorical) {
        // The observed one with weight 1, and each with `category_weight_`.
        const double all = 1 + category_weight_ * static_cast<double>(d.choices);
        point[i] = u * all < 1 ? *(*centre)[i] : FromUnit(d, RandomUniform(key, 2 * i + 2));
      } else {
        const double middle = ToUnit(d, *(*centre)[i]);
        const double low = NormalDistribution(-middle / width_);
        const double high = NormalDistribution((1 - middle) / width_);
        const double p = std::clamp(low + u * (high - low), 1e-300, 1 - 0x1.0p-53);
        point[i] = FromUnit(
            d, std::clamp(middle + width_ * NormalQuantile(p), 0.0, std::nextafter(1.0, 0.0)));
      }
    }
    return point;
  }

  double LogDensity(const Point& point) const {
    std::vector<double> unit(point.size());
    for (size_t i = 0; i < point.size(); ++i) {
      if (point[i].has_value() && IsNumber(i)) unit[i] = ToUnit(space_.dimensions[i], *point[i]);
    }
    std::vector<double> logs(points_.size() + 1);
    for (size_t i = 0; i < point.size(); ++i) {
      const Dimension& d = space_.dimensions[i];
      if (!point[i].has_value() || d.fixed.has_value()) continue;
      const double choices = static_cast<double>(d.choices);
      const double all = 1 + category_weight_ * choices;
      for (size_t c = 0; c < logs.size(); ++c) {
        const bool has_centre = c < points_.size() && (*points_[c])[i].has_value();
        if (!IsNumber(i)) {
          logs[c] += !has_centre                      ? -std::log(choices)
                     : *(*points_[c])[i] == *point[i] ? std::log((category_weight_ + 1) / all)
                                                      : std::log(category_weight_ / all);
        } else if (has_centre) {
          const Kernel& kernel = kernels_[c * point.size() + i];
          const double z = (unit[i] - kernel.middle) / width_;
          logs[c] += kernel.log_peak - 0.5 * z * z;
        }
      }
    }
    const double most = *std::ranges::max_element(logs);
    double total = 0;
    for (const double log : logs) total += std::exp(log - most);
    return most + std::log(total / static_cast<double>(logs.size()));
  }

 private:
  // A normal density cut to [0, 1].
  struct Kernel {
    double middle = 0;
    double log_peak = 0;
  };
  bool IsNumber(size_t i) const { return space_.dimensions[i].kind != DimensionKind::kCategorical; }

  const Space& space_;
  const std::vector<const Point*> points_;
  std::vector<Kernel> kernels_;  // by point and dimension
  double width_ = 0;
  double category_weight_ = 0;
};

// Tree-structured Parzen estimator (Bergstra et al., NIPS 2011) over all dimensions together: the
// next point is, of 24 drawn from the density of the good cells, the one with the largest ratio of
// that density to the density of the others. Cells that run count among the others, so that many
// can be proposed at once. The first `startup` are random.
class Tpe final : public Strategy {
 public:
  explicit Tpe(const StrategyInput& input)
      : settings_(*input.settings),
        space_(*input.space),
        allowed_(*input.allowed),
        key_(RandomKey::For(input.settings->seed, "search/tpe")),
        sampler_(input, false) {}

  void Propose(uint64_t limit, Actions* actions) override {
    for (uint64_t i = 0; i < limit && !is_exhausted(); ++i) {
      std::optional<Point> point;
      if (ended_.size() >= settings_.startup) point = Model();
      if (!point.has_value()) point = sampler_.Next();
      if (!point.has_value()) return;
      running_[++proposed_] = *point;
      actions->push_back({.kind = Action::Kind::kPropose,
                          .cell = proposed_,
                          .seeds = {},
                          .point = *std::move(point)});
    }
  }
  void Observe(uint64_t, uint64_t, double, Actions*) override {}
  void Finish(uint64_t cell, const CellEnd& end, Actions*) override {
    const auto running = running_.find(cell);
    if (running == running_.end()) return;
    ended_.push_back({std::move(running->second), end});
    running_.erase(running);
  }
  bool is_exhausted() const override { return proposed_ >= settings_.cells || sampler_.gave_up(); }
  bool gave_up() const override { return sampler_.gave_up(); }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(proposed_);
    sampler_.Save(writer);
    writer->Uint(ended_.size());
    for (const auto& [point, end] : ended_) {
      writer->Put(point);
      writer->Uint(static_cast<uint64_t>(end.kind));
      writer->Double(end.score);
      writer->Uint(end.step);
    }
    writer->Uint(running_.size());
    for (const auto& [cell, point] : running_) {
      writer->Uint(cell);
      writer->Put(point);
    }
  }
  void Load(SnapshotReader* reader) override {
    proposed_ = reader->Uint();
    sampler_.Load(reader);
    ended_.resize(reader->Size());
    for (auto& [point, end] : ended_) {
      point = reader->TakePoint();
      end.kind = static_cast<CellEnd::Kind>(reader->Uint());
      end.score = reader->Double();
      end.step = reader->Uint();
    }
    const size_t running = reader->Size();
    for (size_t i = 0; i < running; ++i) {
      const uint64_t cell = reader->Uint();
      running_[cell] = reader->TakePoint();
    }
  }

 private:
  // Empty when the model finds no point that meets the constraints.
  std::optional<Point> Model() const {
    // Finished ones by score; behind them stopped ones, those that came further first; then
    // failures.
    std::vector<const Observation*> order;
    for (const Observation& observation : ended_) order.push_back(&observation);
    std::ranges::stable_sort(order, [](const Observation* a, const Observation* b) {
      const auto key = [](const CellEnd& end) {
        const bool is_stopped = end.kind == CellEnd::Kind::kStopped && end.score < kWorstScore;
        const int group = end.score == kWorstScore ? 2 : is_stopped ? 1 : 0;
        return std::tuple(group, is_stopped ? ~end.step : 0, end.score);
      };
      return key(a->end) < key(b->end);
    });
    const auto usable =
        static_cast<uint64_t>(std::ranges::count_if(order, [](const Observation* observation) {
          return observation->end.score < kWorstScore;
        }));
    if (usable == 0) return std::nullopt;
    const uint64_t good_count =
        std::min({(static_cast<uint64_t>(order.size()) + 9) / 10, kGoodMax, usable});
    std::vector<const Point*> good;
    std::vector<const Point*> others;
    for (size_t i = 0; i < order.size(); ++i) {
      (i < good_count ? good : others).push_back(&order[i]->point);
    }
    for (const auto& [cell, point] : running_) others.push_back(&point);
    const Mixture good_density(space_, std::move(good));
    const Mixture other_density(space_, std::move(others));
    const RandomKey key = key_.With(proposed_);
    for (uint64_t draw = 0; draw < kRedrawsMax;) {
      std::optional<Point> best;
      double best_ratio = 0;
      for (uint64_t i = 0; i < kDraws; ++i) {
        Point point = good_density.Draw(key.With(draw++));
        if (!allowed_(point)) continue;
        const double ratio = good_density.LogDensity(point) - other_density.LogDensity(point);
        if (best.has_value() && ratio <= best_ratio) continue;
        best = std::move(point);
        best_ratio = ratio;
      }
      if (best.has_value()) return best;
    }
    return std::nullopt;
  }

  const Settings& settings_;
  const Space& space_;
  const Predicate& allowed_;
  const RandomKey key_;
  Sampler sampler_;
  uint64_t proposed_ = 0;
  std::vector<Observation> ended_;
  std::map<uint64_t, Point> running_;
};

}  // namespace

std::unique_ptr<Strategy> MakeTpe(const StrategyInput& input) {
  return std::make_unique<Tpe>(input);
}

}  // namespace switchyard::search
