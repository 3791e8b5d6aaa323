#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tests/unit/server/search/worlds.h"

// What holds for every strategy, whatever it is.
namespace switchyard::search {
namespace {

struct Case {
  std::string name;
  Settings settings;
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"random", SettingsOf(Method::kRandom)},
      {"sobol", SettingsOf(Method::kSobol)},
      {"tpe", SettingsOf(Method::kTpe)},
      {"asha_stop", SettingsOf(Method::kAsha)},
      {"asha_promote", SettingsOf(Method::kAsha, AshaRule::kPromote)},
      {"hyperband", SettingsOf(Method::kHyperband)},
      {"pbt", SettingsOf(Method::kPbt)},
  };
  const size_t plain = cases.size();
  for (size_t i = 0; i < 3; ++i) {
    cases.push_back({cases[i].name + "_median_stop", cases[i].settings});
    cases.back().settings.grace_steps = 12;
  }
  for (size_t i = 0; i < plain; ++i) {
    cases.push_back({cases[i].name + "_per_router_3_seeds", cases[i].settings});
    cases.back().settings.per = {"router"};
    cases.back().settings.seeds = {1, 2, 5};
    cases.back().settings.cells = 12;
  }
  cases.push_back({"grid", SettingsOf(Method::kGrid)});
  return cases;
}

Space SpaceOf(const Settings& settings) {
  if (settings.method != Method::kGrid) return MixedSpace();
  Dimension lr = Log("lr", 0.001, 0.1);
  lr.step = 0.02;
  Dimension dropout = Real("dropout", 0, 0.5);
  dropout.step = 0.25;
  Dimension scale = Real("scale", 0.5, 1.5);
  scale.step = 0.5;
  return {{Categorical("router", 3), lr, Under(Int("rank", 15, 17), 0, 2), dropout, scale}};
}

class EveryStrategy : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Search> Make() {
    return MakeSearch(GetParam().settings, SpaceOf(GetParam().settings));
  }
};

TEST_P(EveryStrategy, SubmittedTwiceWithOneSeedDoesTheSame) {
  const auto first = Make();
  const auto second = Make();
  const PreviewResult a = Preview(first.get(), 4, MixedCurve);
  const PreviewResult b = Preview(second.get(), 4, MixedCurve);
  ASSERT_EQ(a.events.size(), b.events.size());
  for (size_t i = 0; i < a.events.size(); ++i) ASSERT_EQ(a.events[i].actions, b.events[i].actions);
  EXPECT_EQ(first->Snapshot(), second->Snapshot());
}

// A coordinator that is killed anywhere and comes back with what it had stored decides like one
// that was never killed.
TEST_P(EveryStrategy, KilledAnywhereAndRestoredEqualsTheUninterrupted) {
  const auto whole = Make();
  const PreviewResult expected = Preview(whole.get(), 5, MixedCurve);
  auto running = Make();
  for (size_t i = 0; i < expected.events.size(); ++i) {
    const std::string stored = running->Snapshot();
    auto restored = Make();
    ASSERT_TRUE(restored->Restore(stored).ok());
    ASSERT_EQ(restored->Snapshot(), stored) << "event " << i;
    ASSERT_EQ(Feed(restored.get(), expected.events[i]), expected.events[i].actions)
        << "event " << i;
    running = std::move(restored);
  }
  EXPECT_EQ(running->Snapshot(), whole->Snapshot());
}

TEST_P(EveryStrategy, ReportsThatComeAgainChangeNothing) {
  const auto search = Make();
  const PreviewResult expected = Preview(search.get(), 5, MixedCurve);
  const auto again = Make();
  for (const PreviewEvent& event : expected.events) {
    ASSERT_EQ(Feed(again.get(), event), event.actions);
    if (event.kind == PreviewEvent::Kind::kPropose) continue;
    const std::string before = again->Snapshot();
    EXPECT_TRUE(Feed(again.get(), event).empty());
    EXPECT_EQ(again->Snapshot(), before);
  }
}

TEST_P(EveryStrategy, EndsWithEveryCellEnded) {
  for (const uint64_t slots : {1, 3, 50}) {
    const auto search = Make();
    const PreviewResult result = Preview(search.get(), slots, MixedCurve);
    EXPECT_TRUE(search->is_exhausted());
    EXPECT_FALSE(search->has_open_cells());
    EXPECT_GT(result.runs_completed, 0U);
    for (const Action& proposal : ProposalsOf(result)) {
      EXPECT_TRUE(search->space().CheckPoint(proposal.point).ok());
    }
  }
}

// ME2: a NaN report stalls the search.
TEST_P(EveryStrategy, NotANumberRanksWorstAndNeverBlocks) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    for (const bool is_guarded : {false, true}) {
      const auto search = Make();
      const PreviewResult result = Preview(
          search.get(), 3,
          [bad](const std::vector<Segment>& history, uint64_t seed, uint64_t step) {
            const bool diverges = *history.back().point[1] > 0.02 && step >= 3;
            return diverges ? bad : MixedCurve(history, seed, step);
          },
          is_guarded);
      EXPECT_TRUE(search->is_exhausted());
      EXPECT_FALSE(search->has_open_cells());
      ASSERT_NE(result.best_cell, 0U);
      EXPECT_LE(*result.best_point[1], 0.02);
    }
  }
}

