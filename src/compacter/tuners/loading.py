"""Loading many adapters at once."""

from __future__ import annotations

import os
from collections.abc import Mapping

from peft import PeftModel

from compacter.tuners.pool import AdapterPool, tuner_of


def load_adapters(model: PeftModel, adapters: Mapping[str, str | os.PathLike[str]]) -> None:
    """Load adapters beside those that the model has, into its pool.

    They are frozen, and the active adapter stays active. `model.set_adapter(name)` takes one out of
    the pool. The time for one does not grow with their number, as that of `model.load_adapter`
    does. The model is put in evaluation mode.

    Args:
        model: a model with at least one adapter of this package.
        adapters: name -> folder or hub repository.

    Raises:
        AdapterError: if one does not fit; nothing is loaded then.
    """
    tuner = tuner_of(model)
    if tuner.one_adapter_only:  # such adapters cannot share a batch, so a pool is of no use
        for name, source in adapters.items():
            model.load_adapter(os.fspath(source), adapter_name=name)
    else:
        pool = tuner.adapters.pool
        (AdapterPool(model) if pool is None else pool).put_all(adapters)
    model.eval()
