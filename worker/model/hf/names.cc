#include "worker/model/hf/names.h"

#include "common/base/strings.h"

namespace switchyard::model {
namespace {

constexpr std::string_view kStackedIn = ".mlp.experts.gate_up_proj";
constexpr std::string_view kStackedOut = ".mlp.experts.down_proj";
constexpr std::string_view kGate = ".mlp.gate.";
constexpr std::string_view kMlp = ".mlp.";
constexpr std::string_view kMixtralMlp = ".block_sparse_moe.";

}  // namespace

std::vector<HfPiece> HfPiecesOf(HfFamily family, const std::string& name,
                                const std::vector<int64_t>& shape, bool is_fused) {
  const bool is_mixtral = family == HfFamily::kMixtral && !is_fused;
  const bool is_in = name.ends_with(kStackedIn);
  if (is_fused || (!is_in && !name.ends_with(kStackedOut))) {
    std::string there = name;
    // All of Mixtral's feed-forward parts are of experts.
    if (const size_t at = there.find(kGate); is_mixtral && at != std::string::npos) {
      there.replace(at, kMlp.size(), kMixtralMlp);
    }
    return {{.name = std::move(there), .shape = shape}};
  }
  const size_t stem = is_in ? kStackedIn.size() : kStackedOut.size();
  const std::string layer = name.substr(0, name.size() - stem);
  std::vector<HfPiece> pieces;
  for (int64_t e = 0; e < shape[0]; ++e) {
    const std::string prefix = StrCat(layer, is_mixtral ? kMixtralMlp : kMlp, "experts.", e, ".");
    if (!is_in) {
      pieces.push_back({.name = StrCat(prefix, is_mixtral ? "w2" : "down_proj", ".weight"),
                        .shape = {shape[1], shape[2]},
                        .expert = e});
      continue;
    }
    const int64_t width = shape[1] / 2;
    pieces.push_back({.name = StrCat(prefix, is_mixtral ? "w1" : "gate_proj", ".weight"),
                      .shape = {width, shape[2]},
                      .expert = e});
    pieces.push_back({.name = StrCat(prefix, is_mixtral ? "w3" : "up_proj", ".weight"),
                      .shape = {width, shape[2]},
                      .expert = e,
                      .begin = width});
  }
  return pieces;
}

bool IsHfBuffer(std::string_view name) { return name.ends_with(".e_score_correction_bias"); }

}  // namespace switchyard::model
