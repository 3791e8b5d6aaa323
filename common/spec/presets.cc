#include "common/spec/presets.h"

#include <array>

#include "common/base/check.h"
#include "common/spec/document.h"
#include "common/spec/lay.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

struct Preset {
  std::string_view name;
  std::string_view yaml;  // fields of the RunSpec
};

constexpr std::array<Preset, 5> kPresets = {{
    // Smoke tests on a CPU: minutes.
    {"txl_tiny", R"(
kind: train
model:
  transformer_xl: {layers: 4, d_model: 128, heads: 4, d_head: 32, d_inner: 128}
  moe: {layers: [0, 1, 2, 3], experts: 8, top_k: 2, router: smoe}
train:
  batch: 8
  target_len: 128
  memory_len: 128
  optimizer: {adam: {lr: 7e-4}}
  schedule: cosine
  clip_norm: 0.25
)"},
    // Studies on a CPU: hours.
    {"txl_mini", R"(
kind: train
model:
  transformer_xl: {layers: 8, d_model: 176, heads: 4, d_head: 44, d_inner: 256}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, router: smoe}
train:
  batch: 16
  target_len: 256
  memory_len: 256
  optimizer: {adam: {lr: 7e-4}}
  schedule: cosine
  clip_norm: 0.25
)"},
    // The pre-training configuration of the MCF-MoE study.
    {"txl_mcf", R"(
kind: train
model:
  transformer_xl: {layers: 8, d_model: 352, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0.1}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe}
train:
  steps: 80000
  batch: 48
  target_len: 512
  memory_len: 512
  optimizer: {adam: {lr: 7e-4}}
  warmup_steps: 4000
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 896, batch: 10}
)"},
    // Transformer-XL's published enwik8 base model.
    {"txl_official_enwik8_base", R"(
kind: train
data: {enwik8: {tokens: txl204}}
model:
  transformer_xl: {layers: 12, d_model: 512, heads: 8, d_head: 64, d_inner: 2048, dropout: 0.1, attn_dropout: 0}
train:
  steps: 400000
  batch: 22
  target_len: 512
  memory_len: 512
  optimizer: {adam: {lr: 2.5e-4}}
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 896, batch: 10}
)"},
    // The small configuration of the SMoE-Dropout and HyperRouter harness.
    {"txl_smoe_dropout_small", R"(
kind: train
model:
  transformer_xl: {layers: 4, d_model: 256, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe, combine_dropout: true}
train:
  steps: 400000
  batch: 22
  target_len: 512
  memory_len: 512
  optimizer: {adam: {lr: 2.5e-4}}
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 896, batch: 10}
)"},
}};

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

bool LoadPreset(std::string_view name, pb::RunSpec* out) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    out->Clear();
    std::vector<Fault> faults;
    Node node;
    if (ParseDocument(preset.name, preset.yaml, &node, &faults)) {
      Layer(preset.name, &faults).LayMessage(out, node, "");
    }
    SWITCHYARD_CHECK(faults.empty()) << ToString(faults);
    return true;
  }
  return false;
}

}  // namespace switchyard::spec
