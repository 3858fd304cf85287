"""PEFT's own tests, from the source distribution of the version in constraints.txt."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "peft-suite"
RESULTS = CACHE / "results.json"


def pinned_version() -> str:
    found = re.search(r"^peft==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None, "constraints.txt does not pin peft"
    return found[1]


def tests_folder() -> Path:
    return CACHE / f"peft-{pinned_version()}" / "tests"


def fetch() -> None:
    """Download and unpack the distribution, once; as pip is configured, so through its index."""
    if tests_folder().is_dir():
        return
    version = pinned_version()
    print(f"downloading the tests of peft {version} into {CACHE}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    only = ["--no-deps", "--no-binary", "peft"]
    subprocess.run([*pip, *only, "--dest", CACHE, f"peft=={version}"], check=True)
    with TemporaryDirectory(dir=CACHE) as folder:
        with tarfile.open(CACHE / f"peft-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        (Path(folder) / f"peft-{version}").rename(CACHE / f"peft-{version}")


def load(name: str) -> ModuleType:
    """The test module of PEFT with this name. Only its tests of images need diffusers."""
    if "peft_tests" not in sys.modules:
        package = ModuleType("peft_tests")
        package.__path__ = [str(tests_folder())]
        sys.modules["peft_tests"] = package
    diffusers = ModuleType("diffusers")
    diffusers.StableDiffusionPipeline = type("StableDiffusionPipeline", (), {})  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules):
        sys.modules.setdefault("diffusers", diffusers)
        module = importlib.import_module(f"peft_tests.{name}")
        found = {key: value for key, value in sys.modules.items() if key != "diffusers"}
    sys.modules.update(found)
    return module
