#!/usr/bin/env python3
"""Runs the benches, beside what a user would pick instead where an environment for it is named, and prints Markdown rows.

usage: run.py [--build DIR] [--peers PYTHON] [--only NAME[,NAME]]      names: train step layer append completions scale

Each row carries the machine's noise in the same seconds: idle CPU before it, and the median time of a synced 4 KiB append.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))

parser = argparse.ArgumentParser()
parser.add_argument("--build", default="build/dev")
parser.add_argument("--peers", help="a Python with the packages of tests/bench/peers/README.md")
parser.add_argument("--only", default="train,step,layer,append,completions,scale")
options = parser.parse_args()
os.environ["SWITCHYARD_BUILD_DIR"] = options.build
import harness  # noqa: E402  (reads SWITCHYARD_BUILD_DIR)

BIN, BENCH = harness.BIN, harness.BUILD / "bin"


def noise():
    def jiffies():
        values = [int(v) for v in open("/proc/stat").readline().split()[1:]]
        return values[3] + values[4], sum(values)
    idle, total = jiffies()
    time.sleep(1)
    idle2, total2 = jiffies()
    times = []
    with tempfile.NamedTemporaryFile(dir=harness.BUILD) as file:
        for _ in range(50):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return f"idle {100 * (idle2 - idle) / (total2 - total):.0f} %, sync {statistics.median(times) * 1e3:.2f} ms"


def row(what, ours, unit, peer="", note=""):
    print(f"| {what} | {ours} {unit} | {peer} | {note} | {noise()} |", flush=True)


def peer(script, *arguments):
    """`key=value` pairs that a peer prints, or nothing without --peers."""
    if not options.peers:
        return {}
    result = subprocess.run([options.peers, str(HERE / "peers" / script), *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        print(f"{script} failed: {result.stderr[-500:]}", file=sys.stderr)
        return {}
    return dict(re.findall(r"(\w+)=(\S+)", result.stdout))


def corpus():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="switchyard-bench-"))
    harness.make_corpus(folder, kilobytes=400)
    return folder


def measured(command, allowed=(0,), begins=None, **kwargs):
    """Standard output and memory of a process of its own: peak resident megabytes, less what was resident when the line came that
    has `begins` in it."""
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=err, text=True, **kwargs)
        lines, before = [], 0
        for line in process.stdout:
            if begins and not before and begins in line:
                before = harness.rss_bytes(process.pid) / 2**20
            lines.append(line)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if process.returncode not in allowed:
            sys.exit(f"{command[0]} ended with {process.returncode}: {err.read()[-1000:]}")
        return "".join(lines), usage.ru_maxrss / 1024 - before


def train(spec, threads, skip=10, stop_at=None):
    """Of a trainer run: tokens per second over all steps after `skip`, of its best step, and the megabytes by which its peak is above
    what it has resident before its first step.

    A run that is stopped has no audit behind its last step, which is no part of a step and has a model of its own.
    """
    path = pathlib.Path(tempfile.mkstemp(suffix=".json")[1])
    path.write_text(json.dumps(spec))
    stop = ["--stop-at", stop_at] if stop_at else []
    text, growth = measured([BIN / "switchyard-trainer", "--spec", path, "--threads", threads, *stop], allowed=(0, 75), begins='"name":"train"',
                          env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)})
    path.unlink()
    seconds = []
    for line in text.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("t") == "m" and "train/step_seconds" in event.get("s", {}):
            seconds.append(event["s"]["train/step_seconds"])
    tokens = spec["train"]["batch"] * spec["train"]["target_len"]
    return tokens * len(seconds[skip:]) / sum(seconds[skip:]), tokens / min(seconds[skip:]), growth


def bench_train():
    folder = corpus()
    for router in ("smoe", "dense"):
        spec = {"kind": "RUN_KIND_TRAIN", "seed": 1,
                "data": {"files": {"tokens": "TOKENS_BYTES256", "domains": [{"id": "c", "globs": [f"{folder}/c/*"]}, {"id": "english", "globs": [f"{folder}/english/*"]}]}},
                "model": {"transformer_xl": {"layers": 4, "d_model": 128, "heads": 4, "d_head": 32, "d_inner": 128, "dropout": 0},
                          "moe": {"layers": [0, 1, 2, 3], "experts": 8, "router": {router: {}}}},
                "train": {"steps": 80, "batch": 8, "target_len": 128, "memory_len": 128, "optimizer": {"adam": {"lr": 0.001}}, "clip_norm": 0.25},
                "eval": {"max_tokens": 2048}}
        theirs = peer("train_pytorch.py", 1, 60, router)
        ours, _, _ = train(spec, 1)
        other = float(theirs.get("tokens_per_s", 0))
        row(f"train TXL L4 d128 E8 K2 {router}, 8 x 128 tokens, 1 thread, fp32", f"{ours:,.0f}", "tokens/s",
            f"PyTorch {other:,.0f} tokens/s" if other else "", f"{ours / other:.2f}x" if other else "")
    shutil.rmtree(folder)


def bench_step():
    """A whole training step beside the best of transformers, and the growth of the memory of each in a process of its own."""
    folder = corpus()
    for precision, name in (("PRECISION_FP32", "fp32"), ("PRECISION_BF16", "bf16")):
        spec = {"kind": "RUN_KIND_TRAIN", "seed": 1,
                "data": {"files": {"tokens": "TOKENS_BYTES256", "domains": [{"id": "c", "globs": [f"{folder}/c/*"]}]}},
                "model": {"decoder": {"layers": 4, "d_model": 352, "heads": 8, "d_inner": 512},
                          "moe": {"layers": [0, 1, 2, 3], "experts": 16, "top_k": 2, "router": {"smoe": {}, "gate_norm": "GATE_NORM_SOFTMAX_FULL_RENORM"},
                                  "losses": [{"id": "hf_mixtral", "coef": 0.01}]}},
                "train": {"steps": 1000, "batch": 8, "target_len": 256, "optimizer": {"adamw": {"lr": 0.0001}}, "clip_norm": 1.0, "precision": precision},
                "eval": {"max_tokens": 2048}}
        best, which, others = 0.0, "", []
        for how in ("eager", "grouped_mm", "compile"):
            said = peer("step_transformers.py", 2, name, how)
            if not said:
                continue
            rate = float(said["tokens_per_s"])
            others.append(f"{how} {rate:,.0f} tokens/s, {float(said['growth_mb']):,.0f} MB")
            if rate > best:
                best, which = rate, how
        _, ours, growth = train(spec, 2, skip=2, stop_at=14)
        row(f"step decoder L4 d352 E16 K2 f512, 8 x 256 tokens, AdamW, clipping, 2 threads, {name}, best step", f"{ours:,.0f}", "tokens/s",
            "transformers: " + ", ".join(others) if others else "", f"{ours / best:.2f}x of {which}; " * bool(best) + f"peak {growth:,.0f} MB above what was resident before the first step")
    shutil.rmtree(folder)


def bench_layer():
    """The MoE layer beside its bare matrix products (the floor, same process) and the best of transformers."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}  # as the trainer sets it
    for name in ("fp32", "bf16"):
        peers = {how: peer("layer_transformers.py", 2, how, name) for how in ("eager", "grouped_mm", "compile")}
        for experts in (16, 64):
            text, peak = measured([BENCH / "moe_layer_bench", 2, 5, name, experts], env=environment)
            ours = dict(re.findall(r"(\w+)=(\S+)", text.splitlines()[-1]))
            times = {how: float(values[f"E{experts}_ms"]) for how, values in peers.items() if f"E{experts}_ms" in values}
            how = min(times, key=times.get, default="")
            row(f"MoE layer E{ours['E']} K{ours['K']} d{ours['d']} f{ours['f']}, {ours['N']} tokens, forward and backward, 2 threads, {name}",
                ours["layer_ms"], "ms", f"transformers {how} {times[how]:.1f} ms" if how else "",
                f"{ours['ratio']} of its bare products ({ours['floor_ms']} ms); peak {peak:,.0f} MB"
                + (f"; {times[how] / float(ours['layer_ms']):.2f}x" if how else ""))


