"""Exports and reports of a real sweep, read back by the programs that they are for. Each test is skipped, with the reason, where
that program is not installed: pandas, TensorBoard and MLflow as Python packages (SWITCHYARD_ORACLE_PYTHON), Chromium."""
import html.parser
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from harness import BIN, SOURCE, Cluster, make_corpus, wait_until

sys.path.insert(0, str(SOURCE / "tests/tools"))
from with_packages import python_with  # noqa: E402

TRAINER = BIN / "switchyard-trainer"
TOY = BIN / "switchyard_toytrainer_tool"
HOSTILE = "<script>alert(1)</script>\"'`touch x`"
SWEEP = """
name: out
notes: {notes}
base:
  kind: train
  data: {{files: {{domains: {{c: ["{corpus}/c/*"], english: ["{corpus}/english/*"]}}, tokens: bytes}}}}
  model:
    transformer_xl: {{layers: 2, d_model: 16, heads: 2, d_head: 8, d_inner: 16, dropout: 0}}
    moe: {{layers: [0, 1], experts: 4, router: {{kind: smoe}}}}
  train: {{steps: 20, batch: 2, target_len: 16, memory_len: 16, optimizer: {{adam: {{lr: 3e-3}}}}, clip_norm: 0.25}}
  eval: {{every_steps: 10, splits: [valid]}}
space:
  choice:
    arm:
      smoe: {{}}
      {arm}: {{set: {{model.moe.router: hash}}}}
  grid: {{train.optimizer.adam.lr: [3e-3, 1e-3]}}
replicates: {{seeds: [1, 2]}}
telemetry: {{every_steps: 5}}
objective: {{metric: {metric}, goal: minimize}}
report:
  compare: [{{by: arm, against: smoe, pool: [train.optimizer.adam.lr]}}]
  table: [{{rows: [arm], columns: [train.optimizer.adam.lr], mean: true}}]
  plot: [{{kind: bar, x: arm}}, {{kind: scatter, x: train.optimizer.adam.lr}}, {{x: train.flops, band: ci}}, {{kind: heatmap, x: arm}}]
"""

PANDAS = """
import json, sys, pandas
folder = sys.argv[1]
runs = pandas.read_csv(folder + "/runs.csv")
curves = pandas.read_csv(folder + "/curves.csv")
scalars = curves[curves.i0.isna()]
print(json.dumps({"runs": runs.run.tolist(), "states": runs.state.tolist(),
                  "values": [[r, s, int(t), float(v)] for r, s, t, v in scalars[["run", "series", "step", "value"]].values],
                  "vector": int(curves.i1.notna().sum())}))
"""
JSON_PANDAS = """
import json, sys, pandas
curves = pandas.read_json(sys.argv[1] + "/curves.jsonl", lines=True)
runs = pandas.read_json(sys.argv[1] + "/runs.jsonl", lines=True)
print(json.dumps({"points": len(curves), "arms": [c["arm"] for c in runs["columns"]]}))
"""
TENSORBOARD = """
import json, pathlib, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
out = {}
for folder in sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.is_dir()):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    out[folder.name] = {"scalars": {tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]},
                        "hparams": {k: v.string_value or v.number_value for k, v in start.hparams.items()}, "group": start.group_name}
print(json.dumps(out))
"""
MLFLOW = """
import json, os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri="file:" + sys.argv[1] + "/mlruns")
experiment, = client.search_experiments()
out = {}
for run in client.search_runs([experiment.experiment_id], max_results=1000):
    history = {name: [[m.step, m.value, m.timestamp] for m in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics}
    out[run.info.run_name] = {"id": run.info.run_id, "status": run.info.status, "params": run.data.params, "tags": run.data.tags,
                              "history": history}
print(json.dumps({"name": experiment.name, "runs": out}))
"""


