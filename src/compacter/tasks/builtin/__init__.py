"""Tasks that the package makes itself, from grammars: no files, no network, always the same rows.

- `roles`: does the second sentence follow from the first?
- `tone`: is a judgement good or bad, under negation and contrast?
- `grammar`: is a sentence acceptable?

Training, validation and test set each have content words of their own. Both labels are drawn
equally often from the same patterns, so that a classifier that only sees which words there are
cannot do better than guess."""

from __future__ import annotations

from compacter.tasks.builtin.generating import TEST_ROWS, generate

__all__ = ["TEST_ROWS", "generate"]
