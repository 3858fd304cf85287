"""One exception type per floor. Each is a ValueError whose message says what was wrong, what was
found and what would be right; the command line prints it in one line and exits with 2."""

from __future__ import annotations


class CompacterError(ValueError):
    """Any error that the user of this package can put right."""


class SettingError(CompacterError):
    """nn/: a setting that does not fit the mathematics or the model's widths."""


class ArchitectureError(CompacterError):
    """models/: a model that cannot be found, or whose parts cannot be told apart."""


class AdapterError(CompacterError):
    """tuners/: an adapter that cannot be added, merged, saved, loaded or read."""


class MethodError(CompacterError):
    """methods/: a method that does not exist or does not apply."""


class TaskError(CompacterError):
    """tasks/: a task that does not exist, or data that cannot be read, split or scored."""


class ExtraError(CompacterError):
    """Any floor: an optional package that is needed now and is not installed."""


class BenchError(CompacterError):
    """bench/: a measurement that cannot be made as asked for."""


class TrainingError(CompacterError):
    """training/: a recipe that does not fit, or a run that cannot start, go on or finish."""


class ExperimentError(CompacterError):
    """experiments/: a grid that does not fit, or a folder that holds no sweep."""


class ReportError(CompacterError):
    """report/: a folder without runs, or a run that cannot be read."""
