#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/commands/context.h"
#include "client/commands/runs.h"

namespace switchyard::client {

// Each verb: options in, exit code (exit_code.h) out. Results go to standard output, errors and
// notes to standard error.

struct PlanOptions {
  std::string file;  // "-": standard input
  std::vector<std::string> overrides;
  uint32_t cells_max = 100;  // cells listed; 0: all
};
int RunPlan(const Context& context, const PlanOptions& options);

struct PreviewOptions {
  std::string file;  // "-": standard input
  std::vector<std::string> overrides;
  uint64_t slots = 4;       // runs at a time
  std::string curves;       // recorded ones, a CSV file; empty: synthetic ones
  uint64_t curve_seed = 1;  // where the synthetic optimum lies
  double noise = 0.1;
};
int RunPreview(const Context& context, const PreviewOptions& options);

struct SubmitOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool is_dry_run = false;
  bool waits = false;
  bool follows = false;
  bool is_rerun = false;
};
int RunSubmit(const Context& context, const SubmitOptions& options);

struct ExtendOptions {
  std::string sweep;
  std::string file;  // empty: `replicates`
  std::vector<std::string> overrides;
  uint32_t replicates = 0;  // seeds more
};
int RunExtend(const Context& context, const ExtendOptions& options);

struct ForkOptions {
  std::string run;
  uint64_t step = 0;
  std::vector<std::string> overrides;
};
int RunFork(const Context& context, const ForkOptions& options);

struct ListOptions {
  std::string sweep;  // empty: sweeps; else a selector whose runs are listed
  bool with_finished = false;
  // Runs shown of a sweep; 0: all. Absent: 100 in a table, all in other formats.
  std::optional<uint64_t> limit;
};
int RunList(const Context& context, const ListOptions& options);

int RunShow(const Context& context, const std::string& id);
// Fields of the specs of two runs, or of two sweeps, that differ.
int RunShowDiff(const Context& context, const std::string& left, const std::string& right);
int RunExplain(const Context& context, const std::string& id);

struct WatchOptions {
  std::string id;  // empty: everything live
  bool is_once = false;
  double interval_seconds = 1;
};
int RunWatch(const Context& context, const WatchOptions& options);

// Audits a run's newest checkpoint by a run of kind analyze, waits, and prints the verdict.
int RunAudit(const Context& context, const std::string& id);

struct VerifyResumeOptions {
  std::string run;
  uint64_t steps = 40;  // compared, at most the run's
  uint64_t at = 0;      // where it is interrupted; 0: at random
  uint32_t threads = 1;
  std::string trainer;  // empty: the one beside this program
  bool is_kept = false;
};
// Trains the run's spec here, on this host, without and with interruptions, and compares what comes
// out bit for bit.
int RunVerifyResume(const Context& context, const VerifyResumeOptions& options);

enum class FailOn { kAny, kInfra, kNever };
struct WaitOptions {
  std::vector<std::string> selectors;
  FailOn fail_on = FailOn::kAny;
};
int RunWait(const Context& context, const WaitOptions& options);

struct LogsOptions {
  std::string run;
  bool follows = false;
  bool is_stderr = false;
  uint32_t attempt = 0;  // 0: the newest
  bool is_raw = false;
};
int RunLogs(const Context& context, const LogsOptions& options);

struct ResultsOptions {
  std::string sweep;
  std::vector<std::string> metrics;  // empty: the objective and the usual ones
  std::string where;                 // expression that runs satisfy; empty: all
  // Empty or "run": a row per run; "cell": per cell; else names that runs are grouped by.
  std::vector<std::string> by;
  std::string sort;  // expression that orders the runs; empty: the first metric
  bool descending = false;
  uint64_t limit = 0;       // rows; 0: all
  bool wants_best = false;  // neither: as the objective says
  bool wants_last = false;
};
int RunResults(const Context& context, const ResultsOptions& options);

struct MetricsOptions {
  std::string run;
  std::string series;    // empty: the list of series
  std::string attempts;  // empty: canonical; a number; "all"
  uint64_t from_step = 0;
  uint32_t points_max = 0;  // 0: all points
};
int RunMetrics(const Context& context, const MetricsOptions& options);

struct ExportOptions {
  std::string sweep;
  std::string format;               // csv, jsonl, tensorboard, mlflow
  std::string out;                  // folder, which is not there yet
  std::string where;                // expression that runs satisfy; empty: all
  std::vector<std::string> series;  // curves written; empty: all
};
int RunExport(const Context& context, const ExportOptions& options);

struct ImportOptions {
  std::string file;  // CSV; "-": standard input
  std::string name;  // of the set; empty: made from the file's name
  std::vector<std::string> metrics;
  std::vector<std::string> renames;  // OLD=NEW
  bool replaces = false;
  bool lists = false;   // lists what was imported instead
  std::string removed;  // name of a set that is removed instead
};
int RunImport(const Context& context, const ImportOptions& options);

struct PlotOptions {
  std::string sweep;
  std::string kind = "curve";  // curve, bar, scatter, pareto, heatmap, parallel
  std::string metric;          // empty: the objective
  std::string x;
  std::vector<std::string> by;
  std::string band = "sd";  // none, sd, range, ci
  std::string where;
  std::vector<std::string> with;  // imported sets
  std::string title;
  std::string out;  // .svg or .png; empty: the terminal
  bool has_log_x = false;
  bool has_log_y = false;
};
int RunPlot(const Context& context, const PlotOptions& options);

struct ReportOptions {
  std::string sweep;
  std::string html;  // file; "-": standard output
  std::string where;
  std::vector<std::string> with;  // imported sets
};
int RunReport(const Context& context, const ReportOptions& options);

// Numbers of switchyard.v1.Action.
enum class RunAction { kCancel = 1, kKill = 2, kPause = 3, kResume = 4, kPrune = 5, kPriority = 6 };
struct ControlOptions {
  std::vector<std::string> selectors;
  RunAction action = RunAction::kCancel;
  std::string reason;
  int32_t priority = 0;  // kPriority
};
int RunControl(const Context& context, const ControlOptions& options);
// New runs for the failed ones among the selected.
int RunRetry(const Context& context, const std::vector<std::string>& selectors);

int RunWorkerList(const Context& context);
// Numbers of switchyard.v1.WorkerAction.
enum class WorkerAction { kDrain = 1, kUndrain = 2, kCordon = 3, kUncordon = 4, kFence = 5 };
struct ControlWorkerOptions {
  std::vector<std::string> workers;  // ids or host names
  WorkerAction action = WorkerAction::kDrain;
  std::string reason;
  std::optional<uint32_t> deadline_seconds;  // kDrain
  bool confirms_death = false;               // kFence
};
int RunControlWorker(const Context& context, const ControlWorkerOptions& options);
int RunStatus(const Context& context);
int RunVersion(const Context& context, bool with_dependencies);

}  // namespace switchyard::client
