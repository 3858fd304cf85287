"""The package as a stranger meets it: its files, its versions, its import, its wheel."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from compacter import compatibility

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run_python(
    code: str, *, folder: Path | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python, from another folder, with `path` before all other packages."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        check=False,
    )


def output_of(code: str, **settings: Path) -> str:
    result = run_python(code, **settings)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# Versions


def _requirements() -> dict[str, Requirement]:
    lines = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        lines += extra
    found = {canonicalize_name(r.name): r for r in map(Requirement, lines)}
    del found["compacter-peft"]  # an extra that names another extra
    return found


def test_the_ranges_of_pyproject_are_those_checked_at_import() -> None:
    requirements = _requirements()
    for package, (lowest, beyond) in compatibility.SUPPORTED.items():
        low, high = (".".join(map(str, v)).removesuffix(".0") for v in (lowest, beyond))
        wanted = f">={low},<{high}"
        assert requirements[package].specifier == Requirement(f"{package}{wanted}").specifier
    capped = {name for name, r in requirements.items() if "<" in str(r.specifier)}
    assert capped == set(compatibility.SUPPORTED)


def test_constraints_pin_every_requirement_inside_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    plain = re.compile(r"[\w.-]+==[0-9][0-9a-z.]*")
    comments = [line for line in lines if not plain.fullmatch(line)]
    assert comments == lines[:1], "one comment, then a plain name==version per line"
    pins = {canonicalize_name(name): pin for name, pin in (x.split("==") for x in lines[1:])}
    assert "compacter-peft" not in pins
    for name, requirement in _requirements().items():
        assert name in pins, f"{name} is not pinned"
        assert requirement.specifier.contains(pins[name]), f"{requirement} and {pins[name]}"


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that other versions are installed; None for a package that is not."""

    def pretend(**found: str | None) -> None:
        def version(package: str) -> str:
            right = {"torch": "2.13.0+cpu", "transformers": "5.22.2", "peft": "0.21.2"}
            answer = (right | found)[package]
            if answer is None:
                raise PackageNotFoundError(package)
            return answer

        monkeypatch.setattr(compatibility, "version", version)

    return pretend


@pytest.mark.parametrize(
    ("package", "found", "wanted"),
    [
        ("torch", "2.5.1", "torch>=2.6,<3.0"),
        ("torch", "3.0.0", "torch>=2.6,<3.0"),
        ("transformers", "4.57.0", "transformers>=5.20,<6.0"),
        ("transformers", "5.9.1", "transformers>=5.20,<6.0"),
        ("transformers", "6.0.0.dev0", "transformers>=5.20,<6.0"),
        ("peft", "0.21.1", "peft>=0.21.2,<0.22"),
        ("peft", "0.20.0", "peft>=0.21.2,<0.22"),
        ("peft", "0.22.0", "peft>=0.21.2,<0.22"),
        ("peft", "unreadable", "peft>=0.21.2,<0.22"),
    ],
)
def test_a_version_out_of_range_is_refused_by_name(
    versions: Callable[..., None], package: str, found: str, wanted: str
) -> None:
    versions(**{package: found})
    with pytest.raises(ImportError) as error:
        compatibility.check_versions()
    message = str(error.value)
    assert f"found {package} {found}" in message
    assert f"pip install '{wanted}'" in message


def test_a_missing_package_is_named(versions: Callable[..., None]) -> None:
    versions(peft=None)
    with pytest.raises(ImportError, match=r"needs peft, .* not installed.*peft>=0\.21\.2,<0\.22"):
        compatibility.check_versions()


@pytest.mark.parametrize(
    "found",
    [
        {"torch": "2.6"},
        {"torch": "2.13.0a0+git1234"},
        {"transformers": "5.100.0"},
        {"peft": "0.21.3.dev0"},
    ],
)
def test_versions_in_range_pass(versions: Callable[..., None], found: dict[str, str]) -> None:
    versions(**found)
    compatibility.check_versions()


# Importing


def test_the_command_line_imports_neither_torch_nor_peft() -> None:
    code = (
        "import compacter_cli, compacter, sys\n"
        "print(sorted({'torch', 'peft', 'transformers'} & {*sys.modules}))"
    )
    assert output_of(code) == "[]"


CHECK_REGISTERED = """
from peft import PeftConfig, PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as known
assert PeftType.COMPACTER == "COMPACTER", PeftType.COMPACTER
assert {"COMPACTER", "BITFIT", "INTRINSIC_SAID"} <= set(PeftType.__members__), [*PeftType]
assert issubclass(known[PeftType.COMPACTER], PeftConfig)
print("registered")
"""


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import compacter", id="compacter before peft"),
        pytest.param("import peft\nimport compacter", id="compacter after peft"),
        pytest.param(
            "import compacter, importlib.util\nimportlib.reload(compacter)\n"
            "assert importlib.util.find_spec('peft')",
            id="compacter twice, then peft looked for",  # as transformers' is_peft_available does
        ),
    ],
)
def test_tuners_are_registered_in_any_order(imports: str) -> None:
    assert output_of(imports + CHECK_REGISTERED) == "registered"


