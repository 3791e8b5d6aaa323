"""Writes the golden folders of tests/golden/hf: tiny models in the form of Hugging Face, one per family,
with random weights, and what they compute in float64 with numpy alone, independently of worker/model.

usage: make_hf_fixtures.py OUT_DIR        needs: numpy, safetensors

OUT_DIR/<family>/config.json, model.safetensors (float32, one tensor per expert) and, in
OUT_DIR/<family>.safetensors, `tokens` [B, T], `logits` [B, T, V] and for each layer with experts
`experts.<layer>` [B T, K], best first.
"""
import json
import math
import pathlib
import sys

import numpy as np
from make_fixtures import rms_norm as rms
from make_fixtures import softmax
from safetensors.numpy import save_file

COMMON = {"vocab_size": 13, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 7, "q_lora_rank": 5, "qk_nope_head_dim": 6,
          "qk_rope_head_dim": 4, "v_head_dim": 3, "moe_intermediate_size": 5, "first_k_dense_replace": 1,
          "num_experts_per_tok": 3, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.7, "mscale_all_dim": 1.3}
FAMILIES = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                "router_aux_loss_coef": 0.02, "sliding_window": None},
    "olmoe": {"model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False,
              "clip_qkv": 0.8},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_hidden_layers": 3, "head_dim": 6, "num_experts": 4,
                  "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 5,
                  "decoder_sparse_step": 1, "mlp_only_layers": [1]},
    "deepseek": {"model_type": "deepseek", "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2,
                 "num_experts_per_tok": 2, "moe_intermediate_size": 5, "first_k_dense_replace": 1,
                 "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax"},
    "deepseek_v2": {"model_type": "deepseek_v2", **LATENT, "n_shared_experts": 1, "norm_topk_prob": False,
                    "routed_scaling_factor": 1.5, "topk_method": "group_limited_greedy", "rope_scaling": YARN},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT, "n_shared_experts": 1, "norm_topk_prob": True,
                    "routed_scaling_factor": 2.5, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
}


def silu(x):
    return x / (1 + np.exp(-x))


def m(scale, a):
    return 0.1 * a * math.log(scale) + 1


