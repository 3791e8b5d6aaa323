#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "client/selector.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class GetCurveResponse;
class Run;
class RunDetail;
class Sweep;
}  // namespace switchyard::v1

// A sweep and all that it holds, read page by page: what export, plot and report are made of.
namespace switchyard::client {

// The sweep that `selector` means, with its spec. kInvalidArgument: it is not one sweep.
Status ReadSweep(Connection& connection, const std::string& selector, v1::Sweep* sweep);

// What `selector`, parsed from `id`, means: a run (true; `run` is filled), or a sweep (false;
// `sweep` is, with its spec). An id is tried as a run's first, then as a sweep's.
Result<bool> ReadRunOrSweep(Connection& connection, const Selector& selector, const std::string& id,
                            v1::RunDetail* run, v1::Sweep* sweep);

// Runs of a sweep by number, with the summaries of `series` (at most 64). `where`: an expression
// that they satisfy; empty: all.
Status ReadRuns(Connection& connection, const std::string& sweep_id, const std::string& where,
                const std::vector<std::string>& series, std::vector<v1::Run>* runs);

// Spec, attempts and history of a run of ReadRuns, with the summaries of all of its series. Name,
// number and columns stay those of `run`: a run that several sweeps share has one of each in each.
Status ReadDetail(Connection& connection, const v1::Run& run, v1::RunDetail* detail);

// The canonical curve of a run, page by page; `visit` ends the reading with an error. `points_max`
// above 0: one page with about so many points, extremes kept; scalar series only. A run without
// the series is one without pages.
Status ReadCurve(Connection& connection, const std::string& run_id, const std::string& series,
                 uint32_t points_max,
                 const std::function<Status(const v1::GetCurveResponse&)>& visit);

}  // namespace switchyard::client
