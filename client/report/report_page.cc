#include "client/report/report_page.h"

#include <array>
#include <map>

#include "client/commands/runs.h"
#include "client/output/message_value.h"
#include "client/output/number.h"
#include "client/output/yaml.h"
#include "client/report/html.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

std::string TimeText(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  char buffer[32];
  return FormatUnixMilliseconds(unix_ms, buffer);
}

std::string Note(std::string_view text) {
  return text.empty() ? "" : StrCat("<p class=\"note\">", EscapeHtml(text), "</p>\n");
}

std::string Warning(std::string_view text) {
  return StrCat("<p class=\"warning\">", EscapeHtml(text), "</p>\n");
}

std::string ObjectiveText(const pb::ObjectiveSpec& objective) {
  if (objective.metric().empty()) return "none";
  return StrCat(
      objective.metric(), ", ",
      objective.goal() == pb::GOAL_MAXIMIZE ? "the higher the better" : "the lower the better",
      ", ", objective.value() == pb::OBJECTIVE_VALUE_LAST ? "last" : "best", " value of a run");
}

std::string CountsText(const pb::Sweep& sweep) {
  const pb::RunCounts& counts = sweep.counts();
  std::string text = StrCat(sweep.runs(), " runs: ", counts.succeeded(), " succeeded");
  const std::pair<uint64_t, const char*> rest[] = {
      {counts.failed(), "failed"},
      {counts.cancelled(), "cancelled"},
      {counts.other(), IsTerminal(sweep.state()) ? "stopped early" : "stopped early or paused"},
      {counts.active(), "active"},
      {counts.waiting() + counts.queued(), "waiting"}};
  for (const auto& [count, word] : rest) {
    if (count > 0) text += StrCat(", ", count, " ", word);
  }
  return text;
}

std::string Head(const ReportData& data) {
  const pb::Sweep& sweep = *data.sweep;
  std::string out = StrCat("<header>\n", Heading(1, sweep.name()));
  out += StrCat("<p>", EscapeHtml(CountsText(sweep)),
                "<br>\nObjective: ", EscapeHtml(ObjectiveText(sweep.objective())), "</p>\n");
  if (!IsTerminal(sweep.state())) {
    out += Warning(StrCat("The sweep is ", StateText(sweep.state()),
                          ": the page shows what was recorded when it was made."));
  }
  if (!data.where.empty()) {
    out += Warning(
        StrCat("Only the ", data.runs, " runs with ", data.where, " are in tables and figures."));
  }
  const std::string& notes = sweep.spec().notes();
  if (!notes.empty()) out += StrCat("<p>", EscapeHtml(notes), "</p>\n");
  out += "<nav><a href=\"#results\">Results</a>";
  if (!data.comparisons.empty()) out += "<a href=\"#comparisons\">Comparisons</a>";
  return out +
         "<a href=\"#figures\">Figures</a><a href=\"#provenance\">Provenance</a></nav>\n"
         "</header>\n";
}

std::string Results(const ReportData& data) {
  std::string out = Heading(2, "Results", "results");
  for (const ReportTable& table : data.results) {
    out += Heading(3, table.title) + HtmlTable(table.listing) + Note(table.note);
  }
  return out;
}

std::string Comparisons(const ReportData& data) {
  if (data.comparisons.empty()) return {};
  std::string out = Heading(2, "Comparisons", "comparisons");
  for (const ReportComparison& comparison : data.comparisons) {
    out += Heading(3, comparison.title);
    for (const std::string& sentence : comparison.sentences) {
      out += StrCat("<p>", EscapeHtml(sentence), "</p>\n");
    }
    for (const Listing& table : comparison.tables) out += HtmlTable(table);
  }
  return out;
}

std::string Figures(const ReportData& data) {
  std::string out = Heading(2, "Figures", "figures");
  if (data.figures.empty()) out += Note("There is nothing to draw.");
  for (const ReportFigure& figure : data.figures) {
    out += "<figure>\n";
    if (figure.svg.empty()) {
      out += Warning(StrCat(figure.title, ": ", figure.note));
    } else {
      out += StrCat(figure.svg, "\n<figcaption>", EscapeHtml(figure.title), "</figcaption>\n");
    }
    out += "</figure>\n";
  }
  return out;
}

// What the routers of the runs may know of later tokens: by their definition, and as the audit of
// the trained model has found. Each pair once with its runs.
std::string Causality(const ReportData& data) {
  std::map<std::array<std::string, 3>, std::vector<std::string>> runs;
  for (const pb::RunDetail* detail : data.details) {
    if (!detail->spec().has_model()) continue;
    const pb::SeriesSummary* audit = FindSummary(detail->run(), kAuditCausality);
    const std::string router = detail->run().router();
    runs[{router.empty() ? "-" : router,
          std::string(spec::CausalityVerdict(detail->spec().model().moe())),
          audit == nullptr ? "-" : CausalityText(audit->last())}]
        .push_back(std::to_string(detail->run().number()));
  }
  if (runs.empty()) return {};
  Listing listing;
  listing.columns = {{"router", "ROUTER"},
                     {"definition", "BY DEFINITION"},
                     {"audit", "AS AUDITED"},
                     {"runs", "RUNS"}};
  for (const auto& [key, numbers] : runs) {
    listing.rows.push_back(
        {{key[0], {}}, {key[1], {}}, {key[2], {}}, {StrJoin(numbers, ", "), {}}});
  }
  return Heading(3, "Causality") + HtmlTable(listing) +
         Note(
             "By the kind and options of the router, and by the audit of the trained model. "
             "causal: routing depends on a token and earlier ones; noncausal_training: only in "
             "evaluation; noncausal: not in evaluation either, so that its loss is no language "
             "model's.");
}

