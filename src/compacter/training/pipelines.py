"""From rows to batches to answers, for the three kinds of model.

Text to text (encoder-decoders, decoders): the target is generated greedily and must match exactly.
Pairs (encoders): a head scores the labels, or each candidate where a row has candidates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from compacter.errors import TrainingError
from compacter.models.pretrained import Kind
from compacter.tasks import (
    Answer,
    LabelWords,
    Row,
    Task,
    candidate_pairs,
    chosen,
    examples,
    pair,
    parse,
    targets,
)

IGNORED = -100  # a label that takes no part in the loss
PROMPT_END = " answer:"  # what a decoder reads before it answers

Features = dict[str, Any]


@dataclass(frozen=True)
class Prediction:
    """What a model answered: the answer as the task counts it, in words, and how sure it was."""

    answer: Answer | None
    text: str
    score: float
    probabilities: Mapping[str, float] | None = None
    """Of each label, if they were asked for and a head scores the labels. A model that writes text
    can write other texts, too, so it has none."""

    @property
    def is_finite(self) -> bool:
        """Whether the model computed numbers to answer with."""
        answer = self.answer if isinstance(self.answer, float) else 0.0
        return math.isfinite(self.score) and math.isfinite(answer)


class Pipeline(ABC):
    """How rows of a task go into a model and answers come out."""

    def __init__(self, task: Task, tokenizer: Any, max_length: int) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.max_length = max_length

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> list[Features]:
        """Labelled training examples."""

    @abstractmethod
    def collate(self, features: list[Features]) -> dict[str, Tensor]:
        """A batch, padded to its longest example."""

    @abstractmethod
    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The sum over all labels divided by their number in all accumulated batches on all
        processes: exactly the loss of one large batch, however it is cut up."""

    @abstractmethod
    def predict(
        self,
        model: nn.Module,
        rows: Sequence[Row],
        batch_size: int,
        *,
        probabilities: bool = False,
    ) -> list[Prediction]:
        """One prediction for each row, with the probabilities of all labels where it has them."""

    def for_task(self, task: Task) -> Self:
        """The same for another task with the same answers."""
        other = copy(self)
        other.task = task
        return other

    def _pad(self, features: list[Features], side: str = "right") -> dict[str, Tensor]:
        self.tokenizer.padding_side = side
        batch: dict[str, Tensor] = dict(
            self.tokenizer.pad(features, return_tensors="pt", pad_to_multiple_of=None)
        )
        return batch


