#include "client/commands/compare.h"

#include <cctype>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

#include "client/commands/compare_request.h"
#include "client/exit_code.h"
#include "client/output/message_value.h"
#include "client/output/number.h"
#include "client/selector.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr size_t kShownHashDigits = 12;

std::string Short(double value) {
  if (!std::isfinite(value)) return "-";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", value);
  return buffer;
}

std::string MeanText(const pb::ArmStatistics& values) {
  if (values.n() == 0) return "-";
  return values.n() == 1 ? FormatValue(values.mean())
                         : StrCat(FormatValue(values.mean()), " ± ", Short(values.sd()));
}

std::string IntervalText(const pb::CompareInterval& interval) {
  if (!std::isfinite(interval.low())) return "-";
  return StrCat("[", Short(interval.low()), ", ", Short(interval.high()), "]");
}

std::string EnumeratorText(const std::string& name, const std::string& prefix) {
  std::string text = name.substr(prefix.size());
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string TestName(const pb::CompareSpec& compare) {
  return EnumeratorText(pb::CompareTest_Name(compare.test()), "COMPARE_TEST_");
}
std::string CorrectionName(const pb::CompareSpec& compare) {
  return EnumeratorText(pb::Correction_Name(compare.correction()), "CORRECTION_");
}

std::string PairName(const std::string& arm, const std::string& reference,
                     const std::string& within) {
  return StrCat(arm, " against ", reference, within.empty() ? "" : StrCat(" at ", within));
}

Listing PairsListing(const pb::CompareResponse& response) {
  Listing listing;
  listing.columns = {
      {"arm", "ARM"},
      {"arm_mean", "MEAN", Align::kRight},
      {"reference", "AGAINST"},
      {"reference_mean", "MEAN", Align::kRight},
      {"within", response.pairs_size() > 0 && !response.pairs(0).within().empty() ? "AT" : ""},
      {"n", "N", Align::kRight},
      {"estimate", "DIFFERENCE", Align::kRight},
      {"interval", "INTERVAL", Align::kRight},
      {"p", "P", Align::kRight},
      {"adjusted_p", "ADJUSTED", Align::kRight},
      {"correlation", "CORRELATION", Align::kRight},
      {"paired_sd", ""},
      {"smallest_margin", ""},
      {"finding", ""},
      {"sentence", ""}};
  listing.quiet_column = listing.columns.size() - 1;
  for (const pb::ComparedPair& pair : response.pairs()) {
    listing.rows.push_back({{pair.arm(), {}},
                            {pair.arm_values().mean(), MeanText(pair.arm_values())},
                            {pair.reference(), {}},
                            {pair.reference_values().mean(), MeanText(pair.reference_values())},
                            {pair.within(), {}},
                            {pair.n(), {}},
                            {pair.estimate(), Short(pair.estimate())},
                            {IntervalText(pair.difference()), {}},
                            {pair.p(), Short(pair.p())},
                            {pair.adjusted_p(), Short(pair.adjusted_p())},
                            {pair.correlation(), Short(pair.correlation())},
                            {pair.paired_sd(), {}},
                            {pair.smallest_margin(), {}},
                            {pair.finding(), {}},
                            {pair.sentence(), {}}});
  }
  return listing;
}

std::string MissingText(const pb::ComparedPair& pair) {
  std::string text;
  for (const pb::MissingSeed& missing : pair.missing()) {
    text += StrCat(text.empty() ? "" : ", ", "seed ", missing.seed(), " of ", missing.arm(), " (",
                   missing.why(), ")");
  }
  return text;
}

std::string MethodText(const pb::CompareResponse& response) {
  const pb::CompareSpec& compare = response.compare();
  std::string text = StrCat(
      "test: ", TestName(compare), " over seeds, alpha ", Short(compare.alpha()), ", ",
      CorrectionName(compare) == "none" ? "no correction" : CorrectionName(compare), " over ",
      response.family_size(), response.family_size() == 1 ? " comparison" : " comparisons",
      ", look ", response.look(), " of ", compare.looks());
  for (const pb::NamedNumber& at : compare.at()) {
    text += StrCat(", at ", at.id(), " ", FormatValue(at.value()));
  }
  return text + "\n";
}

// For people: verdicts first, then what they rest on.
std::string CompareText(const pb::CompareResponse& response) {
  std::string out = StrCat(EscapeForTerminal(response.sweep()), "  ",
                           EscapeForTerminal(response.compare().metric()), "\n\n");
  for (const pb::ComparedPair& pair : response.pairs()) {
    out += StrCat("  ", EscapeForTerminal(PairName(pair.arm(), pair.reference(), pair.within())),
                  ": ", EscapeForTerminal(pair.sentence()), "\n");
  }
  out += StrCat("\n", RenderTable(PairsListing(response), 0), "\n", MethodText(response));
  if (response.exploratory()) {
    out += "exploratory:";
    for (int i = 0; i < response.reasons_size(); ++i) {
      out += StrCat(i == 0 ? " " : "; ", EscapeForTerminal(response.reasons(i)));
    }
    out += "\n";
  } else {
    out += StrCat("registered at submission, sha256 ",
                  response.registration().substr(0, kShownHashDigits), "\n");
  }
  for (const std::string& warning : response.warnings()) {
    out += StrCat("warning: ", EscapeForTerminal(warning), "\n");
  }
  for (const pb::ComparedPair& pair : response.pairs()) {
    const std::string name = PairName(pair.arm(), pair.reference(), pair.within());
    for (const std::string& warning : pair.warnings()) {
      out += StrCat("warning: ", EscapeForTerminal(StrCat(name, ": ", warning)), "\n");
    }
    if (pair.missing_size() > 0) {
      out += StrCat("missing: ", EscapeForTerminal(StrCat(name, ": ", MissingText(pair))), "\n");
    }
    if (response.exploratory() && std::isfinite(pair.anytime_p())) {
      out += StrCat(EscapeForTerminal(name), ": at any number of looks p ", Short(pair.anytime_p()),
                    ", interval ", IntervalText(pair.anytime()), "\n");
    }
  }
  return out;
}

// What the coordinator calls the sweep that the text names.
Result<std::string> SweepOf(const std::string& text) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Selector selector, ParseSelector(text));
  if (selector.kind == Selector::Kind::kSweep) return selector.sweep;
  if (selector.kind == Selector::Kind::kId) return selector.id;
  return InvalidArgument(StrCat("arms are of one sweep; \"", text, "\" is not one sweep"));
}

