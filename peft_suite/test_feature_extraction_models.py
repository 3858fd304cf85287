"""PEFT's tests of encoders without a head."""

from transformers import AutoModel

from adopt import adopt
from local_models import LocalAuto, model_ids
from our_methods import transformers_configs
from sdist import load

TestPeftFeatureExtractionModel = adopt(
    load("test_feature_extraction_models").TestPeftFeatureExtractionModel,
    {
        "model_id": model_ids(
            "AutoModel", "bert", "roberta", "deberta", "deberta-v2", "modernbert"
        ),
        "config_cls,config_kwargs": transformers_configs("FEATURE_EXTRACTION"),
    },
    as_lora=["test_load_model_low_cpu_mem_usage"],
    transformers_class=LocalAuto(AutoModel),
    left_out=["test_training_prompt_learning_tasks", "test_passing_input_embeds_works"],
)