std::string Attempts(const ReportData& data) {
  Listing listing;
  listing.columns = {{"run", "RUN"},
                     {"attempt", "ATTEMPT", Align::kRight},
                     {"state", "STATE"},
                     {"worker", "WORKER"},
                     {"started", "STARTED"},
                     {"took", "TOOK", Align::kRight},
                     {"step", "LAST STEP", Align::kRight},
                     {"end", "END"},
                     {"reason", "REASON"}};
  listing.empty_note = "no run has started";
  for (const pb::RunDetail* detail : data.details) {
    for (const pb::Attempt& attempt : detail->attempts()) {
      const double seconds =
          attempt.ended_ms() > 0
              ? static_cast<double>(attempt.ended_ms() - attempt.created_ms()) / 1000
              : -1;
      listing.rows.push_back(
          {{detail->run().name(), {}},
           {static_cast<uint64_t>(attempt.ordinal()), AttemptText(*detail, attempt)},
           {StateText(attempt.state()), {}},
           {attempt.worker(), {}},
           {TimeText(attempt.created_ms()), {}},
           {FormatDuration(seconds), {}},
           {attempt.final_step(), {}},
           {attempt.end_class(), {}},
           {attempt.reason(), {}}});
    }
  }
  std::string out = Heading(3, "Attempts") + HtmlTable(listing);
  if (data.details_left_out > 0) {
    out += Note(StrCat("Attempts of ", data.details_left_out,
                       " further runs are not on this page; switchyard export has them."));
  }
  return out;
}

// Runs that have ended without success, and why.
std::string Failures(const ReportData& data) {
  Listing listing;
  listing.columns = {
      {"run", "RUN"}, {"state", "STATE"}, {"step", "STEP", Align::kRight}, {"reason", "REASON"}};
  for (const pb::RunDetail* detail : data.details) {
    const pb::Run& run = detail->run();
    if (!IsTerminal(run.state()) || run.state() == pb::RUN_STATE_SUCCEEDED) continue;
    listing.rows.push_back({{run.name(), {}},
                            {StateText(run.state()), {}},
                            {StrCat(run.step(), "/", run.steps_total()), {}},
                            {run.reason(), {}}});
  }
  if (listing.rows.empty()) return {};
  return Heading(3, "Runs without success") + HtmlTable(listing);
}

std::string Identities(const ReportData& data) {
  Listing listing;
  listing.columns = {
      {"run", "RUN"}, {"seed", "SEED", Align::kRight}, {"key", "RUN KEY"}, {"id", "ID"}};
  for (const pb::RunDetail* detail : data.details) {
    const pb::Run& run = detail->run();
    listing.rows.push_back(
        {{run.name(), {}}, {run.seed(), {}}, {run.run_key(), {}}, {run.id(), {}}});
  }
  if (listing.rows.empty()) return {};
  return StrCat("<details><summary>Identities of the runs</summary>\n", HtmlTable(listing),
                "</details>\n");
}

std::string Provenance(const ReportData& data) {
  const pb::Sweep& sweep = *data.sweep;
  Listing facts;
  facts.columns = {{"what", "WHAT"}, {"value", "VALUE"}};
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) facts.rows.push_back({{what, {}}, {value, {}}});
  };
  add("sweep", sweep.name());
  add("id", sweep.id());
  add("project", sweep.project());
  add("state", StateText(sweep.state()));
  add("reason", sweep.reason());
  add("hash of the sweep file", sweep.spec_hash());
  add("submitted", TimeText(sweep.created_ms()));
  add("slot hours", FormatValue(static_cast<double>(sweep.slot_ms()) / 3'600'000));
  add("coordinator", data.coordinator_version);
  add("page made by", data.client_version);
  add("page made", TimeText(data.made_ms));
  return StrCat(Heading(2, "Provenance", "provenance"), HtmlTable(facts), Causality(data),
                Failures(data), Attempts(data), Identities(data),
                "<details><summary>The sweep file, as submitted</summary>\n<pre>",
                EscapeHtml(ToYaml(FromMessage(sweep.spec()))), "</pre></details>\n");
}

}  // namespace

std::string RenderReport(const ReportData& data) {
  return HtmlPage(data.sweep->name(),
                  StrCat(Head(data), "<main>\n", Results(data), Comparisons(data), Figures(data),
                         Provenance(data), "</main>\n"));
}

}  // namespace switchyard::client
