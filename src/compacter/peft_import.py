"""Registers the tuners with PEFT without importing PEFT.

`import compacter` must be enough for `PeftModel.from_pretrained` to know our adapters, yet must
not cost the seconds that torch takes to import when all one wants is `compacter --help`. So the
registration happens at once if PEFT is there already, else right after someone imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def register_when_peft_is_imported() -> None:
    if "peft" in sys.modules:
        import_module("compacter.tuners")
    else:
        sys.meta_path.insert(0, _PeftFinder())


class _PeftFinder(MetaPathFinder):
    """Finds PEFT as Python would, and adds a step after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "peft":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                import_module("compacter.tuners")

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
