"""Agents, fork servers and trainers are killed: nothing is launched twice, nothing is left over, no step is lost."""
import os
import random
import signal
import time
import unittest

from fleet import Fleet, long_form, send, wait_until

ROUNDS = 300 if long_form() else 8


class Kills(unittest.TestCase):
    """The worker is kept busy while parts of it are killed at random moments."""

    def start(self, **toy):
        cluster = Fleet(steps=60, step_ms=20, slots=4, toy=toy)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        self.sweeps = []
        self.hit = set()  # runs one of whose trainers was killed
        return cluster

    def uncordon(self, cluster):
        """Launches that its agent's death prevents, of three runs in 10 minutes, cordon a worker."""
        for worker in cluster.json("worker", "ls"):
            if worker["state"] == "cordoned":
                cluster.cli("worker", "uncordon", worker["id"])

    def keep_busy(self, cluster):
        self.uncordon(cluster)
        if not self.sweeps or cluster.ended(self.sweeps[-1]):
            self.submit(cluster)

    def victim(self, cluster):
        """A trainer of a run that was not hit yet: the second crash at one step, or beside its agent, quarantines a run."""
        def fresh():
            found = [(pid, run) for pid in cluster.trainers() if (run := cluster.run_of(pid)) and run not in self.hit]
            if not found and time.monotonic() > self.submitted_at + 2:
                self.uncordon(cluster)
                self.submit(cluster)
            return found
        pid, run = self.clock.choice(wait_until(fresh, "trainer of a run that was not hit", 60, 0.05))
        self.hit.add(run)
        return pid

    def submit(self, cluster):
        self.sweeps.append(cluster.submit(seeds=4))
        self.submitted_at = time.monotonic()

    def conclude(self, cluster, single_attempt):
        left = list(self.sweeps)

        def ended():
            # The last kills may have cordoned it.
            self.uncordon(cluster)
            left[:] = [s for s in left if not cluster.ended(s)]
            return not left
        wait_until(ended, "ends", 240, 0.3)
        attempts = launched = 0
        ledger = cluster.read_ledger()
        spawned = {epoch for epoch, _ in ledger.spawns}
        for sweep in self.sweeps:
            for run in cluster.runs(sweep):
                self.assertEqual(run["state"], "succeeded", cluster.cli("show", run["name"]).stdout)
                shown = cluster.check_run(run["name"], ledger=ledger)
                attempts += len(shown["attempts"])
                here = [a for a in shown["attempts"] if int(a["epoch"]) in spawned]
                launched += len(here)
                # An agent may die between its record and the launch: that attempt has ended without one.
                for a in shown["attempts"]:
                    if a not in here:
                        self.assertEqual(a["end_class"], "infra", a)
                if single_attempt:
                    self.assertEqual(len(here), 1, "a trainer was not taken back")
        self.assertEqual(cluster.check_spawns(), launched, "launches and attempts differ")
        wait_until(lambda: not cluster.trainers(), "end of every trainer", 10)
        self.assertEqual(cluster.stop("coordinator"), 0)
        cluster.check_database()
        print(f"{ROUNDS} kills, {len(self.sweeps) * 4} runs, {attempts} attempts, {launched} launches, 0 second launches", flush=True)

    def test_agent(self):
        cluster = self.start()
        clock = random.Random(1)
        for _ in range(ROUNDS):
            self.keep_busy(cluster)
            time.sleep(clock.uniform(0.02, 0.8))
            cluster.kill("worker")
            time.sleep(clock.choice((0, 0, 0.2, 1)))
            cluster.worker()
        self.conclude(cluster, single_attempt=True)

    def test_fork_server(self):
        cluster = self.start()
        clock = random.Random(2)
        for _ in range(ROUNDS):
            self.keep_busy(cluster)
            time.sleep(clock.uniform(0.1, 0.8))
            victim = cluster.fork_server()
            if victim:
                os.kill(victim, signal.SIGKILL)
            wait_until(lambda: cluster.fork_server() not in (None, victim), "new fork server", 20)
            self.assertIsNone(cluster.processes["worker"].poll(), "the agent executes itself in place")
        self.conclude(cluster, single_attempt=True)

    def test_trainer(self):
        cluster = self.start(TOY_CHECKPOINT="5")
        self.clock = random.Random(3)
        for _ in range(ROUNDS):
            self.keep_busy(cluster)
            time.sleep(self.clock.uniform(0.02, 0.5))
            send(self.victim(cluster))
        self.conclude(cluster, single_attempt=False)

    def test_agent_and_trainer(self):
        cluster = self.start(TOY_CHECKPOINT="5")
        self.clock = random.Random(4)
        for _ in range(ROUNDS):
            self.keep_busy(cluster)
            time.sleep(self.clock.uniform(0.02, 0.5))
            victim = self.victim(cluster)
            cluster.kill("worker")
            send(victim)
            cluster.worker()
        self.conclude(cluster, single_attempt=False)


