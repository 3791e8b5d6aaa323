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

constexpr std::array<Preset, 14> kPresets = {{
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
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: mcf}
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
    // Transformer-XL's other published models.
    {"txl_official_enwik8_large", R"(
kind: train
data: {enwik8: {tokens: txl204}}
model:
  transformer_xl: {layers: 24, d_model: 1024, heads: 8, d_head: 128, d_inner: 3072, dropout: 0.15, attn_dropout: 0.15}
train:
  steps: 400000
  batch: 64
  target_len: 768
  memory_len: 768
  optimizer: {adam: {lr: 2.5e-4}}
  warmup_steps: 4000
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 1408, batch: 10}
)"},
    {"txl_official_wt103_base", R"(
kind: train
data: {wikitext: {tokens: word}}
model:
  transformer_xl: {layers: 16, d_model: 410, heads: 10, d_head: 41, d_inner: 2100, dropout: 0.1, attn_dropout: 0, softmax_cutoffs: [20000, 40000, 200000]}
train:
  steps: 200000
  batch: 60
  target_len: 150
  memory_len: 150
  optimizer: {adam: {lr: 2.5e-4}}
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 150, memory_len: 150, batch: 10}
)"},
    {"txl_official_wt103_large", R"(
kind: train
data: {wikitext: {tokens: word}}
model:
  transformer_xl: {layers: 18, d_model: 1024, heads: 16, d_head: 64, d_inner: 4096, dropout: 0.2, attn_dropout: 0.2, softmax_cutoffs: [20000, 40000, 200000], div_val: 4}
train:
  steps: 4000000
  batch: 128
  target_len: 384
  memory_len: 384
  optimizer: {adam: {lr: 2.5e-4}}
  warmup_steps: 16000
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 640, batch: 10}
)"},
    // The small configuration of the SMoE-Dropout and HyperRouter harness.
    {"txl_smoe_dropout_small", R"(
kind: train
model:
  transformer_xl: {layers: 4, d_model: 256, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe_dropout, combine_dropout: true}
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
    {"txl_smoe_dropout_medium", R"(
kind: train
model:
  transformer_xl: {layers: 8, d_model: 256, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe_dropout, combine_dropout: true}
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
    {"txl_smoe_dropout_12_layers", R"(
kind: train
model:
  transformer_xl: {layers: 12, d_model: 256, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe_dropout, combine_dropout: true}
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
    {"txl_smoe_dropout_large", R"(
kind: train
model:
  transformer_xl: {layers: 18, d_model: 256, heads: 8, d_head: 64, d_inner: 512, dropout: 0.1, attn_dropout: 0}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: smoe_dropout, combine_dropout: true}
train:
  steps: 50000
  batch: 44
  target_len: 512
  memory_len: 512
  optimizer: {adam: {lr: 2.5e-4}}
  schedule: cosine
  clip_norm: 0.25
eval: {every_steps: 4000, target_len: 128, memory_len: 896, batch: 10}
)"},
    // ST-MoE: one hop over many experts of one unit. The study cuts its text into 32,000 tokens,
    // this one into what the data says.
    {"st_small", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 768, heads: 12, d_inner: 12, norm: layernorm, position: rope, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 512, top_k: 12, expert: {kind: rank1}, router: cosine}
train:
  steps: 5000
  batch: 64
  target_len: 256
  optimizer: {adamw: {lr: 3e-4}}
  warmup_steps: 1000
  schedule: cosine
)"},
    {"st_large", R"(
kind: train
model:
  decoder: {layers: 6, d_model: 1024, heads: 16, d_inner: 12, norm: layernorm, position: rope, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3, 4, 5], experts: 1024, top_k: 12, expert: {kind: rank1}, router: cosine}
train:
  steps: 20000
  batch: 64
  target_len: 256
  optimizer: {adamw: {lr: 3e-4}}
  warmup_steps: 1000
  schedule: cosine
)"},
    {"st_marathon", R"(
kind: train
model:
  decoder: {layers: 8, d_model: 1024, heads: 16, d_inner: 12, norm: layernorm, position: rope, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3, 4, 5, 6, 7], experts: 1024, top_k: 12, expert: {kind: rank1}, router: cosine}
train:
  steps: 50000
  batch: 128
  target_len: 256
  optimizer: {adamw: {lr: 3e-4}}
  warmup_steps: 1000
  schedule: cosine
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
