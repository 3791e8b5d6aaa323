#include "worker/model/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/dispatch.h"
#include "worker/model/kernels/kernels.h"
#include "worker/model/storage.h"

namespace switchyard::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;
// An undefined tensor as an argument of a Function must come as an empty optional.
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor Optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

uint32_t KeepThreshold(double rate) {
  return static_cast<uint32_t>(std::lround((1.0 - rate) * 65536.0));
}

void FillMaskRow(RandomKey key, uint64_t row, int64_t width, uint32_t threshold, uint8_t* out) {
  const Kernels& kernels = ActiveKernels();
  const int64_t blocks = (width + 7) / 8;
  const uint64_t first = row * static_cast<uint64_t>(blocks);
  if (width % 8 == 0) {
    kernels.philox_mask(key.value, first, blocks, threshold, out);
    return;
  }
  std::vector<uint8_t> padded(static_cast<size_t>(blocks) * 8);
  kernels.philox_mask(key.value, first, blocks, threshold, padded.data());
  std::copy_n(padded.data(), width, out);
}

struct DropoutFunction : Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& mask,
                            double scale) {
    ctx->save_for_backward({mask});
    ctx->saved_data["scale"] = scale;
    return Apply(x.contiguous(), mask, scale);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor mask = ctx->get_saved_variables()[0];
    return {Apply(grads[0].contiguous(), mask, ctx->saved_data["scale"].toDouble()), Variable(),
            Variable()};
  }
  static at::Tensor Apply(const at::Tensor& x, const at::Tensor& mask, double scale) {
    if (!UsesKernels(x)) return (x * scale).masked_fill(mask.view(x.sizes()).eq(0), 0.0);
    at::Tensor y = at::empty_like(x);
    const TypedKernels& k = KernelsFor(x);
    const auto* from = static_cast<const char*>(x.const_data_ptr());
    const auto* keep = mask.const_data_ptr<uint8_t>();
    auto* to = static_cast<char*>(y.mutable_data_ptr());
    const int64_t size = static_cast<int64_t>(x.element_size());
    at::parallel_for(0, x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      k.mask_scale(from + begin * size, keep + begin, scale, to + begin * size, end - begin);
    });
    return y;
  }
};

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_, const at::Tensor& weight,
                            double eps) {
    const at::Tensor x = x_.contiguous();
    const int64_t n = x.size(-1);
    const int64_t rows = x.numel() / std::max<int64_t>(n, 1);
    if (!UsesKernels(x)) {
      const at::Tensor scale = (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
      ctx->save_for_backward({x, weight, scale});
      return x * scale * weight;
    }
    at::Tensor y = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, at::kDouble);
    const TypedKernels& k = KernelsFor(x);
    const Rows from(x, n), to(y, n);
    auto* scale = rstd.data_ptr<double>();
    at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        scale[i] = k.rms_norm(from[i], weight.const_data_ptr(), eps, to[i], n);
      }
    });
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor g = grads[0].contiguous();
    const int64_t n = x.size(-1);
    const int64_t rows = x.numel() / std::max<int64_t>(n, 1);
    if (!UsesKernels(x)) {
      const at::Tensor& scale = saved[2];
      const at::Tensor gw = g * weight;
      const at::Tensor c = (gw * x).mean(-1, /*keepdim=*/true) * scale.square();
      return {scale * (gw - x * c), (g * x * scale).view({rows, n}).sum(0), Variable()};
    }
    at::Tensor dx = at::empty_like(x);
    // One partial sum per block of rows: the result does not depend on the number of threads.
    constexpr int64_t kBlock = 256;
    const int64_t blocks = (rows + kBlock - 1) / kBlock;
    at::Tensor partial = at::zeros({blocks, n}, weight.options());
    const TypedKernels& k = KernelsFor(x);
    const Rows from(x, n), grad(g, n), to(dx, n), sums(partial, n);
    const auto* rstd = saved[2].const_data_ptr<double>();
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        for (int64_t i = b * kBlock; i < std::min(rows, (b + 1) * kBlock); ++i) {
          k.rms_norm_grad(from[i], weight.const_data_ptr(), grad[i], rstd[i], to[i], sums[b], n);
        }
      }
    });
    return {dx, partial.sum(0), Variable()};
  }
};

