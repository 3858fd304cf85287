"""Word forms."""

from __future__ import annotations

from compacter.tasks.builtin.words import Verb

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
