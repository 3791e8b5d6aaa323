#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/output/value.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class GetCurveResponse;
class Run;
class RunDetail;
class Sweep;
}  // namespace switchyard::v1

namespace switchyard::client {

// A sweep in the form of another program (docs/exports.md). Calls come in the order
//   Begin, then for each run BeginRun, pages of its curves, EndRun, at last Finish.
// The pages of one series come together and in order; a series without points is not named.
class ExportWriter {
 public:
  virtual ~ExportWriter() = default;

  virtual Status Begin(const v1::Sweep& sweep) = 0;
  // With the summaries of all series and the spec.
  virtual Status BeginRun(const v1::RunDetail& run) = 0;
  virtual Status AddPage(const std::string& series, const v1::GetCurveResponse& page) = 0;
  virtual Status EndRun() = 0;
  virtual Status Finish() = 0;
};

// `folder` exists and is empty. `target` is its absolute name later on, for files that hold it.
std::unique_ptr<ExportWriter> MakeCsvWriter(const std::string& folder);
std::unique_ptr<ExportWriter> MakeJsonLinesWriter(const std::string& folder);
std::unique_ptr<ExportWriter> MakeTensorBoardWriter(const std::string& folder);
std::unique_ptr<ExportWriter> MakeMlflowWriter(const std::string& folder,
                                               const std::string& target);

// What the formats have in common.

// Position `flat` in a vector of `shape`, the last dimension the fastest: (layer, expert).
std::vector<uint64_t> IndexOf(size_t flat, const std::vector<uint32_t>& shape);
// "routing/expert_load/0/3": the name of one element's own curve.
std::string ElementName(const std::string& series, const std::vector<uint64_t>& index);
// Milliseconds since 1970 of a point; the attempt's start is the run's where it is not known.
int64_t UnixMs(const v1::RunDetail& run, uint32_t attempt, uint64_t ms_since_start);
// The run's value of the sweep's objective, best or last as it says; absent without one.
Value ObjectiveOf(const v1::Sweep& sweep, const v1::Run& run);
// The run's spec as dotted paths and texts, and in front its axes, seed and router.
std::vector<std::pair<std::string, std::string>> Parameters(const v1::RunDetail& run);

}  // namespace switchyard::client
