"""What this package promises about time and memory, measured, with a verdict each.

    python benchmarks/promises.py                       # everything, on a quiet machine
    python benchmarks/promises.py --only steps,decode   # some of it
    python benchmarks/promises.py --quick               # tiny models, to try the script

Times are compared round by round in one process, by medians, with the clock read after every layer
(see compacter.bench.timing). Beside each figure stands where 95% of other rounds would put it; if
the limit lies between, the verdict is "undecided". The exit code is 1 if a promise is broken."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import compacter
from compacter.bench import Laps, SavedTensors, Timing, count_step, take_turns
from compacter.bench.work import decoding, make_inputs, make_optimizer, training_step
from compacter.methods import METHODS
from compacter.models import random_model
from subjects import make

NORMS, ADAPTER, OURS, PLUS, LORA = "layer norms", "adapter", "compacter", "compacter++", "lora"


@dataclass(frozen=True)
class Check:
    """A promise: a figure that may not be above its limit, and where it could lie as well."""

    name: str
    value: float
    limit: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if low > self.limit:
            return "FAIL"
        return "pass" if high <= self.limit else "undecided"


Medians = Mapping[str, float]


def compared(
    name: str, found: Mapping[str, Timing], figure: Callable[[Medians], float], limit: float
) -> Check:
    """A figure made of medians, with the interval in which it lies when rounds are drawn anew."""
    rounds = len(next(iter(found.values())).laps)
    generator = np.random.default_rng(0)

    def medians(some: Iterable[int]) -> dict[str, float]:
        chosen = list(some)
        return {of: timing.of_rounds(chosen).median for of, timing in found.items()}

    drawn = [figure(medians(generator.integers(rounds, size=rounds))) for _ in range(500)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    value = figure(medians(range(rounds)))
    return Check(name, value, limit, float(low), float(high), f"95% in {low:.3f} to {high:.3f}")


def count() -> None:
    """The same work in every round, which needs nothing but a core: how long it takes tells whether
    others use the cores as well."""
    sum(range(500_000))


@dataclass(frozen=True)
class Plan:
    """Models, and how often everything is timed."""

    quick: bool
    rounds: int
    laps: Laps = field(default_factory=Laps)

    def bare(self, name: str) -> nn.Module:
        torch.manual_seed(0)
        if not self.quick:
            return random_model(name)
        config = T5Config(
            vocab_size=512,
            d_model=128,
            d_ff=128,
            num_layers=6,
            num_heads=2,
            d_kv=64,
            decoder_start_token_id=0,
        )
        return T5ForConditionalGeneration(config)

    def times(
        self, works: dict[str, Callable[[], object]], models: Iterable[nn.Module], *, turns: int
    ) -> dict[str, Timing]:
        """`models`: those that work; `turns`: how many times as many rounds as usual, for what is
        close or short."""
        for model in models:
            self.laps.watch(model)
        for work in works.values():
            work()
        rounds = self.rounds * (1 if self.quick else turns)
        found = take_turns({**works, "count": count}, rounds, laps=self.laps)
        counting = found.pop("count")
        slower = counting.median / counting.minimum
        print(
            f"{rounds} rounds; between them, counting took {slower:.2f} times as long as at best",
            flush=True,
        )
        return found

    def step_times(
        self, bare: nn.Module, names: list[str], batch: int, length: int, *, turns: int
    ) -> dict[str, Timing]:
        models = {name: make(bare, name) for name in names}
        works = {
            name: training_step(model, make_optimizer(model), make_inputs(model, batch, length, 4))
            for name, model in models.items()
        }
        return self.times(works, models.values(), turns=turns)


def steps(plan: Plan) -> Iterator[Check]:
    """Whole steps with the optimiser, T5-small, beside training the layer norms alone."""
    names = [NORMS, ADAPTER, OURS, PLUS, LORA]
    for batch, length, turns in ((8, 128, 4), (1, 16, 10)):
        found = plan.step_times(plan.bare("t5-small"), names, batch, length, turns=turns)
        what = f"step {batch} x {length}:"
        for name in (ADAPTER, OURS, PLUS, LORA):
            low, high = found[name].ratio_interval(found[NORMS])
            ratio = found[name].ratios(found[NORMS])[0]
            print(f"{what} {name} / layer norms {ratio:.3f}, 95% in {low:.3f} to {high:.3f}")
        other, margin = (ADAPTER, 0.02) if batch == 8 else (LORA, 0.03)
        yield compared(
            f"{what} (Compacter - {other}) / layer norms",
            found,
            lambda m, other=other: (m[OURS] - m[other]) / m[NORMS],  # type: ignore[misc]
            margin,
        )
        yield compared(f"{what} Compacter++ / Compacter", found, lambda m: m[PLUS] / m[OURS], 1.0)


def activations(plan: Plan) -> Iterator[Check]:
    """Exact: what autograd saves for T5-base, batch 4 x 128."""
    bare = plan.bare("t5-base")
    saved = {}
    for name in ("adapter", "compacter"):
        model = make(bare, name)
        inputs = make_inputs(model, 4, 128, 4)
        with SavedTensors(model) as tensors:
            loss = model(**inputs).loss
        saved[name] = tensors.bytes()
        del loss
    assert isinstance(model, PeftModel)
    config = model.peft_config["default"]
    adapters = len(config.places[0]["paths"])
    built = 4 * adapters * 2 * bare.config.d_model * config.bottleneck
    yield Check(
        "saved bytes: Compacter / (dense Adapter + built weights)",
        saved["compacter"] / (saved["adapter"] + built),
        1.0,
        note=f"{saved['compacter']:,} of {saved['adapter']:,} + {built:,}",
    )


def decode(plan: Plan) -> Iterator[Check]:
    """Both models read the same weights, so that it makes no difference where these lie."""
    bare = plan.bare("t5-base").eval()
    models, works = {"bare": bare, "compacter": make(bare, "compacter").eval()}, {}
    for name, model in models.items():
        work = decoding(model, make_inputs(model, 1, 20, 4), 20)
        assert work is not None
        works[name] = work
    found = plan.times(works, models.values(), turns=5)
    yield compared(
        "greedy decoding, T5-base, 20 tokens: Compacter / bare model",
        found,
        lambda m: m["compacter"] / m["bare"],
        1.05,
    )


def mixed(plan: Plan) -> Iterator[Check]:
    """Examples of different adapters in one batch, by PEFT's `adapter_names`."""
    rows, many = (4, 20) if plan.quick else (32, 1_000)
    bare = plan.bare("t5-small")
    few, all_of_them = make(bare, OURS).eval(), make(bare, OURS).eval()
    with tempfile.TemporaryDirectory() as folder:
        few.save_pretrained(folder)
        for model, count in ((few, rows), (all_of_them, many)):
            compacter.load_adapters(model, {f"task{i}": folder for i in range(count)})
    names = [f"task{index}" for index in range(rows)]
    inputs = make_inputs(few, rows, 32, 4)

    @torch.no_grad()
    def run(model: nn.Module, **more: Any) -> None:
        model(**inputs, **more)

    works = {
        "one": partial(run, few),
        "mixed": partial(run, few, adapter_names=names),
        "among many": partial(run, all_of_them, adapter_names=names),
    }
    found = plan.times(works, (few, all_of_them), turns=4)
    what = f"{rows} examples with {rows} adapters"
    yield compared(f"{what} / one adapter", found, lambda m: m["mixed"] / m["one"], 1.10)
    yield compared(
        f"{what} among {many:,} / among {rows}",
        found,
        lambda m: m["among many"] / m["mixed"],
        1.05,
    )


