#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "worker/model/routers/router.h"

// Random tables of experts, shared by `hash` and `random_fixed`.
namespace switchyard::model {

// Stream of a table: (seed, `hash_table`, block, layer if per layer).
RandomKey TableKey(const RouterSizes& sizes, bool is_per_layer, uint64_t seed, uint64_t block);
// k different experts of `experts`, all equally likely, to out[0..k).
void DrawDistinct(RandomKey key, int64_t experts, int64_t k, int64_t* out);
// [rows, k] int64, each row drawn apart from all others.
at::Tensor RandomTable(int64_t experts, int64_t k, int64_t rows, RandomKey key);
// Expert = table[token id], all weights equal. Registers `table` [V, K] as a buffer.
std::unique_ptr<Router> MakeTokenTableRouter(at::Tensor table, double weight,
                                             const RouterContext& context);

}  // namespace switchyard::model