def test_reloading_after_peft_is_harmless() -> None:
    import peft

    import compacter
    from compacter.tuners import CompacterConfig

    before = list(peft.PeftType)
    importlib.reload(compacter)
    importlib.import_module("compacter.tuners.registration").register()
    assert list(peft.PeftType) == before
    assert compacter.CompacterConfig is CompacterConfig
    assert peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType.COMPACTER] is CompacterConfig


@pytest.mark.parametrize("name", ["COMPACTER", "BITFIT", "INTRINSIC_SAID"])
def test_new_members_of_peft_type_behave_like_old_ones(name: str) -> None:
    from peft import PeftType

    import compacter.tuners  # noqa: F401

    member = PeftType[name]
    assert member is PeftType(name)
    assert member is getattr(PeftType, name)
    assert member in PeftType
    assert isinstance(member, str)
    assert (member.name, member.value, str(member)) == (name, name, str(PeftType.LORA)[:-4] + name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(member, protocol)) is member
    assert copy.deepcopy(member) is member
    assert copy.copy(member) is member
    assert {member: 1}[PeftType(name)] == 1


def test_public_names() -> None:
    import compacter

    assert {name for name in dir(compacter) if name in compacter.__all__} == {*compacter.__all__}
    assert all(getattr(compacter, name) is not None for name in compacter.__all__)
    assert compacter.__version__ == PROJECT["version"]
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = compacter.atach


# What is built and installed


def _run(*command: str | Path) -> None:
    result = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--sdist", "--no-isolation", "-o", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, without a network."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--no-deps", "--no-index", "--target", folder, next(built.glob("*.whl")))
    return folder


def test_the_wheel_holds_code_data_and_license(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"compacter_peft-{PROJECT['version']}.dist-info"
    for name in (
        "py.typed",
        "paper/tables.json",
        "paper/counts.json",
        "recipes/demo.yaml",
        "tuners/bottleneck/layer.py",
    ):
        assert f"compacter/{name}" in names
    assert f"{info}/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"compacter", "compacter_cli", info}
    in_source = {
        path.relative_to(ROOT / "src").as_posix()
        for package in ("compacter", "compacter_cli")
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("compacter")} - in_source == {
        name for name in names if name.startswith(f"{info}/")
    }


def test_the_source_distribution_holds_what_a_packager_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "CITATION.cff", "CHANGELOG.md", "README.md", "pyproject.toml"):
        assert name in names
    for name in ("tests/test_package.py", "constraints.txt", "Makefile", "examples/demo.py"):
        assert name in names
    assert "src/compacter/paper/counts.json" in names


def test_the_installed_wheel_adapts_a_model(installed: Path, tmp_path: Path) -> None:
    code = """
import compacter
from compacter.paper import counts, tables
from importlib.metadata import version
from transformers import T5Config, T5ForConditionalGeneration

t5 = T5ForConditionalGeneration(T5Config(
    vocab_size=32, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
    decoder_start_token_id=0,
))
model = compacter.attach(t5, "compacter++", bottleneck=8)
print(compacter.__file__)
print(version("compacter-peft"))
print(len(tables()["glue_t5_base"]), counts()["models"]["t5-base"]["base"])
print(sum(p.numel() for p in model.parameters() if p.requires_grad))
"""
    where, version, figures, trained = output_of(code, folder=tmp_path, path=installed).split("\n")
    assert Path(where).is_relative_to(installed)
    assert version == PROJECT["version"]
    assert figures == "12 222882048"
    norms, adapter, slow = (2 * 2 + 2 * 3 + 2) * 32, 2 * (32 + 8) + 32 + 8, 4**3
    assert int(trained) == norms + 4 * adapter + slow


def test_the_installed_command_works(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "compacter"
    result = subprocess.run(
        [sys.executable, command, "methods", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)) == 12


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None  # makes importing it a ModuleNotFoundError
sys.argv = ["compacter", "methods"]
from compacter_cli import main
main()
"""
    result = run_python(code)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"compacter: the command line needs {missing}")
    assert "pip install 'compacter-peft[cli]'" in line


# The repository


def test_no_file_holds_a_path_of_the_machine_it_was_written_on() -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout

    try:
        top = git("rev-parse", "--show-toplevel").strip()
    except (OSError, subprocess.CalledProcessError):
        top = ""
    if not top or Path(top).resolve() != ROOT:
        pytest.skip("not a git checkout")
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert ROOT / "pyproject.toml" in files
    home = ROOT if ROOT.parent == Path(ROOT.anchor) else ROOT.parent
    absolute = re.compile(rb"(?<![\w./-])" + re.escape(str(home).encode()) + rb"(?![\w.-])")
    assert [str(path) for path in files if absolute.search(path.read_bytes())] == []
