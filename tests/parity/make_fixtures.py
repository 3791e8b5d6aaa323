"""Writes the golden files of tests/golden/model: small language models computed in float64 with
numpy alone, from the formulas of the papers, independently of worker/model.

usage: make_fixtures.py OUT_DIR        needs: numpy, safetensors

Each file holds the weights under our checkpoint names, `tokens` and `targets` [segments, B, T], and
the expected `nll` [segments, B, T]; Transformer-XL also `memory.<i>` after the last segment, the
decoder `logits`. Forward values only: gradients are checked by finite differences in C++.
"""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file


def save_or_check(made, path, is_check):
    """Writes the golden file, or ends with the first difference from the one that is there."""
    if not is_check:
        save_file(made, path)
        return
    stored = load_file(path)
    if sorted(stored) != sorted(made):
        sys.exit("the golden file holds other tensors than the script writes")
    for name, value in made.items():
        if stored[name].shape != value.shape or not np.allclose(stored[name], value, 1e-12, 1e-12):
            sys.exit(f"{name} differs from the golden file")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def rms_norm(x, weight, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def nll_of(logits, targets):
    logp = np.log(softmax(logits))
    return -np.take_along_axis(logp, targets[..., None], -1)[..., 0]


def mixture(x, gate_w, gate_b, k, expert):
    """Top-k experts per token, softmax over the chosen scores."""
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape[:-1]):
        scores = gate_w @ x[index] + gate_b
        chosen = np.argsort(-scores, kind="stable")[:k]
        for weight, e in zip(softmax(scores[chosen]), chosen):
            out[index] += weight * expert(e, x[index])
    return out


