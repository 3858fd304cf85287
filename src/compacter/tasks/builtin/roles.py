from __future__ import annotations
from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.words import Verb, Words
PR=("He","him"),("She","her")
def people(draw,words):
    g=draw.below(2)
    return g,(draw.one(words.men),draw.one(words.women)) if g==0 else (draw.one(words.women),draw.one(words.men))
def he_or_she(draw,words,follows):
    g,(one,other)=people(draw,words); deed=draw.one(words.deeds)
    d = g if follows else 1-g
    return f"The {one} {deed.past} the {other}.", f"{PR[d][0]} {deed.past} {PR[1-d][1]}."
def he_or_she_passive(draw,words,follows):
    g,(one,other)=people(draw,words); deed=draw.one(words.deeds)
    d = 1-g if follows else g
    return f"The {one} was {deed.participle} by the {other}.", f"{PR[d][0]} {deed.past} {PR[1-d][1]}."
def not_but(draw,words,follows):
    g,(one,other)=people(draw,words); act=draw.one(words.acts)
    d = 1-g if follows else g
    return f"Not the {one} but the {other} {act.past}.", f"{PR[d][0]} {act.past}."
def one_did_not(draw,words,follows):
    g,(one,other)=people(draw,words); act=draw.one(words.acts)
    who=draw.below(2); did=(who==g)==follows
    return f"The {one} {act.past}, but the {other} did not.", f"{PR[who][0]} {_phrase(act,did)}."
def broader_or_narrower(draw, words, follows):
    who, verb = draw.one(words.people), draw.one(words.handling)
    broader, narrower = draw.one(words.kinds)
    narrow = draw.one(narrower)
    did = draw.coin()
    first, second = (narrow, broader) if did == follows else (broader, narrow)
    return (
        f"The {who} {_phrase(verb, did)} {first}.",
        f"The {who} {_phrase(verb, did)} {second}.",
    )
def opposites(draw,words,follows):
    who=draw.one(words.people); pair=draw.two(draw.one(words.opposites)); n=draw.coin()
    other=draw.coin()
    if not other:
        m = n==follows
        return f"The {who} was {'' if n else 'not '}{pair[0]}.", f"The {who} was {'' if m else 'not '}{pair[0]}."
    m = (n!=follows)
    return f"The {who} was {'' if n else 'not '}{pair[0]}.", f"The {who} was {'' if m else 'not '}{pair[1]}."
def quantifiers(draw,words,follows):
    who=draw.one(words.people); act=draw.one(words.acts); n=draw.coin(); m=n==follows
    return f"{'All' if n else 'No'} {who}s {act.past}.", f"{'Some' if m else 'Not all'} {who}s {act.past}."
def _phrase(verb: Verb, did: bool) -> str:
    return verb.past if did else f"did not {verb.base}"
PHENOMENA=((he_or_she,18),(he_or_she_passive,18),(not_but,12),(one_did_not,12),(broader_or_narrower,16),(opposites,16),(quantifiers,8))
def who_to_whom(draw, words, follows):
    one, other = draw.two(words.people); deed = draw.one(words.deeds)
    doer, done = (one, other) if follows else (other, one)
    p=draw.coin()
    return _event(one, deed, other, p), _event(doer, deed, done, not p)
def _event(doer, deed, done, passive):
    if passive: return f"The {done} was {deed.participle} by the {doer}."
    return f"The {doer} {deed.past} the {done}."
PHENOMENA=PHENOMENA+((who_to_whom,10),)
