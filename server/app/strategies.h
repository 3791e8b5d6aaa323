#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/api/core.h"
#include "server/api/expansion.h"
#include "server/scheduler/decide.h"
#include "server/scheduler/state.h"
#include "server/search/search.h"
#include "server/store/store.h"

namespace switchyard::app {

class Turn;

// The strategies of the live sweeps whose cells are drawn, between the reducer and server/search.
// What a strategy sees and what it wants is settled in the turn, and stored in the commit, of the
// points and ends that caused it: after a crash both are there or neither is. Belongs to the
// reducer's thread.
class Strategies {
 public:
  // What it needs of the reducer.
  struct Host {
    const scheduler::State* state = nullptr;
    store::Store* store = nullptr;
    // Fills in which planned runs exist already.
    std::function<Status(const scheduler::Sweep&, std::vector<scheduler::PlannedRun>*)> find_stored;
    // The run's objective as its summaries have it now; none: no finite value.
    std::function<std::optional<double>(RunId, const api::ObjectiveFacts&)> objective;
  };
  explicit Strategies(Host host) : host_(std::move(host)) {}

  // Forgets what is in memory; it is read again from the rows where it is needed.
  void Clear();
  // A sweep just decided, with its document. Its first proposals follow in Settle.
  Status Start(SweepId sweep, std::shared_ptr<const api::Expansion> expansion);
  // After each decision: which runs have ended.
  void Note(const scheduler::Decision& decision);
  // New points of a run's canonical curve.
  void Observe(const scheduler::Run& run, const api::PreparedBatch& batch);
  // Carries out what the strategies want and writes their state. At the end of a turn.
  void Settle(Turn& turn);

  // Strategy external. kFailedPrecondition: the sweep has ended, or has another strategy.
  Result<api::AskReply> Ask(SweepId sweep, uint64_t since);
  // All of it or, with an error, nothing.
  Result<api::TellReply> Tell(const api::TellInput& input);

 private:
  // A run that a strategy waits for.
  struct Open {
    RunId run;
    uint64_t number = 0;
    uint64_t cell = 0;
    uint64_t seed = 0;  // as the document has it
  };
  struct Driven {
    std::shared_ptr<const api::Expansion> expansion;
    std::unique_ptr<search::Search> search;
    api::ObjectiveFacts objective;
    std::vector<Open> open;  // by number
    // Wanted, and not carried out while the sweep is paused.
    search::Actions todo;
    bool is_dirty = false;
  };
  struct Ended {
    RunId run;
    search::RunEnd::Kind kind = search::RunEnd::Kind::kLost;
  };

  // Null, with a line in the log: the sweep has none, or it cannot be read.
  Driven* Find(SweepId sweep);
  Result<Driven*> FindExternal(SweepId sweep);
  Status Load(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
              std::string_view state);
  static std::string Pack(const Driven& driven);
  void Watch(SweepId sweep, Driven* driven, Open open);
  static void Take(Driven* driven, search::Actions actions);
  // How a run that is not live ended, as far as rows tell.
  Ended EndOf(RunId run);
  void Finish(const Ended& ended);
  bool Carry(Turn& turn, SweepId id, Driven* driven);
  void Steer(Turn& turn, SweepId id, Driven* driven, const search::Action& action);
  void Propose(Turn& turn, SweepId id, Driven* driven, const search::Action& action);
  void ProposeRun(Turn& turn, SweepId id, Driven* driven, const search::Action& action,
                  uint64_t seed);
  // Pauses what waits for its strategy, also after somebody has resumed it.
  bool HoldPaused(Turn& turn, SweepId id, const Driven& driven);
  // Another live sweep, or another cell of this one, wants the run as well.
  bool IsShared(SweepId id, const Driven& driven, const Open& open) const;
  // What a run that existed before has reported and how it ended.
  void CatchUp(Driven* driven, const Open& open);
  bool AskForMore(SweepId id, Driven* driven);
  uint64_t Room(const scheduler::Sweep& sweep, const Driven& driven) const;

  const Host host_;
  std::map<SweepId, Driven> driven_;
  std::set<SweepId> failed_;  // reported once
  std::unordered_map<RunId, std::set<SweepId>> watched_;
  std::vector<Ended> ended_;
  uint64_t runs_proposed_ = 0;  // in this turn
};

}  // namespace switchyard::app
