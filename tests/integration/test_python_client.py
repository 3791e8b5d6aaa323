"""The Python client against a real coordinator; skipped where no Python with grpcio and grpcio-tools is."""
import json
import os
import subprocess
import sys
import unittest

from harness import BIN, SOURCE, Cluster

sys.path.insert(0, str(SOURCE / "tests/tools"))
from with_packages import python_with  # noqa: E402

TOY = BIN / "switchyard_toytrainer_tool"
SWEEP = """
name: py
base:
  kind: train
  data: {files: {domains: {a: ["/nonexistent/*"]}, tokens: bytes}}
  model: {transformer_xl: {layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}}
  train: {steps: 6, batch: 1, target_len: 8, optimizer: {adam: {lr: 1e-3}}}
space: {grid: {train.optimizer.adam.lr: [1e-3, 1e-4]}}
replicates: {seeds: [1, 2]}
objective: {metric: train/loss, goal: minimize}
"""
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import switchyard
rows = lambda f: f.to_dict("records") if hasattr(f, "to_dict") else f
with switchyard.connect() as client:
    error = None
    try:
        client.run("nothing/1")
    except switchyard.Error as e:
        error = e.code.name
    many = ["train/loss"] + [f"custom/{i}" for i in range(128)] + ["train/tokens"]
    answer = client.compare("py", by="train.optimizer.adam.lr", against=rows(client.results("py"))[0]["train.optimizer.adam.lr"])
    print(json.dumps({"verdicts": [p.sentence for p in answer.pairs], "many": rows(client.results("py", many)), "results": rows(switchyard.results("py", ["train/loss"])), "all": rows(switchyard.results("py")),
                      "curve": rows(switchyard.curve("py/2", "train/loss")), "series": rows(client.series("py/1")),
                      "sweeps": [s.name for s in client.sweeps(all=True)], "error": error}))
"""


class PythonClient(unittest.TestCase):
    def test_results_and_curves(self):
        python = python_with("grpc, grpc_tools")
        if python is None:
            self.skipTest("no Python with grpcio and grpcio-tools (set SWITCHYARD_ORACLE_PYTHON to one)")
        cluster = Cluster()
        self.addCleanup(cluster.close)
        package = cluster.folder / "package"
        made = subprocess.run([python, "setup.py", "-q", "build", "--build-base", cluster.folder / "build", "--build-lib", package],
                              cwd=SOURCE / "client/python", capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        cluster.start_coordinator()
        os.environ["TOY_STEPS"] = "6"
        self.addCleanup(os.environ.pop, "TOY_STEPS")
        cluster.start_worker("worker", 2, TOY)
        cluster.cli("submit", cluster.write("py.yaml", SWEEP))
        cluster.cli("wait", "py")
        ran = subprocess.run([python, "-c", SCRIPT, str(package)], capture_output=True, text=True,
                             env={**os.environ, "SWITCHYARD_SERVER": str(cluster.socket)})
        self.assertEqual(ran.returncode, 0, ran.stderr)
        got = json.loads(ran.stdout)
        self.assertEqual([r["run"] for r in got["results"]], ["py/1", "py/2", "py/3", "py/4"])
        self.assertEqual([(r["train.optimizer.adam.lr"], r["seed"]) for r in got["results"]],
                         [("1e-3", 1), ("1e-4", 1), ("1e-3", 2), ("1e-4", 2)])
        points = cluster.json("metrics", "py/2", "train/loss")
        self.assertEqual([(p["step"], p["value"]) for p in got["curve"]], [(int(p["step"]), p["train/loss"]) for p in points])
        self.assertEqual(got["results"][1]["train/loss"], min(p["train/loss"] for p in points))
        self.assertIn("train/tokens", got["all"][0])
        self.assertEqual(len(got["verdicts"]), 1)
        self.assertRegex(got["verdicts"][0], r"interval.*2 pairs")
        # More series than one call may ask for.
        self.assertEqual([r["train/loss"] for r in got["many"]], [r["train/loss"] for r in got["results"]])
        self.assertEqual(len([name for name in got["many"][0] if "/" in name]), 130)
        self.assertIsNotNone(got["many"][0]["train/tokens"])
        self.assertNotEqual(got["many"][0]["custom/0"], got["many"][0]["train/loss"])
        self.assertEqual({s["series"]: s["count"] for s in got["series"]}, {"train/loss": 6, "train/tokens": 6})
        self.assertEqual((got["sweeps"], got["error"]), (["py"], "NOT_FOUND"))


if __name__ == "__main__":
    unittest.main()