def sleeping_sweep(cluster, name, cells):
    """A sweep of `cells` runs that only a fake worker or a no-op trainer executes."""
    text = harness.tiny_sweep("/nonexistent", name=name, steps=10, eval_every=0, seeds="[1]")
    head, _ = text.split("space:")
    values = ", ".join(f"{1e-4 + i * 1e-7:.9g}" for i in range(cells))
    return cluster.write(f"{name}.yaml", head + f"space:\n  grid:\n    train.optimizer.adam.lr: [{values}]\nreplicates: {{seeds: [1]}}\n")


def bench_append():
    theirs = peer("points_mlflow.py", 4, 5)
    other = float(theirs.get("points_per_s", 0))
    for points in (200, 1000, 5000):
        cluster = harness.Cluster()
        try:
            cluster.start_coordinator()
            cluster.cli("submit", sleeping_sweep(cluster, "append", 8))
            result = subprocess.run([str(BENCH / "append_bench"), f"unix:{cluster.socket}", "8", str(points), "5"], capture_output=True, text=True)
            if result.returncode != 0:
                sys.exit(result.stderr)
            ours = dict(re.findall(r"(\w+)=(\S+)", result.stdout))
            size = sum(f.stat().st_size for f in (cluster.folder / "coordinator").glob("*.db*"))
            total = float(ours["points_per_s"]) * 5
            rate = float(ours["points_per_s"])
            row(f"append, 8 clients, {points} points a call, committed", f"{rate:,.0f}", "points/s",
                f"MLflow {other:,.0f} points/s" if other else "",
                (f"{rate / other:.0f}x; " if other else "") + f"p50 {ours['p50_ms']} ms, p99 {ours['p99_ms']} ms, {size / total:.1f} bytes/point on disk")
        finally:
            cluster.close()


