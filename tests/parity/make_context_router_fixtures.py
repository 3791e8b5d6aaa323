"""Writes tests/golden/model/context_routers.safetensors: small Transformer-XL models behind the routers
`mcf`, `cosine` and `rmoe`, computed token by token in float64 with numpy alone, from the formulas of
the papers, independently of worker/model.

usage: make_context_router_fixtures.py OUT_FILE        needs: numpy, safetensors
       make_context_router_fixtures.py --check FILE    exit 1 when the committed file differs, 77
                                                       (skipped) when an import fails

A case is a reading of a router. Weights that all cases share stand under our checkpoint names, a
case's own under CASE/NAME; CASE/nll [segments, B, T] and CASE/logits.LAYER [segments, B T, E] are
what the model gives (for `cosine` the scores of the first hop), CASE/ids.LAYER the chosen experts.
The options of a case, in our spec's words, stand in context_router_golden_test.cc. Forward values only:
gradients are checked by finite differences in C++.
"""
import sys
from math import erf

try:
    import numpy as np

    from make_fixtures import Xl, layer_norm, nll_of, save_or_check, softmax
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SEGMENTS, B, T, MEMORY = 2, 2, 7, 5
MOE_LAYERS = [0, 1, 3]
MCF = dict(r=3, k_loc=2, local_dir="past", itself=False, local_scale="sqrt_d", local_weight="softmax",
           local_residual=True, use_local=True, use_global=True, history="gate_input",
           history_layers="moe", history_norm="normalised", k_hist=3, mask="tiled", causal=True,
           fusion="cross_attn", layer_emb="absolute", first="local_only", z_residual=False, tau=1.0,
           tau_learned=False, heads=2, d_kv=4, attn_scale="head", proj_bias=False, position="none",
           mem=0, gate_norm="topk")


class Model(Xl):
    layers, d, heads, dh, di, vocab, experts, k = 4, 8, 2, 3, 6, 11, 5, 2

    def __init__(self, weights, pre_norm):
        self.clamp, self.same_length, self.pre_norm = 0, False, pre_norm
        self.w = weights

    def weigh(self, logits, norm):
        chosen = np.argsort(-logits, kind="stable")[: self.k]
        if norm == "topk":
            return chosen, softmax(logits[chosen])
        full = softmax(logits)[chosen]
        return chosen, full / full.sum() if norm == "renorm" else full

    def expert(self, i, e, x):
        w, p = self.w, f"layers.{i}.pos_ff.experts."
        h = np.maximum(w[p + "htoh4.weight"][e] @ x + w[p + "htoh4.bias"][e], 0)
        return w[p + "h4toh.weight"][e] @ h + w[p + "h4toh.bias"][e]

    def moe(self, i, x, residual, state):
        """x, residual [B, T, d] -> output, logits, ids."""
        logits, norm = self.scores(i, x, residual, state)
        out, ids = np.zeros_like(x), np.zeros(x.shape[:2] + (self.k,), np.int64)
        for b, t in np.ndindex(x.shape[:2]):
            ids[b, t], weights = self.weigh(logits[b, t], norm)
            for e, weight in zip(ids[b, t], weights):
                out[b, t] += weight * self.expert(i, e, x[b, t])
        return out, logits, ids

    def feed(self, i, x, state):
        w, p = self.w, f"layers.{i}.pos_ff."
        norm = lambda y: layer_norm(y, w[p + "layer_norm.weight"], w[p + "layer_norm.bias"])
        y = norm(x) if self.pre_norm else x
        if i in MOE_LAYERS:
            y, logits, ids = self.moe(i, y, x, state)
            state["logits"][i].append(logits.reshape(-1, self.experts))
            state["ids"][i].append(ids.reshape(ids.shape[0] * ids.shape[1], -1))
        else:
            y = np.maximum(y @ w[p + "CoreNet.0.weight"].T + w[p + "CoreNet.0.bias"], 0)
            y = y @ w[p + "CoreNet.3.weight"].T + w[p + "CoreNet.3.bias"]
        return x + y if self.pre_norm else norm(x + y)

    def see_output(self, i, x, state):
        """What stands behind layer i (-1: the embedding)."""

    def run(self, tokens, targets):
        state = {"logits": {i: [] for i in MOE_LAYERS}, "ids": {i: [] for i in MOE_LAYERS}, "past": {}}
        memory = [np.zeros((B, 0, self.d)) for _ in range(self.layers + 1)]
        nll = []
        for s in range(SEGMENTS):
            state["history"], state["recurrent"] = [], None
            x = self.w["word_emb.emb_layers.0.weight"][tokens[s]] * np.sqrt(self.d)
            states = [x]
            self.see_output(-1, x, state)
            for i in range(self.layers):
                x = self.feed(i, self.attention(i, x, memory[i], MEMORY), state)
                self.see_output(i, x, state)
                states.append(x)
            memory = [np.concatenate([m, n], 1)[:, -MEMORY:] for m, n in zip(memory, states)]
            logits = x @ self.w["word_emb.emb_layers.0.weight"].T + self.w["crit.out_layers.0.bias"]
            nll.append(nll_of(logits, targets[s]))
        return np.stack(nll), state


