"""What cannot be one batch of different adapters, and parts of a model that see no examples."""

from __future__ import annotations

import pytest
import torch
import transformers
from mixing import BASE, adapted, alone, check_examples
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
        (["one"], "adapter_names has 1 names for a batch of 2 examples; expected one each"),
        (["one", "two", "one", "two"], "has 4 names for a batch of 2 examples"),
        (
            [],
            r"adapter_names=\[\]: expected the name of one adapter, or a list with a name for each",
        ),
        (3, "adapter_names=3: expected the name of one adapter, or a list"),
        ("nope", "adapter_names has 'nope', which is no adapter"),
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
    with pytest.raises(AdapterError, match="is merged into the base model, for all examples"):
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
def test_parts_of_a_model_that_see_no_examples_are_refused(base, message):
    model = adapted("", {"one": BitFitConfig(), "two": BitFitConfig()}, base())
    ids = torch.arange(8, 24).reshape(2, 8)
    with pytest.raises(AdapterError, match=message):
        model(input_ids=ids, decoder_input_ids=ids[:, :4], adapter_names=["one", "two"])


def with_images() -> dict[str, Tensor]:
    """Two examples for the tiny Gemma 3 with an image each, and their image tokens."""
    ids = torch.tensor([[94, *[95] * 4, 93, *range(start, start + 6)] for start in (7, 13)])
    pixels = torch.randn(2, 3, 16, 16)
    return {"input_ids": ids, "token_type_ids": (ids == 95).long(), "pixel_values": pixels}


def test_images_beside_texts_are_refused_unless_all_have_one_adapter():
    """A model may take any number of images for a text."""
    base = TINY["gemma3"]()
    torch.manual_seed(0)
    nn.init.normal_(base.model.multi_modal_projector.mm_input_projection_weight, std=0.5)
    model = adapted("gemma3", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    inputs = with_images()
    with pytest.raises(AdapterError, match="with texts and pixel_values, which cannot be divided"):
        model(**inputs, adapter_names=["one", "two"])
    expected = alone(model, "two", lambda: logits(model, **inputs))
    model.set_adapter("one")
    found = logits(model, **inputs, adapter_names="two")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    text = {"input_ids": torch.arange(7, 23).reshape(2, 8)}
    check_examples(model, ["one", "two"], text)


def test_of_a_longformer_only_what_sees_the_length_first_is_refused():
    torch.manual_seed(0)
    base = transformers.LongformerForMaskedLM(LONGFORMER).eval()
    model = adapted("", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    ids = torch.arange(8, 24).reshape(2, 8)
    check_examples(model, ["one", "two"], {"input_ids": ids})


def test_norms_over_tables_of_positions_are_refused():
    """DeBERTa normalises its relative positions, once for all examples."""
    base = TINY["deberta-v2"]()
    base.config.norm_rel_ebd = "layer_norm"
    base = type(base)(base.config).eval()
    model = adapted("deberta-v2", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    with pytest.raises(AdapterError, match="computes something for all examples at once"):
        logits(model, **inputs_of("deberta-v2"), adapter_names=["one", "two"])


def test_batches_that_guidance_doubles_are_refused():
    """MusicGen lays the examples without their prompts behind all others."""
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


class OfItsOwn(nn.Module):
    """No model of transformers: its batch comes as `tokens`, and a GRU reads it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.lin = nn.Embedding(64, 16), nn.Linear(16, 16)
        self.rnn, self.out = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        y = self.lin(self.embed(tokens))
        y = self.out(self.rnn(y)[0])
        return y if scale is None else y * scale


TOKENS = torch.arange(8, 24).reshape(2, 8)


def own_model(**settings):
    def config():
        return CompacterConfig(target_modules=["lin"], bottleneck=4, **settings)

    return adapted("", {"one": config(), "two": config()}, OfItsOwn())


@pytest.mark.parametrize("extra", [{}, {"scale": torch.tensor(2.0)}])
def test_a_batch_under_a_keyword_of_the_models_own(extra):
    model = own_model()
    mixed = model(tokens=TOKENS, **extra, adapter_names=["two", "one"])
    for index, name in enumerate(["two", "one"]):
        expected = alone(model, name, lambda: model(tokens=TOKENS, **extra))
        torch.testing.assert_close(mixed[index], expected[index])
    for names in (["one"], ["one", "two", "one"], ["one"] * 4):
        with pytest.raises(AdapterError, match=f"has {len(names)} names for a batch of 2 examples"):
            model(tokens=TOKENS, **extra, adapter_names=names)


def test_a_whole_module_that_cannot_be_mixed_is_refused():
    """A GRU takes no weights of its own for each example."""
    model = own_model(modules_to_save=["rnn"])
    with pytest.raises(AdapterError, match=r"cannot share a call of GRU.*call the model for each"):
        model(tokens=TOKENS, adapter_names=["one", "two"])
    found = model(tokens=TOKENS, adapter_names="two")
    torch.testing.assert_close(found, alone(model, "two", lambda: model(tokens=TOKENS)))
