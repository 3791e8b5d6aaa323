"""A cluster of real programs with toy trainers, and the oracle that every fault test ends with."""
import json
import os
import pathlib
import re
import signal
import sqlite3
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
from harness import BIN, SOURCE, Cluster, wait_until  # noqa: E402

TOY = BIN / "switchyard_toytrainer_tool"
TERMINAL = {"succeeded", "failed", "cancelled", "stopped_early", "quarantined"}

# A document is needed, though the toy trainer reads none of it. The learning rate tells runs apart.
SWEEP = """
name: {name}
project: fault
base:
  kind: train
  data: {{files: {{domains: {{a: ["/nonexistent/*"]}}, tokens: bytes}}}}
  model:
    transformer_xl: {{layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}
  train: {{steps: {steps}, batch: 1, target_len: 8, optimizer: {{adam: {{lr: {lr}}}}}}}
replicates: {{seeds: [{seeds}]}}
objective: {{metric: valid/bits_per_byte, goal: minimize}}
{policy}
"""


def send(pid, number=signal.SIGKILL):
    """Signals a process that may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def processes_now():
    """(pid, the fields of /proc/PID/stat from the state on, the words of the command line) of every process."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            yield (int(entry.name), (entry / "stat").read_text().rsplit(")", 1)[1].split(),
                   (entry / "cmdline").read_bytes().decode(errors="replace").split("\0"))
        except OSError:
            continue


def failpoints():
    """The names in the sources of the coordinator, in order."""
    names = set()
    for path in (SOURCE / "server").rglob("*.cc"):
        names.update(re.findall(r'SWITCHYARD_FAILPOINT\("([^"]+)"\)', path.read_text()))
    return sorted(names)


SERIES = "train/loss"


def toy_value(epoch, step):
    """What the toy trainer reports, in the same arithmetic."""
    return 5.0 / step + (epoch % 1000) * 1e-6


class Ledger:
    """What the trainers wrote down themselves, outside the system under test."""

    def __init__(self, folder):
        self.spawns = []  # (epoch, rank)
        self.steps = {}  # (epoch, rank) -> [(seq, step, value)]
        self.lives = {}  # (epoch, rank) -> [first, last] in CLOCK_BOOTTIME nanoseconds
        self.ended = set()  # (epoch, rank) of those that were not killed
        for path in sorted(pathlib.Path(folder).iterdir()):
            who = None
            for line in path.read_text().splitlines():
                words = line.split()
                if words[0] == "spawn":
                    who = (int(words[3]), int(words[4]))
                    self.spawns.append(who)
                    self.lives[who] = [int(words[-1]), int(words[-1])]
                elif words[0] == "step":
                    self.steps.setdefault(who, []).append((int(words[5]), int(words[6]), float(words[7])))
                elif words[0] == "end":
                    self.ended.add(who)
                if who:
                    self.lives[who][1] = int(words[-1])

    def is_in_flight(self, epoch, step, value):
        """Whether a killed trainer may have emitted this step and died before it could write so here."""
        who = (epoch, 0)
        last = max((s for _, s, _ in self.steps.get(who, [])), default=step - 1)
        return who not in self.ended and step == last + 1 and value == toy_value(epoch, step)


