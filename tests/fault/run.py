"""Runs the fault tests, several classes at a time since they wait more than they work, and prints what each has counted.

    python3 tests/fault/run.py BUILD_DIR [--long] [--jobs N] [TEST ...]

A TEST is as for unittest (test_worker.Kills.test_agent); none means all. Logs stay in BUILD_DIR/fault. Status 1: one failed.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

# The longest first.
TESTS = ["test_fence.CoordinatorPause", "test_fence.SelfFence", "test_fence.WrongClocks", "test_launch.Windows", "test_network.Idle", "test_network.Ends", "test_network.LostReplies",
         "test_coordinator.Failpoints", "test_worker.EndOfTrainer", "test_worker.Kills.test_trainer",
         "test_worker.Kills.test_agent_and_trainer", "test_worker.Kills.test_agent", "test_worker.Kills.test_fork_server",
         "test_network.Silence", "test_coordinator.RandomKills", "test_crowd.Sqlite", "test_worker.Pauses", "test_worker.Outage", "test_worker.Retries", "test_record.Values", "test_restore.Backup",
         "test_crowd.Stop", "test_crowd.Big"]
# How the lines begin in which the tests tell what they have counted.
FIGURES = re.compile(r"(?m)^(?:.*\.\.\. )?((?:\d+ (?:kills|failpoints|launches|trainers|replies|pings|ends|pauses|runs)|longest|replaced)\b.*)$")


def run(name, build, logs, is_long):
    """(passed, seconds, figures)"""
    env = {**os.environ, "SWITCHYARD_BUILD_DIR": str(build), "PYTHONDONTWRITEBYTECODE": "1"}
    if is_long:
        env["SWITCHYARD_FAULT_LONG"] = "1"
    log = logs / f"{name}.log"
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as out:
        done = subprocess.run([sys.executable, "-m", "unittest", "-v", name], cwd=pathlib.Path(__file__).parent, env=env, stdout=out,
                              stderr=subprocess.STDOUT, check=False)
    return done.returncode == 0, time.monotonic() - start, FIGURES.findall(log.read_text(errors="replace"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="folder with bin/switchyard-coordinator")
    parser.add_argument("--long", action="store_true", help="the numbers of the long form: hours")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("tests", nargs="*")
    options = parser.parse_intermixed_args()
    build = options.build.resolve()
    if not (build / "bin" / "switchyard-coordinator").exists():
        parser.error(f"{build} has no bin/switchyard-coordinator")
    logs = build / "fault"
    logs.mkdir(exist_ok=True)
    names = options.tests or TESTS
    results = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        pending = {pool.submit(run, name, build, logs, options.long): name for name in names}
        for done in concurrent.futures.as_completed(pending):
            name = pending[done]
            results[name] = done.result()
            if not results[name][0]:
                print(f"--- {name} failed:\n{(logs / f'{name}.log').read_text(errors='replace')[-6000:]}", flush=True)
    print(f"\n{'test':40} {'result':6} {'time':>7}  counted")
    for name in names:
        passed, seconds, figures = results[name]
        print(f"{name:40} {'ok' if passed else 'FAILED':6} {seconds:5.0f} s  {'; '.join(figures)}")
    return 0 if all(passed for passed, _, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
