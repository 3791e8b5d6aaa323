#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "server/scheduler/rows.h"

namespace prometheus {
class Collectable;
class Counter;
}  // namespace prometheus

namespace switchyard::server_metrics {

// What is known of a run before its first point.
struct LiveRunInfo {
  RunId run;
  SweepId sweep;
  std::string project;
  std::string router;
  std::vector<uint32_t> moe_layers;
  // Whose best or last summary is the run's objective.
  std::string objective_series;
  bool objective_is_last = false;
};

// Last committed values of the runs that train now, as gauges with the run in their labels. The
// reducer's thread changes it; the collectable reads a snapshot, which is made anew at most once
// per Publish. Series to metric: operations 8.1.
class LiveRuns {
 public:
  struct Caps {
    size_t runs = 400;
    size_t sweeps = 50;
    size_t routing_series = 12000;
    size_t expert_load_runs = 2;
    size_t expert_load_layers = 8;
    size_t expert_load_experts = 64;
  };
  LiveRuns() : LiveRuns(Caps{}) {}
  explicit LiveRuns(Caps caps);
  ~LiveRuns();

  // Known already: only the attempt changes.
  void Start(const LiveRunInfo& info, uint32_t attempt);
  bool Contains(RunId run) const;
  // The newest point of a scalar series. `unix_ms`: now.
  void SetScalar(RunId run, std::string_view series, uint64_t step, double value, int64_t unix_ms);
  // `values`: little-endian float32.
  void SetVector(RunId run, std::string_view series, const std::vector<uint32_t>& shape,
                 std::string_view values);
  void SetObjective(RunId run, double value);
  void End(RunId run);
  // Runs of the live sweeps by state.
  void SetSweep(SweepId sweep, const std::string& project, const scheduler::StateCounts& counts);
  void EndSweep(SweepId sweep);

  // Makes the changes since the last call visible.
  void Publish();

  // Series withheld by the caps count up in `dropped` at each scrape.
  std::shared_ptr<prometheus::Collectable> MakeCollectable(prometheus::Counter* dropped);

  // One run, and all of them, as the exporter sees them.
  struct Vector {
    std::vector<uint32_t> shape;
    std::vector<float> values;
  };
  struct Run {
    LiveRunInfo info;
    uint64_t order = 0;  // rises: newest last
    uint32_t attempt = 0;
    uint64_t step = 0;
    double last_step_unix = 0;
    std::map<std::string, double> gauges;    // metric name without prefix -> value
    std::map<std::string, double> counters;  // the same, highest value
    std::map<std::string, double> params;    // kind -> number
    std::map<std::string, Vector> routing;   // name -> newest vector
  };
  struct Sweep {
    std::string project;
    uint64_t order = 0;
    scheduler::StateCounts counts{};
    double ended_tokens = 0;  // of runs that are not live any more
  };
  struct Snapshot {
    std::map<RunId, std::shared_ptr<const Run>> runs;
    std::map<SweepId, Sweep> sweeps;
  };

 private:
  class Exporter;
  Run* Find(RunId run);

  const Caps caps_;
  uint64_t order_ = 0;
  std::map<RunId, std::shared_ptr<Run>> runs_;
  std::map<SweepId, Sweep> sweeps_;
  std::shared_ptr<Exporter> exporter_;
  bool is_changed_ = false;
};

}  // namespace switchyard::server_metrics