class TextToText(Pipeline):
    """Source in, target out."""

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        max_length: int,
        kind: Kind,
        label_words: LabelWords = "words",
    ) -> None:
        super().__init__(task, tokenizer, max_length)
        self.kind = kind
        self.label_words = label_words
        self.shift_right: Callable[[Tensor], Tensor] | None = None
        """An encoder-decoder's own way to make its decoder's input from the labels."""

    def encode(self, rows: Sequence[Row]) -> list[Features]:
        found = examples(self.task, rows, train=True, label_words=self.label_words)
        unlabelled = sum(example.target is None for example in found)
        if unlabelled:
            raise TrainingError(f"{unlabelled} rows of {self.task.name} to train on have no label")
        return [self._encode(example.source, example.target or "") for example in found]

    def _encode(self, source: str, target: str) -> Features:
        prompt = self._prompt(source)
        answer = self._target(target)
        if self.kind == "encoder-decoder":
            return {"input_ids": prompt, "labels": answer}
        ids = prompt + answer
        return {"input_ids": ids, "labels": [IGNORED] * len(prompt) + answer}

    def _prompt(self, source: str) -> list[int]:
        """The source, cut to the length; a decoder's keeps the words that call for the answer."""
        if self.kind == "encoder-decoder":
            ids: list[int] = self.tokenizer(
                source, truncation=True, max_length=self.max_length
            ).input_ids
            return ids
        end = self.tokenizer(PROMPT_END, add_special_tokens=False).input_ids
        room = self.max_length - len(end)
        return list(self.tokenizer(source, truncation=True, max_length=room).input_ids) + list(end)

    def _target(self, target: str) -> list[int]:
        if self.kind == "encoder-decoder":
            ids = list(self.tokenizer(text_target=target).input_ids)
        else:
            ids = list(self.tokenizer(f" {target}", add_special_tokens=False).input_ids)
        if ids[-1:] != [self.tokenizer.eos_token_id]:
            ids.append(self.tokenizer.eos_token_id)
        return ids

    def collate(self, features: list[Features]) -> dict[str, Tensor]:
        batch = self._pad([{"input_ids": f["input_ids"]} for f in features])
        longest = max(len(f["labels"]) for f in features)
        labels = torch.tensor(
            [f["labels"] + [IGNORED] * (longest - len(f["labels"])) for f in features]
        )
        if self.shift_right is not None:
            batch["decoder_input_ids"] = self.shift_right(labels)
        return {**batch, "labels": labels}

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs.logits
        if self.kind == "decoder":  # each position predicts the next; a prompt adds positions
            logits, labels = logits[:, -labels.shape[1] :][:, :-1], labels[:, 1:]
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        mean: Tensor = total / _items(labels, num_items_in_batch)
        return mean

    def target_length(self, rows: Sequence[Row]) -> int:
        """Tokens of the longest answer that a row may have, its end included."""
        texts = {t for row in rows for t in targets(self.task, row, self.label_words)}
        if self.task.kind == "classes":
            digits = [str(i) for i in range(len(self.task.labels))]
            texts = set(digits if self.label_words == "digits" else self.task.labels)
        if self.task.kind == "entity":
            texts |= {candidate for row in rows for candidate in row.candidates}
        return max((len(self._target(text)) for text in texts), default=8)

    @torch.inference_mode()
    def predict(
        self,
        model: nn.Module,
        rows: Sequence[Row],
        batch_size: int,
        *,
        probabilities: bool = False,
    ) -> list[Prediction]:
        found = examples(self.task, rows, train=False, label_words=self.label_words)
        length = self.target_length(rows)
        side = "right" if self.kind == "encoder-decoder" else "left"
        device = next(model.parameters()).device
        predictions = []
        for part in _batches(found, batch_size):
            batch = self._pad([{"input_ids": self._prompt(e.source)} for e in part], side)
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            generated = model.generate(  # type: ignore[operator]
                **batch,
                max_new_tokens=length,
                do_sample=False,
                num_beams=1,
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            new = generated.sequences[:, -len(generated.logits) :]
            for row, tokens in enumerate(new):
                text = self.tokenizer.decode(tokens, skip_special_tokens=True).strip()
                steps = [step[row] for step in generated.logits]
                answer = parse(self.task, text, self.label_words)
                predictions.append(Prediction(answer, text, self._confidence(tokens, steps)))
        return predictions

    def _confidence(self, tokens: Tensor, steps: list[Tensor]) -> float:
        """The probability of the generated text, its end included."""
        total = 0.0
        for token, logits in zip(tokens.tolist(), steps, strict=True):
            total += float(logits.float().log_softmax(-1)[token])
            if token == self.tokenizer.eos_token_id:
                break
        return float(torch.tensor(total).exp())


class Pairs(Pipeline):
    """One text or two in, one score for each label out."""

    @property
    def has_candidates(self) -> bool:
        return self.task.kind in ("choice", "entity")

    @property
    def head(self) -> dict[str, Any]:
        """Settings of the classification head."""
        if self.has_candidates:
            return {"num_labels": 1, "problem_type": "multi_label_classification"}
        if self.task.kind == "number":
            return {"num_labels": 1, "problem_type": "regression"}
        names = dict(enumerate(self.task.labels))
        return {
            "num_labels": len(names),
            "problem_type": "single_label_classification",
            "id2label": names,
            "label2id": {name: index for index, name in names.items()},
        }

    def encode(self, rows: Sequence[Row]) -> list[Features]:
        if self.has_candidates:
            return [
                {**self._tokens(text_a, text_b), "labels": float(right)}
                for row in rows
                for text_a, text_b, right in self._candidates(row)
            ]
        missing = sum(row.label is None for row in rows)
        if missing:
            raise TrainingError(f"{missing} rows of {self.task.name} to train on have no label")
        as_label = float if self.task.kind == "number" else int
        return [{**self._row_tokens(row), "labels": as_label(row.label or 0)} for row in rows]

    def _row_tokens(self, row: Row) -> Features:
        text = pair(self.task, row)
        return self._tokens(text.text_a, text.text_b)

    def _tokens(self, text_a: str, text_b: str | None) -> Features:
        return dict(self.tokenizer(text_a, text_b, truncation=True, max_length=self.max_length))

    def _candidates(self, row: Row) -> Iterator[tuple[str, str | None, bool]]:
        found = candidate_pairs(self.task, row)
        for text, right in zip(found.pairs, found.right, strict=True):
            yield text.text_a, text.text_b, right

    def collate(self, features: list[Features]) -> dict[str, Tensor]:
        labels = torch.tensor([f["labels"] for f in features])
        batch = self._pad([{k: v for k, v in f.items() if k != "labels"} for f in features])
        return {**batch, "labels": labels}

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs.logits.float()
        if self.has_candidates:
            total = nn.functional.binary_cross_entropy_with_logits(
                logits[:, 0], labels, reduction="sum"
            )
        elif self.task.kind == "number":
            total = nn.functional.mse_loss(logits[:, 0], labels, reduction="sum")
        else:
            total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        mean: Tensor = total / _items(labels, num_items_in_batch)
        return mean

    @torch.inference_mode()
    def predict(
        self,
        model: nn.Module,
        rows: Sequence[Row],
        batch_size: int,
        *,
        probabilities: bool = False,
    ) -> list[Prediction]:
        if self.has_candidates:
            return self._predict_candidates(model, rows, batch_size)
        logits = self._logits(model, [self._row_tokens(row) for row in rows], batch_size)
        if self.task.kind == "number":
            return [Prediction(value, f"{value:.4g}", 1.0) for value in logits[:, 0].tolist()]
        labels, shares = self.task.labels, logits.softmax(-1)
        return [
            Prediction(
                index,
                labels[index],
                float(row[index]),
                dict(zip(labels, row.tolist(), strict=True)) if probabilities else None,
            )
            for index, row in zip(shares.argmax(-1).tolist(), shares, strict=True)
        ]

    def _predict_candidates(
        self, model: nn.Module, rows: Sequence[Row], batch_size: int
    ) -> list[Prediction]:
        tokens = [self._tokens(a, b) for row in rows for a, b, _ in self._candidates(row)]
        scores = iter(self._logits(model, tokens, batch_size)[:, 0].sigmoid().tolist())
        predictions = []
        for row in rows:
            own = [next(scores) for _ in row.candidates]
            answer = chosen(self.task, row, own)
            text = self.task.labels[answer] if isinstance(answer, int) else str(answer or "")
            predictions.append(Prediction(answer, text, _highest(own)))
        return predictions

    def _logits(self, model: nn.Module, tokens: list[Features], batch_size: int) -> Tensor:
        device = next(model.parameters()).device
        parts = []
        for part in _batches(tokens, batch_size):
            batch = {name: tensor.to(device) for name, tensor in self._pad(part).items()}
            parts.append(model(**batch).logits.float().cpu())
        logits = torch.cat(parts) if parts else torch.zeros(0, 1)
        # Infinite ones would come out as scores of 0 and 1.
        return logits.where(logits.isfinite(), torch.nan)


def make_pipeline(
    task: Task, tokenizer: Any, kind: Kind, max_length: int, label_words: LabelWords = "words"
) -> TextToText | Pairs:
    if kind == "encoder":
        return Pairs(task, tokenizer, max_length)
    return TextToText(task, tokenizer, max_length, kind, label_words)


def _highest(scores: list[float]) -> float:
    """NaN if one of them is."""
    return float(torch.tensor(scores).max()) if scores else 0.0


def _items(labels: Tensor, num_items_in_batch: Any) -> Any:
    return labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
