#include "client/cli.h"

#include <algorithm>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>

#include "client/answer_verbs.h"
#include "client/commands/commands.h"
#include "client/commands/completion.h"
#include "client/exit_code.h"
#include "client/verb_options.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr char kConnectionGroup[] = "Connection and output";

const std::map<std::string, Format>& Formats() {
  static const std::map<std::string, Format> formats = {{"table", Format::kTable},
                                                        {"json", Format::kJson},
                                                        {"jsonl", Format::kJsonLines},
                                                        {"csv", Format::kCsv},
                                                        {"quiet", Format::kQuiet}};
  return formats;
}

// All options of all verbs: one call of the program fills one of them.
struct Options {
  std::string format = "table";
  SubmitOptions submit;
  PlanOptions plan;
  PreviewOptions preview;
  ExtendOptions extend;
  ForkOptions fork;
  ListOptions list;
  std::string show_id;
  std::string show_other;
  std::string explain_id;
  std::string audit_id;
  VerifyResumeOptions verify_resume;
  WatchOptions watch;
  WaitOptions wait;
  std::string fail_on = "any";
  LogsOptions logs;
  ExportOptions export_options;
  ImportOptions import_options;
  PlotOptions plot;
  ReportOptions report;
  AnswerOptions answers;
  ControlOptions control;
  ControlWorkerOptions control_worker;
  bool with_dependencies = false;
  std::string shell;
};

class Program {
 public:
  Program(const Console& console, const std::function<const char*(const char*)>& getenv)
      : app_("Submit, watch and query sweeps of Mixture-of-Experts training runs.", "switchyard") {
    context_.console = console;
    context_.getenv = getenv;
    app_.require_subcommand(1);
    app_.footer(
        "Examples:\n"
        "  switchyard plan sweep.yaml\n"
        "  switchyard submit sweep.yaml --follow\n"
        "  switchyard results last --by cell\n\n"
        "A sweep is named by its name, by `last` or by its id; a run by SWEEP/N, by a number of\n"
        "the last sweep, or by its id. Several: 3-9, 7,9, sweep:NAME, state:failed, all.\n"
        "Exit codes: 0 ok, 1 usage or validation, 2 a selected run failed, 3 no connection or\n"
        "trouble of the coordinator, 4 no permission, 5 conflict.");
    AddCommon(&app_);
    AddSweepVerbs();
    AddReadVerbs();
    AddPictureVerbs();
    AddExchangeVerbs();
    AddRunVerbs();
    AddProofVerbs();
    AddOtherVerbs();
  }

