#include "worker/model/routers/local_context.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

constexpr double kNoScore = -std::numeric_limits<double>::infinity();
// Lengths below this count as 0 in cosine similarity.
constexpr double kSmallestNorm = 1e-8;

// Distances query - neighbour in order of preference.
std::vector<int64_t> AgesOf(const LocalContextOptions& options) {
  std::vector<int64_t> ages;
  if (options.includes_self) ages.push_back(0);
  for (int64_t age = 1; age <= options.radius; ++age) {
    ages.push_back(age);
    if (options.sees_future) ages.push_back(-age);
  }
  return ages;
}

// Rows in blocks of r: block b of the result is blocks b ... b + parts - 1 of `rows`
// [B, (n + parts - 1) r, ...], joined; [B, n, parts r, ...].
at::Tensor Windows(const at::Tensor& rows, int64_t r, int64_t n, int64_t parts) {
  std::vector<at::Tensor> shifted;
  for (int64_t part = 0; part < parts; ++part) {
    shifted.push_back(rows.narrow(1, part * r, n * r).unflatten(1, {n, r}));
  }
  return at::cat(shifted, 2);
}

}  // namespace

at::Tensor LocalContext(const at::Tensor& x, const at::Tensor& valid, int64_t length,
                        const LocalContextOptions& options) {
  TORCH_CHECK(x.dim() == 3 && length > 0 && x.size(1) >= length && options.radius > 0 &&
                  options.neighbours > 0,
              "local context of ", x.sizes(), " for ", length, " tokens within ", options.radius);
  const int64_t B = x.size(0), D = x.size(2), r = options.radius;
  const int64_t past = std::min(x.size(1) - length, r);
  const int64_t n = (length + r - 1) / r;
  const int64_t parts = options.sees_future ? 3 : 2;
  // r rows before the first query, and whole blocks behind it.
  const int64_t before = r - past, behind = (n + parts - 1) * r - r - length;
  const int64_t first = x.size(1) - length - past;
  const at::Tensor rows =
      at::cat({at::zeros({B, before, D}, x.options()), x.narrow(1, first, past + length),
               at::zeros({B, behind, D}, x.options())},
              1);
  const auto flags = x.options().dtype(at::kBool);
  const at::Tensor real =
      valid.defined() ? valid.narrow(1, first, past + length) : at::ones({B, past + length}, flags);
  const at::Tensor usable =
      at::cat({at::zeros({B, before}, flags), real, at::zeros({B, behind}, flags)}, 1);

  const at::Tensor keys = Windows(rows, r, n, parts);                        // [B, n, parts r, D]
  const at::Tensor queries = rows.narrow(1, r, n * r).unflatten(1, {n, r});  // [B, n, r, D]
  at::Tensor similarity = at::matmul(queries, keys.transpose(2, 3));         // [B, n, r, parts r]
  switch (options.scale) {
    case LocalContextOptions::Scale::kInverseSqrt:
      similarity = similarity / std::sqrt(static_cast<double>(D));
      break;
    case LocalContextOptions::Scale::kCosine: {
      const at::Tensor lengths = at::linalg_vector_norm(rows, 2, at::IntArrayRef{2})
                                     .clamp_min(kSmallestNorm)
                                     .unsqueeze(2);  // [B, rows, 1]
      similarity = similarity / lengths.narrow(1, r, n * r).unflatten(1, {n, r}) /
                   Windows(lengths, r, n, parts).transpose(2, 3);
      break;
    }
    case LocalContextOptions::Scale::kNone:
      break;
  }

  // Column of each neighbour in its block's window: query i of a block is row r + i there.
  const std::vector<int64_t> ages = AgesOf(options);
  const auto width = static_cast<int64_t>(ages.size());
  const auto whole = x.options().dtype(at::kLong);
  const at::Tensor columns = at::arange(r, 2 * r, whole).unsqueeze(1) -
                             at::tensor(ages, at::kLong).to(x.device()).unsqueeze(0);  // [r, width]
  const at::Tensor everywhere = columns.expand({B, n, r, width});
  const at::Tensor allowed =
      Windows(usable, r, n, parts).unsqueeze(2).expand({B, n, r, parts * r}).gather(3, everywhere);
  const at::Tensor scores = similarity.gather(3, everywhere);

  const int64_t k = std::min(options.neighbours, width);
  const at::Tensor picked =
      SelectTopK(scores.detach().masked_fill(allowed.logical_not(), kNoScore).view({-1, width}), k)
          .view({B, n, r, k});
  const at::Tensor empty_slot = allowed.gather(3, picked).logical_not();
  at::Tensor weights;
  if (options.weight == LocalContextOptions::Weight::kMean) {
    const at::Tensor ones = empty_slot.logical_not().to(x.scalar_type());
    weights = ones / ones.sum(3, /*keepdim=*/true).clamp_min(1.0);
  } else {
    // A row without neighbours gets finite scores first: its softmax is replaced by zeros.
    const at::Tensor nobody = empty_slot.all(3, /*keepdim=*/true);
    weights =
        at::softmax(
            scores.gather(3, picked).masked_fill(empty_slot, kNoScore).masked_fill(nobody, 0.0), 3)
            .masked_fill(empty_slot, 0.0);
  }
  const at::Tensor band = at::zeros({B, n, r, parts * r}, weights.options())
                              .scatter(3, everywhere.gather(3, picked), weights);
  return at::matmul(band, keys).view({B, n * r, D}).narrow(1, 0, length);
}

}  // namespace switchyard::model