class Fleet(Cluster):
    """Toy trainers take `steps` steps of `step_ms` each; `ledger` is written by them alone."""

    def __init__(self, steps=40, step_ms=20, slots=4, toy=None, flags=()):
        super().__init__()
        self.flags = flags  # of the coordinator
        self.gate = self.socket  # where workers look for it
        self.steps = steps
        self.slots = slots
        self.ledger = self.folder / "ledger"
        self.plans = self.folder / "plans"
        self.ledger.mkdir()
        self.plans.mkdir()
        self.toy = {"TOY_STEPS": str(steps), "TOY_STEP_MS": str(step_ms), "TOY_LEDGER": str(self.ledger),
                    "TOY_PLANS": str(self.plans), **(toy or {})}
        self.count = 0
        self.mutex = threading.Lock()

    def up(self, failpoint=None, wait=True):
        """Starts the coordinator; with a failpoint it may be gone again when this returns."""
        env = {"SWITCHYARD_FAILPOINT": failpoint} if failpoint else {}
        ready = self.folder / "coordinator" / "ready.json"
        process = self.start("coordinator", BIN / "switchyard-coordinator", "serve", "--data-dir", self.folder / "coordinator",
                             "--socket", self.socket, "--metrics", "127.0.0.1:0", *self.flags, env=env)
        if not wait:
            return process

        def check():
            if process.poll() is not None:
                assert failpoint, f"the coordinator ended with {process.returncode}: {self.logs['coordinator'].read_text()[-3000:]}"
                return "gone"
            try:
                return json.loads(ready.read_text()).get("pid") == process.pid and "ready"
            except (OSError, ValueError):
                return None
        wait_until(check, "coordinator that is ready or gone", 30, 0.005)
        return process

    def worker(self, name="worker", *flags, failpoint=None, env=None):
        extra = ["--trainer", TOY]
        env = {**self.toy, **(env or {}), **({"SWITCHYARD_FAILPOINT": failpoint} if failpoint else {})}
        self.start(name, BIN / "switchyard-worker", "run", "--server", f"unix:{self.gate}", "--state-dir", self.folder / name,
                   "--slots", self.slots, "--cores-per-slot", 1, "--metrics", "127.0.0.1:0", *extra, *flags, env=env)
        return self.processes[name]

    def submit(self, seeds=2, check=True, policy="", steps=None):
        """Submits one cell with some seeds; returns the sweep's name if that was acknowledged."""
        with self.mutex:
            self.count += 1
            number = self.count
        name = f"f{number}"
        text = SWEEP.format(name=name, steps=steps or self.steps, lr=f"{1e-5 * number:.10g}",
                            seeds=", ".join(str(s) for s in range(1, seeds + 1)), policy=policy)
        result = self.cli("--timeout", "5", "-o", "quiet", "submit", self.write(f"{name}.yaml", text), check=check)
        return name if result.returncode == 0 else None

    def sweeps(self):
        return {s["name"]: s for s in self.json("ls", "--all")}

    def runs(self, sweep):
        return self.json("results", sweep)

    def ended(self, sweep):
        runs = self.runs(sweep)
        return bool(runs) and all(r["state"] in TERMINAL for r in runs)

    def wait_all(self, sweeps, seconds=120):
        for sweep in sweeps:
            wait_until(lambda: self.ended(sweep), f"end of {sweep}", seconds, 0.2)

    def check_run(self, run, steps=None, ledger=None):
        """The canonical curve has each step once; each attempt's curve is what its ledger says, bit for bit. `ledger`: of ended trainers, read before."""
        steps = steps or self.steps
        shown = self.json("show", run)
        epochs = {int(a["ordinal"]): int(a["epoch"]) for a in shown["attempts"]}
        points = self.json("metrics", run, SERIES)
        assert [int(p["step"]) for p in points] == list(range(1, steps + 1)), f"{run}: {[int(p['step']) for p in points]}"
        values = {step: {toy_value(e, step) for e in epochs.values()} for step in range(1, steps + 1)}
        for p in points:
            assert p[SERIES] in values[int(p["step"])], f"{run} step {p['step']}: {p[SERIES]}"
        ledger = ledger or self.read_ledger()
        for ordinal, epoch in epochs.items():
            emitted = [(s, v) for _, s, v in sorted(ledger.steps.get((epoch, 0), []))]
            shown_points = self.cli("-o", "json", "metrics", run, SERIES, "--attempts", ordinal, check=False)
            stored = [(int(p["step"]), p[SERIES]) for p in json.loads(shown_points.stdout)] if shown_points.returncode == 0 else []
            if len(stored) == len(emitted) + 1 and ledger.is_in_flight(epoch, *stored[-1]):
                emitted.append(stored[-1])
            assert stored == emitted, f"{run} attempt {ordinal}: {len(stored)} points stored, {len(emitted)} emitted"
        return shown

    def check_database(self):
        """With the coordinator stopped: invariants S3, S5, S9 and S25 straight from the rows."""
        db = sqlite3.connect(f"file:{self.folder}/coordinator/switchyard.db?mode=ro", uri=True)
        try:
            check_rows(db)
        finally:
            db.close()

    def read_ledger(self):
        return Ledger(self.ledger)

    def run_of(self, pid):
        """Run id of a live trainer, from its own ledger alone; None: it has not written yet."""
        files = sorted(self.ledger.glob(f"*-{pid}"), key=lambda path: path.stat().st_mtime)
        # A beat may come before the line that names the run.
        found = re.search(r"(?m)^spawn (\S+) ", files[-1].read_text()) if files else None
        return found.group(1) if found else None

    def check_spawns(self):
        """S1: no attempt was launched twice, by the trainers' own account. Returns the launches."""
        spawns = self.read_ledger().spawns
        assert len(spawns) == len(set(spawns)), f"launched twice: {sorted(s for s in spawns if spawns.count(s) > 1)}"
        return len(spawns)

    def trainers(self):
        """Pids of live toy trainers of this fleet. The agent's own command line names the program too, as an argument."""
        return [pid for pid, stat, command in processes_now()
                if command[0] == str(TOY) and str(self.folder) in command[-2] and stat[0] != "Z"]

    def fork_server(self, name="worker"):
        """Pid of the agent's fork server, which is its only child, alive or dead; None: it has none that lives."""
        children = self.children(self.processes[name].pid)
        assert len(children) <= 1, f"dead fork servers are left: {children}"
        return next((pid for pid, state in children.items() if state != "Z"), None)

    def children(self, parent):
        """State letter of each child of a process, by pid."""
        return {pid: stat[0] for pid, stat, _ in processes_now() if int(stat[1]) == parent}

    def log(self, name):
        return self.logs[name].read_text(errors="replace")

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        return process.wait(10)

    def finish(self, sweeps, seconds=180):
        """Everything is up: all runs end, whole curves, and the rows agree."""
        self.wait_all(sweeps, seconds)
        ledger = self.read_ledger()
        for sweep in sweeps:
            for run in self.runs(sweep):
                if run["state"] == "succeeded":
                    self.check_run(run["name"], ledger=ledger)
        launches = self.check_spawns()
        assert self.stop("coordinator") == 0
        self.check_database()
        return launches


def check_rows(db):
    one = lambda sql: db.execute(sql).fetchall()
    assert one("PRAGMA integrity_check") == [("ok",)]
    columns = {row[1] for row in one("PRAGMA table_info(chunks)")}
    assert {"series", "first_seq", "last_seq", "n"} <= columns, columns
    # S9: chunks of a series never overlap.
    overlap = one("SELECT a.series, a.first_seq, b.first_seq FROM chunks a JOIN chunks b "
                  "ON a.series = b.series AND a.id <> b.id AND a.first_seq <= b.first_seq AND b.first_seq <= a.last_seq")
    assert not overlap, f"chunks overlap: {overlap[:5]}"
    # S3: at most one attempt of a run that is not terminal.
    states = {row[1] for row in one("PRAGMA table_info(attempts)")}
    assert "state" in states, states
    doubled = one("SELECT run, count(*) FROM attempts WHERE state < 5 GROUP BY run HAVING count(*) > 1")
    assert not doubled, f"two live attempts: {doubled[:5]}"


def long_form():
    """The numbers of the long form: tests/fault/long.sh sets this."""
    return os.environ.get("SWITCHYARD_FAULT_LONG") == "1"
