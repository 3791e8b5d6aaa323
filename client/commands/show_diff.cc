#include "client/commands/show_diff.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "client/commands/commands.h"
#include "client/commands/sweep_reader.h"
#include "client/exit_code.h"
#include "client/output/message_value.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;  // path, text

bool HasMembers(const Value::List& list) {
  return std::ranges::any_of(list, [](const Value& value) { return value.members() != nullptr; });
}

void Flatten(const Value& value, const std::string& path, Leaves* leaves) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (const Value::Members* members = value.members(); members != nullptr) {
    // A message without fields is there all the same: `router: {mcf: {}}`.
    if (members->empty() && !path.empty()) leaves->emplace_back(path, "{}");
    for (const Member& member : *members) Flatten(member.value, prefix + member.name, leaves);
    return;
  }
  if (const Value::List* list = value.list(); list != nullptr && HasMembers(*list)) {
    for (size_t i = 0; i < list->size(); ++i) {
      Flatten((*list)[i], StrCat(path, "[", i, "]"), leaves);
    }
    return;
  }
  leaves->emplace_back(path, value.ToText());
}

// A run's or a sweep's name and document.
struct Document {
  bool is_run = false;
  std::string name;
  Value spec;
};

Result<Document> ReadDocument(Connection& connection, const std::string& id) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Selector selector, ParseSelector(id));
  pb::RunDetail detail;
  pb::Sweep sweep;
  SWITCHYARD_ASSIGN_OR_RETURN(const bool is_run,
                              ReadRunOrSweep(connection, selector, id, &detail, &sweep));
  if (!is_run) return Document{.name = sweep.name(), .spec = FromMessage(sweep.spec())};
  return Document{.is_run = true, .name = detail.run().name(), .spec = FromMessage(detail.spec())};
}

}  // namespace

std::vector<FieldDifference> DiffDocuments(const Value& left, const Value& right) {
  Leaves left_leaves;
  Leaves right_leaves;
  Flatten(left, "", &left_leaves);
  Flatten(right, "", &right_leaves);
  const std::unordered_map<std::string, std::string> in_left(left_leaves.begin(),
                                                             left_leaves.end());
  const std::unordered_map<std::string, std::string> in_right(right_leaves.begin(),
                                                              right_leaves.end());
  std::vector<FieldDifference> differences;
  for (const auto& [path, text] : left_leaves) {
    const auto other = in_right.find(path);
    if (other == in_right.end()) {
      differences.push_back({path, text, "-"});
    } else if (other->second != text) {
      differences.push_back({path, text, other->second});
    }
  }
  for (const auto& [path, text] : right_leaves) {
    if (!in_left.contains(path)) differences.push_back({path, "-", text});
  }
  return differences;
}

int RunShowDiff(const Context& context, const std::string& left, const std::string& right) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  const Result<Document> a = ReadDocument(**connected, left);
  if (!a.ok()) return context.Fail(a.status());
  const Result<Document> b = ReadDocument(**connected, right);
  if (!b.ok()) return context.Fail(b.status());
  if (a->is_run != b->is_run) {
    return context.Fail(InvalidArgument(
        StrCat(a->name, " and ", b->name, ": a run and a sweep have no common spec")));
  }
  Listing listing;
  // The keys of the columns are fixed, so that scripts need not know the names.
  listing.columns = {{"field", "FIELD"}, {"left", a->name}, {"right", b->name}};
  listing.empty_note = StrCat("the specs of ", a->name, " and ", b->name, " are equal");
  for (const FieldDifference& difference : DiffDocuments(a->spec, b->spec)) {
    listing.rows.push_back({{difference.path, {}}, {difference.left, {}}, {difference.right, {}}});
  }
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
