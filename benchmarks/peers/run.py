"""This package, PEFT's LoRA and `adapters`' Compacter on the same work, in one table.

    python benchmarks/peers/run.py            # or: make peers

`adapters` needs another transformers than this package, so the first run makes an environment for
it, in benchmarks/peers/.venv. Seconds of two environments cannot be compared; each figure is the
ratio to its own environment's reference: a step that trains the layer norms alone, the bare model
decoding, the same batch under one adapter. Writes results.json and results.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compacter.models import T5_DIMENSIONS
from compacter.models.loading import T5_VOCABULARY, T5Dimensions

HERE = Path(__file__).resolve().parent
TORCH = version("torch").partition("+")[0]  # the same as here, so that the library is the same
PINS = (f"torch=={TORCH}", "adapters==1.3.0", "transformers==4.57.6")

QUICK = T5Dimensions(d_model=128, d_ff=128, num_layers=2, num_heads=2, d_kv=64)

WORK = {
    "step 8 x 128": "training step of T5-small, batch 8 x 128, to training the layer norms alone",
    "step 1 x 16": "training step of T5-small, batch 1 x 16, to training the layer norms alone",
    "decode": "greedy decoding of 20 tokens, T5-base, batch 1, to the bare model",
    "mixed": "32 rows with 32 adapters, T5-small, length 32, to the same rows under one adapter",
}
TURNS = {"step 8 x 128": 8, "step 1 x 16": 10, "decode": 3, "mixed": 4}
"""How many times as many turns as asked for, because what is compared is close or short."""
COLUMNS = {
    "Compacter": ("ours", "compacter"),
    "Compacter++": ("ours", "compacter++"),
    "Adapter": ("ours", "adapter"),
    "`peft` LoRA r=8": ("ours", "lora"),
    "`adapters` Compacter": ("theirs", "compacter"),
}


def main() -> None:
    arguments = _arguments()
    python = environment(arguments.environment, arguments.python, arguments.torch_index)
    order = {
        "dimensions": {
            name: asdict(QUICK if arguments.quick else T5_DIMENSIONS[name])
            for name in ("t5-small", "t5-base")
        },
        "vocabulary": 256 if arguments.quick else T5_VOCABULARY,
        "rounds": {
            work: arguments.rounds * (1 if arguments.quick else turns)
            for work, turns in TURNS.items()
        },
        "mixed_rows": 4 if arguments.quick else 32,
    }
    results = {
        "order": order,
        "ours": measure(Path(sys.executable), "ours.py", order),
        "theirs": measure(python, "theirs.py", order),
    }
    table = markdown(results)
    output = arguments.output or (HERE / "results.quick" if arguments.quick else HERE)
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / "results.md").write_text(table)
    print(table)


def environment(folder: Path, python: str | None, torch_index: str | None) -> Path:
    """The Python of an environment with `adapters`, made if it is not there."""
    interpreter = folder / "bin" / "python"
    marker = folder / ".installed"
    wanted = "\n".join(PINS)
    if marker.is_file() and marker.read_text() == wanted:
        return interpreter
    print(f"making {folder} with {', '.join(PINS)}", file=sys.stderr)
    if python is None:
        venv.create(folder, with_pip=True, clear=True)
    else:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    install = [interpreter, "-m", "pip", "install", "--quiet"]
    if torch_index is not None:
        subprocess.run([*install, "--no-deps", "--index-url", torch_index, PINS[0]], check=True)
    subprocess.run([*install, *PINS], check=True)
    marker.write_text(wanted)
    return interpreter


def measure(python: Path, script: str, order: dict[str, Any]) -> dict[str, Any]:
    print(f"measuring with {script}", file=sys.stderr)
    keeps = python == Path(sys.executable)  # a path for this environment is none for another
    done = subprocess.run(
        [python, HERE / script],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if keeps or name != "PYTHONPATH"},
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def markdown(results: dict[str, Any]) -> str:
    """One table: ratios of medians, with what 95% of them lie in when rounds are drawn anew."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for work, title in WORK.items():
        cells = []
        for where, method in COLUMNS.values():
            found = results[where]["figures"].get(work, {}).get(method)
            cells.append(_cell(found) if found else "")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    versions = (
        ", ".join(f"{name} {number}" for name, number in results[where]["versions"].items())
        for where in ("ours", "theirs")
    )
    turns, threads = sorted(results["order"]["rounds"].values()), results["ours"]["threads"]
    measured = (
        f"Ratios of medians (95% of draws) over {turns[0]} to {turns[-1]} turns, {threads} threads."
    )
    lines += ["", f"{measured} {'; '.join(versions)}."]
    if results["order"]["vocabulary"] != T5_VOCABULARY:
        lines += ["", "A trial with tiny models and few rows, of which nothing can be concluded."]
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any]) -> str:
    low, high = found["ratio_interval"]
    return f"{found['ratio_of_medians']:.3f} ({low:.3f} to {high:.3f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns, times those of a work")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--environment", type=Path, default=HERE / ".venv")
    parser.add_argument("--python", help="another Python to make the environment with")
    parser.add_argument("--torch-index", help="another wheel index for torch")
    parser.add_argument("--output", type=Path, help="folder for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
