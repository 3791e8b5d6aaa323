#pragma once

#include <cstdint>

namespace switchyard::model {

// Row kernels of the model code, one set per instruction set, chosen once by what the processor
// offers. All pointers are to contiguous elements; none of the functions allocates, locks or
// throws. `S` is the storage type of a matrix (float, double or bfloat16) and `W` the type it is
// computed in (float for float and bfloat16, double for double).
struct TypedKernels {
  // p[j] = softmax over j in [lo, hi) of (ac[j] + bd[j]) * scale, 0 elsewhere in [0, n). `p` may be
  // `ac`. `bd` is the row already shifted, read in [lo, hi) only; null counts as zeros.
  void (*rel_softmax)(const void* ac, const void* bd, void* p, int64_t lo, int64_t hi, int64_t n,
                      double scale);
  // dp[j] <- p[j] * (dp[j] - sum_i p[i] dp[i]) * scale in [lo, hi), 0 elsewhere in [0, n).
  void (*softmax_grad)(const void* p, void* dp, int64_t lo, int64_t hi, int64_t n, double scale);
  // y[i] = keep[i] ? x[i] * scale : 0.
  void (*mask_scale)(const void* x, const uint8_t* keep, double scale, void* y, int64_t n);
  // W -> S.
  void (*narrow)(const void* wide, void* stored, int64_t n);
  // out[i] (W) = sum_k weights[k] * rows[k][i]; a null row counts as zero.
  void (*combine)(const void* const* rows, const void* weights, int64_t k, void* out, int64_t n);
  // out[i] (W) = sum_k rows[k][i]; a null row counts as zero.
  void (*add_rows)(const void* const* rows, int64_t k, void* out, int64_t n);
  // dy[i] (S) = weight * g[i] (W); returns sum_i g[i] * y[i].
  double (*expert_grad)(const void* g, const void* y, double weight, void* dy, int64_t n);
  // a = relu(h + bias), then kept or dropped and scaled; `bias` (W) and `keep` may be null, `a` may
  // be `h`. rows x width.
  void (*bias_relu)(const void* h, const void* bias, const uint8_t* keep, double scale, void* a,
                    int64_t rows, int64_t width);
  // da[i] <- a[i] > 0 ? da[i] * scale : 0.
  void (*relu_grad)(const void* a, void* da, double scale, int64_t n);
  // y += bias (W), rows x width.
  void (*add_bias)(void* y, const void* bias, int64_t rows, int64_t width);
  // a = silu(gate) * up with h = [gate | up] per row, rows x (2 width).
  void (*swiglu)(const void* h, void* a, int64_t rows, int64_t width);
  // dh (rows x 2 width) from da (rows x width).
  void (*swiglu_grad)(const void* h, const void* da, void* dh, int64_t rows, int64_t width);
  // sum (W, width) += columns of m (rows x width).
  void (*column_sum)(const void* m, void* sum, int64_t rows, int64_t width);
  // Turns a row of logits into softmax in place; returns -log softmax[target] (0 for target < 0).
  double (*cross_entropy)(void* logits, int64_t target, int64_t n);
  // d[i] = g * (p[i] - [i == target]).
  void (*cross_entropy_grad)(const void* p, int64_t target, double g, void* d, int64_t n);
  // y = x * rstd * weight (all W), returns rstd = 1 / sqrt(mean(x^2) + eps).
  double (*rms_norm)(const void* x, const void* weight, double eps, void* y, int64_t n);
  // dx from dy, and dweight += dy * x * rstd (all W).
  void (*rms_norm_grad)(const void* x, const void* weight, const void* dy, double rstd, void* dx,
                        void* dweight, int64_t n);
  // Rotates the halves of a row of `n`: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin (sin and cos: W,
  // n / 2); `sign` -1 is the inverse.
  void (*rope)(const void* x, const void* cos, const void* sin, double sign, void* y, int64_t n);
};

enum class Storage { kFloat = 0, kDouble = 1, kBfloat16 = 2 };

struct Kernels {
  // 8 * blocks bytes: 1 with probability threshold / 65536, from blocks [first, first + blocks) of
  // the Philox stream `key`; every byte is a function of (key, its index) alone.
  void (*philox_mask)(uint64_t key, uint64_t first, int64_t blocks, uint32_t threshold,
                      uint8_t* out);
  TypedKernels typed[3];
  const char* isa;
};

// The set for this processor. Thread-safe.
const Kernels& ActiveKernels();

}  // namespace switchyard::model
