"""Blocks, targets and norms, in known models, unknown ones and ones that PEFT has touched."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from peft import IA3Config, LoraConfig, get_peft_model, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from compacter.errors import ArchitectureError
from compacter.models import (
    Target,
    base_modules,
    drop_layers,
    find_blocks,
    hidden_size,
    infer_blocks,
    input_width,
    layer_norms,
    named_targets,
    output_width,
    skeleton,
    targets_of,
)
from tiny_models import HIDDEN, TINY


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)


class Layer(nn.Module):
    """A transformer layer of plain torch; `changes` replaces or adds parts."""

    def __init__(self, width: int = 16, inner: int = 24, **changes: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        for name, part in changes.items():
            setattr(self, name, part)


class Model(nn.Module):
    def __init__(self, *layers: nn.Module, **config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if config:
            self.config = config


# Widths


def test_widths_of_linear_conv1d_and_others() -> None:
    conv1d = transformers.pytorch_utils.Conv1D(nf=3, nx=2)
    assert (input_width(conv1d), output_width(conv1d)) == (2, 3)
    assert (input_width(nn.Linear(4, 5)), output_width(nn.Linear(4, 5))) == (4, 5)
    assert (input_width(nn.LayerNorm(4)), output_width(nn.LayerNorm(4))) == (None, None)
    assert output_width(nn.Conv2d(1, 2, 3)) is None


# The model without PEFT


def _paths(model: nn.Module) -> dict[str, nn.Module]:
    return dict(model.named_modules())


@pytest.mark.parametrize("name", ["t5", "gpt2", "bert"])
def test_a_bare_model_is_as_torch_names_it(name: str) -> None:
    model = TINY[name]()
    assert base_modules(model) == _paths(model)


def test_lora_ia3_and_modules_to_save_leave_no_trace() -> None:
    model = TINY["bert"]()
    bare = _paths(deepcopy(model))
    lora = LoraConfig(target_modules=["query", "output.dense"], modules_to_save=["classifier"])
    wrapped = get_peft_model(model, lora)
    ia3 = IA3Config(target_modules=["query"], feedforward_modules=[])
    inject_adapter_in_model(ia3, wrapped.base_model.model, adapter_name="second")
    found = base_modules(wrapped)
    assert list(found) == list(bare)
    assert [type(module) for module in found.values()] == [type(module) for module in bare.values()]
    assert found == base_modules(wrapped.base_model) == base_modules(wrapped.base_model.model)


def test_nested_tuner_layers_stand_for_the_innermost_module() -> None:
    model = TINY["llama"]()
    inner = model.model.layers[0].self_attn.o_proj
    blocks = find_blocks(model)
    for adapter in ("one", "two"):
        get_peft_model(model, LoraConfig(target_modules=["o_proj"]), adapter_name=adapter)
    outer = nn.Module()
    outer.__class__ = type("Outer", (nn.Module, BaseTunerLayer), {})
    outer.base_layer = model.model.layers[0].self_attn.o_proj
    outer.extra = nn.Linear(2, 2)
    model.model.layers[0].self_attn.o_proj = outer
    modules = base_modules(model)
    assert modules["model.layers.0.self_attn.o_proj"] is inner
    assert not any("base_layer" in path or "extra" in path for path in modules)
    assert find_blocks(model) == blocks


def test_a_tuner_layer_that_wraps_nothing_is_left_out() -> None:
    model = TINY["llama"]()
    bare = list(base_modules(model))
    model.shared = nn.Module()
    model.shared.__class__ = type("Shared", (nn.Module, BaseTunerLayer), {})
    model.shared.inner = nn.LayerNorm(HIDDEN)
    assert list(base_modules(model)) == bare


# Models no table knows


def test_a_plain_torch_model_without_a_config() -> None:
    model = Model(Layer(), Layer())
    assert hidden_size(model) == 16
    assert targets_of(find_blocks(model)) == (
        Target("layers.0.attn.o_proj", "layers", 0),
        Target("layers.0.mlp.2", "layers", 0),
        Target("layers.1.attn.o_proj", "layers", 1),
        Target("layers.1.mlp.2", "layers", 1),
    )


def test_a_config_may_be_a_plain_dict() -> None:
    assert hidden_size(Model(Layer(16), d_model=16)) == 16


def test_a_fused_gate_leads_to_the_inner_width() -> None:
    mlp = nn.ModuleDict({"gate_up": nn.Linear(16, 48), "down": nn.Linear(24, 16)})
    (block,) = find_blocks(Model(Layer(mlp=mlp)))
    assert block.feed_forward == "layers.0.mlp.down"


def test_positions_that_are_not_asked_for_need_not_be_certain() -> None:
    model = Model(Layer(mlp=nn.Linear(16, 16)))
    (block,) = find_blocks(model, ["attention"])
    assert (block.attention, block.feed_forward) == ("layers.0.attn.o_proj", None)
    assert targets_of([block]) == (Target("layers.0.attn.o_proj", "layers", 0),)
    with pytest.raises(ArchitectureError, match=r"feed-forward output of block 'layers.0'"):
        find_blocks(model)


@pytest.mark.parametrize(
    "name", ["cross_attn", "encoder_attn", "EncDecAttention", "crossattention"]
)
def test_cross_attention_is_passed_over_by_its_name(name: str) -> None:
    (block,) = find_blocks(Model(Layer(16, 24, **{name: Attention(16)})))
    assert block.attention == "layers.0.attn.o_proj"


def test_cross_attention_is_passed_over_by_its_class() -> None:
    class CrossAttention(Attention):
        pass

    (block,) = find_blocks(Model(Layer(visual_attention=CrossAttention(16))))
    assert block.attention == "layers.0.attn.o_proj"


def _mlp(width: int = 16, inner: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.Linear(inner, width))


class OtherLayer(Layer):
    pass


UNCERTAIN = {
    "two attentions": (Model(Layer(attn2=Attention(16))), "found attn.o_proj, attn2.o_proj"),
    "no attention": (Model(Layer(attn=nn.Identity())), "attention output .* found none"),
    "only queries": (
        Model(Layer(attn=nn.ModuleDict({"query": nn.Linear(16, 16)}))),
        "attention output .* found attn.query",
    ),
    "two feed-forwards": (Model(Layer(mlp2=_mlp())), "found mlp.2, mlp2.1"),
    "inner width equal to the hidden size": (Model(Layer(mlp=_mlp(16, 16))), "found mlp.0, mlp.1"),
    "nothing leads to the output": (Model(Layer(mlp=nn.Linear(24, 16))), "found mlp"),
    "a gate beside the output": (
        Model(
            Layer(
                mlp=nn.ModuleDict(
                    {
                        "key": nn.Linear(16, 24),
                        "value": nn.Linear(24, 16),
                        "receptance": nn.Linear(16, 16),
                    }
                )
            )
        ),
        "found mlp.value",
    ),
    "experts": (
        Model(Layer(mlp=nn.ModuleDict({"experts": nn.ModuleList([_mlp(), _mlp()])}))),
        "'layers.0' is a mixture of experts",
    ),
    "blocks of two classes": (Model(Layer(), OtherLayer()), "several classes .Layer, OtherLayer."),
    "another width than the config's": (Model(Layer(16), hidden_size=24), "norms of width 16"),
    "two widths and no config": (Model(Layer(16), Layer(20)), "hidden size is not certain.*16, 20"),
    "no blocks": (Model(nn.Linear(2, 2)), "no list of transformer blocks"),
    "nothing at all": (nn.Linear(2, 2), "no list of transformer blocks"),
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_what_is_not_certain_is_an_error_that_asks_for_names(case: str) -> None:
    model, message = UNCERTAIN[case]
    with pytest.raises(ArchitectureError, match=message) as error:
        find_blocks(model)
    asks = "attn.o_proj" if case == "experts" else 'target_modules=["o_proj", "down_proj"]'
    assert "target_modules" in str(error.value)
    assert asks in str(error.value)


def test_a_block_without_attention_has_no_certain_feed_forward() -> None:
    layer = Layer()
    del layer.attn
    with pytest.raises(ArchitectureError, match="nothing named like attention"):
        find_blocks(Model(layer), ["feed_forward"])


def test_an_image_encoder_as_wide_inside_as_the_text_is_not_mistaken() -> None:
    """LLaVA's shape: the image encoder's inner width is the language model's hidden size."""
    model = Model(hidden_size=16)
    model.vision, model.language = Model(Layer(8, 16)), Model(Layer(16, 24))
    with pytest.raises(ArchitectureError, match=r"'vision.layers.0' has norms of width 8"):
        find_blocks(model, ["feed_forward"])


