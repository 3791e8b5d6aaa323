#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/dispatch.h"
#include "worker/model/ops.h"
#include "worker/model/storage.h"

namespace switchyard::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Scores of so many rows of so many heads are computed at a time: products large enough to pay,
// with what lies between them still in a core's cache. Half of what is beyond the diagonal is
// computed for nothing.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kBlockHeads = 8;

// Everything by head [heads, T, width], contiguous; `heads` over the batch.
struct Heads {
  at::Tensor q, k, v;
  double scale = 0;

  int64_t count() const { return q.size(0); }
  int64_t length() const { return q.size(1); }
  // At a time; fewer where there are few, so that there is work for every thread.
  int64_t block() const { return std::clamp<int64_t>(count() / kBlockHeads, 1, kBlockHeads); }
};

at::Tensor ByHead(const at::Tensor& x) {
  return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}).contiguous();
}

// Rows [row, row + rows) of heads [head, head + heads), which see the first `row + rows` keys.
struct Block {
  int64_t head, heads, row, rows;

  int64_t keys() const { return row + rows; }
  at::Tensor Rows(const at::Tensor& x) const {
    return x.narrow(0, head, heads).narrow(1, row, rows);
  }
  at::Tensor Keys(const at::Tensor& x) const {
    return x.narrow(0, head, heads).narrow(1, 0, keys());
  }
  // [heads, rows, keys] in the memory of `buffer`.
  at::Tensor Scores(const at::Tensor& buffer) const {
    return buffer.narrow(0, 0, heads * rows * keys()).view({heads, rows, keys()});
  }
};

// Calls task(blocks of the same heads, by row) for all heads, on all threads.
template <typename Task>
void ForHeads(const Heads& in, const Task& task) {
  const int64_t block = in.block(), groups = (in.count() + block - 1) / block;
  at::parallel_for(0, groups, 1, [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t group = first; group < last; ++group) {
      const int64_t head = group * block;
      task(head, std::min(block, in.count() - head));
    }
  });
}

at::Tensor ScoreBuffer(const Heads& in) {
  return at::empty({in.block() * std::min(kBlockRows, in.length()) * in.length()}, in.q.options());
}

// The weights of a block, in `buffer`.
at::Tensor Weights(const Heads& in, const Block& block, const at::Tensor& buffer,
                   const TypedKernels& kernels) {
  at::Tensor scores = block.Scores(buffer);
  at::bmm_out(scores, block.Rows(in.q), block.Keys(in.k).transpose(1, 2));
  const Rows rows(scores, block.keys());
  for (int64_t r = 0; r < block.heads * block.rows; ++r) {
    kernels.rel_softmax(rows[r], nullptr, rows[r], 0, block.row + r % block.rows + 1, block.keys(),
                        in.scale);
  }
  return scores;
}

struct CausalAttentionFunction : Function<CausalAttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, double scale) {
    const Heads in{ByHead(q), ByHead(k), ByHead(v), scale};
    const TypedKernels& kernels = KernelsFor(in.q);
    const int64_t T = in.length();
    at::Tensor result = at::empty_like(in.v);
    ForHeads(in, [&](int64_t head, int64_t heads) {
      const at::Tensor buffer = ScoreBuffer(in);
      for (int64_t row = 0; row < T; row += kBlockRows) {
        const Block block{head, heads, row, std::min(kBlockRows, T - row)};
        block.Rows(result).copy_(at::bmm(Weights(in, block, buffer, kernels), block.Keys(in.v)));
      }
    });
    ctx->save_for_backward({in.q, in.k, in.v});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["batch"] = q.size(0);
    return result.view({q.size(0), q.size(1), T, v.size(3)});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto tensors = ctx->get_saved_variables();
    const Heads in{tensors[0], tensors[1], tensors[2], ctx->saved_data["scale"].toDouble()};
    const TypedKernels& kernels = KernelsFor(in.q);
    const at::Tensor g = ByHead(grads[0]);
    const int64_t T = in.length();
    at::Tensor dq = at::empty_like(in.q), dk = at::empty_like(in.k), dv = at::empty_like(in.v);
    const auto wide = in.q.options().dtype(WideType(in.q.scalar_type()));
    ForHeads(in, [&](int64_t head, int64_t heads) {
      const at::Tensor buffer = ScoreBuffer(in), gradients = ScoreBuffer(in);
      at::Tensor sum_k = at::zeros({heads, T, in.k.size(2)}, wide);
      at::Tensor sum_v = at::zeros({heads, T, in.v.size(2)}, wide);
      for (int64_t row = 0; row < T; row += kBlockRows) {
        const Block block{head, heads, row, std::min(kBlockRows, T - row)};
        const at::Tensor weights = Weights(in, block, buffer, kernels);
        const at::Tensor g_rows = block.Rows(g);
        at::Tensor ds = block.Scores(gradients);
        at::bmm_out(ds, g_rows, block.Keys(in.v).transpose(1, 2));
        sum_v.narrow(1, 0, block.keys()).add_(at::bmm(weights.transpose(1, 2), g_rows));
        const Rows p(weights, block.keys()), d(ds, block.keys());
        for (int64_t r = 0; r < heads * block.rows; ++r) {
          kernels.softmax_grad(p[r], d[r], 0, row + r % block.rows + 1, block.keys(), in.scale);
        }
        block.Rows(dq).copy_(at::bmm(ds, block.Keys(in.k)));
        sum_k.narrow(1, 0, block.keys()).add_(at::bmm(ds.transpose(1, 2), block.Rows(in.q)));
      }
      dk.narrow(0, head, heads).copy_(sum_k);
      dv.narrow(0, head, heads).copy_(sum_v);
    });
    const int64_t B = ctx->saved_data["batch"].toInt(), H = in.count() / B;
    const auto by_batch = [&](const at::Tensor& x) { return x.view({B, H, T, x.size(2)}); };
    return {by_batch(dq), by_batch(dk), by_batch(dv), Variable()};
  }
};

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale) {
  TORCH_CHECK(q.dim() == 4 && q.sizes() == k.sizes() && v.dim() == 4 && v.size(0) == q.size(0) &&
                  v.size(1) == q.size(1) && v.size(2) == q.size(2),
              "attention of ", q.sizes(), " to ", k.sizes(), " with ", v.sizes());
  if (!UsesKernels(q)) {
    return at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0.0, /*is_causal=*/true,
                                            scale);
  }
  return CausalAttentionFunction::apply(q, k, v, scale);
}

}  // namespace switchyard::model
