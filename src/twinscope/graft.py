"""Judging calls alone: every matched call of the candidate, made again on the tensors that the reference's was given.

Nothing that happened upstream can blur the answer then, and a reference in float64 says how much of what is left is
noise. For a call with the reference's inputs x:

    a      what the reference returned          a64    the reference's call on x in float64: the truth
    b      what the candidate returns on x      b64    the candidate's call on x in float64

    noise      the error of a, but at least a quarter of a roundoff
    rho        the error of b, in units of that noise
    rho64      the difference of b64 and a64, in the same units: what stays when the rounding is taken away

A correct port has a rho near 1, but a kernel that is merely inaccurate (a tanh by another polynomial) may have 100. In
float64 that goes away, and a bug stays: rho64 decides where both frameworks have the kernels for it, rho where not.
The same is done backward, with gradients drawn at random pulled back through the one call: (x, dy) to dx and dW.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .adapters._registry import adapter_for
from .adapters.base import Adapter, Array
from .errors import NoFloat64
from .judge import ROUNDOFF
from .match import FUSED, Pair
from .metrics import arranged
from .records import Kind, Phase, Record, Verdict
from .replaying import KeptCall, Pulled, each_call, replay, replay_backward
from .running import InputPair, as_arguments, unchanged

#: Below the first a call is as good as the reference's; from the second on it is another function.
NOISE_BELOW = 3.0
BUG_FROM = 8.0
#: Where only rho is known: an inaccurate kernel is not told from a bug below this (measured: MindSpore's tanh has 250).
UNKNOWN_BELOW = 512.0

_FLOATS = frozenset(ROUNDOFF)


@dataclass(frozen=True, slots=True)
class Graft:
    """What a call came to when it was judged alone."""

    phase: Phase  # forward or backward
    tensor: str  # the worst of its tensors: "out", "in.0", or a parameter's name
    rho: float
    rho64: float | None  # None where a framework has no float64 kernel for the call
    floor: str  # how the noise was found

    @property
    def verdict(self) -> Verdict:
        """NOISE, BUG or UNDECIDED."""
        decisive = self.rho if self.rho64 is None else self.rho64
        if decisive <= NOISE_BELOW:
            return Verdict.NOISE
        if decisive >= (BUG_FROM if self.rho64 is not None else UNKNOWN_BELOW):
            return Verdict.BUG
        return Verdict.UNDECIDED


@dataclass(slots=True)
class _Known:
    """The reference's call, and what it comes to in float64."""

    call: KeptCall
    truth: tuple[Array, ...] | None
    nudged: tuple[Array, ...] | None
    pulled: Pulled | None
    pulled_truth: Pulled | None
    gradients: list[Array | None]


def graft(
    reference: Any,
    candidate: Any,
    inputs: InputPair,
    pairs: Iterable[Pair],
    *,
    backward: bool = True,
    seed: int = 0,
) -> dict[int, list[Graft]]:
    """Judge every one of these pairs of calls alone; by the reference's call id, forward first.

    Pairs that cannot be judged (random calls, one call for several, inputs that do not correspond) are left out.
    """
    wanted = [p for p in pairs if p.reference.phase is Phase.FORWARD and p.reference.kind is not Kind.STATE]
    wanted = [p for p in wanted if p.how != FUSED and p.reference.step == 0 and p.candidate.step == 0]
    first, second = adapter_for(reference), adapter_for(candidate)
    by_reference = {_key(p.reference): p for p in wanted}
    by_candidate = {_key(p.candidate): p for p in wanted}
    known: dict[int, _Known] = {}
    found: dict[int, list[Graft]] = {}

    def learn(call: KeptCall) -> None:
        pair = by_reference[_key(call)]
        if not call.random and not call.opaque:
            known[pair.reference.call_id] = _learnt(first, call, backward)

    def judge(call: KeptCall) -> None:
        pair = by_candidate[_key(call)]
        mine = known.pop(pair.reference.call_id, None)
        if mine is not None and not call.random and not call.opaque:
            grafts = _judged(second, pair, mine, call)
            if grafts:
                found[pair.reference.call_id] = grafts

    for adapter, model, own, tell, keys in (
        (first, reference, inputs.reference, learn, by_reference),
        (second, candidate, inputs.candidate, judge, by_candidate),
    ):
        args, kwargs = as_arguments(adapter, own)
        with unchanged(adapter, model):
            adapter.seed(seed)
            each_call(adapter, model, args, kwargs, tell, wanted=_among(keys))
    return found


