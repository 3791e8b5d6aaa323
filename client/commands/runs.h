#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/connection.h"
#include "client/output/table.h"
#include "client/selector.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class Attempt;
class ListRunsRequest;
class Run;
class RunDetail;
class SeriesSummary;
class Sweep;
enum RunState : int;
enum SweepState : int;
enum AttemptState : int;
}  // namespace switchyard::v1

namespace switchyard::client {

// Series that the views know by name.
inline constexpr char kTrainLoss[] = "train/nats_per_token";
inline constexpr char kTokensPerSecond[] = "train/tokens_per_second";
inline constexpr char kStepSeconds[] = "train/step_seconds";
inline constexpr char kUsageEntropy[] = "routing/usage_entropy_norm";
inline constexpr char kParamsTotal[] = "model/params_total";
inline constexpr char kParamsActive[] = "model/params_active";
// What an audit of the run's model saw (docs/proofs.md): numbers 0, 1, 2.
inline constexpr char kAuditCausality[] = "audit/causality";
inline constexpr char kAuditBatchDependence[] = "audit/batch_dependence";
inline constexpr char kAuditUndeclared[] = "audit/undeclared";

// "active", "stopped_early".
std::string StateText(v1::RunState state);
std::string StateText(v1::SweepState state);
std::string StateText(v1::AttemptState state);
// "3"; "3@EPOCH" of the older one of two attempts of the run that share an ordinal, as they may
// after a restore of the coordinator's database.
std::string AttemptText(const v1::RunDetail& run, const v1::Attempt& attempt);
// False for "unspecified" and unknown words.
bool ParseRunState(std::string_view text, v1::RunState* state);
bool IsTerminal(v1::RunState state);
bool IsTerminal(v1::SweepState state);
// Failed or quarantined: what exit code 2 stands for.
bool IsFailure(v1::RunState state);

// Runs of a list in order, page by page, up to `runs_max`. `total`, if given: how many there are.
Status ForEachRun(Connection& connection, v1::ListRunsRequest request,
                  const std::function<void(const v1::Run&)>& visit, uint64_t runs_max = UINT64_MAX,
                  uint64_t* total = nullptr);
Status ListSweeps(Connection& connection, bool with_finished, std::vector<v1::Sweep>* sweeps);

// What selectors stand for: whole sweeps, and single runs. No sweep or run twice.
struct Selection {
  std::vector<v1::Sweep> sweeps;
  std::vector<v1::Run> runs;
};
// kNotFound when a selector names something that does not exist; an empty `all` or `state:` is not
// an error.
Status Resolve(Connection& connection, const std::vector<std::string>& selectors,
               Selection* selection);

// What GetRun and its relatives take, for a selector that means one run; kInvalidArgument else.
Result<std::string> SingleRun(std::string_view text);

// Nullptr when the run has no point of the series.
const v1::SeriesSummary* FindSummary(const v1::Run& run, std::string_view series);

// "causal", "noncausal_training" or "noncausal"; "?" for a number that is no verdict.
std::string CausalityText(double verdict);
// "none", "training" or "evaluation".
std::string DependenceText(double verdict);
// The verdict of a run in a line; empty without an audit.
std::string AuditText(const v1::Run& run);

enum class Pick { kBest, kLast };
// Absent without a point. Best of a series without a finite value is its last value.
Value PickValue(const v1::Run& run, std::string_view series, Pick pick);

// Headings for axes: the shortest endings of the paths that tell them apart, without `.kind`.
std::vector<std::string> AxisTitles(const std::vector<std::string>& axes);
// An axis value as a number where it is one.
Value AxisCellValue(const std::string& text);
// "3m12s" since `unix_ms`; empty for 0.
std::string AgeText(int64_t unix_ms, int64_t now_unix_ms);

}  // namespace switchyard::client
