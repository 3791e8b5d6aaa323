#include "common/spec/validate.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::HasSubstr;

constexpr std::string_view kDecoderSweep = R"(name: decoder
base:
  kind: train
  data: {wikitext: {path: /data/wikitext}}
  model:
    decoder: {layers: 2, d_model: 64, heads: 4, d_inner: 128}
  train: {steps: 10, batch: 4, target_len: 32, optimizer: {adamw: {lr: 1e-3}}}
replicates: {seeds: [1]}
)";

struct Wrong {
  std::string from;
  std::string to;
  std::string fault;
};

// One rule each: the document is right but for one replacement, and the fault names field and
// value.
TEST(ValidateRun, RefusesWhatIsWrongInATransformerXlRun) {
  const Wrong cases[] = {
      {"kind: train\n  data", "data", "kind: is required"},
      {"  data: {files: {domains: {c: [\"/usr/include/**/*.h\"]}}}\n", "", "data: is required"},
      {"domains: {c: [\"/usr/include/**/*.h\"]}", "domains: {}", "at least one domain"},
      {"{c: [", "{C: [", "'C' is not a name"},
      {"[\"/usr/include/**/*.h\"]", "[\"\"]", "data.files.domains.c.globs: is required"},
      {"[\"/usr/include/**/*.h\"]", "{globs: [a], weight: -1}", "-1 must not be negative"},
      {"[\"/usr/include/**/*.h\"]", "{globs: [a], weight: 0}", "weights of all domains are 0"},
      {"h\"]}}", "h\"]}, tokens: word}", "known: bytes256"},
      {"h\"]}}", "h\"]}, split: {shares: [0.5, 0.4, 0]}}", "sum to 0.9 instead of 1"},
      {"h\"]}}", "h\"]}, split: {shares: [1, 0]}}", "has 2 numbers"},
      {"h\"]}}", "h\"]}, split: {shares: [1.5, -0.5, 0]}}", "-0.5 must not be negative"},
      {"h\"]}}", "h\"]}, split: {shares: [1, 0, 0]}}", "eval.splits: names a split whose share"},
      {"h\"]}}}", "h\"]}}, digest: abc}", "data.digest: 'abc' is not of the form sha256"},
      {"heads: 4", "heads: 0", "model.transformer_xl.heads: is required"},
      {"d_model: 128", "d_model: 127", "127 is odd"},
      {"d_model: 128", "d_model: 1e9", "1000000000 is not between 1 and 65536"},
      {"layers: 4, ", "layers: 4, dropout: 1, ", "dropout: 1 is not in [0, 1)"},
      {"layers: 4, ", "layers: 4, init_std: 0, ", "init_std: 0 must be above 0"},
      {"layers: [0, 1, 2, 3]", "layers: [0, 4]", "layer 4 is not in a backbone of 4 layers"},
      {"layers: [0, 1, 2, 3]", "layers: [1, 0]", "0 does not rise above 1"},
      {"layers: [0, 1, 2, 3]", "layers: [1, 1]", "1 does not rise above 1"},
      {"layers: [0, 1, 2, 3], ", "", "model.moe.layers: at least one layer"},
      {"experts: 8, ", "", "model.moe.experts: is required"},
      {"router: smoe", "top_k: 2", "model.moe.router: is required; known: dense, smoe, hash"},
      {"experts: 8", "experts: 8, top_k: 9", "model.moe.top_k: 9 is not between 1 and 8"},
      {"experts: 8", "experts: 8, top_k: 0", "model.moe.top_k: is required, or 0"},
      {"experts: 8", "experts: 8, expert: {width: 0}", "model.moe.expert.width"},
      {"router: smoe", "router: smoe, losses: {z_los: {coef: 1}}", "nearest: z_loss"},
      {"router: smoe", "router: smoe, losses: {z_loss: {}}", "z_loss.coef: is required"},
      {"router: smoe", "router: smoe, losses: {z_loss: {coef: -1}}", "-1 must not be negative"},
      {"router: smoe", "router: smoe, losses: {switch: {coef: 1}}", "top_k 1 only, not 2"},
      {"router: smoe", "router: smoe, losses: {megatron_seq: {coef: 1, scope: micro}}",
       "has scope sequence and no other"},
      {"router: smoe", "router: smoe, losses: {megatron_global: {coef: 1, scope: micro}}",
       "has scope global and no other"},
      {"router: smoe", "router: smoe, losses: {deepseek_seq: {coef: 1, scope: global}}",
       "has scope sequence and no other"},
      {"steps: 100", "warmup_steps: 1",
       "exactly one of steps, tokens, data_epochs and active_flops is required, 0"},
      {"steps: 100", "steps: 100\n    tokens: 5", "active_flops is required, 2 are given"},
      {"steps: 100", "steps: 0", "train.steps: is required, or 0"},
      {"steps: 100", "data_epochs: 0", "0 must be above 0"},
      {"batch: 8", "warmup_steps: 1", "train.batch: is required"},
      {"batch: 8", "batch: 8\n    micro_batch: 9", "micro_batch: 9 is not between 1 and 8"},
      {"target_len: 128", "warmup_steps: 1", "train.target_len: is required"},
      {"lr: 7e-4", "lr: 0", "train.optimizer.adam.lr: 0 must be above 0"},
      {"lr: 7e-4", "lr: -1", "-1 must be above 0"},
      {"lr: 7e-4", "beta1: 0.9", "train.optimizer.adam.lr: is required"},
      {"lr: 7e-4", "lr: 1, beta2: 1", "beta2: 1 is not in [0, 1)"},
      {"optimizer: {adam: {lr: 7e-4}}", "clip_norm: 0", "clip_norm: 0 must be above 0"},
      {"optimizer: {adam: {lr: 7e-4}}", "clip_norm: 1", "train.optimizer: is required"},
      {"kind: train", "kind: train\n  eval: {splits: [valid, valid]}", "names a split twice"},
      {"kind: train", "kind: train\n  eval: {splits: [test]}",
       "whose share in data.files.split is 0"},
      {"kind: train", "kind: train\n  eval: {batch: 0}", "eval.batch"},
      {"  model:", "  model:\n    vocab: 300", "300 differs from the vocabulary of the data, 256"},
      {"name: small", "name: Small", "name: 'Small' is not a name"},
      {"name: small", "project: small", "name: is required"},
      {"name: small", "name: small\nproject: a..b", "project: 'a..b' is not a name"},
      {"name: small", "name: small\ntags: [a, a]", "tags: a is given twice"},
      {"[1]", "[1, 1]", "replicates.seeds: 1 is given twice"},
      {"name: small", "name: small\nobjective: {metric: loss}", "not a series SPLIT/METRIC"},
      {"name: small", "name: small\nobjective: {metric: valid/lr}", "has no direction of its own"},
      // ME3: no best value is kept of it, and "best" would be the last one.
      {"name: small", "name: small\nobjective: {metric: train/tokens_per_second, goal: maximize}",
       "objective.value: is to be last: train/tokens_per_second has no direction of its own"},
      // ME3: the best value is kept by the series' direction, the goal would ask for the other end.
      {"name: small", "name: small\nobjective: {metric: valid/nats_per_token, goal: maximize}",
       "objective.goal: contradicts valid/nats_per_token, of which the lower value"},
      {"name: small", "name: small\nobjective: {metric: valid/accuracy, goal: minimize}",
       "objective.goal: contradicts valid/accuracy, of which the higher value"},
      {"name: small", "name: small\nobjective: {goal: maximize}",
       "objective.goal: contradicts valid/primary"},
      {"name: small", "name: small\ncheckpoint: {every: 0}", "checkpoint.every: 0 is not between"},
      {"name: small", "name: small\ntelemetry: {every_steps: 0}", "telemetry.every_steps: 0"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, wrong.from, wrong.to)), HasSubstr(wrong.fault))
        << wrong.to;
  }
}

