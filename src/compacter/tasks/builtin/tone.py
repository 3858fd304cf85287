"""`builtin/tone`: is the speaker for it or against it?

A word of praise or blame alone does not tell: each is drawn as often under a negation or on the
side of a contrast that does not count. What comes after `but` counts, and what comes after
`although` does not, whichever half comes first."""

from __future__ import annotations

from collections.abc import Callable

from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.words import Words

Text = tuple[str]


def plain(draw: Draw, words: Words, positive: bool) -> Text:
    """The soup was not awful at all."""
    return (f"The {draw.one(words.topics)} {_be(draw)} {_judged(draw, words, positive)}.",)


def but(draw: Draw, words: Words, positive: bool) -> Text:
    """The soup was awful, but the service was not bad."""
    one, other = draw.two(words.topics)
    first = _judged(draw, words, not positive)
    return (f"The {one} was {first}, but the {other} was {_judged(draw, words, positive)}.",)


def although(draw: Draw, words: Words, positive: bool) -> Text:
    """Although the soup was great, the service was not good."""
    one, other = draw.two(words.topics)
    set_aside, counts = _judged(draw, words, not positive), _judged(draw, words, positive)
    if draw.coin():
        return (f"Although the {one} was {set_aside}, the {other} was {counts}.",)
    return (f"The {one} was {counts}, although the {other} was {set_aside}.",)


def _be(draw: Draw) -> str:
    return draw.one(("was", "is", "seems"))


def _judged(draw: Draw, words: Words, positive: bool) -> str:
    """great; not great; never great; anything but great."""
    if draw.coin():
        return draw.one(words.praise if positive else words.blame)
    denied = draw.one(words.blame if positive else words.praise)
    return f"{draw.one(('not', 'hardly', 'far from', 'anything but'))} {denied}"


PHENOMENA: tuple[tuple[Callable[[Draw, Words, bool], Text], int], ...] = (
    (plain, 40),
    (but, 30),
    (although, 30),
)
