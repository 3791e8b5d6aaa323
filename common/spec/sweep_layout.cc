#include "common/spec/sweep_layout.h"

#include <algorithm>
#include <map>
#include <set>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/lay.h"
#include "common/spec/presets.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kPathBytesMax = 512;

bool IsKindPath(std::string_view path) { return path.ends_with(".kind"); }

// Two axes that would write over each other.
bool Overlap(std::string_view left, std::string_view right) {
  static const std::set<std::string_view> lengths = {"train.steps", "train.tokens",
                                                     "train.data_epochs"};
  if (lengths.contains(left) && lengths.contains(right)) return true;
  return IsAtOrBelow(left, right) || IsAtOrBelow(right, left);
}

Fault Plain(std::string path, std::string message) {
  return {"", std::move(path), std::move(message)};
}

}  // namespace

bool IsAtOrBelow(std::string_view path, std::string_view ancestor) {
  return path.starts_with(ancestor) &&
         (path.size() == ancestor.size() || path[ancestor.size()] == '.');
}

SweepLayout::SweepLayout()
    : base_(std::make_unique<pb::RunSpec>()),
      own_base_(std::make_unique<pb::RunSpec>()),
      policy_(std::make_unique<pb::PolicySpec>()) {}
SweepLayout::~SweepLayout() = default;

bool SweepLayout::LayBase(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  const size_t faults_before = faults->size();
  if (!sweep.preset().empty() && !LoadPreset(sweep.preset(), base_.get())) {
    const std::vector<std::string> known = PresetNames();
    const std::string nearest = NearestWord(sweep.preset(), known);
    faults->push_back(
        Plain("preset", StrCat("'", EscapeForTerminal(sweep.preset()), "' is not a preset; ",
                               nearest.empty() ? StrCat("known: ", StrJoin(known, ", "))
                                               : StrCat("nearest: ", nearest))));
  }
  if (sweep.base().has_seed()) {
    faults->push_back(Plain("base.seed", "is filled in from replicates"));
  }
  if (sweep.base().has_numerics_class()) {
    faults->push_back(Plain("base.numerics_class", "is filled in by the coordinator"));
  }
  MergeOver(sweep.base(), base_.get());
  *own_base_ = sweep.base();
  *policy_ = sweep.policy();
  for (const pb::SetEntry& set : sweep.sets()) {
    const Node value = NodeFromValue(set.value());
    const std::string location =
        StrCat("--set ", EscapeForTerminal(set.path()), "=", EscapeForTerminal(NodeText(value)));
    if (set.path().size() > kPathBytesMax) {
      faults->push_back(Plain("--set", "the path is too long"));
      continue;
    }
    if (IsPolicyPath(set.path())) {
      Layer(location, faults).LayAt(policy_.get(), set.path(), value);
    } else {
      Layer(location, faults).LayAt(base_.get(), set.path(), value);
      // Leads nowhere where only the preset has what the path goes through; then it is not needed.
      std::vector<Fault> ignored;
      Layer(location, &ignored).LayAt(own_base_.get(), set.path(), value);
    }
  }
  return faults->size() == faults_before;
}