class Mcf(Model):
    """Sections 4.3 and 4.4 of the design: one option a time differs from the defaults."""

    def __init__(self, weights, pre_norm, **options):
        super().__init__(weights, pre_norm)
        self.o = dict(MCF, **options)

    def source(self, i):
        """Row of the layer embedding of layer i (-1: the embedding)."""
        return {"moe": lambda: MOE_LAYERS.index(i), "all": lambda: i,
                "all_plus_embedding": lambda: i + 1}[self.o["history_layers"]]()

    def remember(self, i, x, state):
        if i == -1:
            wanted = self.o["history_layers"] == "all_plus_embedding"
        else:
            wanted = self.o["history_layers"] != "moe" or i in MOE_LAYERS
        if not wanted:
            return
        old = state["past"].get(i, np.zeros((B, 0, self.d)))
        both = np.concatenate([old, x], 1)
        state["history"].append((self.source(i), both))
        keep = min(self.o["mem"], both.shape[1])
        state["past"][i] = both[:, both.shape[1] - keep:]

    def see_output(self, i, x, state):
        if i == -1 or self.o["history"] == "layer_output":
            self.remember(i, x, state)

    def scores(self, i, x, residual, state):
        o, w, p = self.o, self.w, f"layers.{i}.pos_ff.gate."
        is_first = i == MOE_LAYERS[0]
        blocks = state["history"][-o["k_hist"]:] if o["use_global"] and o["k_hist"] else []
        own = state["own"].get(i, np.zeros((B, 0, self.d))) if "own" in state else np.zeros((B, 0, self.d))
        z = np.zeros_like(x)
        for b in range(B):
            neighbours = np.stack([self.neighbours(np.concatenate([own[b], x[b]]), own.shape[1] + t)
                                   for t in range(T)])
            local = x[b] + neighbours if o["local_residual"] else neighbours
            if not o["use_local"]:
                neighbours, local = np.zeros_like(x[b]), x[b]
            if o["use_global"] and o["k_hist"] and is_first and not blocks and o["first"] != "local_only":
                z[b] = x[b]
            elif not blocks:
                z[b] = local
            else:
                z[b] = self.fuse(i, x[b], neighbours, local, [(s, y[b]) for s, y in blocks])
        # What this gate saw becomes history for later layers, and past for the next segment.
        state.setdefault("own", {})
        both = np.concatenate([own, x], 1)
        state["own"][i] = both[:, both.shape[1] - min(o["mem"], both.shape[1]):]
        tau = np.exp(w[p + "log_tau"][0]) if o["tau_learned"] else o["tau"]
        return (z @ w[p + "gate.weight"].T + w[p + "gate.bias"]) / tau, o["gate_norm"]

    def moe(self, i, x, residual, state):
        out = super().moe(i, x, residual, state)
        if self.o["history"] == "gate_input":
            self.remember(i, self.entry(x, residual), state)
        return out

    def feed(self, i, x, state):
        if i not in MOE_LAYERS and self.o["history"] == "gate_input":
            p = f"layers.{i}.pos_ff.layer_norm."
            y = layer_norm(x, self.w[p + "weight"], self.w[p + "bias"]) if self.pre_norm else x
            self.remember(i, self.entry(y, x), state)
        return super().feed(i, x, state)

    def entry(self, x, residual):
        if self.o["history_norm"] == "normalised":
            return x
        return residual / np.sqrt((residual ** 2).mean(-1, keepdims=True) + 1e-5)

    def neighbours(self, rows, i):
        """rows [P + T, d]; row i looks around itself."""
        o = self.o
        ages = ([0] if o["itself"] else []) + [a * s for a in range(1, o["r"] + 1)
                                             for s in ((1, -1) if o["local_dir"] == "both" else (1,))]
        found = []
        for rank, age in enumerate(ages):
            j = i - age
            if not 0 <= j < len(rows):
                continue
            score = rows[i] @ rows[j]
            if o["local_scale"] == "sqrt_d":
                score /= np.sqrt(self.d)
            elif o["local_scale"] == "cosine":
                score /= np.linalg.norm(rows[i]) * np.linalg.norm(rows[j])
            found.append((-score, rank, j))
        found = sorted(found)[: o["k_loc"]]
        if not found:
            return np.zeros(self.d)
        a = softmax(-np.array([f[0] for f in found])) if o["local_weight"] == "softmax" \
            else np.full(len(found), 1 / len(found))
        return sum(x * rows[f[2]] for x, f in zip(a, found))

    def project(self, name, x):
        return x @ self.w[name + ".weight"].T + (self.w[name + ".bias"] if self.o["proj_bias"] else 0)

    def rotate(self, x, position):
        """x [heads, c] at one position."""
        half = self.o["d_kv"] // 2
        angle = position * 10000.0 ** (-np.arange(half) / half)
        a, c = x[:, :half], x[:, half:]
        return np.concatenate([a * np.cos(angle) - c * np.sin(angle), c * np.cos(angle) + a * np.sin(angle)], 1)

    def attend(self, i, query, blocks, scale, position=True):
        """query [T, p] against blocks of (key, value [P + T, p]); mask by time."""
        o = self.o
        H, c = o["heads"], o["d_kv"]
        rope = position and o["position"] == "rope"
        bias = self.w[f"layers.{i}.pos_ff.gate.same_position_bias"] \
            if position and o["position"] == "same_position_bias" else np.zeros(H)
        out = np.zeros((T, H * c))
        for t in range(T):
            q = query[t].reshape(H, c)
            q = self.rotate(q, t) if rope else q
            keys, values, own = [], [], []
            for key, value in blocks:
                past = len(key) - T
                for s in range(len(key)):
                    age = t - (s - past)
                    if o["causal"] and age < 0:
                        continue
                    if position and o["mask"] == "same_position" and age != 0:
                        continue
                    if position and o["mask"] == "window" and abs(age) > o["r"]:
                        continue
                    row = key[s].reshape(H, c)
                    keys.append(self.rotate(row, s - past) if rope else row)
                    values.append(value[s].reshape(H, c))
                    own.append(age == 0)
            for h in range(H):
                scores = np.array([q[h] @ k[h] * scale + bias[h] * o for k, o in zip(keys, own)])
                for weight, value in zip(softmax(scores), values):
                    out[t, h * c:(h + 1) * c] += weight * value[h]
        return out

    def fuse(self, i, x, neighbours, local, blocks):
        o, w, p = self.o, self.w, f"layers.{i}.pos_ff.gate."
        width = o["d_kv"] if o["attn_scale"] == "head" else o["d_kv"] * o["heads"]
        scale = 1 / np.sqrt(width)
        keyed = []
        for j, (source, y) in enumerate(blocks):
            if o["layer_emb"] == "absolute":
                y = y + w[p + "layer_emb.weight"][source]
            elif o["layer_emb"] == "relative":
                y = y + w[p + "layer_emb.weight"][len(blocks) - 1 - j]
            keyed.append((self.project(p + "w_k", y), self.project(p + "w_v", y)))
        if o["fusion"] == "cross_attn":
            z = self.project(p + "w_o", self.attend(i, self.project(p + "w_l", local), keyed, scale))
        elif o["fusion"] == "double_attn":
            a = self.attend(i, x @ w[p + "w_q.weight"].T, keyed, scale)
            l = self.project(p + "w_l", local)
            second = [(l @ w[p + "w_k2.weight"].T, l @ w[p + "w_v2.weight"].T)]
            z = self.project(p + "w_o", self.attend(i, a, second, scale, position=False))
        else:
            c = self.project(p + "w_o", self.attend(i, self.project(p + "w_l", x), keyed, scale))
            both = np.concatenate([c, local], -1)
            if o["fusion"] == "add":
                z = c + neighbours
            elif o["fusion"] == "concat":
                z = both @ w[p + "w_f.weight"].T
            else:
                g = 1 / (1 + np.exp(-(both @ w[p + "w_g.weight"].T + w[p + "w_g.bias"])))
                z = g * c + (1 - g) * local
        if o["layer_emb"] == "fused_add":
            z = z + w[p + "layer_emb.weight"][MOE_LAYERS.index(i)]
        return z + local if o["z_residual"] else z


