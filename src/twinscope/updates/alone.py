"""An update judged alone: each side's rule replayed in float64 on its own weights, gradients and state.

Gradients of two frameworks are never equal to the last bit, and Adam makes a whole step of the sign of the smallest of
them. So new weights are not held against each other. First each side must have done what its optimizer says it does:
its rule, replayed on its own numbers, must give its own new weight. Then both rules are replayed on the candidate's
numbers: what comes out differs by the rules alone, with no noise in it, however far apart training has brought them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..adapters.base import Array
from ..judge import ROUNDOFF
from ..records import Verdict
from .rules import WORDS, Rule, differences, replay, said, variations
from .update import Judged, Update, judge_directly

#: The part of an update that constants in float32 explain: 1 - beta2 is wrong by as much as 1e-5 there, and its powers
#: by more.
_CONSTANTS = 1e-3
#: Two rules are one where what they make of the same numbers differs by less than this part of the update, as a whole
#: and in every element.
_WHOLE, _ELEMENT = 1e-4, 1e-2


@dataclass(frozen=True, slots=True)
class Handling:
    """What was done to the gradients of the backward pass before the optimizer got them."""

    scale: float | None = 1.0  # by what they were multiplied; None where they were changed in another way
    bound: float | None = None  # to what magnitude their elements were cut
    text: str = ""  # what the optimizer says of it

    def __call__(self, gradient: Array) -> Array | None:
        if self.bound is not None:
            return np.clip(gradient, -self.bound, self.bound)
        return None if self.scale is None else gradient * self.scale

    def __str__(self) -> str:
        if self.text:
            return f"clipped {self.text}"
        if self.bound is not None:
            return f"cut to values of {self.bound:.3g}"
        if self.scale is None:
            return "changed"
        return "as they are" if self.scale == 1.0 else f"scaled by {self.scale:.4g}"


@dataclass(frozen=True, slots=True)
class Own:
    """One side's parameter in its own layout: before and after, the gradient of the backward pass, and what its
    optimizer was about to do, where that is known."""

    path: str
    before: Array
    after: Array
    gradient: Array | None
    applied: Array | None = None  # the gradient that the optimizer got
    rule: Rule | None = None
    state: Mapping[str, Any] | None = None
    handling: Handling = Handling()

    @property
    def fresh(self) -> bool:
        """Whether the optimizer remembers nothing of it yet."""
        held = self.state or {}
        return held.get("t", 0) == 0 if "t" in held else not held

    def by(self, rule: Rule, gradient: Array | None = None) -> Array | None:
        """What a rule makes of this side's numbers."""
        g = self.applied if gradient is None else gradient
        if g is None or self.state is None:
            return None
        begun = self.fresh and rule != self.rule
        return replay(rule, self.before, g, {} if begun else self.state)


def handling_of(pairs: Sequence[tuple[Array, Array]], text: str) -> Handling:
    """What was done to all gradients of a side: (of the backward pass, that the optimizer got).

    >>> g = np.array([3.0, 4.0])
    >>> handling_of([(g, g / 5)], "").scale
    0.2
    """
    own = sum(float(np.vdot(a, a)) for a, _ in pairs)
    if own == 0.0:
        return Handling()
    scale = sum(float(np.vdot(a, b)) for a, b in pairs) / own
    got = sum(float(np.vdot(b, b)) for _, b in pairs)
    off = sum(float(np.sum(np.square(b - scale * a))) for a, b in pairs)
    if off <= 1e-10 * max(got, 1e-300):
        return Handling() if abs(scale - 1.0) < 1e-5 else Handling(scale, None, text)
    bound = max(float(np.max(np.abs(b), initial=0.0)) for _, b in pairs)
    if all(np.allclose(np.clip(a, -bound, bound), b, rtol=1e-5, atol=0) for a, b in pairs):
        return Handling(1.0, bound, text)
    return Handling(None, None, text)


