"""What README and docs say is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from compacter.methods import METHODS
from compacter.paper import tables
from tiny_models import TINY

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    """With a tiny T5 in a folder of the name that the README gives to the hub."""
    monkeypatch.chdir(tmp_path)
    TINY["t5"]().save_pretrained("t5-base")
    words = {w: i for i, w in enumerate(["<pad>", "</s>", "entailment"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(
        "t5-base"
    )
    adapt, load = python_blocks(README)
    assert len([line for line in adapt.splitlines() if line.strip()]) <= 10
    namespace: dict[str, object] = {}
    exec(adapt, namespace)
    assert (tmp_path / "my-adapter" / "adapter_model.safetensors").exists()
    exec(load, namespace)


def test_the_table_of_methods_is_the_papers():
    rows = re.findall(r"^\| `(.+?)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)
    glue = {row["method"]: row for row in tables()["glue_t5_base"]}
    superglue = {row["method"]: row for row in tables()["superglue_t5_base"]}
    assert [row[0] for row in rows] == list(METHODS)
    for name, percent, glue_average, superglue_average in rows:
        assert float(percent) == glue[name]["trained_percent"]
        assert float(glue_average) == glue[name]["scores"]["avg"]
        assert float(superglue_average) == superglue[name]["scores"]["avg"]


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)


def test_the_fastfood_of_the_file_format_is_the_one_in_use():
    """docs/file-format.md, followed step by step with numpy alone."""
    import hashlib
    from statistics import NormalDist

    import numpy as np
    import torch

    from compacter.nn import Fastfood

    d, D, seed, name = 11, 90, 5, "decoder.block.0.wo.weight"
    theta = np.arange(1.0, d + 1)
    L = 16
    key = np.frombuffer(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], dtype="<u8")
    stream = np.random.Philox(key=key)

    def draw(count: int) -> np.ndarray:
        return stream.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count]

    signs = np.where(draw(L) & 1, 1.0, -1.0)
    permutation = np.argsort(stream.random_raw(L), kind="stable")
    levels = np.array([NormalDist().inv_cdf((b + 0.5) / 256) for b in range(256)])
    levels /= np.sqrt((levels**2).mean())
    H = np.array([[(-1.0) ** (i & j).bit_count() for j in range(L)] for i in range(L)])
    u = (H @ (signs * np.pad(theta, (0, L - d))))[permutation]
    blocks = [H @ (levels[draw(L)] * u) / np.sqrt(L * D) for _ in range(-(-D // L))]
    found = Fastfood(d, D, seed, name)(torch.from_numpy(theta))
    np.testing.assert_allclose(found.numpy(), np.concatenate(blocks)[:D], atol=1e-12)
