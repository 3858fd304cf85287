"""`compacter train`, `evaluate`, `predict` and `compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compacter.errors import TrainingError
from compacter.training.folder import recipe_file
from compacter.training.recipe import DATA_KEYS, Recipe
from compacter_cli.flags import with_recipe
from compacter_cli.output import console, print_json, table_of_numbers

if TYPE_CHECKING:
    from compacter.training.result import Result

RecipeName = Annotated[
    str | None,
    typer.Argument(help="A YAML file, or one of 'compacter recipes'; flags win over it."),
]
Adapter = Annotated[Path, typer.Option(help="The folder of a run, or of the adapter in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@with_recipe()
def train(
    *,
    recipe: RecipeName = None,
    output: Annotated[Path, typer.Option(help="Folder for all that the run leaves.")] = Path(
        "runs/latest"
    ),
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the run in the folder, once the new one is complete.")
    ] = False,
    report_to: Annotated[
        str | None, typer.Option(help="tensorboard, wandb or trackio (default: nothing).")
    ] = None,
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """Train one method on one task; what is not set is as in the paper."""
    named = recipe_file(recipe, output, resume=resume)
    Recipe.read(named, given)  # what does not fit is told before torch is imported
    from compacter.training.api import train as run
    from compacter.training.run import is_main_process

    result = run(
        output=output,
        recipe=named,
        resume=resume,
        overwrite=overwrite,
        report_to=report_to,
        watched=True,
        **given,
    )
    if not is_main_process():
        return
    if as_json:
        print_json(_plain(result))
        return
    _print_results([result])
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"everything is in {output}")


@with_recipe()
def compare(
    *,
    recipe: RecipeName = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between them.")] = (
        "full,adapter,compacter,compacter++"
    ),
    output: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/compare"),
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")
    ] = 1,
    resume: Annotated[bool, typer.Option(help="Take finished runs, go on with others.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace runs that are there, each once its new one is complete.")
    ] = False,
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """The same run for several methods, and one table."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise TrainingError("--methods is empty; expected names with commas between them")
    from compacter.experiments.compare import compare as run
    from compacter.training.progress import silence_transformers

    silence_transformers()
    results = run(
        recipe=recipe,
        methods=names,
        output=output,
        jobs=jobs,
        resume=resume,
        overwrite=overwrite,
        watched=True,
        **given,
    )
    if as_json:
        print_json([_plain(result) for result in results])
        return
    _print_results(results)


@with_recipe(DATA_KEYS)
def evaluate(
    *,
    adapter: Adapter,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    as_json: Json = False,
    given: dict[str, Any],
) -> None:
    """Score a finished run on a split of its data, or of other data with the same labels."""
    from compacter.tasks import SPLITS
    from compacter.training.inference import evaluate as run
    from compacter.training.progress import silence_transformers

    if split not in SPLITS:
        raise TrainingError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    silence_transformers()
    found = run(adapter, split, **given)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value:.2f}")


def predict(
    adapter: Adapter,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or JSON objects with the fields of the run's task."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A .csv, .tsv, .jsonl or .parquet file with the text columns that the run was "
            "trained on; any other file, or - for standard input, has a text, or a JSON object of "
            "fields, on each line."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the answers into this .csv, .tsv, .jsonl or .parquet file, beside the "
            "columns that were given."
        ),
    ] = None,
) -> None:
    """Answer new texts: labels in words with their scores, a JSON object a line.

    An encoder gives the probabilities of all labels, too; a model that writes text has none."""
    from compacter.training.inputs import STANDARD_INPUT, Source

    if texts and file is not None:
        raise TrainingError("texts and --file are both given; expected one of them")
    if texts:
        source = Source.from_arguments(texts)
    elif file is None and sys.stdin.isatty():
        source = Source(lines=[])
    else:
        source = Source.from_file(file or STANDARD_INPUT)
    if source.lines == []:
        raise TrainingError("there is nothing to predict: give texts, --file, or standard input")
    from compacter.training.answers import answer_of, as_json
    from compacter.training.inference import answer
    from compacter.training.progress import silence_transformers

    silence_transformers()
    found = answer(adapter, source, output)
    if output is not None:
        typer.echo(f"compacter: wrote {len(found):,} answers to {output}", err=True)
        return
    for given, prediction in found:
        typer.echo(as_json({"input": given, **answer_of(prediction)}))


def _plain(result: Result) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(result)


def _print_results(results: list[Result]) -> None:
    metrics = list(dict.fromkeys(name for r in results for name in (r.test or r.validation)))
    where = "test" if results[0].test else "validation"
    title = f"{results[0].task} on {results[0].model}, {where} scores"
    columns = ("trained", "%", "head", *metrics, "seconds", "MB")
    table = table_of_numbers(title, "method", *columns)
    for r in results:
        scores = r.test or r.validation
        table.add_row(
            r.method if r.status == "finished" else f"{r.method} ({r.status})",
            f"{r.trainable:,}",
            f"{r.percent:.3f}",
            f"{r.head_trainable:,}",
            *(f"{scores[name]:.2f}" for name in metrics),
            f"{r.seconds:.0f}",
            f"{r.peak_memory_bytes / 1e6:.0f}",
        )
    console().print(table)