def judge_alone(update: Update, noise: Array, reference: Sequence[Own], candidate: Own) -> Judged:
    """What is to be said of one parameter's update; `reference` has all that the candidate's comes from."""
    direct = judge_directly(update, noise)
    rules = {id(own): _behaves(own) for own in (*reference, candidate)}
    theirs, own = rules[id(reference[0])], rules[id(candidate)]
    known = all(rules[id(r)] is not None for r in reference) and theirs is not None
    if direct.verdict is Verdict.EXACT and not (known and own is not None):
        return direct
    if not known or theirs is None or own is None:
        return _suspected(direct, reference[0], candidate)
    others = [r for r in map(lambda o: rules[id(o)], reference[1:]) if r is not None]
    if any(o.rule != theirs.rule for o in others):
        return direct  # a parameter that is made of several which were told different things
    return _crossed(direct, reference[0], candidate, theirs, own)


@dataclass(frozen=True, slots=True)
class _Behaviour:
    """The rule that a side follows, and in which way that is not the one that it says it follows."""

    rule: Rule
    unlike: str = ""


def _behaves(own: Own) -> _Behaviour | None:
    """The rule that explains a side's own new weight; None where none does."""
    if own.rule is None:
        return None
    if _fits(own, own.by(own.rule)):
        return _Behaviour(own.rule)
    for text, rule in variations(own.rule).items():
        if _fits(own, own.by(rule)):
            return _Behaviour(rule, text)
    return None


def _fits(own: Own, predicted: Array | None) -> bool:
    if predicted is None or not np.all(np.isfinite(predicted)):
        return False
    u = ROUNDOFF.get(own.before.dtype.name, 2.0**-24)
    before, after = own.before.astype(np.float64), own.after.astype(np.float64)
    allowed = 4 * u * np.maximum(np.abs(before), np.abs(after)) + _CONSTANTS * np.abs(predicted - before)
    return _rms(predicted - after) <= _rms(allowed)


def _crossed(direct: Judged, reference: Own, candidate: Own, theirs: _Behaviour, own: _Behaviour) -> Judged:
    """Both rules on the candidate's numbers."""
    base = candidate.by(own.rule)
    handled = reference.handling(candidate.gradient) if candidate.gradient is not None else None
    wanted = None if handled is None else candidate.by(theirs.rule, handled)
    if base is None or wanted is None:
        return direct
    error, limit, differs = _apart(candidate, base, wanted)
    found = differences(theirs.rule, own.rule)
    apart = _handled_apart(reference.handling, candidate.handling)
    if theirs.rule.kind != own.rule.kind:
        text = f"another optimizer: {theirs.rule} / {own.rule}"
        return Judged(Verdict.BUG if differs else Verdict.NOISE, error, limit, cause=text)
    if not differs:
        verdict = Verdict.EXACT if direct.verdict is Verdict.EXACT else Verdict.NOISE
        return Judged(verdict, error, limit, told=tuple(_words(n, *v) for n, v in found.items() if n not in _MINOR))
    causes = list(_single(candidate, theirs, own, found, wanted, handled)) if not apart else []
    if apart and not _apart(candidate, candidate.by(own.rule, handled), wanted)[2]:
        causes = [apart]
    if not causes:
        causes = [_words(n, *v) for n, v in found.items()] + ([apart] if apart else [])
    unlike = [f"the {side} behaves {b.unlike}" for side, b in (("reference", theirs), ("candidate", own)) if b.unlike]
    return Judged(Verdict.BUG, error, limit, cause="; ".join([*causes, *(u for u in unlike if causes)]) or None)


#: Settings that may differ without a difference that anybody will ever see.
_MINOR = frozenset({"eps", "eps_corrected", "eps_inside", "eps_added"})


def _single(
    candidate: Own,
    theirs: _Behaviour,
    own: _Behaviour,
    found: Mapping[str, tuple[Any, Any]],
    wanted: Array,
    handled: Array | None,
) -> Iterator[str]:
    """The one setting that makes the difference: told as the reference's, the candidate's rule gives the same."""
    for name, (value, other) in found.items():
        changed = candidate.by(own.rule.told(**{name: value}), handled)
        if changed is not None and not _apart(candidate, changed, wanted)[2]:
            yield _words(name, value, other)
            return


