"""PEFT's own test suite with our methods: make peft-suite.

    python peft_suite/run.py              # all, and docs/peft-suite.md is written anew
    python peft_suite/run.py -k fsdp      # some, as pytest selects them; nothing is written

Exit code 0 means that what fails is exactly what explained.py explains."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import sdist
from explained import EXPLAINED
from results import markdown, read, summary

PAGE = sdist.ROOT / "docs" / "peft-suite.md"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(selection: list[str]) -> int:
    sdist.fetch()
    sdist.RESULTS.unlink(missing_ok=True)
    started = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "peft_suite", "-n", "2", "-p", "no:warnings"]
    done = subprocess.run(
        [*pytest, "--tb=line", *selection], cwd=sdist.ROOT, env=os.environ | OFFLINE, check=False
    )
    if not sdist.RESULTS.is_file():
        return done.returncode
    results = read(sdist.RESULTS)
    print(summary(results))
    if selection:
        return done.returncode
    PAGE.write_text(markdown(results, sdist.pinned_version(), time.monotonic() - started))
    print(f"written: {PAGE.relative_to(sdist.ROOT)}")
    unused = {entry.reason for entry in EXPLAINED} - {result.says for result in results}
    for reason in sorted(unused):
        print(f"explained.py explains no test with: {reason}")
    return done.returncode or bool(unused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
