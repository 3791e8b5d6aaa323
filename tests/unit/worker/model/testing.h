#pragma once

#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/model.h"

namespace switchyard::model {

// The model of a RunSpec in protobuf text form.
std::unique_ptr<LanguageModel> ModelOf(const std::string& run_text, uint32_t vocab);

// The same with the parameters in float64; what is frozen stays frozen.
std::unique_ptr<LanguageModel> DoubleModelOf(const std::string& run_text, uint32_t vocab);

// [rows, len] int64 below `vocab`, from a fixed stream.
at::Tensor RandomTokens(int64_t rows, int64_t len, uint64_t seed, uint32_t vocab);

// Drops the gradients of all parameters.
void ClearGradients(const LanguageModel& model);

// Turns all parameters into float64, so that differences of formulas are not hidden by rounding.
void ToDouble(LanguageModel& model);

// The parameter or buffer of that name; fails the program when there is none.
at::Tensor TensorOf(const LanguageModel& model, const std::string& name);

// Sum of nll plus the auxiliary terms.
at::Tensor TotalLoss(const ForwardResult& result);

// Largest absolute difference.
double Distance(const at::Tensor& a, const at::Tensor& b);

// Compares tensor.grad() with central differences of `loss` over every element (at most 64 by
// default, evenly spread); largest absolute difference.
double GradientError(const at::Tensor& tensor, const std::function<at::Tensor()>& loss,
                     int64_t elements = 64);

// [rows, columns] float64, standard normal from a fixed stream.
at::Tensor Normal(at::IntArrayRef sizes, uint64_t seed);

}  // namespace switchyard::model
