"""Drives a sweep with `strategy: external` from Optuna.

    pip install optuna
    switchyard submit sweep.yaml                      # its file says `strategy: external`
    python optuna_sweep.py SWEEP --cells 40 --parallel 4

Optuna chooses the learning rate; another space needs another `suggest`. A cell that has no finite objective
is told as failed. Killed in the middle it leaves the sweep as it is: `switchyard cancel SWEEP`, or start it again, which
begins a new study with further cells.
"""
import argparse
import math
import time

import optuna
import switchyard


def suggest(trial):
    """A point of the sweep's space: axis -> value."""
    return {"train.optimizer.adam.lr": trial.suggest_float("train.optimizer.adam.lr", 1e-4, 1e-2, log=True)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", help="name, id or `last`")
    parser.add_argument("--cells", type=int, default=20, help="cells in all")
    parser.add_argument("--parallel", type=int, default=2, help="cells at a time")
    parser.add_argument("--maximize", action="store_true", help="the objective is better where larger")
    parser.add_argument("--seed", type=int, default=0, help="of Optuna's sampler")
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if arguments.maximize else "minimize",
                                sampler=optuna.samplers.TPESampler(seed=arguments.seed))
    with switchyard.connect() as client:
        since = client.ask(arguments.sweep).ended
        trials = {}
        started = 0
        while started < arguments.cells or trials:
            while started < arguments.cells and len(trials) < arguments.parallel:
                trial = study.ask()
                [cell] = client.tell(arguments.sweep, cells=[suggest(trial)])
                trials[cell] = trial
                started += 1
            time.sleep(arguments.poll_seconds)
            answer = client.ask(arguments.sweep, since)
            since = answer.ended
            for report in answer.cells:
                if report.end == 0 or report.cell not in trials:
                    continue
                trial = trials.pop(report.cell)
                if math.isfinite(report.value):
                    study.tell(trial, report.value)
                else:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                print(f"cell {report.cell}: {report.value:.6g} {trial.params}", flush=True)
        client.tell(arguments.sweep, close=True)
    print(f"best: {study.best_value:.6g} {study.best_params}")


if __name__ == "__main__":
    main()
