"""Resume is continuation: trainers are killed at random steps, and what comes out equals the uninterrupted run, bit for bit."""
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
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


def document(name, corpus, backbone, router, steps):
    return FILE.format(name=name, corpus=corpus, backbone=BACKBONES[backbone], moe=moe_of(router), steps=steps,
                       memory="memory_len: 32, " if backbone == "transformer_xl" else "")


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
        text = document(name, self.corpus, backbone, router, steps=400 if LONG else 150)
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
        last = max((c for c in shown["checkpoints"] if c["state"] == "published"), key=lambda c: c["step"])
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


class SmallDisk(unittest.TestCase):
    def test_a_full_disk_while_saving_spoils_a_checkpoint(self):
        """RE3. Checkpoints lie on 5 MB that fill up: a clear error, training goes on; killed then, the run resumes from the whole one before."""
        cluster = Cluster()
        self.addCleanup(cluster.close)
        disk = cluster.folder / "small"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "none", disk], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs the right to mount a file system")
        self.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)
        corpus = harness.make_corpus(cluster.folder / "corpus")
        cluster.start_coordinator()
        cluster.start_worker("worker", 1, None, "--checkpoint-dir", disk)
        cluster.cli("submit", cluster.write("small.yaml", document("small", corpus, "decoder", "smoe", steps=1500)))
        show = lambda: cluster.json("show", "small/1")
        wait_until(lambda: any(c["state"] == "published" for c in show()["checkpoints"]), "checkpoint", 120)
        filler = disk / "filler"
        with self.assertRaises(OSError):
            with open(filler, "wb", buffering=0) as out:
                while True:
                    out.write(b"x" * 4096)
        attempts = cluster.folder / "worker" / "attempts"
        read = lambda: "".join(path.read_text(errors="replace") for path in attempts.glob("*/events*.jsonl"))
        wait_until(lambda: "No space left on device" in read(), "an error that names the cause", 60)
        self.assertIn("checkpoint of step", read())
        step = lambda: int(cluster.json("metrics", "small/1", "train/nats_per_token")[-1]["step"])
        before = step()
        wait_until(lambda: step() > before, "steps with the disk full", 60)
        newest = max(int(c["step"]) for c in show()["checkpoints"] if c["state"] == "published")
        os.kill(json.loads(next(attempts.glob("*/pid.json")).read_text())["pid"], signal.SIGKILL)
        resumed = wait_until(lambda: re.search(r'"t":"resume".*?"step":(\d+)', read()), "attempt that resumes", 90)
        self.assertEqual(int(resumed.group(1)), newest)
        filler.unlink()
        cluster.cli("wait", "small", timeout=300)
        shown = show()
        self.assertEqual([a["state"] for a in shown["attempts"]], ["failed", "succeeded"])
        self.assertEqual(max(int(c["step"]) for c in shown["checkpoints"]), 1500)
        steps = [int(p["step"]) for p in cluster.json("metrics", "small/1", "train/nats_per_token")]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 1500)


if __name__ == "__main__":
    unittest.main()
