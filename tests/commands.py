"""What a command of `compacter` answers. The fixture `command` (conftest.py) runs one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Answer]


def check_refused(answer: Answer, *parts: str) -> None:
    """Bad input: exit code 2, and one line that says these things."""
    assert answer.code == 2, answer
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("compacter: ")
    for part in parts:
        assert part in line
