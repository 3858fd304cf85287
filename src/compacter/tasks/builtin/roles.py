"""`builtin/roles`: does the second sentence follow from the first?

Each phenomenon is drawn with as many pairs that follow as pairs that do not, from the same words in
the same patterns, so that no word and no two neighbouring words tell the label."""

from __future__ import annotations

from collections.abc import Callable

from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.inflecting import plural
from compacter.tasks.builtin.words import Verb, Words

Texts = tuple[str, str]


def person_and_thing(draw: Draw, words: Words, follows: bool) -> Texts:
    """The boy washed the cup. / The cup was washed by the boy."""
    person, thing = draw.one(words.people), draw.one(words.things)
    return _told_again(draw, person, draw.one(words.handling), thing, follows)


def person_and_person(draw: Draw, words: Words, follows: bool) -> Texts:
    """The boy helped the king. / The king was helped by the boy."""
    one, other = draw.two(words.people)
    return _told_again(draw, one, draw.one(words.deeds), other, follows)


def who_did_what(draw: Draw, words: Words, follows: bool) -> Texts:
    """The boy sang and the cup cracked. / The cup cracked."""
    nouns = draw.one(words.people), draw.one(words.things)
    verbs = draw.one(words.acts).past, draw.one(words.processes).past
    first, second = (0, 1) if draw.coin() else (1, 0)
    asked = draw.below(2)
    verb = verbs[asked] if follows else verbs[1 - asked]
    return (
        f"The {nouns[first]} {verbs[first]} and the {nouns[second]} {verbs[second]}.",
        f"The {nouns[asked]} {verb}.",
    )


def which_is_what(draw: Draw, words: Words, follows: bool) -> Texts:
    """The hungry boy washed the wooden cup. / The cup was wooden."""
    nouns = draw.one(words.people), draw.one(words.things)
    traits = draw.one(words.moods), draw.one(words.makes)
    asked = draw.below(2)
    trait = traits[asked] if follows else traits[1 - asked]
    event = _event(
        f"{traits[0]} {nouns[0]}", draw.one(words.handling), f"{traits[1]} {nouns[1]}", draw.coin()
    )
    return event, f"The {nouns[asked]} was {trait}."


def broader_or_narrower(draw: Draw, words: Words, follows: bool) -> Texts:
    """The boy drew dogs. / The boy drew animals. Under a negation it is the other way round."""
    who, verb = draw.one(words.people), draw.one(words.handling)
    broader, narrower = draw.one(words.kinds)
    kinds = draw.one(narrower), broader
    did = draw.coin()
    first, second = kinds if did == follows else kinds[::-1]
    told = f"The {who} {verb.past if did else f'did not {verb.base}'}"
    return f"{told} {first}.", f"{told} {second}."


def all_or_none(draw: Draw, words: Words, follows: bool) -> Texts:
    """No boys sang. / Not all boys sang."""
    act = f"{plural(draw.one(words.people))} {draw.one(words.acts).past}"
    some = draw.coin()
    first = "All" if some == follows else "No"
    return f"{first} {act}.", f"{'Some' if some else 'Not all'} {act}."


def _told_again(draw: Draw, doer: str, deed: Verb, done: str, follows: bool) -> Texts:
    """An event in the active and in the passive voice, or in the passive and the active."""
    passive = draw.coin()
    again = (doer, deed, done) if follows else (done, deed, doer)
    return _event(doer, deed, done, passive), _event(*again, not passive)


def _event(doer: str, deed: Verb, done: str, passive: bool) -> str:
    if passive:
        return f"The {done} was {deed.participle} by the {doer}."
    return f"The {doer} {deed.past} the {done}."


PHENOMENA: tuple[tuple[Callable[[Draw, Words, bool], Texts], int], ...] = (
    (which_is_what, 42),
    (person_and_thing, 22),
    (person_and_person, 18),
    (who_did_what, 8),
    (broader_or_narrower, 6),
    (all_or_none, 4),
)
