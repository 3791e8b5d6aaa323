"""Resume is continuation: trainers are killed at random steps, and what comes out equals the uninterrupted run, bit for bit."""
import json
import os
import pathlib
import random
import signal
import struct
import time
import unittest

import harness
from harness import Cluster, wait_until

LONG = os.environ.get("SWITCHYARD_FAULT_LONG") == "1"
KILLS = 20 if LONG else 1
EXPERTS = 4
ROUTERS = ["dense", "smoe", "smoe_dropout", "hyper_router", "rmoe", "mcf", "cosine", "xmoe", "hash", "random_fixed", "switch", "gshard",
           "noisy_topk", "expert_choice", "base", "sinkhorn", "bias_balanced", "deepseek", "mixtral", "olmoe", "qwen3"]
SHORT = {"transformer_xl": ["mcf", "xmoe", "bias_balanced"], "decoder": ["noisy_topk"]}
BACKBONES = {
    "transformer_xl": "transformer_xl: {layers: 2, d_model: 32, heads: 2, d_head: 16, d_inner: 32, dropout: 0.1}",
    "decoder": "decoder: {layers: 2, d_model: 32, heads: 2, d_inner: 32}",
}
# Two micro-batches a window, an evaluation and checkpoints between them, dropout, a schedule, memory.
FILE = """
name: {name}
project: resume
base:
  kind: train
  data: {{files: {{domains: {{c: ["{corpus}/c/*"], english: ["{corpus}/english/*"]}}, tokens: bytes}}}}
  model:
    {backbone}
    moe: {moe}
  train: {{steps: {steps}, batch: 4, micro_batch: 2, target_len: 32, {memory}optimizer: {{adam: {{lr: 3e-3}}}},
          warmup_steps: 20, schedule: cosine, clip_norm: 0.25}}
  eval: {{every_steps: 25, splits: [valid], max_tokens: 512, allow_noncausal: true}}
replicates: {{seeds: [7]}}
checkpoint: {{every: 150ms, keep_last: 2}}
telemetry: {{every_steps: 10}}
objective: {{metric: valid/bits_per_byte, goal: minimize}}
"""


def moe_of(router):
    if router == "dense":
        return "{layers: [0, 1], router: {kind: dense, d_ff: 64}}"
    return f"{{layers: [0, 1], experts: {EXPERTS}, top_k: {1 if router in ('hash', 'switch', 'base') else 2}, router: {{kind: {router}}}}}"


def tensors(path):
    """Name -> (type, shape, bytes) of a safetensors file."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], raw[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.corpus = harness.make_corpus(cls.cluster.folder / "corpus")
        cls.cluster.start_coordinator()
        cls.cluster.start_worker(slots=2)

    def submit(self, name, backbone, router, *flags):
        steps = 400 if LONG else 150
        text = FILE.format(name=name, corpus=self.corpus, backbone=BACKBONES[backbone], moe=moe_of(router), steps=steps,
                           memory="memory_len: 32, " if backbone == "transformer_xl" else "")
        self.cluster.cli("submit", self.cluster.write(f"{name}.yaml", text), *flags)

    def trainer(self, sweep):
        """Pid of the trainer of the sweep's run, or None."""
        run = self.cluster.json("show", f"{sweep}/1")["run"]["id"]
        for path in (self.cluster.folder / "worker" / "attempts").glob("*/attempt.json"):
            try:
                if run in path.read_text():
                    pid = json.loads((path.parent / "pid.json").read_text())["pid"]
                    if pathlib.Path(f"/proc/{pid}").exists() and not (path.parent / "exit.json").exists():
                        return pid
            except (OSError, ValueError):
                continue
        return None

    def state(self, sweep):
        return self.cluster.json("show", f"{sweep}/1")["run"]["state"]

    def newest_checkpoint(self, sweep):
        return max((c["step"] for c in self.cluster.json("show", f"{sweep}/1")["checkpoints"]), default=0)

    def kill_some(self, sweep, clock):
        killed = 0
        floor = 0
        while killed < KILLS:
            # Progress between two kills, so that no poison rule applies.
            fresh = wait_until(lambda: self.newest_checkpoint(sweep) > floor or self.state(sweep) == "succeeded", "newer checkpoint", 120, 0.02)
            if not fresh or self.state(sweep) == "succeeded":
                break
            floor = self.newest_checkpoint(sweep)
            time.sleep(clock.uniform(0, 0.2))
            pid = self.trainer(sweep)
            if pid is None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
        return killed

    def result(self, sweep):
        shown = self.cluster.json("show", f"{sweep}/1")
        self.assertEqual(shown["run"]["state"], "succeeded", json.dumps(shown["attempts"], indent=1))
        last = max(shown["checkpoints"], key=lambda c: c["step"])
        curves = {}
        for series in ("train/nats_per_token", "train/lr", "train/grad_norm", "valid/bits_per_byte", "train/tokens"):
            got = self.cluster.cli("-o", "json", "metrics", f"{sweep}/1", series, check=False)
            if got.returncode == 0:
                curves[series] = [(int(p["step"]), p[series]) for p in json.loads(got.stdout)]
        files = {name: tensors(pathlib.Path(last["path"]) / name) for name in ("model.safetensors", "state.safetensors")}
        return len(shown["attempts"]), int(last["step"]), curves, files

    def compare(self, backbone, router, clock):
        plain, killed = f"{backbone.replace('_', '-')}-{router.replace('_', '-')}", f"{backbone.replace('_', '-')}-{router.replace('_', '-')}-killed"
        self.submit(plain, backbone, router)
        self.cluster.cli("wait", plain, timeout=300)
        # The same identity: a rerun, or the coordinator would answer with the first.
        self.submit(killed, backbone, router, "--rerun")
        kills = self.kill_some(killed, clock)
        self.cluster.cli("wait", killed, timeout=300)
        _, step, curves, files = self.result(plain)
        attempts, other_step, other_curves, other_files = self.result(killed)
        self.assertEqual(step, other_step)
        self.assertIn("train/nats_per_token", curves)
        for series, points in curves.items():
            self.assertEqual(points, other_curves[series], series)
        for name, ours in files.items():
            self.assertEqual(ours.keys(), other_files[name].keys())
            for tensor, value in ours.items():
                self.assertEqual(value, other_files[name][tensor], f"{name}: {tensor}")
        if kills:
            self.assertGreater(attempts, 1)
        return kills

    def test_killed_runs_equal_uninterrupted_ones(self):
        clock = random.Random(11)
        kills = 0
        for backbone in BACKBONES:
            for router in ROUTERS if LONG else SHORT[backbone]:
                with self.subTest(backbone=backbone, router=router):
                    kills += self.compare(backbone, router, clock)
        print(f"{kills} kills", flush=True)
        self.assertGreater(kills, 0)


if __name__ == "__main__":
    unittest.main()
