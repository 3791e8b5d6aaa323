// Recording: batches of event lines, summaries, live gauges.
#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "server/api/batch.h"
#include "server/app/reducer.h"

namespace switchyard::app {

using server_metrics::QueueClass;

namespace {
// Of runs that workers name and that a restored record does not know, so many are remembered.
constexpr size_t kUnrecordedMax = 100'000;
}  // namespace

// The head of the canonical curve is the newest attempt that has reported its start. It may have
// left the state, its stream sealed, before the lines of an older one arrive.
bool Reducer::IsHead(const scheduler::Run& run, Epoch epoch) {
  const auto [head, is_new] = heads_.try_emplace(run.row.id);
  if (is_new && run.is_loaded) {
    const Result<std::vector<store::AttemptInfo>> stored = store_->ListAttempts(run.row.id);
    if (!stored.ok()) {
      LogError("attempts of run ", run.row.id.value.ToString(), ": ", stored.status().ToString());
      heads_.erase(head);
      return false;
    }
    for (const store::AttemptInfo& attempt : *stored) {
      if (attempt.status.start_reported) head->second = std::max(head->second, attempt.row.epoch);
    }
  }
  for (const Epoch other : run.attempts) {
    if (state_.FindAttempt(other)->status.start_reported) {
      head->second = std::max(head->second, other);
    }
  }
  const scheduler::Attempt* attempt = state_.FindAttempt(epoch);
  return epoch >= head->second && (attempt == nullptr || !scheduler::IsRecovered(*attempt));
}

void Reducer::GoLive(const scheduler::AttemptRow& attempt) {
  const scheduler::Run* run = state_.FindRun(attempt.run);
  if (run == nullptr || IsTerminal(run->status.state)) return;
  server_metrics::LiveRunInfo info{.run = attempt.run,
                                   .sweep = run->row.sweep,
                                   .project = run->row.project,
                                   .router = run->row.router,
                                   .moe_layers = {},
                                   .objective_series = {},
                                   .objective_is_last = false};
  if (!live_runs_->Contains(attempt.run)) {
    if (const store::RunDocument* document = FindDocument(attempt.run)) {
      info.moe_layers = api::ReadMoeLayers(document->spec);
    }
    if (const api::ObjectiveFacts* objective = FindObjective(*run)) {
      info.objective_series = objective->series;
      info.objective_is_last = objective->is_last;
    }
  }
  live_runs_->Start(info, attempt.ordinal);
}

const api::ObjectiveFacts* Reducer::FindObjective(const scheduler::Run& run) {
  if (!run.row.policy.objective.empty()) {
    // Asked for several times a batch: nothing is copied but once.
    const auto [own, is_new] = run_objectives_.try_emplace(run.row.id);
    if (is_new) {
      own->second = {.series = run.row.policy.objective,
                     .is_last = run.row.policy.is_objective_last,
                     .is_maximized = run.row.policy.is_maximized};
    }
    return &own->second;
  }
  // A run of an earlier release.
  auto known = objectives_.find(run.row.sweep);
  if (known == objectives_.end()) {
    const scheduler::Sweep* sweep = state_.FindSweep(run.row.sweep);
    if (sweep == nullptr) return nullptr;
    known = objectives_.emplace(sweep->row.id, api::ReadObjective(sweep->row.objective)).first;
  }
  return &known->second;
}

const store::RunDocument* Reducer::FindDocument(RunId run) {
  const auto known = documents_.find(run);
  if (known != documents_.end()) return &known->second;
  Result<store::RunDocument> document = store_->GetRunDocument(run);
  if (!document.ok()) {
    LogError("document of run ", run.value.ToString(), ": ", document.status().ToString());
    return nullptr;
  }
  return &documents_.emplace(run, *std::move(document)).first->second;
}

void Reducer::FoldBatch(Turn& turn, const api::AppendInput& input, const api::PreparedBatch& batch,
                        bool is_late) {
  const RunId id = input.event.run;
  const scheduler::Run* run = state_.FindRun(id);
  if (run == nullptr) return;
  if (is_late || !IsHead(*run, input.event.epoch)) {
    // Late points of an older attempt count only below the step its successor resumed from.
    rebuild_.insert(id);
    return;
  }
  Summaries& summaries = summaries_[id];
  dirty_summaries_.insert(id);
  for (const scheduler::LineFact& fact : batch.facts) {
    const bool has_older = !summaries.rows.empty() || summaries.step > 0;
    if (fact.kind == scheduler::LineFact::Kind::kHello && has_older) {
      summaries.rows.clear();
      summaries.dirty.clear();
      summaries.is_reset = true;
      summaries.step = 0;
    } else if (fact.kind == scheduler::LineFact::Kind::kResume) {
      Result<std::vector<scheduler::SummaryRow>> rebuilt =
          store_->RebuildSummaries(id, fact.from, fact.step);
      if (!rebuilt.ok()) {
        LogError("summaries of run ", id.value.ToString(), ": ", rebuilt.status().ToString());
        continue;
      }
      summaries.rows.clear();
      summaries.dirty.clear();
      summaries.is_reset = true;
      summaries.step = fact.step;
      for (scheduler::SummaryRow& row : *rebuilt) {
        const std::string series = row.series;
        summaries.dirty.insert(series);
        summaries.rows.emplace(series, std::move(row));
      }
    }
  }
  strategies_.Observe(*run, batch);
  const int64_t unix_ms = turn.now().unix_ms;
  for (const api::SeriesDelta& delta : batch.deltas) {
    auto row = summaries.rows.find(delta.series);
    if (row == summaries.rows.end()) {
      scheduler::SummaryRow fresh;
      fresh.run = id;
      fresh.series = delta.series;
      row = summaries.rows.emplace(delta.series, std::move(fresh)).first;
    }
    api::Fold(delta, &row->second);
    summaries.dirty.insert(delta.series);
    if (delta.last_step > summaries.step) {
      summaries.step = delta.last_step;
      summaries.is_step_dirty = true;
    }
    // Behind a later step it is not the newest value of its series.
    if (delta.last_step < row->second.last_step) continue;
    if (delta.is_vector) {
      live_runs_->SetVector(id, delta.series, delta.shape, delta.last_vector);
    } else {
      // Series are reported at different steps: the run is where the newest of them is.
      live_runs_->SetScalar(id, delta.series, summaries.step, delta.last, unix_ms);
    }
  }
  const api::ObjectiveFacts* objective = FindObjective(*run);
  if (objective == nullptr) return;
  const auto row = summaries.rows.find(objective->series);
  if (row == summaries.rows.end()) return;
  if (objective->is_last) {
    live_runs_->SetObjective(id, row->second.last);
  } else if (row->second.has_best) {
    live_runs_->SetObjective(id, row->second.best);
  }
}

// Checkpoints are ranked by the objective as it stood when they were written. A batch may hold
// many, after an outage say, with the values between them.
void Reducer::AddScores(const api::AppendInput& input, scheduler::Append* event) {
  const bool has_checkpoint =
      std::ranges::any_of(event->lines, [](const scheduler::LineFact& line) {
        return line.kind == scheduler::LineFact::Kind::kCheckpoint;
      });
  const scheduler::Run* run = has_checkpoint ? state_.FindRun(event->run) : nullptr;
  const api::ObjectiveFacts* objective = run == nullptr ? nullptr : FindObjective(*run);
  if (objective == nullptr) return;
  std::optional<double> score;
  if (const auto summaries = summaries_.find(event->run); summaries != summaries_.end()) {
    const auto row = summaries->second.rows.find(objective->series);
    if (row != summaries->second.rows.end()) score = row->second.last;
  }
  for (scheduler::LineFact& line : event->lines) {
    if (line.kind != scheduler::LineFact::Kind::kCheckpoint) continue;
    const auto newer = api::ValueBefore(*input.batch, objective->series, line.seq);
    line.score = newer.has_value() ? newer : score;
  }
}

// What the record says of an attempt that a worker names; nullopt: it need not be asked, or cannot
// be read now.
std::optional<scheduler::RecordedAttempt> Reducer::FindRecorded(RunId run, Epoch epoch) {
  if (!scheduler::IsLookedUp(state_, epoch)) return std::nullopt;
  // Ids are never given twice: what was not there will not come.
  if (unrecorded_.contains(run)) return scheduler::RecordedAttempt{};
  Result<scheduler::RecordedAttempt> recorded = store_->FindRecorded(run, epoch);
  if (!recorded.ok()) {
    LogWarning("attempt of epoch ", epoch.value, ": ", recorded.status().ToString());
    return std::nullopt;
  }
  if (!recorded->run.has_value() && unrecorded_.size() < kUnrecordedMax) unrecorded_.insert(run);
  return *std::move(recorded);
}

// The summaries that changed, once for the whole group.
void Reducer::FinishWrites(Turn& turn) {
  for (const RunId id : dirty_summaries_) {
    const auto found = summaries_.find(id);
    if (found == summaries_.end()) continue;
    Summaries& summaries = found->second;
    if (summaries.is_reset) turn.Write(scheduler::SummaryReset{id});
    for (const std::string& series : summaries.dirty) {
      const auto row = summaries.rows.find(series);
      if (row != summaries.rows.end()) turn.Write(row->second);
    }
    if (summaries.is_reset || summaries.is_step_dirty) {
      turn.Write(scheduler::RunProgress{.run = id, .step = summaries.step});
    }
    summaries.dirty.clear();
    summaries.is_reset = false;
    summaries.is_step_dirty = false;
  }
  dirty_summaries_.clear();
}

// From the committed points, after a batch of an attempt that is not the head. The run may leave
// the state before its turn comes.
void Reducer::RebuildSummaries(RunId id) {
  inbox_.PushOwn({.queue = QueueClass::kAppend,
                  .is_barrier = true,
                  .decide =
                      [this, id](Turn&) {
                        Result<std::vector<scheduler::SummaryRow>> rebuilt =
                            store_->RebuildSummaries(id, std::nullopt, ~uint64_t{0} >> 1);
                        if (!rebuilt.ok()) {
                          LogError("summaries of run ", id.value.ToString(), ": ",
                                   rebuilt.status().ToString());
                          return;
                        }
                        Summaries& summaries = summaries_[id];
                        summaries.rows.clear();
                        summaries.dirty.clear();
                        summaries.is_reset = true;
                        summaries.step = 0;
                        for (scheduler::SummaryRow& row : *rebuilt) {
                          const std::string series = row.series;
                          summaries.step = std::max(summaries.step, row.last_step);
                          summaries.dirty.insert(series);
                          summaries.rows.emplace(series, std::move(row));
                        }
                        dirty_summaries_.insert(id);
                      },
                  .refuse = [](const Status&) {}});
}

// `batch`: what of it was new and is committed; null: nothing.
void Reducer::CountBatch(const api::AppendInput& input, const api::PreparedBatch* batch) {
  const uint64_t committed = batch == nullptr ? 0 : batch->points;
  families_->points_duplicate->Increment(static_cast<double>(input.batch->points - committed));
  if (batch == nullptr) return;
  families_->points_committed->Increment(static_cast<double>(committed));
  for (const api::SeriesDelta& delta : batch->deltas) {
    families_->points_nonfinite->Increment(static_cast<double>(delta.non_finite));
  }
  for (size_t i = 0; i < families_->points_dropped.size(); ++i) {
    families_->points_dropped[i]->Increment(static_cast<double>(batch->lost[i]));
  }
  for (const double seconds : batch->checkpoint_seconds) {
    families_->trainer_checkpoint_seconds->Observe(seconds);
  }
  families_->ingest_lag->Observe(static_cast<double>(input.oldest_age_ms) / 1000);
}

uint64_t Reducer::CreditBytes() { return inbox_.FreeAppendBytes(); }

void Reducer::Append(api::AppendInput input, api::Callback<api::AppendReply> done) {
  const size_t bytes = input.bytes;
  // A resume line rebuilds summaries from what is committed.
  const bool is_barrier =
      std::ranges::any_of(input.batch->facts, [](const scheduler::LineFact& fact) {
        return fact.kind == scheduler::LineFact::Kind::kResume;
      });
  auto shared = std::make_shared<api::AppendInput>(std::move(input));
  inbox_.Push(
      {.queue = QueueClass::kAppend,
       .bytes = bytes,
       .is_barrier = is_barrier,
       .decide =
           [this, shared, done](Turn& turn) {
             const api::AppendInput& input = *shared;
             if (const Status status = kinds_.Check(input.batch->chunks); !status.ok()) {
               turn.Release([done, status] { done(status); });
               return;
             }
             scheduler::Append event = input.event;
             AddScores(input, &event);
             event.recorded = FindRecorded(event.run, event.epoch);
             // Of a run that has ended by now the summaries need not be in memory.
             const scheduler::Run* run = state_.FindRun(event.run);
             const bool is_late = run != nullptr && IsTerminal(run->status.state);
             const scheduler::Decision decision = turn.Decide(std::move(event));
             SWITCHYARD_FAILPOINT("append.decided");
             if (!decision.status.ok()) {
               turn.Release([done, status = decision.status] { done(status); });
               return;
             }
             const auto& answer = std::get<scheduler::AppendAnswer>(decision.answer);
             std::shared_ptr<const api::PreparedBatch> batch;  // what is new
             if (answer.accepted_from != 0) {
               batch = input.batch;
               if (answer.accepted_from > input.event.first_seq) {
                 Result<std::shared_ptr<const api::PreparedBatch>> rest = api::PrepareBatch(
                     batch->decoded, input.event.epoch, input.event.rank, answer.accepted_from - 1);
                 // It was valid as a whole.
                 SWITCHYARD_CHECK(rest.ok()) << rest.status().ToString();
                 batch = *std::move(rest);
               }
               for (const scheduler::ChunkRow& row : batch->chunks) turn.Write(row);
               for (const scheduler::StreamEventRow& row : batch->lines) turn.Write(row);
               FoldBatch(turn, input, *batch, is_late);
             }
             turn.Release([this, shared, batch, done, answer] {
               if (batch != nullptr) kinds_.Remember(batch->chunks);
               if (batch != nullptr || answer.expect == 0) CountBatch(*shared, batch.get());
               const auto durable = durable_.find(shared->event.epoch);
               done(api::AppendReply{.committed = answer.committed,
                                     .durable = durable == durable_.end() ? 0 : durable->second,
                                     .expect = answer.expect,
                                     .credit_bytes = CreditBytes(),
                                     .retry_after_ms = 0});
             });
           },
       // Lines that the database refuses come from the trainer: its agent looks for the one that is
       // to blame. Anything else would be sent again without end, and the run would never be whole.
       .refuse =
           [done](const Status& status) {
             done(status.code() == Code::kInternal ? InvalidArgument(status.message()) : status);
           }});
}

void Reducer::AppendLog(scheduler::AppendLog event, std::string data,
                        api::Callback<uint64_t> committed) {
  const size_t bytes = data.size();
  auto text = std::make_shared<const std::string>(std::move(data));
  inbox_.Push({.queue = QueueClass::kAppend,
               .bytes = bytes,
               .decide =
                   [this, event, text, committed](Turn& turn) mutable {
                     event.recorded = FindRecorded(event.run, event.epoch);
                     const scheduler::Decision decision = turn.Decide(event);
                     SWITCHYARD_FAILPOINT("append_log.decided");
                     if (!decision.status.ok()) {
                       turn.Release([committed, status = decision.status] { committed(status); });
                       return;
                     }
                     const auto& answer = std::get<scheduler::AppendLogAnswer>(decision.answer);
                     if (answer.accepted_to > answer.accepted_from) {
                       turn.Write(scheduler::LogRow{
                           .epoch = event.epoch,
                           .rank = event.rank,
                           .stream = event.stream,
                           .offset = answer.accepted_from,
                           .data = text->substr(answer.accepted_from - event.offset)});
                     }
                     turn.Release([committed, end = answer.committed] { committed(end); });
                   },
               .refuse = [committed](const Status& status) { committed(status); }});
}

}  // namespace switchyard::app