class Xl:
    layers, d, heads, dh, di, vocab, experts, k = 3, 8, 2, 3, 10, 11, 4, 2
    moe_layer = 1

    def __init__(self, rng, clamp, same_length, pre_norm):
        self.clamp, self.same_length, self.pre_norm = clamp, same_length, pre_norm
        d, inner, di, e = self.d, self.heads * self.dh, self.di, self.experts
        n = lambda *shape: rng.normal(0, 0.4, shape)
        w = {"word_emb.emb_layers.0.weight": n(self.vocab, d), "r_w_bias": n(self.heads, self.dh),
             "r_r_bias": n(self.heads, self.dh), "crit.out_layers.0.bias": n(self.vocab)}
        for i in range(self.layers):
            p = f"layers.{i}."
            w[p + "dec_attn.qkv_net.weight"] = n(3 * inner, d)
            w[p + "dec_attn.r_net.weight"] = n(inner, d)
            w[p + "dec_attn.o_net.weight"] = n(d, inner)
            for part in ("dec_attn", "pos_ff"):
                w[p + part + ".layer_norm.weight"] = 1 + n(d)
                w[p + part + ".layer_norm.bias"] = n(d)
            if i == self.moe_layer:
                w[p + "pos_ff.gate.gate.weight"], w[p + "pos_ff.gate.gate.bias"] = n(e, d), n(e)
                w[p + "pos_ff.experts.htoh4.weight"], w[p + "pos_ff.experts.htoh4.bias"] = n(e, di, d), n(e, di)
                w[p + "pos_ff.experts.h4toh.weight"], w[p + "pos_ff.experts.h4toh.bias"] = n(e, d, di), n(e, d)
            else:
                w[p + "pos_ff.CoreNet.0.weight"], w[p + "pos_ff.CoreNet.0.bias"] = n(di, d), n(di)
                w[p + "pos_ff.CoreNet.3.weight"], w[p + "pos_ff.CoreNet.3.bias"] = n(d, di), n(d)
        self.w = w

    def position(self, distance):
        p = min(distance, self.clamp) if self.clamp else distance
        f = 10000.0 ** (-2.0 * np.arange(self.d // 2) / self.d)
        return np.concatenate([np.sin(p * f), np.cos(p * f)])

    def attention(self, i, x, memory, memory_len):
        w, p = self.w, f"layers.{i}.dec_attn."
        norm = lambda y: layer_norm(y, w[p + "layer_norm.weight"], w[p + "layer_norm.bias"])
        B, T, _ = x.shape
        M = memory.shape[1]
        keys = np.concatenate([memory, x], 1)
        seen = norm(keys) if self.pre_norm else keys
        q, k, v = np.split(seen @ w[p + "qkv_net.weight"].T, 3, -1)
        out = np.zeros((B, T, self.heads * self.dh))
        for b in range(B):
            for t in range(T):
                first = 0
                if self.same_length:
                    first = max(0, t + M - max(1, memory_len) + 1)
                columns = range(first, t + M + 1)
                for h in range(self.heads):
                    s = slice(h * self.dh, (h + 1) * self.dh)
                    scores = []
                    for j in columns:
                        r = w[p + "r_net.weight"] @ self.position(M + t - j)
                        scores.append(((q[b, M + t, s] + w["r_w_bias"][h]) @ k[b, j, s]
                                       + (q[b, M + t, s] + w["r_r_bias"][h]) @ r[s]) / np.sqrt(self.dh))
                    for weight, j in zip(softmax(np.array(scores)), columns):
                        out[b, t, s] += weight * v[b, j, s]
        y = x + out @ w[p + "o_net.weight"].T
        return y if self.pre_norm else norm(y)

    def feed_forward(self, i, x):
        w, p = self.w, f"layers.{i}.pos_ff."
        norm = lambda y: layer_norm(y, w[p + "layer_norm.weight"], w[p + "layer_norm.bias"])
        y = norm(x) if self.pre_norm else x
        if i == self.moe_layer:
            wi, bi = w[p + "experts.htoh4.weight"], w[p + "experts.htoh4.bias"]
            wo, bo = w[p + "experts.h4toh.weight"], w[p + "experts.h4toh.bias"]
            y = mixture(y, w[p + "gate.gate.weight"], w[p + "gate.gate.bias"], self.k,
                        lambda e, z: wo[e] @ np.maximum(wi[e] @ z + bi[e], 0) + bo[e])
        else:
            y = np.maximum(y @ w[p + "CoreNet.0.weight"].T + w[p + "CoreNet.0.bias"], 0)
            y = y @ w[p + "CoreNet.3.weight"].T + w[p + "CoreNet.3.bias"]
        return x + y if self.pre_norm else norm(x + y)

    def segment(self, tokens, targets, memory, memory_len):
        x = self.w["word_emb.emb_layers.0.weight"][tokens] * np.sqrt(self.d)
        states = [x]
        for i in range(self.layers):
            x = self.feed_forward(i, self.attention(i, x, memory[i], memory_len))
            states.append(x)
        memory = [np.concatenate([m, s], 1)[:, -memory_len:] for m, s in zip(memory, states)]
        logits = x @ self.w["word_emb.emb_layers.0.weight"].T + self.w["crit.out_layers.0.bias"]
        return nll_of(logits, targets), memory


def write_xl(path, seed, **options):
    rng = np.random.default_rng(seed)
    model = Xl(rng, **options)
    segments, B, T, memory_len = 4, 2, 5, 7
    tokens = rng.integers(0, model.vocab, (segments, B, T))
    targets = rng.integers(0, model.vocab, (segments, B, T))
    memory = [np.zeros((B, 0, model.d)) for _ in range(model.layers + 1)]
    nll = []
    for s in range(segments):
        values, memory = model.segment(tokens[s], targets[s], memory, memory_len)
        nll.append(values)
    out = dict(model.w, tokens=tokens, targets=targets, nll=np.stack(nll))
    out.update({f"memory.{i}": m for i, m in enumerate(memory)})
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, path)


def write_decoder(path, seed):
    rng = np.random.default_rng(seed)
    layers, d, heads, kv, dh, f, vocab, experts, k = 2, 8, 4, 2, 4, 6, 11, 4, 2
    B, T = 2, 6
    n = lambda *shape: rng.normal(0, 0.4, shape)
    w = {"model.embed_tokens.weight": n(vocab, d), "lm_head.weight": n(vocab, d),
         "model.norm.weight": 1 + n(d)}
    for i in range(layers):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = 1 + n(d)
        w[p + "post_attention_layernorm.weight"] = 1 + n(d)
        w[p + "self_attn.q_proj.weight"] = n(heads * dh, d)
        w[p + "self_attn.k_proj.weight"] = n(kv * dh, d)
        w[p + "self_attn.v_proj.weight"] = n(kv * dh, d)
        w[p + "self_attn.o_proj.weight"] = n(d, heads * dh)
        if i == 1:
            w[p + "mlp.gate.weight"], w[p + "mlp.gate.bias"] = n(experts, d), n(experts)
            w[p + "mlp.experts.gate_up_proj"] = n(experts, 2 * f, d)
            w[p + "mlp.experts.down_proj"] = n(experts, d, f)
        else:
            w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"] = n(f, d), n(f, d)
            w[p + "mlp.down_proj.weight"] = n(d, f)
    tokens, targets = rng.integers(0, vocab, (1, B, T)), rng.integers(0, vocab, (1, B, T))
    silu = lambda z: z / (1 + np.exp(-z))

    def rotate(vector, position):
        half = dh // 2
        angle = position * 10000.0 ** (-2.0 * np.arange(half) / dh)
        a, b = vector[:half], vector[half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])

    logits = np.zeros((B, T, vocab))
    for b in range(B):
        x = w["model.embed_tokens.weight"][tokens[0, b]]
        for i in range(layers):
            p = f"model.layers.{i}."
            y = rms_norm(x, w[p + "input_layernorm.weight"])
            q = (y @ w[p + "self_attn.q_proj.weight"].T).reshape(T, heads, dh)
            key = (y @ w[p + "self_attn.k_proj.weight"].T).reshape(T, kv, dh)
            value = (y @ w[p + "self_attn.v_proj.weight"].T).reshape(T, kv, dh)
            out = np.zeros((T, heads, dh))
            for t in range(T):
                for h in range(heads):
                    g = h // (heads // kv)
                    scores = np.array([rotate(q[t, h], t) @ rotate(key[j, g], j) for j in range(t + 1)])
                    out[t, h] = softmax(scores / np.sqrt(dh)) @ value[: t + 1, g]
            x = x + out.reshape(T, heads * dh) @ w[p + "self_attn.o_proj.weight"].T
            y = rms_norm(x, w[p + "post_attention_layernorm.weight"])
            if i == 1:
                wi, wo = w[p + "mlp.experts.gate_up_proj"], w[p + "mlp.experts.down_proj"]
                y = mixture(y, w[p + "mlp.gate.weight"], w[p + "mlp.gate.bias"], k,
                            lambda e, z: wo[e] @ (silu(wi[e, :f] @ z) * (wi[e, f:] @ z)))
            else:
                y = silu(y @ w[p + "mlp.gate_proj.weight"].T) * (y @ w[p + "mlp.up_proj.weight"].T)
                y = y @ w[p + "mlp.down_proj.weight"].T
            x = x + y
        logits[b] = rms_norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
    out = dict(w, tokens=tokens, targets=targets, nll=nll_of(logits, targets[0])[None], logits=logits)
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, path)


if __name__ == "__main__":
    folder = sys.argv[1]
    write_xl(f"{folder}/transformer_xl.safetensors", 1, clamp=0, same_length=False, pre_norm=False)
    write_xl(f"{folder}/transformer_xl_clamped.safetensors", 2, clamp=4, same_length=True, pre_norm=True)
    write_decoder(f"{folder}/decoder.safetensors", 3)
