"""PEFT's tests of models that are not of transformers, of several adapters, mixed batches,
gradients and FSDP."""

from typing import Any

import pytest
from torch import nn

from adopt import adopt
from our_methods import CUSTOM_MODELS, METHODS, classes, custom_cases, pairs
from sdist import load

theirs = load("test_custom_models")
CASES = custom_cases()
ONE, BOTH = CUSTOM_MODELS["one layer"][1], CUSTOM_MODELS["two layers"][1]
HEAD = CUSTOM_MODELS["head"][1]
OTHER = {"target_modules": ["lin1"]}
AWAY = pytest.mark.starts_away

TestPeftCustomModel = adopt(
    theirs.TestPeftCustomModel,
    {
        "test_name,model_id,config_cls,config_kwargs": CASES,
        "config_cls": classes(),
        "config0": [pytest.param(m(**ONE), id=m.name, marks=AWAY) for m in METHODS],
    },
    as_lora=[
        "test_add_adapter_rejects_duplicate_name_without_mutation",
        "test_delete_adapter_multiple_adapters_with_modules_to_save",
        "test_delete_adapter_with_multiple_adapters_works",
        "test_existing_model_card",
        "test_load_does_not_overwrite_similarly_named_sibling",
        "test_multiple_adapters_automatic_modules_to_save",
        "test_multiple_adapters_no_needless_copy_modules_to_save",
        "test_non_existing_model_card",
        "test_save_embedding_layers_excludes_similarly_named_sibling",
        "test_weight_bias_attributes",
    ],
    left_out=["test_disable_adapter_with_bias_warns"],  # PEFT skips it for every method
)

TestMultipleActiveAdapters = adopt(
    theirs.TestMultipleActiveAdapters,
    {
        "test_name,tuner_method,config_cls,config_kwargs_1,config_kwargs_2": [
            pytest.param(
                "", "", m.config_cls, m.arguments(**first), m.arguments(**second), id=m.name + where
            )
            for m in METHODS
            for where, first, second in (("-same", ONE, ONE), ("-different", ONE, OTHER))
        ]
    },
    pytestmark=AWAY,
)

TestMixedAdapterBatches = adopt(
    theirs.TestMixedAdapterBatches,
    {
        "test_name,config0,config1": pairs(ONE, ONE),
        "test_mixed_adapter_batches_different_target_layers": pairs(ONE, OTHER),
        "test_mixed_adapter_batches_multiple_modules_to_save": pairs(HEAD, HEAD),
        "test_mixed_adapter_batches_partly_overlapping_target_layers": pairs(ONE, BOTH),
        "test_name,config": [pytest.param("", m(**ONE), id=m.name) for m in METHODS],
    },
    left_out=[
        "test_mixed_adapter_batches_lora_conv1d_emb",
        "test_mixed_adapter_batches_lora_conv1d_emb_multiple_modules_to_save",
        "test_mixed_adapter_batches_lora_conv2d",
        "test_mixed_adapter_batches_lora_opt_timing",
        "test_mixed_adapter_batches_mha_raises",
        "test_mixed_adapter_batches_unsupported_layer_raises",
    ],
    pytestmark=AWAY,
)


def check_requires_grad(self: Any, model: nn.Module, *expected: str) -> None:
    """PEFT's, which names LoRA's parameters: of modules trained whole, exactly the expected ones
    are trained; of adapters, all parameters of the expected ones and none of the others."""
    whole = {name for name in expected if ".modules_to_save." in name}
    adapters = {name.removesuffix(".weight").rpartition(".")[2] for name in {*expected} - whole}
    for name, parameter in model.named_parameters():
        expected_here = name in whole or (
            ".modules_to_save." not in name and not adapters.isdisjoint(name.split("."))
        )
        assert parameter.requires_grad == expected_here, name


TestRequiresGrad = adopt(
    theirs.TestRequiresGrad,
    {"config_cls": classes()},
    as_lora=[
        "test_requires_grad_follows_inference_mode_modules_to_save",
        "test_requires_grad_lora_different_targets",
        "test_requires_grad_lora_same_targets",
        "test_requires_grad_modules_to_save_default",
        "test_requires_grad_modules_to_save_disabling",
        "test_requires_grad_modules_to_save_multiple_adapters",
    ],
    check_requires_grad=check_requires_grad,
)

TestPeftFsdpStateDict = adopt(
    theirs.TestPeftFsdpStateDict,
    {"test_name,model_id,config_cls,config_kwargs": CASES},
    left_out=["test_save_load_roundtrip_fsdp_wrapped_learnable_bias"],  # no method has `bias`
)
