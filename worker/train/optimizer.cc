#include "worker/train/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <set>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::train {

namespace pb = ::switchyard::v1;

AdamOptimizer::Options AdamOptimizer::OptionsFrom(const pb::OptimizerSpec& spec) {
  if (spec.kind_case() == pb::OptimizerSpec::kAdamw) {
    const pb::AdamW& adamw = spec.adamw();
    return {.lr = adamw.lr(),
            .beta1 = adamw.beta1(),
            .beta2 = adamw.beta2(),
            .eps = adamw.eps(),
            .weight_decay = adamw.weight_decay(),
            .is_decoupled = true};
  }
  SWITCHYARD_CHECK(spec.kind_case() == pb::OptimizerSpec::kAdam) << "an optimizer without a kind";
  const pb::Adam& adam = spec.adam();
  return {.lr = adam.lr(), .beta1 = adam.beta1(), .beta2 = adam.beta2(), .eps = adam.eps()};
}

AdamOptimizer::AdamOptimizer(const NamedTensors& parameters, Options options) : options_(options) {
  std::set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    names_.push_back(name);
    parameters_.push_back(parameter);
    const auto state = at::TensorOptions().dtype(at::kFloat).device(parameter.device());
    exp_avg_.push_back(at::zeros(parameter.sizes(), state));
    exp_avg_sq_.push_back(at::zeros(parameter.sizes(), state));
    step_counts_.push_back(at::zeros({}, state));
  }
}

void AdamOptimizer::ZeroGrad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

at::Tensor AdamOptimizer::GradNorm() const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return at::zeros({});
  return at::stack(at::_foreach_norm(gradients, 2)).norm(2);
}

void AdamOptimizer::Step(double lr, double clip_norm, double grad_norm) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter));
  }
  ++updates_;
  for (at::Tensor& count : step_counts_) count.fill_(static_cast<double>(updates_));
  // The fused pass divides each gradient by this.
  std::optional<at::Tensor> divisor;
  if (clip_norm > 0 && grad_norm > clip_norm && !parameters_.empty()) {
    divisor = at::full({}, grad_norm / clip_norm, exp_avg_[0].options());
  }
  if (options_.is_decoupled) {
    at::_fused_adamw_(parameters_, gradients, exp_avg_, exp_avg_sq_, /*max_exp_avg_sqs=*/{},
                      step_counts_, lr, options_.beta1, options_.beta2, options_.weight_decay,
                      options_.eps, /*amsgrad=*/false, /*maximize=*/false, divisor);
  } else {
    at::_fused_adam_(parameters_, gradients, exp_avg_, exp_avg_sq_, /*max_exp_avg_sqs=*/{},
                     step_counts_, lr, options_.beta1, options_.beta2, options_.weight_decay,
                     options_.eps, /*amsgrad=*/false, /*maximize=*/false, divisor);
  }
}

NamedTensors AdamOptimizer::State() const {
  NamedTensors state;
  for (size_t i = 0; i < names_.size(); ++i) {
    state.emplace_back(StrCat("exp_avg.", names_[i]), exp_avg_[i]);
    state.emplace_back(StrCat("exp_avg_sq.", names_[i]), exp_avg_sq_[i]);
  }
  return state;
}

void AdamOptimizer::set_updates(uint64_t updates) { updates_ = updates; }

}  // namespace switchyard::train
