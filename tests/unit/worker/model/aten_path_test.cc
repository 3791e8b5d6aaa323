// The operations that serve tensors outside host memory, here on CPU tensors, against the kernels.
#include <limits>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/dispatch_testing.h"
#include "worker/model/experts.h"
#include "worker/model/losses.h"
#include "worker/model/ops.h"
#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kVocab = 13;

class AtenPath {
 public:
  explicit AtenPath(bool is_forced) { ForceAtenPath(is_forced); }
  ~AtenPath() { ForceAtenPath(false); }
  AtenPath(const AtenPath&) = delete;
  AtenPath& operator=(const AtenPath&) = delete;
};

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor Ids(int64_t rows, int64_t len, uint64_t seed) {
  return (Normal({rows, len}, seed) * 1000).to(at::kLong).remainder(kVocab);
}

// Two training segments, so that memory counts, and an evaluation of a padded batch.
Tensors Outputs(const std::string& run_text, at::ScalarType type, bool is_aten) {
  const AtenPath path(is_aten);
  const auto model = ModelOf(run_text, kVocab);
  if (type == at::kDouble) ToDouble(*model);
  for (const auto& [name, tensor] : model->NamedParameters()) {
    // Wide scores, so that rounding never changes a choice.
    if (name.ends_with("gate.weight")) tensor.detach().mul_(50);
  }
  Tensors out;
  Memory memory;
  at::Tensor total;
  for (uint64_t s = 0; s < 2; ++s) {
    const ForwardContext context{
        .is_training = true, .step = 4 + s, .dropout = RandomKey{7}, .wants_routing = true};
    at::Tensor targets = Ids(3, 5, 10 + s);
    targets[1][3] = -1;
    const ForwardResult result = model->Forward(Ids(3, 5, s), targets, context, &memory, 7);
    const std::string segment = " of segment " + std::to_string(s);
    out["nll" + segment] = result.nll.detach();
    for (const LossTerm& term : result.aux) out[term.id + segment] = term.value.detach();
    for (const LayerRouting& routing : result.routing) {
      out["experts of layer " + std::to_string(routing.layer) + segment] = routing.expert_ids;
    }
    // Weighted, so that the rows' gradients differ.
    const at::Tensor weights = at::arange(1, 16, result.nll.options()).view({3, 5}) / 8;
    const at::Tensor loss = (result.nll * weights).sum() + TotalLoss(result);
    total = total.defined() ? total + loss : loss;
  }
  total.backward();
  for (const auto& [name, tensor] : model->NamedParameters()) out["d " + name] = tensor.grad();
  for (const auto& [name, tensor] : model->NamedBuffers()) out[name] = tensor;
  for (size_t i = 0; i < memory.size(); ++i) out["memory " + std::to_string(i)] = memory[i];
  at::Tensor padded = Ids(2, 6, 20);
  padded[1].narrow(0, 4, 2).fill_(-1);
  out["logits"] = model->Logits(padded, {}, nullptr, 0).detach();
  return out;
}

void ExpectEqual(const Tensors& kernels, const Tensors& aten, double tolerance) {
  ASSERT_EQ(kernels.size(), aten.size());
  for (const auto& [name, tensor] : kernels) {
    ASSERT_TRUE(aten.contains(name)) << name;
    const at::Tensor& other = aten.at(name);
    ASSERT_TRUE(tensor.defined() && other.defined()) << name;
    EXPECT_EQ(tensor.scalar_type(), other.scalar_type()) << name;
    const double size = tensor.numel() == 0 ? 0.0 : tensor.abs().max().item().toDouble();
    EXPECT_LE(Distance(tensor.to(at::kDouble), other.to(at::kDouble)),
              tolerance * std::max(1.0, size))
        << name;
  }
}

std::vector<std::string> Runs() {
  const std::string xl =
      "transformer_xl { layers: 3 d_model: 16 heads: 2 d_head: 6 d_inner: 20 dropout: 0.2 "
      "attn_dropout: 0.2 same_length: true } ";
  const std::string decoder =
      "decoder { layers: 2 d_model: 16 heads: 4 kv_heads: 2 d_inner: 20 dropout: 0.1 } ";
  const std::string losses =
      "losses { id: 'megatron_aux' coef: 0.5 } losses { id: 'z_loss' coef: 0.1 } "
      "losses { id: 'deepseek_seq' coef: 0.3 } losses { id: 'megatron_global' coef: 0.2 } ";
  std::vector<std::string> runs;
  for (const std::string& backbone : {xl, decoder}) {
    for (const std::string& moe :
         {std::string(),
          "moe { layers: [0, 1] experts: 4 top_k: 2 router { smoe {} } " + losses + "}",
          std::string("moe { layers: [1] experts: 5 top_k: 2 router { hash {} } }"),
          std::string("moe { layers: [1] experts: 3 top_k: 3 router { smoe {} } "
                      "expert { kind: EXPERT_KIND_GELU } }"),
          std::string("moe { layers: [0] experts: 4 top_k: 1 router { smoe {} gate_norm: "
                      "GATE_NORM_SOFTMAX_FULL } expert { kind: EXPERT_KIND_RELU } "
                      "losses { id: 'switch' coef: 0.5 } }")}) {
      runs.push_back("seed: 3 model { " + backbone + moe + "} ");
    }
  }
  return runs;
}

