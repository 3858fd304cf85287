"""What PEFT's tests expect and our methods do not do, each with the reason.

The tests named here must fail with the message named here; anything else that fails is a failure.
Nothing belongs here that a user would call a defect."""

from __future__ import annotations

from typing import NamedTuple

BOTTLENECK = r"\[.*(compacter|adapter)"
"""In the arguments of a test: a bottleneck adapter."""
TIED = r"(opt|gpt2|gemma3_text|t5|bart)"
"""Models whose output layer is tied to the embeddings."""
NOT_AT_THE_BASE = r"(adapter-lowrank-|adapter-(?!norms)|phm-adapter-(?!norms))"
"""Methods, and the models where it shows, that do not start at the base model."""


class Explanation(NamedTuple):
    tests: str
    """Found in a test's id, such as "TestDecoderModels::test_merge_layers[adapter-opt]"."""
    says: str
    """Found in the error's message."""
    reason: str


EXPLAINED: tuple[Explanation, ...] = (
    Explanation(
        rf"(test_merge_layers(|_fp16|_nan|_is_deterministic_in_train_mode|_is_idempotent)|"
        rf"test_safe_merge|test_delete_merged_adapter\w+|test_disable_adapters_with_merging|"
        rf"test_forward_b?float16\w*|test_unmerge_after_sequential_merge_restores_base|"
        rf"test_mixed_adapter_batches_merged_raises){BOTTLENECK}",
        "bottleneck adapters cannot be merged",
        "A bottleneck adapter is not linear: no weight of the base model can take it, and merging "
        "is refused. (PEFT's own non-linear methods are left out of these tests by name.)",
    ),
    Explanation(
        r"test_merge_layers(|_fp16|_nan)\[bitfit(\+output)?-(t5|modernbert|llama|gemma3_text)\]",
        "of its biases belong to modules that have none",
        "BitFit adds biases to these models, which have no place for them: merging is refused.",
    ),
    Explanation(
        r"test_merge_layers_multi|test_sequential_merge|"
        r"test_unmerge_after_sequential_merge_restores_base\[(bitfit|intrinsic-said)",
        "adapters to merge: found|is merged already",
        "One adapter is merged at a time; two are not added up.",
    ),
    Explanation(
        r"test_active_adapter\[|test_multiple_active_adapters_(forward|merge_and_unmerge)|"
        r"with_different_modules_to_save_works\[(?!intrinsic-said)",
        "2 adapters were set active",
        "One adapter is active at a time; two are not added up.",
    ),
    Explanation(
        r"_pickle\[",
        "adapters are saved as safetensors only",
        "Adapters are never saved as a pickle, which can run code when it is opened.",
    ),
    Explanation(
        rf"test_prepare_for_training_parametrized\[(intrinsic-said|.*\+output-{TIED})",
        "assert not True",
        "The test expects frozen embeddings. Intrinsic-SAID moves every weight, and an output "
        "layer that is tuned can be tied to the embeddings.",
    ),
    Explanation(
        rf"test_disable_adapters\[{NOT_AT_THE_BASE}",
        "assert False",
        "The test expects adapters to start at the base model. In the paper these methods do not.",
    ),
    Explanation(
        r"layer_indexing\[",
        r"assert (\d+) < \1",
        "The test counts parameter tensors. Those of an adapter are stacks of all places, so that "
        "fewer layers make them shorter, not fewer.",
    ),
    Explanation(
        r"test_in_features_out_features_exposed\[",
        "assert False",
        "The container of all adapters is a layer to PEFT, which adapts no module and has no "
        "features. The layers around modules have them.",
    ),
    Explanation(
        r"test_from_json_file\[compacter",
        "assert {",
        "`positions` is a tuple, which JSON writes as a list.",
    ),
    Explanation(
        r"test_save_embedding_layers_excludes_similarly_named_sibling\[intrinsic-said",
        "embed_tokens.weight' in",
        "Intrinsic-SAID adapts embeddings too: they are saved as `embed_tokens.base_layer.weight`, "
        "as PEFT saves embeddings that are adapted.",
    ),
    Explanation(
        r"test_training_gradient_checkpointing\[True-intrinsic-said-deberta",
        "backward through the graph a second time",
        "DeBERTa computes its relative positions outside of the checkpointed blocks, and reentrant "
        "checkpointing goes back through them once per block. Intrinsic-SAID trains them.",
    ),
    Explanation(
        r"adapter_name_same_as_module_name|adapter_name_when_same_as_module_name",
        "an adapter cannot be called",
        "An adapter with the name of a module is refused: PEFT would save other adapters of the "
        "model incompletely.",
    ),
    Explanation(
        r"test_add_adapter_rejects_duplicate_name_without_mutation\[True",
        "is not compatible with the `PeftMixedModel`",
        "PeftMixedModel has a fixed list of PEFT's own methods.",
    ),
    Explanation(
        r"test_save_pretrained_with_target_modules",
        "assert False",
        "The test expects `target_modules` to be a set. Ours is a sorted list, so that the same "
        "settings always give the same file.",
    ),
    Explanation(
        r"(test_mixed_adapter_batches|test_generate_with_mixed_adapter_batches|"
        r"test_mixed_adapter_batches_(mlp|different_target_layers|multiple_modules_to_save|"
        r"partly_overlapping_target_layers|lora_wrong_adapter_name_raises))\[intrinsic-said",
        "Intrinsic-SAID moves every weight of the model",
        "Examples with different Intrinsic-SAID adapters have no computation in common: one batch "
        "has one adapter.",
    ),
    Explanation(
        r"(test_delete_adapter_multiple_adapters_with_modules_to_save|"
        r"test_multiple_active_adapters_with_(different|overlapping)_modules_to_save_\w+|"
        r"test_multiple_adapters_mixed_modules_to_save(|_order_switched)|"
        r"test_multiple_adapters_no_needless_copy_modules_to_save|test_set_requires_grad|"
        r"test_set_adapter_non_overlapping_modules_to_save)\[intrinsic-said\]",
        "a module that another adapter trains whole|is adapted by another adapter",
        "The test has one adapter train a module whole that another one adapts. Intrinsic-SAID "
        "adapts every module, so it refuses.",
    ),
    Explanation(
        r"test_generate_with_mixed_adapter_batches\[bitfit\+output-gemma3_text",
        "assert not True",
        "The test expects two adapters with large random weights to generate different words. Here "
        "each word follows itself, because the output layer is tied to the embeddings.",
    ),
    Explanation(
        r"test_merge_layers_nan\[(bitfit.*-(opt|gpt2)|intrinsic-said)|"
        r"test_mixed_adapter_batches_training_mode_raises|"
        r"test_mixed_adapter_batches_merged_raises\[(bitfit|intrinsic-said)|"
        r"test_mixed_adapter_batches_length_mismatch_raises\[|"
        r"test_mixed_adapter_batches_lora_wrong_adapter_name_raises\[(?!intrinsic-said)",
        "Regex pattern did not match",
        "The error that the test expects is raised, in other words.",
    ),
)
