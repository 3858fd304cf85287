"""Five ways to fine-tune a small pretrained model, side by side.

The model is all-MiniLM-L6-v2 (22.7 million parameters), the task is `builtin/tone`: is the
judgement good or bad, under negations and contrasts? Both come with the package, so nothing is
downloaded.
Each way trains on the same rows for as many epochs; the nouns and adjectives of the test sentences
occur in no training sentence.

    python examples/demo.py
"""

from __future__ import annotations

import os
import time

import compacter
from compacter.training.progress import silence_transformers

METHODS = ("full", "compacter", "compacter++", "adapter", "head-only")
OUTPUT = "runs/demo"
SENTENCES = (
    "The exhibition was anything but shabby.",
    "The dinner was hardly magnificent.",
    "Although the opera was dismal, the tour was fabulous.",
    "The poem was gorgeous, but the album was far from exciting.",
    "I expected little, but the journey was not mediocre.",
)


def main() -> None:
    began = time.perf_counter()
    silence_transformers()
    results = compacter.compare(
        recipe="demo",
        methods=METHODS,
        output=OUTPUT,
        overwrite=True,
        jobs=min(2, os.cpu_count() or 1),
        watched=True,
    )
    print(f"\n{'method':<12} {'trained':>11} {'% of model':>10} {'accuracy':>9} {'seconds':>8}")
    for result in sorted(results, key=lambda result: result.trainable):
        print(
            f"{result.method:<12} {result.trainable:>11,} {result.percent:>10.3f} "
            f"{result.test['accuracy']:>9.1f} {result.seconds:>8.0f}"
        )
    print("Accuracy on 1,000 test sentences in percent; guessing gets 50. All of them train a head")
    print("of 770 numbers, too.")

    run = f"{OUTPUT}/compacter++"
    size = os.path.getsize(f"{run}/adapter/adapter_model.safetensors")
    print(
        f"\nWhat Compacter++ has learned is {size / 1024:.0f} KiB in {run}/adapter. Loaded again:"
    )
    for sentence, answer in zip(SENTENCES, compacter.predict(run, SENTENCES), strict=True):
        print(f"  {sentence:<60} {answer.text} ({answer.score:.0%} sure)")
    print(f"\nAll of this took {(time.perf_counter() - began) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
