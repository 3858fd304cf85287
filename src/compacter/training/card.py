"""The model card of a trained adapter: what it is, what it scores, how to load it."""

from __future__ import annotations

from pathlib import Path

import yaml

from compacter.models.builtin import is_builtin
from compacter.models.pretrained import Kind, locate
from compacter.training.result import Result

CARD_NAME = "README.md"

_CLASSES: dict[Kind, str] = {
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForSequenceClassification",
}


def write_card(folder: Path, result: Result, kind: Kind, labels: int | None) -> None:
    """`labels` are those of an encoder's head."""
    rows = {
        "method": result.method,
        "task": result.task,
        "base model": f"`{result.model}`",
        "trained parameters": f"{result.trainable:,} ({result.percent:g}%)",
        "parameters of the task's head": f"{result.head_trainable:,}",
        **{key: str(value) for key, value in result.settings.items()},
        **{f"test {name}": f"{value:.2f}" for name, value in result.test.items()},
        **{f"validation {name}": f"{value:.2f}" for name, value in result.validation.items()},
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    auto_class = _CLASSES[kind]
    text = f"""---
{yaml.safe_dump(_metadata(result.model), sort_keys=False)}---

# {result.method} on {result.task}

An adapter for `{result.model}`, trained with `compacter-peft`.

| | |
|---|---|
{table}

## Use

```python
import compacter

answers = compacter.predict("path/of/this/folder", texts)
```

As a PEFT model:

```python
import compacter  # registers the adapter's type with PEFT
from peft import PeftModel
from transformers import {auto_class}
{_base(result.model, auto_class, labels)}
model = PeftModel.from_pretrained(base, "path/of/this/folder")
```

`pip install 'compacter-peft[train]'` installs what this needs.
"""
    (folder / CARD_NAME).write_text(text, encoding="utf-8")


def _metadata(model: str) -> dict[str, object]:
    """The hub knows only its own models as bases."""
    found: dict[str, object] = {"library_name": "peft", "tags": ["compacter"]}
    is_of_the_hub = not is_builtin(model) and not Path(model).exists()
    return ({"base_model": model} if is_of_the_hub else {}) | found


def _base(model: str, auto_class: str, labels: int | None) -> str:
    """The lines that load the base model."""
    head = f", num_labels={labels}, ignore_mismatched_sizes=True" if labels else ""
    if is_builtin(model):
        return (
            "from compacter.models.builtin import builtin_folder\n\n"
            f"base = {auto_class}.from_pretrained(builtin_folder({model!r}){head})"
        )
    place = locate(model)
    file = f", gguf_file={place.gguf_file!r}" if place.gguf_file else ""
    return f"\nbase = {auto_class}.from_pretrained({place.name!r}{file}{head})"
