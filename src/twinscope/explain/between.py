"""Why a call is given something else although all that it is made of agrees: the fault lies in the code between calls.

There is no call to make again there. What tells is the tensor itself: it may be one that the reference has elsewhere
(two inputs exchanged, a norm left out, a residual taken at another place), the same with a factor, a mask or an order
of its own, or a known function of it; and the ops on the way, of which one side may have more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..adapters.base import Adapter, Array
from ..match import Matching, Pair
from ..metrics import arranged
from ..pairing.opnames import FAMILIES, canonical_op
from ..records import Kind, Phase, Record, Slot
from ..store import Trace
from . import formulas
from .shapes import MEANING, residual_shapes
from .suspect import Cause

#: Most of the reference's other tensors that are looked at, and most ops on the way back.
_MOST_TENSORS, _MOST_OPS = 96, 16
_SAME = 4.0
_LITTLE = 0.01
_LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class _Place:
    """One of the reference's tensors, and whose it is."""

    record: Record
    slot: Slot
    array: Array

    @property
    def words(self) -> str:
        if self.slot.side == "out":
            return f"what {self.record.where} ({self.record.op}) returns"
        return f"what {self.record.where} ({self.record.op}) is given as {self.slot.name}"


def explain_between(
    pair: Pair,
    slots: tuple[Slot, Slot],
    reference: Array,
    candidate: Array,
    noise: float,
    traces: tuple[Trace, Trace],
    matching: Matching,
) -> tuple[Cause, ...]:
    """Why the tensor in these two slots of a pair differs, the best first; none where nothing is known.

    `reference` and `candidate` are the tensor as either side has it, `noise` the root mean square error that is noise.
    A cause is proven where the candidate's is shown to be exactly something else that is known; its `rho` is then what
    is left of the difference to that.
    """
    return tuple(_Between(pair, slots, reference, candidate, noise, traces, matching).causes())