// A series without a direction can be an objective by its last value.
TEST(ValidateRun, TakesTheLastValueOfWhatHasNoDirection) {
  EXPECT_EQ(PlanFaults(Replaced(kSmallSweep, "name: small",
                                "name: small\nobjective: {metric: train/tokens_per_second, "
                                "goal: maximize, value: last}")),
            "");
  EXPECT_EQ(PlanFaults(Replaced(kSmallSweep, "name: small",
                                "name: small\nobjective: {metric: valid/accuracy, "
                                "goal: maximize}")),
            "");
}

// Rules of the routers that look beyond one token and layer, of their experts, and of the adaptive
// softmax.
TEST(ValidateRun, RefusesWhatIsWrongInMcfRmoeAndCosine) {
  const std::vector<Wrong> cases = {
      {"router: smoe", "router: {mcf: {r: 0}}", "mcf.r: is required, or 0"},
      {"router: smoe", "router: {mcf: {k_loc: 0}}", "mcf.k_loc: is required, or 0"},
      {"router: smoe", "router: {mcf: {heads: 0}}", "mcf.heads: is required, or 0"},
      {"router: smoe", "router: {mcf: {tau: 0}}", "mcf.tau: 0 must be above 0"},
      {"router: smoe", "router: {mcf: {attn_dropout: 1}}", "mcf.attn_dropout: 1 is not in [0, 1)"},
      {"router: smoe", "router: {mcf: {out_dropout: -1}}", "mcf.out_dropout: -1 is not in [0, 1)"},
      {"router: smoe", "router: {mcf: {position: rope, d_kv: 5}}", "5 is odd; rotary positions"},
      {"router: smoe", "router: {mcf: {global_mask: window, use_local: false}}",
       "window has its width from the local branch"},
      {"router: smoe", "router: {mcf: {router_mem_len: 8, history: layer_output}}",
       "mcf.router_mem_len: remembers what the routers saw"},
      {"router: smoe", "router: {rmoe: {state_size: 0}}", "rmoe.state_size: is required, or 0"},
      {"router: smoe", "top_k: 2, router: {cosine: {hops: 0}}", "cosine.hops: is required, or 0"},
      {"router: smoe", "top_k: 2, router: {cosine: {hops: 2, hop_top_k: [1]}}",
       "cosine.hop_top_k: has 1 numbers for 2 hops"},
      {"router: smoe", "top_k: 2, router: {cosine: {hops: 2, hop_top_k: [1, 9]}}",
       "cosine.hop_top_k: 9 is not between 1 and 8"},
      {"router: smoe", "top_k: 2, router: {cosine: {d_score: 0}}", "cosine.d_score: is required"},
      {"router: smoe", "top_k: 2, router: {cosine: {hops: 2, halt_eps: -1}}",
       "cosine.halt_eps: -1 must not be negative"},
      {"router: smoe", "top_k: 2, routed_scaling_factor: 2, router: cosine",
       "adds up hops of its own"},
      {"router: smoe", "top_k: 2, capacity: {factor: {train: 1}}, router: cosine",
       "goes through its experts hop by hop"},
      {"router: smoe", "top_k: 2, router: {cosine: {}, noise: {kind: gaussian_fixed}}",
       "the router cosine has no noise"},
      {"router: smoe", "router: smoe, expert: {kind: rank1}, shared_experts: 1", "never shared"},
      {"layers: 4, ", "layers: 4, softmax_cutoffs: [20, 10], ", "10 does not rise above 20"},
      {"layers: 4, ", "layers: 4, softmax_cutoffs: [20, 256], ",
       "256 is not below the vocabulary of 256"},
      {"layers: 4, ", "layers: 4, softmax_cutoffs: [20, 40, 60], div_val: 16, ",
       "16 leaves the last of 3 clusters no width of d_model 128"},
      {"layers: 4, ", "layers: 4, div_val: 2, ", "2 needs softmax_cutoffs"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, wrong.from, wrong.to)), HasSubstr(wrong.fault))
        << wrong.to;
  }
  EXPECT_THAT(PlanFaults(Replaced(Replaced(kSmallSweep, "    memory_len: 128\n", ""),
                                  "router: smoe", "router: {mcf: {router_mem_len: 8}}")),
              HasSubstr("needs transformer_xl and train.memory_len above 0"));
}

