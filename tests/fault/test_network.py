"""Replies that are lost, messages that are late, partitions and ends that come before the last report."""
import json
import os
import re
import signal
import time
import unittest

from fleet import Fleet, long_form, send, wait_until
from proxy import Proxy


class Net(unittest.TestCase):
    def fleet(self, seed=1, **options):
        """A fleet whose workers reach the coordinator through `self.proxy`."""
        cluster = Fleet(**options)
        self.addCleanup(cluster.close)
        cluster.gate = cluster.folder / "proxy.sock"
        self.proxy = Proxy(cluster.gate, cluster.socket, seed)
        self.addCleanup(self.proxy.close)
        cluster.up()
        return cluster

    def check_whole(self, cluster, sweep, attempts=1):
        for run in cluster.runs(sweep):
            self.assertEqual(run["state"], "succeeded", run)
            self.assertEqual(len(cluster.check_run(run["name"])["attempts"]), attempts)

    def metrics(self, cluster):
        return cluster.http(json.loads((cluster.folder / "coordinator" / "ready.json").read_text())["metrics"])


class LostReplies(Net):
    def test_points_are_doubled_when_replies_are_lost(self):
        """ME6. A third of the replies is lost and everything sent again: each point is there once, and counted once."""
        rounds = 20 if long_form() else 1
        steps = 600
        lost = passed = 0
        for seed in range(rounds):
            cluster = self.fleet(seed=seed, steps=steps, step_ms=20, slots=4)
            cluster.worker()
            wait_until(lambda: cluster.json("worker", "ls"), "registration", 30)
            sweep = cluster.submit(seeds=4)
            wait_until(lambda: cluster.read_ledger().steps, "first steps", 60)
            self.proxy.lose_replies = 0.3
            wait_until(lambda: len(cluster.read_ledger().steps) == 4 and all(len(s) == steps for s in cluster.read_ledger().steps.values()), "the last steps", 120, 0.3)
            time.sleep(3)
            self.proxy.lose_replies = 0.0
            cluster.wait_all([sweep], 120)
            self.check_whole(cluster, sweep)
            text = self.metrics(cluster)
            points = [float(v) for v in re.findall(r"(?m)^switchyard_metric_points_committed_total(?:\{[^}]*\})? (\S+)", text)]
            self.assertEqual(sum(points), 4 * steps * 2, "points counted")
            self.assertGreater(self.proxy.lost, 3, "the proxy lost too little to say anything")
            lost += self.proxy.lost
            passed += self.proxy.passed
            cluster.finish([sweep])
            self.doCleanups()
        print(f"{lost} replies lost of {lost + passed}: 0 points doubled, 0 lost", flush=True)

    def test_last_report_is_lost_when_the_trainer_ends_at_once(self):
        """ME5. 13 steps without a pause and the end: all points, though the coordinator is late or starts anew at step 12."""
        for fault in ("none", "late", "restarted"):
            with self.subTest(coordinator=fault):
                cluster = self.fleet(steps=13, step_ms=0, slots=1)
                gate = cluster.folder / "gate"
                if fault == "restarted":
                    cluster.toy.update({"TOY_GATE": str(gate), "TOY_GATE_AT": "12"})
                if fault == "late":
                    self.proxy.delay = 2.0
                cluster.worker()
                sweep = cluster.submit(seeds=1)
                if fault == "restarted":
                    wait_until(lambda: any(len(s) == 12 for s in cluster.read_ledger().steps.values()), "step 12", 30)
                    cluster.kill("coordinator")
                    gate.write_text("")
                    wait_until(lambda: not cluster.trainers(), "end of the trainer", 20)
                    cluster.up()
                seen = set()

                def ended():
                    state = cluster.runs(sweep)[0]["state"]
                    seen.add(state)
                    if state == "succeeded":
                        # Done means recorded: nothing may be missing at this moment.
                        self.assertEqual(len(cluster.json("metrics", f"{sweep}/1", "train/loss")), 13)
                    return state == "succeeded"
                wait_until(ended, "success", 60, 0.02)
                self.check_whole(cluster, sweep)
                cluster.finish([sweep])
                self.doCleanups()