class Rmoe(Model):
    def __init__(self, weights, shared, residual):
        super().__init__(weights, False)
        self.shared, self.residual = shared, residual

    def scores(self, i, x, residual, state):
        w, p = self.w, f"layers.{i}.pos_ff.gate."
        cell = "router_gru." if self.shared else p + "gru."
        u = x @ w[p + "w1.weight"].T
        g = state["recurrent"] if state["recurrent"] is not None else np.zeros_like(u)
        sigmoid = lambda y: 1 / (1 + np.exp(-y))
        a = np.split(u @ w[cell + "weight_ih"].T + w[cell + "bias_ih"], 3, -1)
        h = np.split(g @ w[cell + "weight_hh"].T + w[cell + "bias_hh"], 3, -1)
        r, z = sigmoid(a[0] + h[0]), sigmoid(a[1] + h[1])
        g = (1 - z) * np.tanh(a[2] + r * h[2]) + z * g
        state["recurrent"] = g
        return (g + u if self.residual else g) @ w[p + "gate.weight"].T, "renorm"


class Cosine(Model):
    def __init__(self, weights, hop_k, kind="mlp", tau=30.0, tau_learned=False, halt=0.0, halt_norm="cumulative",
                 bias=False, hidden="fixed", projection="shared", magnitude=False):
        super().__init__(weights, True)
        self.hop_k, self.kind, self.tau, self.tau_learned, self.halt = hop_k, kind, tau, tau_learned, halt
        self.halt_norm, self.bias, self.hidden = halt_norm, bias, hidden
        self.projection, self.magnitude = projection, magnitude

    def rank_one(self, i, e, x):
        w, p = self.w, f"layers.{i}.pos_ff.experts."
        if self.kind == "static":
            return w[p + "static.weight"][e]
        h = w[p + "w_in.weight"][e] @ x
        h = h * 0.5 * (1 + np.array([erf(v / np.sqrt(2)) for v in h]))
        return w[p + "w_out.weight"][e] @ h

    def moe(self, i, x, residual, state):
        w, p = self.w, f"layers.{i}.pos_ff.gate."
        unit = lambda v: v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-8)
        tau = np.exp(min(w[p + "log_tau"][0], np.log(100.0))) if self.tau_learned else self.tau
        out, first = np.zeros_like(x), np.zeros(x.shape[:2] + (self.experts,))
        ids = np.full(x.shape[:2] + (sum(self.hop_k),), -1, np.int64)
        for b, t in np.ndindex(x.shape[:2]):
            h, moved, slot = x[b, t], 0.0, 0
            for hop, k in enumerate(self.hop_k):
                own = "" if hop == 0 or self.projection != "own_projection" else f"{hop}."
                z = w[p + f"w_c.{own}weight"] @ h if hop == 0 or self.projection == "own_projection" else base
                if self.bias and (hop == 0 or self.projection == "own_projection"):
                    z = z + w[p + f"w_c.{own}bias"]
                base = z
                c = w[p + ("centroids." if hop == 0 or self.projection != "own_centroids"
                           else f"centroids.{hop}.") + "weight"]
                scores = tau * unit(c) @ unit(z + moved)
                if hop == 0:
                    first[b, t] = scores
                chosen = np.argsort(-scores, kind="stable")[:k]
                weights = softmax(scores[chosen])
                step = sum(a * self.rank_one(i, e, h) for a, e in zip(weights, chosen))
                ids[b, t, slot:slot + k] = chosen
                slot += k
                out[b, t] += step
                moved = moved + weights @ w[p + "displacement.weight"][chosen]
                if self.halt > 0:
                    whole = out[b, t] if self.halt_norm == "cumulative" else x[b, t]
                    if np.linalg.norm(step) / np.linalg.norm(whole) < self.halt:
                        break
                if self.hidden == "updated":
                    h = x[b, t] + out[b, t]
        return (out * w[p + "magnitude"][0] if self.magnitude else out), first, ids


