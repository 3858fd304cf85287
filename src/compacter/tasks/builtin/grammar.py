"""`builtin/grammar`: is this English?

Each phenomenon draws one acceptable sentence and one that is not, of the same words: only their
arrangement, or the agreement of one word with another, tells them apart."""

from __future__ import annotations

from collections.abc import Callable

from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.inflecting import plural, third_person
from compacter.tasks.builtin.words import Words

Text = tuple[str]


def this_or_these(draw: Draw, words: Words, right: bool) -> Text:
    """These cups looked heavy."""
    many = draw.coin()
    determiner = draw.one(("these", "those") if many == right else ("this", "that")).capitalize()
    noun = _number(draw.one(words.things), many)
    verb = draw.one(("looked", "became", "seemed"))
    return (f"{determiner} {noun} {verb} {draw.one(words.traits)}.",)


def was_or_were(draw: Draw, words: Words, right: bool) -> Text:
    """The cup near the boxes was heavy."""
    one, other = draw.two(words.things)
    many = draw.coin()
    verb = "were" if many == right else "was"
    place = draw.one(("near", "behind", "under", "on"))
    first, second = _number(one, many), _number(other, draw.coin())
    return (f"The {first} {place} the {second} {verb} {draw.one(words.traits)}.",)


def sings_or_sing(draw: Draw, words: Words, right: bool) -> Text:
    """The boys often sing."""
    many = draw.coin()
    act = draw.one(words.acts)
    verb = act.base if many == right else third_person(act)
    adverb = draw.one(("often", "never", "always", "sometimes", "usually"))
    return (f"The {_number(draw.one(words.people), many)} {adverb} {verb}.",)


def did_or_had(draw: Draw, words: Words, right: bool) -> Text:
    """The boy had not sung."""
    act = draw.one([act for act in words.acts if act.participle != act.base])
    had = draw.coin()
    form = act.participle if had == right else act.base
    auxiliary = draw.one(("had", "has") if had else ("did", "could", "may"))
    return (f"The {draw.one(words.people)} {auxiliary} not {form}.",)


def trait_before_thing(draw: Draw, words: Words, right: bool) -> Text:
    """The boy washed the old cup."""
    thing, trait = draw.one(words.things), draw.one(words.traits)
    phrase = f"{trait} {thing}" if right else f"{thing} {trait}"
    if draw.coin():
        return (f"The {draw.one(words.people)} {draw.one(words.handling).past} the {phrase}.",)
    return (f"The {phrase} was {draw.one(('near', 'behind'))} the {draw.one(words.people)}.",)


def _number(noun: str, many: bool) -> str:
    return plural(noun) if many else noun


PHENOMENA: tuple[tuple[Callable[[Draw, Words, bool], Text], int], ...] = (
    (this_or_these, 25),
    (trait_before_thing, 25),
    (did_or_had, 25),
    (sings_or_sing, 15),
    (was_or_were, 10),
)
