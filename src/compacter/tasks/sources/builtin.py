"""Tasks that the package makes itself."""

from __future__ import annotations

from dataclasses import dataclass

from compacter.tasks.rows import Row
from compacter.tasks.table import Split, Task


@dataclass(frozen=True)
class Builtin:
    """The rows of `builtin/roles`, `builtin/tone` and `builtin/grammar`."""

    def load_rows(self, task: Task, split: Split) -> list[Row]:
        from compacter.tasks.builtin import generate

        return generate(task, split)
