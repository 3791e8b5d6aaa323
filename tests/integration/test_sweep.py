"""A sweep from the file to the results, with real programs and the real trainer."""
import csv
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import time
import unittest

import harness
from harness import Cluster, wait_until


class Sweep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.corpus = harness.make_corpus(cls.cluster.folder / "corpus")
        cls.cluster.start_coordinator()
        cls.cluster.start_worker(slots=2)
        cls.file = cls.cluster.write("tiny.yaml", harness.tiny_sweep(cls.corpus))
        cls.submitted = cls.cluster.cli("-o", "quiet", "submit", cls.file).stdout.strip()
        cls.cluster.cli("wait", "last", timeout=300)

    def test_every_run_ends_with_a_finite_result(self):
        rows = self.cluster.json("results", "tiny")
        self.assertEqual(len(rows), 6)
        self.assertEqual(sorted((r["model.moe.router.kind"], r["seed"]) for r in rows),
                         [(router, seed) for router in ("dense", "hash", "smoe") for seed in (1, 2)])
        for row in rows:
            self.assertEqual(row["state"], "succeeded")
            self.assertTrue(0 < row["valid/bits_per_byte"] < 8, row)
            self.assertGreaterEqual(row["model/params_total"], row["model/params_active"])

    def test_each_step_is_recorded_once(self):
        for number in range(1, 7):
            points = self.cluster.json("metrics", f"tiny/{number}", "train/nats_per_token")
            self.assertEqual([int(p["step"]) for p in points], list(range(1, 41)))
            self.assertTrue(all(math.isfinite(p["train/nats_per_token"]) for p in points))

    def test_evaluations_are_at_their_steps(self):
        points = self.cluster.json("metrics", "tiny/2", "valid/bits_per_byte")
        self.assertEqual([int(p["step"]) for p in points], [20, 40])

    def test_routing_vectors_have_a_value_per_layer(self):
        points = self.cluster.json("metrics", "tiny/2", "routing/usage_entropy_norm")
        self.assertTrue(points)
        for point in points:
            self.assertEqual(len(point["routing/usage_entropy_norm"]), 2)
            self.assertTrue(all(0 <= v <= 1 + 1e-6 for v in point["routing/usage_entropy_norm"]))

    def test_the_same_file_again_is_the_same_sweep(self):
        again = self.cluster.cli("-o", "quiet", "submit", self.file).stdout.strip()
        self.assertEqual(again, self.submitted)
        sweeps = self.cluster.json("ls", "--all")
        self.assertEqual(len([s for s in sweeps if s["name"].startswith("tiny")]), 1)

    def test_csv_has_a_row_per_run(self):
        rows = list(csv.reader(io.StringIO(self.cluster.cli("-o", "csv", "results", "tiny").stdout)))
        self.assertEqual(len(rows), 7)
        self.assertEqual({len(r) for r in rows}, {len(rows[0])})

    def test_show_logs_and_explain_answer(self):
        self.assertIn("succeeded", self.cluster.cli("show", "tiny/1").stdout.lower())
        self.cluster.cli("logs", "tiny/1")
        self.assertTrue(self.cluster.cli("explain", "tiny/1").stdout.strip())

    def test_a_faulty_file_makes_no_run(self):
        bad = self.cluster.write("bad.yaml", self.file.read_text().replace("experts: 4", "experts: 4, top_kk: 2").replace("name: tiny", "name: bad"))
        result = self.cluster.cli("submit", bad, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"bad\.yaml:\d+:\d+")
        self.assertIn("top_k", result.stderr)
        self.assertNotIn("bad", self.cluster.cli("ls", "--all").stdout)

    def test_missing_data_fails_the_run_with_the_path(self):
        text = self.file.read_text().replace(str(self.corpus), "/nonexistent/corpus").replace("name: tiny", "name: nodata")
        text = text.replace("[dense, smoe, hash]", "[smoe]").replace("seeds: [1, 2]", "seeds: [1]")
        self.cluster.cli("submit", self.cluster.write("nodata.yaml", text))
        result = self.cluster.cli("wait", "nodata", check=False, timeout=120)
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nonexistent/corpus", self.cluster.cli("show", "nodata/1").stdout + self.cluster.cli("explain", "nodata/1").stdout)

    def test_cancel_stops_the_trainer_and_its_session(self):
        text = self.file.read_text().replace("steps: 40", "steps: 1000000").replace("name: tiny", "name: long")
        text = text.replace("[dense, smoe, hash]", "[smoe]").replace("seeds: [1, 2]", "seeds: [1]")
        self.cluster.cli("submit", self.cluster.write("long.yaml", text))
        wait_until(lambda: "active" in self.cluster.cli("ls", "long").stdout.lower() and
                   self.cluster.cli("metrics", "long/1", "train/nats_per_token", check=False).returncode == 0, "first step of long/1")
        trainers = subprocess.run(["pgrep", "-f", f"switchyard-trainer.*{self.cluster.folder}"], capture_output=True, text=True).stdout.split()
        self.assertTrue(trainers)
        self.cluster.cli("cancel", "long", "--reason", "test")
        self.cluster.cli("wait", "long", "--fail-on", "never", timeout=90)
        self.assertIn("cancelled", self.cluster.cli("show", "long/1").stdout.lower())
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in trainers), "end of the trainer", 20)