class Page(html.parser.HTMLParser):
    """What a browser made of a page: elements by name, and the text of headings."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.handlers, self.headings, self.text = {}, [], [], ""
        self._heading = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements[tag] = self.elements.get(tag, 0) + 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag in ("h1", "h2", "h3"):
            self._heading = True
            self.headings.append("")

    def handle_endtag(self, tag):
        if tag in ("h1", "h2", "h3"):
            self._heading = False

    def handle_data(self, data):
        self.text += data
        if self._heading:
            self.headings[-1] += data


class Exports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        corpus = make_corpus(cls.cluster.folder / "corpus", 20)
        cls.is_real = TRAINER.exists()
        os.environ["TOY_STEPS"] = "20"
        cls.addClassCleanup(os.environ.pop, "TOY_STEPS", None)
        cls.cluster.start_coordinator()
        cls.cluster.start_worker("worker", 2, None if cls.is_real else TOY)
        text = SWEEP.format(corpus=corpus, notes=json.dumps(HOSTILE), arm=json.dumps(HOSTILE),
                            metric="valid/bits_per_byte" if cls.is_real else "train/loss")
        cls.cluster.cli("submit", cls.cluster.write("out.yaml", text))
        cls.cluster.cli("wait", "out", timeout=600)
        cls.curves = {}
        for number in range(1, 9):
            run = f"out/{number}"
            for series in cls.cluster.json("metrics", run):
                name = series["name"]
                cls.curves[run, name] = [(int(p["step"]), p[name]) for p in cls.cluster.json("metrics", run, name)]

    def export(self, form, *flags):
        folder = self.cluster.folder / f"export-{form}-{len(flags)}"
        self.cluster.cli("export", "out", "--format", form, "--out", folder, *flags)
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def read(self, packages, script, folder):
        python = python_with(packages)
        if python is None:
            self.skipTest(f"no Python with {packages} (set SWITCHYARD_ORACLE_PYTHON to one)")
        ran = subprocess.run([python, "-c", script, str(folder)], capture_output=True, text=True, timeout=300)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout.splitlines()[-1])

    def scalars(self, run):
        return {name: points for (of, name), points in self.curves.items() if of == run and not isinstance(points[0][1], list)}

    def vectors(self):
        return sum(len(value) for points in self.curves.values() for _, value in points if isinstance(value, list))

    def test_pandas_reads_the_tables(self):
        got = self.read("pandas", PANDAS, self.export("csv"))
        self.assertEqual(got["runs"], [f"out/{n}" for n in range(1, 9)])
        self.assertEqual(set(got["states"]), {"succeeded"})
        wanted = [[run, name, step, value] for (run, name), points in self.curves.items() if not isinstance(points[0][1], list)
                  for step, value in points]
        self.assertEqual(sorted(got["values"]), sorted(wanted))
        if self.is_real:
            loads = sum(len(v) for (_, name), points in self.curves.items() if name == "routing/expert_load" for _, v in points)
            self.assertEqual(got["vector"], loads)

    def test_pandas_reads_json_lines(self):
        got = self.read("pandas", JSON_PANDAS, self.export("jsonl"))
        self.assertEqual(got["points"], sum(len(points) for points in self.curves.values()))
        self.assertEqual(set(got["arms"]), {"smoe", HOSTILE})

    def test_tensorboard_reads_the_event_files(self):
        import struct
        got = self.read("tensorboard, pandas", TENSORBOARD, self.export("tensorboard"))
        self.assertEqual(len(got), 8)
        for number, folder in enumerate(sorted(got), 1):
            self.assertTrue(folder.startswith(f"{number:04d}-"), folder)
            for name, points in self.scalars(f"out/{number}").items():
                single = [[step, struct.unpack("f", struct.pack("f", value))[0]] for step, value in points]
                self.assertEqual([e[:2] for e in got[folder]["scalars"][name]], single, name)
                self.assertLess(abs(got[folder]["scalars"][name][-1][2] - time.time()), 3600)
            self.assertIn(got[folder]["hparams"]["arm"], ("smoe", HOSTILE))
            self.assertIn(got[folder]["hparams"]["train.optimizer.adam.lr"], (3e-3, 1e-3))
        self.assertEqual(len({run["group"] for run in got.values()}), 4)

    def test_mlflow_reads_its_folders(self):
        got = self.read("mlflow", MLFLOW, self.export("mlflow"))
        self.assertEqual(got["name"], "out")
        self.assertEqual(set(got["runs"]), {f"out/{n}" for n in range(1, 9)})
        ids = {row["name"]: row["id"] for row in self.cluster.json("results", "out")}
        for name, run in got["runs"].items():
            self.assertEqual(run["id"], ids[name].replace("-", ""))
            self.assertEqual(run["status"], "FINISHED")
            self.assertIn(run["params"]["arm"], ("smoe", HOSTILE))
            self.assertEqual(run["params"]["train.steps"], "20")
            for series, points in self.scalars(name).items():
                self.assertEqual([h[:2] for h in run["history"][series]], [list(p) for p in points], series)

    def test_an_export_that_is_killed_leaves_nothing(self):
        folder = self.cluster.folder / "killed"
        command = [str(BIN / "switchyard"), "--server", f"unix:{self.cluster.socket}", "export", "out", "--format", "mlflow", "--out", str(folder)]
        for sig in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            os.kill(self.cluster.processes["coordinator"].pid, signal.SIGSTOP)
            self.addCleanup(os.kill, self.cluster.processes["coordinator"].pid, signal.SIGCONT)
            time.sleep(0.2)
            process.send_signal(sig)
            os.kill(self.cluster.processes["coordinator"].pid, signal.SIGCONT)
            process.wait(60)
            if folder.exists():  # It was done before the signal came.
                self.assertTrue((folder / "sweep.json").exists())
                shutil.rmtree(folder)
            self.assertEqual([p.name for p in self.cluster.folder.iterdir() if ".partial-" in p.name], [])

    def test_what_was_exported_is_imported_again(self):
        folder = self.export("csv")
        environment = {**os.environ, "XDG_DATA_HOME": str(self.cluster.folder / "data")}
        metric = "train/nats_per_token" if self.is_real else "train/loss"

        def cli(*arguments):
            command = [str(BIN / "switchyard"), "--server", f"unix:{self.cluster.socket}", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        cli("import", folder / "curves.csv", "--name", "again")
        drawn = json.loads(cli("plot", "out", "--metric", metric, "--by", "run", "--with", "again", "-o", "json"))
        by_line = {}
        for point in drawn:
            by_line.setdefault(point["line"], []).append((point["x"], point["mean"]))
        self.assertEqual(len(by_line), 16)
        for number in range(1, 9):
            self.assertEqual(by_line[f"out/{number} (1 run)"], by_line[f"again: out/{number} (1 run)"])
            self.assertEqual(by_line[f"out/{number} (1 run)"], self.curves[f"out/{number}", metric])

    def browse(self, page):
        """The document as Chromium has it after loading, and what it wrote to its console."""
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        if chromium is None:
            self.skipTest("Chromium is not installed")
        ran = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
                              "--log-level=0", f"--user-data-dir={self.cluster.folder / 'chromium'}", "--virtual-time-budget=2000", "--dump-dom",
                              page.as_uri()], capture_output=True, text=True, timeout=300)
        self.assertEqual(ran.returncode, 0, ran.stderr[-2000:])
        return Page(ran.stdout), [line for line in ran.stderr.splitlines() if "CONSOLE" in line]

    def test_chromium_shows_the_report_and_runs_nothing(self):
        if shutil.which("gnuplot") is None:
            self.skipTest("gnuplot is not installed")
        # The check itself: a page with a script that is refused says so.
        control = self.cluster.write("control.html", "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
                                     "<h1 onclick='x'>a</h1><script>document.title = 'ran'</script>")
        page, console = self.browse(control)
        self.assertEqual((page.elements["script"], page.handlers, len(console) > 0), (1, ["onclick"], True))

        path = self.cluster.folder / "report.html"
        said = self.cluster.cli("report", "out", "--html", path)
        self.assertNotIn("without figures", said.stderr)
        page, console = self.browse(path)
        self.assertEqual(console, [])
        self.assertEqual((page.elements.get("script"), page.handlers), (None, []))
        self.assertEqual(page.headings[0], "out")
        self.assertIn(HOSTILE, page.text)
        for heading in ("Results", "Comparisons", "Figures", "Provenance", "Attempts", "Causality"):
            self.assertIn(heading, page.headings)
        self.assertGreaterEqual(page.elements["svg"], 6 if self.is_real else 4)
        self.assertNotIn("gnuplot failed", page.text)
        for run in range(1, 9):
            self.assertIn(f"out/{run}", page.text)
        self.assertEqual(page.text.count("nothing to draw"), 0)
        # Names are in the drawings as they are.
        self.assertGreaterEqual(page.text.count(f"{HOSTILE}, 3e-3 (2 runs)"), 1)
        self.assertFalse((pathlib.Path.cwd() / "x").exists())


if __name__ == "__main__":
    unittest.main()