class Idle(Net):
    def test_idle_workers_are_cut_off(self):
        """GR3. A worker without work pings less often than the coordinator allows: no connection is made anew."""
        seconds = 900 if long_form() else 100
        cluster = self.fleet(slots=1)
        cluster.worker()
        wait_until(lambda: cluster.json("worker", "ls"), "registration", 30)
        # The second connection is that of events and output. A run makes sure that it is there.
        sweep = cluster.submit(seeds=1)
        cluster.wait_all([sweep], 60)
        connections, pings = self.proxy.connections, self.proxy.pings
        time.sleep(seconds)
        # The first ping of a connection may be due at the end only.
        self.assertGreaterEqual(self.proxy.pings - pings, seconds // 45, "pings")
        self.assertEqual(self.proxy.connections, connections, "connections made anew")
        self.assertEqual(self.proxy.goaways, 0)
        self.assertEqual(cluster.log("worker").count("registered as"), 1, cluster.log("worker"))
        cluster.finish([sweep, cluster.submit(seeds=1)])
        print(f"{self.proxy.pings - pings} pings in {seconds} s without work: 0 connections made anew, 0 GOAWAY", flush=True)


class Silence(Net):
    def test_calls_wait_without_end_when_the_coordinator_is_stopped(self):
        """GR1. Much is being written when the coordinator stops answering: training goes on, the client gives up in time, and what was written arrives."""
        seconds = 60 if long_form() else 12
        steps = (seconds + 6) * 10
        cluster = self.fleet(steps=steps, step_ms=100, slots=2, toy={"TOY_STEP_PRINT": "100000"})
        cluster.worker()
        sweep = cluster.submit(seeds=2)
        wait_until(lambda: len(cluster.read_ledger().steps) == 2, "two runs that step", 60)
        coordinator = cluster.processes["coordinator"].pid
        os.kill(coordinator, signal.SIGSTOP)
        stopped = time.monotonic()
        before = sum(len(s) for s in cluster.read_ledger().steps.values())
        result = cluster.cli("--timeout", "5", "results", sweep, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertLess(time.monotonic() - stopped, 7)
        time.sleep(max(0, stopped + seconds - time.monotonic()))
        after = sum(len(s) for s in cluster.read_ledger().steps.values())
        os.kill(coordinator, signal.SIGCONT)
        self.assertGreater(after - before, seconds * 2 * 5, "training stood still")
        cluster.wait_all([sweep], 120)
        self.check_whole(cluster, sweep)
        # A run has succeeded when its output is stored, too: here and now, without a wait.
        for run in (f"{sweep}/1", f"{sweep}/2"):
            self.check_output(cluster.cli("logs", run, "--raw"), steps, 100000)
        cluster.finish([sweep])
        print(f"2 runs with {steps * 100001 / 1e6:.0f} MB of output each, the coordinator stopped for {seconds} s: all of it recorded", flush=True)

    def check_output(self, logs, lines, length):
        """All lines of the output; of more than 33 MiB the first MiB and the last 32, and word of how much lies between."""
        skipped = sum(int(n) for n in re.findall(r"\[(\d+) bytes in the middle were not kept\]", logs.stderr))
        self.assertEqual(len(logs.stdout) + skipped, lines * (length + 1), f"output of the run; {logs.stderr}")
        if lines * (length + 1) < 33 << 20:
            self.assertEqual(logs.stdout, ("x" * length + "\n") * lines)
        else:
            self.assertGreaterEqual(len(logs.stdout), 33 << 20)
            self.assertEqual(set(logs.stdout), {"x", "\n"})

    def test_partition_costs_no_step_and_no_point(self):
        """Nothing passes between worker and coordinator for a while: one attempt, a whole curve."""
        cluster = self.fleet(steps=400, step_ms=20, slots=4)
        cluster.worker()
        sweep = cluster.submit(seeds=4)
        wait_until(lambda: len(cluster.read_ledger().steps) == 4, "four runs that step", 60)
        partitions = (60, 20, 5) if long_form() else (5,)
        for seconds in partitions:
            self.proxy.is_cut = True
            time.sleep(seconds)
            self.proxy.is_cut = False
            time.sleep(1)
        cluster.wait_all([sweep], 120)
        self.check_whole(cluster, sweep)
        cluster.finish([sweep])
        print(f"4 runs through {len(partitions)} partitions of {partitions[-1]} to {partitions[0]} s: 0 steps and points lost", flush=True)


class Ends(Net):
    def kill_trainers(self, cluster):
        for pid in cluster.trainers():
            send(pid)

    def test_killed_runs_stay_running(self):
        """OR1. Trainer, or trainer and worker: the run leaves RUNNING soon, with a reason. Worker alone: taken back, no step lost. The time zone matters to none of it."""
        cluster = self.fleet(steps=150, step_ms=20, slots=1, toy={"TZ": "Pacific/Kiritimati", "TOY_CHECKPOINT": "10"})
        cluster.worker()
        first = lambda: cluster.json("show", f"{sweep}/1")["attempts"][0]
        for victim in ("trainer", "both", "worker"):
            with self.subTest(killed=victim):
                sweep = cluster.submit(seeds=1)
                wait_until(lambda: cluster.trainers(), "a trainer", 60)
                time.sleep(1)
                if victim != "trainer":
                    cluster.kill("worker")
                if victim != "worker":
                    self.kill_trainers(cluster)
                start = time.monotonic()
                if victim != "trainer":
                    cluster.worker()
                if victim == "worker":
                    cluster.wait_all([sweep], 60)
                    self.check_whole(cluster, sweep)
                    continue
                wait_until(lambda: first()["state"] not in ("assigned", "running", "stopping"), "end of attempt 1", 30, 0.05)
                self.assertLess(time.monotonic() - start, 12, "two heartbeats")
                self.assertEqual((first()["state"], first()["end_class"]), ("failed", "unknown"), first())
                self.assertTrue(first()["reason"], first())
                cluster.wait_all([sweep], 90)
                self.check_whole(cluster, sweep, attempts=2)
        for sweep in cluster.sweeps():
            for attempt in cluster.json("show", f"{sweep}/1")["attempts"]:
                self.assertLessEqual(int(attempt["created_ms"]), int(attempt["ended_ms"]), "ended before it began")

    def test_a_run_that_takes_its_worker_down_is_retried_without_end(self):
        """OR3. It is quarantined after two crashes of its agent, and the runs beside it finish."""
        cluster = self.fleet(steps=60, step_ms=20, slots=2)
        cluster.worker()
        bad = cluster.submit(seeds=1)
        # The attempt that has started already, if so, is a good one: the plan counts from the next.
        cluster.cli("cancel", bad, "--reason", "test")
        cluster.wait_all([bad], 60)
        (cluster.plans / "all").write_text("TOY_FAULT=kill-agent\nTOY_AT=10\n")
        bad = cluster.submit(seeds=1)
        run_id = cluster.json("show", f"{bad}/1")["run"]["id"]
        wait_until(lambda: cluster.read_ledger().spawns and cluster.processes["worker"].poll() is not None, "death of the agent", 30, 0.01)
        (cluster.plans / "all").unlink()
        (cluster.plans / run_id).write_text("TOY_FAULT=kill-agent\nTOY_AT=10\n")
        cluster.processes.pop("worker")
        cluster.worker()
        good = [cluster.submit(seeds=1) for _ in range(3)]
        end = time.monotonic() + 90
        deaths = 1
        while not (cluster.ended(bad) and all(cluster.ended(s) for s in good)):
            self.assertLess(time.monotonic(), end, "no end")
            if cluster.processes["worker"].poll() is not None:
                deaths += 1
                cluster.processes.pop("worker")
                cluster.worker()
            time.sleep(0.05)
        self.assertEqual(cluster.runs(bad)[0]["state"], "quarantined")
        attempts = cluster.json("show", f"{bad}/1")["attempts"]
        self.assertLessEqual(len(attempts), 3)
        self.assertEqual(deaths, len(attempts))
        for sweep in good:
            self.assertEqual(cluster.runs(sweep)[0]["state"], "succeeded")

    def test_an_operators_stop_counts_as_a_crash(self):
        """OR3. Five drains of its worker: the run goes on from its checkpoint each time, and completes."""
        cluster = self.fleet(steps=1500, step_ms=20, slots=1, toy={"TOY_CHECKPOINT": "10"})
        cluster.worker()
        sweep = cluster.submit(seeds=1)
        name = wait_until(lambda: cluster.json("worker", "ls"), "the worker", 30)[0]["id"]
        for times in range(1, 6):
            wait_until(lambda: len(cluster.read_ledger().lives) == times and cluster.trainers(), f"attempt {times}", 60)
            time.sleep(0.3)
            cluster.cli("worker", "drain", name)
            wait_until(lambda: not cluster.trainers(), "end of the trainer", 30)
            wait_until(lambda: cluster.json("worker", "ls")[0]["state"] == "drained", "drained worker", 30)
            cluster.cli("worker", "undrain", name)
        cluster.wait_all([sweep], 240)
        attempts = cluster.json("show", f"{sweep}/1")["attempts"]
        self.assertEqual([a["state"] for a in attempts], ["preempted"] * 5 + ["succeeded"])
        self.check_whole(cluster, sweep, attempts=6)

    def test_a_drain_by_signal_counts_as_a_failure(self):
        """OR3. SIGUSR1 to a worker under load: shown as draining, its runs are preempted and wait, it ends, and a new one takes them on; nobody is blamed."""
        cluster = self.fleet(steps=400, step_ms=20, slots=2, toy={"TOY_CHECKPOINT": "10"})
        for deaf in (False, True):
            # Trainers that take no notice are ended after the grace: long enough to be seen.
            (cluster.plans / "all").write_text("TOY_IGNORE=1\n" if deaf else "")
            agent = cluster.worker("worker", "--drain-grace", 4)
            sweeps = [cluster.submit(seeds=2)]
            wait_until(lambda: len(cluster.trainers()) == 2 and all(cluster.run_of(p) for p in cluster.trainers()), "two trainers", 60, 0.01)
            agent.send_signal(signal.SIGUSR1)
            if deaf:
                wait_until(lambda: cluster.json("worker", "ls")[0]["state"] == "draining", "draining worker", 4, 0.02)
            sweeps.append(cluster.submit(seeds=2))
            (cluster.plans / "all").write_text("")
            self.assertEqual(agent.wait(60), 0)
            self.assertEqual(cluster.trainers(), [])
            cluster.processes.pop("worker")
            cluster.worker()
            cluster.wait_all(sweeps, 120)
            for number, sweep in enumerate(sweeps):
                for run in cluster.runs(sweep):
                    self.assertEqual(run["state"], "succeeded")
                    ends = [a["state"] for a in cluster.json("show", run["name"])["attempts"]]
                    self.assertEqual(set(ends[:-1]) - {"preempted"}, set(), ends)
                    self.assertEqual(len(ends) > 1, number == 0, "what was submitted later went to a worker that leaves")
            self.assertEqual(cluster.json("worker", "ls")[0]["state"], "ready")
            cluster.stop("worker", signal.SIGTERM)

    def test_preempted_is_taken_as_completed(self):
        """OR5. SIGTERM from outside, the trainer saves and ends with 75: PREEMPTED, queued again, resumed. The same with a drain and an end with 0."""
        for code in ("75", "0"):
            with self.subTest(code=code):
                cluster = self.fleet(steps=100, step_ms=20, slots=1, toy={"TOY_CHECKPOINT": "10", "TOY_STOP_CODE": code})
                cluster.worker()
                sweep = cluster.submit(seeds=1, policy="timeout: 2m")
                wait_until(lambda: any(len(s) > 25 for s in cluster.read_ledger().steps.values()), "step 25", 60)
                if code == "75":
                    os.kill(cluster.trainers()[0], signal.SIGTERM)
                else:
                    name = cluster.json("worker", "ls")[0]["id"]
                    cluster.cli("worker", "drain", name)
                    wait_until(lambda: cluster.json("worker", "ls")[0]["state"] == "drained", "drained worker", 30)
                    self.assertNotEqual(cluster.runs(sweep)[0]["state"], "succeeded")
                    cluster.cli("worker", "undrain", name)
                cluster.wait_all([sweep], 90)
                attempts = cluster.json("show", f"{sweep}/1")["attempts"]
                self.assertEqual([a["state"] for a in attempts], ["preempted", "succeeded"], attempts)
                _, resumed = sorted(cluster.read_ledger().steps.items())
                self.assertGreater(resumed[1][0][1], 20, "the second attempt began anew")
                self.check_whole(cluster, sweep, attempts=2)
                self.doCleanups()


if __name__ == "__main__":
    unittest.main()