  int Run(const std::vector<std::string>& arguments) {
    // CLI11 wants them in reverse order, and reports everything by exceptions.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::ParseError& error) {
      const int code = app_.exit(error, *context_.console.out, *context_.console.err);
      if (code != 0) HintAtVerb(arguments);
      return code == 0 ? kExitOk : kExitUsage;
    }
    context_.format = Formats().at(options_.format);
    return action_();
  }

 private:
  using Action = std::function<int()>;

  // A mistyped verb is named, with the nearest one there is.
  void HintAtVerb(const std::vector<std::string>& arguments) const {
    if (arguments.empty() || arguments[0].empty() || arguments[0][0] == '-') return;
    std::vector<std::string> names;
    for (const VerbWords& verb : Words()) names.push_back(verb.name);
    if (std::find(names.begin(), names.end(), arguments[0]) != names.end()) return;
    const std::string nearest = NearestWord(arguments[0], names);
    context_.Note(StrCat("no verb \"", arguments[0], "\"",
                         nearest.empty() ? "" : StrCat("; did you mean ", nearest, "?")));
  }

  void AddCommon(CLI::App* app) {
    app->add_option(
           "--server", context_.server,
           "Coordinator: unix:PATH, PATH of a socket, or HOST:PORT. Default: "
           "$SWITCHYARD_SERVER, then the sockets of the default data directory and of /run")
        ->type_name("ADDRESS")
        ->group(kConnectionGroup);
    app->add_option("--timeout", context_.timeout_seconds,
                    "Seconds of silence after which a call is given up")
        ->check([](const std::string& text) {
          const auto seconds = ParseDouble(text);
          const bool is_limit = seconds && *seconds >= 1e-3 && *seconds <= 864'000;
          return is_limit ? std::string() : "is not a number of seconds from 0.001 to 864000";
        })
        ->type_name("SECONDS")
        ->default_str("30")
        ->group(kConnectionGroup);
    std::vector<std::string> names;
    for (const auto& [name, format] : Formats()) names.push_back(name);
    app->add_option("-o,--output", options_.format, "table, json, jsonl, csv, or quiet (names)")
        ->check(CLI::IsMember(names))
        ->type_name("FORMAT")
        ->default_str("table")
        ->group(kConnectionGroup);
  }

  CLI::App* AddVerb(const std::string& name, const std::string& summary,
                    const std::string& examples, Action action) {
    return AddVerbUnder(&app_, name, summary, examples, std::move(action));
  }

  CLI::App* AddVerbUnder(CLI::App* parent, const std::string& name, const std::string& summary,
                         const std::string& examples, Action action) {
    CLI::App* verb = parent->add_subcommand(name, summary);
    verb->footer("Examples:\n" + examples);
    AddCommon(verb);
    verb->callback([this, action = std::move(action)] { action_ = action; });
    return verb;
  }

  static void AddOverrides(CLI::App* verb, std::vector<std::string>* overrides) {
    verb->add_option("--set", *overrides,
                     "Lay a value over the file's base: --set train.steps=100. May be repeated")
        ->allow_extra_args(false)
        ->type_name("PATH=VALUE");
  }

  static void AddFile(CLI::App* verb, std::string* file) {
    verb->add_option("FILE", *file, "Sweep file (YAML); - reads standard input")->required();
  }

  void AddSweepVerbs() {
    CLI::App* submit = AddVerb("submit", "Check a sweep file and enqueue its runs",
                               "  switchyard submit sweep.yaml\n"
                               "  switchyard submit sweep.yaml --set train.steps=50 --follow\n"
                               "  name=$(switchyard submit sweep.yaml -o quiet)",
                               [this] { return RunSubmit(context_, options_.submit); });
    AddFile(submit, &options_.submit.file);
    AddOverrides(submit, &options_.submit.overrides);
    submit->add_flag("--dry-run", options_.submit.is_dry_run,
                     "Show the plan and submit nothing, as `plan` does");
    submit->add_flag("--wait", options_.submit.waits, "Wait until every run has ended");
    submit->add_flag("--follow", options_.submit.follows, "Watch until every run has ended");
    submit->add_flag("--rerun", options_.submit.is_rerun,
                     "New runs even where finished ones with the same identity exist");

    CLI::App* plan = AddVerb("plan", "Show what a sweep file would run; changes nothing",
                             "  switchyard plan sweep.yaml\n"
                             "  switchyard plan sweep.yaml --set train.batch=16 -o json\n"
                             "  switchyard plan - < sweep.yaml",
                             [this] { return RunPlan(context_, options_.plan); });
    AddFile(plan, &options_.plan.file);
    AddOverrides(plan, &options_.plan.overrides);
    plan->add_option("--cells", options_.plan.cells_max, "Cells listed; 0: all")
        ->default_str("100");

    CLI::App* preview = AddVerb("preview", "Drive a sweep's strategy on curves, without training",
                                "  switchyard preview sweep.yaml --slots 8\n"
                                "  switchyard preview sweep.yaml --noise 0.5 --curve-seed 3\n"
                                "  switchyard preview sweep.yaml --curves curves.csv -o csv",
                                [this] { return RunPreview(context_, options_.preview); });
    AddFile(preview, &options_.preview.file);
    AddOverrides(preview, &options_.preview.overrides);
    preview->add_option("--slots", options_.preview.slots, "Runs at a time")
        ->check(CLI::Range(1, 100000))
        ->default_str("4");
    preview
        ->add_option("--curves", options_.preview.curves,
                     "CSV file of recorded curves: a column per dimension, step, value, and maybe "
                     "seed. Default: synthetic ones")
        ->type_name("FILE");
    preview
        ->add_option("--curve-seed", options_.preview.curve_seed,
                     "Draws the optimum of the synthetic curves")
        ->default_str("1");
    preview
        ->add_option("--noise", options_.preview.noise,
                     "Standard deviation of the synthetic curves at step 1; falls with its root")
        ->check(CLI::NonNegativeNumber)
        ->default_str("0.1");

    AddChangeVerbs();
    AddControl("cancel", RunAction::kCancel, "Stop runs gracefully, with a checkpoint",
               "  switchyard cancel last\n"
               "  switchyard cancel router-comparison/3-9 --reason \"wrong lr\"\n"
               "  switchyard cancel state:queued");
    AddControl("kill", RunAction::kKill, "Stop runs at once, without a checkpoint",
               "  switchyard kill router-comparison/3");
    AddControl("pause", RunAction::kPause, "Stop runs with a checkpoint; they wait for a resume",
               "  switchyard pause last\n  switchyard pause router-comparison/3-9");
    AddControl("resume", RunAction::kResume, "Let paused runs and sweeps go on",
               "  switchyard resume last");
    AddControl("prune", RunAction::kPrune,
               "Stop runs that are not worth going on: they end as stopped early",
               "  switchyard prune router-comparison/4");
    CLI::App* priority =
        AddControl("priority", RunAction::kPriority,
                   "Change the priority of what is queued and of later attempts; higher first",
                   "  switchyard priority router-comparison --to 10");
    priority->add_option("--to", options_.control.priority, "New priority")->required();
    CLI::App* retry = AddVerb("retry", "Make new runs for those that have failed",
                              "  switchyard retry last\n"
                              "  switchyard retry router-comparison/3,7",
                              [this] { return RunRetry(context_, options_.control.selectors); });
    retry->add_option("SELECTOR", options_.control.selectors, "Sweeps or runs")->required();

    CLI::App* wait = AddVerb("wait", "Wait until the selected sweeps or runs have ended",
                             "  switchyard wait last\n"
                             "  switchyard wait router-comparison/1-4 --fail-on infra\n"
                             "  switchyard wait all --fail-on never",
                             [this] { return RunWaitVerb(); });
    wait->add_option("SELECTOR", options_.wait.selectors, "Sweeps or runs")->required();
    wait->add_option("--fail-on", options_.fail_on,
                     "Which failures give exit code 2: any, infra (lost to the infrastructure), "
                     "never")
        ->check(CLI::IsMember({"any", "infra", "never"}))
        ->type_name("WHICH")
        ->default_str("any");
  }

  void AddChangeVerbs() {
    CLI::App* extend = AddVerb("extend", "Add cells or seeds to a sweep; nothing is renumbered",
                               "  switchyard extend router-comparison sweep.yaml\n"
                               "  switchyard extend last --replicates +5",
                               [this] { return RunExtend(context_, options_.extend); });
    extend->add_option("SWEEP", options_.extend.sweep, "Name, id or last")->required();
    extend->add_option("FILE", options_.extend.file,
                       "The sweep's file with more in it, and nothing else changed");
    AddOverrides(extend, &options_.extend.overrides);
    extend
        ->add_option("--replicates", options_.extend.replicates,
                     "So many seeds more, the smallest that are not used")
        ->transform([](std::string text) {
          if (!text.empty() && text[0] == '+') text.erase(0, 1);
          return text;
        })
        ->type_name("+N");

    CLI::App* fork = AddVerb("fork", "Go on from a checkpoint of a run as a run of its own",
                             "  switchyard fork router-comparison/3 --at 1000 --set "
                             "train.optimizer.adam.lr=1e-4",
                             [this] { return RunFork(context_, options_.fork); });
    fork->add_option("RUN", options_.fork.run, "SWEEP/N, a number of the last sweep, or an id")
        ->required();
    fork->add_option("--at", options_.fork.step, "Step of a checkpoint that is kept")
        ->type_name("STEP")
        ->required();
    AddOverrides(fork, &options_.fork.overrides);
  }

  CLI::App* AddControl(const char* name, RunAction action, const char* help, const char* examples) {
    CLI::App* verb = AddVerb(name, help, examples, [this, action] {
      options_.control.action = action;
      return RunControl(context_, options_.control);
    });
    verb->add_option("SELECTOR", options_.control.selectors, "Sweeps or runs")->required();
    verb->add_option("--reason", options_.control.reason, "Stored with the runs");
    return verb;
  }

  CLI::App* AddWorkerControl(CLI::App* worker, const char* name, WorkerAction action,
                             const char* help, const char* examples) {
    CLI::App* verb = AddVerbUnder(worker, name, help, examples, [this, action] {
      options_.control_worker.action = action;
      return RunControlWorker(context_, options_.control_worker);
    });
    verb->add_option("WORKER", options_.control_worker.workers, "Ids or host names")->required();
    verb->add_option("--reason", options_.control_worker.reason, "Stored with the worker");
    return verb;
  }

  void AddReadVerbs() {
    CLI::App* list = AddVerb("ls", "List live sweeps, or the runs of a selector",
                             "  switchyard ls\n"
                             "  switchyard ls --all -o json\n"
                             "  switchyard ls router-comparison\n"
                             "  switchyard ls state:failed",
                             [this] { return RunList(context_, options_.list); });
    list->add_option("SWEEP", options_.list.sweep, "Sweep, or selector of runs");
    list->add_flag("-a,--all", options_.list.with_finished, "Finished sweeps as well");
    list->add_option("--limit", options_.list.limit,
                     "Runs shown, 0 for all (default: 100 in a table, else all)");

    CLI::App* show =
        AddVerb("show", "Show a sweep or a run: spec, attempts, checkpoints, history",
                "  switchyard show last\n"
                "  switchyard show router-comparison/3\n"
                "  switchyard show 3 -o json\n"
                "  switchyard show router-comparison/3 router-comparison/4",
                [this] {
                  return options_.show_other.empty()
                             ? RunShow(context_, options_.show_id)
                             : RunShowDiff(context_, options_.show_id, options_.show_other);
                });
    show->add_option("ID", options_.show_id, "Sweep or run")->required();
    show->add_option("OTHER", options_.show_other,
                     "Another one: only the fields of the specs that differ are shown");

    CLI::App* explain = AddVerb("explain", "Say why a run waits, runs where it does, or ended",
                                "  switchyard explain 3\n"
                                "  switchyard explain router-comparison/3",
                                [this] { return RunExplain(context_, options_.explain_id); });
    explain->add_option("ID", options_.explain_id, "Run")->required();

    AddAnswerVerbs(
        [this](const std::string& name, const std::string& summary, const std::string& examples,
               Action action) { return AddVerb(name, summary, examples, std::move(action)); },
        context_, &options_.answers);
  }

  void AddPictureVerbs() {
    AddPlotOptions(AddVerb("plot", "Draw a sweep's results: in the terminal, as SVG or as PNG",
                           "  switchyard plot last\n"
                           "  switchyard plot last --metric train/nats_per_token --band range\n"
                           "  switchyard plot last --kind heatmap --by router\n"
                           "  switchyard plot last --kind pareto --out front.svg\n"
                           "  switchyard plot last --with baseline --out curves.png",
                           [this] { return RunPlot(context_, options_.plot); }),
                   &options_.plot);
    AddReportOptions(AddVerb("report", "Write one HTML file about a sweep",
                             "  switchyard report last --html report.html\n"
                             "  switchyard report last --html - > report.html",
                             [this] { return RunReport(context_, options_.report); }),
                     &options_.report);
  }

  void AddExchangeVerbs() {
    AddExportOptions(AddVerb("export", "Write a sweep's runs and curves for other programs",
                             "  switchyard export last --format csv --out results\n"
                             "  switchyard export last --format tensorboard --out board "
                             "--series valid/bits_per_byte\n"
                             "  switchyard export last --format mlflow --out exported "
                             "--where 'state = \"succeeded\"'",
                             [this] { return RunExport(context_, options_.export_options); }),
                     &options_.export_options);
    AddImportOptions(AddVerb("import", "Keep curves of a CSV file, to be drawn beside a sweep's",
                             "  switchyard import baseline.csv\n"
                             "  switchyard import log.csv --name paper --metric Value "
                             "--rename Value=valid/bits_per_byte\n"
                             "  switchyard import --list\n"
                             "  switchyard plot last --with baseline",
                             [this] { return RunImport(context_, options_.import_options); }),
                     &options_.import_options);
  }

  void AddRunVerbs() {
    CLI::App* watch = AddVerb("watch", "Follow progress, loss and routing entropy in the terminal",
                              "  switchyard watch\n"
                              "  switchyard watch last\n"
                              "  switchyard watch router-comparison/3 --once",
                              [this] { return RunWatch(context_, options_.watch); });
    watch->add_option("ID", options_.watch.id, "Sweep or run; none: everything live");
    watch->add_flag("--once", options_.watch.is_once, "Print one frame and end");
    watch->add_option("--interval", options_.watch.interval_seconds, "Seconds between frames")
        ->check(CLI::Range(0.05, 3600.0))
        ->type_name("SECONDS")
        ->default_str("1");

    CLI::App* logs = AddVerb("logs", "Print what a run wrote",
                             "  switchyard logs 3\n"
                             "  switchyard logs router-comparison/3 -f --stderr\n"
                             "  switchyard logs 3 --attempt 1 --raw > attempt1.log",
                             [this] { return RunLogs(context_, options_.logs); });
    logs->add_option("ID", options_.logs.run, "Run")->required();
    logs->add_flag("-f,--follow", options_.logs.follows, "Go on until the run has ended");
    logs->add_flag("--stderr", options_.logs.is_stderr, "Standard error instead of output");
    logs->add_option("--attempt", options_.logs.attempt, "Attempt; default: the newest")
        ->type_name("N");
    logs->add_flag("--raw", options_.logs.is_raw,
                   "Bytes as written; not to a terminal, where control characters are escaped");
  }

  // Verbs that make a run prove something.
  void AddProofVerbs() {
    CLI::App* audit =
        AddVerb("audit", "See whether a run's model depends on later tokens, its batch or padding",
                "  switchyard audit 3\n"
                "  switchyard audit router-comparison/3 -o json",
                [this] { return RunAudit(context_, options_.audit_id); });
    audit->add_option("RUN", options_.audit_id, "Run with a checkpoint")->required();

    VerifyResumeOptions& verify = options_.verify_resume;
    CLI::App* resume =
        AddVerb("verify-resume",
                "Train a run's spec here with and without interruption, and compare every bit",
                "  switchyard verify-resume 3\n"
                "  switchyard verify-resume router-comparison/3 --steps 200 --threads 2",
                [this] { return RunVerifyResume(context_, options_.verify_resume); });
    resume->add_option("RUN", verify.run, "Run whose spec is trained")->required();
    resume->add_option("--steps", verify.steps, "Steps compared, at most the run's")
        ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 40))
        ->default_str("40");
    resume->add_option("--at", verify.at, "Step of the interruptions (default: at random)")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
    resume->add_option("--threads", verify.threads, "Threads of the trainer")
        ->check(CLI::Range(1, 1024))
        ->default_str("1");
    resume->add_option("--trainer", verify.trainer,
                       "Trainer (default: switchyard-trainer beside this program)");
    resume->add_flag("--keep", verify.is_kept, "Keep the checkpoints (always after a difference)");
  }

  void AddOtherVerbs() {
    CLI::App* worker = app_.add_subcommand("worker", "Workers");
    worker->require_subcommand(1);
    worker->footer("Examples:\n  switchyard worker ls");
    AddVerbUnder(worker, "ls", "List workers, their slots and runs",
                 "  switchyard worker ls\n  switchyard worker ls -o json",
                 [this] { return RunWorkerList(context_); });
    CLI::App* drain = AddWorkerControl(
        worker, "drain", WorkerAction::kDrain,
        "Give a worker nothing new and move its runs elsewhere, each with a checkpoint",
        "  switchyard worker drain host7 --deadline 120");
    drain
        ->add_option("--deadline", options_.control_worker.deadline_seconds,
                     "Seconds until it shall be empty; default 60 for each run to stop")
        ->check(CLI::Range(1, 7 * 24 * 3600));
    AddWorkerControl(worker, "undrain", WorkerAction::kUndrain, "Give a drained worker work again",
                     "  switchyard worker undrain host7");
    AddWorkerControl(worker, "cordon", WorkerAction::kCordon,
                     "Give a worker nothing new; what runs goes on",
                     "  switchyard worker cordon host7 --reason \"fan\"");
    AddWorkerControl(worker, "uncordon", WorkerAction::kUncordon,
                     "Give a cordoned worker work again", "  switchyard worker uncordon host7");
    CLI::App* fence =
        AddWorkerControl(worker, "fence", WorkerAction::kFence,
                         "Replace the attempts of a worker whose processes are known to be gone",
                         "  switchyard worker fence host7 --confirm-dead");
    fence->add_flag("--confirm-dead", options_.control_worker.confirms_death,
                    "Every process of the worker is gone");
    AddVerb("status", "State of the coordinator and its fleet",
            "  switchyard status\n  switchyard status -o json",
            [this] { return RunStatus(context_); });
    CLI::App* version = AddVerb(
        "version", "Version of this program", "  switchyard version\n  switchyard version --deps",
        [this] { return RunVersion(context_, options_.with_dependencies); });
    version->add_flag("--deps", options_.with_dependencies, "Versions of linked libraries");
    CLI::App* completion = AddVerb("completion", "Print a completion script for a shell",
                                   "  source <(switchyard completion bash)\n"
                                   "  source <(switchyard completion zsh)\n"
                                   "  switchyard completion fish | source",
                                   [this] {
                                     context_.Print(CompletionScript(options_.shell, Words()));
                                     return static_cast<int>(kExitOk);
                                   });
    completion->add_option("SHELL", options_.shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  }

  int RunWaitVerb() {
    options_.wait.fail_on = options_.fail_on == "any"     ? FailOn::kAny
                            : options_.fail_on == "infra" ? FailOn::kInfra
                                                          : FailOn::kNever;
    return RunWait(context_, options_.wait);
  }

  // What the shells complete, read off the program's own description.
  std::vector<VerbWords> Words() const {
    std::vector<VerbWords> words;
    for (const CLI::App* verb : app_.get_subcommands([](const CLI::App*) { return true; })) {
      VerbWords word{.name = verb->get_name(), .summary = verb->get_description()};
      for (const CLI::Option* option : verb->get_options()) {
        for (const std::string& name : option->get_snames()) word.options.push_back("-" + name);
        for (const std::string& name : option->get_lnames()) word.options.push_back("--" + name);
        if (!option->get_positional()) continue;
        const std::string& name = option->get_name(true);
        if (name == "FILE") {
          word.takes_file = true;
        } else if (name == "SHELL") {
          word.subverbs = {"bash", "zsh", "fish"};
        } else if (name != "SERIES") {
          word.takes_name = true;
        }
      }
      for (const CLI::App* under : verb->get_subcommands([](const CLI::App*) { return true; })) {
        word.subverbs.push_back(under->get_name());
      }
      words.push_back(std::move(word));
    }
    return words;
  }

  CLI::App app_;
  Context context_;
  Options options_;
  Action action_;
};

}  // namespace

int RunCli(const std::vector<std::string>& arguments, const Console& console,
           const std::function<const char*(const char*)>& getenv) {
  return Program(console, getenv).Run(arguments);
}

}  // namespace switchyard::client