struct RopeFunction : Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return Rotate(x, cos, sin, 1.0);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {Rotate(grads[0], saved[0], saved[1], -1.0), Variable(), Variable()};
  }
  static at::Tensor Rotate(const at::Tensor& x_, const at::Tensor& cos, const at::Tensor& sin,
                           double sign) {
    const at::Tensor x = x_.contiguous();
    const int64_t d = x.size(-1);
    const int64_t positions = x.size(-2);
    if (!UsesKernels(x)) {
      const at::Tensor a = x.narrow(-1, 0, d / 2), b = x.narrow(-1, d / 2, d / 2);
      const at::Tensor signed_sin = sin * sign;
      return at::cat({a * cos - b * signed_sin, b * cos + a * signed_sin}, -1).to(x.scalar_type());
    }
    at::Tensor y = at::empty_like(x);
    const TypedKernels& k = KernelsFor(x);
    const Rows from(x, d), to(y, d), c(cos, d / 2), s(sin, d / 2);
    at::parallel_for(0, x.numel() / d, 256, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        k.rope(from[i], c[i % positions], s[i % positions], sign, to[i], d);
      }
    });
    return y;
  }
};

constexpr int64_t kChunkElements = int64_t{1} << 24;

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_,
                            const at::Tensor& weight, const OptionalTensor& bias_,
                            const at::Tensor& targets, bool in_bfloat16, int64_t chunk_elements) {
    const at::Tensor bias = bias_.value_or(at::Tensor());
    const auto type = in_bfloat16 ? at::kBFloat16 : hidden_.scalar_type();
    const at::Tensor hidden = hidden_.contiguous().to(type);
    const at::Tensor w = weight.to(type);
    const int64_t rows = hidden.size(0);
    const int64_t chunk = ChunkRows(rows, weight.size(0), chunk_elements);
    at::Tensor nll = at::empty({rows}, weight.options());
    at::Tensor probs;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t n = std::min(chunk, rows - begin);
      probs = Softmax(hidden.narrow(0, begin, n), w, bias, targets.narrow(0, begin, n), nll, begin);
    }
    ctx->saved_data["chunk"] = chunk;
    ctx->saved_data["hidden_type"] = static_cast<int64_t>(hidden_.scalar_type());
    // With one chunk its probabilities are kept; else the backward pass makes them again.
    if (chunk < rows || rows == 0) probs = at::Tensor();
    ctx->save_for_backward({hidden, w, weight, bias, targets, probs});
    return nll;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& hidden = saved[0];
    const at::Tensor& w = saved[1];
    const at::Tensor& weight = saved[2];
    const at::Tensor& bias = saved[3];
    const at::Tensor& targets = saved[4];
    const at::Tensor g = grads[0].contiguous().to(at::kDouble);
    const int64_t chunk = ctx->saved_data["chunk"].toInt();
    const int64_t rows = hidden.size(0);
    const int64_t vocab = w.size(0);
    at::Tensor dhidden = at::empty_like(hidden);
    at::Tensor dweight;
    at::Tensor dbias = bias.defined() ? at::zeros_like(bias) : at::Tensor();
    at::Tensor unused = at::empty({rows}, weight.options());
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t n = std::min(chunk, rows - begin);
      const at::Tensor h = hidden.narrow(0, begin, n);
      at::Tensor probs = saved[5].defined()
                             ? saved[5]
                             : Softmax(h, w, bias, targets.narrow(0, begin, n), unused, begin);
      const at::Tensor d =
          LogitsGradient(probs, targets.narrow(0, begin, n), g.narrow(0, begin, n));
      at::Tensor dh = dhidden.narrow(0, begin, n);
      at::mm_out(dh, d, w);
      const at::Tensor dw = at::mm(d.t(), h);
      if (dweight.defined()) {
        dweight.add_(dw);
      } else {
        dweight = dw.to(weight.scalar_type());
      }
      if (!dbias.defined()) continue;
      if (UsesKernels(d)) {
        KernelsFor(d).column_sum(d.const_data_ptr(), dbias.mutable_data_ptr(), n, vocab);
      } else {
        dbias.add_(d.sum(at::IntArrayRef{0}, /*keepdim=*/false, dbias.scalar_type()));
      }
    }
    if (!dweight.defined()) dweight = at::zeros_like(weight);
    return {dhidden.to(static_cast<at::ScalarType>(ctx->saved_data["hidden_type"].toInt())),
            dweight,
            dbias,
            Variable(),
            Variable(),
            Variable()};
  }

  // Of the rows' logits, from their probabilities and the gradients of their losses (double).
  static at::Tensor LogitsGradient(const at::Tensor& probs, const at::Tensor& targets,
                                   const at::Tensor& grad) {
    const int64_t vocab = probs.size(1);
    if (!UsesKernels(probs)) {
      const auto type = probs.scalar_type();
      const at::Tensor g =
          grad.to(WideType(type)).masked_fill(targets.lt(0), 0.0).unsqueeze(1);  // [n, 1]
      // One target per row: no two additions meet, so that the order does not matter.
      return (probs * g).scatter_add_(1, targets.clamp_min(0).unsqueeze(1), g.neg()).to(type);
    }
    at::Tensor d = at::empty_like(probs);
    const TypedKernels& k = KernelsFor(probs);
    const Rows p(probs, vocab), to(d, vocab);
    const auto* t = targets.const_data_ptr<int64_t>();
    const auto* scale = grad.const_data_ptr<double>();
    at::parallel_for(0, probs.size(0), 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        // A row that is not scored has gradient 0 whatever arrives for it.
        k.cross_entropy_grad(p[i], t[i], t[i] < 0 ? 0.0 : scale[i], to[i], vocab);
      }
    });
    return d;
  }

  static int64_t ChunkRows(int64_t rows, int64_t vocab, int64_t elements) {
    const int64_t limit = elements > 0 ? elements : kChunkElements;
    return std::clamp<int64_t>(limit / vocab, 1, std::max<int64_t>(rows, 1));
  }

  static at::Tensor Softmax(const at::Tensor& hidden, const at::Tensor& w, const at::Tensor& bias,
                            const at::Tensor& targets, at::Tensor& nll, int64_t begin) {
    at::Tensor logits = at::mm(hidden, w.t());
    const int64_t vocab = w.size(0);
    if (!UsesKernels(logits)) {
      const auto type = logits.scalar_type();
      if (bias.defined()) logits = (logits + bias).to(type);
      const at::Tensor logs = at::log_softmax(logits, 1, WideType(type));
      const at::Tensor chosen = logs.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
      nll.narrow(0, begin, chosen.size(0)).copy_(chosen.neg().masked_fill(targets.lt(0), 0.0));
      return logs.exp().to(type);
    }
    const TypedKernels& k = KernelsFor(logits);
    const Rows rows(logits, vocab);
    const auto* t = targets.const_data_ptr<int64_t>();
    const bool wide = nll.scalar_type() == at::kDouble;
    at::parallel_for(0, logits.size(0), 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (bias.defined()) k.add_bias(rows[i], bias.const_data_ptr(), 1, vocab);
        const double value = k.cross_entropy(rows[i], t[i], vocab);
        if (wide) {
          nll.mutable_data_ptr<double>()[begin + i] = value;
        } else {
          nll.mutable_data_ptr<float>()[begin + i] = static_cast<float>(value);
        }
      }
    });
    return logits;
  }
};

