"""PEFT's tests of models with a head for classification."""

from adopt import adopt
from local_models import model_ids
from our_methods import transformers_configs
from sdist import load

TestSequenceClassificationModels = adopt(
    load("test_seq_classifier").TestSequenceClassificationModels,
    {
        "model_id": model_ids("AutoModelForSequenceClassification", "bert", "roberta", "llama"),
        "config_cls,config_kwargs": transformers_configs("SEQ_CLS"),
    },
    left_out=[
        "test_prompt_learning_forward_with_inputs_embeds",
        "test_prompt_tuning_text_prepare_for_training",
    ],
)

heads = load("test_token_classification_qa")

TestTokenClassificationModels = adopt(
    heads.TestTokenClassificationModels,
    {
        "model_id": model_ids("AutoModelForTokenClassification", "bert", "roberta"),
        "config_cls,config_kwargs": transformers_configs("TOKEN_CLS"),
    },
)

TestQuestionAnsweringModels = adopt(
    heads.TestQuestionAnsweringModels,
    {
        "model_id": model_ids("AutoModelForQuestionAnswering", "bert", "roberta"),
        "config_cls,config_kwargs": transformers_configs("QUESTION_ANS"),
    },
)