class _Between:
    def __init__(
        self,
        pair: Pair,
        slots: tuple[Slot, Slot],
        reference: Array,
        candidate: Array,
        noise: float,
        traces: tuple[Trace, Trace],
        matching: Matching,
    ) -> None:
        self.pair, self.slots, self.traces, self.matching = pair, slots, traces, matching
        fitted = arranged(reference, candidate)
        self.fits = fitted is not None
        self.a, self.b = reference, candidate if fitted is None else fitted[0]
        self.raw = candidate
        self.noise = max(noise, 2.0**-26 * _rms(reference), 1e-300)
        partnered = ({p.reference.call_id for p in matching.pairs}, {p.candidate.call_id for p in matching.pairs})
        self.chains = tuple(self._chain(side, partnered[side]) for side in (0, 1))

    def causes(self) -> Iterator[Cause]:
        seen: set[str] = set()
        for cause in self._all():
            if cause.text not in seen:
                seen.add(cause.text)
                yield cause
            if cause.proven or len(seen) == 3:
                return

    def _all(self, depth: int = 0) -> Iterator[Cause]:
        yield from self._in_place()
        yield from self._too_many()
        yield from self._elsewhere()
        yield from self._rewired()
        if depth < _MOST_OPS:
            yield from self._before(depth)
        if self.fits:
            small = [self._epsilons(side) for side in (0, 1)]
            if small[0] and small[1] and small[0] != small[1] and _apart(self.a, self.b) <= _LITTLE * _rms(self.a):
                yield from self._ops()  # a little, and small numbers that differ: the shape says no more of it
                return
            yield from self._added()
            yield from self._function()
            yield from self._shape()
        yield from self._ops()

    # -- what is known of the run --------------------------------------------------------------------------------------

    def _records(self, side: int) -> tuple[Record, ...]:
        return tuple(self.traces[side].records)

    def _maker(self, side: int, value: int) -> Record | None:
        for record in self._records(side):
            if record.phase is Phase.FORWARD and any(s.value == value for s in record.outputs()):
                return record
        return None

    def _chain(self, side: int, partnered: set[int]) -> tuple[Record, ...]:
        """The calls without a partner that the tensor was made by, the last first."""
        waiting = [self.slots[side].value]
        found: list[Record] = []
        while waiting and len(found) < _MOST_OPS:
            made = self._maker(side, waiting.pop(0))
            # what a call returns was made by the call itself, partner or not
            itself = not found and self.slots[0].side == "out"
            if made is None or (made.call_id in partnered and not itself) or made in found:
                continue
            found.append(made)
            waiting += [s.value for s in made.inputs() if not s.param]
        return tuple(found)

    def _places(self) -> Iterator[_Place]:
        """The reference's other tensors of this size, those nearest in time first, each once."""
        own = self.pair.reference
        near = sorted(
            (r for r in self._records(0) if r.phase is Phase.FORWARD and r.kind is not Kind.STATE),
            key=lambda r: (r.call_id != own.call_id, abs(r.index - own.index)),
        )
        seen = {self.slots[0].value}
        for record in near:
            for slot in record.slots:
                if slot.value in seen or slot.param or slot.meta.size != self.a.size or "float" not in slot.meta.dtype:
                    continue
                seen.add(slot.value)
                array = self.traces[0].tensor(slot)
                if array is not None:
                    yield _Place(record, slot, array)
                if len(seen) > _MOST_TENSORS:
                    return

    # -- hypotheses ----------------------------------------------------------------------------------------------------

    def _too_many(self) -> Iterator[Cause]:
        """An op that the candidate alone has: what it is given is what the reference has."""
        own = self._maker(1, self.slots[1].value)
        if own is None or own not in self.chains[1] or _is_one_number(self.raw):
            return
        for slot in own.inputs():
            array = None if slot.param or "float" not in slot.meta.dtype else self.traces[1].tensor(slot)
            if array is None or array.shape != self.raw.shape:
                continue
            laid = arranged(self.a, array)
            rho = math.inf if laid is None else _apart(self.a, laid[0]) / self.noise
            gross = _apart(self.a, self.b) / self.noise if self.fits else math.inf
            if rho <= max(_SAME, 1e-3 * gross if math.isfinite(gross) else 0.0):
                here = f"{self.pair.candidate.where}, {self.slots[1].name}"
                yield Cause(f"{here}: {own.where} ({own.op}) is too many: {_kind_of_op(own)}{_args(own)}", True, rho)
                return

    def _elsewhere(self) -> Iterator[Cause]:
        """The candidate's tensor is one that the reference has at another place."""
        best: tuple[float, _Place] | None = None
        for place in self._places():
            laid = arranged(self.raw, place.array)
            if laid is None:
                continue
            rho = _apart(laid[0], self.raw) / self.noise
            if best is None or rho < best[0]:
                best = rho, place
        gross = _apart(self.a, self.b) / self.noise if self.fits else math.inf
        if best is None or best[0] > max(_SAME, 1e-3 * min(gross, 1e300) if math.isfinite(gross) else _SAME):
            return
        rho, place = best
        yield Cause(self._where(place), True, rho)

    def _rewired(self) -> Iterator[Cause]:
        """The data flow alone: what gives it its value is not the partner of what gives the reference's."""
        makers = [self._maker(side, self.slots[side].value) for side in (0, 1)]
        theirs, own = makers
        if theirs is None or own is None:
            return
        partner = {p.candidate.call_id: p.reference for p in self.matching.pairs}.get(own.call_id)
        known = {p.reference.call_id for p in self.matching.pairs}
        if partner is None or theirs.call_id not in known or partner.call_id == theirs.call_id:
            return
        around = {partner.parent_id, theirs.parent_id} & {partner.call_id, theirs.call_id}
        if around or partner.op == theirs.op == "":
            return
        text = (
            f"{self.pair.candidate.where}, {self.slots[1].name}: it is what {own.where} ({own.op}) returns, in the "
            f"reference what {theirs.where} ({theirs.op}) returns: another order, of a residual and its norm perhaps"
        )
        yield Cause(text, False)

    def _added(self) -> Iterator[Cause]:
        """The candidate's tensor is the reference's with another one of it added, or left out: a residual."""
        if not self.fits or self.a.dtype.kind != "f":
            return
        d = self.b.astype(np.float64) - self.a
        gross = _rms(d)
        if not np.isfinite(d).all() or gross <= 100 * self.noise:
            return
        for place in self._places():
            laid = arranged(self.a, place.array)
            if laid is None:
                continue
            for sign, word in ((1.0, "is added to it"), (-1.0, "is not in it")):
                rest = _rms(d - sign * laid[0])
                if rest <= max(_SAME * self.noise, 1e-4 * gross):
                    origin = self._maker(0, place.slot.value)
                    what = place.words if origin is None else f"what {origin.where} ({origin.op}) returns"
                    here = f"{self.pair.candidate.where}, {self.slots[1].name}"
                    text = f"{here}: {what} {word}: a residual at another place, before or after the norm"
                    yield Cause(text, True, rest / self.noise)
                    return

    def _where(self, place: _Place) -> str:
        own, slot = self.pair.reference, self.slots[0]
        maker = self._maker(0, slot.value)
        here = f"{self.pair.candidate.where}, {self.slots[1].name}"
        if place.record.call_id == own.call_id and place.slot.side == "in" == slot.side:
            return f"inputs {slot.name} and {place.slot.name} are swapped (exchanged)"
        if maker is not None and any(s.value == place.slot.value for s in maker.inputs()):
            what = f"the input of {maker.where} ({maker.op}) is used, not its result"
            return f"{here}: {what}: {_kind_of_op(maker)} is left out{_args(maker)}"
        origin = self._maker(0, place.slot.value)
        if maker is not None and origin is not None and any(s.value == slot.value for s in origin.inputs()):
            what = f"the result of {origin.where} ({origin.op}) is used, not its input"
            theirs = self._maker(1, self.slots[1].value)
            if theirs is not None and theirs.type.endswith("_") and not theirs.type.endswith("__"):
                return f"{here}: {what}, which {theirs.op} changed in place"
            return f"{here}: {what}: {_kind_of_op(origin)} too many, or a residual that is taken there"
        first = "the model's own input" if maker is None else f"what {maker.where} ({maker.op}) returns"
        second = place.words if origin is None else f"what {origin.where} ({origin.op}) returns"
        return f"{here}: it is {second}, where the reference has {first}: swapped, or in another order"

    def _before(self, depth: int) -> Iterator[Cause]:
        """Both tensors come from the same op without a partner, which was given something else: look there."""
        makers = [self._maker(side, self.slots[side].value) for side in (0, 1)]
        a, b = makers
        if a is None or b is None or a not in self.chains[0] or b not in self.chains[1]:
            return
        if canonical_op(a.type) != canonical_op(b.type):
            return
        given = [[s for s in m.inputs() if not s.param and "float" in s.meta.dtype] for m in (a, b)]
        if len(given[0]) != 1 or len(given[1]) != 1:
            return
        arrays = [trace.tensor(own[0]) for trace, own in zip(self.traces, given, strict=True)]
        if arrays[0] is None or arrays[1] is None:
            return
        pair = Pair(a, b, "same op", 0.5)
        inner = _Between(pair, (given[0][0], given[1][0]), arrays[0], arrays[1], 0.0, self.traces, self.matching)
        yield from inner._all(depth + 1)

    def _in_place(self) -> Iterator[Cause]:
        """An op that changes what others still use."""
        known = Adapter()
        own = self.pair.candidate
        changes = [
            r
            for r in self._records(1)
            if r.kind is Kind.OP and r.phase is Phase.FORWARD and r.index <= own.index and known.is_inplace(r.type)
        ]
        theirs = {canonical_op(r.type) for r in self._records(0) if r.kind is Kind.OP and known.is_inplace(r.type)}
        for record in reversed(changes):
            if record.path != own.path or canonical_op(record.type) in theirs or not self.fits:
                continue
            values = {s.value for s in record.slots}
            if self.slots[1].value in values or any(s.value in values for s in own.inputs()):
                yield Cause(f"changed in place by {record.where}, while the reference keeps it", False)
                return

    def _function(self) -> Iterator[Cause]:
        """One is a known function of the other: an op that is left out, or done too early."""
        slack = _SAME * self.noise
        for x, y, how in (
            (self.b, self.a, "{} is left out"),
            (self.a, self.b, "{} is done too early, or once too often: another order"),
        ):
            if x.dtype.kind != "f" or x.size < 8:
                continue
            found = [f for f in formulas.matching(x, y, slack) if f.family != "identity"]
            if found:
                made = np.asarray(found[0].function(x.astype(np.float64)))
                yield Cause(
                    f"activation {how.format(found[0].name)}", True, _apart(made.reshape(y.shape), y) / self.noise
                )
                return

    def _shape(self) -> Iterator[Cause]:
        given = {}
        for slot in self.pair.reference.inputs():
            array = None if slot.param or slot.value == self.slots[0].value else self.traces[0].tensor(slot)
            if array is not None:
                given[slot.name] = array
        for shape in residual_shapes(self.a, self.b, self.noise, given)[:2]:
            meaning = MEANING.get(shape.name)
            text = f"{self.slots[0].name}: {shape.text}" + (f"; {meaning}" if meaning else "")
            if shape.name == "scale":
                text += ": a scale is missing, or another"
            sure = shape.complete and (shape.free == 0 or "known" in shape.parameters or shape.name == "mask")
            yield Cause(text, sure, shape.rest if sure else None)

    def _ops(self) -> Iterator[Cause]:
        """What only one side does on the way, and what it does otherwise."""
        names = [[canonical_op(r.type) for r in chain] for chain in self.chains]
        said = []
        for side, word in ((0, "the reference alone has"), (1, "the candidate alone has")):
            more = [
                r
                for r, name in zip(self.chains[side], names[side], strict=True)
                if name not in names[1 - side] and FAMILIES.get(name) != _LAYOUT
            ]
            if more:
                said.append(f"{word} {', '.join(f'{r.op}{_args(r)}' for r in more[:3])}: {_kind_of_op(more[0])}")
        for first in self.chains[0]:
            for second in self.chains[1]:
                if canonical_op(first.type) == canonical_op(second.type):
                    told = _told_apart(first, second)
                    if told:
                        said.append(told)
        small = [self._epsilons(side) for side in (0, 1)]
        if small[0] != small[1] and (small[0] or small[1]):
            shown = [", ".join(f"{v:g}" for v in sorted(own)) or "none" for own in small]
            said.insert(0, f"eps {shown[0]} / {shown[1]} (the small numbers of the ops on the way)")
        if said:
            yield Cause("; ".join(dict.fromkeys(said)), False)

    def _epsilons(self, side: int) -> set[float]:
        """Small numbers that the ops on the way were told: what keeps a denominator from zero."""
        values = (v for record in self.chains[side] for _, v in _scalars(record.args))
        return {float(v) for v in values if isinstance(v, float) and 0 < abs(v) < 0.01}


