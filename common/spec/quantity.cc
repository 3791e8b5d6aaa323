#include "common/spec/quantity.h"

#include "common/spec/accounting.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {

std::vector<std::string> QuantityNames() {
  return {"flops.active_per_token", "train.flops", "params.total", "params.active"};
}

double FlopsPerStep(const v1::RunSpec& run) {
  constexpr double kForwardAndBackward = 3;
  return kForwardAndBackward * static_cast<double>(Account(run).flops_per_token_active) *
         run.train().batch() * run.train().target_len();
}

std::optional<double> QuantityOf(const v1::RunSpec& run, std::string_view name) {
  if (name == "train.flops") {
    if (!run.train().has_steps()) return std::nullopt;
    return FlopsPerStep(run) * static_cast<double>(run.train().steps());
  }
  const Accounting sums = Account(run);
  if (name == "flops.active_per_token") return static_cast<double>(sums.flops_per_token_active);
  if (name == "params.total") return static_cast<double>(sums.params_total);
  if (name == "params.active") return static_cast<double>(sums.params_active);
  return std::nullopt;
}

}  // namespace switchyard::spec
