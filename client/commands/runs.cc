#include "client/commands/runs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "client/output/number.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr uint32_t kPageSize = 1000;
// Fewer runs than this are asked for one by one.
constexpr uint64_t kSingleRunsMax = 16;

std::string LowerWithout(const std::string& name, std::string_view prefix) {
  std::string out = name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : name;
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

// Collects without repeating a sweep or run.
class Collector {
 public:
  explicit Collector(Selection* selection) : selection_(selection) {}
  void Add(const pb::Sweep& sweep) {
    if (seen_.insert(sweep.id()).second) selection_->sweeps.push_back(sweep);
  }
  void Add(const pb::Run& run) {
    if (seen_.insert(run.id()).second) selection_->runs.push_back(run);
  }

 private:
  Selection* selection_;
  std::set<std::string> seen_;
};

Status AddNumbers(Connection& connection, const Selector& selector, Collector* collector) {
  uint64_t count = 0;
  for (const NumberRange& range : selector.numbers) {
    const uint64_t span = range.last - range.first;
    count = span >= kSingleRunsMax ? kSingleRunsMax + 1 : count + span + 1;
    if (count > kSingleRunsMax) break;
  }
  if (count <= kSingleRunsMax) {
    for (const NumberRange& range : selector.numbers) {
      for (uint64_t number = range.first; number <= range.last; ++number) {
        pb::GetRunRequest request;
        request.set_run(selector.sweep == "last" ? std::to_string(number)
                                                 : StrCat(selector.sweep, "/", number));
        pb::RunDetail detail;
        SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, &detail));
        collector->Add(detail.run());
      }
    }
    return OkStatus();
  }
  pb::ListRunsRequest request;
  request.set_sweep(selector.sweep);
  uint64_t found = 0;
  SWITCHYARD_RETURN_IF_ERROR(ForEachRun(connection, request, [&](const pb::Run& run) {
    const bool is_wanted = std::any_of(
        selector.numbers.begin(), selector.numbers.end(), [&](const NumberRange& range) {
          return range.first <= run.number() && run.number() <= range.last;
        });
    if (!is_wanted) return;
    collector->Add(run);
    ++found;
  }));
  if (found == 0) return NotFound(StrCat("no run of ", selector.text));
  return OkStatus();
}

Status AddId(Connection& connection, const Selector& selector, Collector* collector) {
  pb::GetRunRequest run_request;
  run_request.set_run(selector.id);
  pb::RunDetail detail;
  const Status as_run = connection.GetRun(run_request, &detail);
  if (as_run.ok()) {
    collector->Add(detail.run());
    return as_run;
  }
  if (as_run.code() != Code::kNotFound) return as_run;
  pb::GetSweepRequest sweep_request;
  sweep_request.set_sweep(selector.id);
  pb::Sweep sweep;
  SWITCHYARD_RETURN_IF_ERROR(connection.GetSweep(sweep_request, &sweep));
  collector->Add(sweep);
  return OkStatus();
}

}  // namespace

std::string StateText(pb::RunState state) {
  return pb::RunState_IsValid(state) ? LowerWithout(pb::RunState_Name(state), "RUN_STATE_")
                                     : StrCat("state_", static_cast<int>(state));
}

std::string StateText(pb::SweepState state) {
  return pb::SweepState_IsValid(state) ? LowerWithout(pb::SweepState_Name(state), "SWEEP_STATE_")
                                       : StrCat("state_", static_cast<int>(state));
}

std::string StateText(pb::AttemptState state) {
  return pb::AttemptState_IsValid(state)
             ? LowerWithout(pb::AttemptState_Name(state), "ATTEMPT_STATE_")
             : StrCat("state_", static_cast<int>(state));
}

std::string AttemptText(const pb::RunDetail& run, const pb::Attempt& attempt) {
  for (const pb::Attempt& other : run.attempts()) {
    if (other.ordinal() == attempt.ordinal() && other.epoch() > attempt.epoch()) {
      return StrCat(attempt.ordinal(), "@", attempt.epoch());
    }
  }
  return StrCat(attempt.ordinal());
}

