"""The coordinator is killed at random moments and at named places: nothing acknowledged is lost, nothing is recorded twice."""
import pathlib
import random
import signal
import threading
import time
import unittest

import fleet
from fleet import Fleet, failpoints, long_form


class Client(threading.Thread):
    """Submits and cancels until told to stop, and remembers what was acknowledged."""

    def __init__(self, cluster, seed, most):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.random = random.Random(seed)
        self.most = most
        self.submitted = []
        self.cancelled = []
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            if len(self.submitted) < self.most:
                name = self.cluster.submit(check=False)
                if name:
                    self.submitted.append(name)
                    if self.random.random() < 0.25:
                        if self.cluster.cli("--timeout", "5", "cancel", name, "--reason", "test", check=False).returncode == 0:
                            self.cancelled.append(name)
            self.stopping.wait(self.random.uniform(0.05, 0.4))

    def finish(self):
        self.stopping.set()
        self.join(60)


def check_acknowledged(case, cluster, client):
    sweeps = cluster.sweeps()
    for name in client.submitted:
        case.assertIn(name, sweeps, "an acknowledged submission is gone")
        case.assertEqual(len(cluster.runs(name)), 2, name)
    for name in client.cancelled:
        for run in cluster.runs(name):
            case.assertIn(run["state"], ("cancelled", "succeeded"), f"{name}: an acknowledged cancel had no effect")


KILLS = 500 if long_form() else 25


class RandomKills(unittest.TestCase):
    def test_killed_at_random_moments(self):
        cluster = Fleet(steps=30, step_ms=10)
        self.addCleanup(cluster.close)
        clock = random.Random(20261130)
        cluster.up()
        cluster.worker()
        client = Client(cluster, 1, most=KILLS // 2)
        client.start()
        slowest = 0.0
        for kill in range(1, KILLS + 1):
            # Now and then long enough for a worker whose waits for the coordinator have grown.
            time.sleep(4 if kill % 10 == 0 else clock.uniform(0.005, 0.5))
            cluster.kill("coordinator")
            start = time.monotonic()
            cluster.up()
            slowest = max(slowest, time.monotonic() - start)
        client.finish()
        self.assertGreater(len(client.submitted), KILLS // 10, "too little was acknowledged to say anything")
        cluster.wait_all(client.submitted, 300)
        check_acknowledged(self, cluster, client)
        launches = cluster.finish(client.submitted)
        print(f"{KILLS} kills, {len(client.submitted)} submissions and {len(client.cancelled)} cancels acknowledged, "
              f"{launches} launches, slowest start {slowest:.2f} s", flush=True)


class Failpoints(unittest.TestCase):
    """One kill at each named place, each in a cluster of its own."""

    def visit(self, name):
        # Series and output are merged while they grow only if they are long: more than 512 points and 64 KiB, in pieces.
        is_long = name.startswith("merge.") and not name.startswith("merge.stream")
        cluster = Fleet(steps=1200, step_ms=5, toy={"TOY_STEP_PRINT": "400"}) if is_long else Fleet(steps=12, step_ms=5, toy={"TOY_PRINT": "60000"})
        try:
            cluster.up(failpoint=name)
            log = pathlib.Path(cluster.logs["coordinator"])
            hit = lambda: f"failpoint {name}\n" in log.read_text(errors="replace")

            def revive():
                if cluster.processes["coordinator"].poll() is None:
                    return False
                self.assertEqual(cluster.processes.pop("coordinator").returncode, -signal.SIGKILL, log.read_text()[-1500:])
                self.assertTrue(hit())
                cluster.up()
                return True

            revive()
            cluster.worker()
            submitted = []
            for step in range(2):
                made = cluster.submit(check=False)
                revive()
                # A client that got no answer asks again with the same file: the same sweep.
                if made is None:
                    cluster.count -= 1
                    made = cluster.submit()
                submitted.append(made)
            # More slots than there are: it waits until it is cancelled.
            greedy = "resources: {cpu_slots: 64}"
            # Runs beyond the first thousand are made later.
            seeds = 1100 if name == "propose.decided" else 2
            doomed = cluster.submit(seeds, check=False, policy=greedy)
            revive()
            if doomed is None:
                cluster.count -= 1
                doomed = cluster.submit(seeds, policy=greedy)
            end = time.monotonic() + 10
            while name == "propose.decided" and not hit() and time.monotonic() < end:
                time.sleep(0.02)
            revive()
            cancel = lambda: cluster.cli("--timeout", "5", "cancel", doomed, "--reason", "test", check=False).returncode == 0
            fleet.wait_until(lambda: (cancel(), revive())[0] or cancel(), "cancel", 30)

            def ended():
                revive()
                try:
                    return all(cluster.ended(s) for s in (*submitted, doomed))
                except AssertionError:  # gone in the middle of an answer
                    if cluster.processes["coordinator"].poll() is None:
                        raise
                    return False
            fleet.wait_until(ended, "ends", 60, 0.1)
            # Idle work (merging, checkpoints) comes when nothing else does.
            end = time.monotonic() + 10
            while not hit() and time.monotonic() < end:
                time.sleep(0.1)
            if not hit():
                cluster.processes["coordinator"].send_signal(signal.SIGTERM)
                cluster.processes["coordinator"].wait(20)
            if not hit():
                return False
            revive()
            for sweep in submitted:
                for run in cluster.runs(sweep):
                    self.assertEqual(run["state"], "succeeded", sweep)
            for run in cluster.runs(doomed):
                self.assertEqual(run["state"], "cancelled", doomed)
            cluster.finish(submitted)
            return True
        finally:
            cluster.close()

    def test_each_failpoint(self):
        names = failpoints()
        self.assertGreaterEqual(len(names), 40)
        chosen = names if long_form() else names[::6]
        missed = []
        for name in chosen:
            with self.subTest(failpoint=name):
                # Idle work needs a machine with idle time, and output in more than one piece: a second try.
                if not self.visit(name) and not self.visit(name):
                    missed.append(name)
        self.assertEqual(missed, [], "never reached")
        print(f"{len(chosen)} failpoints of {len(names)}", flush=True)


if __name__ == "__main__":
    unittest.main()
