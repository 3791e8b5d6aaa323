#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace switchyard::v1 {
class OptimizerSpec;
}

namespace switchyard::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), one fused pass over all
// parameters, state in float32:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr wd w (AdamW);   w -= lr (m / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + eps)
// A parameter that got no gradient is treated as having got 0, so that an expert without tokens
// moves the same under every dispatch. Training thread only.
class AdamOptimizer {
 public:
  struct Options {
    double lr = 0;  // peak; each step is given its own
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    bool is_decoupled = false;  // AdamW
  };
  // From a spec with its defaults filled in.
  static Options OptionsFrom(const v1::OptimizerSpec& spec);

  // Only tensors that require a gradient are moved; a tensor that is listed under two names (tied)
  // is moved once. Names are those of the checkpoint.
  AdamOptimizer(const NamedTensors& parameters, Options options);

  // Drops all gradients.
  void ZeroGrad();
  // Global L2 norm of the gradients, a float32 tensor of one element on their device.
  at::Tensor GradNorm() const;
  // One update with rate `lr`; gradients are divided by max(1, grad_norm / clip_norm) first when
  // `clip_norm` > 0. Uses the gradients up.
  void Step(double lr, double clip_norm, double grad_norm);

  uint64_t updates() const { return updates_; }
  // Moments by name ("exp_avg.<parameter>", "exp_avg_sq.<parameter>"); the tensors are the live
  // ones: a checkpoint is read by copying into them.
  NamedTensors State() const;
  void set_updates(uint64_t updates);

 private:
  Options options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  std::vector<at::Tensor> step_counts_;  // [] float32 each, as the fused pass wants them
  uint64_t updates_ = 0;
};

}  // namespace switchyard::train
