"""How long `compacter runs` and `compacter report` take on a thousand finished runs.

    python benchmarks/many_runs.py RUN...     # folders that 'compacter train' has left

The runs are multiplied: copies with other seeds, planned and stored as a sweep would. The commands
are started as a user starts them."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from compacter.experiments.store import Planned, Store, run_id
from compacter.training.result import PREDICTIONS_NAME, RESULT_NAME

LIMITS = {"runs": 1.0, "report": 15.0}
"""Seconds."""


def multiply(runs: list[Path], folder: Path, count: int) -> None:
    """A sweep of so many runs in the folder, with the results of these."""
    store, plan = Store.create(folder), []
    for seed, source in enumerate(islice(cycle(runs), count)):
        result = json.loads((source / RESULT_NAME).read_text(encoding="utf-8"))
        result["seed"] = result["recipe"]["seed"] = seed
        recipe, digest = result["recipe"], result["data_fingerprint"]
        name = run_id(recipe, digest)
        given = {key: value for key, value in recipe.items() if value is not None}
        label = f"{result['method']} {result['task']} seed={seed}"
        plan.append(Planned(name, label, given, recipe, digest, name))
        target = store.run_folder(name)
        target.mkdir(parents=True)
        (target / RESULT_NAME).write_text(json.dumps(result, indent=1), encoding="utf-8")
        shutil.copy(source / PREDICTIONS_NAME, target)
    store.write({"axes": {}}, plan)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--count", type=int, default=1_000, help="runs to make of them")
    arguments = parser.parse_args()
    within = True
    with tempfile.TemporaryDirectory() as folder:
        multiply(arguments.runs, Path(folder), arguments.count)
        for command, limit in LIMITS.items():
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "compacter_cli", command, folder],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            seconds = time.perf_counter() - started
            within &= seconds <= limit
            print(f"compacter {command}: {seconds:.2f} s for {arguments.count:,} runs ({limit:g})")
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
