"""Several runs on this machine, one after the other or at the same time."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from compacter.errors import TrainingError
from compacter.training.progress import Progress, announce, silence_transformers
from compacter.training.recipe import Recipe
from compacter.training.result import Result
from compacter.training.run import check_folder, train


def train_all(
    recipes: Sequence[Recipe],
    folders: Sequence[Path],
    *,
    jobs: int = 1,
    overwrite: bool = False,
    watched: bool = False,
) -> list[Result]:
    """A result for each recipe. With several jobs at a time each has a process of its own and its
    share of the threads. Watched runs tell their progress on standard error."""
    if jobs < 1:
        raise TrainingError(f"jobs={jobs} does not fit; expected 1 or more")
    for folder in folders:
        check_folder(folder, overwrite=overwrite)
    runs = list(zip(recipes, folders, strict=True))
    if jobs == 1 or len(runs) < 2:
        return [_train(recipe, folder, overwrite, watched, "") for recipe, folder in runs]
    jobs = min(jobs, len(runs))
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_start, initargs=(threads, watched)
    ) as pool:
        futures = [
            pool.submit(_train, recipe, folder, overwrite, watched, f"{folder.name}: ")
            for recipe, folder in runs
        ]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(threads: int, watched: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a process without a trace
    torch.set_num_threads(threads)
    if watched:
        silence_transformers()


def _train(recipe: Recipe, folder: Path, overwrite: bool, watched: bool, label: str) -> Result:
    return train(
        recipe,
        folder,
        overwrite=overwrite,
        on_start=announce if watched else None,
        callbacks=[Progress(label)] if watched else [],
    )
