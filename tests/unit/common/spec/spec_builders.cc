#include "tests/unit/common/spec/spec_builders.h"

#include <gtest/gtest.h>

#include "common/base/check.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {

namespace pb = ::switchyard::v1;

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out(text);
  const size_t at = out.find(from);
  EXPECT_NE(at, std::string::npos) << "not in the text: " << from;
  if (at != std::string::npos) out.replace(at, from.size(), to);
  return out;
}

std::string ReadFaults(std::string_view text, const std::vector<Override>& overrides) {
  pb::SweepSpec sweep;
  return ToString(ReadSweepYaml("sweep.yaml", text, overrides, &sweep));
}

std::string PlanFaults(std::string_view text, const std::vector<Override>& overrides) {
  pb::SweepSpec sweep;
  std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, overrides, &sweep);
  if (faults.empty()) SweepPlan::Make(sweep, &faults);
  return ToString(faults);
}

std::unique_ptr<SweepPlan> PlanOf(std::string_view text, const std::vector<Override>& overrides) {
  pb::SweepSpec sweep;
  std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, overrides, &sweep);
  std::unique_ptr<SweepPlan> plan;
  if (faults.empty()) plan = SweepPlan::Make(sweep, &faults);
  SWITCHYARD_CHECK(plan != nullptr) << ToString(faults);
  return plan;
}

PlannedRun RunOf(std::string_view text, uint64_t number) {
  std::vector<Fault> faults;
  PlannedRun run = PlanOf(text)->At(number, &faults);
  SWITCHYARD_CHECK(faults.empty()) << ToString(faults);
  return run;
}

}  // namespace switchyard::spec
