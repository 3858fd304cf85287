"""A report of a folder, and its tables by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compacter.report import write_report
from compacter.report.cells import Table
from compacter.report.content import Content


def contents(folder: Path, **options: Any) -> Content:
    return write_report(folder, **options)[1]


def table_of(content: Content, name: str) -> Table:
    (found,) = (table for table in content.tables if table.name == name)
    return found


def rows_of(table: Table) -> dict[str, list[Any]]:
    return {row[0].text: list(row) for row in table.rows}
