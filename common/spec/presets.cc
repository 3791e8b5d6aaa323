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

constexpr std::array<Preset, 25> kPresets = {{
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
    // The matched pair of one and two experts of equal compute, over 50,304 tokens. The gate of the
    // first weighs by its probability; its other arm, a weight of 1, is gate_norm softmax_topk with
    // allow_constant_gate.
    {"pair_top1", R"(
kind: train
model:
  decoder: {layers: 6, d_model: 256, heads: 8, d_inner: 1024, norm: rmsnorm, position: learned, context: 256, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3, 4, 5], experts: 4, top_k: 1, expert: {kind: gelu, width: 1024}, router: {kind: mixtral, gate_norm: softmax_full}, losses: {megatron_aux: {coef: 0.01}}}
train:
  steps: 2442
  batch: 32
  target_len: 256
  optimizer: {adamw: {lr: 3e-4}}
  schedule: cosine
)"},
    {"pair_top2", R"(
kind: train
model:
  decoder: {layers: 6, d_model: 256, heads: 8, d_inner: 1024, norm: rmsnorm, position: learned, context: 256, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3, 4, 5], experts: 8, top_k: 2, expert: {kind: gelu, width: 512}, router: mixtral, losses: {megatron_aux: {coef: 0.01}}}
train:
  steps: 2442
  batch: 32
  target_len: 256
  optimizer: {adamw: {lr: 3e-4}}
  schedule: cosine
)"},
    // Small enough for two cores: nano in less than a minute, the others in some ten. On bytes.
    {"nano", R"(
kind: train
model:
  decoder: {layers: 2, d_model: 64, heads: 4, d_inner: 32, mlp: gelu, tied: true}
  moe: {layers: [0, 1], experts: 8, top_k: 2, expert: {kind: gelu, width: 32}, router: smoe}
train:
  steps: 196
  batch: 16
  target_len: 64
  optimizer: {adamw: {lr: 1e-3}}
  schedule: cosine
)"},
    // As txl_mcf, with its conventions.
    {"mcf_tiny", R"(
kind: train
model:
  transformer_xl: {layers: 8, d_model: 128, heads: 4, d_head: 32, d_inner: 64, dropout: 0.1, attn_dropout: 0.1}
  moe: {layers: [0, 1, 2, 3], experts: 16, top_k: 2, expert: {kind: relu}, router: {mcf: {k_hist: 3, r: 16, k_loc: 8}}}
train:
  steps: 1954
  batch: 8
  target_len: 128
  memory_len: 128
  optimizer: {adam: {lr: 7e-4}}
  warmup_steps: 100
  schedule: cosine
  clip_norm: 0.25
)"},
    // Many narrow experts as in OLMoE, few wide ones as in Mixtral, and narrow ones beside a shared
    // one as in DeepSeek.
    {"fine_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 128, heads: 4, d_inner: 32, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 32, top_k: 4, expert: {kind: gelu, width: 32}, router: olmoe}
train:
  steps: 3907
  batch: 8
  target_len: 128
  optimizer: {adamw: {lr: 1e-3}}
  warmup_steps: 100
  schedule: cosine
)"},
    {"coarse_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 128, heads: 4, d_inner: 128, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 8, top_k: 2, expert: {kind: gelu, width: 128}, router: mixtral}
train:
  steps: 3907
  batch: 8
  target_len: 128
  optimizer: {adamw: {lr: 1e-3}}
  warmup_steps: 100
  schedule: cosine
)"},
    {"shared_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 128, heads: 4, d_inner: 32, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 32, top_k: 3, shared_experts: 1, expert: {kind: gelu, width: 32}, router: deepseek}
train:
  steps: 3907
  batch: 8
  target_len: 128
  optimizer: {adamw: {lr: 1e-3}}
  warmup_steps: 100
  schedule: cosine
)"},
    // The matched pair, small.
    {"pair1_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 64, heads: 4, d_inner: 128, norm: rmsnorm, position: learned, context: 64, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 4, top_k: 1, expert: {kind: gelu, width: 128}, router: {kind: mixtral, gate_norm: softmax_full}, losses: {megatron_aux: {coef: 0.01}}}
train:
  steps: 977
  batch: 16
  target_len: 64
  optimizer: {adamw: {lr: 1e-3}}
  schedule: cosine
)"},
    {"pair2_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 64, heads: 4, d_inner: 128, norm: rmsnorm, position: learned, context: 64, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 8, top_k: 2, expert: {kind: gelu, width: 64}, router: mixtral, losses: {megatron_aux: {coef: 0.01}}}
train:
  steps: 977
  batch: 16
  target_len: 64
  optimizer: {adamw: {lr: 1e-3}}
  schedule: cosine
)"},
    {"st_tiny", R"(
kind: train
model:
  decoder: {layers: 4, d_model: 128, heads: 4, d_inner: 12, norm: layernorm, position: rope, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2, 3], experts: 128, top_k: 12, expert: {kind: rank1}, router: {cosine: {d_score: 16}}}
train:
  steps: 3907
  batch: 8
  target_len: 128
  optimizer: {adamw: {lr: 1e-3}}
  warmup_steps: 100
  schedule: cosine
)"},
    // A testbed for scopes and kinds of balancing over domains that the data names.
    {"dom_tiny", R"(
kind: train
model:
  decoder: {layers: 3, d_model: 96, heads: 4, d_inner: 96, mlp: gelu, tied: true}
  moe: {layers: [0, 1, 2], experts: 16, top_k: 2, expert: {kind: gelu, width: 96}, router: mixtral, losses: {megatron_aux: {coef: 0.01}}}
train:
  steps: 2930
  batch: 8
  target_len: 128
  optimizer: {adamw: {lr: 1e-3}}
  warmup_steps: 100
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