def _key(call: Record | KeptCall) -> tuple[Kind, str, str, int]:
    return call.kind, call.path, call.type, call.nth


def _among(keys: Mapping[tuple[Kind, str, str, int], Pair]) -> Callable[[Kind, str, str, int], bool]:
    return lambda kind, path, type_, nth: (kind, path, type_, nth) in keys


# -- the reference -----------------------------------------------------------------------------------------------------


def _learnt(adapter: Adapter, call: KeptCall, backward: bool) -> _Known:
    truth = nudged = pulled = pulled_truth = None
    try:
        truth = replay(adapter, call.target, call, call.inputs, float64=True)
    except NoFloat64:
        nudged = replay(adapter, call.target, call, [_nudged(a, i) for i, a in enumerate(call.inputs)])
    gradients = [_drawn(a, name) for a, name in zip(call.outputs, call.output_names, strict=True)]
    if backward and not call.effects and any(g is not None for g in gradients):
        pulled = _pulled(adapter, call, call.inputs, gradients, False)
        pulled_truth = None if pulled is None or truth is None else _pulled(adapter, call, call.inputs, gradients, True)
    return _Known(call, truth, nudged, pulled, pulled_truth, gradients)


def _pulled(
    adapter: Adapter, call: KeptCall, inputs: Sequence[Array], gradients: Sequence[Array | None], float64: bool
) -> Pulled | None:
    try:
        return replay_backward(adapter, call.target, call, inputs, gradients, float64=float64)
    except NoFloat64:
        return None
    except (RuntimeError, ValueError, TypeError):  # nothing there needs a gradient, or the framework has none for it
        return None


def _drawn(array: Array, name: str) -> Array | None:
    if array.dtype.name not in _FLOATS:
        return None
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return random.standard_normal(array.shape).astype(array.dtype)


def _nudged(array: Array, salt: int) -> Array:
    """The array, every element moved by about one roundoff."""
    unit = ROUNDOFF.get(array.dtype.name)
    if unit is None or array.dtype.name not in _FLOATS:
        return array
    random = np.random.default_rng(salt)
    wide = array.astype(np.float64)
    return np.asarray(wide * (1.0 + 2.0 * unit * random.uniform(-1.0, 1.0, array.shape))).astype(array.dtype)


# -- the candidate -----------------------------------------------------------------------------------------------------


def _judged(adapter: Adapter, pair: Pair, mine: _Known, call: KeptCall) -> list[Graft]:
    given = _given(pair, mine.call, call)
    if given is None:
        return []
    outputs = replay(adapter, call.target, call, given)
    wide = None
    if mine.truth is not None:
        try:
            wide = replay(adapter, call.target, call, given, float64=True)
        except NoFloat64:
            wide = None
    places = {name: i for i, name in enumerate(call.output_names)}
    found = []
    for a, b in _paired(pair, "out"):
        i, j = _index(mine.call.output_names, a), places.get(b)
        if i is None or j is None:
            continue
        truth = None if mine.truth is None else mine.truth[i]
        nudged = None if mine.nudged is None else mine.nudged[i]
        made = _graft(
            Phase.FORWARD, a, mine.call.outputs[i], outputs[j], truth, None if wide is None else wide[j], nudged
        )
        if made is not None:
            found.append(made)
    forward = max(found, key=_worth, default=None)
    back = _judged_backward(adapter, pair, mine, call, given)
    return [g for g in (forward, back) if g is not None]


