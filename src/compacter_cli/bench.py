"""`compacter bench`: size, time and memory of every method on one model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compacter.errors import BenchError
from compacter_cli.output import console, print_json, table_of_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from compacter.bench import BenchSettings


def bench(
    model: Annotated[
        str | None,
        typer.Option(
            help="t5-small (default), t5-base, a folder or a hub name; its weights are random."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas between them (default: all).")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows in a training step (8).")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a row (128).")] = None,
    target_length: Annotated[
        int | None, typer.Option(help="Tokens that an encoder-decoder learns to write (4).")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="Tokens to decode, greedily, for one row (20).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Turns that every method gets (5).")] = None,
    task: Annotated[
        str | None, typer.Option(help="The task whose epoch is reckoned (mnli).")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="For the largest batch, such as 24GB (the default).")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="table3: bottleneck 24, n=4, 100 tokens, d'=1400 on t5-base.")
    ] = None,
    bottleneck: Annotated[int | None, typer.Option(help="Of the adapter methods.")] = None,
    n: Annotated[int | None, typer.Option(help="Of PHM-Adapter and Compacter.")] = None,
    num_tokens: Annotated[int | None, typer.Option(help="Of prompt tuning.")] = None,
    intrinsic_dim: Annotated[int | None, typer.Option(help="d' of Intrinsic-SAID.")] = None,
    head: Annotated[
        str | None, typer.Option(help="A class of transformers to build the model with.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... (default: the best).")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw Figure 1 into this .svg, .png or .html file.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="For the figure: what 'compacter compare --json' printed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure parameters, time and memory of every method, as in Table 3 of the paper."""
    from compacter.bench import measure, parse_size

    given = {
        "model": model,
        "methods": None if methods is None else _names(methods),
        "batch": batch,
        "length": length,
        "target_length": target_length,
        "new_tokens": new_tokens,
        "rounds": rounds,
        "task": task,
        "memory_budget": None if memory_budget is None else parse_size(memory_budget),
        "head": head,
        "device": device,
    }
    of_methods = {
        "bottleneck": bottleneck,
        "n": n,
        "num_tokens": num_tokens,
        "intrinsic_dim": intrinsic_dim,
    }
    settings = _settings(preset, given, of_methods)
    known_scores = None if scores is None else read_scores(scores)
    if figure is not None:
        from compacter.bench.figure import check_figure, check_scores

        check_figure(figure)
        check_scores(known_scores, settings.names)
    elif scores is not None:
        raise BenchError("--scores is given without --figure, for which it is; expected both")
    from compacter.training.progress import silence_transformers

    silence_transformers()
    try:
        report = measure(settings, on_progress=_show_progress)
    finally:
        _show_progress("")
    for method, reason in report.left_out.items():
        typer.echo(f"compacter: left out {method}: {reason}", err=True)
    plain = report.plain()
    if as_json:
        print_json(plain)
    else:
        _print_tables(plain)
    if figure is not None:  # after all that cannot fail
        from compacter.bench.figure import draw

        draw(plain, figure, known_scores)
        typer.echo(f"compacter: wrote {figure}", err=True)


def _names(methods: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if not names:
        raise BenchError("--methods is empty; expected names with commas between them")
    return names


def _settings(
    preset: str | None, given: dict[str, Any], of_methods: dict[str, int | None]
) -> BenchSettings:
    """A preset, over which flags win."""
    from compacter.bench import PRESETS, BenchSettings

    if preset is not None and preset not in PRESETS:
        raise BenchError(f"there is no preset {preset!r}; expected {', '.join(PRESETS)}")
    values = dict(PRESETS[preset]) if preset is not None else {}
    own = {**values.get("settings", {}), **{k: v for k, v in of_methods.items() if v is not None}}
    values |= {name: value for name, value in given.items() if value is not None}
    return BenchSettings(**{**values, "settings": own})


def read_scores(path: Path) -> dict[str, float]:
    """Method -> score, from the JSON of `compacter compare`."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [(row["method"], row["score"]) for row in rows if row["score"] is not None]
        scores = {method: float(score) for method, score in found}
        if len(scores) < len(found) or not all(map(math.isfinite, scores.values())):
            raise ValueError
        return scores
    except OSError as error:
        raise BenchError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise BenchError(
            f"{str(path)!r} does not hold scores; expected what 'compacter compare --json' prints, "
            "a list of objects with method and score, a number, one for each method"
        ) from None


def _show_progress(text: str) -> None:
    """On a terminal only, where a line can be taken back."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _print_tables(report: dict[str, Any]) -> None:
    for table in (_steps(report), _uses(report), _memory(report), _batches(report)):
        console().print(table)
        console().print()
    console().print(
        "paper: Table 3, T5-base on MNLI; its memory is compared with full fine-tuning's here, "
        "where the table divides by the method's own."
    )


def _steps(report: dict[str, Any]) -> Table:
    machine = report["machine"]
    table = table_of_numbers(
        f"{report['model']}, batch {report['batch']} x {report['length']}, {machine['device']}, "
        f"{machine['threads']} threads: a training step, beside full fine-tuning's",
        *("method", "trained", "%", "step\nms", "median\n%", "minimum\n%", "paper\n%"),
    )
    for row in report["methods"]:
        step, paper = row["step"], row["paper"] or {}
        table.add_row(
            row["method"],
            f"{row['trainable']:,}",
            f"{row['percent']:.3f}",
            f"{1e3 * step['median']:,.0f}",
            _signed(step["percent"]),
            _signed(100 * (step["ratio_of_minima"] - 1)),
            _signed(paper.get("time_percent")),
        )
    return table


def _uses(report: dict[str, Any]) -> Table:
    table = table_of_numbers(
        f"An epoch of {report['task']}, and decoding {report['new_tokens']} tokens of one row",
        *("method", "epoch\nminutes", "decoding\nms", "median\n%"),
    )
    for row in report["methods"]:
        decode = row["decode"] or {}
        table.add_row(
            row["method"],
            f"{row['epoch_minutes']:,.1f}",
            f"{1e3 * decode['median']:,.0f}" if decode else "",
            _signed(decode.get("percent")),
        )
    return table


def _memory(report: dict[str, Any]) -> Table:
    has_peak = any(row["memory"]["cuda_peak"] is not None for row in report["methods"])
    table = table_of_numbers(
        "Memory of a training step in MB, at most",
        *("method", "weights", "gradients", "optimiser", "activations", "total", "%"),
        *(["peak"] if has_peak else []),
    )
    parts = ("weights", "gradients", "optimizer", "activations", "total")
    for row in report["methods"]:
        memory = row["memory"]
        table.add_row(
            row["method"],
            *(f"{memory[part] / 1e6:,.1f}" for part in parts),
            _signed(memory["percent"]),
            *([f"{memory['cuda_peak'] / 1e6:,.1f}"] if has_peak else []),
        )
    return table


def _batches(report: dict[str, Any]) -> Table:
    table = table_of_numbers(
        f"The largest batch that fits {report['memory_budget'] / 1e9:g} GB",
        *("method", "rows", "MB\nper row", "%", "paper\n%"),
    )
    for row in report["methods"]:
        memory, paper = row["memory"], row["paper"] or {}
        table.add_row(
            row["method"],
            f"{memory['largest_batch']:,}" if memory["largest_batch"] else "none",
            f"{memory['per_sample'] / 1e6:,.1f}" if memory["per_sample"] else "",
            _signed(memory["per_sample_percent"]),
            _signed(paper.get("memory_percent")),
        )
    return table


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"
