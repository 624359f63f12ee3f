"""From numbers to verdicts, one pair of tensors at a time.

This is the first verdict, made from two traces alone. `RoundoffJudge` asks for no tolerance: it allows an error in
units of the working precision's roundoff that grows with the number of calls between the inputs and this one.
`ToleranceJudge` applies exactly what the user asked for. Both answer the same question (`Judge.limit` and
`Judge.verdict`), and a judge that replays calls can take their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from .errors import OptionError
from .records import Choice, Verdict

#: Unit roundoff, half the distance from 1 to the next number, by dtype.
ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
}


#: The limits of a call judged alone (see `graft`), in units of the noise. Below the first it is as good as the
#: reference's; from the second on it is another function; between them more inputs decide.
NOISE_BELOW = 3.0
BUG_FROM = 8.0
#: Where float64 is known of neither side, or of one side only, an inaccurate kernel is not told from a bug below this
#: (measured: MindSpore's tanh has 250).
UNKNOWN_BELOW = 512.0
#: The least noise is a quarter of a roundoff of the root mean square, times 1 + this / sqrt(n): one number of the
#: reference's may be right by luck, and a correct port's is then many times that off (measured: a loss summed in
#: another order, 16 times a quarter of a roundoff).
FEW_NUMBERS = 4.0


class Mode(Choice):
    """How a tolerance is applied."""

    STRICT = "strict"  # to every element
    MEAN = "mean"  # to the mean of the absolute error, against the mean of the reference's magnitude


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a judge is told of the error between two tensors, whether it was measured or estimated from statistics."""

    identical: bool
    nonfinite_mismatch: int  # places where NaN or Inf differ
    rmse: float
    max_abs: float
    mean_abs: float
    within: float  # share of elements within the tolerance asked for (of equal elements where none was)
    rms_reference: float
    mean_abs_reference: float  # of the magnitudes; nan where no judge asked for it


@dataclass(frozen=True, slots=True)
class Context:
    """What a judge may know of a pair of tensors beside their numbers."""

    dtypes: tuple[str, str]  # of the two tensors
    working: str  # the least precise floating dtype met on the way here, "" when none was
    depth: int  # calls between the inputs of the run and this tensor, backward included
    floor: float  # a scale below which this tensor's magnitude may be nothing but cancellation
    handed_on: float = 0.0  # a relative error that is known to have come from upstream, and not from a bug
    given: float | None = None  # the largest relative error among the inputs, where all of them were compared
    weight: int = 1  # how many roundings in a row the call itself stands for


class Judge(Protocol):
    """Says what a pair of tensors is worth."""

    def limit(self, numbers: Numbers, context: Context) -> float:
        """The largest relative error that is still noise."""

    def error(self, numbers: Numbers, context: Context) -> float:
        """The error that is held against `limit`."""

    def verdict(self, numbers: Numbers, context: Context) -> Verdict:
        """EXACT, NOISE, BUG or UNDECIDED."""


@dataclass(frozen=True, slots=True)
class RoundoffJudge:
    """An error in units of the roundoff that grows with depth.

    A call adds a few roundoffs (measured between frameworks: 1 to 6 for a matrix product of up to 4096 terms) and hands
    on those of its inputs. `per_call` leaves a margin over that; a single element may be `peak` times further off than
    the root mean square, which is what the tail of a few million roundings reaches.
    """

    per_call: float = 16.0
    gain: float = 32.0  # how much a call may magnify the relative error of its inputs
    peak: float = 64.0

    def limit(self, numbers: Numbers, context: Context) -> float:
        return self._noise(context) + context.handed_on

    def _noise(self, context: Context) -> float:
        u = max(ROUNDOFF.get(d, 0.0) for d in (*context.dtypes, context.working))
        # what a call makes of inputs that agree well must agree well too, however deep in the network it is
        if u > ROUNDOFF["float32"]:
            # half precisions accumulate in float32 and round once a call; errors of that size add up like a random walk
            whole = 4 * u * math.sqrt(1 + context.depth)
            return whole if context.given is None else min(whole, 4 * u + self.gain / 4 * context.given)
        whole = self.per_call * u * (1 + context.depth)
        if context.given is None:
            return whole
        return min(whole, 2 * self.per_call * u * context.weight + self.gain * context.given)

    def error(self, numbers: Numbers, context: Context) -> float:
        scale = max(numbers.rms_reference, context.floor)
        if numbers.rmse == 0:
            return 0.0
        return numbers.rmse / scale if scale > 0 else math.inf

    def verdict(self, numbers: Numbers, context: Context) -> Verdict:
        if numbers.nonfinite_mismatch:
            return Verdict.BUG
        if numbers.identical:
            return Verdict.EXACT
        if not any(d in ROUNDOFF for d in context.dtypes):
            # whole numbers are equal or they are not; but numbers rounded from noisy ones may flip
            flipped = 1.0 - numbers.within
            return Verdict.UNDECIDED if context.working and 0 < flipped < 0.01 else Verdict.BUG
        error, limit = self.error(numbers, context), self.limit(numbers, context)
        if not error <= limit:
            return Verdict.BUG
        if error > self._noise(context) + 0.01:
            return Verdict.UNDECIDED  # so much is handed on that nothing can be told
        scale = max(numbers.rms_reference, context.floor)
        if scale > 0 and numbers.max_abs > self.peak * limit * scale:
            return Verdict.BUG
        return Verdict.NOISE


@dataclass(frozen=True, slots=True)
class ToleranceJudge:
    """Exactly the tolerance that was asked for."""

    atol: float = 0.0
    rtol: float = 0.0
    mode: Mode = Mode.STRICT

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise OptionError(f"{name}={value!r} is not a tolerance", hint=f"write {name}=1e-5, or leave it out")

    def _scale(self, numbers: Numbers) -> float:
        return numbers.mean_abs_reference if self.mode is Mode.MEAN else numbers.rms_reference

    def limit(self, numbers: Numbers, context: Context) -> float:
        scale = self._scale(numbers)
        return self.rtol + (self.atol / scale if scale > 0 else math.inf if self.atol > 0 else 0.0)

    def error(self, numbers: Numbers, context: Context) -> float:
        scale = self._scale(numbers)
        error = numbers.mean_abs if self.mode is Mode.MEAN else numbers.max_abs
        return 0.0 if error == 0 else error / scale if scale > 0 else math.inf

    def verdict(self, numbers: Numbers, context: Context) -> Verdict:
        if numbers.nonfinite_mismatch:
            return Verdict.BUG
        if numbers.identical:
            return Verdict.EXACT
        if self.mode is Mode.STRICT:
            return Verdict.NOISE if numbers.within >= 1.0 else Verdict.BUG
        bound = self.atol + self.rtol * numbers.mean_abs_reference
        return Verdict.NOISE if numbers.mean_abs <= bound else Verdict.BUG


def judge_for(atol: float | None, rtol: float | None, mode: str | Mode | None) -> Judge:
    """Who judges: the tolerance that was asked for, or roundoff where none was."""
    if atol is None and rtol is None and mode is None:
        return RoundoffJudge()
    parsed = Mode.STRICT if mode is None else Mode.parse(mode, "mode")
    return ToleranceJudge(atol=atol or 0.0, rtol=rtol or 0.0, mode=parsed)
