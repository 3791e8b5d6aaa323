#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/model/hf/config.h"

namespace switchyard::model {

// Where a part of one of our tensors stands in a file: rows [begin, begin + rows) of slice `expert`
// of a stacked tensor, or all of it (expert -1).
struct HfPiece {
  std::string name;
  std::vector<int64_t> shape;
  int64_t expert = -1;
  int64_t begin = 0;
};

// The file's tensors that make up our tensor `name` of that shape. `is_fused`: experts stacked as
// transformers 5 holds them; then Mixtral's too stand under `mlp`.
std::vector<HfPiece> HfPiecesOf(HfFamily family, const std::string& name,
                                const std::vector<int64_t>& shape, bool is_fused);

// Whether a buffer of ours belongs to the file: DeepSeek-V3's balancing bias.
bool IsHfBuffer(std::string_view name);

}  // namespace switchyard::model
