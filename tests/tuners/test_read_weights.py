"""Models that read a weight or a bias instead of calling the module that has it."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import get_peft_model
from torch import Tensor, nn

from adapting import CONFIGS, logits, scramble
from compacter import BitFitConfig


def wavlm():
    """Its attention hands all weights to a function."""
    model = transformers.WavLMForSequenceClassification(
        transformers.WavLMConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=16,
            apply_spec_augment=False,
        )
    )
    return model, {"input_values": torch.randn(2, 400), "labels": torch.tensor([0, 1])}


def mamba():
    """Its mixer reads conv1d and dt_proj."""
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4
    )
    ids = torch.arange(3, 15).reshape(2, 6)
    return transformers.MambaForCausalLM(config), {"input_ids": ids, "labels": ids}


class Encoder(nn.Module):
    """Torch's layers have a fast path that reads all their weights, without gradients alone."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


@pytest.mark.parametrize("make", [wavlm, mamba])
@pytest.mark.parametrize(
    "config", [CONFIGS["intrinsic-said"], lambda: BitFitConfig(biases="existing")]
)
def test_what_is_read_is_trained_and_merging_is_exact(make, config):
    torch.manual_seed(0)
    base, inputs = make()
    model = get_peft_model(base.eval(), config()).eval()
    scramble(model, std=0.1)
    model(**inputs).loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
    lambdas = [p for n, p in model.named_parameters() if n.endswith(".lambda")]
    expected = logits(model, **inputs)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), expected, rtol=1e-4, atol=1e-4)
    merged.requires_grad_(True)
    merged(**inputs).loss.backward()
    used = [n for n, p in merged.named_parameters() if p.grad is not None and p.grad.any()]
    for grad in (p.grad for p in lambdas):
        assert (grad != 0).sum() >= len(used)


@pytest.mark.parametrize("kind", ["bitfit", "intrinsic-said"])
def test_torchs_fast_path_computes_what_was_trained(kind):
    torch.manual_seed(0)
    model = get_peft_model(Encoder(), CONFIGS[kind]()).eval()
    scramble(model)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        found = model(x)
    with_gradients = model(x)
    assert with_gradients.requires_grad
    torch.testing.assert_close(found, with_gradients, rtol=1e-4, atol=1e-4)
    with model.disable_adapter(), torch.no_grad():
        assert (model(x) - found).abs().max() > 0.1