def base_weights(rng):
    d, inner, di, e = Model.d, Model.heads * Model.dh, Model.di, Model.experts
    n = lambda *shape: rng.normal(0, 0.4, shape)
    w = {"word_emb.emb_layers.0.weight": n(Model.vocab, d), "r_w_bias": n(Model.heads, Model.dh),
         "r_r_bias": n(Model.heads, Model.dh), "crit.out_layers.0.bias": n(Model.vocab)}
    for i in range(Model.layers):
        p = f"layers.{i}."
        w[p + "dec_attn.qkv_net.weight"] = n(3 * inner, d)
        w[p + "dec_attn.r_net.weight"] = n(inner, d)
        w[p + "dec_attn.o_net.weight"] = n(d, inner)
        for part in ("dec_attn", "pos_ff"):
            w[p + part + ".layer_norm.weight"] = 1 + n(d)
            w[p + part + ".layer_norm.bias"] = n(d)
        f = p + "pos_ff."
        if i not in MOE_LAYERS:
            w[f + "CoreNet.0.weight"], w[f + "CoreNet.0.bias"] = n(di, d), n(di)
            w[f + "CoreNet.3.weight"], w[f + "CoreNet.3.bias"] = n(d, di), n(d)
            continue
        w[f + "experts.htoh4.weight"], w[f + "experts.htoh4.bias"] = n(e, di, d), n(e, di)
        w[f + "experts.h4toh.weight"], w[f + "experts.h4toh.bias"] = n(e, d, di), n(e, d)
    return w


