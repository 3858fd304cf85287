"""The report's tables as Markdown, CSV and LaTeX, and its figures as files of their own."""

from __future__ import annotations

import csv
import io
import re
from importlib.resources import files

from compacter.report.cells import BEST_OF, DASH, DIVERGED, MINUS, Cell, Table
from compacter.report.content import Content
from compacter.report.figures import Figure

MOST_ROWS = 200
"""A list of more runs than this is left to the CSV file."""


# Markdown


def markdown(content: Content) -> str:
    parts = [f"# {_md(content.title)}", _md(" · ".join(content.facts))]
    parts += [_md(content.warning)] if content.warning else []
    for section in content.sections:
        parts += [f"## {_md(section.title)}", _md(section.summary)]
        parts += [_md_table(table) for table in section.scores]
        parts += [_md_figure(figure) for figure in section.figures]
        parts += [_md_table(table) for table in section.details]
        if section.curves:
            parts.append("### Learning curves")
            parts += [_md_figure(figure) for figure in section.curves]
    for table in (content.failures, content.all_runs):
        if table is not None and len(table.rows) <= MOST_ROWS:
            parts.append(_md_table(table))
        elif table is not None:
            parts.append(f"### {table.title}\n\n{len(table.rows):,} rows: tables/{table.name}.csv")
    notes = "\n".join(f"- {_md(note)}" for note in content.notes)
    return "\n\n".join([*parts, f"## How to read this\n\n{notes}"]) + "\n"


def _md_table(table: Table) -> str:
    heads = [_md(" ".join(filter(None, (c.title, c.below)))) for c in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    rows = [[_md_cell(cell) for cell in row] for row in table.rows]
    body = "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))
    return f"### {_md(table.title)}\n\n{body}\n\n{_md(table.caption)}"


def _md_cell(cell: Cell) -> str:
    text = _md(cell.text)
    shown = f"**{text}**" if cell.best else text
    return " ".join([shown + _md(cell.marks), *map(_md, _extras(cell))])


def _md_figure(figure: Figure) -> str:
    return f"![{_md(figure.title)}](figures/{figure.name}.svg)\n\n{_md(figure.caption)}"


def _md(text: str) -> str:
    """Text as it is: nothing in it is markup."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def _extras(cell: Cell) -> list[str]:
    """What stands behind a number: its deviation, and what the page has below it."""
    parts = []
    if cell.deviation is not None:
        parts.append(f"± {cell.deviation:.2f}")
    if cell.second:
        parts.append(f"({cell.second})")
    return parts


# CSV


def csv_text(table: Table) -> str:
    """Plain values. Deviations over seeds, the paper's figures, and the ends of intervals with
    their p have columns of their own."""
    heads: list[str] = []
    columns: list[list[str]] = []
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        name = " ".join(filter(None, (column.title, column.below)))
        heads.append(name)
        columns.append([_csv_value(cell) for cell in cells])
        if any(cell.deviation is not None for cell in cells):
            heads.append(f"{name} deviation")
            columns.append([_number(cell.deviation) for cell in cells])
        if any(cell.paper is not None for cell in cells):
            heads.append(f"{name} paper")
            columns.append([_number(cell.paper) for cell in cells])
        for key in dict.fromkeys(key for cell in cells for key, _ in cell.more):
            heads.append(f"{name} {key}")
            columns.append([_number(dict(cell.more).get(key)) for cell in cells])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def _csv_value(cell: Cell) -> str:
    if isinstance(cell.value, str):
        return cell.text
    return _number(cell.value)


def _number(value: float | None) -> str:
    """Whole numbers, such as seeds, with all of their digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.8g}"


# LaTeX


def latex(content: Content) -> str:
    """Tables for \\input into a document with the package booktabs."""
    parts = [r"% \usepackage{booktabs}"]
    for section in content.sections:
        parts += [_tex_table(table, section.title) for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _tex_table(table: Table, where: str) -> str:
    shape = "".join("r" if column.numeric else "l" for column in table.columns)
    tops = " & ".join(rf"\textbf{{{_tex(column.title)}}}" for column in table.columns)
    belows = " & ".join(_tex(column.below) for column in table.columns)
    rows = "\n".join(" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in table.rows)
    caption = _tex(f"{where}: {table.title}. {table.caption}")
    return rf"""\begin{{table}}
\centering
\caption{{{caption}}}
\label{{tab:{table.name}}}
\begin{{tabular}}{{{shape}}}
\toprule
{tops} \\
{belows} \\
\midrule
{rows}
\bottomrule
\end{{tabular}}
\end{{table}}"""


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    shown = rf"\textbf{{{text}}}" if cell.best else text
    return " ".join([shown + _tex(cell.marks), *map(_tex, _extras(cell))])


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    MINUS: "$-$",
    DASH: "--",
    "±": r"$\pm$",
    BEST_OF: r"$\dagger$",
    DIVERGED: r"$\ddagger$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in " ".join(text.split()))


# Figures


def svg_file(figure: Figure) -> str:
    """A drawing that stands alone, with the page's style."""
    style = files("compacter.report").joinpath("page", "page.css").read_text(encoding="utf-8")
    opening, rest = figure.svg.split(">", 1)
    opening = opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{opening}><style>{style}\nsvg {{ background: var(--paper); }}</style>{rest}\n"
