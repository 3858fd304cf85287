"""What the configurations of the three tuners have in common: a format version, modules named by
hand, and a look at the stored tensors before a model is touched."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from peft import PeftConfig
from peft.utils import SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME

from compacter.errors import AdapterError
from compacter.tuners.files import FORMAT_VERSION, read_shapes


@dataclass
class AdapterConfig(PeftConfig):
    """Settings that all tuners of this package share."""

    target_modules: list[str] | str | None = field(
        default=None,
        metadata={"help": "modules named by hand (names or one regex), instead of found by family"},
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "further modules to train and save whole, such as a head"}
    )
    format_version: int = field(
        default=FORMAT_VERSION, metadata={"help": "version of the file format, set by the package"}
    )

    tensor_digest: str | None = field(
        default=None,
        metadata={"help": "digest of names and shapes of all tensors, set on injection"},
    )

    peft_name: ClassVar[str]
    stored: ClassVar[dict[str, tuple[int, ...]] | None] = None  # shadowed by an instance attribute
    origin: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format_version > FORMAT_VERSION:
            raise AdapterError(
                f"this adapter has format version {self.format_version}; this release of compacter "
                f"reads versions up to {FORMAT_VERSION}: pip install -U compacter-peft"
            )
        if isinstance(self.target_modules, (set, tuple)):
            self.target_modules = sorted(self.target_modules)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str, subfolder: str | None = None, **kwargs: Any
    ) -> Self:
        """As PEFT's; also reads the header of the weights beside the configuration, so that an
        adapter that is damaged or does not fit is refused before a model is changed."""
        source = os.fspath(pretrained_model_name_or_path)
        config = super().from_pretrained(source, subfolder=subfolder, **kwargs)
        if not isinstance(config, cls):
            raise AdapterError(
                f"{source} holds a {type(config).__name__}, expected a {cls.__name__}"
            )
        download, _, _ = cls._split_kwargs(kwargs)
        stored = read_shapes(source, subfolder, download)
        if stored is None and config.inference_mode:
            raise AdapterError(
                f"{source} has a configuration but no {SAFETENSORS_WEIGHTS_NAME}; expected both"
            )
        config.__dict__.update(stored=stored, origin=source)
        return config

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> None:
        """As PEFT's; also tells the reader of the model card that loading needs an import."""
        folder = Path(save_directory)
        if (folder / WEIGHTS_NAME).exists():  # written a moment ago by PeftModel.save_pretrained
            (folder / WEIGHTS_NAME).unlink()
            raise AdapterError(
                f"{folder / WEIGHTS_NAME} was a pickle and is removed; adapters are saved as "
                "safetensors only: call save_pretrained with safe_serialization=True"
            )
        super().save_pretrained(save_directory, **kwargs)
        _describe_loading(folder / "README.md", self.base_model_name_or_path)


_LOADING = """
## Loading this adapter

```python
import compacter  # registers the adapter's type with PEFT
from peft import PeftModel

model = PeftModel.from_pretrained(base_model, "path/or/name/of/this/adapter")
```

`base_model` is {base}. The package is installed with `pip install compacter-peft`.
"""


def _describe_loading(card: Path, base: str | None) -> None:
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    if "import compacter" not in text:
        name = f"`{base}`" if base else "the model that the adapter was trained on"
        card.write_text(text + _LOADING.format(base=name), encoding="utf-8")
