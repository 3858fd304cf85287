"""PEFT's tests of decoders."""

from adopt import adopt
from local_models import model_ids
from our_methods import transformers_configs
from sdist import load

TestDecoderModels = adopt(
    load("test_decoder_models").TestDecoderModels,
    {
        "model_id": model_ids("AutoModelForCausalLM", "opt", "gpt2", "llama", "gemma3_text"),
        "config_cls,config_kwargs": transformers_configs("CAUSAL_LM", output_layer=True),
    },
    left_out=[
        "test_prompt_learning_with_gradient_checkpointing",
        "test_prompt_tuning_sample_vocab_prepare_for_training",
        "test_prompt_tuning_text_prepare_for_training",
        "test_set_requires_grad_prompt_learning_raises",
        "test_training_prompt_learning_tasks",
    ],
)
