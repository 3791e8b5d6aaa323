// What programs outside ask of a sweep with strategy external, and tell it.
#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "server/app/reducer.h"
#include "server/app/strategies.h"

namespace switchyard::app {

Result<std::pair<Driven*, size_t>> Strategies::FindExternal(SweepId id) {
  const scheduler::Sweep* sweep = host_.state->FindSweep(id);
  if (sweep == nullptr || sweep->status.state > scheduler::SweepState::kPaused) {
    return FailedPrecondition(StrCat("sweep ", id.value.ToString(), " has ended"));
  }
  if (Driven* driven = Find(id)) {
    // Of several stages, the one that is not closed yet.
    std::optional<size_t> found;
    for (size_t i = 0; i < driven->units.size(); ++i) {
      const Unit& unit = driven->units[i];
      const bool is_external =
          !unit.is_counted() && unit.search->settings().method == search::Method::kExternal;
      if (is_external && (!found.has_value() || driven->units[*found].search->is_closed())) {
        found = i;
      }
    }
    if (found.has_value()) return std::pair(driven, *found);
  }
  return FailedPrecondition(StrCat("the strategy of sweep ", sweep->row.name, " is not external"));
}

Result<api::AskReply> Strategies::Ask(SweepId id, uint64_t since) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto external, FindExternal(id));
  const auto [driven, index] = external;
  const search::Search& search = *driven->units[index].search;
  api::AskReply reply{
      .cells = search.Reports(since), .ended = since, .is_closed = search.is_closed()};
  for (search::CellReport& cell : reply.cells) {
    reply.ended += cell.end.has_value() ? 1 : 0;
    cell.cell = driven->CellNumber(index, cell.cell);
  }
  return reply;
}

Result<api::TellReply> Strategies::Tell(const api::TellInput& input) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto external, FindExternal(input.sweep));
  const auto [driven, index] = external;
  const std::string before = PackDriven(*driven);
  const std::shared_ptr<const api::Expansion> newest = driven->documents.back();
  Unit& unit = driven->units[index];
  api::TellReply reply;
  const auto apply = [&, driven = driven, index = index]() -> Status {
    for (size_t i = 0; i < input.cells.size(); ++i) {
      const auto tell = [&]() -> Status {
        SWITCHYARD_ASSIGN_OR_RETURN(const search::Point point,
                                    api::ParsePoint(unit.space.plan->dimensions(), input.cells[i]));
        SWITCHYARD_ASSIGN_OR_RETURN(const search::Actions actions, unit.search->Tell(point));
        Take(driven, index, actions);
        for (const search::Action& action : actions) {
          reply.cells.push_back(driven->CellNumber(index, action.cell));
        }
        return OkStatus();
      };
      const Status status = tell();
      if (!status.ok()) return {status.code(), StrCat("cells[", i, "]: ", status.message())};
    }
    for (const uint64_t cell : input.stop) {
      const auto own = std::ranges::find(unit.cells, cell);
      if (own == unit.cells.end()) {
        return NotFound(StrCat("cell ", cell, " has no run that goes on"));
      }
      SWITCHYARD_ASSIGN_OR_RETURN(
          search::Actions actions,
          unit.search->TellStop(static_cast<uint64_t>(own - unit.cells.begin()) + 1));
      Take(driven, index, std::move(actions));
    }
    if (!input.close) return OkStatus();
    driven->is_dirty = true;
    return unit.search->Close();
  };
  if (const Status status = apply(); !status.ok()) {
    // As it was: all of the call or nothing.
    SWITCHYARD_RETURN_IF_ERROR(Load(input.sweep, newest, before));
    driven_.at(input.sweep).is_dirty = true;
    return status;
  }
  return reply;
}

}  // namespace switchyard::app
