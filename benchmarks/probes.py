"""What a user of PEFT may want of a method, each tried on a tiny Llama.

A probe gets the name of a method and raises if the ability is not there: an error of the package,
an AssertionError for a wrong result, or whatever comes."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from accelerate import cpu_offload
from peft import PeftModel, convert_to_lora, get_peft_model
from peft.utils.hotswap import hotswap_adapter
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from compacter.methods.attach import CONFIG_CLASSES
from compacter.methods.table import find_method

SIZES = {"adapter": {"bottleneck": 8, "n": 4}, "bitfit": {}, "intrinsic": {"intrinsic_dim": 200}}
IDS = torch.arange(24).view(3, 8)
LAYERS = 2


class NotTriedError(Exception):
    """What the ability needs is not here."""


def be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


# Models


def base(dtype: torch.dtype = torch.float32, *, biases: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        attention_bias=biases,
        mlp_bias=biases,
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def config(method: str, **more: Any) -> Any:
    """As a user of PEFT writes it: with the configuration's class."""
    found = find_method(method)
    settings = {**found.settings, **SIZES[found.family], "task_type": "CAUSAL_LM", **more}
    return CONFIG_CLASSES[found.family](**settings)


def moved(model: Any, seed: int = 1) -> Any:
    """Adapters away from where they start, as if they had been trained."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.is_meta:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += 0.2 * noise.to(parameter.dtype)
    return model


def adapted(method: str, model: Any = None, seed: int = 1, **more: Any) -> Any:
    made = get_peft_model(base() if model is None else model, config(method, **more))
    return moved(made, seed).eval()


def two_adapters(method: str) -> Any:
    model = adapted(method)
    model.add_adapter("other", config(method))
    model.set_adapter("other")
    moved(model, seed=2).set_adapter("default")
    return model.eval()


def logits(model: Any, ids: Tensor = IDS, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=ids, **kwargs).logits
    return found


def gradients(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def differs(found: Tensor, other: Tensor) -> None:
    assert not torch.allclose(found, other, atol=1e-3), "the adapter changes nothing"


def same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected, "nothing is trained"
    assert found.keys() == expected.keys(), "other parameters have gradients"
    for name, gradient in expected.items():
        same(found[name], gradient)


# Probes


def merge(method: str, *, biases: bool = True) -> None:
    model = adapted(method, base(biases=biases))
    expected = logits(model)
    same(logits(model.merge_and_unload()), expected, 1e-4)


def merge_without_biases(method: str) -> None:
    merge(method, biases=False)


def unmerge(method: str) -> None:
    model = adapted(method)
    expected = logits(model)
    model.merge_adapter()
    model.unmerge_adapter()
    same(logits(model), expected, 1e-4)
    with model.disable_adapter():
        same(logits(model), logits(base()), 1e-4)


def unload(method: str) -> None:
    same(logits(adapted(method).unload()), logits(base()))


def disable(method: str) -> None:
    model = adapted(method)
    differs(logits(model), logits(base()))
    with model.disable_adapter():
        same(logits(model), logits(base()))


def mixed_batch(method: str) -> None:
    model = two_adapters(method)
    names = ["default", "__base__", "other"]
    mixed = logits(model, adapter_names=names)
    for i, name in enumerate(names):
        if name == "__base__":
            same(mixed[i], logits(base())[i], 1e-4)
        else:
            model.set_adapter(name)
            same(mixed[i], logits(model)[i], 1e-4)


def two_at_once(method: str) -> None:
    model = two_adapters(method)
    one = logits(model)
    model.base_model.set_adapter(["default", "other"])
    differs(logits(model), one)


def quantised(method: str, **how: Any) -> None:
    if find_spec("bitsandbytes") is None:
        raise NotTriedError("bitsandbytes is not installed")
    with tempfile.TemporaryDirectory() as folder:
        base(biases=False).save_pretrained(folder)  # on a CPU, bitsandbytes has no biases in 4 bits
        settings = BitsAndBytesConfig(**how)
        model = LlamaForCausalLM.from_pretrained(folder, quantization_config=settings)
    plain = logits(model)
    model = adapted(method, model)
    differs(logits(model), plain)
    assert all(g.isfinite().all() for g in gradients(model).values())
    with model.disable_adapter():
        same(logits(model), plain)


def int8(method: str) -> None:
    quantised(method, load_in_8bit=True)


def nf4(method: str) -> None:
    quantised(method, load_in_4bit=True, bnb_4bit_quant_type="nf4")


def compiled(method: str, *, fullgraph: bool = False) -> None:
    model = adapted(method)
    outputs, expected = logits(model), gradients(model)
    torch.compiler.reset()
    model.compile(backend="aot_eager", fullgraph=fullgraph)
    same(logits(model), outputs)
    same_gradients(gradients(model), expected)


def compiled_whole(method: str) -> None:
    compiled(method, fullgraph=True)


def exported(method: str) -> None:
    model = adapted(method)
    kwargs = {"input_ids": IDS, "use_cache": False}
    with torch.no_grad():
        program = torch.export.export(model, (), kwargs, strict=False)
        same(program.module()(**kwargs).logits, logits(model))


def sharded(method: str) -> None:
    with tempfile.NamedTemporaryFile() as store:
        torch.multiprocessing.spawn(_shard, (method, f"{store.name}.rendezvous"), nprocs=2)


def _shard(rank: int, method: str, store: str) -> None:
    be_quiet()
    sys.stderr = io.StringIO()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    expected = gradients(adapted(method))
    model = adapted(method)
    for block in model.get_base_model().model.layers:
        fully_shard(block)
    fully_shard(model)
    found = gradients(model)
    same_gradients({n: g.full_tensor() for n, g in found.items()}, expected)
    dist.destroy_process_group()


def offloaded(method: str) -> None:
    model = adapted(method)
    expected = logits(model)
    same(logits(cpu_offload(model, execution_device=torch.device("cpu"))), expected)


def checkpointed(method: str, *, reentrant: bool) -> None:
    model = adapted(method).train()
    expected = gradients(model)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    same_gradients(gradients(model), expected)


def checkpointing(method: str) -> None:
    checkpointed(method, reentrant=False)


def checkpointing_reentrant(method: str) -> None:
    checkpointed(method, reentrant=True)


def half(method: str, dtype: torch.dtype = torch.float16) -> None:
    exact = logits(adapted(method))
    for autocast in (True, False):
        model = get_peft_model(base(dtype), config(method), autocast_adapter_dtype=autocast)
        model = moved(model).eval()
        same(logits(model).float(), exact, 0.1)
        assert all(g.isfinite().all() for g in gradients(model).values())


def bfloat16(method: str) -> None:
    half(method, torch.bfloat16)


def modules_to_save(method: str) -> None:
    model = adapted(method, modules_to_save=["lm_head"])
    expected = logits(model)
    with saved(model) as folder:
        loaded = PeftModel.from_pretrained(base(), folder)
    same(logits(loaded), expected)
    differs(expected, logits(adapted(method)))


@contextmanager
def saved(model: Any) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        yield folder


def save_and_load(method: str) -> None:
    model = adapted(method)
    with saved(model) as folder:
        same(logits(PeftModel.from_pretrained(base(), folder)), logits(model))
        loaded = PeftModel.from_pretrained(base(), folder, low_cpu_mem_usage=True)
        same(logits(loaded), logits(model))


def in_transformers(method: str) -> None:
    model = base()
    model.add_adapter(config(method))
    moved(model)
    with saved(model) as folder:
        loaded = base()
        loaded.load_adapter(folder)
        same(logits(loaded), logits(model))
    differs(logits(model), logits(base()))


def independent(model: Any, twin: Any) -> None:
    expected = logits(model)
    same(logits(twin), expected)
    moved(twin, seed=3)
    differs(logits(twin), expected)
    same(logits(model), expected)


def deep_copy(method: str) -> None:
    model = adapted(method)
    logits(model)
    independent(model, copy.deepcopy(model))


def pickled(method: str) -> None:
    model = adapted(method)
    logits(model)
    independent(model, pickle.loads(pickle.dumps(model)))


def hotswap(method: str) -> None:
    other = adapted(method, seed=2)
    model = adapted(method)
    logits(model)
    with saved(other) as folder:
        hotswap_adapter(model, folder, "default")
    same(logits(model), logits(other))


def to_lora(method: str) -> None:
    convert_to_lora(adapted(method), rank=8)


def trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def layers_to_transform(method: str) -> None:
    some = adapted(method, target_modules=["down_proj"], layers_to_transform=[0])
    assert trained(some) < trained(adapted(method, target_modules=["down_proj"]))


def exclude_modules(method: str) -> None:
    some = adapted(method, target_modules=["down_proj"], exclude_modules=["layers.0.mlp.down_proj"])
    assert trained(some) < trained(adapted(method, target_modules=["down_proj"]))


def target_modules(method: str) -> None:
    some = adapted(method, target_modules=["o_proj"])
    differs(logits(some), logits(base()))
    assert trained(some) < trained(adapted(method, target_modules=["o_proj", "down_proj"]))


def all_linear(method: str) -> None:
    some = adapted(method, target_modules="all-linear")
    assert trained(some) > trained(adapted(method, target_modules=["down_proj"]))


def trainable_token_indices(method: str) -> None:
    tokens = 2 * base().config.hidden_size
    model = adapted(method, trainable_token_indices=[1, 2])
    assert trained(model) == trained(adapted(method)) + tokens


PROBES: dict[str, Callable[[str], None]] = {
    "save and load, also with `low_cpu_mem_usage`": save_and_load,
    "`add_adapter` and `load_adapter` of transformers": in_transformers,
    "disable": disable,
    "unload": unload,
    "merge into the base model": merge,
    "merge into a base model without biases": merge_without_biases,
    "unmerge": unmerge,
    "several adapters in one batch (`adapter_names`)": mixed_batch,
    "two adapters active at once": two_at_once,
    "swap weights in place (`hotswap_adapter`)": hotswap,
    "convert to LoRA": to_lora,
    "base model in float16": half,
    "base model in bfloat16": bfloat16,
    "base model in 8 bits (bitsandbytes)": int8,
    "base model in 4 bits (nf4)": nf4,
    "gradient checkpointing": checkpointing,
    "gradient checkpointing, reentrant": checkpointing_reentrant,
    "`torch.compile`, forward and backward": compiled,
    "`torch.compile` without a graph break": compiled_whole,
    "`torch.export`": exported,
    "FSDP (`fully_shard`, two processes)": sharded,
    "CPU offload (accelerate)": offloaded,
    "`deepcopy`": deep_copy,
    "`pickle`": pickled,
    "`modules_to_save`": modules_to_save,
    "`target_modules`": target_modules,
    '`target_modules="all-linear"`': all_linear,
    "`exclude_modules`": exclude_modules,
    "`layers_to_transform`": layers_to_transform,
    "`trainable_token_indices`": trainable_token_indices,
}
