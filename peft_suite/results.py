"""What came out, as tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from our_methods import METHODS, WITH_OUTPUT_LAYER

OUTCOMES = ("passed", "skipped", "explained", "failed")


@dataclass(frozen=True)
class Result:
    test: str
    """As pytest names it: file::class::test[arguments]."""
    method: str
    """Ours, or an empty string if the test is about none alone."""
    outcome: str
    says: str
    """Why it is explained, or the error's message."""

    @property
    def group(self) -> str:
        return self.test.split("::")[1]


def read(path: Path) -> list[Result]:
    return [Result(**result) for result in json.loads(path.read_text())]


def counts(results: Iterable[Result]) -> str:
    """ "passed / skipped / explained / failed", or an empty string for none."""
    found = Counter(result.outcome for result in results)
    return " / ".join(str(found[outcome]) for outcome in OUTCOMES) if found else ""


def summary(results: Sequence[Result]) -> str:
    """The same tables as on the page, and the failures."""
    failed = [f"FAILED {r.test}\n       {_first_line(r.says)}" for r in results if _failed(r)]
    return "\n".join([*failed, "", *_by_class(results), "", *_explained(results)])


def markdown(results: Sequence[Result], version: str, seconds: float) -> str:
    found = Counter(result.outcome for result in results)
    parts = [
        HEAD.format(
            version=version, minutes=round(seconds / 60), **{o: found[o] for o in OUTCOMES}
        ),
        *_by_class(results),
        EXPLANATIONS,
        *_explained(results),
    ]
    if found["failed"]:
        parts += ["\n## Failures\n", *_failures(results)]
    return "\n".join(parts) + "\n"


HEAD = """\
<!-- Written by `make peft-suite`; edit peft_suite/results.py instead. -->

# PEFT's test suite with our methods

`make peft-suite` downloads the tests of peft {version}, the version in `constraints.txt`, with its
source distribution, and runs its generic test classes with our configurations, on small models with
random weights. Nothing of PEFT is copied or changed: its classes are imported and get our lists of
configurations and models. Tests that are written for LoRA but hold for any method run with ours in
its place. The first run needs pip's index, none needs the hub. This one took {minutes} minutes.
`python peft_suite/run.py -k NAME` runs some of the tests.

{passed} tests passed, {skipped} were skipped, {explained} are explained, {failed} failed.

- *Skipped*: PEFT skips the test for methods that lack a setting, such as `bias`.
- *Explained*: the test expects what our methods do not do, and the table below says why. It must
  fail, with the message that belongs to the reason; if it does not, the run fails.

The columns are our methods; `+output` stands for `tune_output_layer=True`.

## Passed / skipped / explained / failed
"""

EXPLANATIONS = """
## Explained
"""


def _by_class(results: Sequence[Result]) -> list[str]:
    methods = [method.name for method in (*METHODS, *WITH_OUTPUT_LAYER)]
    groups = list(dict.fromkeys(result.group for result in results))
    lines = [f"| PEFT's class | {' | '.join(methods)} | all |"]
    lines.append("|---" * (len(methods) + 2) + "|")
    for group in [*groups, None]:
        inside = [r for r in results if group in (None, r.group)]
        cells = [counts(r for r in inside if r.method == method) for method in methods]
        lines.append(
            f"| {f'`{group}`' if group else 'all'} | {' | '.join(cells)} | {counts(inside)} |"
        )
    return lines


def _explained(results: Sequence[Result]) -> list[str]:
    found = Counter(result.says for result in results if result.outcome == "explained")
    rows = [f"| {number} | {reason} |" for reason, number in found.most_common()]
    return ["| Tests | Reason |", "|---:|---|", *rows]


def _failures(results: Sequence[Result]) -> list[str]:
    """One line for all tests that fail in the same way, whatever their arguments."""
    found = Counter((_without_arguments(r.test), _message(r)) for r in results if _failed(r))
    lines = [f"| {number} | `{test}` | {says} |" for (test, says), number in found.items()]
    return ["| Tests | Test | Message |", "|---:|---|---|", *lines]


def _without_arguments(test: str) -> str:
    return test.partition("::")[2].partition("[")[0]


def _message(result: Result) -> str:
    """The first line, without names of temporary folders and signs that tables end at."""
    says = re.sub(r"/tmp/\S+", "...", _first_line(result.says))
    return says.replace("|", "\\|")[:200]


def _failed(result: Result) -> bool:
    return result.outcome == "failed"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
