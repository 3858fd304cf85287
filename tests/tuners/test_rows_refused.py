"""What cannot be one batch of different adapters, and parts of a model that see no rows."""

from __future__ import annotations

import pytest
import torch
import transformers
from mixing import BASE, adapted, check_rows
from torch import Tensor, nn

import compacter
from adapting import attach_tiny, inputs_of, logits
from compacter import BitFitConfig, CompacterConfig
from compacter.errors import AdapterError
from tiny_models import TINY


@pytest.mark.parametrize(
    ("family", "call"), [("t5", "forward"), ("t5", "generate"), ("bert", "forward")]
)
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["one", "nope"],
            r"adapter_names has 'nope', which is no adapter .* expected 'one', 'two'",
        ),
        (["one"], "adapter_names has 1 names for a batch of 2 rows; expected one each"),
        (["one", "two", "one", "two"], "has 4 names for a batch of 2 rows"),
        ([], "expected a list with one name for each row"),
        ("one", "expected a list with one name for each row"),
    ],
)
def test_names_that_do_not_fit_the_batch(family, call, names, message):
    model = compacter.attach(TINY[family](), "compacter", adapter_name="one").eval()
    model.add_adapter("two", CompacterConfig(task_type=model.peft_config["one"].task_type))
    inputs = inputs_of(family)
    before = logits(model, **inputs)
    run = model.forward if call == "forward" else model.generate
    batch = inputs if call == "forward" else {"input_ids": inputs["input_ids"]}
    with pytest.raises(AdapterError, match=message):
        run(**batch, adapter_names=names)
    assert torch.equal(logits(model, **inputs), before)


def test_what_cannot_be_mixed_is_refused():
    inputs = inputs_of("t5")
    model = attach_tiny("t5", "intrinsic-said")
    with pytest.raises(AdapterError, match="moves every weight of the model"):
        model(**inputs, adapter_names=["default", BASE])
    model = attach_tiny("t5", "compacter").train()
    with pytest.raises(AdapterError, match=r"in training mode.*call model.eval\(\)"):
        model(**inputs, adapter_names=["default", BASE])
    model = attach_tiny("gpt2", "bitfit")
    model.merge_adapter()
    with pytest.raises(AdapterError, match="is merged into the base model, for all rows"):
        model(**inputs_of("gpt2"), adapter_names=["default", BASE])


XLNET = transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=64)
LONGFORMER = transformers.LongformerConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    attention_window=4,
    max_position_embeddings=64,
)


@pytest.mark.parametrize(
    ("base", "config"),
    [
        (lambda: transformers.XLNetLMHeadModel(XLNET), BitFitConfig),
        (
            lambda: transformers.XLNetLMHeadModel(XLNET),
            lambda: CompacterConfig(positions=("feed_forward",)),
        ),
        (lambda: transformers.LongformerForMaskedLM(LONGFORMER), BitFitConfig),
    ],
)
def test_modules_that_see_the_length_first_are_refused(base, config):
    """The length is a multiple of the batch, so that shapes do not tell."""
    model = adapted("", {"one": config(), "two": config()}, base())
    with pytest.raises(AdapterError, match=r"calls .* with \(length, batch, width\)"):
        model(input_ids=torch.arange(8, 24).reshape(2, 8), adapter_names=["one", "two"])


def longformer_with_a_decoder():
    decoder = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        is_decoder=True,
        add_cross_attention=True,
    )
    return transformers.EncoderDecoderModel(
        encoder=transformers.LongformerModel(LONGFORMER),
        decoder=transformers.BertLMHeadModel(decoder),
    )


def mixture_of_experts():
    return transformers.NllbMoeForConditionalGeneration(
        transformers.NllbMoeConfig(
            vocab_size=64,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_experts=2,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
            expert_capacity=64,
        )
    )


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (longformer_with_a_decoder, r"'longformer' calls encoder.* with \(length, batch, width\)"),
        (mixture_of_experts, "belongs to an expert, which is called with the tokens sent to it"),
    ],
)
def test_parts_of_a_model_that_see_no_rows_are_refused(base, message):
    model = adapted("", {"one": BitFitConfig(), "two": BitFitConfig()}, base())
    ids = torch.arange(8, 24).reshape(2, 8)
    with pytest.raises(AdapterError, match=message):
        model(input_ids=ids, decoder_input_ids=ids[:, :4], adapter_names=["one", "two"])


def with_images(first: int, second: int) -> dict[str, Tensor]:
    """Two rows for the tiny Gemma 3 with so many images, and their image tokens."""
    image = [94, *[95] * 4, 93]
    rows = [image * count + list(range(7, 7 + 6 * (2 - count))) for count in (first, second)]
    ids, pixels = torch.tensor(rows), torch.randn(first + second, 3, 16, 16)
    return {"input_ids": ids, "token_type_ids": (ids == 95).long(), "pixel_values": pixels}


def test_images_are_shared_out_among_the_adapters_where_every_row_has_as_many():
    base = TINY["gemma3"]()
    torch.manual_seed(0)
    nn.init.normal_(base.model.multi_modal_projector.mm_input_projection_weight, std=0.5)
    model = adapted("gemma3", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    check_rows(model, ["one", "two"], with_images(1, 1))
    with pytest.raises(AdapterError, match=r"not the same number .*rows: \[8, 0\]"):
        model(**with_images(2, 0), adapter_names=["one", "two"])
    text = CompacterConfig(train_layer_norms=False)
    model = adapted("gemma3", {"one": text, "two": text})
    model(**with_images(2, 0), adapter_names=["one", "two"])  # images pass no adapter


def test_of_a_longformer_only_what_sees_the_length_first_is_refused():
    torch.manual_seed(0)
    base = transformers.LongformerForMaskedLM(LONGFORMER).eval()
    model = adapted("", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    ids = torch.arange(8, 24).reshape(2, 8)
    check_rows(model, ["one", "two"], {"input_ids": ids})


def test_norms_over_tables_of_positions_are_refused():
    """DeBERTa normalises its relative positions, once for all rows."""
    base = TINY["deberta-v2"]()
    base.config.norm_rel_ebd = "layer_norm"
    base = type(base)(base.config).eval()
    model = adapted("deberta-v2", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    with pytest.raises(AdapterError, match="computes something for all rows at once"):
        logits(model, **inputs_of("deberta-v2"), adapter_names=["one", "two"])


def test_batches_that_guidance_doubles_are_refused():
    """MusicGen lays the rows without their prompts behind all rows."""
    base = transformers.MusicgenForCausalLM(
        transformers.MusicgenDecoderConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            num_codebooks=1,
        )
    )
    config = CompacterConfig(target_modules=["fc2"])
    model = adapted("", {"one": config, "two": config}, base)
    with pytest.raises(AdapterError, match="'musicgen_decoder' doubles its batch"):
        model(input_ids=torch.arange(8, 24).reshape(2, 8), adapter_names=["one", "two"])
