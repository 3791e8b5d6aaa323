#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "server/search/sampler.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

// Chance of a hyper-parameter to be drawn anew instead of perturbed.
constexpr double kResample = 0.25;

enum class MemberState : uint8_t { kRunning = 1, kWaiting = 2, kEnded = 3 };

struct Member {
  uint64_t cell = 0;
  MemberState state = MemberState::kRunning;
  double score = kWorstScore;  // at the newest generation
  Point point;
};

// Population based training (Jaderberg et al., 2017) in generations of `every` steps: members pause
// at the end of a generation until the last one has come; then the worst `quantile` are stopped,
// each replaced by a continuation of one of the best `quantile` with perturbed hyper-parameters,
// and all others go on. A member that has ended counts as worst. Categories are copied, not
// perturbed: a checkpoint seldom fits another one.
class Pbt final : public Strategy {
 public:
  explicit Pbt(const StrategyInput& input)
      : settings_(*input.settings),
        space_(*input.space),
        allowed_(*input.allowed),
        key_(RandomKey::For(input.settings->seed, "search/pbt").With(input.population_seed)),
        sampler_(input, false, input.population_seed) {
    for (uint64_t step = settings_.every_steps; step < settings_.steps;
         step += settings_.every_steps) {
      const uint64_t end = EvaluationAt(step, settings_);
      if (end < settings_.steps && (ends_.empty() || end > ends_.back())) ends_.push_back(end);
    }
  }

  void Propose(uint64_t limit, Actions* actions) override {
    for (uint64_t i = 0; i < limit && members_.size() < size_; ++i) {
      std::optional<Point> point = sampler_.Next();
      if (!point.has_value()) {
        size_ = members_.size();
        EndGeneration(actions);
        return;
      }
      members_.push_back({.cell = ++cells_, .point = *point});
      actions->push_back({.kind = Action::Kind::kPropose,
                          .cell = cells_,
                          .seeds = {},
                          .point = *std::move(point),
                          .until_step = UntilStep()});
    }
  }

  void Observe(uint64_t cell, uint64_t step, double score, Actions* actions) override {
    Member* member = Find(cell);
    if (member == nullptr || member->state != MemberState::kRunning) return;
    if (generation_ >= ends_.size() || step < ends_[generation_]) return;
    member->state = MemberState::kWaiting;
    member->score = score;
    EndGeneration(actions);
  }

  void Finish(uint64_t cell, const CellEnd&, Actions* actions) override {
    Member* member = Find(cell);
    if (member == nullptr) return;
    member->state = MemberState::kEnded;
    member->score = kWorstScore;
    EndGeneration(actions);
  }

