#include "worker/model/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "common/base/check.h"

namespace switchyard::model {

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
  if (init.std == 0) {
    tensor = at::full(shape, init.mean, at::kFloat);
  } else {
    tensor = at::empty(shape, at::kFloat);
    const RandomKey key = init_key_.With(name);
    float* values = tensor.data_ptr<float>();
    at::parallel_for(0, tensor.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[i] =
            static_cast<float>(init.mean + init.std * RandomNormal(key, static_cast<uint64_t>(i)));
      }
    });
  }
  tensor.set_requires_grad(true);
  parameters_.emplace_back(name, tensor);
  return tensor;
}

at::Tensor ParameterStore::AddBuffer(const std::string& name, at::Tensor value) {
  CheckUnused(name);
  buffers_.emplace_back(name, value);
  return value;
}

}  // namespace switchyard::model
