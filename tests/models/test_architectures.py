"""The table of families, held against tiny models of the installed transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from compacter.errors import ArchitectureError
from compacter.models import (
    ARCHITECTURES,
    Block,
    base_modules,
    find_blocks,
    hidden_size,
    infer_blocks,
    named_targets,
    output_width,
    targets_of,
)
from compacter.models.architectures import path_matches, stack_matches
from tiny_models import HIDDEN, LAYERS, TINY, tiny_inputs

ENCODER_DECODERS = {
    *("t5", "mt5", "umt5", "longt5"),
    *("bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot"),
}

EXPECTED = {
    "t5": [
        f"{stack}.block.{i}.layer.{end}"
        for stack, feed_forward in (("encoder", 1), ("decoder", 2))
        for i in (0, 1)
        for end in ("0.SelfAttention.o", f"{feed_forward}.DenseReluDense.wo")
    ],
    "bart": [
        f"model.{stack}.layers.{i}.{end}"
        for stack in ("encoder", "decoder")
        for i in (0, 1)
        for end in ("self_attn.out_proj", "fc2")
    ],
    "bert": [
        f"bert.encoder.layer.{i}.{end}"
        for i in (0, 1)
        for end in ("attention.output.dense", "output.dense")
    ],
    "gpt2": [f"transformer.h.{i}.{end}" for i in (0, 1) for end in ("attn.c_proj", "mlp.c_proj")],
    "llama": [
        f"model.layers.{i}.{end}" for i in (0, 1) for end in ("self_attn.o_proj", "mlp.down_proj")
    ],
    "gemma3": [
        f"model.language_model.layers.{i}.{end}"
        for i in (0, 1)
        for end in ("self_attn.o_proj", "mlp.down_proj")
    ],
}

PRE_NORM = [
    *("t5", "mt5", "umt5", "longt5-local", "longt5-global"),
    *("mbart", "pegasus", "m2m_100", "blenderbot"),
    *("gpt2", "gpt_neox", "opt", "bloom", "llama", "mistral", "qwen2", "qwen3", "gemma"),
    *("gemma2", "gemma3_text", "gemma3", "phi3", "olmo2", "smollm3", "modernbert", "vit"),
]


def test_every_family_has_a_tiny_model() -> None:
    assert {TINY[name]().config.model_type for name in TINY} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_layers_are_the_ones_written_here(name: str) -> None:
    targets = targets_of(find_blocks(TINY[name]()))
    assert [target.path for target in targets] == EXPECTED[name]


@pytest.mark.parametrize("name", TINY)
def test_every_block_has_both_positions_of_the_hidden_size(name: str) -> None:
    model = TINY[name]()
    modules = base_modules(model)
    blocks = find_blocks(model)
    stacks = 2 if model.config.model_type in ENCODER_DECODERS else 1
    assert len(blocks) == stacks * LAYERS
    assert len({block.stack for block in blocks}) == stacks
    assert hidden_size(model) == HIDDEN
    for block in blocks:
        for path in (block.attention, block.feed_forward):
            assert path is not None
            assert path.startswith(f"{block.stack}.{block.index}.")
            assert output_width(modules[path]) == HIDDEN
            assert "EncDec" not in path
            assert "encoder_attn" not in path
            assert "cross" not in path.lower()


@pytest.mark.parametrize("name", PRE_NORM)
def test_nothing_else_writes_to_the_residual_stream(name: str) -> None:
    """With both layers silenced, a block without cross-attention passes its input through. That is
    what makes them the last layers before the residual: no other path leads out of the block."""
    model = TINY[name]()
    modules = base_modules(model)
    passed: list[bool] = []

    def compare(
        module: nn.Module, args: tuple[Tensor, ...], kwargs: object, output: object
    ) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]  # type: ignore[index]
        passed.append(torch.equal(hidden, output[0] if isinstance(output, tuple) else output))  # type: ignore[arg-type]

    for block in find_blocks(model):
        if not block.stack.endswith(("decoder.block", "decoder.layers")) or name == "opt":
            modules[block.path].register_forward_hook(compare, with_kwargs=True)
        for target in targets_of([block]):
            modules[target.path].register_forward_hook(lambda _module, _args, out: out * 0)
    with torch.no_grad():
        model(**tiny_inputs(model))
    assert passed == [True] * LAYERS


@pytest.mark.parametrize("name", TINY)
def test_the_layers_are_called_not_read(name: str) -> None:
    """A fused function that reads the weight would bypass whatever is wrapped around the layer."""
    model = TINY[name]()
    modules = base_modules(model)
    targets = targets_of(find_blocks(model))
    called: list[str] = []
    for target in targets:
        modules[target.path].register_forward_hook(
            lambda _module, _args, _out, path=target.path: called.append(path)
        )
    with torch.no_grad():
        model(**tiny_inputs(model))
    assert sorted(called) == sorted(target.path for target in targets)


def test_inference_agrees_with_the_table_or_refuses() -> None:
    agreed, refused = [], []
    for name, make in TINY.items():
        model = make()
        try:
            inferred = infer_blocks(model)
        except ArchitectureError:
            refused.append(name)
        else:
            assert inferred == find_blocks(model), name
            agreed.append(name)
    assert refused == ["gemma3"]  # its image encoder has another width
    assert len(agreed) == len(TINY) - 1


@pytest.mark.parametrize(
    ("name", "inner", "stack"),
    [
        ("llama", "model", "layers"),
        ("t5", "encoder", "block"),
        ("bert", "bert.encoder", "layer"),
        ("bart", "model.decoder", "layers"),
        ("gpt2", "transformer", "h"),
        ("opt", "model.decoder", "layers"),
        ("vit", "vit", "layers"),
        ("distilbert", "distilbert", "transformer.layer"),
        ("gemma3", "model.language_model", "layers"),
    ],
)
def test_bare_models_without_a_head(name: str, inner: str, stack: str) -> None:
    whole = TINY[name]()
    part = whole.get_submodule(inner)
    if not hasattr(part, "config"):
        part.config = whole.config
    blocks = find_blocks(part)
    assert [(block.stack, block.index) for block in blocks] == [(stack, 0), (stack, 1)]


def test_cross_attention_of_a_bert_decoder_is_left_alone() -> None:
    config = TINY["bert"]().config
    config.is_decoder = config.add_cross_attention = True
    model = transformers.BertLMHeadModel(config)
    assert any("crossattention" in path for path in base_modules(model))
    blocks = find_blocks(model)
    assert blocks == infer_blocks(model)
    assert blocks[0] == Block(
        stack="bert.encoder.layer",
        index=0,
        path="bert.encoder.layer.0",
        attention="bert.encoder.layer.0.attention.output.dense",
        feed_forward="bert.encoder.layer.0.output.dense",
    )


def test_a_pattern_star_is_one_component() -> None:
    assert path_matches("layer.1.DenseReluDense.wo", "layer.*.DenseReluDense.wo")
    assert not path_matches("layer.DenseReluDense.wo", "layer.*.DenseReluDense.wo")
    assert not path_matches("layer.1.extra.DenseReluDense.wo", "layer.*.DenseReluDense.wo")


def test_a_stack_matches_from_its_end() -> None:
    assert stack_matches("model.decoder.layers", "decoder.layers")
    assert stack_matches("layers", "decoder.layers")
    assert not stack_matches("model.xdecoder.layers", "decoder.layers")
    assert not stack_matches("decoder", "decoder.layers")


def _wavlm() -> Any:
    return transformers.WavLMModel(
        transformers.WavLMConfig(
            hidden_size=HIDDEN,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=48,
            conv_dim=(8,),
            conv_stride=(4,),
            conv_kernel=(4,),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    )


def test_models_that_bypass_their_output_layer_are_refused() -> None:
    with pytest.raises(ArchitectureError, match=r"'wavlm'.*multi_head_attention_forward.*by hand"):
        find_blocks(_wavlm())


def test_a_bypass_inside_another_model_is_refused_too() -> None:
    holder = nn.Module()
    holder.encoder = _wavlm()
    with pytest.raises(ArchitectureError, match="'wavlm'"):
        find_blocks(holder)


def test_modules_of_a_bypassing_model_can_be_named_by_hand() -> None:
    (target,) = named_targets(_wavlm(), ["feed_forward.output_dense"])
    assert target.path == "encoder.layers.0.feed_forward.output_dense"
    with pytest.raises(ArchitectureError, match="fused function"):
        named_targets(_wavlm(), ["out_proj"])


def test_bloom_is_refused_only_where_it_slices_its_weights() -> None:
    model = TINY["bloom"]()
    model.config.pretraining_tp = 2
    find_blocks(model)
    model.config.slow_but_exact = True
    with pytest.raises(ArchitectureError, match="slow_but_exact"):
        find_blocks(model)