def _kind_of_op(record: Record) -> str:
    """What an op is there for: "a scale", "a mask", "the normalisation"."""
    if record.kind is Kind.MODULE:
        return f"the {'norm' if 'norm' in record.op.lower() else 'layer'} {record.op}"
    name = canonical_op(record.type)
    family = name if name == "neg" else FAMILIES.get(name, "")
    return {
        "scale": "a scale",
        "shift": "a sum (a residual, a bias or a mask)",
        "fill": "a mask",
        "activation": f"the activation {name}",
        "norm": f"the norm {name}",
        "neg": "another sign",
        _LAYOUT: f"{name}: an order of axes",
    }.get(family, name)


def _args(record: Record) -> str:
    numbers = [f"{k}={v!r}" for k, v in _scalars(record.args)]
    return f" ({', '.join(numbers[:3])})" if numbers else ""


def _scalars(args: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(k, v) for k, v in args.items() if isinstance(v, (int, float, str)) and not isinstance(v, bool)]


def _told_apart(first: Record, second: Record) -> str:
    """Numbers that two ops were told differently."""
    a, b = _scalars(first.args), _scalars(second.args)
    if len(a) != 1 or len(b) != 1 or a[0][1] == b[0][1]:
        return ""
    return f"{first.op} {a[0][1]!r} / {second.op} {b[0][1]!r}: {_kind_of_op(first)}"


def _apart(a: Array, b: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        fine = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(np.nan_to_num(x[~fine], nan=1e300), np.nan_to_num(y[~fine], nan=1e300)):
            return math.inf
        d = x[fine] - y[fine]
    return float(np.sqrt(np.mean(d * d))) if d.size else 0.0


def _is_one_number(array: Array) -> bool:
    return array.size == 0 or bool((array == array.flat[0]).all())


def _rms(array: Array) -> float:
    fine = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(fine * fine))) if fine.size else 0.0
