"""What this package promises about time and memory, measured, with a verdict each.

    python benchmarks/must_show.py                       # everything, on a quiet machine
    python benchmarks/must_show.py --only steps,decode   # some of it
    python benchmarks/must_show.py --quick               # tiny models, to try the script

Times are compared turn by turn in one process, by the ratio of medians, with the clock read after
every layer (see compacter.bench.timing); beside it stand what other rounds could have given, the
ratio of minima, and that of the medians of whole turns. If others use the cores too, all becomes
slower, but many short operations more so than a few long ones; how busy they were is said with each
part. Figures of `adapters` are those that benchmarks/peers/run.py left. The exit code is 1 if a
promise is broken; what cannot be measured yet is said and breaks none."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

import compacter
from compacter.bench import Laps, SavedTensors, Timing, count_step, take_turns
from compacter.bench.memory import weight_bytes
from compacter.bench.work import decoding, make_inputs, make_optimizer, training_step
from compacter.methods import METHODS
from compacter.models import T5_DIMENSIONS, random_model
from compacter.models.loading import T5_VOCABULARY
from compacter.tuners.bottleneck.layer import BottleneckLayer
from subjects import FORMULAS, make

PEERS = Path(__file__).resolve().parent / "peers" / "results.json"


@dataclass(frozen=True)
class Check:
    """A promise: a figure that may not be above its limit."""

    name: str
    value: float | None
    limit: float
    note: str = ""
    strictly: bool = False
    """Whether the figure must be below the limit."""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not available"
        kept = self.value < self.limit if self.strictly else self.value <= self.limit
        return "pass" if kept else "FAIL"


def compared(
    name: str, timing: Timing, reference: Timing, limit: float, *, strictly: bool = False
) -> Check:
    of_medians, of_minima = timing.ratios(reference)
    low, high = timing.ratio_interval(reference)
    of_turns = timing.median_turn / reference.median_turn
    note = (
        f"95% in {low:.3f} to {high:.3f}; of minima {of_minima:.3f}; of whole turns {of_turns:.3f}"
    )
    return Check(name, of_medians, limit, note, strictly)


def count() -> None:
    """The same work in every turn, which needs nothing but a core: how long it takes tells whether
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
        """`models`: those that work; `turns`: how many times as many turns as usual, for what is
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
            f"{rounds} turns of each; between them, counting took {slower:.2f} times as long as at "
            "best",
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
    names = ["layer norms", "adapter", "compacter", "compacter++", "lora"]
    found = plan.step_times(plan.bare("t5-small"), names, 8, 128, turns=8)
    norms, ours = found["layer norms"], found["compacter"]
    yield compared("step 8 x 128: Compacter / layer norms alone", ours, norms, 1.03)
    yield compared("step 8 x 128: Compacter / dense Adapter", ours, found["adapter"], 1.02)
    yield compared(
        "step 8 x 128: Compacter / peft LoRA r=8", ours, found["lora"], 1.0, strictly=True
    )
    yield peers()
    yield compared("step 8 x 128: Compacter++ / Compacter", found["compacter++"], ours, 1.0)


def peers() -> Check:
    """Both figures are from the run of benchmarks/peers/run.py, if that was of T5-small."""
    check = partial(
        Check,
        "step 8 x 128: Compacter / `adapters`' Compacter, each to its layer norms",
        limit=1.0,
        strictly=True,
    )
    if not PEERS.is_file():
        return check(value=None, note="run benchmarks/peers/run.py first")
    results = json.loads(PEERS.read_text(encoding="utf-8"))
    order = results["order"]
    found = (order["dimensions"]["t5-small"], order["vocabulary"])
    if found != (asdict(T5_DIMENSIONS["t5-small"]), T5_VOCABULARY):
        note = f"{PEERS.name} is not of T5-small; run benchmarks/peers/run.py again"
        return check(value=None, note=note)
    ours, theirs = (
        results[where]["figures"]["step 8 x 128"]["compacter"]["ratio_of_medians"]
        for where in ("ours", "theirs")
    )
    return check(value=ours / theirs, note=f"{ours:.3f} and {theirs:.3f}")


def small(plan: Plan) -> Iterator[Check]:
    """Beside the paper's equation in each layer, which is also how `adapters` computes it. What
    else such a step can take is said too: by this package's own, shorter formula for one layer,
    and with dense adapters, which build nothing."""
    names = ["compacter", "layer norms", "adapter", *FORMULAS]
    found = plan.step_times(plan.bare("t5-small"), names, 1, 16, turns=10)
    ours, norms, dense, one, n = (found[name] for name in names)
    check = compared("step 1 x 16: Compacter / n Kronecker products in each layer", ours, n, 0.88)
    beside = {"Compacter": ours, "n products": n, "one product": one, "dense Adapter": dense}
    ratios = ", ".join(f"{name} {timing.ratios(norms)[0]:.3f}" for name, timing in beside.items())
    yield replace(check, note=f"{check.note}; beside the layer norms alone: {ratios}")


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
    adapters = sum(isinstance(module, BottleneckLayer) for module in model.modules())
    built = 4 * adapters * 2 * bare.config.d_model * config.bottleneck
    yield Check(
        "saved bytes: Compacter / (dense Adapter + built weights)",
        saved["compacter"] / (saved["adapter"] + built),
        1.0,
        f"{saved['compacter']:,} of {saved['adapter']:,} + {built:,}",
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
        found["compacter"],
        found["bare"],
        1.06,
    )


def mixed(plan: Plan) -> Iterator[Check]:
    """Rows of different adapters in one batch, by PEFT's `adapter_names`."""
    rows, many = (4, 20) if plan.quick else (32, 1_000)
    bare = plan.bare("t5-small")
    few, all_of_them = make(bare, "compacter").eval(), make(bare, "compacter").eval()
    own = sum(p.nbytes for p in few.parameters() if p.requires_grad)
    with tempfile.TemporaryDirectory() as folder:
        few.save_pretrained(folder)
        load(few, folder, rows)
        before, started = weight_bytes(all_of_them), time.perf_counter()
        load(all_of_them, folder, many)
        minutes = (time.perf_counter() - started) / 60
    per_adapter = (weight_bytes(all_of_them) - before) / (many - 1)
    names = ["default", *(f"task{index}" for index in range(1, rows))]
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
    alone, together, among_many = (found[name] for name in works)
    yield compared(f"{rows} rows, {rows} adapters / one adapter", together, alone, 1.10)
    yield compared(f"the same with {many:,} adapters loaded", among_many, together, 1.05)
    yield Check(f"minutes to load {many:,} adapters", minutes, 2.0)
    yield Check(
        "bytes of a further adapter / of its parameters",
        per_adapter / own,
        1.1,
        f"{per_adapter:,.0f} of {own:,}",
    )


