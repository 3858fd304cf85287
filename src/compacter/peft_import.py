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
from types import ModuleType


def register_when_peft_is_imported() -> None:
    if "peft" in sys.modules:
        import_module("compacter.tuners")
    elif not any(isinstance(finder, _PeftFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PeftFinder())


class _PeftFinder(MetaPathFinder):
    """Finds PEFT as Python would, and adds a step after its import. It stays in place until then:
    many a library looks for PEFT, to know whether it is installed, long before it imports it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "peft":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                import_module("compacter.tuners")

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
