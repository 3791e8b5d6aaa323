#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/api/call.h"
#include "server/api/core.h"
#include "server/api/expansion.h"
#include "server/app/ballast.h"
#include "server/app/inbox.h"
#include "server/app/query_pool.h"
#include "server/app/series_kinds.h"
#include "server/app/strategies.h"
#include "server/metrics/families.h"
#include "server/metrics/live_runs.h"
#include "server/scheduler/apply.h"
#include "server/scheduler/core_clock.h"
#include "server/scheduler/decide.h"
#include "server/scheduler/lease_policy.h"
#include "server/store/store.h"

namespace switchyard::app {

class Reducer;

// One group on its way to a commit: decisions are applied to memory at once and written together;
// replies leave after the commit. When the commit surely fails, memory is loaded again; contacts of
// workers stand as before the group, and revisions rise on.
class Turn {
 public:
  Turn(Reducer* reducer, const scheduler::Now& now) : reducer_(*reducer), now_(now) {}

  const scheduler::Now& now() const { return now_; }
  Reducer& reducer() { return reducer_; }
  // Decide, then Apply; the rows join the group. Refused decisions change volatile state only.
  scheduler::Decision Decide(const scheduler::Event& event);
  void Write(store::Write row) { writes_.push_back(std::move(row)); }
  // Called after the commit.
  void Release(std::function<void()> reply) { releases_.push_back(std::move(reply)); }

 private:
  friend class Reducer;
  Reducer& reducer_;
  const scheduler::Now now_;
  std::vector<store::Write> writes_;
  std::vector<std::function<void()>> releases_;
  std::vector<std::function<void()>> counts_;  // of metrics, once it is committed
};

// The one thread that owns the state and the writing connection: takes what is queued, decides,
// commits once, replies. Also the coordinator's clock, parked heartbeats, proposals and metrics.
class Reducer final : public api::Core {
 public:
  struct Options {
    std::string data_dir;
    std::string metrics_address;
    // Nothing expires so soon after a start.
    Milliseconds restart_grace{30000};
    scheduler::LeasePolicy leases;
    // Room that is kept on the disk of the database (ballast.h); 0: none.
    uint64_t ballast_bytes = 0;
  };
  // `store` is loaded here. kDataLoss and others: the database cannot be used.
  static Result<std::unique_ptr<Reducer>> Make(std::unique_ptr<store::Store> store,
                                               server_metrics::Families* families,
                                               api::ClientTracker* clients,
                                               server_metrics::LiveRuns* live_runs,
                                               Options options);
  ~Reducer() override;

  // `queries` outlives the reducer's thread.
  void Start(QueryPool* queries);
  // Ends parked heartbeats and refuses new calls; what is in the inbox is still decided.
  void Drain();
  // After Drain and after the last call has finished: ends the thread and closes the store.
  Status Stop();
  void SetMetricsAddress(std::string address);
  // Addresses of the workers' metrics, for Prometheus' HTTP service discovery. Thread-safe.
  std::string ServiceDiscovery();
  // Steady milliseconds of the newest pass of the loop. Thread-safe.
  int64_t last_pass_ms() const { return last_pass_ms_.load(); }
  bool is_healthy() const;

  void Register(scheduler::Register event, api::Callback<api::RegisterReply> done) override;
  void Heartbeat(scheduler::Heartbeat event, api::Callback<api::Desired> done) override;
  void Append(api::AppendInput input, api::Callback<api::AppendReply> done) override;
  void AppendLog(scheduler::AppendLog event, std::string data,
                 api::Callback<uint64_t> committed) override;
  void Submit(api::SubmitInput input, api::Callback<api::SubmitReply> done) override;
  void Steer(api::SteerInput input, api::Callback<uint64_t> runs_affected) override;
  void Retry(api::RetryInput input, api::Callback<api::RetryReply> done) override;
  void Extend(api::ExtendInput input, api::Callback<api::ExtendReply> done) override;
  void Ask(SweepId sweep, uint64_t since, api::Callback<api::AskReply> done) override;
  void Tell(api::TellInput input, api::Callback<api::TellReply> done) override;
  void Pin(scheduler::PinCheckpoint event, api::Callback<uint64_t> done) override;
  void Explain(RunId run, api::Callback<std::vector<std::string>> done) override;
  void ListWorkers(api::Callback<std::vector<api::WorkerInfo>> done) override;
  void GetInfo(api::Callback<api::CoordinatorInfo> done) override;

 private:
  friend class Turn;

  struct Echo {
    uint64_t incarnation = 0;
    uint64_t hb_seq = 0;
    uint64_t sent_boottime_ns = 0;
  };
  struct Parked {
    Echo echo;
    api::Callback<api::Desired> done;
    Timestamp until;  // steady
  };
  struct Summaries {
    std::map<std::string, scheduler::SummaryRow, std::less<>> rows;
    std::set<std::string> dirty;
    uint64_t step = 0;
    bool is_reset = false;
    bool is_step_dirty = false;
  };

  Reducer(std::unique_ptr<store::Store> store, server_metrics::Families* families,
          api::ClientTracker* clients, server_metrics::LiveRuns* live_runs, Options options);

