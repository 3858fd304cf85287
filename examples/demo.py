"""Five ways to fine-tune a small pretrained model, side by side.

The model is all-MiniLM-L6-v2 (22.7 million parameters), the task is `builtin/roles`: does sentence 2
follow from sentence 1? Both come with the package, so nothing is downloaded. Each way trains on
the same rows for as long; the words of the test sentences occur in no training sentence.

    python examples/demo.py
"""

from __future__ import annotations

import os
import time

import compacter

METHODS = ("full", "compacter", "compacter++", "adapter", "head-only")
OUTPUT = "runs/demo"
QUESTIONS = (
    ("The pirate rescued the princess.", "The princess was rescued by the pirate."),
    ("The pirate rescued the princess.", "The pirate was rescued by the princess."),
    ("The grumpy bishop lost the rubber glove.", "The bishop was grumpy."),
    ("The grumpy bishop lost the rubber glove.", "The glove was grumpy."),
    ("No astronauts apologized.", "Some astronauts apologized."),
)


def main() -> None:
    began = time.perf_counter()
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
    print("Accuracy on 1,000 test pairs in percent; guessing gets 50. The head, 770 numbers that all")
    print("of them train, is not counted.")

    run = f"{OUTPUT}/compacter++"
    size = os.path.getsize(f"{run}/adapter/adapter_model.safetensors")
    print(f"\nWhat Compacter++ has learned is {size / 1024:.0f} KiB in {run}/adapter. Loaded again:")
    answers = compacter.predict(
        run, [{"sentence1": first, "sentence2": second} for first, second in QUESTIONS]
    )
    for (first, second), answer in zip(QUESTIONS, answers, strict=True):
        print(f"  {first} {second}\n      {answer.text} ({answer.score:.0%} sure)")
    print(f"\nAll of this took {(time.perf_counter() - began) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