def mcf_weights(rng, o):
    d, p, e = Model.d, o["heads"] * o["d_kv"], Model.experts
    n = lambda *shape: rng.normal(0, 0.5, shape)
    w = {}
    for i in MOE_LAYERS:
        g = f"layers.{i}.pos_ff.gate."
        for name, shape in (("w_l", (p, d)), ("w_k", (p, d)), ("w_v", (p, d)), ("w_o", (d, p))):
            w[g + name + ".weight"] = n(*shape)
            if o["proj_bias"]:
                w[g + name + ".bias"] = n(shape[0])
        extra = {"concat": {"w_f.weight": (d, 2 * d)}, "gate": {"w_g.weight": (1, 2 * d), "w_g.bias": (1,)},
                 "multi_gate": {"w_g.weight": (d, 2 * d), "w_g.bias": (d,)},
                 "double_attn": {"w_q.weight": (p, d), "w_k2.weight": (p, p), "w_v2.weight": (p, p)}}
        for name, shape in extra.get(o["fusion"], {}).items():
            w[g + name] = n(*shape)
        if o["layer_emb"] != "none":
            rows = {"moe": len(MOE_LAYERS), "all": Model.layers, "all_plus_embedding": Model.layers + 1}
            count = rows[o["history_layers"]] if o["layer_emb"] == "absolute" else len(MOE_LAYERS)
            w[g + "layer_emb.weight"] = n(count if o["layer_emb"] != "relative" else min(o["k_hist"], count), d)
        if o["position"] == "same_position_bias":
            w[g + "same_position_bias"] = n(o["heads"])
        if o["tau_learned"]:
            w[g + "log_tau"] = n(1)
        w[g + "gate.weight"], w[g + "gate.bias"] = n(e, d), n(e)
    return w


