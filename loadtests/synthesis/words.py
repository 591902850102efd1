"""Common English words: one token each in most byte-level vocabularies, so that a first guess is close."""

from __future__ import annotations

_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home
water room mother area money story fact month lot right study book eye job word business issue side kind
head house service friend father power hour game line end member law car city community name president
team minute idea body information back parent face others level office door health person art war history
party result change morning reason research girl guy moment air teacher force education about after again
against all always another any around because before being below between both come could down each early
even every example far few find first follow food form found four from general give good great green
ground grow half hard have help here high hold human into just keep know land large last late learn leave
left less let letter light like list little live long look low made main make many may mean might more
most mountain move much music must near need never new next north note nothing notice now often old once
one only open order other our out over own page paper plan plant play press project put rain read real
red rest river road rock rule run said same saw say sea second see seem sentence set several ship short
should show since small snow some song soon sound south space special stand star start stay step still
stop strong such sun sure surface table take talk tell ten test than that their them then there these
they think this those though thought three through today together too took top town toward travel tree
true try turn two under unit until upon use usually very voice vowel walk want warm watch well went west
what wheel when where which while white who whole why will wind winter wish with without wood write yes
yet young your
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
