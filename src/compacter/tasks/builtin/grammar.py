"""`builtin/grammar`: is this English?

Each phenomenon draws one acceptable sentence and one that is not, of the same words: only their
arrangement, or the agreement of one word with another, tells them apart."""

from __future__ import annotations

from collections.abc import Callable

from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.words import Verb, Words

Text = tuple[str]


def this_or_these(draw: Draw, words: Words, right: bool) -> Text:
    """These cups looked heavy."""
    many = draw.coin()
    determiner = draw.one(("these", "those") if many == right else ("this", "that")).capitalize()
    noun = _number(draw.one(words.things), many)
    return (f"{determiner} {noun} {draw.one(('looked', 'became', 'seemed'))} "
            f"{draw.one(words.traits)}.",)


def was_or_were(draw: Draw, words: Words, right: bool) -> Text:
    """The cup near the boxes was heavy."""
    one, other = draw.two(words.things)
    many = draw.coin()
    verb = "were" if many == right else "was"
    place = draw.one(("near", "behind", "under", "on"))
    return (
        f"The {_number(one, many)} {place} the {_number(other, draw.coin())} {verb} "
        f"{draw.one(words.traits)}.",
    )


def sings_or_sing(draw: Draw, words: Words, right: bool) -> Text:
    """The boys often sing."""
    many = draw.coin()
    act = draw.one(words.acts)
    verb = act.base if many == right else third_person(act)
    adverb = draw.one(("often", "never", "always", "sometimes", "usually"))
    return (f"The {_number(draw.one(words.people), many)} {adverb} {verb}.",)


def did_or_had(draw: Draw, words: Words, right: bool) -> Text:
    """The boy had not sung."""
    act = draw.one(words.acts)
    had = draw.coin()
    form = act.participle if had == right else act.base
    auxiliary = draw.one(("had", "has") if had else ("did", "could", "may"))
    if act.base == act.participle:
        return did_or_had(draw, words, right)
    return (f"The {draw.one(words.people)} {auxiliary} not {form}.",)


def trait_before_thing(draw: Draw, words: Words, right: bool) -> Text:
    """The boy helped the old king: not "the king old"."""
    thing, trait = draw.one(words.things), draw.one(words.traits)
    phrase = f"{trait} {thing}" if right else f"{thing} {trait}"
    if draw.coin():
        return (f"The {draw.one(words.people)} {draw.one(words.handling).past} the {phrase}.",)
    return (f"The {phrase} was {draw.one(('near', 'behind'))} the {draw.one(words.people)}.",)


def _number(noun: str, many: bool) -> str:
    return plural(noun) if many else noun


IRREGULAR = {
    "woman": "women",
    "man": "men",
    "policeman": "policemen",
    "thief": "thieves",
    "knife": "knives",
}


def plural(noun: str) -> str:
    """cup: cups; box: boxes; city: cities; woman: women."""
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    return _with_s(noun)


def third_person(verb: Verb) -> str:
    """sing: sings; march: marches; cry: cries."""
    return _with_s(verb.base)


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "z")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


PHENOMENA: tuple[tuple[Callable[[Draw, Words, bool], Text], int], ...] = (
    (this_or_these, 20),
    (was_or_were, 20),
    (sings_or_sing, 20),
    (did_or_had, 20),
    (trait_before_thing, 20),
)