def rmoe_weights(rng, shared, size=3):
    d, e = Model.d, Model.experts
    n = lambda *shape: rng.normal(0, 0.5, shape)
    w = {}
    for i in MOE_LAYERS:
        g = f"layers.{i}.pos_ff.gate."
        w[g + "w1.weight"], w[g + "gate.weight"] = n(size, d), n(e, size)
        cell = "router_gru." if shared else g + "gru."
        if cell + "weight_ih" not in w:
            w[cell + "weight_ih"], w[cell + "weight_hh"] = n(3 * size, size), n(3 * size, size)
            w[cell + "bias_ih"], w[cell + "bias_hh"] = n(3 * size), n(3 * size)
    return w


def cosine_weights(rng, hop_k, kind="mlp", width=2, size=3, **options):
    d, e = Model.d, Model.experts
    n = lambda *shape: rng.normal(0, 0.5, shape)
    w = {}
    for i in MOE_LAYERS:
        g, f = f"layers.{i}.pos_ff.gate.", f"layers.{i}.pos_ff.experts."
        for hop in range(len(hop_k)):
            own = "" if hop == 0 else f"{hop}."
            if hop == 0 or options.get("projection") == "own_projection":
                w[g + f"w_c.{own}weight"] = n(size, d)
                if options.get("bias"):
                    w[g + f"w_c.{own}bias"] = n(size)
            if hop == 0 or options.get("projection") == "own_centroids":
                w[g + f"centroids.{own}weight"] = n(e, size)
        w[g + "displacement.weight"] = n(e, size)
        if options.get("tau_learned"):
            w[g + "log_tau"] = np.array([5.0 if i == 1 else 2.0])
        if options.get("magnitude"):
            w[g + "magnitude"] = 1 + n(1)
        if kind == "static":
            w[f + "static.weight"] = n(e, d)
        else:
            w[f + "w_in.weight"], w[f + "w_out.weight"] = n(e, width, d), n(e, d, width)
    return w


