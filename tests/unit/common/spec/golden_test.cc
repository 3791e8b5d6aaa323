#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/yaml_reader.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace fs = std::filesystem;
namespace pb = ::switchyard::v1;

std::string ReadText(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string DimensionText(const Dimension& dimension) {
  const std::string where =
      dimension.parent < 0 ? ""
                           : StrCat(" under ", dimension.parent, " = ", dimension.parent_value);
  std::string bounds = StrCat(FormatDouble(dimension.low), " to ", FormatDouble(dimension.high));
  if (dimension.step) bounds += StrCat(" step ", FormatDouble(*dimension.step));
  if (dimension.is_log) bounds += " log";
  switch (dimension.kind) {
    case Dimension::Kind::kCategorical:
      return StrCat(dimension.name, " one of ", StrJoin(dimension.values, " | "), where);
    case Dimension::Kind::kReal:
      return StrCat(dimension.name, " real ", bounds, where);
    case Dimension::Kind::kInteger:
      return StrCat(dimension.name, " integer ", bounds, where);
    case Dimension::Kind::kNormal:
      return StrCat(dimension.name, " normal ", bounds, where);
  }
  return "";
}

// What a person would want to know of a sweep file: its faults, or its cells in order with columns,
// seeds and the beginning of their identity.
std::string Describe(const std::string& text) {
  pb::SweepSpec sweep;
  std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, {}, &sweep);
  std::unique_ptr<SweepPlan> plan;
  if (faults.empty()) plan = SweepPlan::Make(sweep, &faults);
  if (plan == nullptr) {
    LocateFaults("sweep.yaml", text, &faults);
    return StrCat("faults\n", ToString(faults), "\n");
  }
  std::string out;
  if (plan->is_drawn()) {
    out += StrCat("drawn, seeds ", plan->seeds().size(), "\n");
    for (size_t i = 0; i < plan->dimensions().size(); ++i) {
      out += StrCat(i, ": ", DimensionText(plan->dimensions()[i]), "\n");
    }
    return out;
  }
  out += StrCat(plan->cell_count(), " cells, ", plan->run_count(), " runs, ",
                plan->DistinctRuns(1000).value_or(0), " different\n");
  for (uint64_t number = 1; number <= plan->run_count(); ++number) {
    const PlannedRun run = plan->At(number, &faults);
    out +=
        StrCat(run.number, ": cell ", run.cell, " seed ", run.seed, " ", run.run_key.substr(0, 12));
    for (const auto& [axis, value] : run.columns) out += StrCat(" ", axis, "=", value);
    for (const std::string& notice : run.notices) out += StrCat(" (", notice, ")");
    out += "\n";
  }
  if (!faults.empty()) out += ToString(faults) + "\n";
  return out;
}

// Every construct of a sweep file: the cells that it means, in order, with their identities, or the
// text of its faults. SWITCHYARD_WRITE_GOLDEN=1 writes the files anew, for a person to read the
// difference.
TEST(Golden, SweepFilesMeanWhatIsWritten) {
  const fs::path folder = SWITCHYARD_SOURCE_DIR "/tests/golden/spec";
  const bool is_writing = std::getenv("SWITCHYARD_WRITE_GOLDEN") != nullptr;
  size_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++count;
    const std::string found = Describe(ReadText(entry.path()));
    fs::path expected = entry.path();
    expected.replace_extension(".txt");
    if (is_writing) {
      std::ofstream(expected) << found;
      ADD_FAILURE() << "written anew";
      continue;
    }
    EXPECT_EQ(found, ReadText(expected));
  }
  EXPECT_GE(count, 25U);
}

}  // namespace
}  // namespace switchyard::spec
