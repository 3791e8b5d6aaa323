#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include <unistd.h>

#include "client/commands/commands.h"
#include "client/commands/watch_frame.h"
#include "client/exit_code.h"
#include "client/output/sparkline.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "switchyard/v1/admin_service.pb.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr uint32_t kPointsPerPage = 10'000;
constexpr size_t kCurveValuesMax = 2048;
constexpr size_t kRunsMax = 60;

// ---------------------------------------------------------------- the terminal

constexpr char kHideCursor[] = "\x1b[?25l\x1b[?7l";
constexpr char kShowCursor[] = "\x1b[?7h\x1b[?25h";

// Puts the terminal right and lets the signal do what it does.
extern "C" void RestoreTerminal(int signal_number) {
  constexpr char kText[] = "\r\x1b[K\x1b[?7h\x1b[?25h";
  const ssize_t ignored = write(STDOUT_FILENO, kText, sizeof kText - 1);
  static_cast<void>(ignored);  // Nothing can be done about it here.
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

extern "C" void NoticeResize(int) {}  // Ends the sleep: the next frame is drawn at once.

// Draws frames in place while it lives. One per process, on a terminal only.
class Screen {
 public:
  explicit Screen(const Console& console) : console_(console) {
    struct sigaction action {};
    action.sa_handler = RestoreTerminal;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
    action.sa_handler = NoticeResize;
    sigaction(SIGWINCH, &action, &resize_);
    *console_.out << kHideCursor << std::flush;
  }
  ~Screen() {
    *console_.out << kShowCursor << std::flush;
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
    sigaction(SIGWINCH, &resize_, nullptr);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Draw(const WatchView& view) {
    const TerminalSize size = console_.size();
    std::vector<std::string> lines = RenderWatch(
        view, {.columns = size.columns, .rows = size.rows, .has_color = console_.has_color});
    *console_.out << Redraw(previous_, lines, size.columns) << std::flush;
    previous_ = std::move(lines);
  }

 private:
  const Console& console_;
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
  struct sigaction resize_ {};
  std::vector<std::string> previous_;
};

// ---------------------------------------------------------------- the data

// The points of one series that have been fetched: means of `stride` points each, a stride that
// doubles as they become many.
class Curve {
 public:
  uint64_t next_step() const { return next_step_; }
  const std::vector<double>& values() const { return values_; }

  void Add(uint64_t step, double value) {
    next_step_ = step + 1;
    pending_.push_back(value);
    if (pending_.size() < stride_) return;
    values_.push_back(Thin(pending_, 1)[0]);
    pending_.clear();
    if (values_.size() < kCurveValuesMax) return;
    values_ = Thin(values_, kCurveValuesMax / 2);
    stride_ *= 2;
  }

 private:
  uint64_t next_step_ = 0;
  size_t stride_ = 1;
  std::vector<double> values_;
  std::vector<double> pending_;
};

double Mean(const pb::Point& point) {
  if (point.values_size() == 0) return point.value();
  double sum = 0;
  int count = 0;
  for (const float value : point.values()) {
    if (!std::isfinite(value)) continue;
    sum += static_cast<double>(value);
    ++count;
  }
  return count > 0 ? sum / count : kNaN;
}

std::optional<double> Last(const pb::Run& run, std::string_view series) {
  const pb::SeriesSummary* summary = FindSummary(run, series);
  return summary != nullptr ? std::optional<double>(summary->last()) : std::nullopt;
}

WatchSweep ToView(const pb::Sweep& sweep, int64_t now_ms) {
  const pb::RunCounts& counts = sweep.counts();
  WatchSweep view{.name = sweep.name(),
                  .state = StateText(sweep.state()),
                  .runs = sweep.runs(),
                  .succeeded = counts.succeeded(),
                  .failed = counts.failed(),
                  .cancelled = counts.cancelled(),
                  .set_aside = counts.other(),
                  .active = counts.active(),
                  .waiting = counts.waiting() + counts.queued()};
  if (!IsTerminal(sweep.state())) {
    view.elapsed_seconds = std::max(0.0, static_cast<double>(now_ms - sweep.created_ms()) / 1000);
  }
  return view;
}

WatchRun ToView(const pb::Run& run) {
  WatchRun view{.name = run.name(),
                .state = StateText(run.state()),
                .step = run.step(),
                .steps_total = run.steps_total(),
                .loss = Last(run, kTrainLoss),
                .entropy = Last(run, kUsageEntropy),
                .tokens_per_second = Last(run, kTokensPerSecond),
                .reason = run.reason()};
  for (const pb::AxisValue& column : run.columns()) {
    view.label += StrCat(view.label.empty() ? "" : " ", column.value());
  }
  const std::optional<double> step_seconds = Last(run, kStepSeconds);
  if (run.state() == pb::RUN_STATE_ACTIVE && step_seconds && std::isfinite(*step_seconds) &&
      run.steps_total() >= run.step()) {
    view.eta_seconds = static_cast<double>(run.steps_total() - run.step()) * *step_seconds;
  }
  return view;
}

// Asks the coordinator for what a frame needs; keeps curves, of which each call fetches only what
// is new.
class Collector {
 public:
  Collector(Connection& connection, std::string id) : connection_(connection), id_(std::move(id)) {}

  // What is watched: one run, one sweep, or (empty id) all live sweeps.
  Status Start() {
    if (id_.empty() || id_ == "all") {
      id_.clear();
      return OkStatus();
    }
    Selection selection;
    SWITCHYARD_RETURN_IF_ERROR(Resolve(connection_, {id_}, &selection));
    if (selection.sweeps.size() == 1 && selection.runs.empty()) {
      sweep_id_ = selection.sweeps[0].id();
      return OkStatus();
    }
    if (selection.runs.size() == 1 && selection.sweeps.empty()) {
      run_id_ = selection.runs[0].id();
      return OkStatus();
    }
    return InvalidArgument(StrCat("watch shows one sweep, one run, or everything live; \"", id_,
                                  "\" is none of these"));
  }

  // `runs_max`: rows there is place for. `is_over`: nothing will change any more.
  Status Collect(size_t runs_max, WatchView* view, bool* is_over) {
    *view = {};
    *is_over = false;
    if (!run_id_.empty()) return CollectRun(view, is_over);
    SWITCHYARD_RETURN_IF_ERROR(AddFleet(view));
    std::vector<pb::Sweep> sweeps;
    SWITCHYARD_RETURN_IF_ERROR(GetSweeps(&sweeps));
    const int64_t now_ms = UnixMilliseconds();
    *is_over = std::all_of(sweeps.begin(), sweeps.end(),
                           [](const pb::Sweep& sweep) { return IsTerminal(sweep.state()); });
    for (const pb::Sweep& sweep : sweeps) view->sweeps.push_back(ToView(sweep, now_ms));
    SWITCHYARD_RETURN_IF_ERROR(AddActive(runs_max, view));
    if (view->sweeps.size() == 1) view->sweeps[0].eta_seconds = SweepEta(view->sweeps[0], *view);
    return OkStatus();
  }

 private:
  Status AddFleet(WatchView* view) {
    pb::ListWorkersResponse response;
    SWITCHYARD_RETURN_IF_ERROR(connection_.ListWorkers({}, &response));
    uint64_t slots = 0;
    uint64_t busy = 0;
    for (const pb::Worker& worker : response.workers()) {
      slots += static_cast<uint64_t>(worker.slots_size());
      busy += worker.slots_busy();
    }
    view->fleet =
        StrCat(response.workers_size(), response.workers_size() == 1 ? " worker, " : " workers, ",
               busy, " of ", slots, " slots busy");
    return OkStatus();
  }

  Status GetSweeps(std::vector<pb::Sweep>* sweeps) {
    if (sweep_id_.empty()) return ListSweeps(connection_, false, sweeps);
    pb::GetSweepRequest request;
    request.set_sweep(sweep_id_);
    sweeps->emplace_back();
    return connection_.GetSweep(request, &sweeps->back());
  }

  Status CollectRun(WatchView* view, bool* is_over) {
    pb::GetRunRequest request;
    request.set_run(run_id_);
    pb::RunDetail detail;
    SWITCHYARD_RETURN_IF_ERROR(connection_.GetRun(request, &detail));
    *is_over = IsTerminal(detail.run().state());
    view->runs.push_back(ToView(detail.run()));
    return AddCurves(detail.run(), &view->runs.back());
  }

  Status AddActive(size_t runs_max, WatchView* view) {
    pb::ListRunsRequest request;
    request.set_sweep(sweep_id_);
    request.add_states(pb::RUN_STATE_ACTIVE);
    request.set_page_size(static_cast<uint32_t>(std::clamp<size_t>(runs_max, 1, kRunsMax)));
    for (const char* series : {kTrainLoss, kUsageEntropy, kTokensPerSecond, kStepSeconds}) {
      request.add_series(series);
    }
    pb::ListRunsResponse response;
    SWITCHYARD_RETURN_IF_ERROR(connection_.ListRuns(request, &response));
    std::map<std::string, std::map<std::string, Curve>> kept;
    for (const pb::Run& run : response.runs()) {
      view->runs.push_back(ToView(run));
      SWITCHYARD_RETURN_IF_ERROR(AddCurves(run, &view->runs.back()));
      kept[run.id()] = std::move(curves_[run.id()]);
    }
    curves_ = std::move(kept);
    const auto shown = static_cast<uint64_t>(response.runs_size());
    view->runs_hidden = response.total() > shown ? response.total() - shown : 0;
    return OkStatus();
  }

  Status AddCurves(const pb::Run& run, WatchRun* view) {
    SWITCHYARD_RETURN_IF_ERROR(Extend(run, kTrainLoss, &view->loss_curve));
    SWITCHYARD_RETURN_IF_ERROR(Extend(run, kUsageEntropy, &view->entropy_curve));
    const auto newest = [](const std::vector<double>& values) {
      return values.empty() ? std::nullopt : std::optional<double>(values.back());
    };
    // GetRun may come without summaries; the curve has the same value.
    if (!view->loss) view->loss = newest(view->loss_curve);
    if (!view->entropy) view->entropy = newest(view->entropy_curve);
    return OkStatus();
  }

  Status Extend(const pb::Run& run, const std::string& series, std::vector<double>* values) {
    Curve& curve = curves_[run.id()][series];
    // A new attempt may repeat steps: the curve is fetched anew.
    if (run.step() + 1 < curve.next_step()) curve = {};
    pb::GetCurveRequest request;
    request.set_run(run.id());
    request.set_series(series);
    request.set_from_step(curve.next_step());
    request.set_page_size(kPointsPerPage);
    while (run.step() >= curve.next_step()) {
      pb::GetCurveResponse response;
      const Status status = connection_.GetCurve(request, &response);
      if (status.code() == Code::kNotFound) break;  // No such series yet, or never (dense).
      SWITCHYARD_RETURN_IF_ERROR(status);
      for (const pb::Point& point : response.points()) curve.Add(point.step(), Mean(point));
      if (response.next_page_token().empty()) break;
      request.set_page_token(response.next_page_token());
    }
    *values = curve.values();
    return OkStatus();
  }

  // By the share that is done of all runs, those under way counted by their steps.
  double SweepEta(const WatchSweep& sweep, const WatchView& view) const {
    double done = static_cast<double>(sweep.ended());
    for (const WatchRun& run : view.runs) {
      if (run.steps_total == 0) continue;
      done += static_cast<double>(run.step) / static_cast<double>(run.steps_total);
    }
    const double share = sweep.runs > 0 ? done / static_cast<double>(sweep.runs) : 1;
    if (share <= 0.01 || share >= 1) return -1;
    return sweep.elapsed_seconds * (1 - share) / share;
  }

  Connection& connection_;
  std::string id_;
  std::string sweep_id_;
  std::string run_id_;
  std::map<std::string, std::map<std::string, Curve>> curves_;  // run id -> series -> points
};

// ---------------------------------------------------------------- without a terminal

// Prints a line for what has changed: a sweep's counts, a run's state, every tenth of its steps.
class PlainPrinter {
 public:
  explicit PlainPrinter(const Context& context) : context_(context) {}

  void Print(const WatchView& view) {
    for (const WatchSweep& sweep : view.sweeps) {
      const std::string line = PlainLine(sweep);
      if (std::exchange(shown_["sweep " + sweep.name], line) != line) context_.Print(line + "\n");
    }
    for (const WatchRun& run : view.runs) {
      const uint64_t tenth = run.steps_total > 0 ? run.step * 10 / run.steps_total : 0;
      const std::string mark = StrCat(run.state, " ", tenth);
      if (std::exchange(shown_["run " + run.name], mark) != mark) {
        context_.Print(PlainLine(run) + "\n");
      }
    }
    if (!view.note.empty() && view.note != note_) context_.Note(view.note);
    note_ = view.note;
  }

 private:
  const Context& context_;
  std::map<std::string, std::string> shown_;
  std::string note_;
};

int WatchLoop(const Context& context, const WatchOptions& options, Collector& collector,
              const std::function<void(const WatchView&)>& show) {
  WatchView view;
  bool is_over = false;
  int64_t answered_ms = MonotonicNow().ms;
  while (true) {
    const size_t place = RunRowsThatFit(1, context.console.size().rows);
    WatchView next;
    const Status status =
        collector.Collect(context.console.out_is_terminal ? place : kRunsMax, &next, &is_over);
    if (status.ok()) {
      view = std::move(next);
      answered_ms = MonotonicNow().ms;
    } else if (const double silent_seconds =
                   static_cast<double>(MonotonicNow().ms - answered_ms) / 1000;
               status.is_retryable() && silent_seconds < context.timeout_seconds &&
               !options.is_once) {
      // A restart of the coordinator: the last view stays, with a word about it.
      is_over = false;
      view.note = "the coordinator does not answer, trying again";
    } else {
      return context.Fail(status);
    }
    show(view);
    if (is_over || options.is_once) return kExitOk;
    context.console.sleep(static_cast<int>(options.interval_seconds * 1000));
  }
}

}  // namespace

int RunWatch(const Context& context, const WatchOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Collector collector(**connected, options.id);
  if (const Status status = collector.Start(); !status.ok()) return context.Fail(status);
  if (context.console.out_is_terminal && !options.is_once) {
    Screen screen(context.console);
    return WatchLoop(context, options, collector,
                     [&](const WatchView& view) { screen.Draw(view); });
  }
  if (options.is_once) {
    return WatchLoop(context, options, collector, [&](const WatchView& view) {
      const TerminalSize size = context.console.size();
      const FrameStyle style{.columns = size.columns,
                             .rows = context.console.out_is_terminal ? size.rows : SIZE_MAX,
                             .has_color = context.console.has_color};
      for (const std::string& line : RenderWatch(view, style)) context.Print(line + "\n");
    });
  }
  PlainPrinter printer(context);
  return WatchLoop(context, options, collector,
                   [&](const WatchView& view) { printer.Print(view); });
}

}  // namespace switchyard::client