bool ParseRunState(std::string_view text, pb::RunState* state) {
  std::string name = StrCat("RUN_STATE_", text);
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return pb::RunState_Parse(name, state) && *state != pb::RUN_STATE_UNSPECIFIED;
}

bool IsTerminal(pb::RunState state) {
  return state == pb::RUN_STATE_SUCCEEDED || state == pb::RUN_STATE_STOPPED_EARLY ||
         state == pb::RUN_STATE_FAILED || state == pb::RUN_STATE_CANCELLED ||
         state == pb::RUN_STATE_QUARANTINED;
}

bool IsTerminal(pb::SweepState state) {
  return state == pb::SWEEP_STATE_COMPLETED || state == pb::SWEEP_STATE_CANCELLED;
}

bool IsFailure(pb::RunState state) {
  return state == pb::RUN_STATE_FAILED || state == pb::RUN_STATE_QUARANTINED;
}

Status ForEachRun(Connection& connection, pb::ListRunsRequest request,
                  const std::function<void(const pb::Run&)>& visit, uint64_t runs_max,
                  uint64_t* total) {
  if (request.page_size() == 0) {
    request.set_page_size(static_cast<uint32_t>(std::min<uint64_t>(kPageSize, runs_max)));
  }
  uint64_t seen = 0;
  while (true) {
    pb::ListRunsResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.ListRuns(request, &page));
    if (total != nullptr) *total = page.total();
    for (const pb::Run& run : page.runs()) {
      if (seen++ == runs_max) return OkStatus();
      visit(run);
    }
    if (page.next_page_token().empty() || seen >= runs_max) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

Status ListSweeps(Connection& connection, bool with_finished, std::vector<pb::Sweep>* sweeps) {
  pb::ListSweepsRequest request;
  request.set_page_size(kPageSize);
  request.set_all(with_finished);
  while (true) {
    pb::ListSweepsResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.ListSweeps(request, &page));
    sweeps->insert(sweeps->end(), page.sweeps().begin(), page.sweeps().end());
    if (page.next_page_token().empty()) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

Status Resolve(Connection& connection, const std::vector<std::string>& selectors,
               Selection* selection) {
  std::vector<Selector> parsed;
  for (const std::string& text : selectors) {
    SWITCHYARD_ASSIGN_OR_RETURN(Selector selector, ParseSelector(text));
    parsed.push_back(std::move(selector));
  }
  Collector collector(selection);
  for (const Selector& selector : parsed) {
    switch (selector.kind) {
      case Selector::Kind::kAll: {
        std::vector<pb::Sweep> sweeps;
        SWITCHYARD_RETURN_IF_ERROR(ListSweeps(connection, false, &sweeps));
        for (const pb::Sweep& sweep : sweeps) collector.Add(sweep);
        break;
      }
      case Selector::Kind::kSweep: {
        pb::GetSweepRequest request;
        request.set_sweep(selector.sweep);
        pb::Sweep sweep;
        SWITCHYARD_RETURN_IF_ERROR(connection.GetSweep(request, &sweep));
        collector.Add(sweep);
        break;
      }
      case Selector::Kind::kRuns:
        SWITCHYARD_RETURN_IF_ERROR(AddNumbers(connection, selector, &collector));
        break;
      case Selector::Kind::kState: {
        pb::ListRunsRequest request;
        request.set_sweep(selector.sweep);
        pb::RunState state = pb::RUN_STATE_UNSPECIFIED;
        if (!ParseRunState(selector.state, &state)) {
          return InvalidArgument(StrCat("no run state \"", selector.state, "\""));
        }
        request.add_states(state);
        SWITCHYARD_RETURN_IF_ERROR(
            ForEachRun(connection, request, [&](const pb::Run& run) { collector.Add(run); }));
        break;
      }
      case Selector::Kind::kId:
        SWITCHYARD_RETURN_IF_ERROR(AddId(connection, selector, &collector));
        break;
    }
  }
  return OkStatus();
}

Result<std::string> SingleRun(std::string_view text) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Selector selector, ParseSelector(text));
  if (selector.kind == Selector::Kind::kId) return selector.id;
  const bool is_one = selector.kind == Selector::Kind::kRuns && selector.numbers.size() == 1 &&
                      selector.numbers[0].first == selector.numbers[0].last;
  if (!is_one) {
    return InvalidArgument(StrCat("\"", text, "\" is not one run; a run is SWEEP/N, a number of ",
                                  "the last sweep, or a run id"));
  }
  const uint64_t number = selector.numbers[0].first;
  return selector.sweep == "last" ? std::to_string(number) : StrCat(selector.sweep, "/", number);
}

