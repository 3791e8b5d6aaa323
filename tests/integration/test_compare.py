"""Comparisons and seeds needed over a real sweep of toy trainers, from submission to the verdict."""
import os
import signal
import unittest

from harness import BIN, Cluster

TOY = BIN / "switchyard_toytrainer_tool"
AXIS = "train.optimizer.adam.lr"
# Toy trainers report their learning rate plus what the seed decides: arms lie 0.001 and 0.1 apart.
SWEEP = """
name: {name}
base:
  kind: train
  data: {{files: {{domains: {{a: ["/nonexistent/*"]}}, tokens: bytes}}}}
  model: {{transformer_xl: {{layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}}}
  train: {{steps: 4, batch: 1, target_len: 8, optimizer: {{adam: {{lr: 1e-3}}}}}}
  eval: {{every_steps: 1}}
space: {{grid: {{train.optimizer.adam.lr: [0.1, 0.101, 0.2]}}}}
replicates: {{seeds: [1, 2, 3, 4, 5, 6, 7, 8]}}
objective: {{metric: train/loss, goal: minimize, value: last}}
{report}
"""
REPORT = "report: {compare: [{by: train.optimizer.adam.lr, against: 0.1, margins: [0.01]}]}"


class Compare(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        for name, value in {"TOY_STEPS": 4, "TOY_FIELD": "lr", "TOY_SEED": 0.02}.items():
            os.environ[name] = str(value)
            self.addCleanup(os.environ.pop, name, None)
        self.cluster.start_coordinator()
        self.cluster.start_worker("worker", 4, TOY)

    def run_sweep(self, name, report=REPORT):
        self.cluster.cli("submit", self.cluster.write(f"{name}.yaml", SWEEP.format(name=name, report=report)))
        self.cluster.cli("wait", name, timeout=300)

    def test_a_registered_comparison_from_submission_to_verdict(self):
        self.run_sweep("arms")
        self.cluster.stop("coordinator", signal.SIGKILL)
        self.cluster.start_coordinator()
        answer, = self.cluster.json("compare", "arms")["comparisons"]
        pairs = {pair["arm"]: pair for pair in answer["pairs"]}
        self.assertEqual(set(pairs), {"0.101", "0.2"})
        self.assertRegex(pairs["0.101"]["sentence"], r"^equivalent within ±0\.01 loss.*, 90 % interval \[.*\], 8 pairs$")
        self.assertRegex(pairs["0.2"]["sentence"], r"^worse by 0\.\d+ loss \(by more than 0\.01\), 95 % interval")
        self.assertEqual((answer["family_size"], answer["exploratory"], answer["reasons"]), (2, False, []))
        self.assertEqual(len(answer["registration"]), 64)
        text = self.cluster.cli("compare", "arms").stdout
        self.assertIn("0.101 against 0.1: equivalent within ±0.01 loss", text)
        self.assertIn(f"registered at submission, sha256 {answer['registration'][:12]}", text)
        self.assertNotIn("no difference", text)

        # Another margin than the registered one, more looks, a test that cannot reach alpha.
        edited, = self.cluster.json("compare", "arms", "--by", AXIS, "--margins", "0.02")["comparisons"]
        self.assertTrue(edited["exploratory"])
        self.assertIn("look 2 of 1 planned", self.cluster.cli("compare", "arms", "--look", "2").stdout)
        refused = self.cluster.cli("compare", "arms", "--test", "wilcoxon", "--alpha", "0.001", "--all-pairs", check=False)
        self.assertEqual(refused.returncode, 5)
        arms = self.cluster.cli("compare", "arms", "--arm", f"low={AXIS} < 0.15", "--arm", f"high={AXIS} > 0.15", "--against", "low",
                                "--pool", AXIS, check=False)
        self.assertIn("high", arms.stdout + arms.stderr)

        # An edited plan under a new name reuses the runs: what was seen before cannot be confirmed.
        self.run_sweep("again", REPORT.replace("0.01", "0.05"))
        again, = self.cluster.json("compare", "again")["comparisons"]
        self.assertTrue(again["exploratory"])
        self.assertIn("reused", " ".join(again["reasons"]))

    def test_seeds_needed_from_a_pilot(self):
        self.run_sweep("pilot", "")
        power = self.cluster.json("power", "pilot", "--by", AXIS, "--against", "0.1", "--margins", "0.002")
        goals = {(pair["arm"], goal["kind"]): goal["pairs"] for pair in power["pairs"] for goal in pair["goals"]}
        self.assertEqual(len(goals), 4)
        self.assertTrue(all(n >= 2 for n in goals.values()))
        self.assertEqual(power["seeds"], max(goals.values()))
        self.assertGreater(power["slot_hours"], 0)
        self.assertIn(f"plan: {power['seeds']} new seeds in every cell",
                      self.cluster.cli("power", "pilot", "--by", AXIS, "--against", "0.1", "--margins", "0.002").stdout)

    def test_filters_groups_and_differences_of_specs(self):
        self.run_sweep("table", "")
        rows = self.cluster.json("results", "table", "--where", f"{AXIS} < 0.15 and state = \"succeeded\"", "--by", AXIS)
        self.assertEqual(sorted((row[AXIS], row["runs"], row["n"]) for row in rows), [(0.1, 8, 8), (0.101, 8, 8)])
        self.assertGreater(rows[0]["train/loss.sd"], 0)
        self.assertRegex(rows[0]["train/loss.best_run"], r"^table/\d+$")
        ordered = self.cluster.json("results", "table", "--sort", "seed", "--descending", "--limit", "3")
        self.assertEqual([row["seed"] for row in ordered], [8, 8, 8])
        self.assertEqual(self.cluster.json("show", "table/1", "table/2"),
                         [{"field": AXIS, "left": "0.1", "right": "0.101"}])
        self.assertEqual(self.cluster.json("show", "table/1", "table/4"), [{"field": "seed", "left": "1", "right": "2"}])
        self.assertIn("are equal", self.cluster.cli("show", "table/1", "table/1").stdout)


if __name__ == "__main__":
    unittest.main()