// Allowed keys of query row i: [lo, hi).
struct KeyRange {
  int64_t lo;
  int64_t hi;
};
KeyRange AllowedKeys(int64_t i, int64_t memory, int64_t window) {
  const int64_t last = i + memory;
  return {window > 0 ? std::max<int64_t>(0, last - window + 1) : 0, last + 1};
}

// Sizes of one relative attention, for the operations between its products.
struct AttentionShape {
  int64_t batch, length, heads, keys, window;
  double scale;

  int64_t memory() const { return keys - length; }

  // scores [B h, T, S] (of the content), position [h, B T, S] by distance: the weights in place.
  at::Tensor Weights(at::Tensor scores, const at::Tensor& position) const {
    const int64_t T = length, S = keys;
    if (!UsesKernels(scores)) {
      const at::Tensor row = RowNumbers(scores), key = KeyNumbers(scores);
      const at::Tensor column = (key - row + (T - 1)).clamp_max(S - 1);  // [T, S]
      const at::Tensor shifted = position.view({heads, batch, T, S})
                                     .gather(3, column.expand({heads, batch, T, S}))
                                     .transpose(0, 1)
                                     .reshape({batch * heads, T, S});
      const auto type = scores.scalar_type();
      const at::Tensor sums = (scores.to(WideType(type)) + shifted) * scale;
      return at::softmax(
                 sums.masked_fill(Forbidden(scores), -std::numeric_limits<double>::infinity()), 2)
          .to(type);
    }
    const TypedKernels& kernels = KernelsFor(scores);
    const Rows rows(scores, S), distances(position, S);
    const int64_t size = static_cast<int64_t>(scores.element_size());
    at::parallel_for(0, batch * heads * T, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t i = r % T, head = r / T % heads, b = r / (T * heads);
        const auto [lo, hi] = AllowedKeys(i, memory(), window);
        // Key j is at distance memory + i - j, which is column T - 1 - i + j.
        const char* shifted = distances[(head * batch + b) * T + i] + (T - 1 - i) * size;
        kernels.rel_softmax(rows[r], shifted, rows[r], lo, hi, S, scale);
      }
    });
    return scores;
  }

  // Turns the gradient `ds` of the weights into that of the scores [B h, T, S], in place where it
  // can, and gives that of the position part [h, B T, S] too.
  std::pair<at::Tensor, at::Tensor> Gradients(const at::Tensor& probs, at::Tensor ds) const {
    const int64_t T = length, S = keys;
    if (!UsesKernels(probs)) {
      const auto type = probs.scalar_type();
      const at::Tensor p = probs.to(WideType(type));
      at::Tensor d = ds.to(WideType(type));
      d = (p * (d - (p * d).sum(2, /*keepdim=*/true)) * scale)
              .masked_fill(Forbidden(probs), 0.0)
              .to(type);
      const at::Tensor key = KeyNumbers(probs) - (T - 1) + RowNumbers(probs);  // of column c
      const at::Tensor position = d.view({batch, heads, T, S})
                                      .transpose(0, 1)
                                      .gather(3, key.clamp_min(0).expand({heads, batch, T, S}))
                                      .masked_fill(key.lt(0), 0.0)
                                      .view({heads, batch * T, S});
      return {d, position};
    }
    at::Tensor position = at::empty({heads, batch * T, S}, probs.options());
    const TypedKernels& kernels = KernelsFor(probs);
    const Rows p(probs, S), d(ds, S), distances(position, S);
    const int64_t size = static_cast<int64_t>(probs.element_size());
    at::parallel_for(0, batch * heads * T, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row % T, head = row / T % heads, b = row / (T * heads);
        const auto [lo, hi] = AllowedKeys(i, memory(), window);
        kernels.softmax_grad(p[row], d[row], lo, hi, S, scale);
        char* to = distances[(head * batch + b) * T + i];
        const int64_t shift = T - 1 - i;
        std::fill_n(to, shift * size, 0);
        std::copy_n(d[row], (S - shift) * size, to + shift * size);
      }
    });
    return {ds, position};
  }

 private:
  at::Tensor RowNumbers(const at::Tensor& like) const {
    return at::arange(length, like.options().dtype(at::kLong)).unsqueeze(1);
  }
  at::Tensor KeyNumbers(const at::Tensor& like) const {
    return at::arange(keys, like.options().dtype(at::kLong)).unsqueeze(0);
  }
  // [T, S] bool: AllowedKeys of every row, negated.
  at::Tensor Forbidden(const at::Tensor& like) const {
    const at::Tensor last = RowNumbers(like) + memory(), key = KeyNumbers(like);
    const at::Tensor later = key.gt(last);
    return window > 0 ? later.logical_or(key.le(last - window)) : later;
  }
};

