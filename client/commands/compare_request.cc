#include "client/commands/compare_request.h"

#include <algorithm>
#include <cctype>

#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// "paired_t" as "COMPARE_TEST_PAIRED_T".
std::string Enumerator(const std::string& prefix, const std::string& word) {
  std::string name = prefix + word;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

Status AddNumbers(const char* option, const std::vector<std::string>& texts,
                  google::protobuf::RepeatedPtrField<pb::NamedNumber>* numbers) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const auto value =
        equals == std::string::npos ? std::nullopt : ParseDouble(text.substr(equals + 1));
    if (!value.has_value()) {
      return InvalidArgument(StrCat(option, " ", text, ": expected NAME=NUMBER"));
    }
    pb::NamedNumber* number = numbers->Add();
    number->set_id(text.substr(0, equals));
    number->set_value(*value);
  }
  return OkStatus();
}

}  // namespace

Status FillCompareSpec(const ArmsOptions& options, pb::CompareSpec* compare) {
  compare->set_by(options.by);
  compare->set_against(options.against);
  if (options.wants_all_pairs) compare->set_pairs(pb::COMPARE_PAIRS_ALL);
  compare->set_metric(options.metric);
  compare->set_where(options.where);
  compare->mutable_within()->Add(options.within.begin(), options.within.end());
  compare->mutable_pool()->Add(options.pool.begin(), options.pool.end());
  if (options.tunes) compare->set_tune(true);
  compare->mutable_margins()->Add(options.margins.begin(), options.margins.end());
  if (options.alpha) compare->set_alpha(*options.alpha);
  if (options.looks) compare->set_looks(*options.looks);
  if (!options.correction.empty()) {
    pb::Correction correction;
    if (!pb::Correction_Parse(Enumerator("correction_", options.correction), &correction)) {
      return InvalidArgument(
          StrCat("--correction ", options.correction, ": expected holm, bh or none"));
    }
    compare->set_correction(correction);
  }
  if (!options.test.empty()) {
    pb::CompareTest test;
    if (!pb::CompareTest_Parse(Enumerator("compare_test_", options.test), &test)) {
      return InvalidArgument(StrCat("--test ", options.test, ": no such test"));
    }
    compare->set_test(test);
  }
  SWITCHYARD_RETURN_IF_ERROR(AddNumbers("--at", options.at, compare->mutable_at()));
  return AddNumbers("--match", options.match, compare->mutable_match());
}

Status FillArms(const ArmsOptions& options,
                google::protobuf::RepeatedPtrField<pb::ArmFilter>* arms) {
  for (const std::string& text : options.arms) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
      return InvalidArgument(StrCat("--arm ", text, ": expected NAME=EXPRESSION"));
    }
    pb::ArmFilter* arm = arms->Add();
    arm->set_name(text.substr(0, equals));
    arm->set_filter(text.substr(equals + 1));
  }
  return OkStatus();
}

bool HasQuestion(const ArmsOptions& options) {
  pb::CompareSpec compare;
  return options.registered > 0 || !options.arms.empty() ||
         !FillCompareSpec(options, &compare).ok() || compare.ByteSizeLong() > 0;
}

}  // namespace switchyard::client
