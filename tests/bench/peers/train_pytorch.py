"""A plain PyTorch training loop of the quickstart's model: Transformer-XL with a sparse MoE in every layer.

usage: train_pytorch.py [threads] [steps] [router: smoe|dense]      prints tokens per second of the steps after the first ten

Written as a user would: modules, autograd, torch.optim; experts as stacked weights, tokens sorted by expert.
"""
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

THREADS, STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 60
ROUTER = sys.argv[3] if len(sys.argv) > 3 else "smoe"
LAYERS, D, HEADS, DH, INNER, EXPERTS, K, VOCAB, B, T, M = 4, 128, 4, 32, 128, 8, 2, 256, 8, 128, 128
torch.set_num_threads(THREADS)
torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.r, self.o = nn.Linear(D, 3 * HEADS * DH, bias=False), nn.Linear(D, HEADS * DH, bias=False), nn.Linear(HEADS * DH, D, bias=False)
        self.norm = nn.LayerNorm(D)

    def forward(self, x, memory, positions, u, v, mask):
        both = torch.cat([memory, x], 1)
        q, k, w = self.qkv(both).chunk(3, -1)
        q = q[:, -T:].view(B, T, HEADS, DH)
        k, w = k.view(B, -1, HEADS, DH), w.view(B, -1, HEADS, DH)
        r = self.r(positions).view(-1, HEADS, DH)
        ac = torch.einsum("bihd,bjhd->bhij", q + u, k)
        bd = torch.einsum("bihd,jhd->bhij", q + v, r)
        shifted = F.pad(bd, (1, 0)).view(B, HEADS, -1, T)[:, :, 1:].reshape(B, HEADS, T, -1)
        score = ((ac + shifted) / math.sqrt(DH)).masked_fill(mask, float("-inf")).softmax(-1)
        return self.norm(x + self.o(torch.einsum("bhij,bjhd->bihd", score, w).reshape(B, T, -1)))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS)
        self.w1, self.b1 = nn.Parameter(torch.randn(EXPERTS, INNER, D) * 0.02), nn.Parameter(torch.zeros(EXPERTS, INNER))
        self.w2, self.b2 = nn.Parameter(torch.randn(EXPERTS, D, INNER) * 0.02), nn.Parameter(torch.zeros(EXPERTS, D))

    def forward(self, x):
        flat = x.reshape(-1, D)
        score, chosen = self.gate(flat).topk(K, -1)
        weight = score.softmax(-1).reshape(-1)
        order = chosen.reshape(-1).argsort(stable=True)
        counts = chosen.reshape(-1).bincount(minlength=EXPERTS).tolist()
        parts = flat[order // K].split(counts)
        w1, b1, w2, b2 = self.w1.unbind(), self.b1.unbind(), self.w2.unbind(), self.b2.unbind()
        out = torch.cat([F.linear(F.relu(F.linear(p, w1[e], b1[e])), w2[e], b2[e]) for e, p in enumerate(parts)])
        return torch.zeros_like(flat).index_add(0, order // K, out * weight[order].unsqueeze(-1)).view_as(x)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, INNER * EXPERTS), nn.Linear(INNER * EXPERTS, D)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.bias = nn.Embedding(VOCAB, D), nn.Parameter(torch.zeros(VOCAB))
        self.u, self.v = nn.Parameter(torch.zeros(HEADS, DH)), nn.Parameter(torch.zeros(HEADS, DH))
        self.attention = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.ffn = nn.ModuleList(Experts() if ROUTER == "smoe" else Dense() for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(LAYERS))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets, memories):
        x = self.embedding(ids) * math.sqrt(D)
        length = memories[0].shape[1] + T
        distance = torch.arange(length - 1, -1, -1.0)
        angle = torch.outer(distance, 10000 ** (-torch.arange(0, D, 2.0) / D))
        positions = torch.cat([angle.sin(), angle.cos()], -1)
        mask = torch.ones(T, length, dtype=torch.bool).triu(1 + length - T)
        fresh = [x]
        for i in range(LAYERS):
            x = self.attention[i](x, memories[i], positions, self.u, self.v, mask)
            x = self.norms[i](x + self.ffn[i](x))
            fresh.append(x)
        memories = [torch.cat([old, new], 1)[:, -M:].detach() for old, new in zip(memories, fresh)]
        return F.cross_entropy(F.linear(x, self.embedding.weight, self.bias).view(-1, VOCAB), targets.reshape(-1)), memories


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
data = torch.randint(0, 128, (B, STEPS * T + 1))
memories = [torch.zeros(B, 0, D) for _ in range(LAYERS + 1)]
start = None
for step in range(STEPS):
    if step == 10:
        start = time.perf_counter()
    loss, memories = model(data[:, step * T:(step + 1) * T], data[:, step * T + 1:(step + 1) * T + 1], memories)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    loss.item()
print(f"pytorch router={ROUTER} threads={THREADS} params={sum(p.numel() for p in model.parameters())} "
      f"tokens_per_s={(STEPS - 10) * B * T / (time.perf_counter() - start):.0f}")
