"""The coordinator's database is put back to an older copy: what workers still have of later attempts comes into the record."""
import shutil
import sqlite3
import unittest

import fleet
from fleet import Fleet, wait_until

GENERATION = 48  # the bits of an epoch below its generation


def restore(folder, copy):
    """What a restore does: the older file in place of the newer one, of the next generation."""
    database = folder / "switchyard.db"
    for suffix in ("", "-wal", "-shm", ".tail"):
        (folder / (database.name + suffix)).unlink(missing_ok=True)
    shutil.copy(copy, database)
    db = sqlite3.connect(database)
    with db:
        db.execute("UPDATE meta SET generation = generation + 1")
    db.close()


class Backup(unittest.TestCase):
    def test_attempts_newer_than_the_backup(self):
        """Protocol 10. An attempt of a known run is recorded as lost, with every line of it; one of an unknown run is stopped and its directory stays."""
        cluster = Fleet(steps=120, step_ms=50)
        self.addCleanup(cluster.close)
        cluster.up()
        known = cluster.submit(seeds=1)
        self.assertEqual(cluster.stop("coordinator"), 0)
        copy = cluster.folder / "backup.db"
        shutil.copy(cluster.folder / "coordinator" / "switchyard.db", copy)

        cluster.up()
        cluster.worker()
        unknown = cluster.submit(seeds=1)
        wait_until(lambda: len(cluster.read_ledger().steps) == 2 and min(len(s) for s in cluster.read_ledger().steps.values()) > 20,
                   "two trainers that step", 30, 0.1)
        before = {int(cluster.json("show", f"{sweep}/1")["attempts"][0]["epoch"]) for sweep in (known, unknown)}
        cluster.kill("coordinator")
        restore(cluster.folder / "coordinator", copy)
        cluster.up()
        self.assertNotIn(unknown, cluster.sweeps())

        cluster.wait_all([known], 120)
        shown = cluster.check_run(f"{known}/1")
        attempts = {int(a["epoch"]): a for a in shown["attempts"]}
        self.assertEqual(len(attempts), 2, attempts)
        lost, newer = sorted(attempts)
        self.assertEqual((lost >> GENERATION, newer >> GENERATION), (1, 2))
        self.assertIn(lost, before)
        self.assertEqual(attempts[lost]["state"], "lost")
        self.assertEqual(attempts[newer]["state"], "succeeded")
        self.assertEqual([int(a["ordinal"]) for a in attempts.values()], [1, 1])
        self.assertIn(f"1@{lost}", cluster.cli("show", f"{known}/1").stdout)
        self.assertTrue(any("attempt_recovered" in line for line in shown["history"]), shown["history"])

        ledger = cluster.read_ledger()
        nobody, = before - {lost}
        folders = {int(path.name.split("-")[0]) for path in (cluster.folder / "worker" / "attempts").iterdir()}
        self.assertIn(nobody, folders, "its directory is for people")
        wait_until(lambda: not cluster.trainers(), "no trainer that nobody wants", 20, 0.1)
        cluster.check_spawns()
        self.assertEqual(cluster.stop("coordinator"), 0)
        cluster.check_database()
        db = sqlite3.connect(f"file:{cluster.folder}/coordinator/switchyard.db?mode=ro", uri=True)
        self.addCleanup(db.close)
        points, = db.execute("SELECT sum(c.n) FROM chunks c JOIN series s ON s.id = c.series JOIN names n ON n.id = s.name "
                             "WHERE s.epoch = ? AND n.name = ?", (lost, fleet.SERIES)).fetchone()
        # The last step of a trainer that was killed may be in its file and not in its own book.
        self.assertIn(points, (len(ledger.steps[(lost, 0)]), len(ledger.steps[(lost, 0)]) + 1))
        self.assertGreater(points, 20)
        stored, declared = db.execute("SELECT acked, declared_last FROM streams WHERE epoch = ?", (lost,)).fetchone()
        self.assertEqual(stored, declared)
        self.assertEqual(db.execute("SELECT count(*) FROM attempts WHERE epoch = ?", (nobody,)).fetchone(), (0,))


if __name__ == "__main__":
    unittest.main()
