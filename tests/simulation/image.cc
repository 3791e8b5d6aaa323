#include "tests/simulation/image.h"

namespace switchyard::simulation {

using scheduler::IsTerminal;

scheduler::StoredRows Image::Load() const {
  scheduler::StoredRows rows;
  rows.cluster_id = "simulated";
  rows.generation = generation;
  rows.boot = boot;
  rows.last_epoch = last_epoch;
  for (const auto& [id, sweep] : sweeps) {
    if (IsTerminal(sweep.second.state)) continue;
    rows.sweeps.push_back(sweep.first);
    rows.sweep_status.push_back(sweep.second);
  }
  std::map<RunId, bool> has_open_stream;
  for (const auto& [epoch, attempt] : attempts) {
    if (IsTerminal(attempt.status.state) && attempt.stream.sealed) continue;
    has_open_stream[attempt.row.run] = true;
    rows.attempts.push_back(attempt.row);
    rows.attempt_status.push_back(attempt.status);
    rows.members.push_back(attempt.member);
    rows.streams.push_back(attempt.stream);
  }
  const auto is_loaded = [&](RunId id) {
    const auto run = runs.find(id);
    return run != runs.end() &&
           (!IsTerminal(run->second.second.state) || has_open_stream.contains(id));
  };
  for (const auto& [id, run] : runs) {
    if (!is_loaded(id)) continue;
    rows.runs.push_back(run.first);
    rows.run_status.push_back(run.second);
  }
  for (const scheduler::LinkRow& link : links) {
    if (is_loaded(link.run) && !IsTerminal(sweeps.at(link.sweep).second.state)) {
      rows.links.push_back(link);
    }
  }
  for (const auto& [id, of_run] : checkpoints) {
    for (const auto& [key, row] : of_run) {
      const bool is_doomed = row.state == scheduler::CheckpointState::kSuperseded ||
                             row.state == scheduler::CheckpointState::kTombstoned;
      const bool is_published = row.state == scheduler::CheckpointState::kPublished;
      if (is_doomed || (is_published && is_loaded(id))) rows.checkpoints.push_back(row);
    }
  }
  for (const auto& [id, worker] : workers) rows.workers.push_back(worker);
  return rows;
}

std::optional<std::pair<RunId, scheduler::RunState>> Image::FindValidRun(
    const std::string& run_key) const {
  std::optional<std::pair<RunId, scheduler::RunState>> found;
  for (const auto& [id, run] : runs) {
    if (run.first.run_key != run_key) continue;
    const scheduler::RunState state = run.second.state;
    if (!IsTerminal(state) || state == scheduler::RunState::kSucceeded) found = {id, state};
  }
  return found;
}

}  // namespace switchyard::simulation