class EndOfTrainer(unittest.TestCase):
    """How a trainer ends decides what becomes of its run, and never its exit code alone."""

    # plan, state of the run, class of its first attempt
    TABLE = [
        ({}, "succeeded", "ok"),
        ({"TOY_RECORD": "absent", "TOY_CODE": "0"}, None, "unknown"),
        ({"TOY_RECORD": "torn"}, None, "unknown"),
        ({"TOY_RECORD": "corrupt"}, None, "unknown"),
        ({"TOY_RECORD": "foreign"}, None, "unknown"),
        ({"TOY_FAULT": "segv", "TOY_AT": "5"}, None, "unknown"),
        ({"TOY_FAULT": "abort", "TOY_AT": "5"}, None, "unknown"),
        ({"TOY_FAULT": "kill", "TOY_AT": "5"}, None, "unknown"),
        ({"TOY_FAULT": "exit0", "TOY_AT": "5"}, None, "unknown"),
        ({"TOY_AFTER": "segv"}, "succeeded", "ok"),
        ({"TOY_AFTER": "abort"}, "succeeded", "ok"),
        ({"TOY_AFTER": "exit1"}, "succeeded", "ok"),
        ({"TOY_CODE": "70"}, None, "internal"),
        ({"TOY_CODE": "64"}, "failed", "spec"),
        ({"TOY_CODE": "65"}, "failed", "data"),
        ({"TOY_CODE": "71"}, "failed", "oom"),
        ({"TOY_CODE": "77"}, "failed", "guard"),
        ({"TOY_CODE": "3"}, "failed", "user"),
    ]

    def check(self, plan, state, end_class, down):
        cluster = Fleet(steps=8, step_ms=20, slots=1, toy=plan)
        try:
            cluster.up()
            cluster.worker()
            sweep = cluster.submit(seeds=1)
            run = f"{sweep}/1"
            attempts = lambda: cluster.json("show", run)["attempts"]
            wait_until(lambda: attempts(), "first attempt", 30)
            if down:
                wait_until(lambda: cluster.read_ledger().spawns, "spawn", 30, 0.01)
                cluster.kill("worker")
                wait_until(lambda: not cluster.trainers(), "end of the trainer", 30)
                cluster.worker()
            first = wait_until(lambda: attempts()[0] if attempts()[0]["end_class"] not in ("", "none") else None, "end of attempt 1", 60)
            self.assertEqual(first["end_class"], end_class, first)
            if state:
                wait_until(lambda: cluster.ended(sweep), "end of the run", 60)
                self.assertEqual(cluster.runs(sweep)[0]["state"], state)
            else:
                self.assertNotEqual(cluster.json("show", run)["run"]["state"], "succeeded")
                self.assertNotEqual(first["state"], "succeeded")
        finally:
            cluster.close()

    def test_table(self):
        table = self.TABLE * 3 if long_form() else self.TABLE[::3]
        for down in (False, True):
            for plan, state, end_class in table:
                with self.subTest(plan=plan, agent="down" if down else "up"):
                    self.check(plan, state, end_class, down)
        print(f"{2 * len(table)} ends of trainers, half of them while the agent was down: each of its class", flush=True)


