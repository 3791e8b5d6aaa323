#include <tuple>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "worker/model/dispatch.h"
#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

template <typename T>
void SelectRows(const T* logits, int64_t experts, int64_t k, int64_t rows, int64_t* out) {
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = logits + n * experts;
    int64_t* picks = out + n * k;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; ++e) {
        // Chosen already: behind the last pick in the order (score falling, index rising).
        bool taken = false;
        for (int64_t i = 0; i < j; ++i) taken = taken || picks[i] == e;
        if (taken) continue;
        // The second part lets a number win over a NaN.
        if (best < 0 || row[e] > row[best] || (row[best] != row[best] && row[e] == row[e])) {
          best = e;
        }
      }
      picks[j] = best;
    }
  }
}

}  // namespace

at::Tensor SelectTopK(const at::Tensor& logits, int64_t k) {
  TORCH_CHECK(logits.dim() == 2 && k > 0 && k <= logits.size(1), "the ", k, " best of ",
              logits.sizes());
  const at::Tensor scores = logits.detach().contiguous();
  if (!UsesKernels(scores)) {
    // Stable and rising, so that equal scores keep their order; a NaN sorts behind every number.
    const at::Tensor order =
        std::get<1>(scores.neg().sort(/*stable=*/true, /*dim=*/1, /*descending=*/false));
    return order.narrow(1, 0, k).contiguous();
  }
  const int64_t experts = scores.size(1);
  at::Tensor picked = at::empty({scores.size(0), k}, at::kLong);
  auto* out = picked.data_ptr<int64_t>();
  at::parallel_for(0, scores.size(0), 256, [&](int64_t begin, int64_t end) {
    if (scores.scalar_type() == at::kDouble) {
      SelectRows(scores.const_data_ptr<double>() + begin * experts, experts, k, end - begin,
                 out + begin * k);
    } else {
      SelectRows(scores.const_data_ptr<float>() + begin * experts, experts, k, end - begin,
                 out + begin * k);
    }
  });
  return picked;
}

at::Tensor GateWeightsOf(const at::Tensor& logits, const at::Tensor& ids, GateWeights norm) {
  switch (norm) {
    case GateWeights::kSoftmaxTopk:
    case GateWeights::kSoftmaxFullRenorm:
      // The same: the full softmax's divisor cancels, and chosen probabilities that underflow still
      // share 1.
      return at::softmax(logits.gather(1, ids), 1);
    case GateWeights::kSoftmaxFull:
      return at::softmax(logits, 1).gather(1, ids);
    case GateWeights::kUniform:
      return at::full(ids.sizes(), 1.0 / static_cast<double>(ids.size(1)), logits.options());
    case GateWeights::kSigmoid:
      return at::sigmoid(logits.gather(1, ids));
    case GateWeights::kSigmoidRenorm: {
      const at::Tensor chosen = logits.gather(1, ids);
      if (ids.size(1) == 1) return at::sigmoid(chosen);
      // Through logarithms, as above: scores that underflow still share 1.
      return at::softmax(at::log_sigmoid(chosen), 1);
    }
  }
  TORCH_CHECK(false, "unknown gate norm");
}

}  // namespace switchyard::model