bool SweepLayout::TakeAxes(const pb::SweepSpec& sweep, const std::vector<Axis>* axes,
                           std::string_view file_name, std::vector<Fault>* faults) {
  const size_t faults_before = faults->size();
  if (sweep.space().grid_size() > static_cast<int>(kAxisCountMax)) {
    faults->push_back(Plain(
        "space.grid", StrCat("has ", sweep.space().grid_size(), " axes, at most ", kAxisCountMax)));
    return false;
  }
  if (axes != nullptr) {
    axes_ = *axes;
  } else {
    for (const pb::GridAxis& grid : sweep.space().grid()) {
      Axis axis{.path = grid.id()};
      for (const pb::Value& value : grid.values()) axis.values.push_back(NodeFromValue(value));
      axes_.push_back(std::move(axis));
    }
  }
  seeds_.assign(sweep.replicates().seeds().begin(), sweep.replicates().seeds().end());
  if (seeds_.empty()) seeds_ = {1, 2, 3};
  is_paired_ = !sweep.replicates().has_paired() || sweep.replicates().paired();

  uint64_t runs = seeds_.size();
  for (Axis& axis : axes_) {
    axis.is_policy = IsPolicyPath(axis.path);
    const auto refuse = [&](std::string message) {
      const Node place = axis.values.empty() ? Node{} : axis.values.front();
      faults->push_back({LocationText(file_name, place.line, place.column),
                         EscapeForTerminal(axis.path), std::move(message)});
    };
    if (axis.path.size() > kPathBytesMax) {
      faults->push_back(Plain("space.grid", "the path of an axis is too long"));
      return false;
    }
    if (axis.values.empty()) refuse("the axis has no values");
    if (axis.path == "seed") refuse("the seed is never an axis; it comes from replicates");
    if (axis.path == "max_parallel") refuse("bounds the runs of the whole sweep, so is no axis");
    for (const Axis& other : axes_) {
      if (&other == &axis) break;
      if (Overlap(other.path, axis.path)) {
        refuse(StrCat("overlaps with the axis ", EscapeForTerminal(other.path)));
      }
    }
    for (const pb::SetEntry& set : sweep.sets()) {
      if (IsAtOrBelow(set.path(), axis.path)) {
        refuse(StrCat("is an axis, so --set ", EscapeForTerminal(set.path()),
                      " would have no effect"));
      }
    }
    if (__builtin_mul_overflow(runs, static_cast<uint64_t>(axis.values.size()), &runs)) {
      runs = UINT64_MAX;
    }
    if (runs > kRunCountMax) break;
    cell_count_ *= axis.values.size();
  }
  if (runs > kRunCountMax) {
    faults->push_back(Plain("space", StrCat("has more than ", kRunCountMax, " runs")));
  }
  if (faults->size() != faults_before) return false;

  order_.resize(axes_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  std::stable_sort(order_.begin(), order_.end(), [&](size_t left, size_t right) {
    const auto rank = [&](size_t i) {
      return std::pair(!IsKindPath(axes_[i].path),
                       std::count(axes_[i].path.begin(), axes_[i].path.end(), '.'));
    };
    return rank(left) < rank(right);
  });
  return true;
}

// Each value of each axis on the base, below the first values of the axes laid before it.
void SweepLayout::CheckValues(std::string_view file_name, std::vector<Fault>* faults) const {
  pb::RunSpec run = *base_;
  pb::PolicySpec policy = *policy_;
  for (const size_t i : order_) {
    const Axis& axis = axes_[i];
    pb::RunSpec run_scratch = run;
    pb::PolicySpec policy_scratch = policy;
    google::protobuf::Message* scratch = &run_scratch;
    google::protobuf::Message* laid = &run;
    if (axis.is_policy) {
      scratch = &policy_scratch;
      laid = &policy;
    }
    std::map<std::string, size_t> seen;  // what a value leaves where it is laid -> its index
    const size_t faults_before = faults->size();
    for (size_t k = 0; k < axis.values.size(); ++k) {
      const size_t faults_of_value = faults->size();
      const google::protobuf::Message* holder =
          Layer(file_name, faults).LayAt(scratch, axis.path, axis.values[k]);
      if (holder == nullptr || faults->size() != faults_of_value) {
        // A path that is wrong is wrong for every value: say so once.
        if (holder == nullptr && faults->size() - faults_before > 1 &&
            (*faults)[faults->size() - 2].message == faults->back().message) {
          faults->pop_back();
        }
        continue;
      }
      const auto [at, is_new] = seen.emplace(CanonicalEncoding(*holder), k);
      if (!is_new) {
        Layer(file_name, faults)
            .AddFault(axis.values[k], axis.path,
                      StrCat("the value ", EscapeForTerminal(NodeText(axis.values[k])),
                             " is given twice: as value ", at->second + 1, " and ", k + 1));
      }
    }
    if (!axis.values.empty() && faults->size() == faults_before) {
      Layer(file_name, faults).LayAt(laid, axis.path, axis.values.front());
    }
  }
}

std::unique_ptr<SweepLayout> SweepLayout::Make(const pb::SweepSpec& sweep,
                                               const std::vector<Axis>* axes,
                                               std::string_view file_name,
                                               std::vector<Fault>* faults) {
  const size_t faults_before = faults->size();
  std::unique_ptr<SweepLayout> layout(new SweepLayout());
  const bool has_base = layout->LayBase(sweep, faults);
  if (layout->TakeAxes(sweep, axes, file_name, faults) && has_base) {
    layout->CheckValues(file_name, faults);
  }
  return faults->size() == faults_before ? std::move(layout) : nullptr;
}

bool SweepLayout::IsWritten(std::string_view path) const {
  const google::protobuf::Message* message = own_base_.get();
  while (true) {
    const size_t dot = path.find('.');
    const google::protobuf::FieldDescriptor* field =
        FindWritten(message->GetDescriptor(), path.substr(0, dot));
    if (field == nullptr) return false;
    const google::protobuf::Reflection* reflection = message->GetReflection();
    if (field->is_repeated()) return reflection->FieldSize(*message, field) > 0;
    if (!reflection->HasField(*message, field)) return false;
    if (dot == std::string_view::npos || field->message_type() == nullptr) return true;
    message = &reflection->GetMessage(*message, field);
    path.remove_prefix(dot + 1);
  }
}

std::vector<size_t> SweepLayout::Choice(uint64_t cell) const {
  std::vector<size_t> choice(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    choice[i] = cell % axes_[i].values.size();
    cell /= axes_[i].values.size();
  }
  return choice;
}

void SweepLayout::Lay(const std::vector<size_t>& choice, pb::RunSpec* run, pb::PolicySpec* policy,
                      std::vector<Fault>* faults) const {
  *run = *base_;
  *policy = *policy_;
  Layer layer("", faults);
  for (const size_t i : order_) {
    const Axis& axis = axes_[i];
    if (axis.is_policy) {
      layer.LayAt(policy, axis.path, axis.values[choice[i]]);
    } else {
      layer.LayAt(run, axis.path, axis.values[choice[i]]);
    }
  }
}

}  // namespace switchyard::spec
