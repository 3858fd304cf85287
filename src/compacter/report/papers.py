"""The paper's figures, for runs that were trained as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compacter.experiments.grid import Dependent, Grid
from compacter.methods import METHODS
from compacter.paper import NUM_TOKENS, papers_model, printed_scores, tables
from compacter.report.runs import Run
from compacter.report.selection import Choice, Setting
from compacter.tasks import TASKS
from compacter.training.defaults import defaults_for


def paper_row(setting: Setting, choice: Choice) -> dict[str, Any] | None:
    """The paper's row for this method and its settings, less the scores of tasks that were trained
    in another way; None where no task was trained as in the paper."""
    if choice.method not in METHODS:
        return None
    alike = {task: runs for task, runs in choice.runs.items() if all(map(_as_in_the_paper, runs))}
    settings = {_settings(setting.model, run) for runs in alike.values() for run in runs}
    if len(settings) != 1:
        return None
    n, intrinsic_dim = settings.pop()
    row = printed_scores(
        setting.model,
        setting.benchmark,
        setting.tuned,
        choice.method,
        n=n,
        intrinsic_dim=intrinsic_dim,
    )
    if row is None or len(alike) == len(choice.runs):
        return row
    left_out = (choice.runs.keys() - alike.keys()) | {"avg"}
    return row | {"scores": {t: s for t, s in row["scores"].items() if t not in left_out}}


def papers_epochs(benchmark: str) -> Mapping[int, int]:
    """Epochs by number of training rows, where the paper has trained on few rows."""
    if benchmark != "glue":
        return {}
    (block,) = Grid.read("low-resource").blocks
    epochs = block.axes["epochs"]
    assert isinstance(epochs, Dependent)
    return {size: values[0] for size, values in epochs.table.items()}


def papers_efficiency(setting: Setting, runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Table 3, where all runs are one epoch of MNLI: differences to full fine-tuning in time and
    memory, by method. The printed ones in memory divide by the method's own."""
    if papers_model(setting.model) != "t5-base" or setting.tuned:
        return {}
    if any(
        (run.task, run.setting("epochs"), run.setting("max_train_samples")) != ("mnli", 1, None)
        for run in runs
    ):
        return {}
    rows = {row["method"]: row for row in tables()["efficiency_t5_base_mnli"]}
    full = rows.pop("full")["memory_mb"]
    found = {
        name: (row["time_delta_percent"], 100 * (row["memory_mb"] / full - 1))
        for name, row in rows.items()
    }
    both = found.pop("prompt-tuning")
    return found | {"prompt-tuning-r": both, "prompt-tuning-t": both}


def _as_in_the_paper(run: Run) -> bool:
    task, method = TASKS.get(run.task), METHODS[run.method]
    if task is None:
        return False
    usual = {
        "rank": 1,
        "num_tokens": NUM_TOKENS,
        "drop_layers": method.settings.get("drop_layers", 0),
        "quantize": None,
        "max_train_samples": None,
    }
    epochs = defaults_for(task, run.method, "t5-base", rows=0).epochs
    return run.setting("epochs") == epochs and all(
        run.setting(key) in (None, value) for key, value in usual.items()
    )


def _settings(model: str, run: Run) -> tuple[int | None, int | None]:
    """n and intrinsic_dim, of methods that have them."""
    method = METHODS[run.method]
    n, intrinsic_dim = None, None
    if method.n_preference:
        usual = method.n_preference[0 if papers_model(model) == "t5-base" else -1]
        n = run.setting("n") or usual
    if method.family == "intrinsic":
        intrinsic_dim = run.setting("intrinsic_dim") or method.settings["intrinsic_dim"]
    return n, intrinsic_dim