// Losses, choices, memory, logits and every gradient are the kernels', in both exact types, for
// both backbones and every router.
TEST(AtenPath, GivesTheKernelsValues) {
  for (const std::string& run : Runs()) {
    SCOPED_TRACE(run);
    ExpectEqual(Outputs(run, at::kFloat, false), Outputs(run, at::kFloat, true), 1e-5);
    ExpectEqual(Outputs(run, at::kDouble, false), Outputs(run, at::kDouble, true), 1e-10);
  }
}

// With products in bfloat16 the two differ by its rounding at most.
TEST(AtenPath, RoundsToBfloat16WhereTheKernelsDo) {
  for (const std::string& run : Runs()) {
    SCOPED_TRACE(run);
    const std::string text = run + "train { precision: PRECISION_BF16 }";
    ExpectEqual(Outputs(text, at::kFloat, false), Outputs(text, at::kFloat, true), 2e-2);
  }
}

// The loss in several pieces of logits is the loss in one, and a row without a target adds nothing
// even when a gradient arrives for it.
TEST(AtenPath, CrossEntropyInPieces) {
  Tensors results[2];
  for (const bool is_aten : {false, true}) {
    const AtenPath path(is_aten);
    const at::Tensor hidden = Normal({7, 4}, 1).requires_grad_(true);
    const at::Tensor weight = Normal({9, 4}, 2).requires_grad_(true);
    const at::Tensor bias = Normal({9}, 3).requires_grad_(true);
    const at::Tensor targets = at::tensor({1, 8, -1, 0, 3, -1, 5}, at::kLong);
    const at::Tensor nll =
        CrossEntropy(hidden, weight, bias, targets, Products::kParameter, /*chunk_elements=*/18);
    (nll * Normal({7}, 4)).sum().backward();
    results[is_aten ? 1 : 0] = {{"nll", nll.detach()},
                                {"d hidden", hidden.grad()},
                                {"d weight", weight.grad()},
                                {"d bias", bias.grad()}};
  }
  ExpectEqual(results[0], results[1], 1e-10);
  EXPECT_EQ(results[1]["nll"][2].item<double>(), 0.0);
  EXPECT_EQ(results[1]["d hidden"][5].abs().max().item<double>(), 0.0);
}

// Equal scores: lower expert first. A NaN comes behind every number, minus infinity included.
TEST(AtenPath, SelectsTheSameExperts) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const at::Tensor logits = at::tensor({1.0, 2.0, 2.0, 1.0,      //
                                        kNan, -kInf, 0.0, kNan,  //
                                        kNan, kNan, kNan, kNan,  //
                                        0.0, -0.0, kInf, 0.0},
                                       at::kDouble)
                                .view({4, 4});
  for (int64_t k = 1; k <= 4; ++k) {
    const at::Tensor expected = SelectTopK(logits, k);
    const AtenPath path(true);
    EXPECT_TRUE(at::equal(SelectTopK(logits, k), expected)) << k;
  }
}

// Tokens without an expert, experts without a token and no token at all.
TEST(AtenPath, MixesWhatIsNotRouted) {
  for (const int64_t n : {0, 4}) {
    Tensors results[2];
    for (const bool is_aten : {false, true}) {
      const AtenPath path(is_aten);
      const at::Tensor x = Normal({n, 4}, 1).requires_grad_(true);
      const at::Tensor weights = Normal({n, 2}, 2).requires_grad_(true);
      const Experts experts{.kind = FeedForwardKind::kRelu,
                            .w_in = Normal({3, 6, 4}, 3).requires_grad_(true),
                            .b_in = Normal({3, 6}, 4).requires_grad_(true),
                            .w_out = Normal({3, 4, 6}, 5).requires_grad_(true),
                            .b_out = Normal({3, 4}, 6).requires_grad_(true)};
      const at::Tensor ids =
          at::tensor({2, 0, -1, -1, 0, -1, -1, 2}, at::kLong).view({4, 2}).narrow(0, 0, n);
      const at::Tensor y = MixExperts(x, {ids, weights}, experts, {}, Products::kParameter);
      (y * Normal({n, 4}, 7)).sum().backward();
      results[is_aten ? 1 : 0] = {{"y", y.detach()},
                                  {"d x", x.grad()},
                                  {"d weights", weights.grad()},
                                  {"d w_in", experts.w_in.grad()},
                                  {"d b_in", experts.b_in.grad()},
                                  {"d w_out", experts.w_out.grad()},
                                  {"d b_out", experts.b_out.grad()}};
    }
    SCOPED_TRACE(n);
    ExpectEqual(results[0], results[1], 1e-12);
    EXPECT_EQ(results[1]["d w_in"][1].abs().max().item<double>(), 0.0);
  }
}

}  // namespace
}  // namespace switchyard::model
