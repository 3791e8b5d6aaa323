"""TPE of Optuna and of Switchyard side by side: the mean over seeds of the best of CELLS evaluations of
the objectives of tests/suites/search_problems.h (minimum 0), and milliseconds per proposal.

usage: tpe_optuna.py SEARCH_BENCH [CELLS [SEEDS]]     needs: optuna

One JSON object a line and objective; exit 1 when Switchyard's mean is above Optuna's by more than a
standard error of Optuna's on some objective.
"""
import json
import math
import statistics
import subprocess
import sys
import time

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def sphere(trial):
    return sum((trial.suggest_float(f"x{i}", -1, 1) - 0.3) ** 2 for i in range(4))


def rosenbrock(trial):
    x, y = trial.suggest_float("x", -2, 2), trial.suggest_float("y", -1, 3)
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def branin(trial):
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    a = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return a * a + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887357729739


def tuning(trial):
    kind = trial.suggest_categorical("kind", [0, 1, 2, 3])
    lr = math.log10(trial.suggest_float("lr", 1e-5, 1e-1, log=True)) + 3.2
    rest = 0.02 * abs(trial.suggest_int("rank", 2, 64) - 11) if kind == 1 else 0.4 + 0.2 * kind
    return 0.3 * lr * lr + rest


def main():
    bench, cells, seeds = sys.argv[1], int((sys.argv[2:] + ["100"])[0]), int((sys.argv[3:] + ["20"])[0])
    lines = subprocess.run([bench, str(cells), str(seeds)], check=True, capture_output=True, text=True).stdout
    own = {(row["objective"], row["strategy"]): row for row in map(json.loads, lines.splitlines())}
    is_worse = False
    for objective in (sphere, rosenbrock, branin, tuning):
        best, start = [], time.perf_counter()
        for seed in range(seeds):
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
            study.optimize(objective, n_trials=cells)
            best.append(study.best_value)
        took = time.perf_counter() - start
        error = statistics.stdev(best) / math.sqrt(seeds) if seeds > 1 else 0.0
        row = own[objective.__name__, "tpe"]
        is_worse |= row["best_mean"] > statistics.mean(best) + error
        print(json.dumps({"objective": objective.__name__, "cells": cells, "seeds": seeds,
                          "optuna": optuna.__version__, "optuna_best_mean": statistics.mean(best),
                          "optuna_standard_error": error, "switchyard_best_mean": row["best_mean"],
                          "random_best_mean": own[objective.__name__, "random"]["best_mean"],
                          "optuna_ms_per_cell": 1e3 * took / cells / seeds,
                          "switchyard_ms_per_cell": row["ms_per_cell"]}), flush=True)
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