// Which registered comparisons to ask for; a 0 stands for the question itself.
Result<std::vector<uint32_t>> Wanted(Connection& connection, const ArmsOptions& arms,
                                     const std::string& sweep_name) {
  if (HasQuestion(arms)) return std::vector<uint32_t>{arms.registered};
  pb::GetSweepRequest request;
  request.set_sweep(sweep_name);
  pb::Sweep sweep;
  SWITCHYARD_RETURN_IF_ERROR(connection.GetSweep(request, &sweep));
  std::vector<uint32_t> wanted;
  for (int i = 1; i <= sweep.spec().report().compare_size(); ++i) {
    wanted.push_back(static_cast<uint32_t>(i));
  }
  if (wanted.empty()) wanted.push_back(0);
  return wanted;
}

void ShowComparisons(const Context& context, const std::vector<pb::CompareResponse>& responses) {
  if (context.format == Format::kJson) {
    Value::List list;
    for (const pb::CompareResponse& response : responses) list.push_back(FromMessage(response));
    context.Print(RenderDocument(Value::Members{{"comparisons", std::move(list)}}, context.format));
    return;
  }
  if (context.is_for_people()) {
    for (size_t i = 0; i < responses.size(); ++i) {
      context.Print((i == 0 ? "" : "\n") + CompareText(responses[i]));
    }
    return;
  }
  Listing all;
  for (const pb::CompareResponse& response : responses) {
    Listing listing = PairsListing(response);
    if (all.columns.empty()) {
      all = std::move(listing);
    } else {
      std::move(listing.rows.begin(), listing.rows.end(), std::back_inserter(all.rows));
    }
  }
  context.Show(all);
}

std::string GoalText(const pb::PowerGoal& goal) {
  const auto pairs = [](uint64_t n) { return n == 0 ? "over 1,000,000" : FormatCount(n); };
  return StrCat(
      goal.kind() == "equivalence" ? "to show equivalence within ±" : "to detect a difference of ",
      Short(goal.effect()), ": ", pairs(goal.pairs()), " seeds (", pairs(goal.pairs_at_sd()),
      " if the pilot's deviation is the true one)");
}

