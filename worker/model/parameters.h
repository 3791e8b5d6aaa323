#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"

namespace switchyard::model {

// How a parameter starts: N(mean, std^2); std 0 is the constant `mean`.
struct Init {
  double mean = 0;
  double std = 0;
  // Above 0: U(-uniform, uniform) instead.
  double uniform = 0;
  // Above 0, for a matrix: rows (or columns, whichever are fewer) orthogonal and of this norm.
  double orthogonal = 0;
  bool is_frozen = false;  // never trained, but saved like a parameter
};

// The tensors of one model by full name, which is the checkpoint format. Building only; the handles
// it gives out share storage with the lists.
class ParameterStore {
 public:
  // Values of parameter `name` come from the stream init_key.With(name), element by element, so
  // that tensors of equal name and shape start equal in every model.
  explicit ParameterStore(RandomKey init_key) : init_key_(init_key) {}

  // A float32 parameter that requires a gradient unless it is frozen. A name used twice is a broken
  // invariant.
  at::Tensor Add(const std::string& name, const std::vector<int64_t>& shape, Init init);
  at::Tensor AddBuffer(const std::string& name, at::Tensor value);
  // The parameter of that name, undefined when there is none.
  at::Tensor Find(const std::string& name) const;
  // The parameter of that name, or a new one: for tensors that layers share.
  at::Tensor AddShared(const std::string& name, const std::vector<int64_t>& shape, Init init);

  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  const std::vector<std::pair<std::string, at::Tensor>>& buffers() const { return buffers_; }

 private:
  void CheckUnused(const std::string& name) const;

  RandomKey init_key_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
};

}  // namespace switchyard::model