  bool is_exhausted() const override {
    return members_.size() == size_ &&
           (generation_ >= ends_.size() || std::ranges::all_of(members_, [](const Member& m) {
              return m.state == MemberState::kEnded;
            }));
  }
  bool gave_up() const override { return sampler_.gave_up(); }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(cells_);
    writer->Uint(size_);
    writer->Uint(generation_);
    writer->Uint(draws_);
    sampler_.Save(writer);
    writer->Uint(members_.size());
    for (const Member& member : members_) {
      writer->Uint(member.cell);
      writer->Uint(static_cast<uint64_t>(member.state));
      writer->Double(member.score);
      writer->Put(member.point);
    }
  }
  void Load(SnapshotReader* reader) override {
    cells_ = reader->Uint();
    size_ = reader->Uint();
    generation_ = reader->Uint();
    draws_ = reader->Uint();
    sampler_.Load(reader);
    members_.resize(reader->Size());
    for (Member& member : members_) {
      member.cell = reader->Uint();
      member.state = static_cast<MemberState>(reader->Uint());
      member.score = reader->Double();
      member.point = reader->TakePoint();
    }
  }

 private:
  uint64_t UntilStep() const { return generation_ < ends_.size() ? ends_[generation_] : 0; }

  Member* Find(uint64_t cell) {
    const auto found = std::ranges::find(members_, cell, &Member::cell);
    return found == members_.end() ? nullptr : &*found;
  }

  void EndGeneration(Actions* actions) {
    if (generation_ >= ends_.size() || members_.size() < size_) return;
    for (const Member& member : members_) {
      if (member.state == MemberState::kRunning) return;
    }
    std::vector<size_t> order(members_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](size_t i) { return members_[i].score; });
    const auto finite = static_cast<size_t>(
        std::ranges::count_if(members_, [](const Member& m) { return m.score < kWorstScore; }));
    const auto share = std::max<size_t>(
        static_cast<size_t>(static_cast<double>(members_.size()) * settings_.quantile), 1);
    const uint64_t step = ends_[generation_];
    ++generation_;
    if (finite == 0) {  // nobody to copy: what still lives ends
      for (Member& member : members_) {
        if (member.state != MemberState::kWaiting) continue;
        actions->push_back(
            {.kind = Action::Kind::kStop,
             .cell = member.cell,
             .seeds = {},
             .point = {},
             .reason = StrCat("no member of the population has a finite objective at "
                              "step ",
                              step)});
        member.state = MemberState::kEnded;
      }
      generation_ = ends_.size();
      return;
    }
    const size_t best = std::min(share, finite);
    const std::vector<Member> before = members_;
    for (size_t rank = 0; rank < order.size(); ++rank) {
      Member& member = members_[order[rank]];
      const bool is_replaced =
          rank >= best && (rank >= order.size() - share || member.score == kWorstScore);
      if (!is_replaced) {
        member.state = MemberState::kRunning;
        actions->push_back({.kind = Action::Kind::kResume,
                            .cell = member.cell,
                            .seeds = {},
                            .point = {},
                            .until_step = UntilStep(),
                            .reason = StrCat("generation ", generation_, " (step ", step,
                                             "): ", rank + 1, " of ", order.size())});
        continue;
      }
      const RandomKey key = key_.With(++draws_);
      const Member& parent = before[order[RandomBelow(key, 0, best)]];
      if (member.state == MemberState::kWaiting) {
        actions->push_back({.kind = Action::Kind::kStop,
                            .cell = member.cell,
                            .seeds = {},
                            .point = {},
                            .reason = StrCat("generation ", generation_, " (step ", step,
                                             "): ", rank + 1, " of ", order.size(), ", replaced")});
      }
      member = {.cell = ++cells_, .point = Explore(parent.point, key)};
      actions->push_back({.kind = Action::Kind::kPropose,
                          .cell = member.cell,
                          .seeds = {},
                          .point = member.point,
                          .until_step = UntilStep(),
                          .parent = parent.cell,
                          .parent_step = step,
                          .reason = StrCat("generation ", generation_, " (step ", step,
                                           "): continues one of the best ", best)});
    }
  }

  // The parent's point with each number drawn anew or multiplied by `perturb` or its inverse.
  Point Explore(const Point& parent, RandomKey key) const {
    for (uint64_t attempt = 1; attempt <= kRedrawsMax; ++attempt) {
      const RandomKey own = key.With(attempt);
      Point point = parent;
      for (size_t i = 0; i < point.size(); ++i) {
        const Dimension& d = space_.dimensions[i];
        if (!point[i].has_value() || d.kind == DimensionKind::kCategorical) continue;
        const RandomKey coin = own.With(d.name);
        if (RandomUniform(coin, 0) < kResample) {
          point[i] = FromUnit(d, RandomUniform(coin, 1));
        } else {
          const double factor =
              RandomUniform(coin, 2) < 0.5 ? settings_.perturb : 1 / settings_.perturb;
          point[i] = Nearest(d, *point[i] * factor);
        }
      }
      if (allowed_(point)) return point;
    }
    return parent;
  }

  const Settings& settings_;
  const Space& space_;
  const Predicate& allowed_;
  const RandomKey key_;
  Sampler sampler_;
  std::vector<uint64_t> ends_;  // steps at which generations end
  uint64_t size_ = settings_.population;
  uint64_t cells_ = 0;
  uint64_t generation_ = 0;
  uint64_t draws_ = 0;
  std::vector<Member> members_;
};

}  // namespace

std::unique_ptr<Strategy> MakePbt(const StrategyInput& input) {
  return std::make_unique<Pbt>(input);
}

}  // namespace switchyard::search