// The decoder's own rules.
TEST(ValidateRun, RefusesWhatIsWrongInADecoderRun) {
  ASSERT_EQ(PlanFaults(kDecoderSweep), "");
  const Wrong cases[] = {
      {"heads: 4", "heads: 5", "head_dim: is required: heads 5 does not divide d_model 64"},
      {"heads: 4", "heads: 4, kv_heads: 3", "kv_heads: 3 does not divide heads 4"},
      {"heads: 4", "heads: 4, head_dim: 15", "head_dim: 15 is odd; rope turns pairs"},
      {"heads: 4", "heads: 4, position: learned, context: 16",
       "16 is less than the target length 32"},
      {"heads: 4", "heads: 4, rope_theta: 0", "rope_theta: 0 must be above 0"},
      {"heads: 4", "heads: 4, qkv_clip: -1", "qkv_clip: -1 must not be negative"},
      {"heads: 4", "heads: 4, position: none, rope_interleaved: true",
       "rope_interleaved: is set but has no effect"},
      {"heads: 4", "heads: 4, yarn: {factor: 0.5, original_context: 8}",
       "yarn.factor: 0.5 must be at least 1"},
      {"heads: 4", "heads: 4, yarn: {factor: 2}", "yarn.original_context: is required"},
      {"heads: 4", "heads: 4, yarn: {factor: 2, original_context: 8, beta_fast: 1}",
       "beta_fast: 1 must be above beta_slow 1"},
      {"heads: 4", "heads: 4, yarn: {factor: 2, original_context: 8, score_factor: true}",
       "yarn.score_factor: is set but has no effect"},
      {"heads: 4",
       "heads: 4, yarn: {factor: 2, original_context: 8, attention_factor: 1, mscale: 1}",
       "yarn.mscale: is set but has no effect"},
      {"heads: 4", "heads: 4, mla: {kv_rank: 8, nope_dim: 4, rope_dim: 3, value_dim: 4}",
       "mla.rope_dim: 3 is odd"},
      {"heads: 4", "heads: 4, mla: {nope_dim: 4, rope_dim: 4, value_dim: 4}",
       "mla.kv_rank: is required"},
      {"heads: 4",
       "heads: 4, position: none, mla: {kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}",
       "mla: needs position rope"},
      {"heads: 4",
       "heads: 4, kv_heads: 2, mla: {kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}",
       "kv_heads: is set but has no effect"},
      {"heads: 4",
       "heads: 4, qk_norm: per_head, mla: {kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}",
       "qk_norm: is set but has no effect"},
      {"heads: 4", "heads: 4, norm_eps: 0", "norm_eps: 0 must be above 0"},
      {"heads: 4", "heads: 4, context: 64", "model.decoder.context: is set but has no effect"},
      {"heads: 4", "heads: 4, position: none, rope_theta: 5",
       "rope_theta: is set but has no effect"},
      {"batch: 4", "batch: 4, memory_len: 5", "train.memory_len: is set but has no effect"},
      {"path: /data/wikitext", "variant: wt2", "data.wikitext.path: is required"},
      {"path: /data/wikitext", "path: /x, tokens: txl204", "known: word, bytes256"},
      {"wikitext: {path: /data/wikitext}", "enwik8: {path: /x, tokens: word}",
       "known: bytes256, bytes205"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_THAT(PlanFaults(Replaced(kDecoderSweep, wrong.from, wrong.to)), HasSubstr(wrong.fault))
        << wrong.to;
  }
}

// models.md 3.2: a gate whose only weight is 1 gets no gradient; refused unless it is meant.
TEST(ValidateRun, RefusesAConstantGateUnlessItIsMeant) {
  const auto faults = [](std::string_view moe) {
    return PlanFaults(
        Replaced(kSmallSweep, "experts: 8, router: smoe", StrCat("experts: 8, ", moe)));
  };
  for (const char* norm : {"softmax_topk", "softmax_full_renorm", "uniform"}) {
    const std::string moe = StrCat("top_k: 1, router: {smoe: {}, gate_norm: ", norm, "}");
    EXPECT_THAT(faults(moe), HasSubstr("gets no gradient")) << norm;
    EXPECT_EQ(faults(StrCat(moe, ", allow_constant_gate: true")), "") << norm;
  }
  EXPECT_THAT(faults("top_k: 2, router: {smoe: {}, gate_norm: uniform}"), HasSubstr("no gradient"));
  EXPECT_EQ(faults("top_k: 1, router: {smoe: {}, gate_norm: softmax_full}"), "");
  EXPECT_EQ(faults("top_k: 2, router: smoe"), "");
  EXPECT_EQ(faults("top_k: 1, router: hash"), "");
}

// Allowed edges: no limit is tighter than it needs to be.
TEST(ValidateRun, TakesTheEdges) {
  const std::pair<const char*, const char*> cases[] = {
      {"experts: 8", "experts: 1, top_k: 1, allow_constant_gate: true"},
      {"experts: 8", "experts: 8, top_k: 8"},
      {"router: smoe", "router: smoe, losses: {z_loss: {coef: 0}}"},
      {"memory_len: 128", "memory_len: 0"},
      {"batch: 8", "batch: 8\n    micro_batch: 3"},
      {"h\"]}}", "h\"]}, split: {shares: [0.7, 0.2, 0.1]}}"},
      {"steps: 100", "data_epochs: 0.5"},
      {"[1]", "[0, 9223372036854775807]"},
  };
  for (const auto& [from, to] : cases) {
    EXPECT_EQ(PlanFaults(Replaced(kSmallSweep, from, to)), "") << to;
  }
}

// Names go into paths, labels and URLs.
TEST(IsValidName, TakesLowerCaseNamesOnly) {
  for (const char* name : {"a", "a1", "router-comparison", "a.b_c-d", "0"}) {
    EXPECT_TRUE(IsValidName(name)) << name;
  }
  EXPECT_TRUE(IsValidName(std::string(64, 'a')));
  EXPECT_FALSE(IsValidName(std::string(65, 'a')));
  for (const char* name :
       {"", "A", "a b", ".", "..", "a..b", "-a", "a-", "a/b", "\xc3\xa9", "a\n"}) {
    EXPECT_FALSE(IsValidName(name)) << name;
  }
}

}  // namespace
}  // namespace switchyard::spec
