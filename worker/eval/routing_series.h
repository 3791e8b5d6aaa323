#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/eval/routing_telemetry.h"

namespace switchyard::model {
struct LayerRouting;
}

namespace switchyard::eval {

// One series value: a vector over the MoE layers, or layers x experts.
struct RoutingSeries {
  std::string name;  // "routing/entropy_nats"
  std::vector<uint32_t> shape;
  std::vector<float> values;
};

// Turns what the routers said in one update into series. Keeps the windows that dead experts are
// judged by. Training thread only.
class RoutingReporter {
 public:
  // `micro_batches[i]`: the MoE layers of micro-batch i in rising order, `sequences[i]` its rows.
  // Series that the router has no values for (no scores, K = E, window not filled) are left out.
  std::vector<RoutingSeries> Report(
      const std::vector<std::vector<model::LayerRouting>>& micro_batches,
      const std::vector<uint32_t>& sequences);

  // Churn of the probe batch against the probe before (`routing/churn_step`), and what independent
  // routing would have (`routing/churn_random_ref`); nothing for the first probe.
  std::vector<RoutingSeries> ReportProbe(const std::vector<model::LayerRouting>& layers);

  // What later series depend on, as tensors on the host by name, for checkpoints: a resumed run
  // reports what the uninterrupted one would have.
  std::vector<std::pair<std::string, at::Tensor>> State() const;
  // Takes up a State; names it does not know are left alone, and what is missing starts anew.
  void Restore(const std::vector<std::pair<std::string, at::Tensor>>& state);

 private:
  struct Probe;
  std::vector<LoadWindow> windows_;             // by MoE layer
  std::vector<std::shared_ptr<Probe>> probes_;  // by MoE layer, of the last probe
};

}  // namespace switchyard::eval