def disk(plan: Plan) -> Iterator[Check]:
    model = make(plan.bare("t5-base"), PLUS)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        size = (Path(folder) / "adapter_model.safetensors").stat().st_size
    yield Check(
        "T5-base, Compacter++ on disk: bytes / of its parameters",
        size / trained,
        1.02,
        note=f"{size:,} of {trained:,}",
    )


def pool(plan: Plan) -> Iterator[Check]:
    """Compacter++ for a model of MiniLM's shape, put from its file again and again."""
    count = 50 if plan.quick else 10_000
    config = BertConfig(num_hidden_layers=6, hidden_size=384, intermediate_size=1536, num_labels=2)
    config.num_attention_heads = 12
    model = compacter.attach(BertForSequenceClassification(config), PLUS).eval()
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    adapters = compacter.AdapterPool(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        started = time.perf_counter()
        for index in range(count):
            adapters.put(f"task{index}", folder)
        seconds = time.perf_counter() - started
    yield Check(f"seconds to put {count:,} adapters of MiniLM into a pool", seconds, 60.0)
    yield Check(
        "bytes of a pooled adapter / of its parameters",
        adapters.nbytes / count / trained,
        1.05,
        note=f"{adapters.nbytes / count:,.0f} of {trained:,}",
    )


def intrinsic(plan: Plan) -> Iterator[Check]:
    bare = plan.bare("t5-small")
    models, works, memory = {name: make(bare, name) for name in ("full", "intrinsic-said")}, {}, {}
    for name, model in models.items():
        optimizer, inputs = make_optimizer(model), make_inputs(model, 16, 128, 4)
        memory[name] = count_step(model, inputs, optimizer)
        works[name] = training_step(model, optimizer, inputs)
    found = plan.times(works, models.values(), turns=2)
    yield compared(
        "step 16 x 128: Intrinsic-SAID / full fine-tuning",
        found,
        lambda m: m["intrinsic-said"] / m["full"],
        1.4,
    )
    most, least = memory["intrinsic-said"].total, memory["full"].least
    yield Check(
        "training memory: Intrinsic-SAID at most / full fine-tuning at least",
        most / least,
        1.0,
        note=f"{most / 1e6:,.1f} of {least / 1e6:,.1f} MB",
    )


def bench(plan: Plan) -> Iterator[Check]:
    """The command, as a user calls it."""
    small = ["--batch", "2", "--length", "8", "--rounds", "1", "--new-tokens", "2"]
    command = [sys.executable, "-m", "compacter_cli"]
    started = time.perf_counter()
    rows = _json([*command, "bench", "--model", "t5-small", *(small if plan.quick else [])])
    minutes = (time.perf_counter() - started) / 60
    params = {
        (row["method"], row.get("n")): row["trainable"]
        for row in _json([*command, "params", "--model", "t5-small"])
    }
    methods = rows["methods"]
    differing = [m["method"] for m in methods if params[m["method"], m["n"]] != m["trainable"]]
    missing = set(METHODS) - {m["method"] for m in methods}
    yield Check("compacter bench --model t5-small: minutes", minutes, 6.0)
    yield Check("compacter bench: methods that are missing", len(missing), 0)
    yield Check("compacter bench: parameters unlike `params`", len(differing), 0)


def _json(command: list[str]) -> Any:
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


PARTS: dict[str, Callable[[Plan], Iterator[Check]]] = {
    "steps": steps,
    "activations": activations,
    "decode": decode,
    "mixed": mixed,
    "disk": disk,
    "pool": pool,
    "intrinsic": intrinsic,
    "bench": bench,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="rounds for everything")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    unknown = set(arguments.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    plan = Plan(arguments.quick, arguments.rounds)
    checks: list[Check] = []
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {plan.rounds} rounds")
    for part in arguments.only.split(","):
        for check in PARTS[part](plan):
            verdict = "tried" if plan.quick else check.verdict  # tiny models promise nothing
            print(
                f"{verdict:10} {check.value:>7.3f} <= {check.limit:<5g} {check.name}"
                + (f" ({check.note})" if check.note else ""),
                flush=True,
            )
            checks.append(check)
    if arguments.output is not None:
        rows = [{**asdict(check), "verdict": check.verdict} for check in checks]
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(not plan.quick and any(check.verdict == "FAIL" for check in checks))


if __name__ == "__main__":
    sys.exit(main())
