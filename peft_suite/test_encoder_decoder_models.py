"""PEFT's tests of encoder-decoders."""

from transformers import AutoModelForSeq2SeqLM

from adopt import adopt
from local_models import LocalAuto, model_ids
from our_methods import transformers_configs
from sdist import load

TestEncoderDecoderModels = adopt(
    load("test_encoder_decoder_models").TestEncoderDecoderModels,
    {
        "model_id": model_ids("AutoModelForSeq2SeqLM", "t5", "bart"),
        "config_cls,config_kwargs": transformers_configs("SEQ_2_SEQ_LM", output_layer=True),
    },
    as_lora=["test_load_model_low_cpu_mem_usage"],
    transformers_class=LocalAuto(AutoModelForSeq2SeqLM),
    left_out=[
        "test_prompt_learning_forward_with_inputs_embeds",
        "test_training_prompt_learning_tasks",
    ],
)