std::string PowerText(const pb::EstimatePowerResponse& response) {
  std::string out =
      StrCat(EscapeForTerminal(response.sweep()), "  ",
             EscapeForTerminal(response.compare().metric()), ", power ", Short(response.power()),
             ", alpha ", Short(response.alpha_each()), " for each comparison\n\n");
  for (const pb::PowerEstimate& pair : response.pairs()) {
    out += StrCat(EscapeForTerminal(PairName(pair.arm(), pair.reference(), pair.within())),
                  ": deviation of paired differences ", Short(pair.sd()), " over ",
                  pair.pilot_pairs(), " pairs, planned with ", Short(pair.sd_upper()),
                  ", correlation ", Short(pair.correlation()), "\n");
    for (const pb::PowerGoal& goal : pair.goals()) out += StrCat("  ", GoalText(goal), "\n");
  }
  out += "\n";
  for (const pb::ArmCost& cost : response.costs()) {
    out += StrCat(EscapeForTerminal(cost.arm()), ": ", Short(cost.slot_hours()),
                  response.slot_kind() == "gpu" ? " GPU" : " slot", " hours a run, mean of ",
                  cost.runs(), "\n");
  }
  if (response.seeds() == 0) {
    out += "no plan: a goal needs more than 1,000,000 seeds\n";
  } else {
    out += StrCat("plan: ", FormatCount(response.seeds()),
                  " new seeds in every cell (the pilot's do not count), ",
                  Short(response.slot_hours()),
                  response.slot_kind() == "gpu" ? " GPU hours\n" : " slot hours\n");
  }
  for (const std::string& warning : response.warnings()) {
    out += StrCat("warning: ", EscapeForTerminal(warning), "\n");
  }
  return out;
}

Listing PowerListing(const pb::EstimatePowerResponse& response) {
  Listing listing;
  for (const char* key : {"arm", "reference", "within", "pilot_pairs", "sd", "sd_upper", "kind",
                          "effect", "pairs_at_sd", "pairs"}) {
    listing.columns.push_back({key, key});
  }
  listing.quiet_column = listing.columns.size() - 1;
  for (const pb::PowerEstimate& pair : response.pairs()) {
    for (const pb::PowerGoal& goal : pair.goals()) {
      listing.rows.push_back({{pair.arm(), {}},
                              {pair.reference(), {}},
                              {pair.within(), {}},
                              {pair.pilot_pairs(), {}},
                              {pair.sd(), {}},
                              {pair.sd_upper(), {}},
                              {goal.kind(), {}},
                              {goal.effect(), {}},
                              {goal.pairs_at_sd(), {}},
                              {goal.pairs(), {}}});
    }
  }
  return listing;
}

}  // namespace

int RunCompare(const Context& context, const CompareOptions& options) {
  const Result<std::string> sweep = SweepOf(options.arms.sweep);
  if (!sweep.ok()) return context.Fail(sweep.status());
  pb::CompareRequest request;
  request.set_sweep(*sweep);
  Status filled = FillCompareSpec(options.arms, request.mutable_compare());
  if (filled.ok()) filled = FillArms(options.arms, request.mutable_arms());
  if (!filled.ok()) return context.Fail(filled);
  request.set_look(options.look);
  request.mutable_chosen_on()->Add(options.chosen_on.begin(), options.chosen_on.end());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  const Result<std::vector<uint32_t>> wanted = Wanted(**connected, options.arms, *sweep);
  if (!wanted.ok()) return context.Fail(wanted.status());
  std::vector<pb::CompareResponse> responses;
  for (const uint32_t registered : *wanted) {
    request.set_registered(registered);
    const Status status = (*connected)->Compare(request, &responses.emplace_back());
    if (!status.ok()) return context.Fail(status);
  }
  ShowComparisons(context, responses);
  return kExitOk;
}

int RunPower(const Context& context, const PowerOptions& options) {
  const Result<std::string> sweep = SweepOf(options.arms.sweep);
  if (!sweep.ok()) return context.Fail(sweep.status());
  pb::EstimatePowerRequest request;
  request.set_sweep(*sweep);
  Status filled = FillCompareSpec(options.arms, request.mutable_compare());
  if (filled.ok()) filled = FillArms(options.arms, request.mutable_arms());
  if (!filled.ok()) return context.Fail(filled);
  request.set_registered(options.arms.registered);
  request.set_difference(options.difference);
  request.set_power(options.power);
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::EstimatePowerResponse response;
  const Status status = (*connected)->EstimatePower(request, &response);
  if (!status.ok()) return context.Fail(status);
  if (context.format == Format::kJson) {
    context.Print(RenderDocument(FromMessage(response), context.format));
  } else if (context.is_for_people()) {
    context.Print(PowerText(response));
  } else {
    context.Show(PowerListing(response));
  }
  return kExitOk;
}

}  // namespace switchyard::client
