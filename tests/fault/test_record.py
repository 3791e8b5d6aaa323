"""What is recorded is what was reported: values of every class, the best and the last, and one checkpoint for each score."""
import json
import math
import struct
import unittest

from fleet import SWEEP, Fleet

ODD = ["nan", "inf", "-inf", "-0.0", "5e-324", "1.7976931348623157e308", "-7.539e-05", "0.1"]


def bits(value):
    return struct.pack(">d", value).hex()


def strict(text):
    """Parses JSON as the standard has it, without the words NaN and Infinity that Python takes."""
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")
    return json.loads(text, parse_constant=refuse)


def number(shown):
    """A value of an answer: a number, or the text of one that is not finite."""
    return shown if isinstance(shown, (int, float)) else {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}[shown]


class Values(unittest.TestCase):
    def fleet(self, **options):
        cluster = Fleet(**options)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        return cluster

    def test_values_change_their_class_on_the_way(self):
        """SQ3. From the trainer's line to the answers in JSON, lines of JSON and CSV: each value with its bits; the run's own numbers count them."""
        steps = 100
        values = [ODD[i % len(ODD)] for i in range(steps)]
        cluster = self.fleet(steps=steps, step_ms=0, slots=1, toy={"TOY_SERIES": f"valid/odd={','.join(values)}"})
        sweep = cluster.submit(seeds=1)
        cluster.wait_all([sweep], 60)
        wanted = [(step, float(value)) for step, value in enumerate(values, 1)]
        answers = {
            "json": strict(cluster.cli("-o", "json", "metrics", f"{sweep}/1", "valid/odd").stdout),
            "jsonl": [strict(line) for line in cluster.cli("-o", "jsonl", "metrics", f"{sweep}/1", "valid/odd").stdout.splitlines()],
        }
        for kind, points in answers.items():
            with self.subTest(output=kind):
                got = [(int(p["step"]), number(p["valid/odd"])) for p in points]
                self.assertEqual([step for step, _ in got], [step for step, _ in wanted])
                for (step, value), (_, want) in zip(got, wanted):
                    self.assertEqual(math.isnan(value), math.isnan(want), step)
                    if not math.isnan(want):
                        self.assertEqual(bits(value), bits(want), f"step {step}")
        lines = cluster.cli("-o", "csv", "metrics", f"{sweep}/1", "valid/odd").stdout.splitlines()
        column = lines[0].split(",").index("valid/odd")
        for line, (_, want) in zip(lines[1:], wanted, strict=True):
            value = float(line.split(",")[column])
            self.assertTrue(bits(value) == bits(want) or (math.isnan(value) and math.isnan(want)), line)
        strict(cluster.cli("-o", "json", "results", sweep, "--metric", "valid/odd", "--last").stdout)
        strict(cluster.cli("-o", "json", "show", f"{sweep}/1").stdout)
        cluster.finish([sweep])

    def test_best_means_last(self):
        """ME3. Best and last with their steps, the smaller or the larger as the series has it; the best checkpoint is that of the best step."""
        cluster = self.fleet(steps=3, step_ms=0, slots=1,
                             toy={"TOY_SERIES": "valid/ppl=30,20,25;valid/accuracy=0.6,0.9,0.7;valid/odd=1,2,3", "TOY_CHECKPOINT": "1"})
        name = "scored"
        text = SWEEP.format(name=name, steps=3, lr="1e-5", seeds="1", policy="checkpoint: {keep_last: 1, keep_best: 1}")
        text = text.replace("metric: valid/bits_per_byte", "metric: valid/ppl")
        cluster.cli("submit", cluster.write(f"{name}.yaml", text))
        cluster.wait_all([name], 60)

        def answer(series, which):
            return float(cluster.json("results", name, "--metric", series, which)[0][series])
        self.assertEqual(answer("valid/ppl", "--best"), 20)
        self.assertEqual(answer("valid/ppl", "--last"), 25)
        self.assertEqual(answer("valid/accuracy", "--best"), 0.9)
        self.assertEqual(answer("valid/accuracy", "--last"), 0.7)
        refused = cluster.cli("results", name, "--metric", "valid/odd", "--best", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("valid/odd", refused.stderr)
        kept = {int(c["step"]) for c in cluster.json("show", f"{name}/1")["checkpoints"] if c["state"] == "published"}
        self.assertEqual(kept, {2, 3}, "the best and the last")
        cluster.stop("coordinator")

    def test_steps_that_go_back_are_lost_or_out_of_order(self):
        """A trainer that reports step 1 once more behind step 9: without leave the run ends with the reason, the second time for good; with lenient_steps it succeeds. Every point is stored either way, and shown by step."""
        steps = 20
        cluster = self.fleet(steps=steps, step_ms=0, slots=1, toy={"TOY_BACK_AT": "9", "TOY_SERIES": "valid/ppl=9,8,7,6,5,4,3,2,1"})
        strict = cluster.submit(seeds=1)
        lenient = cluster.submit(seeds=1, policy="telemetry: {lenient_steps: true}")
        cluster.wait_all([strict, lenient], 90)
        failed = cluster.json("show", f"{strict}/1")
        self.assertEqual(failed["run"]["state"], "quarantined", failed)
        for attempt in failed["attempts"]:
            self.assertEqual(attempt["end_class"], "internal")
            self.assertIn("step 1 is recorded behind step 9", attempt["reason"])
        self.assertEqual(cluster.json("show", f"{lenient}/1")["run"]["state"], "succeeded")
        for sweep in (strict, lenient):
            points = cluster.json("metrics", f"{sweep}/1", "train/loss")
            self.assertEqual([int(p["step"]) for p in points], [1, *range(1, steps + 1)])
            every = cluster.json("metrics", f"{sweep}/1", "train/loss", "--attempts", "1")
            self.assertEqual([p["step"] for p in points], [p["step"] for p in every])
            series = {s["name"]: s for s in cluster.json("metrics", f"{sweep}/1")}
            self.assertEqual((int(series["train/loss"]["last_step"]), int(series["train/loss"]["count"])), (steps, steps + 1))
            # Reported again behind step 9, and worse than what was best there.
            self.assertEqual((series["valid/ppl"]["last"], int(series["valid/ppl"]["last_step"])), (1, 9))
            self.assertEqual((series["valid/ppl"]["best"], int(series["valid/ppl"]["best_step"])), (1, 9))
            self.assertEqual(int(cluster.json("show", f"{sweep}/1")["run"]["step"]), steps)
            folder = cluster.folder / f"export-{sweep}"
            cluster.cli("export", sweep, "--format", "csv", "--out", folder)
            rows = [line.split(",") for line in (folder / "curves.csv").read_text().splitlines()[1:]]
            self.assertEqual([int(row[3]) for row in rows if row[2] == "train/loss"], [1, *range(1, steps + 1)])
        cluster.stop("coordinator")

    def test_a_nan_stalls_the_search(self):
        """ME2. Some cells of an early-stopping sweep report NaN from the first rung on: they rank last, the others go on, the sweep ends."""
        limit = 0.4
        cluster = self.fleet(steps=9, step_ms=250, slots=1, toy={"TOY_FIELD": "lr", "TOY_NAN_ABOVE": str(limit)})
        text = SWEEP.format(name="nan", steps=9, lr="1e-5", seeds="1", policy="")
        text = text.replace("  train: {steps: 9", "  eval: {every_steps: 1}\n  train: {steps: 9")
        text = text.replace("replicates: {seeds: [1]}", "strategy: {asha: {cells: 9, min: 1, eta: 3, seed: 5}}\n"
                            "space: {uniform: {train.optimizer.adam.lr: [1e-5, 0.9]}}")
        text = text.replace("metric: valid/bits_per_byte, goal: minimize", "metric: train/loss, goal: minimize, value: last")
        cluster.cli("submit", cluster.write("nan.yaml", text))
        cluster.cli("wait", "nan", timeout=120)
        rows = [(float(r["train.optimizer.adam.lr"]), r["state"], r["train/loss"]) for r in cluster.json("results", "nan")]
        self.assertEqual(len(rows), 9)
        bad = [row for row in rows if row[0] > limit]
        good = [row for row in rows if row[0] <= limit]
        self.assertGreaterEqual(min(len(bad), len(good)), 2, "the draws say nothing")
        self.assertEqual({state for _, state, _ in bad}, {"stopped_early"})
        self.assertEqual({str(value) for _, _, value in bad}, {"NaN"})
        self.assertEqual(min(good)[1], "succeeded", "the best goes on to the end")
        self.assertEqual([row[0] for row in rows[len(good):]], [row[0] for row in bad], "NaN comes behind every number")
        self.assertEqual(cluster.sweeps()["nan"]["state"], "completed")
        cluster.stop("coordinator")


if __name__ == "__main__":
    unittest.main()
