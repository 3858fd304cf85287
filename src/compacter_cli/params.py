"""`compacter params`: trained and total parameters of every method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from compacter.paper import printed_figures
from compacter_cli.output import console, print_json, table_of_numbers

if TYPE_CHECKING:
    from compacter.methods.counting import Count, Formulas


def params(
    model: Annotated[
        str,
        typer.Option(
            help="t5-small, -base, -large, -3b, -11b, builtin/minilm, a folder or a hub name."
        ),
    ] = "t5-base",
    tasks: Annotated[
        int, typer.Option(min=1, help="Tasks that share the model (GLUE: 8, SuperGLUE: 6).")
    ] = 8,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Shares of norms and biases; section 4's formulas.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Count the trained parameters of every method on a model, without loading its weights."""
    from compacter.methods.counting import count_all, formulas
    from compacter.models import skeleton

    bones = skeleton(model)
    name = model.removeprefix("google-t5/")
    left_out: dict[str, str] = {}
    counts = list(count_all(bones, left_out))
    for method, reason in left_out.items():
        typer.echo(f"compacter: left out {method}: {reason}", err=True)
    rows = [_row(count, name, tasks, breakdown) for count in counts]
    section4 = formulas(bones) if breakdown else []
    if as_json:
        print_json(rows if not breakdown else {"methods": rows, "formulas": _plain(section4)})
        return
    _print_counts(model, rows, tasks)
    if breakdown:
        _print_breakdown(rows)
        _print_formulas(section4)


def _row(count: Count, model: str, tasks: int, breakdown: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"method": count.method}
    if count.n is not None:
        row["n"] = count.n
    if count.bottleneck is not None:
        row["bottleneck"] = count.bottleneck
    row |= {
        "trainable": count.trainable,
        "base": count.base,
        "percent": round(count.percent, 4),
        "total_multiple": round(count.total_multiple(tasks), 4),
        "tasks": tasks,
        "paper": printed_figures(model, count.method, count.n, tasks),
    }
    if count.head:
        row["head"] = count.head
    if breakdown and count.breakdown is not None:
        parts = count.breakdown
        row["breakdown"] = {
            "layer_norms": parts.layer_norms,
            "biases": parts.biases,
            "weights": parts.weights,
            "slow_weights": parts.slow_weights,
            "layer_norms_percent": round(100 * parts.block_layer_norms / count.trainable, 2),
            "biases_percent": round(100 * parts.biases / count.trainable, 2),
        }
    return row


def _plain(section4: list[Formulas]) -> list[dict[str, Any]]:
    return [
        {
            "k": f.k,
            "d": f.d,
            "n": f.n,
            "L": f.layers,
            "adapter": f.adapter,
            "phm-adapter": f.phm_adapter,
            "compacter": f.compacter,
            "kd > n^4": f.phm_saves,
        }
        for f in section4
    ]


def _print_counts(model: str, rows: list[dict[str, Any]], tasks: int) -> None:
    base = rows[0]["base"]
    table = table_of_numbers(
        f"{model}: {base:,} parameters",
        *("method", "n", "bottle-\nneck", "trained", "%", "paper\n%"),
        *(f"total for\n{tasks} tasks", "paper"),
    )
    for row in rows:
        paper = row["paper"] or {}
        table.add_row(
            row["method"],
            _text(row.get("n")),
            _text(row.get("bottleneck")),
            f"{row['trainable']:,}",
            f"{row['percent']:.4f}",
            _text(paper.get("trained_percent")),
            f"{row['total_multiple']:.4f}x",
            _text(paper.get("total_multiple")),
        )
    console().print(table)


def _print_breakdown(rows: list[dict[str, Any]]) -> None:
    table = table_of_numbers(
        "What the trained parameters are (Appendix B; its share of layer norms leaves out "
        "the final norm of each stack)",
        *("method", "n", "layer\nnorms", "%", "biases", "%", "weights", "slow\nweights A"),
    )
    for row in rows:
        if parts := row.get("breakdown"):
            table.add_row(
                row["method"],
                _text(row.get("n")),
                f"{parts['layer_norms']:,}",
                f"{parts['layer_norms_percent']:.2f}",
                f"{parts['biases']:,}",
                f"{parts['biases_percent']:.2f}",
                f"{parts['weights']:,}",
                f"{parts['slow_weights']:,}",
            )
    console().print(table)


def _print_formulas(section4: list[Formulas]) -> None:
    if not section4:
        return
    first = section4[0]
    table = table_of_numbers(
        f"Section 4, without biases: k={first.k}, d={first.d}, L={first.layers}",
        *("n", "adapter\n2L(2kd)", "phm-adapter\n4L(kd/n + n^3)", "compacter\n4L(k + d) + n^3"),
        "kd > n^4",
    )
    for f in section4:
        holds = f"{'yes' if f.phm_saves else 'no'}: {f.k * f.d:,} and {f.n**4:,}"
        table.add_row(str(f.n), f"{f.adapter:,}", f"{f.phm_adapter:,}", f"{f.compacter:,}", holds)
    console().print(table)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
