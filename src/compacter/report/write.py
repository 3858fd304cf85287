"""A folder of runs becomes a report."""

from __future__ import annotations

from pathlib import Path

from compacter.errors import ReportError
from compacter.report.content import Content, make_content
from compacter.report.page import render
from compacter.report.runs import read_folder
from compacter.report.statistics import RESAMPLES
from compacter.report.writers import csv_text, latex, markdown, svg_file
from compacter.training.result import write_atomically

PAGE_NAME = "report.html"


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    title: str | None = None,
    best_of_seeds: bool = False,
    resamples: int = RESAMPLES,
) -> tuple[Path, Content]:
    """Write report.html, report.md, report.tex, tables/*.csv and figures/*.svg into `output`, or
    into the folder `report` beside the runs; the page's path and what it says."""
    folder = Path(folder)
    target = folder / "report" if output is None else Path(output)
    if resamples < 1:
        raise ReportError(f"resamples={resamples} does not fit; expected 1 or more")
    content = make_content(
        read_folder(folder), title=title, best_of_seeds=best_of_seeds, resamples=resamples
    )
    texts = {
        PAGE_NAME: render(content),
        "report.md": markdown(content),
        "report.tex": latex(content),
    }
    texts |= {f"tables/{table.name}.csv": csv_text(table) for table in content.tables}
    texts |= {f"figures/{figure.name}.svg": svg_file(figure) for figure in content.figures}
    try:
        for name, text in texts.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {str(target)!r}: {error.strerror}; expected a folder "
            "that can be written to"
        ) from None
    return target / PAGE_NAME, content
