"""The work that every package is given, in plain torch and transformers, so that it is the same
code in every environment. What differs is only how a package adapts the model."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "reference"

Work = Callable[[], object]


def _load_timing() -> Any:
    """The package's own timing, from its file: other environments cannot import the package."""
    path = ROOT / "src" / "compacter" / "bench" / "timing.py"
    spec = importlib.util.spec_from_file_location("timing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["timing"] = module
    spec.loader.exec_module(module)
    return module


timing = _load_timing()
laps = timing.Laps()
"""Every model that works is watched by it."""


class Order:
    """What run.py asks for, on standard input."""

    def __init__(self) -> None:
        order = json.load(sys.stdin)
        self.dimensions: dict[str, dict[str, int]] = order["dimensions"]
        self.vocabulary: int = order["vocabulary"]
        self.rounds: dict[str, int] = order["rounds"]
        self.mixed_rows: int = order["mixed_rows"]
        self._bare: dict[str, nn.Module] = {}

    def bare(self, name: str) -> nn.Module:
        """A frozen T5 with random weights. Copies of it share them."""
        if name not in self._bare:
            torch.manual_seed(0)
            config = T5Config(
                vocab_size=self.vocabulary,
                feed_forward_proj="relu",
                decoder_start_token_id=0,
                **self.dimensions[name],
            )
            self._bare[name] = T5ForConditionalGeneration(config).requires_grad_(False)
        bare = self._bare[name]
        return copy.deepcopy(bare, {id(p): p for p in bare.parameters()})

    def norms_only(self, name: str) -> nn.Module:
        """The least that can be trained in every layer: what a step costs without adapters."""
        model = self.bare(name)
        for module in model.modules():
            for key, parameter in list(module.named_parameters(recurse=False)):
                if "LayerNorm" in type(module).__name__:
                    module.register_parameter(key, nn.Parameter(parameter.detach().clone()))
        return model


def batch(model: nn.Module, rows: int, length: int, target_length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    source, target = (
        torch.randint(vocabulary // 2, vocabulary, (rows, width), generator=generator)
        for width in (length, target_length)
    )
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


def training_step(model: nn.Module, rows: int, length: int) -> Work:
    """Forward, backward and AdamW on a batch with targets of four tokens."""
    inputs = batch(model.train(), rows, length, 4)
    laps.watch(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()
        optimizer.step()

    return step


def decoding(model: nn.Module) -> Work:
    """Greedy decoding of 20 tokens for one row of 20."""
    inputs = batch(model.eval(), 1, 20, 4)
    laps.watch(model)
    inputs.pop("labels")

    @torch.no_grad()
    def decode() -> None:
        model.generate(  # type: ignore[operator]
            **inputs, max_new_tokens=20, min_new_tokens=20, do_sample=False, num_beams=1
        )

    return decode


def forward_pass(model: nn.Module, rows: int, **more: Any) -> Work:
    """Without gradients, of rows of 32 tokens."""
    inputs = batch(model.eval(), rows, 32, 4)
    laps.watch(model)

    @torch.no_grad()
    def run() -> None:
        model(**inputs, **more)

    return run


def compare(works: Mapping[str, Work], rounds: int) -> dict[str, Any]:
    """Seconds of everything, turn by turn, and ratios to the reference."""
    for work in works.values():
        work()
    found = timing.take_turns(works, rounds, laps=laps)
    answers: dict[str, Any] = {}
    for name, each in found.items():
        of_medians, of_minima = each.ratios(found[REFERENCE])
        answers[name] = {
            "seconds": list(each.seconds),
            "ratio_of_medians": of_medians,
            "ratio_interval": each.ratio_interval(found[REFERENCE]),
            "ratio_of_turns": each.median_turn / found[REFERENCE].median_turn,
            "ratio_of_minima": of_minima,
        }
    return answers


def answer(figures: dict[str, Any], *packages: str) -> None:
    """Print what was measured, for run.py."""
    versions = {package: version(package) for package in ("torch", "transformers", *packages)}
    print(
        json.dumps({"versions": versions, "threads": torch.get_num_threads(), "figures": figures})
    )
