"""What PEFT's tests find changed: where adapters start, what is skipped, what is explained."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import peft
import pytest
import torch

import compacter.tuners  # noqa: F401  registers the tuners
import sdist
from explained import EXPLAINED
from local_models import LocalAuto
from our_methods import METHODS, name_in
from results import Result

pytest.register_assert_rewrite("peft_tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "single_gpu_tests: a mark of PEFT's")
    config.addinivalue_line("markers", "bitsandbytes: a mark of PEFT's")
    config.addinivalue_line("markers", "skipf: a slip in one of PEFT's tests")
    config.addinivalue_line("markers", "starts_away: adapters do not start at the base model")


# Where adapters start


class Start:
    """PEFT has its adapters start away from the base model by init_weights=False, which our
    configurations do not have: there, what was initialised is moved at random instead."""

    away = False

    def set_init_weights_false(self, _: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        self.away = True
        return dict(kwargs)

    def move(self, model: torch.nn.Module, prefix: str, adapter: str) -> None:
        if self.away:
            for name, parameter in model.named_parameters():
                if prefix in name and adapter in name.split(".") and not parameter.is_meta:
                    parameter.data += 0.5 * torch.randn_like(parameter)


START = Start()


@pytest.fixture(scope="session", autouse=True)
def _moved_starts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for tuner in {peft.mapping.PEFT_TYPE_TO_TUNER_MAPPING[m().peft_type] for m in METHODS}:
            patch.setattr(tuner, "inject_adapter", _then_moved(tuner.inject_adapter))
        yield


def _then_moved(inject: Callable[..., None]) -> Callable[..., None]:
    def inject_adapter(
        self: Any, model: torch.nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        inject(self, model, adapter_name, *args, **kwargs)
        START.move(model, self.prefix, adapter_name)

    return inject_adapter


# What their modules find under their names


TREATED_AS = {
    "mixed_adapter_batches": "LoraConfig",  # all others are skipped
    "test_only_params_are_updated": "UniLoraConfig",  # starts away, or little changes in 3 steps
    "test_parameters_after_loading_model": "RandLoraConfig",  # does not diverge
}
"""Part of a test's name -> the class of PEFT's that ours takes the place of, where PEFT has a test
do something else for it."""


@pytest.fixture(autouse=True)
def _their_names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    START.away = request.node.get_closest_marker("starts_away") is not None
    ours: dict[str, Any] = {
        "set_init_weights_false": START.set_init_weights_false,
        "hub_online_once": nullcontext,  # all is local
        "_skip_if_conv1d_not_supported": lambda *_: None,  # ours are not skipped on GPT-2
        "_skip_if_not_conv1d_supported": lambda *_: None,
        "check_beft_config": lambda *_: None,  # skips Llama and Gemma 3 for every method
    }
    given = getattr(request.node, "callspec", None)
    if given is not None and "config_cls" in given.params:
        treated = (cls for part, cls in TREATED_AS.items() if part in request.node.name)
        ours |= dict.fromkeys(treated, given.params["config_cls"])
    for module in [m for name, m in sys.modules.items() if name.startswith("peft_tests.")]:
        for name in ours.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, ours[name])
    monkeypatch.setattr(torch, "allclose", _close)


def _close(*args: Any, rtol: float = 1e-5, atol: float = 1e-8, **kwargs: Any) -> bool:
    """Some tests compare to 1e-8 what is computed in another order, such as the logarithm of a
    probability of nearly 1."""
    return ALLCLOSE(*args, rtol=rtol, atol=max(atol, 1e-6), **kwargs)


ALLCLOSE = torch.allclose


@pytest.fixture
def in_place_of_lora(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(**kwargs: Any) -> peft.PeftConfig:
        START.away |= not kwargs.get("init_lora_weights", True)
        return request.param(**kwargs)

    module = sys.modules[request.function.__module__]
    monkeypatch.setattr(module, "LoraConfig", config)
    for name in [name for name in vars(module) if name.startswith("AutoModel")]:
        monkeypatch.setattr(module, name, LocalAuto(getattr(module, name)))


# What is explained, and what came out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.user_properties.append(("method", name_in(item.name.partition("[")[2][:-1])))
        name = item.nodeid.partition("::")[2]
        for explanation in EXPLAINED:
            if re.search(explanation.tests, name):
                raises = pytest.RaisesExc(BaseException, match=explanation.says)
                mark = pytest.mark.xfail(reason=explanation.reason, raises=raises, strict=True)
                item.add_marker(mark)
                break


RECORDED: list[Result] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    explained = getattr(report, "wasxfail", None)
    crash = getattr(report.longrepr, "reprcrash", None)
    RECORDED.append(
        Result(
            test=report.nodeid.removeprefix("peft_suite/"),
            method=str(dict(report.user_properties).get("method", "")),
            outcome="explained" if explained and report.skipped else report.outcome,
            says=explained or (crash.message if crash else str(report.longrepr or "")),
        )
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        sdist.RESULTS.write_text(json.dumps([asdict(result) for result in RECORDED], indent=1))
