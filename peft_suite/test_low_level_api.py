"""PEFT's tests of injection without a PeftModel, and of state dicts."""

import pytest
import transformers

from adopt import adopt
from compacter import CompacterConfig
from local_models import local
from our_methods import METHODS
from sdist import load

theirs = load("test_low_level_api")
MODELS = {
    "llama": "AutoModelForCausalLM",
    "bert": "AutoModel",
    "bart": "AutoModelForSeq2SeqLM",
    "roberta": "AutoModelForSequenceClassification",
}
ANY_WIDTH = [m.with_settings(n=1) if m.config_cls is CompacterConfig else m for m in METHODS]

TestInjectAdapterFromStateDict = adopt(
    theirs.TestInjectAdapterFromStateDict,
    {
        "model_cls_and_id": [
            pytest.param((getattr(transformers, auto), local(auto, family)), id=family)
            for family, auto in MODELS.items()
        ],
        "config": [pytest.param(method(), id=method.name) for method in METHODS],
    },
    as_lora=[
        "test_inject_from_state_dict_compiled_model",
        "test_inject_from_state_dict_low_cpu_mem_usage",
        "test_inject_from_state_dict_transformers",
        "test_inject_from_state_dict_transformers_irregular_targets",
    ],
)

TestPeftStateDict = adopt(
    theirs.TestPeftStateDict,
    {},
    as_lora=[
        "test_get_and_set_peft_model_state_dict_adapter_name_same_as_module_name",
        "test_get_and_set_peft_model_state_dict_bias_in_module_name",
        "test_get_and_set_peft_model_state_dict_normal_names",
        "test_get_and_set_peft_model_state_dict_peft_prefix_in_module_name",
        "test_get_and_set_peft_model_state_dict_weight_in_module_name",
        "test_get_peft_model_state_dict_removes_adapter_name",
        "test_get_peft_model_state_dict_removes_adapter_name_when_same_as_module_name",
        "test_get_peft_model_state_dict_removes_non_defaul_adapter_name",
        "test_set_peft_model_state_dict_preserves_input",
        "test_trained_modules_to_save_module_named_like_peft_prefix_round_trip",
    ],
    methods=ANY_WIDTH,
)

TestGetBaseModelStateDict = adopt(
    theirs.TestGetBaseModelStateDict,
    {},
    as_lora=["test_multiple_adapters", "test_strict_missing_keys", "test_strict_unexpected_keys"],
)

TestStateDictFsdpShapeValidation = adopt(
    theirs.TestStateDictFsdpShapeValidation,
    {},
    as_lora=["test_save_pretrained_succeeds_for_normal_lora"],
)