def test_mixtral_has_attention_but_no_single_feed_forward() -> None:
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    model = transformers.MixtralForCausalLM(config)
    blocks = find_blocks(model, ["attention"])
    assert [block.attention for block in blocks] == [
        "model.layers.0.self_attn.o_proj",
        "model.layers.1.self_attn.o_proj",
    ]
    with pytest.raises(ArchitectureError, match="mixture of experts"):
        find_blocks(model)


def test_torch_multihead_attention_is_refused() -> None:
    attention = nn.MultiheadAttention(16, 4)
    model = Model(Layer(attn=attention))
    for look in (find_blocks, lambda m: named_targets(m, ["out_proj"])):
        with pytest.raises(ArchitectureError, match="part of a MultiheadAttention, which reads"):
            look(model)
    assert find_blocks(model, ["feed_forward"])[0].feed_forward == "layers.0.mlp.2"


def test_torch_encoder_layers_are_refused_because_their_fast_path_reads_the_weights() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 3, 16)

    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    before = layer(x)
    layer.linear2.__class__ = Doubled
    with torch.no_grad():
        torch.testing.assert_close(layer(x), before)  # the new forward was never called
    with pytest.raises(ArchitectureError, match="part of a TransformerEncoderLayer"):
        find_blocks(Model(layer), ["feed_forward"])


def test_unknown_positions() -> None:
    with pytest.raises(ArchitectureError, match=r"\['cross'\].*'attention', 'feed_forward'"):
        find_blocks(TINY["t5"](), ["cross"])


