// Runs of live sweeps are proposed while the queue has room; what of them exists already is looked
// up.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "server/app/reducer.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::app {

using server_metrics::QueueClass;

void Reducer::RequestProposals() {
  if (state_.queued >= scheduler::kQueuedMax || is_draining_ || degraded_ >= 0) return;
  for (const auto& [id, sweep] : state_.sweeps) {
    if (sweep.row.is_drawn || sweep.status.state != scheduler::SweepState::kActive ||
        sweep.status.proposed >= sweep.row.runs || proposing_.contains(id)) {
      continue;
    }
    proposing_.insert(id);
    const auto known = expansions_.find(id);
    std::shared_ptr<const api::Expansion> expansion =
        known != expansions_.end() ? known->second : nullptr;
    const uint64_t first = sweep.status.proposed + 1;
    const uint64_t count = std::min<uint64_t>(
        scheduler::kProposalsMax, std::max<uint64_t>(1, scheduler::kQueuedMax - state_.queued));
    queries_->PostOwn([this, id = id, expansion, first, count](Result<store::ReadStore*> store) {
      Result<std::shared_ptr<const api::Expansion>> made = expansion;
      if (expansion == nullptr) {
        if (!store.ok()) return;  // stopping
        Result<store::SweepInfo> info =
            (*store)->FindSweep(id.value.ToString(), /*with_spec=*/true);
        made = info.ok() ? api::Expansion::Parse(info->row.spec) : info.status();
      }
      Result<std::vector<scheduler::PlannedRun>> runs =
          made.ok() ? (*made)->Expand(first, count, UnixMilliseconds()) : made.status();
      inbox_.PushOwn({.queue = QueueClass::kMutation,
                      .is_barrier = true,
                      .decide =
                          [this, id, made, runs](Turn& turn) {
                            proposing_.erase(id);
                            // Extended meanwhile: its runs are proposed another way.
                            const scheduler::Sweep* sweep = state_.FindSweep(id);
                            if (sweep == nullptr || sweep->row.is_drawn) return;
                            if (!runs.ok()) {
                              LogError("sweep ", id.value.ToString(), ": ",
                                       runs.status().ToString());
                              turn.Decide(scheduler::SteerSweep{.sweep = id,
                                                                .reason = runs.status().message()});
                              return;
                            }
                            expansions_[id] = *made;
                            scheduler::Propose event{.sweep = id, .runs = *runs};
                            const Status status =
                                FindStored(sweep->row.project, sweep->row.rerun > 0, &event.runs);
                            if (!status.ok()) {
                              LogError("looking up valid runs: ", status.ToString());
                              return;
                            }
                            turn.Decide(event);
                            SWITCHYARD_FAILPOINT("propose.decided");
                          },
                      .refuse = [](const Status&) {}});
    });
  }
}

Status Reducer::FindStored(const std::string& project, bool is_rerun,
                           std::vector<scheduler::PlannedRun>* runs) {
  std::vector<std::string> keys;
  keys.reserve(runs->size());
  for (const scheduler::PlannedRun& run : *runs) keys.push_back(run.run.run_key);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::optional<store::ValidRun>> valid,
                              store_->FindValidRuns(project, keys));
  for (size_t i = 0; i < runs->size(); ++i) {
    if ((*runs)[i].start.has_value()) SWITCHYARD_RETURN_IF_ERROR(FindStart(&(*runs)[i]));
    if (!valid[i].has_value()) continue;
    if (is_rerun) {
      (*runs)[i].run.rerun = valid[i]->rerun + 1;
    } else {
      (*runs)[i].stored = std::pair(valid[i]->id, valid[i]->state);
    }
  }
  return OkStatus();
}

Status Reducer::FindStart(scheduler::PlannedRun* planned) {
  const auto [id, step] = *planned->start;
  std::vector<scheduler::CheckpointRow> rows;
  if (const scheduler::Run* run = state_.FindRun(id)) {
    rows = run->checkpoints;
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(rows, store_->ListCheckpoints(id));
  }
  for (const scheduler::CheckpointRow& row : rows) {
    if (row.step != step || row.state != scheduler::CheckpointState::kPublished) continue;
    planned->run.policy.start_store = row.store;
    return OkStatus();
  }
  return FailedPrecondition(StrCat("the checkpoint at step ", step, " of run ", id.value.ToString(),
                                   " is not kept any more"));
}

}  // namespace switchyard::app
