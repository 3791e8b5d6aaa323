#include <algorithm>
#include <set>

#include "common/base/strings.h"
#include "common/spec/policy.h"
#include "common/spec/series.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/validate.h"
#include "common/spec/wire.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr uint64_t kInt64Max = (uint64_t{1} << 63) - 1;  // what the store holds
constexpr std::string_view kNameRule =
    "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit, without "
    "'..'";

void CheckNames(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  const auto check = [&](const char* path, const std::string& name) {
    if (IsValidName(name)) return;
    faults->push_back(
        {"", path, StrCat("'", EscapeForTerminal(name), "' is not a name: ", kNameRule)});
  };
  if (sweep.name().empty()) {
    faults->push_back({"", "name", "is required"});
  } else {
    check("name", sweep.name());
  }
  if (!sweep.project().empty()) check("project", sweep.project());
  std::set<std::string> tags;
  for (const std::string& tag : sweep.tags()) {
    check("tags", tag);
    if (!tags.insert(tag).second) faults->push_back({"", "tags", StrCat(tag, " is given twice")});
  }
  constexpr int kTagsMax = 64;
  if (sweep.tags_size() > kTagsMax) {
    faults->push_back({"", "tags", StrCat("has ", sweep.tags_size(), ", at most ", kTagsMax)});
  }
}

void CheckSeeds(const pb::ReplicatesSpec& replicates, std::vector<Fault>* faults) {
  std::set<uint64_t> seeds;
  for (const uint64_t seed : replicates.seeds()) {
    if (seed > kInt64Max) {
      faults->push_back({"", "replicates.seeds", StrCat(seed, " is above ", kInt64Max)});
    }
    if (!seeds.insert(seed).second) {
      faults->push_back({"", "replicates.seeds", StrCat(seed, " is given twice")});
    }
  }
}

void CheckObjective(const pb::ObjectiveSpec& objective, std::vector<Fault>* faults) {
  const std::string& metric = objective.metric();
  if (metric.empty()) return;
  const size_t slash = metric.find('/');
  const std::string_view split = std::string_view(metric).substr(0, slash);
  const bool is_series = slash != std::string::npos && slash + 1 < metric.size() &&
                         metric.size() <= 200 &&
                         (split == "train" || split == "valid" || split == "test") &&
                         std::ranges::all_of(metric, [](char c) {
                           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
                                  c == '/' || c == '.' || c == '-';
                         });
  if (!is_series) {
    faults->push_back({"", "objective.metric",
                       StrCat("'", EscapeForTerminal(metric),
                              "' is not a series SPLIT/METRIC with the split train, valid or "
                              "test")});
  } else if (objective.goal() == pb::GOAL_UNSPECIFIED && !SeriesDirection(metric)) {
    faults->push_back({"", "objective.goal",
                       StrCat("is required: ", metric,
                              " has no direction of its own; known: minimize, maximize")});
  }
}

}  // namespace

std::unique_ptr<SweepLayout> CheckSweep(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  const size_t faults_before = faults->size();
  CheckWire(sweep, faults);
  CheckNames(sweep, faults);
  CheckSeeds(sweep.replicates(), faults);
  CheckObjective(sweep.objective(), faults);
  for (Fault& fault : ValidatePolicy(sweep.policy())) faults->push_back(std::move(fault));
  constexpr size_t kNotesMax = 64 << 10;
  if (sweep.notes().size() > kNotesMax) {
    faults->push_back(
        {"", "notes", StrCat("has ", sweep.notes().size(), " bytes, at most ", kNotesMax)});
  }
  std::unique_ptr<SweepLayout> layout = SweepLayout::Make(sweep, nullptr, "", faults);
  return faults->size() == faults_before ? std::move(layout) : nullptr;
}

std::vector<Fault> ValidateSweep(const pb::SweepSpec& sweep) {
  std::vector<Fault> faults;
  CheckSweep(sweep, &faults);
  return faults;
}

}  // namespace switchyard::spec