const pb::SeriesSummary* FindSummary(const pb::Run& run, std::string_view series) {
  for (const pb::SeriesSummary& summary : run.summary()) {
    if (summary.name() == series && summary.count() > 0) return &summary;
  }
  return nullptr;
}

std::string CausalityText(double verdict) {
  return verdict == 0   ? "causal"
         : verdict == 1 ? "noncausal_training"
         : verdict == 2 ? "noncausal"
                        : "?";
}

std::string DependenceText(double verdict) {
  return verdict == 0 ? "none" : verdict == 1 ? "training" : verdict == 2 ? "evaluation" : "?";
}

std::string AuditText(const pb::Run& run) {
  const pb::SeriesSummary* causality = FindSummary(run, kAuditCausality);
  const pb::SeriesSummary* batch = FindSummary(run, kAuditBatchDependence);
  const pb::SeriesSummary* undeclared = FindSummary(run, kAuditUndeclared);
  if (causality == nullptr || batch == nullptr || undeclared == nullptr) return "";
  return StrCat(CausalityText(causality->last()),
                "; depends on the batch: ", DependenceText(batch->last()), " (seen after step ",
                causality->last_step(),
                undeclared->last() == 0 ? ")" : "; NOT what its router is declared to be)");
}

Value PickValue(const pb::Run& run, std::string_view series, Pick pick) {
  const pb::SeriesSummary* summary = FindSummary(run, series);
  if (summary == nullptr) return {};
  return pick == Pick::kBest && summary->has_best() ? summary->best() : summary->last();
}

std::vector<std::string> AxisTitles(const std::vector<std::string>& axes) {
  std::vector<std::vector<std::string>> paths;
  for (const std::string& axis : axes) {
    std::vector<std::string> parts = StrSplit(axis, '.');
    if (parts.size() > 1 && parts.back() == "kind") parts.pop_back();
    paths.push_back(std::move(parts));
  }
  const auto ending = [](const std::vector<std::string>& parts, size_t length) {
    const size_t taken = std::min(length, parts.size());
    return StrJoin({parts.end() - static_cast<std::ptrdiff_t>(taken), parts.end()}, ".");
  };
  std::vector<std::string> titles;
  for (size_t i = 0; i < paths.size(); ++i) {
    size_t length = 1;
    const auto is_shared = [&] {
      for (size_t j = 0; j < paths.size(); ++j) {
        if (j != i && ending(paths[j], length) == ending(paths[i], length)) return true;
      }
      return false;
    };
    while (length < paths[i].size() && is_shared()) ++length;
    titles.push_back(ending(paths[i], length));
  }
  return titles;
}

Value AxisCellValue(const std::string& text) {
  if (const auto number = ParseInt64(text); number.has_value()) return *number;
  if (const auto number = ParseDouble(text); number.has_value() && std::isfinite(*number)) {
    return *number;
  }
  return text;
}

std::string AgeText(int64_t unix_ms, int64_t now_unix_ms) {
  if (unix_ms == 0) return {};
  return FormatDuration(std::max(0.0, static_cast<double>(now_unix_ms - unix_ms) / 1000));
}

}  // namespace switchyard::client
