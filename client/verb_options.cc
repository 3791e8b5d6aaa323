#include "client/verb_options.h"

#include <CLI/CLI.hpp>

#include "client/commands/commands.h"

namespace switchyard::client {
namespace {

void AddWhere(CLI::App* verb, std::string* where) {
  verb->add_option("--where", *where, "Only runs that satisfy it, as in `results`")
      ->type_name("EXPR");
}

void AddWith(CLI::App* verb, std::vector<std::string>* with) {
  verb->add_option("--with", *with, "Imported curves drawn beside the sweep's. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME");
}

}  // namespace

void AddPlotOptions(CLI::App* verb, PlotOptions* options) {
  verb->add_option("SWEEP", options->sweep, "Sweep")->required();
  verb->add_option("--kind", options->kind,
                   "curve, bar, scatter, pareto (scatter with its front), heatmap (load by layer "
                   "and expert of each group's best run; with --x AXIS means over axes), parallel "
                   "(coordinates)")
      ->check(CLI::IsMember({"curve", "bar", "scatter", "pareto", "heatmap", "parallel"}))
      ->type_name("KIND")
      ->default_str("curve");
  verb->add_option("--metric", options->metric,
                   "Series; default: the objective, of a heat map routing/expert_load")
      ->type_name("SERIES");
  verb->add_option("--x", options->x,
                   "Of curves: step, tokens, wall_seconds or train.flops (default step); of "
                   "points: these, an axis, a series or seed (default model/params_active); of a "
                   "heat map: an axis")
      ->type_name("NAME");
  verb->add_option("--by", options->by,
                   "One line, bar or colour for runs that are equal in these: axes, router, seed, "
                   "state, run (default: all axes)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,...");
  verb->add_option("--band", options->band,
                   "Around the mean over runs: none, sd (sample standard deviation), range (lowest "
                   "to highest), ci (95 % interval of the mean)")
      ->check(CLI::IsMember({"none", "sd", "range", "ci"}))
      ->type_name("BAND")
      ->default_str("sd");
  AddWhere(verb, &options->where);
  AddWith(verb, &options->with);
  verb->add_option("--title", options->title, "Title instead of the usual one")->type_name("TEXT");
  verb->add_option("--out", options->out, "File that ends in .svg or .png; default: the terminal")
      ->type_name("FILE");
  verb->add_flag("--log-x", options->has_log_x, "Logarithmic x axis");
  verb->add_flag("--log-y", options->has_log_y, "Logarithmic y axis");
}

void AddReportOptions(CLI::App* verb, ReportOptions* options) {
  verb->add_option("SWEEP", options->sweep, "Sweep")->required();
  verb->add_option("--html", options->html, "File; - writes to standard output")
      ->required()
      ->type_name("FILE");
  AddWhere(verb, &options->where);
  AddWith(verb, &options->with);
}

void AddExportOptions(CLI::App* verb, ExportOptions* options) {
  verb->add_option("SWEEP", options->sweep, "Sweep")->required();
  verb->add_option("--format", options->format, "csv, jsonl, tensorboard or mlflow")
      ->required()
      ->check(CLI::IsMember({"csv", "jsonl", "tensorboard", "mlflow"}))
      ->type_name("FORMAT");
  verb->add_option("--out", options->out, "Folder that is made; one that is there is refused")
      ->required()
      ->type_name("DIR");
  AddWhere(verb, &options->where);
  verb->add_option("--series", options->series, "Curves written (default: all). May be repeated")
      ->allow_extra_args(false)
      ->type_name("SERIES");
}

void AddImportOptions(CLI::App* verb, ImportOptions* options) {
  verb->add_option("FILE", options->file,
                   "CSV file with columns step, metric, value and maybe run, seed; or step and a "
                   "column per metric; - reads standard input");
  verb->add_option("--name", options->name, "Name of the set (default: the file's)")
      ->type_name("NAME");
  verb->add_option("--metric", options->metrics,
                   "Only this metric, by its name in the file. May be repeated")
      ->allow_extra_args(false)
      ->type_name("METRIC");
  verb->add_option("--rename", options->renames,
                   "Call a metric of the file by another name. May be repeated")
      ->allow_extra_args(false)
      ->type_name("OLD=NEW");
  verb->add_flag("--replace", options->replaces, "In the place of a set of that name");
  CLI::Option* list = verb->add_flag("--list", options->lists, "List what was imported");
  verb->add_option("--remove", options->removed, "Remove an imported set")
      ->excludes(list)
      ->type_name("NAME");
}

}  // namespace switchyard::client
