#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::spec {

// Computed from a RunSpec with defaults; names that `match` and constraints know:
// flops.active_per_token (forward), train.flops (forward and backward, all steps), params.total,
// params.active.
std::vector<std::string> QuantityNames();
// None for another name, and for train.flops where the length in steps is not known yet.
std::optional<double> QuantityOf(const v1::RunSpec& run, std::string_view name);

// FLOPs of one update: three forward passes' worth (forward, and backward at twice that) for each
// token.
double FlopsPerStep(const v1::RunSpec& run);

}  // namespace switchyard::spec
