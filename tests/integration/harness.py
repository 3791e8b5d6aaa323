"""Starts real coordinators and workers for the integration tests. Standard library only."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

BUILD = pathlib.Path(os.environ.get("SWITCHYARD_BUILD_DIR", "build/dev")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = BUILD / "bin"


def wait_until(condition, what, seconds=60.0, poll=0.05):
    """Returns the first true value of `condition()`; raises naming `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"no {what} after {seconds} s")
        time.sleep(poll)


class Cluster:
    """A coordinator and workers in a temporary folder; all are gone after `close`."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="switchyard-it-"))
        self.socket = self.folder / "s.sock"
        self.processes = {}
        self.logs = {}

    def start(self, name, *command, env=None):
        log = open(self.folder / f"{name}.log", "ab")
        self.logs[name] = self.folder / f"{name}.log"
        self.processes[name] = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                env={**os.environ, **(env or {})})
        log.close()
        return self.processes[name]

    def _ready(self, name, path):
        def check():
            process = self.processes[name]
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}: {self.logs[name].read_text()[-2000:]}")
            try:
                data = json.loads(path.read_text())
            except (OSError, ValueError):
                return None
            return data if data.get("pid") == process.pid else None
        return wait_until(check, f"ready {name}")

    def start_coordinator(self, *flags):
        self.start("coordinator", BIN / "switchyard-coordinator", "serve", "--data-dir", self.folder / "coordinator",
                   "--socket", self.socket, "--metrics", "127.0.0.1:0", *flags)
        self.coordinator = self._ready("coordinator", self.folder / "coordinator" / "ready.json")
        return self.coordinator

    def start_worker(self, name="worker", slots=2, trainer=None, *flags):
        extra = ["--trainer", trainer] if trainer else []
        self.start(name, BIN / "switchyard-worker", "run", "--server", f"unix:{self.socket}", "--state-dir", self.folder / name,
                   "--slots", slots, "--cores-per-slot", 1, "--metrics", "127.0.0.1:0", *extra, *flags)
        ready = self._ready(name, self.folder / name / "ready.json")
        setattr(self, name, ready)
        return ready

    def cli(self, *arguments, check=True, timeout=120, text=True):
        """Runs the CLI; returns the finished process. `check` raises on an exit code other than 0."""
        result = subprocess.run([str(BIN / "switchyard"), "--server", f"unix:{self.socket}", *[str(a) for a in arguments]],
                                capture_output=True, text=text, timeout=timeout)
        if check and result.returncode != 0:
            raise AssertionError(f"switchyard {' '.join(map(str, arguments))} ended with {result.returncode}: {result.stdout}{result.stderr}")
        return result

    def json(self, *arguments, **kwargs):
        return json.loads(self.cli("-o", "json", *arguments, **kwargs).stdout)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def http(self, address, path="/metrics"):
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.read().decode()

    def stop(self, name, sig=signal.SIGTERM, seconds=20):
        process = self.processes.pop(name)
        process.send_signal(sig)
        return process.wait(seconds)

    def close(self):
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            if process.poll() is None:
                process.kill()
                process.wait(10)
        # Trainers are sessions of their own and outlive their agent by design.
        for pid_file in self.folder.glob("*/attempts/*/pid.json"):
            try:
                os.killpg(json.loads(pid_file.read_text())["pid"], signal.SIGKILL)
            except (OSError, ValueError, KeyError):
                continue
        shutil.rmtree(self.folder, ignore_errors=True)


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def make_corpus(folder, kilobytes=60):
    """Two domains of plain, learnable text without any file of the machine."""
    words = {"c": "int main void return static const struct if else for while".split(),
             "english": "the cat sat on a mat and saw one dog run over green hills".split()}
    for domain, vocabulary in words.items():
        base = folder / domain
        base.mkdir(parents=True, exist_ok=True)
        state = 12345
        for part in range(10):
            out = []
            size = 0
            while size < kilobytes * 100:
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                word = vocabulary[(state >> 33) % len(vocabulary)]
                out.append(word)
                size += len(word) + 1
            (base / f"{part}.txt").write_text(" ".join(out) + "\n")
    return folder


TINY = """
name: {name}
project: test
base:
  kind: train
  data: {{files: {{domains: {{c: ["{corpus}/c/*"], english: ["{corpus}/english/*"]}}, tokens: bytes}}}}
  model:
    transformer_xl: {{layers: 2, d_model: 32, heads: 2, d_head: 16, d_inner: 32, dropout: 0}}
    moe: {{layers: [0, 1], experts: 4, router: {{kind: smoe}}}}
  train: {{steps: {steps}, batch: 4, target_len: 32, memory_len: 32, optimizer: {{adam: {{lr: 3e-3}}}}, clip_norm: 0.25}}
  eval: {{every_steps: {eval_every}, splits: [valid]}}
space:
  grid:
    model.moe.router.kind: [dense, smoe, hash]
replicates: {{seeds: {seeds}}}
telemetry: {{every_steps: 5}}
objective: {{metric: valid/bits_per_byte, goal: minimize}}
"""


def tiny_sweep(corpus, name="tiny", steps=40, eval_every=20, seeds="[1, 2]"):
    return TINY.format(corpus=corpus, name=name, steps=steps, eval_every=eval_every, seeds=seeds)
