"""The command line: thin commands that parse, call and print."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the `compacter` command. What the user can put right is told in one line, with
    exit code 2."""
    try:
        _run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        _fail(
            f"the command line needs {package}, part of the extra 'cli': "
            "pip install 'compacter-peft[cli]'"
        )


def _run() -> NoReturn:
    import typer

    from compacter.errors import CompacterError
    from compacter.extras import silence_extras
    from compacter_cli.app import app

    silence_extras()
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]  # also of unknown commands
    try:
        status = app(prog_name="compacter", standalone_mode=False)
    except CompacterError as error:
        _fail(str(error))
    except usage_error as error:
        message = error.format_message()  # type: ignore[attr-defined]
        _fail(f"{message.rstrip('.')}; see 'compacter --help'" if message else "")
    except typer.Abort:
        raise SystemExit(130) from None
    raise SystemExit(status)


def _fail(message: str) -> NoReturn:
    if message:
        print(f"compacter: {message}", file=sys.stderr)
    raise SystemExit(2)