def _judged_backward(
    adapter: Adapter, pair: Pair, mine: _Known, call: KeptCall, given: Sequence[Array]
) -> Graft | None:
    if mine.pulled is None or call.effects:
        return None
    outs = {b: _index(mine.call.output_names, a) for a, b in _paired(pair, "out")}
    gradients: list[Array | None] = []
    for array, name in zip(call.outputs, call.output_names, strict=True):
        at = outs.get(name)
        source = None if at is None else mine.gradients[at]
        fitted = None if source is None else arranged(array, source)
        gradients.append(None if fitted is None else fitted[0].astype(array.dtype))
    if not any(g is not None for g in gradients):
        return None
    pulled = _pulled(adapter, call, given, gradients, False)
    wide = None if pulled is None or mine.pulled_truth is None else _pulled(adapter, call, given, gradients, True)
    if pulled is None:
        return None
    found = []
    for a, b in _paired(pair, "in"):
        i, j = _index(mine.call.input_names, a), _index(call.input_names, b)
        if i is None or j is None or mine.call.params[i] or call.params[j]:
            continue
        own, other = mine.pulled.inputs[i], pulled.inputs[j]
        if own is None or other is None:
            continue
        truth = None if mine.pulled_truth is None else mine.pulled_truth.inputs[i]
        made = _graft(Phase.BACKWARD, a, own, other, truth, None if wide is None else wide.inputs[j], None)
        if made is not None:
            found.append(made)
    return max(found, key=_worth, default=None)


def _given(pair: Pair, mine: KeptCall, call: KeptCall) -> list[Array] | None:
    """The reference's tensors in the places of the candidate's; parameters, and what is no float, stay its own."""
    partner = {b.name: a.name for a, b in pair.slots}
    found = []
    for array, name, param in zip(call.inputs, call.input_names, call.params, strict=True):
        at = _index(mine.input_names, partner.get(name, ""))
        if param is not None or (at is not None and mine.params[at] is not None):
            found.append(array)
            continue
        if at is None:
            if array.dtype.name in _FLOATS and array.size > 1:
                return None
            found.append(array)
            continue
        fitted = arranged(array, mine.inputs[at])
        if fitted is None:
            return None
        found.append(fitted[0].astype(array.dtype))
    return found


def _paired(pair: Pair, side: str) -> list[tuple[str, str]]:
    return [(a.name, b.name) for a, b in pair.slots if a.side == side and b.side == side]


def _index(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if name in names else None


def _worth(made: Graft) -> float:
    return made.rho if made.rho64 is None else made.rho64


def _graft(
    phase: Phase,
    tensor: str,
    a: Array,
    b: Array,
    truth: Array | None,
    wide: Array | None,
    nudged: Array | None,
) -> Graft | None:
    if a.dtype.name not in _FLOATS or a.size == 0:
        return None
    fitted = arranged(a, b)
    if fitted is None:
        return Graft(phase, tensor, math.inf, None, "shapes")
    unit = max(ROUNDOFF[a.dtype.name], ROUNDOFF.get(b.dtype.name, 0.0))
    if truth is not None and truth.dtype == np.float64:
        floor, base = "the reference in float64", truth
    elif nudged is not None:
        floor, base = "inputs moved by a roundoff", a
    else:
        floor, base = "a roundoff", a
    noise = max(_rmse(a, base) if nudged is None else _rmse(nudged, a), unit / 4 * _rms(base))
    if noise == 0.0:
        return None if _rmse(fitted[0], base) == 0.0 else Graft(phase, tensor, math.inf, None, floor)
    rho64 = None
    if wide is not None and truth is not None and wide.dtype == np.float64 and truth.dtype == np.float64:
        other = arranged(truth, wide)
        rho64 = math.inf if other is None else _rmse(other[0], truth) / noise
    return Graft(phase, tensor, _rmse(fitted[0], base) / noise, rho64, floor)


def _rms(array: Array) -> float:
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0


def _rmse(left: Array, right: Array) -> float:
    """Over what is finite on both sides; infinite where one side is NaN or infinite and the other is not the same."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    fine = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.nan_to_num(a[~fine], nan=1e300), np.nan_to_num(b[~fine], nan=1e300)):
        return math.inf
    difference = a[fine] - b[fine]
    return float(np.sqrt(np.mean(difference * difference))) if difference.size else 0.0
