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
#include <utility>
#include <vector>

#include "common/spec/change.h"
#include "common/spec/stage.h"
#include "server/api/core.h"
#include "server/api/expansion.h"
#include "server/app/driven.h"
#include "server/scheduler/decide.h"
#include "server/scheduler/state.h"
#include "server/search/search.h"
#include "server/store/store.h"

namespace switchyard::v1 {
class StageSpec;
}

namespace switchyard::app {

class Turn;

// The live sweeps whose runs are proposed while they run (SweepRow::is_drawn): their strategies and
// stages, between the reducer and server/search. What a strategy sees and what it wants is settled
// in the turn, and stored in the commit, of the points and ends that caused it: after a crash both
// are there or neither is. Belongs to the reducer's thread.
class Strategies {
 public:
  // What it needs of the reducer.
  struct Host {
    const scheduler::State* state = nullptr;
    store::Store* store = nullptr;
    // Fills in which planned runs exist already, and where what they begin with is kept.
    std::function<Status(const scheduler::Sweep&, std::vector<scheduler::PlannedRun>*)> find_stored;
    // The run's objective as its summaries have it now; none: no finite value.
    std::function<std::optional<double>(RunId, const api::ObjectiveFacts&)> objective;
  };
  explicit Strategies(Host host) : host_(std::move(host)) {}

  // Forgets what is in memory; it is read again from the rows where it is needed.
  void Clear();
  // The sweeps whose runs the stages of a document need, by stage; none without such stages.
  // kNotFound: there is none of that name. kInvalidArgument: it has no stage of that name.
  Result<std::map<std::string, SweepId>> FindNeeds(const api::Expansion& expansion);
  // A sweep just decided, with its document. Its first proposals follow in Settle.
  Status Start(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
               const std::map<std::string, SweepId>& needs);
  // More cells and seeds for a live sweep, or with an error none. `proposed`: runs of one whose
  // cells were counted until now.
  Status Extend(SweepId sweep, const api::ExtendInput& input, uint64_t proposed);
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
  struct Ended {
    RunId run;
    search::RunEnd::Kind kind = search::RunEnd::Kind::kLost;
  };

  // Null, with a line in the log: the sweep has none, or it cannot be read.
  Driven* Find(SweepId sweep);
  Result<std::pair<Driven*, size_t>> FindExternal(SweepId sweep);
  Status Load(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
              std::string_view state);
  void Keep(SweepId sweep, Driven driven);

  void Watch(SweepId sweep, Driven* driven, Open open);
  static void Take(Driven* driven, size_t unit, search::Actions actions);
  // How a run that is not live ended, as far as rows tell.
  Ended EndOf(RunId run);
  void Finish(Turn& turn, const Ended& ended);
  // A run that `retry` made has succeeded: its children are due.
  void FinishRetried(const Ended& ended);
  bool SettleOne(Turn& turn, SweepId id);

  // strategy_actions.cc
  bool Carry(Turn& turn, SweepId id, Driven* driven, size_t unit);
  void Steer(Turn& turn, SweepId id, Driven* driven, size_t unit, const search::Action& action);
  // False: the checkpoint that it goes on from is still on its way.
  bool Propose(Turn& turn, SweepId id, Driven* driven, size_t unit, const Todo& todo);
  bool ProposeCounted(Turn& turn, SweepId id, Driven* driven, size_t unit);
  // Makes the run or, where it exists, links it. `open` has all but the run.
  void Lay(Turn& turn, SweepId id, Driven* driven, Open open,
           Result<scheduler::PlannedRun> planned);
  // The checkpoint that a fork goes on from. kUnavailable: not yet there.
  Result<scheduler::CheckpointRow> FindForkPoint(const Todo& todo);
  // Pauses what waits for its strategy, also after somebody has resumed it.
  bool HoldPaused(Turn& turn, SweepId id, const Driven& driven);
  // Another live sweep, or another cell of this one, wants the run as well.
  bool IsShared(SweepId id, const Driven& driven, const Open& open) const;
  // What a run that existed before has reported and how it ended.
  void CatchUp(Driven* driven, const Open& open);
  bool AskForMore(Turn& turn, SweepId id, Driven* driven, size_t unit);
  uint64_t Room(const scheduler::Sweep& sweep, const Driven& driven, size_t unit) const;

  // strategy_stages.cc
  // The space of a stored unit that is not a root of its document.
  Status MakeSpace(const Driven& driven, Unit* unit);
  // To the newest document.
  Status ExtendUnit(Driven* driven, size_t unit,
                    const std::vector<spec::StageExtension>& extensions);
  Result<spec::ParentRun> MakeParent(const Driven& driven, const v1::StageSpec& stage,
                                     const RunNumber& number);
  Status AddLayout(const Driven& driven, const RunNumber& number, spec::ParentRun* parent);
  // Makes units for what has come to be: true when there are new ones.
  bool TakeParents(Turn& turn, SweepId id, Driven* driven);
  bool TakeParentsOf(Turn& turn, SweepId id, Driven* driven, Consumer* consumer);
  Result<std::vector<RunNumber>> ForeignParents(const v1::StageSpec& stage, SweepId foreign);
  Status AddGroups(Driven* driven, const v1::StageSpec& stage,
                   const std::vector<RunNumber>& parents, bool* has_added);
  bool IsStageDone(const Driven& driven, std::string_view stage) const;
  bool HasTakenAll(const Driven& driven, const Consumer& consumer) const;
  bool IsExhausted(const Driven& driven) const;

  const Host host_;
  std::map<SweepId, Driven> driven_;
  std::set<SweepId> failed_;  // reported once
  std::unordered_map<RunId, std::set<SweepId>> watched_;
  std::vector<Ended> ended_;
  uint64_t runs_proposed_ = 0;  // in this turn
};

// Whether what it proposes depends on what its cells have reported.
bool IsAdaptive(const search::Settings& settings);

}  // namespace switchyard::app
