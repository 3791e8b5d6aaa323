#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace switchyard::model {

// The plan diag(d0) exp(logits) diag(d1) of Sinkhorn's iteration, whose rows sum to 1 / N and
// columns to 1 / E when it converged: at most `iterations_max` rounds, ended when the mean change
// of d1 is below `tolerance`. logits [N, E]; N may be 0. Without gradient.
at::Tensor SinkhornPlan(const at::Tensor& logits, int64_t iterations_max, double tolerance);

}  // namespace switchyard::model
