"""What each of our methods can do, tried on a tiny model: docs/abilities.md.

    python benchmarks/abilities.py            # or: make abilities

A probe uses an ability as a user would and compares numbers. It gives "yes" if they are right,
"refused" if the package says that it cannot be done, and "no" for anything else."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from compacter.errors import CompacterError
from probes import PROBES, NotTriedError, be_quiet

PAGE = Path(__file__).resolve().parents[1] / "docs" / "abilities.md"
METHODS = (
    "compacter",
    "compacter++",
    "phm-adapter",
    "adapter-lowrank",
    "adapter",
    "bitfit",
    "intrinsic-said",
)


@dataclass(frozen=True)
class Verdict:
    word: str
    says: str = ""


def probe(try_it: Callable[[str], None], method: str) -> Verdict:
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try_it(method)
    except NotTriedError as error:
        return Verdict("not tried", str(error))
    except CompacterError as error:
        return Verdict("refused", str(error))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        says = next((line for line in reversed(lines) if "Error:" in line), lines[0])
        says = re.sub(r":? <class .*", "", says)  # sets of classes, in any order
        return Verdict("no", f"{type(error).__name__}: {says}"[:200])
    return Verdict("yes")


def markdown(found: dict[str, dict[str, Verdict]]) -> str:
    notes: dict[str, int] = {}

    def cell(verdict: Verdict) -> str:
        if not verdict.says:
            return verdict.word
        return f"{verdict.word}[^{notes.setdefault(verdict.says, len(notes) + 1)}]"

    methods = list(next(iter(found.values())))
    lines = [HEAD, f"| | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for title, verdicts in found.items():
        lines.append(f"| {title} | {' | '.join(cell(v) for v in verdicts.values())} |")
    lines += ["", *(f"[^{number}]: {says}" for says, number in notes.items())]
    return "\n".join(lines) + "\n"


HEAD = """\
<!-- Written by benchmarks/abilities.py; edit that instead. -->

# What the methods can do

`make abilities` tries each of these on a tiny Llama, with weights that are not those an adapter
starts with, and compares outputs and gradients with those of the plain way. *Refused*: an error of
this package says why. *No*: another error, or a wrong result; the note holds its message. *Not
tried*: what it needs is missing, such as `pip install bitsandbytes`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="probes with this in their title; not written")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    arguments = parser.parse_args()
    be_quiet()
    found = {}
    for title, try_it in PROBES.items():
        if arguments.only in title:
            found[title] = {method: probe(try_it, method) for method in arguments.methods}
            words = ", ".join(f"{m} {v.word}" for m, v in found[title].items())
            print(f"{title}: {words}", file=sys.stderr)
    page = markdown(found)
    if arguments.only or list(arguments.methods) != list(METHODS):
        print(page)
    else:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
