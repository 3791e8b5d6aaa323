#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/spec/router_properties.h"
#include "worker/model/parameters.h"
#include "worker/model/routers/router.h"

namespace switchyard::model {

// Where [B, T] tokens stand; -1 is padding.
TokenFacts FactsOf(const at::Tensor& token_ids);

// One router of a MoeSpec in protobuf text form, with defaults filled in.
struct RouterUnderTest {
  static constexpr uint32_t kVocab = 50;

  // `moe_text`: experts, top_k, router, ...; parameters are float64 unless `is_double` is false.
  RouterUnderTest(const std::string& moe_text, int64_t d_model, bool is_double = true,
                  uint32_t layer = 0);

  // Parameter or buffer; fails the program when there is none.
  at::Tensor Get(const std::string& name) const;
  // Scores far apart, so that differences show and small steps change no choice.
  void Widen(double factor);

  // As the second MoE layer, behind one whose hidden states are those of `hidden`, turned around;
  // experts give back what they get. `top_k`: as in RouterInput.
  Routing Route(const at::Tensor& hidden, const TokenFacts& facts, bool is_training = false,
                uint64_t step = 3, uint32_t top_k = 0) const;
  // One sequence of tokens 0.
  Routing Route(const at::Tensor& hidden, bool is_training = false, uint64_t step = 3) const;

  ParameterStore store{RandomKey::For(1, "init")};
  std::vector<uint64_t> frequency;
  RouterSizes sizes;
  spec::RouterProperties properties;
  std::unique_ptr<Router> router;
};

}  // namespace switchyard::model
