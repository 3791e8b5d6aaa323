#include "server/scheduler/transitions.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace switchyard::scheduler {
namespace {

using Pairs = std::set<std::pair<int, int>>;

Pairs AllowedPairs(Machine machine) {
  Pairs out;
  // Numbers outside the machine as well: they lead nowhere.
  for (uint8_t from = 1; from <= CountStates(machine) + 2; ++from) {
    for (uint8_t to = 0; to <= CountStates(machine) + 2; ++to) {
      if (IsAllowed(machine, from, to)) out.insert({from, to});
    }
  }
  return out;
}

// Over all pairs of states: exactly the ways of the protocol, machine by machine.
TEST(Transitions, AllowExactlyTheWaysOfTheProtocol) {
  EXPECT_EQ(AllowedPairs(Machine::kSweep), (Pairs{{1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 3}, {3, 5}}));
  EXPECT_EQ(AllowedPairs(Machine::kRun), (Pairs{{1, 3},
                                                {1, 4},
                                                {1, 6},
                                                {1, 8},
                                                {2, 1},
                                                {2, 4},
                                                {2, 6},
                                                {2, 8},
                                                {3, 1},
                                                {3, 2},
                                                {3, 4},
                                                {3, 5},
                                                {3, 6},
                                                {3, 7},
                                                {3, 8},
                                                {3, 9},
                                                {4, 1},
                                                {4, 6},
                                                {4, 8}}));
  EXPECT_EQ(AllowedPairs(Machine::kAttempt), (Pairs{{1, 3},
                                                    {1, 4},
                                                    {1, 5},
                                                    {1, 6},
                                                    {1, 7},
                                                    {1, 8},
                                                    {1, 9},
                                                    {3, 4},
                                                    {3, 5},
                                                    {3, 6},
                                                    {3, 7},
                                                    {3, 8},
                                                    {3, 9},
                                                    {4, 5},
                                                    {4, 6},
                                                    {4, 7},
                                                    {4, 8},
                                                    {4, 9}}));
  EXPECT_EQ(AllowedPairs(Machine::kMember), (Pairs{{1, 3},
                                                   {1, 7},
                                                   {1, 9},
                                                   {3, 4},
                                                   {3, 6},
                                                   {3, 8},
                                                   {3, 9},
                                                   {4, 5},
                                                   {4, 6},
                                                   {4, 8},
                                                   {4, 9},
                                                   {5, 6},
                                                   {5, 9}}));
  EXPECT_EQ(AllowedPairs(Machine::kContact),
            (Pairs{{1, 2}, {1, 4}, {2, 3}, {3, 2}, {3, 4}, {4, 2}}));
  EXPECT_EQ(AllowedPairs(Machine::kAdmin),
            (Pairs{{1, 2}, {1, 4}, {2, 1}, {2, 3}, {2, 4}, {3, 1}, {3, 4}, {4, 1}}));
  EXPECT_EQ(AllowedPairs(Machine::kCordon), (Pairs{{1, 2}, {2, 1}}));
  EXPECT_EQ(AllowedPairs(Machine::kCheckpoint),
            (Pairs{{1, 2}, {2, 3}, {2, 8}, {3, 4}, {3, 7}, {4, 3}, {4, 5}, {5, 6}}));
  EXPECT_EQ(
      AllowedPairs(Machine::kCoordinator),
      (Pairs{
          {1, 2}, {1, 6}, {2, 3}, {2, 7}, {3, 4}, {3, 5}, {3, 7}, {4, 3}, {4, 5}, {4, 7}, {5, 7}}));
}

// S4: the states that the rows call terminal are those that nothing leads out of.
TEST(Transitions, TerminalStatesAreFinal) {
  for (uint8_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(IsFinal(Machine::kSweep, i), IsTerminal(static_cast<SweepState>(i)));
  }
  for (uint8_t i = 1; i <= 9; ++i) {
    EXPECT_EQ(IsFinal(Machine::kRun, i), IsTerminal(static_cast<RunState>(i)));
    // FORMING and PREPARED belong to attempts of several ranks, which are not made yet.
    if (i != static_cast<uint8_t>(AttemptState::kForming)) {
      EXPECT_EQ(IsFinal(Machine::kAttempt, i), IsTerminal(static_cast<AttemptState>(i)));
    }
    if (i != static_cast<uint8_t>(MemberState::kPrepared)) {
      EXPECT_EQ(IsFinal(Machine::kMember, i), IsTerminal(static_cast<MemberState>(i)));
    }
  }
}

// Every row has an id and a trigger, and stays within its machine.
TEST(Transitions, RowsAreWhole) {
  for (size_t i = 0; i < kMachines; ++i) {
    const auto machine = static_cast<Machine>(i);
    for (const Transition& row : TableOf(machine)) {
      EXPECT_FALSE(row.id.empty());
      EXPECT_FALSE(row.trigger.empty()) << row.id;
      EXPECT_LE(row.from, CountStates(machine)) << row.id;
      EXPECT_GE(row.to, 1) << row.id;
      EXPECT_LE(row.to, CountStates(machine)) << row.id;
      EXPECT_NE(row.from, row.to) << row.id;
    }
  }
}

// docs/protocol.md shows the tables of the code. SWITCHYARD_UPDATE_DOCS=1 writes them there.
TEST(Transitions, ThePageShowsTheTables) {
  const std::string path = std::string(SWITCHYARD_SOURCE_DIR) + "/docs/protocol.md";
  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  const std::string page = read.str();
  const std::string begin = "<!-- tables: server/scheduler/transitions.cc -->\n\n";
  const std::string end = "<!-- end of tables -->";
  const size_t from = page.find(begin);
  const size_t to = page.find(end);
  ASSERT_NE(from, std::string::npos) << path;
  ASSERT_NE(to, std::string::npos) << path;
  const size_t start = from + begin.size();
  if (std::getenv("SWITCHYARD_UPDATE_DOCS") != nullptr) {
    std::ofstream(path) << page.substr(0, start) << RenderTables() << page.substr(to);
    return;
  }
  EXPECT_EQ(page.substr(start, to - start), RenderTables())
      << "run this test with SWITCHYARD_UPDATE_DOCS=1 to renew docs/protocol.md";
}

}  // namespace
}  // namespace switchyard::scheduler
