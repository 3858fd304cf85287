"""Where rows come from: the hub, the official files on disk, a user's own files, the package."""

from __future__ import annotations

from typing import Protocol

from compacter.tasks.rows import Row
from compacter.tasks.sources.builtin import Builtin
from compacter.tasks.sources.hub import Hub
from compacter.tasks.sources.official import OfficialFiles
from compacter.tasks.sources.own import UserData
from compacter.tasks.table import Split, Task

__all__ = ["Builtin", "Hub", "OfficialFiles", "Source", "UserData"]


class Source(Protocol):
    """Anything that has the rows of a task's published splits."""

    def load_rows(self, task: Task, split: Split) -> list[Row]: ...