class Model:
    def __init__(self, config, seed):
        self.c = config
        self.kind = config["model_type"]
        self.latent = self.kind in ("deepseek_v2", "deepseek_v3")
        self.experts = config.get("num_local_experts", config.get("num_experts", config.get("n_routed_experts", 0)))
        self.width = config.get("moe_intermediate_size", config["intermediate_size"])
        self.head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        rng = np.random.default_rng(seed)
        self.w = {}
        for name, shape in self.shapes():
            value = rng.normal(0, 0.5, shape)
            if "norm" in name:
                value = 1 + value / 2
            self.w[name] = value.astype(np.float32)

    def is_moe(self, layer):
        if self.experts == 0:
            return False
        if self.kind == "qwen3_moe":
            return layer not in self.c["mlp_only_layers"]
        return layer >= self.c.get("first_k_dense_replace", 0)

    def shapes(self):
        c, d, h, kv = self.c, self.c["hidden_size"], self.c["num_attention_heads"], self.c["num_key_value_heads"]
        yield "model.embed_tokens.weight", (c["vocab_size"], d)
        if not c["tie_word_embeddings"]:
            yield "lm_head.weight", (c["vocab_size"], d)
        yield "model.norm.weight", (d,)
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            yield p + "input_layernorm.weight", (d,)
            yield p + "post_attention_layernorm.weight", (d,)
            a = p + "self_attn."
            if self.latent:
                dn, dr, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
                yield a + "q_a_proj.weight", (c["q_lora_rank"], d)
                yield a + "q_a_layernorm.weight", (c["q_lora_rank"],)
                yield a + "q_b_proj.weight", (h * (dn + dr), c["q_lora_rank"])
                yield a + "kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + dr, d)
                yield a + "kv_a_layernorm.weight", (c["kv_lora_rank"],)
                yield a + "kv_b_proj.weight", (h * (dn + dv), c["kv_lora_rank"])
                yield a + "o_proj.weight", (d, h * dv)
            else:
                for name, out, width in (("q", h * self.head_dim, d), ("k", kv * self.head_dim, d),
                                         ("v", kv * self.head_dim, d), ("o", d, h * self.head_dim)):
                    yield f"{a}{name}_proj.weight", (out, width)
                    if c.get("attention_bias"):
                        yield f"{a}{name}_proj.bias", (out,)
                if self.kind == "olmoe":
                    yield a + "q_norm.weight", (h * self.head_dim,)
                    yield a + "k_norm.weight", (kv * self.head_dim,)
                if self.kind == "qwen3_moe":
                    yield a + "q_norm.weight", (self.head_dim,)
                    yield a + "k_norm.weight", (self.head_dim,)
            f = p + "mlp."
            if not self.is_moe(i):
                yield from self.swiglu_shapes(f, c["intermediate_size"])
                continue
            if self.kind == "mixtral":
                f = p + "block_sparse_moe."
            yield f + "gate.weight", (self.experts, d)
            if self.kind == "deepseek_v3":
                yield f + "gate.e_score_correction_bias", (self.experts,)
            for e in range(self.experts):
                if self.kind == "mixtral":
                    yield f"{f}experts.{e}.w1.weight", (self.width, d)
                    yield f"{f}experts.{e}.w3.weight", (self.width, d)
                    yield f"{f}experts.{e}.w2.weight", (d, self.width)
                else:
                    yield from self.swiglu_shapes(f"{f}experts.{e}.", self.width)
            if c.get("n_shared_experts"):
                yield from self.swiglu_shapes(f + "shared_experts.", c["n_shared_experts"] * self.width)

    def swiglu_shapes(self, prefix, width):
        d = self.c["hidden_size"]
        yield prefix + "gate_proj.weight", (width, d)
        yield prefix + "up_proj.weight", (width, d)
        yield prefix + "down_proj.weight", (d, width)

    def t(self, name):
        return self.w[name].astype(np.float64)

    def swiglu(self, prefix, x):
        names = ("w1", "w3", "w2") if self.kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        gate, up, down = (self.t(f"{prefix}{n}.weight") for n in names)
        return down @ (silu(gate @ x) * (up @ x))

    def turned(self, x, position, interleaved):
        n = len(x)
        i = np.arange(n // 2)
        frequency = self.c["rope_theta"] ** (-2.0 * i / n)
        factor = 1.0
        yarn = self.c.get("rope_scaling")
        if yarn:
            s, length = yarn["factor"], yarn["original_max_position_embeddings"]
            at = lambda beta: n * math.log(length / (2 * math.pi * beta)) / (2 * math.log(self.c["rope_theta"]))
            low, high = max(math.floor(at(yarn["beta_fast"])), 0), min(math.ceil(at(yarn["beta_slow"])), n - 1)
            gamma = np.clip((i - low) / ((high - low) or 0.001), 0, 1)
            frequency = frequency * (gamma / s + 1 - gamma)
            factor = m(s, yarn["mscale"]) / m(s, yarn["mscale_all_dim"])
        cos, sin = np.cos(position * frequency) * factor, np.sin(position * frequency) * factor
        a, b = (x[0::2], x[1::2]) if interleaved else (x[: n // 2], x[n // 2:])
        return np.concatenate([a * cos - b * sin, b * cos + a * sin])

    def qkv(self, i, x):
        """Per head [T, h, d_qk], [T, h, d_qk], [T, h, d_v]."""
        c, p, T, h = self.c, f"model.layers.{i}.self_attn.", len(x), self.c["num_attention_heads"]
        if self.latent:
            dn, dr, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
            low = rms(x @ self.t(p + "q_a_proj.weight").T, self.t(p + "q_a_layernorm.weight"), 1e-6)
            q = (low @ self.t(p + "q_b_proj.weight").T).reshape(T, h, dn + dr)
            down = x @ self.t(p + "kv_a_proj_with_mqa.weight").T
            latent = rms(down[:, : c["kv_lora_rank"]], self.t(p + "kv_a_layernorm.weight"), 1e-6)
            kv = (latent @ self.t(p + "kv_b_proj.weight").T).reshape(T, h, dn + dv)
            k = np.zeros((T, h, dn + dr))
            for t in range(T):
                turned = self.turned(down[t, c["kv_lora_rank"]:], t, True)
                for j in range(h):
                    q[t, j, dn:] = self.turned(q[t, j, dn:], t, True)
                    k[t, j] = np.concatenate([kv[t, j, :dn], turned])
            return q, k, kv[:, :, dn:]
        out = []
        for name, heads in (("q", h), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
            y = x @ self.t(f"{p}{name}_proj.weight").T
            if c.get("attention_bias"):
                y = y + self.t(f"{p}{name}_proj.bias")
            if self.kind == "olmoe" and name != "v":
                y = rms(y, self.t(f"{p}{name}_norm.weight"), c["rms_norm_eps"])
            y = y.reshape(T, heads, self.head_dim)
            if self.kind == "qwen3_moe" and name != "v":
                y = rms(y, self.t(f"{p}{name}_norm.weight"), c["rms_norm_eps"])
            if c.get("clip_qkv"):
                y = np.clip(y, -c["clip_qkv"], c["clip_qkv"])
            if name != "v":
                y = np.stack([[self.turned(y[t, j], t, False) for j in range(heads)] for t in range(T)])
            out.append(np.repeat(y, h // heads, 1))
        return out

    def attention(self, i, x):
        q, k, v = self.qkv(i, x)
        T, h, width = q.shape
        scale = width ** -0.5
        yarn = self.c.get("rope_scaling")
        if yarn and self.latent:
            scale *= m(yarn["factor"], yarn["mscale_all_dim"]) ** 2
        out = np.zeros((T, h, v.shape[2]))
        for t in range(T):
            for j in range(h):
                out[t, j] = softmax(k[: t + 1, j] @ q[t, j] * scale) @ v[: t + 1, j]
        y = out.reshape(T, -1) @ self.t(f"model.layers.{i}.self_attn.o_proj.weight").T
        return y + self.t(f"model.layers.{i}.self_attn.o_proj.bias") if self.c.get("attention_bias") else y

    def route(self, prefix, x):
        """Chosen experts, best first, and their weights."""
        c, k = self.c, self.c["num_experts_per_tok"]
        logits = self.t(prefix + "gate.weight") @ x
        scores = 1 / (1 + np.exp(-logits)) if self.kind == "deepseek_v3" else softmax(logits)
        ranked = scores.copy()
        if self.kind == "deepseek_v3":
            ranked += self.t(prefix + "gate.e_score_correction_bias")
        if self.latent:
            groups = ranked.reshape(c["n_group"], -1)
            by = np.sort(groups, 1)[:, -2:].sum(1) if self.kind == "deepseek_v3" else groups.max(1)
            kept = np.argsort(-by, kind="stable")[: c["topk_group"]]
            mask = np.full(groups.shape, -np.inf)
            mask[kept] = 0
            ranked = ranked + mask.reshape(-1)
        chosen = np.argsort(-ranked, kind="stable")[:k]
        weights = scores[chosen]
        if self.kind == "mixtral" or c.get("norm_topk_prob"):
            weights = weights / weights.sum()
        return chosen, weights * c.get("routed_scaling_factor", 1.0)

    def feed_forward(self, i, x):
        prefix = f"model.layers.{i}.mlp."
        if not self.is_moe(i):
            return np.stack([self.swiglu(prefix, row) for row in x]), None
        if self.kind == "mixtral":
            prefix = f"model.layers.{i}.block_sparse_moe."
        out, picks = np.zeros_like(x), []
        for t, row in enumerate(x):
            chosen, weights = self.route(prefix, row)
            picks.append(chosen)
            for e, weight in zip(chosen, weights):
                out[t] += weight * self.swiglu(f"{prefix}experts.{e}.", row)
            if self.c.get("n_shared_experts"):
                out[t] += self.swiglu(prefix + "shared_experts.", row)
        return out, np.stack(picks)

    def logits(self, tokens):
        eps, embedding, picks = self.c["rms_norm_eps"], self.t("model.embed_tokens.weight"), {}
        x = embedding[tokens]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = x + self.attention(i, rms(x, self.t(p + "input_layernorm.weight"), eps))
            y, chosen = self.feed_forward(i, rms(x, self.t(p + "post_attention_layernorm.weight"), eps))
            x = x + y
            if chosen is not None:
                picks[i] = chosen
        head = embedding if self.c["tie_word_embeddings"] else self.t("lm_head.weight")
        return rms(x, self.t("model.norm.weight"), eps) @ head.T, picks


def main():
    out = pathlib.Path(sys.argv[1])
    for number, (name, own) in enumerate(FAMILIES.items()):
        config = {**COMMON, **own}
        model = Model(config, 100 + number)
        tokens = np.random.default_rng(number).integers(0, config["vocab_size"], (2, 12))
        results = [model.logits(row) for row in tokens]
        expected = {"tokens": tokens, "logits": np.stack([r[0] for r in results])}
        for layer in results[0][1]:
            expected[f"experts.{layer}"] = np.concatenate([r[1][layer] for r in results])
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(model.w, folder / "model.safetensors", metadata={"format": "pt"})
        save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, out / f"{name}.safetensors")


if __name__ == "__main__":
    main()
