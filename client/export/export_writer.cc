#include "client/export/export_writer.h"

#include <set>

#include "client/commands/runs.h"
#include "client/output/message_value.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

void AppendFlat(const std::string& path, const Value& value, std::set<std::string>* seen,
                Pairs* out) {
  if (const auto* members = value.members()) {
    for (const Member& member : *members) {
      AppendFlat(path.empty() ? member.name : StrCat(path, ".", member.name), member.value, seen,
                 out);
    }
    return;
  }
  if (!path.empty() && seen->insert(path).second) out->emplace_back(path, value.ToText());
}

}  // namespace

std::vector<uint64_t> IndexOf(size_t flat, const std::vector<uint32_t>& shape) {
  std::vector<uint64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    const size_t extent = shape[i] == 0 ? 1 : shape[i];
    index[i] = i == 0 ? flat : flat % extent;
    flat /= extent;
  }
  return index;
}

std::string ElementName(const std::string& series, const std::vector<uint64_t>& index) {
  std::string name = series;
  for (const uint64_t i : index) name += StrCat("/", i);
  return name;
}

int64_t UnixMs(const pb::RunDetail& run, uint32_t attempt, uint64_t ms_since_start) {
  int64_t start = run.run().started_ms();
  for (const pb::Attempt& one : run.attempts()) {
    if (one.ordinal() == attempt) start = one.created_ms();
  }
  return start + static_cast<int64_t>(ms_since_start);
}

Value ObjectiveOf(const pb::Sweep& sweep, const pb::Run& run) {
  return PickValue(
      run, sweep.objective().metric(),
      sweep.objective().value() == pb::OBJECTIVE_VALUE_LAST ? Pick::kLast : Pick::kBest);
}

Pairs Parameters(const pb::RunDetail& run) {
  Pairs out;
  std::set<std::string> seen;
  for (const pb::AxisValue& column : run.run().columns()) {
    if (seen.insert(column.axis()).second) out.emplace_back(column.axis(), column.value());
  }
  AppendFlat("seed", run.run().seed(), &seen, &out);
  if (!run.run().router().empty()) AppendFlat("router", run.run().router(), &seen, &out);
  AppendFlat("", FromMessage(run.spec()), &seen, &out);
  return out;
}

}  // namespace switchyard::client
