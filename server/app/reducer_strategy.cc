// What the strategies need of the reducer, and the calls of an external one.
#include <utility>

#include "common/base/clock.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "server/app/reducer.h"

namespace switchyard::app {

using server_metrics::QueueClass;

Strategies::Host Reducer::StrategyHost() {
  return {.state = &state_,
          .store = store_.get(),
          .find_stored =
              [this](const scheduler::Sweep& sweep, std::vector<scheduler::PlannedRun>* runs) {
                return FindStored(sweep.row.project, sweep.row.rerun > 0, runs);
              },
          .objective =
              [this](RunId run, const api::ObjectiveFacts& objective) {
                return ObjectiveOf(run, objective);
              }};
}

std::optional<double> Reducer::ObjectiveOf(RunId run, const api::ObjectiveFacts& objective) {
  const auto value = [&](const scheduler::SummaryRow& row) -> std::optional<double> {
    if (objective.is_last) return row.last;
    return row.has_best ? std::optional<double>(row.best) : std::nullopt;
  };
  if (const auto known = summaries_.find(run); known != summaries_.end()) {
    const auto row = known->second.rows.find(objective.series);
    return row == known->second.rows.end() ? std::nullopt : value(row->second);
  }
  const Result<std::vector<scheduler::SummaryRow>> stored = store_->ListSummaries(run);
  if (!stored.ok()) return std::nullopt;
  for (const scheduler::SummaryRow& row : *stored) {
    if (row.series == objective.series) return value(row);
  }
  return std::nullopt;
}

void Reducer::Extend(api::ExtendInput input, api::Callback<api::ExtendReply> done) {
  auto shared = std::make_shared<const api::ExtendInput>(std::move(input));
  inbox_.Push({.queue = QueueClass::kMutation,
               .bytes = shared->extended->sweep().spec.size(),
               .is_barrier = true,
               .decide =
                   [this, shared, done](Turn& turn) {
                     Result<api::ExtendReply> reply = DecideExtend(turn, *shared);
                     turn.Release([done, reply = std::move(reply)] { done(reply); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

Result<api::ExtendReply> Reducer::DecideExtend(Turn& turn, const api::ExtendInput& input) {
  const scheduler::SweepRow& document = input.extended->sweep();
  const std::string body_hash =
      Sha256Hex(StrCat("extend ", input.sweep.value.ToString(), " ", document.spec_hash));
  api::ExtendReply reply;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> known,
                              FindReply(turn, input.request_id, body_hash));
  if (known.has_value()) {
    SWITCHYARD_ASSIGN_OR_RETURN(reply.sweep, store_->FindSweep(*known, /*with_spec=*/false));
    return reply;
  }
  SWITCHYARD_ASSIGN_OR_RETURN(reply.sweep,
                              store_->FindSweep(input.sweep.value.ToString(), /*with_spec=*/false));
  if (reply.sweep.row.spec_hash == document.spec_hash) {
    reply.existed = true;
    return reply;
  }
  if (reply.sweep.row.spec_hash != input.old->sweep().spec_hash) {
    return Unavailable(
        StrCat("sweep ", reply.sweep.row.name, " was extended meanwhile; try again"));
  }
  const scheduler::Sweep* live = state_.FindSweep(input.sweep);
  // Numbers of retried runs follow those that were planned: there is no room between them.
  const bool has_room = live != nullptr && live->status.state <= scheduler::SweepState::kPaused &&
                        (live->row.is_drawn || live->status.retried == 0);
  SweepId into = input.sweep;
  if (has_room) {
    SWITCHYARD_RETURN_IF_ERROR(strategies_.Extend(input.sweep, input, live->status.proposed));
    turn.Decide(scheduler::ExtendSweep{.extension = {.id = input.sweep,
                                                     .spec = document.spec,
                                                     .spec_hash = document.spec_hash,
                                                     .axes = document.axes,
                                                     .cells = document.cells,
                                                     .runs = document.runs}});
    expansions_.erase(input.sweep);
  } else {
    scheduler::SubmitSweep event{.sweep = document, .first = {}};
    into = {NewUuidV7()};
    event.sweep.id = into;
    event.sweep.parent = input.sweep;
    event.sweep.created_ms = turn.now().unix_ms;
    event.sweep.is_drawn = true;
    for (uint64_t suffix = 2;; ++suffix) {
      event.sweep.name = StrCat(event.sweep.base_name, ".", suffix);
      SWITCHYARD_ASSIGN_OR_RETURN(const bool is_taken, store_->IsSweepNameTaken(event.sweep.name));
      if (!is_taken) break;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const auto needs, strategies_.FindNeeds(*input.extended));
    SWITCHYARD_RETURN_IF_ERROR(turn.Decide(event).status);
    // Its first cells are those of the sweep that has ended, which share their runs.
    SWITCHYARD_RETURN_IF_ERROR(strategies_.Start(into, input.old, needs));
    SWITCHYARD_RETURN_IF_ERROR(strategies_.Extend(into, input, 0));
  }
  const scheduler::Sweep& extended = *state_.FindSweep(into);
  reply.sweep = {.row = extended.row, .status = extended.status};
  Remember(turn, input.request_id, "ExtendSweep", body_hash, into.value.ToString());
  return reply;
}

void Reducer::Ask(SweepId sweep, uint64_t since, api::Callback<api::AskReply> done) {
  inbox_.Push({.queue = QueueClass::kMutation,
               .writes = false,
               .decide =
                   [this, sweep, since, done](Turn& turn) {
                     Result<api::AskReply> reply = strategies_.Ask(sweep, since);
                     turn.Release([done, reply = std::move(reply)] { done(reply); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

void Reducer::Tell(api::TellInput input, api::Callback<api::TellReply> done) {
  auto shared = std::make_shared<const api::TellInput>(std::move(input));
  inbox_.Push({.queue = QueueClass::kMutation,
               .is_barrier = true,
               .decide =
                   [this, shared, done](Turn& turn) {
                     Result<api::TellReply> reply = DecideTell(turn, *shared);
                     turn.Release([done, reply = std::move(reply)] { done(reply); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

Result<api::TellReply> Reducer::DecideTell(Turn& turn, const api::TellInput& input) {
  std::string body = StrCat("tell ", input.sweep.value.ToString(), " ", input.close);
  for (const api::NamedValues& cell : input.cells) {
    body += "\ncell";
    for (const auto& [name, value] : cell) body += StrCat("\n", name, "=", value);
  }
  for (const uint64_t cell : input.stop) body += StrCat("\nstop ", cell);
  const std::string body_hash = Sha256Hex(body);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> known,
                              FindReply(turn, input.request_id, body_hash));
  api::TellReply reply;
  if (known.has_value()) {
    for (const std::string_view cell : StrSplit(*known, ' ')) {
      if (const auto number = ParseUint64(cell); number.has_value()) reply.cells.push_back(*number);
    }
    return reply;
  }
  SWITCHYARD_ASSIGN_OR_RETURN(reply, strategies_.Tell(input));
  std::string numbers;
  for (const uint64_t cell : reply.cells) numbers += StrCat(cell, " ");
  Remember(turn, input.request_id, "Tell", body_hash, std::move(numbers));
  return reply;
}

}  // namespace switchyard::app
