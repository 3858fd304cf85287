"""Reports: finished runs become tables, figures and one page. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compacter.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module 'compacter.report' has no attribute {name!r}")
    from compacter.report.write import write_report

    return write_report