TEST_P(EveryStrategy, EndsWhenEveryReportIsNotANumber) {
  for (const bool is_guarded : {false, true}) {
    const auto search = Make();
    Preview(
        search.get(), 3,
        [](const std::vector<Segment>&, uint64_t, uint64_t) {
          return std::numeric_limits<double>::quiet_NaN();
        },
        is_guarded);
    EXPECT_TRUE(search->is_exhausted());
    EXPECT_FALSE(search->has_open_cells());
  }
}

// Runs that vanish (cancelled, quarantined) leave no cell waiting for their reports.
TEST_P(EveryStrategy, LostRunsDoNotBlock) {
  const auto search = Make();
  std::vector<std::pair<uint64_t, uint64_t>> open;
  const auto carry = [&](Actions todo) {
    for (size_t i = 0; i < todo.size(); ++i) {
      const Action action = todo[i];
      if (action.kind == Action::Kind::kPropose) {
        for (const uint64_t seed : action.seeds) open.emplace_back(action.cell, seed);
      } else if (action.kind == Action::Kind::kStop) {
        const auto before = open;
        std::erase_if(open, [&](const auto& run) { return run.first == action.cell; });
        for (const auto& [cell, seed] : before) {
          if (cell != action.cell) continue;
          const Actions more = search->Finish(cell, seed, {.kind = RunEnd::Kind::kStopped});
          todo.insert(todo.end(), more.begin(), more.end());
        }
      }
    }
  };
  uint64_t reports = 0;
  for (int round = 0; round < 10000 && (!search->is_exhausted() || !open.empty()); ++round) {
    carry(search->Propose(2));
    if (open.empty()) continue;
    const auto [cell, seed] = open.front();
    open.erase(open.begin());
    carry(search->Observe(cell, seed, 3, static_cast<double>(++reports)));
    carry(search->Finish(cell, seed, {.kind = RunEnd::Kind::kLost}));
  }
  EXPECT_TRUE(search->is_exhausted());
  EXPECT_FALSE(search->has_open_cells());
}

TEST_P(EveryStrategy, ProposesNoMoreThanThereIsRoomFor) {
  const auto search = Make();
  const PreviewResult result = Preview(search.get(), 6, MixedCurve);
  for (const PreviewEvent& event : result.events) {
    if (event.kind != PreviewEvent::Kind::kPropose) continue;
    const auto taken = std::ranges::count_if(event.actions, [](const Action& action) {
      return action.kind == Action::Kind::kPropose || action.kind == Action::Kind::kResume;
    });
    EXPECT_LE(static_cast<uint64_t>(taken), event.limit);
  }
  EXPECT_TRUE(Make()->Propose(0).empty());
}

TEST_P(EveryStrategy, KeepsToTheConstraints) {
  const auto search = MakeSearch(GetParam().settings, SpaceOf(GetParam().settings),
                                 [](const Point& point) { return *point[3] < 0.3; });
  const PreviewResult result = Preview(search.get(), 4, MixedCurve);
  ASSERT_FALSE(ProposalsOf(result).empty());
  for (const Action& proposal : ProposalsOf(result)) EXPECT_LT(*proposal.point[3], 0.3);
}

TEST_P(EveryStrategy, GivesUpWhenNoPointMeetsTheConstraints) {
  const auto search = MakeSearch(GetParam().settings, SpaceOf(GetParam().settings),
                                 [](const Point&) { return false; });
  EXPECT_TRUE(Preview(search.get(), 4, MixedCurve).events.size() <= 1);
  EXPECT_TRUE(search->is_exhausted());
  EXPECT_EQ(search->gave_up(), GetParam().settings.method != Method::kGrid);
}

TEST_P(EveryStrategy, MaximizingIsMinimizingTheNegative) {
  const auto down = Make();
  Settings settings = GetParam().settings;
  settings.is_maximized = true;
  const auto up = MakeSearch(settings, SpaceOf(settings));
  const PreviewResult a = Preview(down.get(), 4, MixedCurve);
  const PreviewResult b =
      Preview(up.get(), 4, [](const std::vector<Segment>& history, uint64_t seed, uint64_t step) {
        return -MixedCurve(history, seed, step);
      });
  EXPECT_EQ(ProposalsOf(a), ProposalsOf(b));
  EXPECT_EQ(a.best_cell, b.best_cell);
  EXPECT_EQ(a.best_value, -b.best_value);
}

TEST_P(EveryStrategy, RefusesDamagedState) {
  const auto search = Make();
  Preview(search.get(), 3, MixedCurve);
  const std::string good = search->Snapshot();
  for (size_t cut = 0; cut < good.size(); cut += 1 + good.size() / 50) {
    EXPECT_FALSE(Make()->Restore(good.substr(0, cut)).ok()) << cut;
  }
  EXPECT_EQ(Make()->Restore(good + "x").code(), Code::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(All, EveryStrategy, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::search
