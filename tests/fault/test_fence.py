"""Trainers whose agent or coordinator is silent end by themselves, and a coordinator that slept ends nobody."""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import time
import unittest

from fleet import Fleet, long_form, wait_until

LEASE_S = 10
POLL_S = 0.25
# Half a second for a step and for the ledger's own beat, half for a machine of two cores.
LATE_S = 1.0
FLAGS = ("--exclusive-lease", str(LEASE_S), "--exclusive-replace", "23", "--resilient-replace", "20")
EXCLUSIVE = "on_disconnect: exclusive"


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SelfFence(unittest.TestCase):
    def case(self, silence, fault, seed):
        """Four trainers lose contact in the way `silence`. Returns how long each lived on, in seconds."""
        toy = {"TOY_STEP_MS": "20"}
        if fault:
            toy.update({"TOY_FAULT": fault, "TOY_AT": "20" if fault == "hang-fenced" else "100000"})
        cluster = Fleet(steps=100000, slots=4, toy=toy, flags=FLAGS)
        try:
            cluster.up()
            cluster.worker()
            cluster.submit(seeds=4, policy=EXCLUSIVE)
            wait_until(lambda: len(cluster.read_ledger().steps) == 4, "four trainers that step", 60)
            time.sleep(1 + random.Random(f"{silence} {fault} {seed}").uniform(0, 6))
            before = boottime()
            if silence == "agent stopped":
                os.kill(cluster.processes["worker"].pid, signal.SIGSTOP)
            elif silence == "agent killed":
                cluster.kill("worker")
            else:
                os.kill(cluster.processes["coordinator"].pid, signal.SIGSTOP)
            wait_until(lambda: not cluster.trainers() or boottime() > before + LEASE_S + POLL_S + LATE_S + 2, "end of four trainers", 30, 0.05)
            lives = cluster.read_ledger().lives
            self.assertEqual(len(lives), 4)
            return [last / 1e9 - before for _, last in lives.values()], cluster.trainers()
        finally:
            cluster.close()

    def test_every_trainer_is_gone_after_its_lease(self):
        kinds = [("agent stopped", ""), ("agent killed", ""), ("coordinator stopped", ""), ("agent stopped", "hang-fenced"), ("agent killed", "starved")]
        cases = [(*kind, seed) for seed in range(10 if long_form() else 1) for kind in kinds]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            pending = {pool.submit(self.case, *case): case for case in cases}
            ages = []
            for done in concurrent.futures.as_completed(pending):
                with self.subTest(case=pending[done]):
                    lived, left = done.result()
                    ages += lived
                    self.assertEqual(left, [], "trainers that do not end")
                    self.assertLessEqual(max(lived), LEASE_S + POLL_S + LATE_S)
        print(f"{len(ages)} trainers without contact: gone after {min(ages):.2f} to {max(ages):.2f} s, lease {LEASE_S} s", flush=True)

    def test_replacement_starts_after_the_trainer_has_ended(self):
        """S7: of an exclusive run at most one attempt steps, also when the agent is stopped for good."""
        cluster = Fleet(steps=1000, step_ms=20, slots=1, flags=FLAGS)
        self.addCleanup(cluster.close)
        cluster.up()
        first = cluster.worker("worker")
        sweep = cluster.submit(seeds=1, policy=EXCLUSIVE)
        wait_until(lambda: cluster.read_ledger().steps, "a trainer that steps", 60)
        os.kill(first.pid, signal.SIGSTOP)
        cluster.worker("other")
        wait_until(lambda: len(cluster.read_ledger().lives) == 2, "the replacement", 90)
        wait_until(lambda: len(cluster.read_ledger().steps) == 2, "steps of the replacement", 30)
        (_, end), (start, _) = [life for _, life in sorted(cluster.read_ledger().lives.items())]
        self.assertLess(end, start, "two attempts of an exclusive run at a time")
        first.kill()
        cluster.wait_all([sweep], 90)
        attempts = cluster.json("show", f"{sweep}/1")["attempts"]
        self.assertEqual([a["state"] for a in attempts], ["lost", "succeeded"])
        metrics = cluster.http(json.loads((cluster.folder / "coordinator" / "ready.json").read_text())["metrics"])
        expired = dict(re.findall(r'(?m)^switchyard_lease_expired_total\{profile="(\w+)"\} (\S+)', metrics))
        self.assertEqual({profile: float(n) for profile, n in expired.items()}, {"exclusive": 1, "resilient": 0})
        print(f"replaced {(start - end) / 1e9:.1f} s after the end", flush=True)