def load(model: nn.Module, folder: str, count: int) -> None:
    assert isinstance(model, PeftModel)
    compacter.load_adapters(model, {f"task{index}": folder for index in range(1, count)})
    model.set_adapter("default")


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
        found["intrinsic-said"],
        found["full"],
        1.4,
    )
    most, least = memory["intrinsic-said"].total, memory["full"].least
    yield Check(
        "training memory: Intrinsic-SAID at most / full fine-tuning at least",
        most / least,
        1.0,
        f"{most / 1e6:,.1f} of {least / 1e6:,.1f} MB",
        strictly=True,
    )


def bench(plan: Plan) -> Iterator[Check]:
    """The command, as a user calls it."""
    small = ["--batch", "2", "--length", "8", "--rounds", "1", "--new-tokens", "2"]
    command = [sys.executable, "-m", "compacter.cli"]
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
    "small": small,
    "activations": activations,
    "decode": decode,
    "mixed": mixed,
    "intrinsic": intrinsic,
    "bench": bench,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--rounds", type=int, default=15, help="turns that everything gets")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    unknown = set(arguments.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    plan = Plan(arguments.quick, arguments.rounds)
    checks: list[Check] = []
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {plan.rounds} turns")
    for part in arguments.only.split(","):
        for check in PARTS[part](plan):
            verdict = "tried" if plan.quick else check.verdict  # tiny models promise nothing
            value = "" if check.value is None else f"{check.value:.3f}"
            sign = "<" if check.strictly else "<="
            print(
                f"{verdict:13} {value:>7} {sign:>2} {check.limit:<5g} {check.name}"
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
