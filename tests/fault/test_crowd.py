"""Many at once, long readers, big answers, and a coordinator that is told to stop meanwhile."""
import json
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import unittest

from fleet import Fleet, harness, long_form, wait_until

WAL_BYTES = 16 << 20


class Sqlite(unittest.TestCase):
    def test_lock_errors_when_many_start_beside_a_reader(self):
        """SQ1. 32 workers and four readers start while another program holds a read transaction and copies the database."""
        seconds = 60 if long_form() else 10
        cluster = Fleet(steps=40, step_ms=20, slots=1)
        self.addCleanup(cluster.close)
        cluster.up()
        before = cluster.submit(seeds=2)
        database = cluster.folder / "coordinator" / "switchyard.db"
        shell = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)
        self.addCleanup(shell.close)
        shell.execute("BEGIN")
        runs_then = shell.execute("SELECT count(*) FROM runs").fetchone()[0]
        opened = time.monotonic()
        faults = []
        stop = threading.Event()

        def read():
            while not stop.is_set():
                for words in (("ls", "--all"), ("results", before), ("worker", "ls")):
                    result = cluster.cli("--timeout", "10", *words, check=False)
                    if result.returncode != 0:
                        faults.append(result.stderr)
        readers = [threading.Thread(target=read) for _ in range(4)]
        for thread in readers:
            thread.start()
        for i in range(32):
            cluster.worker(f"worker{i}")
        submitted = [before] + [cluster.submit(seeds=8) for _ in range(4)]
        copy = sqlite3.connect(cluster.folder / "copy.db")
        shell.backup(copy)
        copy.close()
        cluster.wait_all(submitted, 120)
        wait_until(lambda: time.monotonic() > opened + seconds, "time", seconds + 5)
        stop.set()
        for thread in readers:
            thread.join()
        self.assertEqual(shell.execute("SELECT count(*) FROM runs").fetchone()[0], runs_then, "the reader saw its own moment only")
        shell.execute("COMMIT")
        self.assertEqual(faults, [])
        self.assertEqual(len(cluster.json("worker", "ls")), 32)
        for name, log in cluster.logs.items():
            self.assertNotIn("locked", log.read_text(errors="replace"), name)
        for sweep in submitted:
            for run in cluster.runs(sweep):
                self.assertEqual(run["state"], "succeeded")
                cluster.check_run(run["name"])
        cluster.finish(submitted)

    def test_log_grows_behind_a_slow_reader(self):
        """SQ2. A client that reads its answer slowly while much is stored: the write-ahead log stays bounded, and is short afterwards."""
        cluster = Fleet(steps=20000 if not long_form() else 100000, step_ms=0, slots=2, toy={"TOY_STEP_PRINT": "2000"})
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        first = cluster.submit(seeds=1)
        cluster.wait_all([first], 120)
        wal = cluster.folder / "coordinator" / "switchyard.db-wal"
        slow = subprocess.Popen([str(harness.BIN / "switchyard"), "--server", f"unix:{cluster.socket}", "-o", "jsonl", "metrics", f"{first}/1", "train/loss"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(slow.kill)
        self.assertTrue(slow.stdout.readline())
        more = cluster.submit(seeds=2 if not long_form() else 4)
        longest = 0
        while not cluster.ended(more):
            slow.stdout.readline()
            longest = max(longest, wal.stat().st_size)
            time.sleep(0.2)
        # A reader of the database is ended after 2 s; a batch or two more may come until then.
        self.assertLess(longest, 4 * WAL_BYTES, "the log behind a slow reader")
        slow.kill()
        slow.wait()
        wait_until(lambda: wal.stat().st_size <= WAL_BYTES, "short log", 30)
        for run in cluster.runs(more):
            self.assertEqual(run["state"], "succeeded")
            self.assertEqual(len(cluster.json("metrics", run["name"], "train/loss")), cluster.steps)
        print(f"longest write-ahead log {longest / 2**20:.1f} MiB", flush=True)
        cluster.stop("coordinator")


class Stop(unittest.TestCase):
    def test_stop_never_returns_while_streams_are_open(self):
        """GR2. Three workers, a follower of output and a scraper that hangs: SIGTERM ends the coordinator within 10 s and leaves no log; runs go on and come back."""
        cluster = Fleet(steps=400, step_ms=20, slots=1, toy={"TOY_STEP_PRINT": "100"})
        self.addCleanup(cluster.close)
        cluster.up()
        for i in range(3):
            cluster.worker(f"worker{i}")
        sweep = cluster.submit(seeds=3)
        wait_until(lambda: len(cluster.read_ledger().steps) == 3, "three runs that step", 60)
        follower = subprocess.Popen([str(harness.BIN / "switchyard"), "--server", f"unix:{cluster.socket}", "logs", f"{sweep}/1", "--follow"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(follower.kill)
        self.assertTrue(follower.stdout.readline())
        # A scraper that has begun a request and says no more.
        host, port = json.loads((cluster.folder / "coordinator" / "ready.json").read_text())["metrics"].split(":")
        slow = socket.create_connection((host, int(port)))
        self.addCleanup(slow.close)
        slow.sendall(b"GET /metrics HTT")
        start = time.monotonic()
        self.assertEqual(cluster.stop("coordinator", signal.SIGTERM, 15), 0)
        self.assertLess(time.monotonic() - start, 10)
        left = [p.name for p in (cluster.folder / "coordinator").iterdir() if p.name.endswith("-wal") and p.stat().st_size > 0]
        self.assertEqual(left, [])
        before = sum(len(s) for s in cluster.read_ledger().steps.values())
        time.sleep(1)
        self.assertGreater(sum(len(s) for s in cluster.read_ledger().steps.values()), before, "runs stood still")
        cluster.up()
        cluster.wait_all([sweep], 90)
        for run in cluster.runs(sweep):
            self.assertEqual(len(cluster.check_run(run["name"])["attempts"]), 1)
        follower.kill()
        follower.wait()
        cluster.finish([sweep])


class Big(unittest.TestCase):
    def test_answers_beyond_4_mib_fail(self):
        """GR4. One line of output of 6 MB, and 20 000 rows of results (short form: 10 000, which are 2.4 MB)."""
        rows = 20000 if long_form() else 10000
        cluster = Fleet(steps=1, step_ms=0, slots=1, toy={"TOY_STEP_PRINT": "6000000"})
        self.addCleanup(cluster.close)
        cluster.up()
        cluster.worker()
        one = cluster.submit(seeds=1)
        # More slots than there are: they wait.
        many = cluster.submit(seeds=rows, policy="resources: {cpu_slots: 64}")
        cluster.wait_all([one], 60)
        text = cluster.cli("logs", f"{one}/1", "--raw").stdout
        # Between the first MiB and the last 32 MiB nothing is left out of 6 MB.
        self.assertEqual(text.count("x"), 6000000)

        def stored():
            db = sqlite3.connect(f"file:{cluster.folder}/coordinator/switchyard.db?mode=ro", uri=True)
            try:
                return db.execute("SELECT count(*) FROM links").fetchone()[0] - 1
            finally:
                db.close()
        if long_form():
            # No more than 10 000 wait at a time: others are made when these have ended.
            wait_until(lambda: stored() == rows / 2, "half of the runs", 90, 0.5)
            cluster.cli("prune", f"{many}/1-{rows // 2}", timeout=900)
        wait_until(lambda: stored() == rows, "all runs", 90, 0.5)
        answer = cluster.cli("-o", "json", "results", many).stdout
        self.assertGreater(len(answer), (4 << 20) if long_form() else (2 << 20))
        self.assertEqual(len({row["name"] for row in json.loads(answer)}), rows)


if __name__ == "__main__":
    unittest.main()
