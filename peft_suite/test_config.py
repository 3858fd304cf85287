"""PEFT's tests of configurations."""

import pytest

from adopt import adopt
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from sdist import load

CLASSES = {
    "compacter": CompacterConfig,
    "bitfit": BitFitConfig,
    "intrinsic-said": IntrinsicSAIDConfig,
}

TestPeftConfig = adopt(
    load("test_config").TestPeftConfig,
    {
        "config_class,mandatory_kwargs": [
            pytest.param(config_cls, {}, id=name) for name, config_cls in CLASSES.items()
        ],
        "config_class": [pytest.param(CLASSES[name], id=name) for name in ("compacter", "bitfit")],
    },
    as_it_is=["test_from_peft_type"],
    left_out=[
        "test_config_layers_to_transform_index_zero",
        "test_from_pretrained",  # these three load an adapter of the hub
        "test_from_pretrained_cache_dir",
        "test_save_pretrained_with_runtime_config",
    ],
)
