"""`compacter report`: finished runs as one page, and as Markdown, CSV and LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path, typer.Argument(help="A folder with runs, such as that of a sweep or a comparison.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where to write (default: 'report' in the folder).")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    best_of_seeds: Annotated[
        bool,
        typer.Option(
            "--best-of-seeds", help="Show the seed that is best on validation, not the mean."
        ),
    ] = False,
) -> None:
    """Make the paper's tables and figures of finished runs."""
    from compacter.report.write import write_report

    page, content = write_report(folder, output, title=title, best_of_seeds=best_of_seeds)
    for section in content.sections:
        typer.echo(f"{section.title}: {section.summary}")
    typer.echo(f"{', '.join(content.facts[:-1])}; the page is {page}")
