#include "tests/unit/worker/model/testing.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>

#include "common/base/check.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::model {

std::unique_ptr<LanguageModel> ModelOf(const std::string& run_text, uint32_t vocab) {
  v1::RunSpec run;
  SWITCHYARD_CHECK(google::protobuf::TextFormat::ParseFromString(run_text, &run)) << run_text;
  spec::FillDefaults(&run);
  run.mutable_model()->clear_vocab();
  DataFacts facts{.vocab_size = vocab};
  for (uint64_t id = 0; id < vocab; ++id) facts.token_frequency.push_back(1000 / (id + 1));
  return MakeModel(run, facts);
}

std::unique_ptr<LanguageModel> DoubleModelOf(const std::string& run_text, uint32_t vocab) {
  auto model = ModelOf(run_text, vocab);
  for (const auto& [name, tensor] : model->NamedParameters()) {
    const bool is_trained = tensor.requires_grad();
    tensor.set_data(tensor.detach().to(at::kDouble));
    tensor.set_requires_grad(is_trained);
  }
  return model;
}

at::Tensor RandomTokens(int64_t rows, int64_t len, uint64_t seed, uint32_t vocab) {
  at::Tensor tokens = at::empty({rows, len}, at::kLong);
  const RandomKey key = RandomKey::For(seed, "tokens");
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.data_ptr<int64_t>()[i] =
        static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(i), vocab));
  }
  return tokens;
}

void ClearGradients(const LanguageModel& model) {
  for (const auto& [name, tensor] : model.NamedParameters()) tensor.mutable_grad() = at::Tensor();
}

void ToDouble(LanguageModel& model) {
  for (const auto& [name, tensor] : model.NamedParameters()) {
    tensor.set_data(tensor.detach().to(at::kDouble));
  }
}

at::Tensor TensorOf(const LanguageModel& model, const std::string& name) {
  for (const auto& list : {model.NamedParameters(), model.NamedBuffers()}) {
    for (const auto& [key, tensor] : list) {
      if (key == name) return tensor;
    }
  }
  SWITCHYARD_CHECK(false) << "no tensor " << name;
  return {};
}

at::Tensor TotalLoss(const ForwardResult& result) {
  at::Tensor total = result.nll.sum();
  for (const LossTerm& term : result.aux) total = total + term.value;
  return total;
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), a.sizes(), " and ", b.sizes());
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

double GradientError(const at::Tensor& tensor, const std::function<at::Tensor()>& loss,
                     int64_t elements) {
  const at::Tensor gradient = tensor.grad().contiguous();
  at::Tensor values = tensor.detach();
  auto* x = values.data_ptr<double>();
  const auto* g = gradient.const_data_ptr<double>();
  const int64_t stride = std::max<int64_t>(1, values.numel() / elements);
  double worst = 0;
  for (int64_t i = 0; i < values.numel(); i += stride) {
    const double kept = x[i];
    constexpr double kStep = 1e-6;
    x[i] = kept + kStep;
    const double above = loss().item<double>();
    x[i] = kept - kStep;
    const double below = loss().item<double>();
    x[i] = kept;
    worst = std::max(worst, std::abs((above - below) / (2 * kStep) - g[i]));
  }
  return worst;
}

at::Tensor Normal(at::IntArrayRef sizes, uint64_t seed) {
  at::Tensor out = at::empty(sizes, at::kDouble);
  const RandomKey key = RandomKey::For(seed, "test");
  auto* x = out.data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) x[i] = RandomNormal(key, static_cast<uint64_t>(i));
  return out;
}

}  // namespace switchyard::model