class Standalone(unittest.TestCase):
    """The trainer alone, by hand."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        corpus = harness.make_corpus(cls.cluster.folder / "corpus")
        cls.spec = cls.cluster.write("run.json", json.dumps({
            "kind": "RUN_KIND_TRAIN", "seed": "1",
            "data": {"files": {"tokens": "TOKENS_BYTES256", "domains": [{"id": "c", "globs": [f"{corpus}/c/*"]}]}},
            "model": {"transformer_xl": {"layers": 2, "d_model": 32, "heads": 2, "d_head": 16, "d_inner": 32},
                      "moe": {"layers": [0, 1], "experts": 4, "router": {"smoe": {}}}},
            "train": {"steps": "12", "batch": 4, "target_len": 32, "memory_len": 32, "optimizer": {"adam": {"lr": 0.003}}}}))

    def losses(self):
        result = subprocess.run([str(harness.BIN / "switchyard-trainer"), "--spec", str(self.spec), "--threads", "1"],
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        self.assertEqual([line["seq"] for line in lines], list(range(1, len(lines) + 1)))
        return [line["s"]["train/nats_per_token"] for line in lines if line["t"] == "m" and "train/nats_per_token" in line.get("s", {})]

    def test_two_runs_of_one_spec_have_bit_equal_losses(self):
        first, second = self.losses(), self.losses()
        self.assertEqual(len(first), 12)
        self.assertEqual(first, second)

    def test_a_faulty_spec_is_named(self):
        bad = self.cluster.write("bad.json", self.spec.read_text().replace('"layers": [0, 1]', '"layers": [0, 7]'))
        result = subprocess.run([str(harness.BIN / "switchyard-trainer"), "--spec", str(bad)], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 64)
        self.assertIn("moe.layers", result.stderr)


class Restart(unittest.TestCase):
    """Programs stop and come back while runs go on."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        corpus = harness.make_corpus(self.cluster.folder / "corpus")
        self.cluster.start_coordinator()
        self.cluster.start_worker(slots=2)
        text = harness.tiny_sweep(corpus, name="again", steps=400, eval_every=200, seeds="[1]").replace("[dense, smoe, hash]", "[dense, smoe]")
        self.cluster.cli("submit", self.cluster.write("again.yaml", text))
        wait_until(lambda: self.cluster.cli("metrics", "again/1", "train/nats_per_token", check=False).returncode == 0, "first point")

    def check_curves(self):
        for number in (1, 2):
            points = self.cluster.json("metrics", f"again/{number}", "train/nats_per_token")
            self.assertEqual([int(p["step"]) for p in points], list(range(1, 401)))

    def test_a_killed_coordinator_loses_and_doubles_nothing(self):
        self.cluster.stop("coordinator", signal.SIGKILL)
        self.cluster.start_coordinator()
        self.cluster.cli("wait", "again", timeout=300)
        self.check_curves()

    def test_a_stopped_worker_leaves_its_trainers_and_takes_them_back(self):
        self.assertEqual(self.cluster.stop("worker"), 0)
        self.cluster.start_worker(slots=2)
        self.cluster.cli("wait", "again", timeout=300)
        self.check_curves()
        self.assertNotRegex(self.cluster.cli("show", "again/1").stdout, r"(?m)^\s*2\s+\d+.*lost")

    def test_sigterm_ends_the_coordinator_cleanly(self):
        start = time.monotonic()
        self.assertEqual(self.cluster.stop("coordinator"), 0)
        self.assertLess(time.monotonic() - start, 12)
        self.assertFalse(list((self.cluster.folder / "coordinator").glob("*-wal")))
        self.assertFalse((self.cluster.folder / "coordinator" / "ready.json").exists())


if __name__ == "__main__":
    unittest.main()
