"""Reading what `save_pretrained()` left, and never running code that came with it.

A configuration can name Python files of its own (`auto_map`). Transformers runs them if it is told
to, or if the question that it asks on the terminal is answered with yes. So it is told not to, in
every call, and parts of a configuration, for which it cannot be told, may not name any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedConfig

from compacter.errors import ArchitectureError

UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, ImportError),
    *(StrictDataclassError, SafetensorError),
)
"""What transformers raises for files that it cannot read."""

_OWN_CODE = "needs Python code of its own (auto_map), and code that comes with a model is never run"


def read(auto_class: Any, name: str, **arguments: Any) -> Any:
    """What an auto class of transformers makes of a name of the hub or a folder."""
    found = auto_class.from_pretrained(name, trust_remote_code=False, **arguments)
    if isinstance(found, PreTrainedConfig):
        for part in _parts_with_code(found.to_dict()):
            raise ArchitectureError(f"the part {part!r} of its configuration {_OWN_CODE}")
    return found


def check_config_file(name: str) -> None:
    """Refuse a folder without a configuration, in words that say what is in it."""
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
        raise ArchitectureError(
            f"the folder {name!r} holds no config.json (found: {found}); "
            "expected a model saved with save_pretrained()"
        )


def reason(error: Exception) -> str:
    """Why something could not be read, in one line."""
    if "custom code" in str(error):  # transformers' own words go on with how to run it
        return f"it {_OWN_CODE}"
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def _parts_with_code(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and name != "auto_map":
            if value.get("auto_map"):
                yield f"{path}{name}"
            yield from _parts_with_code(value, f"{path}{name}.")
