"""What the configurations of the three tuners have in common: a format version, modules named by
hand, and a look at the stored tensors before a model is touched."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from peft import PeftConfig
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME

from compacter.adapter_files import check_places
from compacter.errors import AdapterError
from compacter.tuners.files import FORMAT_VERSION, check_version, read_shapes


@dataclass
class AdapterConfig(PeftConfig):
    """Settings that all tuners of this package share."""

    target_modules: list[str] | str | None = field(
        default=None,
        metadata={"help": "modules named by hand (names or one regex), instead of found by family"},
    )
    exclude_modules: list[str] | str | None = field(
        default=None,
        metadata={"help": "modules that get no adapter (names or one regex), of those found"},
    )
    layers_to_transform: list[int] | int | None = field(
        default=None,
        metadata={"help": "the layers of each stack that get adapters, by index; default: all"},
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "further modules to train and save whole, such as a head"}
    )
    trainable_token_indices: list[int] | dict[str, list[int]] | None = field(
        default=None,
        metadata={"help": "tokens whose embeddings are trained too, by PEFT's TrainableTokens"},
    )
    format_version: int = field(
        default=FORMAT_VERSION, metadata={"help": "version of the file format, set by the package"}
    )

    places: list[dict[str, Any]] | None = field(
        default=None,
        metadata={
            "help": "the modules that the stacked tensors belong to, in their order, set on "
            "injection"
        },
    )

    peft_name: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        # Of an adapter that is being loaded: its tensors, and where they are. No fields, not saved
        self.stored: dict[str, tuple[int, ...]] | None = None
        self.origin = ""
        check_version(self.format_version)
        if isinstance(self.target_modules, (set, tuple)):
            self.target_modules = sorted(self.target_modules)
        if isinstance(self.exclude_modules, (set, tuple)):
            self.exclude_modules = sorted(self.exclude_modules)
        if isinstance(self.layers_to_transform, int):
            self.layers_to_transform = [self.layers_to_transform]

    def includes(self, path: str, index: int) -> bool:
        """Whether the module at `path`, in the layer with that index, may get an adapter."""
        layers = self.layers_to_transform
        if layers is not None and index not in cast(list[int], layers):
            return False
        return not self.excludes(path)

    def excludes(self, path: str) -> bool:
        """Whether `exclude_modules` names the module at `path`."""
        excluded = self.exclude_modules
        if isinstance(excluded, str):
            return re.fullmatch(excluded, path) is not None
        return any(f".{path}".endswith(f".{name}") for name in excluded or ())

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
        if stored is not None:
            check_places(config.places, source)
        config.stored, config.origin = stored, source
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
        weights = folder / SAFETENSORS_WEIGHTS_NAME
        if weights.exists():  # safetensors makes it readable for its owner alone
            weights.chmod((folder / CONFIG_NAME).stat().st_mode)
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