struct RelativeAttentionFunction : Function<RelativeAttentionFunction> {
  // q, k, v, r come in the products' type, u and w in the parameters'.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& r, const at::Tensor& u,
                            const at::Tensor& w, int64_t window, const OptionalTensor& mask_,
                            double mask_scale) {
    const at::Tensor mask = mask_.value_or(at::Tensor());
    const int64_t B = q.size(0), T = q.size(1), h = q.size(2), dh = q.size(3);
    const int64_t S = k.size(1);
    const auto type = q.scalar_type();
    const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
    const at::Tensor qu = (q + u).to(type).permute({0, 2, 1, 3}).contiguous().view({B * h, T, dh});
    const at::Tensor qw = (q + w).to(type).permute({2, 0, 1, 3}).contiguous().view({h, B * T, dh});
    const at::Tensor kh = k.permute({0, 2, 1, 3}).contiguous().view({B * h, S, dh});
    const at::Tensor vh = v.permute({0, 2, 1, 3}).contiguous().view({B * h, S, dh});
    const at::Tensor rh = r.permute({1, 0, 2}).contiguous();  // [h, S, dh]
    const AttentionShape shape{B, T, h, S, window, scale};
    const at::Tensor probs = shape.Weights(at::bmm(qu, kh.transpose(1, 2)),   // [B h, T, S]
                                           at::bmm(qw, rh.transpose(1, 2)));  // [h, B T, S]
    at::Tensor dropped = probs;
    if (mask.defined()) dropped = DropoutFunction::Apply(probs, mask, mask_scale);
    const at::Tensor out = at::bmm(dropped, vh);
    ctx->save_for_backward({qu, qw, kh, vh, rh, probs, mask, u, w});
    ctx->saved_data["sizes"] = std::vector<int64_t>{B, T, h, dh, S, window};
    ctx->saved_data["mask_scale"] = mask_scale;
    return out.view({B, h, T, dh}).permute({0, 2, 1, 3}).reshape({B, T, h * dh});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &qu = saved[0], &qw = saved[1], &kh = saved[2], &vh = saved[3], &rh = saved[4],
                     &probs = saved[5], &mask = saved[6], &u = saved[7];
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const int64_t B = sizes[0], T = sizes[1], h = sizes[2], dh = sizes[3], S = sizes[4];
    const int64_t window = sizes[5];
    const double mask_scale = ctx->saved_data["mask_scale"].toDouble();
    const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
    const at::Tensor g =
        grads[0].view({B, T, h, dh}).permute({0, 2, 1, 3}).contiguous().view({B * h, T, dh});
    const at::Tensor dropped =
        mask.defined() ? DropoutFunction::Apply(probs, mask, mask_scale) : probs;
    const at::Tensor dv = at::bmm(dropped.transpose(1, 2), g);
    at::Tensor ds = at::bmm(g, vh.transpose(1, 2));  // gradient of the weights, then of the scores
    if (mask.defined()) ds = DropoutFunction::Apply(ds, mask, mask_scale);
    at::Tensor dbd;
    std::tie(ds, dbd) = AttentionShape{B, T, h, S, window, scale}.Gradients(probs, ds);
    const at::Tensor dqu = at::bmm(ds, kh).view({B, h, T, dh});
    const at::Tensor dk = at::bmm(ds.transpose(1, 2), qu).view({B, h, S, dh});
    const at::Tensor dqw = at::bmm(dbd, rh).view({h, B, T, dh});
    const at::Tensor dr = at::bmm(dbd.transpose(1, 2), qw);  // [h, S, dh]
    const auto wide = u.scalar_type();
    return {dqu.permute({0, 2, 1, 3}) + dqw.permute({1, 2, 0, 3}),
            dk.permute({0, 2, 1, 3}),
            dv.view({B, h, S, dh}).permute({0, 2, 1, 3}),
            dr.permute({1, 0, 2}),
            dqu.sum(at::IntArrayRef{0, 2}, /*keepdim=*/false, wide),
            dqw.sum(at::IntArrayRef{1, 2}, /*keepdim=*/false, wide),
            Variable(),
            Variable(),
            Variable()};
  }
};

}  // namespace

