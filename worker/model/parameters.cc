#include "worker/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "common/base/check.h"

namespace switchyard::model {
namespace {

// Gram-Schmidt in double on normal vectors, twice: the first pass loses digits where two of them
// are near each other.
at::Tensor Orthogonal(const std::vector<int64_t>& shape, double gain, RandomKey key) {
  SWITCHYARD_CHECK(shape.size() == 2) << "only a matrix can be orthogonal";
  const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
  const size_t count = std::min(rows, columns), length = std::max(rows, columns);
  std::vector<double> basis(count * length);
  for (size_t i = 0; i < count; ++i) {
    double* vector = basis.data() + i * length;
    for (size_t j = 0; j < length; ++j) vector[j] = RandomNormal(key, i * length + j);
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t other = 0; other < i; ++other) {
        const double* with = basis.data() + other * length;
        const double dot = std::inner_product(vector, vector + length, with, 0.0);
        for (size_t j = 0; j < length; ++j) vector[j] -= dot * with[j];
      }
      const double norm = std::sqrt(std::inner_product(vector, vector + length, vector, 0.0));
      for (size_t j = 0; j < length; ++j) vector[j] /= norm;
    }
  }
  at::Tensor tensor = at::empty(shape, at::kFloat);
  float* out = tensor.data_ptr<float>();
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const double value = rows <= columns ? basis[r * length + c] : basis[c * length + r];
      out[r * columns + c] = static_cast<float>(gain * value);
    }
  }
  return tensor;
}

}  // namespace

void ParameterStore::CheckUnused(const std::string& name) const {
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const auto& [used, tensor] : *list) {
      SWITCHYARD_CHECK(used != name) << "two tensors are called " << name;
    }
  }
}

at::Tensor ParameterStore::Add(const std::string& name, const std::vector<int64_t>& shape,
                               Init init) {
  CheckUnused(name);
  at::Tensor tensor;
  const bool is_uniform = init.uniform > 0;
  if (init.orthogonal > 0) {
    tensor = Orthogonal(shape, init.orthogonal, init_key_.With(name));
  } else if (init.std == 0 && !is_uniform) {
    tensor = at::full(shape, init.mean, at::kFloat);
  } else {
    tensor = at::empty(shape, at::kFloat);
    const RandomKey key = init_key_.With(name);
    float* values = tensor.data_ptr<float>();
    at::parallel_for(0, tensor.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<uint64_t>(i);
        values[i] = static_cast<float>(is_uniform ? init.uniform * (2 * RandomUniform(key, at) - 1)
                                                  : init.mean + init.std * RandomNormal(key, at));
      }
    });
  }
  tensor.set_requires_grad(!init.is_frozen);
  parameters_.emplace_back(name, tensor);
  return tensor;
}

at::Tensor ParameterStore::Find(const std::string& name) const {
  for (const auto& [used, tensor] : parameters_) {
    if (used == name) return tensor;
  }
  return {};
}

at::Tensor ParameterStore::AddShared(const std::string& name, const std::vector<int64_t>& shape,
                                     Init init) {
  const at::Tensor shared = Find(name);
  return shared.defined() ? shared : Add(name, shape, init);
}

at::Tensor ParameterStore::AddBuffer(const std::string& name, at::Tensor value) {
  CheckUnused(name);
  buffers_.emplace_back(name, value);
  return value;
}

}  // namespace switchyard::model