MCF_CASES = {
    "default": {}, "both": dict(local_dir="both"), "self": dict(itself=True),
    "unscaled": dict(local_scale="none"), "local_cosine": dict(local_scale="cosine"),
    "mean": dict(local_weight="mean"), "wide": dict(r=20, k_loc=9), "no_residual": dict(local_residual=False),
    "layer_output": dict(history="layer_output"), "all": dict(history_layers="all"),
    "embedding": dict(history_layers="all_plus_embedding", history="layer_output"),
    "one_layer": dict(k_hist=1), "same_position": dict(mask="same_position"), "window": dict(mask="window"),
    "not_causal": dict(causal=False), "add": dict(fusion="add"), "double": dict(fusion="double_attn"),
    "concat": dict(fusion="concat"), "gate": dict(fusion="gate"), "multi_gate": dict(fusion="multi_gate"),
    "no_embedding": dict(layer_emb="none"), "relative": dict(layer_emb="relative"),
    "fused": dict(layer_emb="fused_add", fusion="add"), "linear": dict(first="linear_x"),
    "z_residual": dict(z_residual=True), "tau": dict(tau=0.5), "tau_learned": dict(tau_learned=True),
    "full": dict(gate_norm="full"), "rope": dict(position="rope"),
    "same_bias": dict(position="same_position_bias"), "memory": dict(mem=4), "memory_rope": dict(mem=4, position="rope"),
    "scale_p": dict(attn_scale="p"), "biases": dict(proj_bias=True), "no_global": dict(use_global=False),
    "no_local": dict(use_local=False), "pre_norm": dict(pre_norm=True),
    "raw": dict(pre_norm=True, history_norm="raw"),
}
RMOE_CASES = {"shared": (True, False), "unshared": (False, False), "residual": (True, True)}
COSINE_CASES = {
    "wide": dict(hop_k=[4]), "deep": dict(hop_k=[2, 2, 2]), "magnitude": dict(hop_k=[4], magnitude=True),
    "asymmetric": dict(hop_k=[3, 2, 1]), "decoupled": dict(hop_k=[2, 2], projection="own_projection", bias=True),
    "centroids": dict(hop_k=[2, 2], projection="own_centroids"), "static": dict(hop_k=[2, 2], kind="static"),
    "learned": dict(hop_k=[2, 2], tau_learned=True), "updated": dict(hop_k=[2, 2, 2], hidden="updated"),
    "halting": dict(hop_k=[2, 2, 2], halt=0.6), "halting_residual": dict(hop_k=[2, 2, 2], halt=0.35, halt_norm="residual"),
}


def make():
    base = base_weights(np.random.default_rng(11))
    rng = np.random.default_rng(12)
    tokens, targets = (rng.integers(0, Model.vocab, (SEGMENTS, B, T)) for _ in range(2))
    shared = mcf_weights(np.random.default_rng(13), MCF)
    out = dict(base, tokens=tokens, targets=targets)
    out.update({f"mcf/{name}": value for name, value in shared.items()})

    def record(case, model, own):
        nll, state = model.run(tokens, targets)
        out.update({f"{case}/{name}": value for name, value in own.items()})
        out[f"{case}/nll"] = nll
        for i in MOE_LAYERS:
            out[f"{case}/logits.{i}"] = np.stack(state["logits"][i])
            out[f"{case}/ids.{i}"] = np.stack(state["ids"][i])

    for number, (case, options) in enumerate(MCF_CASES.items()):
        options = dict(options)
        pre_norm = options.pop("pre_norm", False)
        drawn = mcf_weights(np.random.default_rng(100 + number), dict(MCF, **options))
        own = {k: v for k, v in drawn.items() if k not in shared or v.shape != shared[k].shape}
        record(f"mcf.{case}", Mcf({**base, **shared, **own}, pre_norm, **options), own)
    for number, (case, (is_shared, residual)) in enumerate(RMOE_CASES.items()):
        own = rmoe_weights(np.random.default_rng(200 + number), is_shared)
        record(f"rmoe.{case}", Rmoe({**base, **own}, is_shared, residual), own)
    for number, (case, options) in enumerate(COSINE_CASES.items()):
        own = cosine_weights(np.random.default_rng(300 + number), **options)
        record(f"cosine.{case}", Cosine({**base, **own}, **options), own)
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


if __name__ == "__main__":
    save_or_check(make(), sys.argv[-1], sys.argv[1] == "--check")
