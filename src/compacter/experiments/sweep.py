"""A sweep: plan the runs of a grid, leave out the finished ones, let an engine do the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from compacter.experiments.engines import Ended, Engine
from compacter.experiments.engines.local import Local, call_all
from compacter.experiments.grid import Grid
from compacter.experiments.overview import Overview
from compacter.experiments.store import Planned, Run, Store

LOST_AT_MOST = 3  # times that a run's process may be lost before the run counts as failed
TICK = 1.0  # seconds between looks at what goes on
PLANNING = "planning"


Watch = Callable[[Overview, Run | None], None]
"""Called at every tick, and with each run that has just ended."""


def sweep(
    grid: Grid | str | Path,
    output: str | Path,
    *,
    engine: Engine | None = None,
    jobs: int = 1,
    retry_failed: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> list[Run]:
    """Run a grid (its name, its file, or a Grid) and leave everything in the folder `output`.

    Finished runs are skipped, interrupted ones go on, failed ones are left unless they are to be
    tried again. Settings give a key of the recipe one value, or, as a list, the values of an axis.
    The engine is this machine, `jobs` runs at a time, unless another one is given."""
    wanted = _given(grid if isinstance(grid, Grid) else Grid.read(grid), settings)
    store = Store.create(output)
    own = engine is None
    engine = engine or Local(jobs)
    try:
        plan = plan_runs(wanted)
        store.write(wanted.plain(), plan)
        return _Sweep(store, plan, engine, retry_failed, watch or (lambda *_: None)).run()
    finally:
        if own:
            engine.close()


def _given(grid: Grid, settings: Mapping[str, Any]) -> Grid:
    lists = {key: value for key, value in settings.items() if isinstance(value, list)}
    single = {key: value for key, value in settings.items() if key not in lists}
    return grid.with_values(single).with_axes(lists)


def plan_runs(grid: Grid) -> list[Planned]:
    """The runs of a grid, planned in a process of its own, so that the one that watches over them
    stays small and touches no device; the imports are those that the runs need anyway."""
    plan: list[Planned] = call_all({PLANNING: partial(_make_plan, grid)})[PLANNING]
    return plan


def _make_plan(grid: Grid) -> list[Planned]:
    from compacter.experiments.plan import make_plan
    from compacter.training.progress import silence_transformers

    silence_transformers()
    return make_plan(grid)


def _execute(folder: Path, run: Planned, retry: bool) -> str:
    from compacter.experiments.worker import execute

    return execute(folder, run, retry)


class _Sweep:
    """The runs of a plan on their way."""

    def __init__(
        self, store: Store, plan: list[Planned], engine: Engine, retry_failed: bool, watch: Watch
    ) -> None:
        self.store = store
        self.plan = {run.id: run for run in plan}
        self.engine = engine
        self.retry_failed = retry_failed
        self.watch = watch
        self.overview = Overview({}, max(1, min(engine.slots, len(plan))))
        self.submitted: set[str] = set()
        self.elsewhere: set[str] = set()
        """Runs that another sweep is at."""
        self.lost: Counter[str] = Counter()
        self.unrecorded: dict[str, str] = {}
        """Errors of runs whose failure could not be written down, as on a disk that is full."""

    def run(self) -> list[Run]:
        for run in self.plan.values():
            self._begin(run)
        self.watch(self.overview, None)
        while self.submitted or self.elsewhere:
            for ended in self.engine.ended(TICK):
                self._end(ended)
            self._look_elsewhere()
            self._look_at_running()
            self.watch(self.overview, None)
        return list(self.overview.runs.values())

    def _begin(self, run: Planned) -> None:
        if run.data_fingerprint is None:
            self._fail(run, run.error or "", run.kind or "", self.store.forget_failure(run.id) + 1)
        elif self.store.is_finished(run.id):
            self.store.tidy(run.id)
        elif self.retry_failed or not self.store.has_failed(run.id):
            self._submit(run)
        self._forget_unread(run)
        self._look(run.id)

    def _forget_unread(self, run: Planned) -> None:
        """The failure that stood for a run whose data could not be read goes, now that it can."""
        if run.data_fingerprint is not None:
            self.store.remove(run.unread_id)

    def _submit(self, run: Planned) -> None:
        self.submitted.add(run.id)
        self.engine.submit(run.id, partial(_execute, self.store.folder, run, self.retry_failed))

    def _end(self, ended: Ended) -> None:
        run = self.plan[ended.key]
        self.submitted.discard(run.id)
        if ended.value == "busy":
            self.elsewhere.add(run.id)
            return
        if ended.lost is not None and not self.store.is_finished(run.id):
            self.lost[run.id] += 1
            if self.lost[run.id] < LOST_AT_MOST:
                self._submit(run)
                return
            self._fail(run, ended.lost, "LostProcess", self.lost[run.id])
        elif ended.error is not None:
            self._fail(run, str(ended.error), type(ended.error).__name__, 1)
        elif ended.value == "finished":
            self.store.tidy(run.id)
        self.watch(self.overview, self._look(run.id))

    def _fail(self, run: Planned, error: str, kind: str, attempts: int) -> None:
        try:
            claim = self.store.claim(run.id)
            if claim is None:
                self.elsewhere.add(run.id)
                return
            with claim:
                self.store.fail(run, error, kind, attempts)
        except OSError as second:
            self.unrecorded[run.id] = f"{error} (which could not be written down: {second})"

    def _look(self, run: str) -> Run:
        found = self.store.look(run, self.plan[run])
        if found.state == "waiting" and run in self.unrecorded:
            found = replace(found, state="failed", error=self.unrecorded[run])
        self.overview.update(found)
        return found

    def _look_elsewhere(self) -> None:
        for run in sorted(self.elsewhere):
            found = self._look(run)
            if found.state != "running":
                self.elsewhere.discard(run)
                if found.state == "waiting":
                    self._submit(self.plan[run])
                else:
                    self.watch(self.overview, found)

    def _look_at_running(self) -> None:
        for run in self.submitted:
            self._look(run)