double DropoutScale(double rate) { return 65536.0 / KeepThreshold(rate); }

at::Tensor DropoutMask(const DropoutStream& stream, int64_t sequences, int64_t rows,
                       int64_t width) {
  at::Tensor mask = at::empty({sequences, rows, width}, at::kByte);
  auto* out = mask.data_ptr<uint8_t>();
  const uint32_t threshold = KeepThreshold(stream.rate);
  at::parallel_for(
      0, sequences * rows, std::max<int64_t>(1, 65536 / std::max<int64_t>(width, 1)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end;) {
          const int64_t b = i / rows;
          const int64_t first = i % rows;
          // Rows without padding are one run of the stream.
          const int64_t n = width % 8 == 0 ? std::min(rows - first, end - i) : 1;
          const RandomKey key = stream.key.With(stream.first_sequence + static_cast<uint64_t>(b));
          if (n == 1) {
            FillMaskRow(key, static_cast<uint64_t>(first), width, threshold, out + i * width);
          } else {
            ActiveKernels().philox_mask(key.value, static_cast<uint64_t>(first * (width / 8)),
                                        n * (width / 8), threshold, out + i * width);
          }
          i += n;
        }
      });
  return mask;
}

at::Tensor DropoutMaskRows(const DropoutStream& stream, const int64_t* sequence_ids,
                           const int64_t* row_ids, int64_t n, int64_t width) {
  at::Tensor mask = at::empty({n, width}, at::kByte);
  auto* out = mask.data_ptr<uint8_t>();
  const uint32_t threshold = KeepThreshold(stream.rate);
  at::parallel_for(
      0, n, std::max<int64_t>(1, 65536 / std::max<int64_t>(width, 1)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const RandomKey key =
              stream.key.With(stream.first_sequence + static_cast<uint64_t>(sequence_ids[i]));
          FillMaskRow(key, static_cast<uint64_t>(row_ids[i]), width, threshold, out + i * width);
        }
      });
  return mask;
}

