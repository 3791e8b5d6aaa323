"""One training step (forward, backward, clipping, AdamW) of a small Mixtral of HF transformers on CPU.

usage: step_transformers.py [threads] [fp32|bf16] [eager|grouped_mm|compile] [repeats]
"""
import resource
import sys
import time

import torch
from transformers import MixtralConfig, MixtralForCausalLM

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2] if len(sys.argv) > 2 else "fp32"]
how = sys.argv[3] if len(sys.argv) > 3 else "grouped_mm"
repeats = int(sys.argv[4]) if len(sys.argv) > 4 else 5
torch.set_num_threads(threads)
config = MixtralConfig(vocab_size=256, hidden_size=352, intermediate_size=512, num_hidden_layers=4, num_local_experts=16, num_experts_per_tok=2,
                       num_attention_heads=8, num_key_value_heads=8, head_dim=44, output_router_logits=True, router_aux_loss_coef=0.01,
                       max_position_embeddings=512, tie_word_embeddings=False)
config._experts_implementation = "grouped_mm" if how == "compile" else how
torch.manual_seed(0)
model = MixtralForCausalLM(config).to(dtype)
if how == "compile":
    model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(0, 256, (8, 256))


def step():
    optimizer.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


with open("/proc/self/statm") as statm:
    before_mb = int(statm.read().split()[1]) * resource.getpagesize() / 2**20
times = []
for i in range(repeats + 2):
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
best = min(times[2:])
print(f"transformers step {sys.argv[2] if len(sys.argv) > 2 else 'fp32'} {how} threads={threads} ms={best * 1e3:.0f} tokens_per_s={ids.numel() / best:.0f} "
      f"growth_mb={resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb:.0f}")
