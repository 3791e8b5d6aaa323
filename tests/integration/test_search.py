"""Sweeps whose cells a strategy chooses, with real programs and toy trainers."""
import os
import random
import signal
import subprocess
import sys
import time
import unittest

from harness import BIN, SOURCE, Cluster, wait_until

sys.path.insert(0, str(SOURCE / "tests/tools"))
from with_packages import python_with  # noqa: E402

TOY = BIN / "switchyard_toytrainer_tool"
STEPS = 9
SWEEP = """
name: {name}
base:
  kind: train
  data: {{files: {{domains: {{a: ["/nonexistent/*"]}}, tokens: bytes}}}}
  model: {{transformer_xl: {{layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}}}
  train: {{steps: {steps}, batch: 1, target_len: 8, optimizer: {{adam: {{lr: 1e-3}}}}}}
  eval: {{every_steps: 1}}
space: {space}
{rest}
objective: {{metric: train/loss, goal: minimize, value: last}}
"""
DRAWN = "{uniform: {train.optimizer.adam.lr: [1e-5, 0.9]}}"


class Search(unittest.TestCase):
    def start(self, slots=1, **toy):
        """A cluster whose toy trainers report their learning rate plus 5 / step."""
        cluster = Cluster()
        self.addCleanup(cluster.close)
        for name, value in {"TOY_STEPS": STEPS, "TOY_FIELD": "lr", **toy}.items():
            os.environ[name] = str(value)
            self.addCleanup(os.environ.pop, name, None)
        cluster.start_coordinator()
        cluster.start_worker("worker", slots, TOY)
        return cluster

    def submit(self, cluster, name, rest, space=DRAWN):
        cluster.cli("submit", cluster.write(f"{name}.yaml", SWEEP.format(name=name, steps=STEPS, space=space, rest=rest)))

    def rows(self, cluster, name):
        """The results in order of number; they come with the best first."""
        return sorted(cluster.json("results", name), key=lambda row: int(row["name"].rpartition("/")[2]))

    def story(self, cluster, name):
        """Per run in order of number: its value of the axis and how it ended."""
        return [(row["train.optimizer.adam.lr"], row["state"]) for row in self.rows(cluster, name)]

    def kill_and_restart(self, cluster):
        cluster.stop("coordinator", signal.SIGKILL)
        cluster.start_coordinator()

    def asha(self, kills):
        cluster = self.start(TOY_STEP_MS=400)
        self.submit(cluster, "asha", "strategy: {asha: {cells: 9, min: 1, eta: 3, seed: 5}}")
        for wanted in kills:
            wait_until(lambda: sum(r["state"] in ("succeeded", "stopped_early") for r in cluster.json("results", "asha")) >= wanted,
                       f"{wanted} ended runs", 120)
            self.kill_and_restart(cluster)
        cluster.cli("wait", "asha", timeout=300)
        return self.story(cluster, "asha")

    def test_asha_decides_the_same_when_the_coordinator_is_killed(self):
        story = self.asha(kills=())
        self.assertEqual(len({lr for lr, _ in story}), 9)
        ends = [state for _, state in story]
        self.assertGreaterEqual(ends.count("stopped_early"), 3)
        self.assertEqual(set(ends), {"stopped_early", "succeeded"})
        # The best cell goes on at every rung.
        self.assertEqual(min(story, key=lambda cell: float(cell[0]))[1], "succeeded")
        self.assertEqual(self.asha(kills=(2, 5)), story)

    def test_tpe_decides_the_same_when_the_coordinator_is_killed(self):
        stories = []
        for kills in ((), (1, 4)):
            cluster = self.start(TOY_STEP_MS=30)
            self.submit(cluster, "tpe", "strategy: {tpe: {cells: 7, startup: 3, seed: 2}}")
            for wanted in kills:
                wait_until(lambda: sum(r["state"] == "succeeded" for r in cluster.json("results", "tpe")) >= wanted,
                           f"{wanted} ended runs", 120)
                self.kill_and_restart(cluster)
            cluster.cli("wait", "tpe", timeout=300)
            stories.append(self.story(cluster, "tpe"))
        self.assertEqual(stories[0], stories[1])
        self.assertEqual([state for _, state in stories[0]], ["succeeded"] * 7)

    def test_pbt_goes_on_from_checkpoints(self):
        cluster = self.start(slots=4, TOY_STEP_MS=300, TOY_CHECKPOINT=1)
        self.submit(cluster, "pbt", "strategy: {pbt: {population: 4, every: 3, seed: 1}}")
        wait_until(lambda: len(cluster.json("results", "pbt")) >= 5, "a fork", 120)
        self.kill_and_restart(cluster)
        cluster.cli("wait", "pbt", timeout=300)
        ends = [state for _, state in self.story(cluster, "pbt")]
        # Two generations replace one member each; one that takes its last step before its stop arrives has succeeded.
        self.assertEqual((len(ends), ends.count("stopped_early") + ends.count("succeeded")), (6, 6), ends)
        self.assertIn(ends.count("stopped_early"), (1, 2))
        fork = cluster.json("show", "pbt/5")["spec"]["init"]
        self.assertEqual(fork["restore"], "all")
        self.assertGreaterEqual(int(fork["step"]), 3)

    def test_stages_follow_each_other_over_restarts(self):
        cluster = self.start(slots=2, TOY_STEPS=4, TOY_CHECKPOINT=2, TOY_STEP_MS=50)
        stages = """
name: staged
base:
  kind: train
  data: {files: {domains: {a: ["/nonexistent/*"]}, tokens: bytes}}
  model: {transformer_xl: {layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}
  train: {steps: 4, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-3}}}
stages:
  search:
    space: {uniform: {train.optimizer.adam.lr: [1e-5, 0.9]}}
    strategy: {sobol: {cells: 4}}
    replicates: {seeds: [1]}
    objective: {metric: train/loss, goal: minimize, value: last}
  confirm:
    needs: search
    select: {top: 1}
    from: spec
    replicates: {seeds: [5, 6]}
    objective: {metric: train/loss, goal: minimize, value: last}
  tune:
    needs: confirm
    from: last
    base: {kind: finetune, train: {steps: 4, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-5}}}}
"""
        cluster.cli("submit", cluster.write("staged.yaml", stages))
        for wanted in (2, 5):
            wait_until(lambda: len(cluster.json("results", "staged")) >= wanted, f"{wanted} runs", 120)
            self.kill_and_restart(cluster)
        cluster.cli("wait", "staged", timeout=300)
        rows = self.rows(cluster, "staged")
        self.assertEqual([row["stage"] for row in rows], ["search"] * 4 + ["confirm"] * 2 + ["tune"] * 2)
        self.assertEqual({row["state"] for row in rows}, {"succeeded"})
        rates = [float(row["train.optimizer.adam.lr"]) for row in rows]
        self.assertEqual(set(rates[4:6]), {min(rates[:4])})

    def test_a_sweep_is_extended_and_a_run_forked(self):
        cluster = self.start(slots=2, TOY_STEPS=4, TOY_CHECKPOINT=2)
        self.submit(cluster, "more", "replicates: {seeds: [1]}", "{grid: {train.optimizer.adam.lr: [0.1, 0.2]}}")
        extended = cluster.json("extend", "more", "--replicates", "+1")[0]
        self.assertEqual(extended["seeds_added"], 1)
        cluster.cli("wait", extended["name"])  # a child where the sweep had ended
        self.assertEqual([(float(row["train.optimizer.adam.lr"]), row["seed"]) for row in self.rows(cluster, extended["name"])],
                         [(0.1, 1), (0.2, 1), (0.1, 2), (0.2, 2)])
        cluster.cli("fork", "more/1", "--at", "4", "--set", "train.steps=12")
        cluster.cli("wait", "more-fork-1-4")
        self.assertEqual([row["state"] for row in cluster.json("results", "more-fork-1-4")], ["succeeded"])

    def test_random_draws_the_same_points_again(self):
        first = self.start(slots=2)
        self.submit(first, "draws", "strategy: {random: {cells: 20, seed: 7}}")
        first.cli("wait", "draws")
        other = self.start(slots=2)
        self.submit(other, "draws", "strategy: {random: {cells: 20, seed: 7}}")
        other.cli("wait", "draws")
        self.assertEqual(self.story(first, "draws"), self.story(other, "draws"))
        plan = other.json("plan", other.folder / "draws.yaml")
        planned = [float(value) for cell in plan["plan"] for value in cell["columns"].values()]
        self.assertEqual(planned, [float(lr) for lr, _ in self.story(first, "draws")])

    def test_a_nested_grid_runs_each_cell_once_over_restarts(self):
        cluster = self.start(slots=2, TOY_STEPS=1)
        space = ("{grid: {train.optimizer.adam.lr: [0.1, 0.2, 0.3], train.batch: [1, 2], "
                 "train.warmup_steps: [0, 1, 2], train.target_len: [8, 16]}}")
        self.submit(cluster, "nested", "replicates: {seeds: [1]}", space)
        self.kill_and_restart(cluster)
        cluster.cli("wait", "nested", timeout=300)
        rows = cluster.json("results", "nested")
        axes = ("train.optimizer.adam.lr", "train.batch", "train.warmup_steps", "train.target_len")
        self.assertEqual((len(rows), len({tuple(row[axis] for axis in axes) for row in rows})), (36, 36))
        self.assertEqual({row["state"] for row in rows}, {"succeeded"})

    def test_a_grid_runs_each_cell_once_over_restarts(self):
        cluster = self.start(slots=4, TOY_STEPS=1)
        values = "[" + ", ".join(f"{i * 1e-3:g}" for i in range(1, 24)) + "]"
        space = f"{{grid: {{train.optimizer.adam.lr: {values}, train.optimizer.adam.beta1: {values}}}}}"
        self.submit(cluster, "grid", "replicates: {seeds: [1]}", space)
        for seed in range(3):
            time.sleep(random.Random(seed).uniform(0.5, 1.5))
            self.kill_and_restart(cluster)
        cluster.cli("wait", "grid", timeout=600)
        rows = cluster.json("results", "grid")
        cells = [(row["train.optimizer.adam.lr"], row["train.optimizer.adam.beta1"]) for row in rows]
        self.assertEqual((len(cells), len(set(cells))), (529, 529))
        self.assertEqual({row["state"] for row in rows}, {"succeeded"})

    def test_optuna_drives_an_external_sweep(self):
        python = python_with("grpc, grpc_tools, optuna, setuptools")
        if python is None:
            self.skipTest("no Python with optuna, grpcio and grpcio-tools (set SWITCHYARD_ORACLE_PYTHON to one)")
        cluster = self.start(slots=2)
        package = cluster.folder / "package"
        subprocess.run([python, "setup.py", "-q", "build", "--build-base", cluster.folder / "build", "--build-lib", package],
                       cwd=SOURCE / "client/python", check=True, capture_output=True)
        self.submit(cluster, "outside", "strategy: external", "{log_uniform: {train.optimizer.adam.lr: [1e-4, 1e-2]}}")
        ran = subprocess.run([python, SOURCE / "client/python/examples/optuna_sweep.py", "outside", "--cells", "6", "--poll-seconds", "0.2"],
                             capture_output=True, text=True, timeout=300,
                             env={**os.environ, "PYTHONPATH": str(package), "SWITCHYARD_SERVER": str(cluster.socket)})
        self.assertEqual(ran.returncode, 0, ran.stderr)
        cluster.cli("wait", "outside")
        story = self.story(cluster, "outside")
        self.assertEqual([state for _, state in story], ["succeeded"] * 6)
        best = min(float(lr) for lr, _ in story)
        self.assertIn(f"{best + 5 / STEPS:.6g}", ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
