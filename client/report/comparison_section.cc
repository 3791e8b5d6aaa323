#include "client/report/comparison_section.h"

#include <cmath>

#include "client/output/number.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

std::string IntervalText(const pb::CompareInterval& interval) {
  if (std::isnan(interval.low()) && std::isnan(interval.high())) return "-";
  return StrCat(FormatValue(interval.low()), " … ", FormatValue(interval.high()));
}

std::string ArmText(const pb::ArmStatistics& arm) {
  return StrCat(FormatValue(arm.mean()), " ± ", FormatValue(arm.sd()), " (n ", arm.n(), ")");
}

std::string MarginsText(const pb::ComparedPair& pair) {
  std::string text;
  for (const pb::MarginTest& margin : pair.margins()) {
    text += StrCat(text.empty() ? "" : ", ", FormatValue(margin.margin()), ": p ",
                   FormatValue(margin.adjusted_p()));
  }
  return text.empty() ? "-" : text;
}

std::string ConfidenceText(const pb::CompareResponse& response) {
  if (response.pairs().empty()) return "INTERVAL";
  return StrCat(FormatValue(100 * response.pairs(0).difference().confidence()), " % INTERVAL");
}

Listing PairsListing(const pb::CompareResponse& response) {
  Listing listing;
  listing.empty_note = "no pair of arms can be compared";
  listing.columns = {{"arm", "ARM"},
                     {"reference", "AGAINST"},
                     {"within", "WITHIN"},
                     {"arm_values", "MEAN ± SD", Align::kRight},
                     {"reference_values", "AGAINST: MEAN ± SD", Align::kRight},
                     {"estimate", "DIFFERENCE", Align::kRight},
                     {"interval", ConfidenceText(response), Align::kRight},
                     {"family", "FAMILY'S INTERVAL", Align::kRight},
                     {"p", "P", Align::kRight},
                     {"adjusted_p", "ADJUSTED P", Align::kRight},
                     {"margins", "EQUIVALENCE WITHIN"},
                     {"finding", "FINDING"}};
  for (const pb::ComparedPair& pair : response.pairs()) {
    listing.rows.push_back({{pair.arm(), {}},
                            {pair.reference(), {}},
                            {pair.within().empty() ? "-" : pair.within(), {}},
                            {ArmText(pair.arm_values()), {}},
                            {ArmText(pair.reference_values()), {}},
                            {pair.estimate(), FormatValue(pair.estimate())},
                            {IntervalText(pair.difference()), {}},
                            {IntervalText(pair.family()), {}},
                            {pair.p(), FormatValue(pair.p())},
                            {pair.adjusted_p(), FormatValue(pair.adjusted_p())},
                            {MarginsText(pair), {}},
                            {pair.finding(), {}}});
  }
  return listing;
}

Listing MissingListing(const pb::CompareResponse& response) {
  Listing listing;
  listing.columns = {{"within", "WITHIN"},
                     {"arm", "ARM"},
                     {"seed", "SEED WITHOUT A VALUE", Align::kRight},
                     {"why", "WHY"}};
  for (const pb::ComparedPair& pair : response.pairs()) {
    for (const pb::MissingSeed& missing : pair.missing()) {
      listing.rows.push_back({{pair.within().empty() ? "-" : pair.within(), {}},
                              {missing.arm(), {}},
                              {missing.seed(), {}},
                              {missing.why(), {}}});
    }
  }
  return listing;
}

}  // namespace

ReportComparison ComparisonSection(const pb::CompareResponse& response) {
  const pb::CompareSpec& compare = response.compare();
  ReportComparison section;
  section.title =
      StrCat(compare.metric(), " by ", compare.by(),
             compare.against().empty() ? ", all pairs" : StrCat(", against ", compare.against()));
  for (const pb::ComparedPair& pair : response.pairs()) {
    const std::string name =
        StrCat(pair.arm(), " against ", pair.reference(),
               pair.within().empty() ? "" : StrCat(" (", pair.within(), ")"), ": ");
    section.sentences.push_back(name + pair.sentence());
    for (const std::string& warning : pair.warnings()) section.sentences.push_back(name + warning);
  }
  if (response.exploratory()) {
    std::string text = "Exploratory, not as registered at submission: ";
    text += StrJoin({response.reasons().begin(), response.reasons().end()}, "; ");
    section.sentences.push_back(text);
  }
  for (const std::string& warning : response.warnings()) section.sentences.push_back(warning);
  section.sentences.push_back(StrCat("Family of ", response.family_size(), ", look ",
                                     response.look(), " of ", compare.looks(), ", registration ",
                                     response.registration().substr(0, 16), "."));
  section.tables.push_back(PairsListing(response));
  Listing missing = MissingListing(response);
  if (!missing.rows.empty()) section.tables.push_back(std::move(missing));
  return section;
}

}  // namespace switchyard::client