class Retries(unittest.TestCase):
    def test_an_error_is_tried_again_by_what_was_printed(self):
        """retry.log_patterns: a text in the last output decides, also when the agent was away at the end."""
        for text, down, attempts in (("line 19", False, 2), ("line 19", True, 2), ("line 20", False, 1)):
            with self.subTest(text=text, agent="down" if down else "up"):
                cluster = Fleet(steps=8, step_ms=50, slots=1, toy={"TOY_PRINT": "20"})
                self.addCleanup(cluster.close)
                (cluster.plans / "all").write_text("TOY_CODE=3\n")
                cluster.up()
                cluster.worker()
                sweep = cluster.submit(seeds=1, policy=f'retry: {{log_patterns: ["no such line", "{text}"]}}')
                wait_until(lambda: cluster.read_ledger().steps, "first step", 30, 0.01)
                (cluster.plans / "all").unlink()
                if down:
                    cluster.kill("worker")
                    wait_until(lambda: not cluster.trainers(), "end of the trainer", 30)
                    cluster.worker()
                cluster.wait_all([sweep], 60)
                ended = cluster.json("show", f"{sweep}/1")["attempts"]
                self.assertEqual([a["end_class"] for a in ended], (["user", "ok"])[:attempts], ended)
                self.assertEqual(cluster.runs(sweep)[0]["state"], "succeeded" if attempts == 2 else "failed")
                self.doCleanups()


class Outage(unittest.TestCase):
    """The coordinator is away while eight runs go on."""

    def test_no_step_is_lost(self):
        seconds = 600 if long_form() else 12
        cluster = Fleet(steps=(seconds + 10) * 20, step_ms=50, slots=8)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        sweep = cluster.submit(seeds=8)
        wait_until(lambda: len(cluster.read_ledger().steps) == 8, "eight runs that step", 60)
        cluster.kill("coordinator")
        before = {k: len(v) for k, v in cluster.read_ledger().steps.items()}
        time.sleep(seconds)
        after = {k: len(v) for k, v in cluster.read_ledger().steps.items()}
        for who, count in before.items():
            self.assertGreater(after[who], count + seconds * 10, "a trainer stood still without the coordinator")
        cluster.up()
        cluster.wait_all([sweep], 300)
        for run in cluster.runs(sweep):
            self.assertEqual(run["state"], "succeeded")
            self.assertEqual(len(cluster.check_run(run["name"])["attempts"]), 1)
        cluster.finish([sweep])
        print(f"{len(before)} runs through {seconds} s without a coordinator: 0 steps lost, 0 attempts lost", flush=True)


class Pauses(unittest.TestCase):
    """SIGSTOP and SIGCONT of each process, in random order."""

    def test_one_effective_attempt(self):
        rounds = 200 if long_form() else 6
        cluster = Fleet(steps=100, step_ms=20, slots=2)
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        clock = random.Random(5)
        sweeps = []
        counts = dict.fromkeys(("coordinator", "agent", "fork server", "trainer"), 0)
        for _ in range(rounds):
            if not sweeps or cluster.ended(sweeps[-1]):
                sweeps.append(cluster.submit())
            time.sleep(clock.uniform(0.1, 0.5))
            victims = [("coordinator", cluster.processes["coordinator"].pid), ("agent", cluster.processes["worker"].pid),
                       ("fork server", cluster.fork_server())] + [("trainer", pid) for pid in cluster.trainers()]
            victims = [v for v in victims if v[1]]
            chosen = clock.sample(victims, min(len(victims), clock.choice((1, 1, 2))))
            for name, pid in chosen:
                counts[name] += 1
                send(pid, signal.SIGSTOP)
            time.sleep(clock.uniform(1, 60) if long_form() and clock.random() < 0.1 else clock.uniform(0.5, 2.5))
            clock.shuffle(chosen)
            for _, pid in chosen:
                send(pid, signal.SIGCONT)
                time.sleep(clock.uniform(0, 0.3))
        cluster.wait_all(sweeps, 240)
        for sweep in sweeps:
            for run in cluster.runs(sweep):
                self.assertEqual(run["state"], "succeeded")
                self.assertEqual(len(cluster.check_run(run["name"])["attempts"]), 1, "a pause cost an attempt")
        cluster.finish(sweeps)
        print(f"{sum(counts.values())} pauses ({', '.join(f'{n} of {name}' for name, n in counts.items())}): 0 attempts lost", flush=True)


if __name__ == "__main__":
    unittest.main()
