"""A real Prometheus scrapes a live run: every panel without a tag has a series, and the rules load."""
import json
import re
import shutil
import subprocess
import time
import unittest
import urllib.parse
import urllib.request

import harness
from harness import SOURCE, Cluster, wait_until


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def panels():
    """(dashboard, title, query) of every panel, from the JSON that Grafana loads."""
    for path in sorted((SOURCE / "deploy/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield path.stem, panel["title"], target["expr"]


@unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "prometheus is not installed; deploy/setup.sh brings it")
class LiveRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        corpus = harness.make_corpus(cls.cluster.folder / "corpus")
        cls.coordinator = cls.cluster.start_coordinator()
        cls.cluster.start_worker(slots=2)
        # A finished run first, so that outcomes, checkpoints and queue waits have happened.
        quick = harness.tiny_sweep(corpus, name="quick", steps=10, eval_every=5, seeds="[1]").replace("[dense, smoe, hash]", "[smoe]")
        cls.cluster.cli("submit", cls.cluster.write("quick.yaml", quick))
        cls.start_prometheus()
        live = harness.tiny_sweep(corpus, name="live", steps=1000000, eval_every=50, seeds="[1, 2]").replace("[dense, smoe, hash]", "[smoe]")
        cls.cluster.cli("wait", "quick", timeout=120)
        cls.cluster.cli("submit", cls.cluster.write("live.yaml", live))

    @classmethod
    def start_prometheus(cls):
        config = (SOURCE / "deploy/prometheus/prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9464", cls.coordinator["metrics"]).replace("refresh_interval: 60s", "refresh_interval: 2s")
        config = re.sub(r"scrape_interval: \w+, evaluation_interval: \w+", "scrape_interval: 1s, evaluation_interval: 1s", config)
        rules = (SOURCE / "deploy/prometheus/switchyard.rules.yml").read_text().replace("interval: 30s", "interval: 1s")
        cls.cluster.write("prometheus/prometheus.yml", config)
        cls.cluster.write("prometheus/switchyard.rules.yml", rules)
        cls.prometheus = f"127.0.0.1:{free_port()}"
        cls.cluster.start("prometheus", "prometheus", f"--config.file={cls.cluster.folder}/prometheus/prometheus.yml",
                          f"--storage.tsdb.path={cls.cluster.folder}/prometheus/data", f"--web.listen-address={cls.prometheus}")
        def is_ready():
            try:
                return urllib.request.urlopen(f"http://{cls.prometheus}/-/ready", timeout=2).status == 200
            except OSError:
                return False
        wait_until(is_ready, "Prometheus")

    def query(self, expression):
        url = f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]["result"]

    def test_every_panel_without_a_tag_has_a_series(self):
        infos = wait_until(lambda: self.query('switchyard_run_info{router="smoe"}'), "live run in Prometheus", 90)
        labels = infos[0]["metric"]
        wait_until(lambda: self.query(f'switchyard_run_val_loss{{run="{labels["run"]}"}}') and
                   self.query(f'rate(switchyard_run_train_tokens_total{{run="{labels["run"]}"}}[2m])'), "evaluated live run", 120)
        values = {"run": labels["run"], "sweep": labels["sweep"], "project": labels["project"], "pool": ".*", "layer": "0",
                  "job": "switchyard-coordinator", "target_step": "1000000"}
        missing = None
        end = time.monotonic() + 60
        while time.monotonic() < end:
            missing = []
            for board, title, expression in panels():
                if "[" in title:
                    continue
                concrete = re.sub(r"\$(\w+)", lambda m: values[m.group(1)], expression)
                if not self.query(concrete):
                    missing.append(f"{board}: {title}: {concrete}")
            if not missing:
                return
            time.sleep(3)
        self.fail("panels without a series:\n" + "\n".join(missing))

    def test_the_scrape_is_healthy_and_passes_promtool(self):
        wait_until(lambda: len([r for r in self.query("up") if r["value"][1] == "1"]) == 2, "two healthy scrape targets", 60)
        for address in (self.coordinator["metrics"], self.cluster.worker["metrics"]):
            text = self.cluster.http(address)
            result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertNotIn("error", (result.stdout + result.stderr).lower(), address)
            self.assertIn(result.returncode, (0, 3), result.stdout + result.stderr)  # 3: style remarks only

    def test_rules_load_without_a_rejection(self):
        for arguments in (["check", "rules"], ["test", "rules"]):
            name = "switchyard.rules.yml" if arguments[0] == "check" else "switchyard.rules.test.yml"
            result = subprocess.run(["promtool", *arguments, name], cwd=SOURCE / "deploy/prometheus", capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        with urllib.request.urlopen(f"http://{self.prometheus}/api/v1/rules", timeout=10) as reply:
            groups = json.load(reply)["data"]["groups"]
        def bad():
            with urllib.request.urlopen(f"http://{self.prometheus}/api/v1/rules", timeout=10) as again:
                return [r["name"] for g in json.load(again)["data"]["groups"] for r in g["rules"] if r["health"] == "err"]
        self.assertEqual(bad(), [])
        self.assertEqual(sum(len(g["rules"]) for g in groups), 39)

    def test_live_gauges_go_when_the_run_ends(self):
        quick = self.cluster.json("show", "quick/1")
        run_id = quick.get("run", quick).get("id")
        self.assertTrue(run_id)
        wait_until(lambda: run_id not in self.cluster.http(self.coordinator["metrics"]), "removal of the ended run's gauges", 30)

    def test_metrics_answer_get_only_and_list_targets(self):
        targets = json.loads(self.cluster.http(self.coordinator["metrics"], "/sd"))
        self.assertIn(self.cluster.worker["metrics"], json.dumps(targets))
        self.assertEqual(self.cluster.http(self.coordinator["metrics"], "/healthz").strip(), "ok")


if __name__ == "__main__":
    unittest.main()