def test_a_known_family_whose_parts_are_missing() -> None:
    model = TINY["llama"]()
    model.model.layers[1].mlp.down_proj = nn.Identity()
    with pytest.raises(ArchitectureError, match=r"'model.layers.1.mlp.down_proj' is a Identity"):
        find_blocks(model)
    del model.model.layers[1].mlp.down_proj
    with pytest.raises(ArchitectureError, match=r"'model.layers.1'.*at mlp.down_proj, found none"):
        find_blocks(model)
    model.model.blocks = model.model.layers
    del model.model.layers
    with pytest.raises(ArchitectureError, match=r"in model.layers, found model.blocks"):
        find_blocks(model)


def test_albert_shares_one_block() -> None:
    config = transformers.AlbertConfig(
        vocab_size=64,
        embedding_size=16,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    (block,) = infer_blocks(transformers.AlbertModel(config))
    assert block.attention == "encoder.albert_layer_groups.0.albert_layers.0.attention.dense"
    assert block.feed_forward == "encoder.albert_layer_groups.0.albert_layers.0.ffn_output"


# Modules named by hand


def test_names_are_whole_paths_or_their_ends() -> None:
    model = TINY["t5"]()
    assert named_targets(model, ["lm_head", "1.layer.0.SelfAttention.o"]) == (
        Target("encoder.block.1.layer.0.SelfAttention.o", "encoder.block", 1),
        Target("decoder.block.1.layer.0.SelfAttention.o", "decoder.block", 1),
        Target("lm_head", "", 0),
    )


def test_by_hand_and_by_table_agree() -> None:
    model = TINY["llama"]()
    assert named_targets(model, ["o_proj", "down_proj"]) == targets_of(find_blocks(model))


def test_a_regular_expression_matches_the_whole_path() -> None:
    model = TINY["llama"]()
    assert [t.path for t in named_targets(model, r".*\.1\.mlp\.(up|down)_proj")] == [
        "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.down_proj",
    ]
    with pytest.raises(ArchitectureError, match="nothing in the model matches 'down_proj'"):
        named_targets(model, "down_proj")
    with pytest.raises(ArchitectureError, match="no regular expression"):
        named_targets(model, "(")


def test_names_hold_when_adapters_are_in_the_model() -> None:
    model = TINY["llama"]()
    targets = named_targets(model, ["o_proj"])
    wrapped = get_peft_model(model, LoraConfig(target_modules=["o_proj", "down_proj"]))
    assert named_targets(wrapped, ["o_proj"]) == targets
    assert find_blocks(wrapped) == find_blocks(TINY["llama"]())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["o_proj", "down_prj"], "'down_prj'.*nearest names are down_proj"),
        ([], "target_modules is empty"),
        (["mlp"], "LlamaMLP, which has no known output width"),
        (["input_layernorm"], "LlamaRMSNorm, which has no known output width"),
    ],
)
def test_names_that_do_not_fit(names: list[str], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        named_targets(TINY["llama"](), names)


# Dropping layers


def _stack(name: str, depth: int) -> list[Target]:
    return [Target(f"{name}.{i}.o", name, i) for i in range(depth)]


def test_drop_layers_drops_the_first_of_each_stack() -> None:
    targets = _stack("encoder", 4) + _stack("decoder", 3)
    kept = drop_layers(targets, 2)
    assert [t.path for t in kept] == ["encoder.2.o", "encoder.3.o", "decoder.2.o"]
    assert drop_layers(targets, 0) == tuple(targets)
    assert drop_layers((), 0) == ()


@pytest.mark.parametrize("count", [-1, 3, 4, 100])
def test_drop_layers_must_leave_a_layer_in_every_stack(count: int) -> None:
    targets = _stack("encoder", 4) + _stack("decoder", 3)
    with pytest.raises(ArchitectureError, match=rf"drop_layers={count} .*expected 0 to 2"):
        drop_layers(targets, count)


# Layer norms


def test_t5_base_has_the_62_norms_of_the_paper() -> None:
    norms = layer_norms(skeleton("t5-base"))
    assert len(norms) == 62
    assert sum(p.numel() for norm in norms.values() for p in norm.parameters()) == 47_616


def test_norms_of_queries_and_keys_are_norms() -> None:
    norms = layer_norms(TINY["qwen3"]())
    assert {"model.layers.0.self_attn.q_norm", "model.layers.1.self_attn.k_norm"} <= set(norms)
    assert len(norms) == 4 * 2 + 1


@pytest.mark.parametrize(
    ("norm", "counts"),
    [
        (nn.LayerNorm(4), True),
        (nn.RMSNorm(4), True),
        (nn.LayerNorm(4, elementwise_affine=False), False),
        (nn.BatchNorm1d(4), False),
        (nn.GroupNorm(2, 4), False),
        (type("SubLayerNorm", (nn.Sequential,), {})(nn.Linear(2, 2)), False),
    ],
)
def test_what_counts_as_a_layer_norm(norm: nn.Module, counts: bool) -> None:
    assert (layer_norms(nn.ModuleDict({"norm": norm})) == {"norm": norm}) is counts