def bench_completions():
    cells = 2000
    other = float(peer("noop_hyperqueue.py", cells).get("tasks_per_s", 0))
    cluster = harness.Cluster()
    try:
        cluster.start_coordinator()
        file = sleeping_sweep(cluster, "noop", cells)
        # More slots than cores: a run spends most of its life waiting for two syncs, not computing.
        cluster.start_worker("worker", 16, BENCH / "switchyard_nooptrainer_tool")
        start = time.perf_counter()
        cluster.cli("submit", file)
        cluster.cli("wait", "noop", timeout=300)
        rate = cells / (time.perf_counter() - start)
        row(f"{cells} runs of a no-op trainer, a process each, 16 slots, submit to last end recorded", f"{rate:,.0f}", "runs/s",
            f"HyperQueue {other:,.0f} tasks/s" if other else "", f"{rate / other:.2f}x" if other else "")
    finally:
        cluster.close()


def bench_scale():
    cluster = harness.Cluster()
    try:
        coordinator = cluster.start_coordinator()
        worker = cluster.start_worker("worker", 2)
        time.sleep(3)
        row("coordinator idle, resident", f"{harness.rss_bytes(coordinator['pid']) / 1e6:.1f}", "MB", note="bar 60 MB")
        row("worker idle, resident", f"{harness.rss_bytes(worker['pid']) / 1e6:.1f}", "MB", note="bar 40 MB")
        cluster.stop("worker")
        file = sleeping_sweep(cluster, "big", 10000)
        start = time.perf_counter()
        cluster.cli("submit", file)
        row("submit a sweep of 10,000 cells", f"{time.perf_counter() - start:.2f}", "s", note="bar 2 s")
        for what, arguments in (("list sweeps", ("ls",)), ("list the first 100 of 10,000 runs", ("ls", "big")), ("list all 10,000 runs as JSON", ("-o", "json", "ls", "big"))):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                cluster.cli(*arguments)
                times.append(time.perf_counter() - start)
            row(what + ", whole CLI call", f"{1e3 * statistics.median(times):.0f}", "ms", note="bar 100 ms for a page")
    finally:
        cluster.close()


print("| work | Switchyard | beside it | ratio, remarks | machine |\n|---|---|---|---|---|")
for name in options.only.split(","):
    globals()[f"bench_{name}"]()
