"""What an update made of one parameter on both sides, and whether it was the same update. numpy in, values out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..adapters.base import Array
from ..judge import ROUNDOFF
from ..records import Verdict

#: An element whose gradients are further apart than this part of them says nothing of an update: Adam makes a whole
#: step of the sign of a gradient, and of the smallest ones rounding decides the sign.
_TRUSTED = 1e-2
#: How much an update may magnify the relative noise of a gradient, and how many roundings it makes.
_GAIN, _ROUNDINGS = 16.0, 16.0
#: The share of elements that may be further off than noise explains: sums of gradients that nearly cancel out.
_FEW = 0.02


@dataclass(frozen=True, slots=True)
class Update:
    """A parameter before and after an update, and the gradient that it was made of: (reference's, candidate's), both
    in the candidate's layout. A gradient is None where there was none."""

    before: tuple[Array, Array]
    gradients: tuple[Array | None, Array | None]
    after: tuple[Array, Array]

    def moves(self) -> tuple[Array, Array]:
        """By how much each side's parameter was changed."""
        a, b = (y.astype(np.float64) - x.astype(np.float64) for x, y in zip(self.before, self.after, strict=True))
        return a, b

    def noise(self, before: Array | None = None) -> Array:
        """The relative difference of the gradients, element by element, with what it was in steps before."""
        a, b = self.gradients
        if a is None or b is None:
            now = np.zeros(self.before[1].shape)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                now = np.where(x == y, 0.0, np.abs(x - y) / np.abs(x))
            now = np.where(np.isnan(now), np.inf, now)
        return now if before is None else np.maximum(now, before)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of an update."""

    verdict: Verdict
    error: float  # of the update, relative to the reference's
    limit: float  # the most that noise explains
    note: str = ""
    cause: str | None = None
    told: tuple[str, ...] = ()  # settings that differ and make no difference in this step


def judge_directly(update: Update, noise: Array) -> Judged:
    """Whether two updates do the same, by no more than what they made of gradients that agree.

    Only elements count whose gradients have agreed well in all steps (`noise` is how well): an update has a derivative
    there. This needs no knowledge of the optimizer, and is blind where all gradients are noise.

    >>> w, g = np.ones(3, np.float32), np.array([1, 2, 3], np.float32)
    >>> half = Update((w, w), (g, g), (w - 0.1 * g, w - 0.05 * g))
    >>> judge_directly(half, half.noise()).verdict
    <Verdict.BUG: 'BUG'>
    """
    a, b = update.moves()
    if np.array_equal(a, b):
        return Judged(Verdict.EXACT, 0.0, 0.0)
    one_sided = [not np.any(m) for m in (a, b)]
    if one_sided[0] != one_sided[1]:
        side = "reference" if one_sided[1] else "candidate"
        return Judged(Verdict.BUG, 1.0, 0.0, f"updated on the {side}'s side only")
    if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        same = np.array_equal(np.isfinite(a), np.isfinite(b))
        return Judged(Verdict.UNDECIDED if same else Verdict.BUG, math.inf, 0.0, "not finite after the update")
    u = max(ROUNDOFF.get(x.dtype.name, 2.0**-24) for x in update.before)
    size = np.maximum(np.abs(update.before[0].astype(np.float64)), np.abs(update.after[0].astype(np.float64)))
    apart = np.abs(update.before[0].astype(np.float64) - update.before[1].astype(np.float64))
    trusted = noise <= _TRUSTED
    if not trusted.any():
        return Judged(Verdict.NOISE, 0.0, 1.0, "its gradients are nothing but noise: nothing was shown")
    allowed = (_GAIN * noise + _ROUNDINGS * u) * np.abs(a) + 4 * u * size + 0.1 * apart
    off = np.abs(a - b)[trusted]
    scale = _rms(a[trusted])
    error, limit = _rms(off), _GAIN * _rms(allowed[trusted])
    share = float(np.mean(off > _GAIN * allowed[trusted]))
    verdict = Verdict.BUG if error > limit or share > _FEW else Verdict.NOISE
    relative = max(scale, 1e-300)
    return Judged(verdict, error / relative, limit / relative)


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
