"""Writes tests/golden/hf/shared_experts.json: which experts the sample checkpoints choose, as Hugging Face transformers
computes their hidden states in float64.

usage: make_shared_expert_fixtures.py CHECKPOINTS OUT_FILE        needs: torch, transformers (5.24)

{"<model>": {"<layer>": [[[experts of a token, best first], ...tokens], ...sequences]}} for the sequences of logits.json. The
smallest gap between the last expert chosen and the first one left out is printed: equal ids are asked of float32.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

MODELS = ("mixtral", "olmoe", "qwen3_moe", "qwen3_moe_mixed", "deepseek_v2")


def experts_of(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    k = model.config.num_experts_per_tok
    seen, gap = {}, float("inf")

    def watch(layer):
        def hook(module, arguments):
            nonlocal gap
            hidden = arguments[0].reshape(-1, arguments[0].shape[-1])
            scores = torch.softmax(hidden.double() @ module.weight.double().T, -1)
            ranked, ids = scores.sort(dim=-1, descending=True, stable=True)
            gap = min(gap, (ranked[:, k - 1] - ranked[:, k]).min().item())
            seen.setdefault(str(layer), []).append(ids[:, :k].tolist())
        return hook

    for layer, block in enumerate(model.model.layers):
        if hasattr(block.mlp, "gate") and hasattr(block.mlp, "experts"):
            block.mlp.gate.register_forward_pre_hook(watch(layer))
    for sequence in json.loads((folder / "logits.json").read_text())["sequences"]:
        with torch.no_grad():
            model(torch.tensor([sequence]))
    return seen, gap


checkpoints, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
result = {}
for name in MODELS:
    result[name], smallest = experts_of(checkpoints / name)
    print(f"{name}: layers {', '.join(result[name])}, smallest gap {smallest:.1e}")
out.write_text(json.dumps(result, separators=(",", ":")).replace('},"', '},\n"') + "\n")