  Status LoadState();
  void Loop();
  scheduler::Now MakeNow() const;
  void RunGroup(std::vector<Input> group, bool places = true);
  // After a pass that contradicts the rows: the placements that do not.
  void PlaceOneByOne();
  void Degrade(int reason);
  // Tries to leave DEGRADED: ballast whole, and a row that commits.
  void Probe();
  // False: surely failed, memory was loaded again.
  bool CommitTurn(Turn& turn, size_t inputs);
  void FinishWrites(Turn& turn);
  void BeforeApply(const scheduler::Decision& decision);
  void RunTick();
  // Placements made.
  size_t RunSchedule(Turn& turn);
  void WakeParked();
  void EndParked(bool all);
  void RequestProposals();
  Strategies::Host StrategyHost();
  // As the run's summaries have it; none: nothing reported.
  std::optional<double> ObjectiveOf(RunId run, const api::ObjectiveFacts& objective);
  // What the run's checkpoints and progress are ranked by; null: its sweep has ended.
  const api::ObjectiveFacts* FindObjective(const scheduler::Run& run);
  Result<api::ExtendReply> DecideExtend(Turn& turn, const api::ExtendInput& input);
  Result<api::TellReply> DecideTell(Turn& turn, const api::TellInput& input);
  // Fills in which planned runs exist already, or their rerun numbers, and where what they begin
  // with is kept. kFailedPrecondition: it is not kept any more.
  Status FindStored(const std::string& project, bool is_rerun,
                    std::vector<scheduler::PlannedRun>* runs);
  // Fills in where the checkpoint that it begins with is kept.
  Status FindStart(scheduler::PlannedRun* planned);
  Result<api::SubmitReply> DecideSubmit(Turn& turn, const api::SubmitInput& input);
  Result<uint64_t> DecideSteer(Turn& turn, const api::SteerInput& input);
  Result<api::RetryReply> DecideRetry(Turn& turn, const api::RetryInput& input);
  // The new run that repeats one of a sweep that failed; nullopt: it stands, or lives.
  Result<std::optional<scheduler::RetryRuns::Retried>> PlanRetry(const Turn& turn, RunId run);
  // The reply of an earlier request with this id; nullopt: none. kAlreadyExists: another body.
  Result<std::optional<std::string>> FindReply(const Turn& turn, const std::string& request_id,
                                               const std::string& body_hash);
  void Remember(Turn& turn, const std::string& request_id, std::string_view method,
                const std::string& body_hash, std::string reply);
  void UpdateGauges();
  void RefreshServiceDiscovery();

  bool HasNews(const scheduler::Worker& worker) const;
  // kUnavailable: a document that the worker needs cannot be read now.
  Result<api::Desired> BuildDesired(WorkerId worker, const Echo& echo,
                                    std::vector<scheduler::AttemptRef> gc);
  void ReleaseHeartbeat(WorkerId worker, const Echo& echo, const scheduler::HeartbeatAnswer& answer,
                        const api::Callback<api::Desired>& done);
  const store::RunDocument* FindDocument(RunId run);
  void GoLive(const scheduler::AttemptRow& attempt);
  // `is_late`: the run had ended before this batch came.
  void FoldBatch(Turn& turn, const api::AppendInput& input, const api::PreparedBatch& batch,
                 bool is_late);
  void AddScores(const api::AppendInput& input, scheduler::Append* event);
  void CountBatch(const api::AppendInput& input, const api::PreparedBatch* batch);
  bool IsHead(const scheduler::Run& run, Epoch epoch);
  std::optional<scheduler::RecordedAttempt> FindRecorded(RunId run, Epoch epoch);
  void RebuildSummaries(RunId run);
  uint64_t CreditBytes();

  std::unique_ptr<store::Store> store_;
  server_metrics::Families* const families_;
  api::ClientTracker* const clients_;
  server_metrics::LiveRuns* const live_runs_;
  const Options options_;
  Inbox inbox_;
  Ballast ballast_;
  QueryPool* queries_ = nullptr;

  // Everything below belongs to the thread.
  scheduler::State state_;
  std::unordered_map<RunId, Summaries> summaries_;
  std::unordered_set<RunId> dirty_summaries_;
  std::set<RunId> rebuild_;
  std::unordered_map<RunId, Epoch> heads_;         // newest attempts that have reported their start
  std::unordered_set<RunId> unrecorded_;           // of runs that workers name
  std::set<RunId> unplaceable_;                    // whose placement contradicts the rows
  std::vector<scheduler::AttemptRow> going_live_;  // once their rows are committed
  std::map<WorkerId, scheduler::WorkerContact> contacts_before_;  // that the group has changed
  std::set<WorkerId> woken_;
  std::map<Epoch, uint64_t> durable_;
  SeriesKinds kinds_;
  std::map<RunId, store::RunDocument> documents_;
  std::map<WorkerId, Parked> parked_;
  std::map<SweepId, std::shared_ptr<const api::Expansion>> expansions_;
  std::set<SweepId> proposing_;
  std::map<SweepId, api::ObjectiveFacts> objectives_;
  std::unordered_map<RunId, api::ObjectiveFacts> run_objectives_;  // that are live
  Strategies strategies_;
  bool needs_schedule_ = true;
  bool workers_changed_ = true;
  scheduler::CoreClock clock_;
  int64_t last_gauges_ms_ = 0;
  int64_t last_probe_ms_ = 0;
  int64_t last_idle_ms_ = 0;
  uint64_t checkpoints_seen_ = 0;
  bool was_committed_ = false;  // since the last idle work

  std::atomic<int64_t> last_pass_ms_{0};
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> degraded_{-1};  // index of the reason; -1: none
  std::mutex shared_mu_;
  std::string metrics_address_;           // guarded by shared_mu_
  std::string service_discovery_ = "[]";  // guarded by shared_mu_
  std::thread thread_;
};

}  // namespace switchyard::app
