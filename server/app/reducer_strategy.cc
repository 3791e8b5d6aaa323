// What the strategies need of the reducer, and the calls of an external one.
#include <utility>

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