at::Tensor Dropout(const at::Tensor& x, const DropoutStream& stream) {
  if (!stream.active()) return x;
  TORCH_CHECK(x.dim() == 3, "dropout over ", x.sizes(), ", expected [B, T, D]");
  const at::Tensor mask = DropoutMask(stream, x.size(0), x.size(1), x.size(2)).to(x.device());
  return DropoutFunction::apply(x, mask, DropoutScale(stream.rate));
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  Products products) {
  if (products == Products::kParameter) return at::linear(x, weight, bias);
  return at::linear(x.to(at::kBFloat16), weight.to(at::kBFloat16),
                    bias.defined() ? bias.to(at::kBFloat16) : bias);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.size(-1) == weight.size(0) && x.scalar_type() == weight.scalar_type(), "norm of ",
              x.sizes(), " with weight ", weight.sizes());
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.size(-1) % 2 == 0 && cos.size(0) == x.size(-2) && cos.size(1) == x.size(-1) / 2,
              "rotary table ", cos.sizes(), " for ", x.sizes());
  return RopeFunction::apply(x, cos, sin);
}

at::Tensor CrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& targets, Products products, int64_t chunk_elements) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) == weight.size(1) && targets.dim() == 1 &&
                  targets.size(0) == hidden.size(0),
              "cross-entropy of hidden ", hidden.sizes(), ", weight ", weight.sizes(), ", targets ",
              targets.sizes());
  const at::Tensor t = targets.contiguous();
  TORCH_CHECK(t.numel() == 0 || t.max().item<int64_t>() < weight.size(0), "target ",
              t.max().item<int64_t>(), " is outside the vocabulary of ", weight.size(0));
  return CrossEntropyFunction::apply(hidden, weight, Optional(bias), t,
                                     products == Products::kBfloat16, chunk_elements);
}

at::Tensor RelativeAttention(const RelativeAttentionInput& in) {
  TORCH_CHECK(in.q.dim() == 4 && in.k.sizes() == in.v.sizes() && in.k.size(1) >= in.q.size(1) &&
                  in.r.size(0) == in.k.size(1),
              "attention of q ", in.q.sizes(), ", k ", in.k.sizes(), ", r ", in.r.sizes());
  at::Tensor mask;
  double scale = 1.0;
  if (in.dropout.active()) {
    mask = DropoutMask(in.dropout, in.q.size(0), in.q.size(2) * in.q.size(1), in.k.size(1))
               .to(in.q.device());
    scale = DropoutScale(in.dropout.rate);
  }
  return RelativeAttentionFunction::apply(in.q, in.k, in.v, in.r, in.u, in.w, in.window,
                                          Optional(mask), scale);
}

}  // namespace switchyard::model
