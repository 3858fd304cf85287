"""The versions that this release supports, checked when the package is imported.

The tuners use PEFT's internals, which change between its minor releases, so a release outside
the range is refused with a message instead of failing later in some other way."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

Version = tuple[int, int, int]

SUPPORTED: dict[str, tuple[Version, Version]] = {
    "torch": ((2, 6, 0), (3, 0, 0)),  # what transformers needs; tested with 2.13
    "transformers": ((5, 20, 0), (6, 0, 0)),  # tested with 5.20 and 5.22
    "peft": ((0, 21, 2), (0, 22, 0)),  # 0.21.0 does not know transformers 5.20 and later
}
"""Package -> the lowest version, and the first that is too new."""


def check_versions() -> None:
    for package, (lowest, beyond) in SUPPORTED.items():
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
                f"compacter needs {wanted} and found {package} {found}: pip install '{wanted}'"
            )


def _parse(text: str) -> Version:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _text(version: Version) -> str:
    """Without zeros at the end: 5.20 and 0.21.2."""
    return ".".join(map(str, version)).removesuffix(".0")
