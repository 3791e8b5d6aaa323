"""The agent is killed at each step of a launch: the trainer is taken back or the attempt has ended, and nothing is launched later."""
import concurrent.futures
import itertools
import random
import signal
import threading
import time
import unittest

from fleet import Fleet, long_form, wait_until

# Places in the agent that kill it, and how long the fork server is held up before it forks (ms).
AGENT_PLACES = ("launch.prepared", "launch.recorded", "launch.requested", "launch.executed")
# Places in the fork server and its child that sleep; the agent is killed meanwhile.
LATER_PLACES = ("fork.received", "child.session", "child.locked", "child.execute", "fork.executed")
DELAYS_MS = (0, 300, 1500, 3000)


class Windows(unittest.TestCase):
    def case(self, armed, held_ms, place, away):
        """One run, one agent that dies in its launch, one that comes after. Returns whether attempt 1 was taken back."""
        cluster = Fleet(steps=25, step_ms=20, slots=1)
        try:
            cluster.up()
            cluster.worker(failpoint=armed)
            sweep = cluster.submit(seeds=1)
            agent = cluster.processes["worker"]
            if place in AGENT_PLACES:
                self.assertEqual(agent.wait(30), -signal.SIGKILL, armed)
                cluster.processes.pop("worker")
            else:
                # The last of them comes after the child's output has gone to the attempt directory.
                logs = lambda: [cluster.logs["worker"], *(cluster.folder / "worker").glob("attempts/*/stderr.log")]
                wait_until(lambda: any(f"failpoint {place}\n" in log.read_text(errors="replace") for log in logs()), f"visit of {place}", 30, 0.005)
                cluster.kill("worker")
            time.sleep(away)
            cluster.worker()
            cluster.wait_all([sweep], 90)
            run = f"{sweep}/1"
            attempts = cluster.json("show", run)["attempts"]
            self.assertEqual(cluster.runs(sweep)[0]["state"], "succeeded", armed)
            first = attempts[0]
            spawned = {epoch for epoch, _ in cluster.read_ledger().spawns}
            adopted = int(first["epoch"]) in spawned
            if adopted:
                self.assertEqual(len(attempts), 1, f"{armed}: launched, and not taken back: {first}")
            else:
                self.assertEqual((first["state"], first["end_class"]), ("failed", "infra"), f"{armed}: {first}")
                self.assertEqual(len(attempts), 2, armed)
            # What was asked for and held up would come now.
            time.sleep(held_ms / 1000)
            self.assertEqual(cluster.check_spawns(), 1, armed)
            cluster.finish([sweep])
            return adopted
        finally:
            cluster.close()

    def test_each_window(self):
        clock = random.Random(11)
        cases = []
        for place, delay in itertools.product(AGENT_PLACES, DELAYS_MS):
            held = "" if delay == 0 else f",fork.received={delay}"
            cases.append((place + held, delay, place, clock.choice((0, 0.5, 2))))
        for place, delay in itertools.product(LATER_PLACES, DELAYS_MS[1:]):
            cases.append((f"{place}={delay}", delay, place, clock.choice((0, 0.5, 2))))
        if long_form():
            cases = [(a, h, p, clock.uniform(0, 4)) for a, h, p, _ in cases * 7]
        else:
            cases = cases[::2]
        counts = {True: 0, False: 0}
        lock = threading.Lock()

        def one(case):
            adopted = self.case(*case)
            with lock:
                counts[adopted] += 1
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            pending = {pool.submit(one, case): case for case in cases}
            for done in concurrent.futures.as_completed(pending):
                with self.subTest(failpoint=pending[done][0]):
                    done.result()
        print(f"{len(cases)} launches cut: {counts[True]} taken back, {counts[False]} ended as never executed, 0 second launches", flush=True)


if __name__ == "__main__":
    unittest.main()
