"""The command line: thin commands that parse, call and print."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `compacter` command."""
    try:
        from compacter.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"compacter: the command line needs {error.name}, part of the extra 'cli': "
            "pip install 'compacter-peft[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    from compacter.errors import CompacterError

    try:
        app()
    except CompacterError as error:
        print(f"compacter: {error}", file=sys.stderr)
        raise SystemExit(2) from None
