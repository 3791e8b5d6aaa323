"""Writes tests/golden/model/routers.safetensors: routers and balance losses computed in float64 with
numpy alone, from the formulas of the papers and of the reference codes, independently of
worker/model.

usage: make_router_fixtures.py OUT_DIR            needs: numpy, safetensors
       make_router_fixtures.py --check GOLDEN_DIR  exit 1 when the committed file differs, 77 (skipped)
                                                   when numpy or safetensors cannot be imported

Per router `<kind>/<tensor>` are its parameters and buffers under our names, `<kind>/logits`,
`<kind>/ids` and `<kind>/weights` what it must say about `x` [2 * 8, 6]. `losses/...`: logits and ids
of two layers, a mask, and the value of every definition.
"""
import sys

try:
    import numpy as np
    from make_fixtures import save_or_check
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

B, T, D, E, K = 2, 8, 6, 8, 2
N = B * T


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def top(scores, k):
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


def take(values, ids):
    return np.take_along_axis(values, ids, -1)


def unit(rows, eps):
    return rows / np.maximum(np.sqrt((rows * rows).sum(-1, keepdims=True)), eps)


def groups(scores, count, kept, score):
    """Scores with minus infinity outside the `kept` best of `count` groups of experts."""
    grouped = scores.reshape(N, count, -1)
    ranked = np.sort(grouped, -1)[..., ::-1]
    best = ranked[..., 0] if score == "max" else ranked[..., :2].sum(-1)
    out = np.full_like(grouped, -np.inf)
    for n in range(N):
        for g in np.argsort(-best[n], kind="stable")[:kept]:
            out[n, g] = grouped[n, g]
    return out.reshape(N, -1)


def sinkhorn(logits, tolerance=1e-4, most=100):
    """Megatron's normalisation of exp(logits), with the row's largest score taken out first."""
    cost = np.exp(logits - logits.max(1, keepdims=True))
    d1 = np.ones(cost.shape[1])
    for _ in range(most):
        d0 = 1 / cost.shape[0] / ((d1 * cost).sum(1) + 1e-8)
        new = 1 / cost.shape[1] / ((d0[:, None] * cost).sum(0) + 1e-8)
        change = np.abs(new - d1).mean()
        d1 = new
        if change < tolerance:
            break
    return d1 * cost * d0[:, None]


