"""The versions that this release was tested with, checked when the package is imported.

The tuners use PEFT's internals, which change between its minor releases, so a release outside
the range is refused with a message instead of failing later in some other way."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

TESTED: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "torch": ((2, 6), (3, 0)),
    "transformers": ((5, 20), (6, 0)),
    "peft": ((0, 21), (0, 22)),
}
"""Package -> the lowest tested version, and the first that is not."""


def check_versions() -> None:
    for package, (lowest, beyond) in TESTED.items():
        wanted = f"{package}>={_text(lowest)},<{_text(beyond)}"
        try:
            found = version(package)
        except PackageNotFoundError:
            raise ImportError(
                f"compacter needs {package}, which is not installed: pip install '{wanted}'"
            ) from None
        parsed = _parse(found)
        if not lowest <= parsed < beyond:
            raise ImportError(
                f"compacter was tested with {wanted} and found {package} {found}: "
                f"pip install '{wanted}'"
            )


def _parse(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _text(parts: tuple[int, int]) -> str:
    return f"{parts[0]}.{parts[1]}"
