"""Forward and backward of one Mixtral block (router and experts) of HF transformers on CPU.

usage: layer_transformers.py [threads] [eager|grouped_mm|compile] [fp32|bf16] [repeats]

Sizes as in moe_layer_bench; prints `E<experts>_ms=...` for each.
"""
import sys
import time

import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
how = sys.argv[2] if len(sys.argv) > 2 else "grouped_mm"
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[3] if len(sys.argv) > 3 else "fp32"]
repeats = int(sys.argv[4]) if len(sys.argv) > 4 else 9
for experts, top_k, d, f, tokens in ((16, 2, 352, 512, 2048), (64, 8, 512, 256, 1024)):
    config = MixtralConfig(hidden_size=d, intermediate_size=f, num_local_experts=experts, num_experts_per_tok=top_k,
                           num_attention_heads=8, num_key_value_heads=8)
    config._experts_implementation = "grouped_mm" if how == "compile" else how
    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    block = block.to(dtype)
    run = torch.compile(block) if how == "compile" else block
    x = torch.randn(1, tokens, d).to(dtype).requires_grad_()

    def step():
        block.zero_grad(set_to_none=True)
        y = run(x)
        (y[0] if isinstance(y, tuple) else y).float().square().mean().backward()

    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    print(f"E{experts}_ms={min(times[2:]) * 1e3:.1f}", flush=True)
