#include "client/answer_verbs.h"

#include <CLI/CLI.hpp>

namespace switchyard::client {
namespace {

void AddResults(const AddVerbFunction& add, const Context& context, AnswerOptions* options) {
  CLI::App* results = add("results", "Table of a sweep's results, the best first",
                          "  switchyard results last\n"
                          "  switchyard results router-comparison --by cell\n"
                          "  switchyard results last --by model.moe.router.kind "
                          "--where 'state = \"succeeded\"'\n"
                          "  switchyard results last --metric valid/bits_per_byte "
                          "--metric train/tokens_per_second --last -o csv",
                          [&context, options] { return RunResults(context, options->results); });
  results->add_option("SWEEP", options->results.sweep, "Sweep")->required();
  results
      ->add_option("--metric", options->results.metrics,
                   "Series shown instead of the objective, rate, entropy and parameters; the "
                   "first one orders the rows. May be repeated")
      ->allow_extra_args(false)
      ->type_name("SERIES");
  results
      ->add_option("--by", options->results.by,
                   "A row per run, per cell over its seeds, or per value of these axes, fields "
                   "or properties of runs")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("run|cell|NAME,...")
      ->default_str("run");
  results
      ->add_option("--where", options->results.where,
                   "Only runs that satisfy it: 'state = \"succeeded\" and "
                   "valid/bits_per_byte < 1.2'")
      ->type_name("EXPR");
  results
      ->add_option("--sort", options->results.sort,
                   "Order of the runs, the best first for a series: valid/bits_per_byte, seed")
      ->type_name("EXPR");
  results->add_flag("--descending", options->results.descending, "Turn the order of --sort round");
  results->add_option("--limit", options->results.limit, "Rows shown; 0: all")->default_str("0");
  CLI::Option* best = results->add_flag("--best", options->results.wants_best,
                                        "Best value of a series (default: as the objective says)");
  results->add_flag("--last", options->results.wants_last, "Last value of a series")
      ->excludes(best);
}

void AddMetrics(const AddVerbFunction& add, const Context& context, AnswerOptions* options) {
  CLI::App* metrics = add("metrics", "List a run's series, or print the points of one",
                          "  switchyard metrics 3\n"
                          "  switchyard metrics 3 train/nats_per_token -o csv\n"
                          "  switchyard metrics 3 routing/expert_load --attempts all -o jsonl",
                          [&context, options] { return RunMetrics(context, options->metrics); });
  metrics->add_option("RUN", options->metrics.run, "Run")->required();
  metrics->add_option("SERIES", options->metrics.series, "Series; none: list them");
  metrics
      ->add_option("--attempts", options->metrics.attempts,
                   "Points of attempt N, or of all, instead of the canonical curve")
      ->type_name("N|all");
  metrics->add_option("--from", options->metrics.from_step, "Only steps from here on")
      ->type_name("STEP");
  metrics
      ->add_option("--points", options->metrics.points_max,
                   "About as many points at most, extremes kept; 0: all")
      ->default_str("0");
}

// What `compare` and `power` have alike.
void AddArms(CLI::App* verb, ArmsOptions* arms) {
  verb->add_option("SWEEP", arms->sweep, "Sweep")->required();
  CLI::Option* by =
      verb->add_option("--by", arms->by, "Axis whose values are the arms")->type_name("AXIS");
  verb->add_option("--arm", arms->arms,
                   "An arm by expression instead of by axis: 'wide=model.moe.experts >= 16'. May "
                   "be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=EXPR")
      ->excludes(by);
  CLI::Option* against =
      verb->add_option("--against", arms->against, "The arm that the others are compared with")
          ->type_name("ARM");
  verb->add_flag("--all-pairs", arms->wants_all_pairs, "Every pair of arms")->excludes(against);
  verb->add_option("--metric", arms->metric, "Series (default: the objective's)")
      ->type_name("SERIES");
  verb->add_option("--where", arms->where, "Only runs that satisfy it")->type_name("EXPR");
  verb->add_option("--within", arms->within,
                   "Axes for each value of which one comparison is made (default: all others)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("AXIS,...");
  verb->add_option("--pool", arms->pool, "Axes averaged inside each seed")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("AXIS,...");
  verb->add_flag("--tune", arms->tunes, "Each arm stands by its best cell");
  verb->add_option("--margins", arms->margins,
                   "Differences that count as none, in the metric's unit: 0.01,0.02")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NUMBER,...");
  verb->add_option("--alpha", arms->alpha, "Level of the whole family (default: 0.05)");
  verb->add_option("--correction", arms->correction,
                   "Over the family: holm (default), bh (false discovery rate), none")
      ->check(CLI::IsMember({"holm", "bh", "none"}))
      ->type_name("WHICH");
  verb->add_option("--test", arms->test,
                   "paired_t (default), welch_t, wilcoxon, sign_flip, permutation, bootstrap")
      ->check(CLI::IsMember(
          {"paired_t", "welch_t", "wilcoxon", "sign_flip", "permutation", "bootstrap"}))
      ->type_name("TEST");
  verb->add_option("--looks", arms->looks, "Looks at the data that are planned (default: 1)");
  verb->add_option("--at", arms->at,
                   "Each run's last evaluation up to there: tokens=1e6, train.flops=1e12 or "
                   "wall_seconds=600")
      ->expected(1)
      ->type_name("NAME=NUMBER");
  verb->add_option("--match", arms->match,
                   "Refuse arms further apart: train.flops=0.01. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=SHARE");
  verb->add_option("--registered", arms->registered,
                   "Number of the registered comparison that is meant, from 1");
}

void AddCompare(const AddVerbFunction& add, const Context& context, AnswerOptions* options) {
  CLI::App* compare =
      add("compare", "Say what a sweep's seeds show about its arms, in one sentence each",
          "  switchyard compare last\n"
          "  switchyard compare last --by model.moe.router.kind --against smoe --margins 0.01\n"
          "  switchyard compare last --by model.moe.router.kind --against smoe "
          "--at train.flops=1e12\n"
          "  switchyard compare last --arm 'few=model.moe.experts < 8' "
          "--arm 'many=model.moe.experts >= 8' --against few",
          [&context, options] { return RunCompare(context, options->compare); });
  AddArms(compare, &options->compare.arms);
  compare->add_option("--look", options->compare.look,
                      "Which of the planned looks this is (default: the last)");
  compare
      ->add_option("--chosen-on", options->compare.chosen_on,
                   "With --tune: choose the best cells on these seeds, judge them on the others")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("SEED,...");
}

void AddPower(const AddVerbFunction& add, const Context& context, AnswerOptions* options) {
  CLI::App* power =
      add("power", "Seeds that a comparison needs, and their cost, from a pilot's spread",
          "  switchyard power pilot --by model.moe.router.kind --against smoe --margins 0.01\n"
          "  switchyard power pilot --difference 0.02 --power 0.9",
          [&context, options] { return RunPower(context, options->power); });
  AddArms(power, &options->power.arms);
  power->add_option("--difference", options->power.difference,
                    "To detect, in the metric's unit (default: as large as each margin)");
  power->add_option("--power", options->power.power, "Share of experiments that shall succeed")
      ->default_str("0.8");
}

}  // namespace

void AddAnswerVerbs(const AddVerbFunction& add, const Context& context, AnswerOptions* options) {
  AddResults(add, context, options);
  AddMetrics(add, context, options);
  AddCompare(add, context, options);
  AddPower(add, context, options);
}

}  // namespace switchyard::client