def _apart(own: Own, made: Array | None, wanted: Array) -> tuple[float, float, bool]:
    """How far two new weights are apart, as a part of the update; what rounding explains; whether that is more."""
    if made is None:
        return math.inf, 0.0, True
    u = ROUNDOFF.get(own.before.dtype.name, 2.0**-24)
    before = own.before.astype(np.float64)
    off, moved = np.abs(made - wanted), np.maximum(np.abs(made - before), np.abs(wanted - before))
    size = 8 * u * np.abs(before)
    scale = max(_rms(moved), 1e-300)
    whole = _WHOLE * scale + _rms(size)
    differs = _rms(off) > whole or bool(np.any(off > _ELEMENT * moved + size))
    return _rms(off) / scale, whole / scale, differs


def _handled_apart(reference: Handling, candidate: Handling) -> str | None:
    """In which way the gradients were treated differently before the update."""
    if reference.bound == candidate.bound and (
        reference.scale == candidate.scale
        or (
            reference.scale is not None
            and candidate.scale is not None
            and abs(reference.scale - candidate.scale) <= 1e-3 * abs(reference.scale)
        )
    ):
        return None
    plain = Handling()
    for side, other, own in (("reference", candidate, reference), ("candidate", reference, candidate)):
        if other == plain and own != plain:
            return f"gradients are clipped on the {side}'s side only: {own} before the update"
    return f"gradients before the update: {reference} in the reference, {candidate} in the candidate"


def _suspected(direct: Judged, reference: Own, candidate: Own) -> Judged:
    """What an update came to whose rule is not known on both sides, with what speaks for a cause."""
    if direct.verdict is not Verdict.BUG or direct.cause is not None:
        return direct
    if reference.rule is not None and candidate.rule is not None:
        found = differences(reference.rule, candidate.rule)
        if reference.rule.kind != candidate.rule.kind:
            return replace(direct, cause=f"another optimizer: {reference.rule} / {candidate.rule} (suspected)")
        texts = [_words(n, *v) for n, v in found.items()]
        apart = _handled_apart(reference.handling, candidate.handling)
        texts += [apart] if apart else []
        return replace(direct, cause=f"{'; '.join(texts)} (suspected)") if texts else direct
    return _as_if(direct, reference, candidate)


def _as_if(direct: Judged, reference: Own, candidate: Own) -> Judged:
    """Of a candidate whose optimizer nobody knows: what must be changed in the reference's rule to explain it."""
    if reference.rule is None or candidate.rule is not None or candidate.gradient is None or not reference.fresh:
        return direct
    unknown = replace(candidate, state={}, applied=candidate.gradient)
    for text, rule in {"": reference.rule, **variations(reference.rule)}.items():
        made = unknown.by(rule)
        if text and _fits(unknown, made):
            return replace(direct, cause=f"the candidate's update is the reference's {text}")
        if made is None or not text:
            continue
    made = unknown.by(reference.rule)
    if made is None:
        return direct
    before = candidate.before.astype(np.float64)
    moved, wanted = candidate.after.astype(np.float64) - before, made - before
    factor = float(np.vdot(moved, wanted)) / max(float(np.vdot(wanted, wanted)), 1e-300)
    if factor > 0 and abs(factor - 1) > 1e-4 and _fits(unknown, before + factor * wanted):
        rate = reference.rule["lr"]
        return replace(direct, cause=f"the candidate's update is {factor:.4g} times the reference's: "
                       f"learning rate {said(rate)} / {said(rate * factor)}")  # fmt: skip
    return direct


def _words(name: str, reference: Any, candidate: Any) -> str:
    places = {
        "eps_corrected": ("before the bias correction", "after the bias correction"),
        "eps_inside": ("to the root", "inside the root"),
    }
    if name in places:
        first, second = places[name][bool(reference)], places[name][bool(candidate)]
        return f"epsilon is added {first} in the reference and {second} in the candidate"
    return f"{WORDS.get(name, name)} {said(reference)} / {said(candidate)}"


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