class WrongClocks(unittest.TestCase):
    def case(self, shift_s):
        """Runs through several leases on a worker whose wall clock is wrong by so much. Returns the offset that it shows itself."""
        library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        self.assertIsNotNone(library, "no libfaketime: deploy/setup.sh installs it")
        cluster = Fleet(steps=1200, step_ms=20, slots=2, flags=FLAGS)
        try:
            cluster.up()
            cluster.worker(env={"LD_PRELOAD": str(library), "FAKETIME": f"{shift_s:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                                "DONT_FAKE_MONOTONIC": "1", "TZ": "Pacific/Apia"})
            sweeps = [cluster.submit(seeds=1, policy=EXCLUSIVE), cluster.submit(seeds=1)]
            wait_until(lambda: len(cluster.read_ledger().steps) == 2, "two trainers that step", 60)
            address = json.loads((cluster.folder / "worker" / "ready.json").read_text())["metrics"]
            shown = lambda: float(re.search(r"(?m)^switchyard_agent_clock_offset_seconds\S* ([-+.e0-9]+)", cluster.http(address)).group(1))
            # 0 until the first answer to a heartbeat.
            offset = wait_until(lambda: shown() or None, "offset", 20)
            cluster.wait_all(sweeps, 120)
            for sweep in sweeps:
                self.assertEqual(cluster.runs(sweep)[0]["state"], "succeeded")
                attempts = cluster.check_run(f"{sweep}/1")["attempts"]
                self.assertEqual(len(attempts), 1, "a healthy run was given up")
                self.assertLessEqual(int(attempts[0]["created_ms"]), int(attempts[0]["ended_ms"]))
                self.assertLess(int(attempts[0]["ended_ms"]) - int(attempts[0]["created_ms"]), 120000)
                times = [int(p["ms"]) for p in cluster.json("metrics", f"{sweep}/1", "train/loss")]
                self.assertEqual(times, sorted(times))
                self.assertLess(times[-1], 120000)
            cluster.finish(sweeps)
            return offset
        finally:
            cluster.close()

    def test_clock_differences_decide_about_liveness(self):
        """OR1. A worker's wall clock is ten minutes off either way: its runs, with leases of ten seconds, end in their first attempts."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for shift, offset in zip((600, -600), pool.map(self.case, (600, -600))):
                self.assertAlmostEqual(offset, -shift, delta=30, msg="the clock was not wrong at all")
        print("4 runs on workers whose clocks are 600 s ahead and behind, leases of 10 s: 0 attempts lost", flush=True)


class CoordinatorPause(unittest.TestCase):
    def test_stopped_for_longer_than_the_replacement_time(self):
        """L6: its own pause declares nobody lost."""
        cluster = Fleet(steps=3500, step_ms=20, slots=4, flags=FLAGS)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        sweep = cluster.submit(seeds=4)
        time.sleep(33)  # nothing would expire in the first 30 s anyway
        self.assertEqual(len(cluster.trainers()), 4)
        os.kill(cluster.processes["coordinator"].pid, signal.SIGSTOP)
        time.sleep(25)
        os.kill(cluster.processes["coordinator"].pid, signal.SIGCONT)
        cluster.wait_all([sweep], 120)
        for run in cluster.runs(sweep):
            self.assertEqual(run["state"], "succeeded")
            self.assertEqual(len(cluster.json("show", run["name"])["attempts"]), 1, "a pause of the coordinator cost an attempt")
        cluster.finish([sweep])
        print("4 runs with the coordinator stopped for 25 s, replacement after 20 s: 0 attempts lost", flush=True)

    def test_a_worker_that_is_gone_is_still_found_out(self):
        """OR1: after a restart of the coordinator old leases expire, once the grace has passed."""
        cluster = Fleet(steps=100000, step_ms=20, slots=1, flags=FLAGS)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        sweep = cluster.submit(seeds=1)
        wait_until(lambda: cluster.read_ledger().steps, "a trainer that steps", 60)
        cluster.kill("worker")
        for pid in cluster.trainers():
            os.kill(pid, signal.SIGKILL)
        cluster.kill("coordinator")
        cluster.up()
        start = time.monotonic()
        lost = wait_until(lambda: [a for a in cluster.json("show", f"{sweep}/1")["attempts"] if a["state"] == "lost"], "loss of the attempt", 60, 0.3)
        self.assertGreater(time.monotonic() - start, 25, "expired within the grace of the restart")
        self.assertLess(time.monotonic() - start, 40)
        self.assertIn("no contact", str(lost[0]))


if __name__ == "__main__":
    unittest.main()