def routers(rng, out):
    x = rng.normal(0, 1, (N, D))
    out["x"] = x
    n = lambda *shape: rng.normal(0, 0.7, shape)

    def put(kind, logits, ids, weights, **tensors):
        out[f"{kind}/logits"], out[f"{kind}/ids"], out[f"{kind}/weights"] = logits, ids, weights
        for name, value in tensors.items():
            out[f"{kind}/{name.replace('__', '.')}"] = value

    w, b = n(E, D), n(E)
    s = x @ w.T + b
    ids = top(s, K)
    put("smoe", s, ids, softmax(take(s, ids)), gate__weight=w, gate__bias=b)
    put("switch", s, top(s, 1), take(softmax(s), top(s, 1)), gate__weight=w, gate__bias=b)

    e, w0, b0, w2, b2 = n(1, D), n(5, D), n(5), n(E * (D + 1), 5), n(E * (D + 1))
    gate = (np.maximum(e @ w0.T + b0, 0) @ w2.T + b2).reshape(E, D + 1)
    s = x @ gate[:, :D].T + gate[:, D]
    ids = top(s, K)
    put("hyper_router", s, ids, softmax(take(s, ids)), embedding=e, hypernet__0__weight=w0,
        hypernet__0__bias=b0, hypernet__2__weight=w2, hypernet__2__bias=b2)

    p, eps = n(4, D), n(E, 4)
    s = unit(x @ p.T, 1e-4) @ unit(eps, 1e-4).T / 0.07
    ids = top(s, K)
    prob = softmax(s)
    put("xmoe", s, ids, take(prob, ids) / take(prob, ids).sum(1, keepdims=True), projection=p,
        expert_embeddings=eps)

    w = n(E, D)
    s = x @ w.T
    prob, ids = softmax(s), top(s, K)
    put("olmoe", s, ids, take(prob, ids), gate__weight=w)
    put("mixtral", s, ids, take(prob, ids) / take(prob, ids).sum(1, keepdims=True), gate__weight=w)
    ids = top(groups(prob, 4, 2, "max"), K)
    put("deepseek", s, ids, take(prob, ids), gate__weight=w)

    bias = n(E).astype(np.float32).astype(np.float64)
    score = sigmoid(s)
    ids = top(groups(score + bias, 4, 2, "top2"), K)
    chosen = take(score, ids)
    put("bias_balanced", s, ids, 2.5 * chosen / (chosen.sum(1, keepdims=True) + 1e-20),
        gate__weight=w, e_score_correction_bias=bias)

    plan = sinkhorn(s)
    ids = top(plan, 1)
    put("sinkhorn", s, ids, sigmoid(take(s, ids)), gate__weight=w)
    out["sinkhorn/plan"] = plan

    # Expert choice over the whole batch: every expert its best K N / E tokens.
    took = [[] for _ in range(N)]
    for expert in range(E):
        for token in np.argsort(-prob[:, expert], kind="stable")[: K * N // E]:
            took[token].append(expert)
    width = max(len(own) for own in took)
    ids = np.full((N, width), -1)
    weights = np.zeros((N, width))
    for token, own in enumerate(took):
        own.sort(key=lambda expert: (-prob[token, expert], expert))
        ids[token, : len(own)] = own
        weights[token, : len(own)] = prob[token, own]
    put("expert_choice", s, ids, weights, gate__weight=w)


def losses(rng, out):
    logits = rng.normal(0, 1, (2, N, E))
    mask = np.ones(N, bool)
    mask[[6, 7, 15]] = False
    ids = np.stack([top(layer, K) for layer in logits])
    out["losses/logits"], out["losses/ids"], out["losses/mask"] = logits, ids, mask.astype(np.int64)

    def counts(layer, rows):
        return np.bincount(ids[layer][rows].reshape(-1), minlength=E).astype(float)

    def even(layer, rows):
        """E sum_e (c_e / n) P_e over some rows: what most definitions are multiples of."""
        n = len(rows)
        return E * (counts(layer, rows) / n * softmax(logits[layer][rows]).mean(0)).sum()

    real = np.flatnonzero(mask)
    rows = [real[real // T == b] for b in range(B)]
    total = lambda of: sum(of(layer) for layer in range(2))
    value = {
        "megatron_aux": total(lambda l: even(l, real)) / K,
        "megatron_seq": total(lambda l: np.mean([even(l, r) for r in rows])) / K,
        "deepseek_seq": total(lambda l: np.mean([even(l, r) for r in rows])) / K,
        "deepseek_batch": total(lambda l: even(l, real)) / K,
        "megablocks": total(lambda l: even(l, real)) / K / 2,
        "naive_balance": total(lambda l: even(l, real)) / K**2,
        "flaxformer": total(lambda l: even(l, real)),
    }
    first = lambda l: np.bincount(ids[l][real][:, 0], minlength=E) / len(real)
    value["gshard_top1"] = total(lambda l: E * (first(l) * softmax(logits[l][real]).mean(0)).sum())
    pooled_c = np.mean([counts(l, real) / len(real) for l in range(2)], 0)
    pooled_p = np.mean([softmax(logits[l][real]).mean(0) for l in range(2)], 0)
    value["hf_mixtral"] = E * (pooled_c * pooled_p).sum()
    lse = lambda l: np.log(np.exp(logits[l][real]).sum(1))
    value["z_loss"] = total(lambda l: (lse(l) ** 2).mean())
    for name, number in value.items():
        out[f"losses/{name}"] = np.array([number])


def make():
    out = {}
    rng = np.random.default_rng(20)
    routers(rng, out)
    losses(rng, out)
    return {
        name: np.ascontiguousarray(value if value.dtype == np.int64 else value.astype(np.float64))
        for name, value in out.items()
    }


if __name__ == "__main__":
    save_or_check(make(), sys.argv[-1] + "/routers.safetensors", sys.argv[1] == "--check")
