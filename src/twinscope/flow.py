"""The data flow of a trace: which call made a value, which used it, how deep it lies and how noisy it may be."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from .judge import ROUNDOFF
from .pairing.opnames import canonical_op
from .records import Kind, Phase, Record, Slot
from .store import Trace

#: How many roundings an approximated function stands for.
APPROXIMATION = 4

#: Functions that frameworks approximate each in its own way.
APPROXIMATED = frozenset(
    """tanh sigmoid gelu silu mish softplus erf exp log log_softmax softmax log_sigmoid sin cos tan asin acos atan sinh
    cosh pow elu selu celu""".split()
)

#: Ops whose output is as noisy as their inputs, however small it comes out.
_ADDITIVE = frozenset({"add", "sub", "subtract", "radd", "rsub", "iadd", "isub", "neg"})


@dataclass(slots=True)
class Flow:
    """The data flow of one trace: which call made a value, which used it, how deep it lies."""

    depth: dict[int, int] = field(default_factory=dict)  # by value
    working: dict[int, str] = field(default_factory=dict)  # by value: least precise floating dtype met so far
    floor: dict[int, float] = field(default_factory=dict)  # by value: see `_floor_of`
    total: int = 0
    constants: set[int] = field(default_factory=set)  # values that come neither from the inputs nor from a parameter
    leaf_calls: set[int] = field(default_factory=set)  # calls with no recorded call inside
    consumers: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    makers: dict[int, Record] = field(default_factory=dict)  # by value: the innermost call that made it
    forward: dict[int, Record] = field(default_factory=dict)  # by call
    ancestors: dict[int, int | None] = field(default_factory=dict)  # call -> parent call
    backward: dict[tuple[str, int], Record] = field(default_factory=dict)  # (path, step) of modules

    @classmethod
    def of(cls, trace: Trace) -> Flow:
        flow = cls()
        parents = {r.parent_id for r in trace.records if r.phase is Phase.FORWARD}
        roots = [r for r in trace.records if r.path == "" and r.kind is Kind.MODULE and r.phase is Phase.FORWARD]
        data = {s.value for r in roots for s in r.inputs()}
        for record in trace.records:
            if record.kind is Kind.MODULE and record.phase is Phase.BACKWARD:
                flow.backward.setdefault((record.path, record.step), record)
            if record.phase is not Phase.FORWARD:
                continue
            flow.forward[record.call_id] = record
            flow.ancestors[record.call_id] = record.parent_id
            leaf = record.call_id not in parents
            if leaf:
                flow.leaf_calls.add(record.call_id)
            deep, working = 0, ""
            for slot in record.inputs():
                deep = max(deep, flow.depth.get(slot.value, 0))
                working = _coarser(working, flow.working.get(slot.value, slot.meta.dtype))
                if leaf:
                    flow.consumers[slot.value].append(record)
            fed = not data or record.kind is not Kind.OP or any(s.param or s.value in data for s in record.inputs())
            for slot in record.outputs():
                if fed:
                    data.add(slot.value)
                elif slot.value not in data:
                    flow.constants.add(slot.value)
                flow.makers.setdefault(slot.value, record)
                flow.depth.setdefault(slot.value, deep + weight(record))
                flow.working.setdefault(slot.value, _coarser(working, slot.meta.dtype))
                if slot.value not in flow.floor:
                    flow.floor[slot.value] = _floor_of(record, slot, flow.floor)
                flow.total = max(flow.total, flow.depth[slot.value])
        return flow


def _floor_of(record: Record, slot: Slot, floors: Mapping[int, float]) -> float:
    """The scale below which an output's magnitude may be nothing but cancellation of its inputs' terms.

    A mean of terms around zero, a difference of nearly equal numbers: what is left is as noisy as what went in.
    """
    floor = 0.0
    for source in record.inputs():
        if source.stats is None or source.meta.dtype not in ROUNDOFF or source.meta.size == 0:
            continue
        scale = rms(source) * math.sqrt(ROUNDOFF.get(slot.meta.dtype, 0.0))
        terms = source.meta.size / max(slot.meta.size, 1)
        if terms > 1 and "mean" in record.op:
            scale = max(scale, rms(source) / math.sqrt(terms))
        elif terms > 1 and "sum" in record.op:
            scale = max(scale, rms(source) * math.sqrt(terms))
        elif record.op.strip("_") in _ADDITIVE:
            scale = max(scale, floors.get(source.value, 0.0))
        floor = max(floor, scale)
    return floor


def weight(record: Record) -> int:
    """How many roundings in a row a call stands for: a recurrent layer is as deep as its sequence is long, and a
    function that is approximated may be some fifty roundoffs off (measured: MindSpore's tanh)."""
    if canonical_op(record.type) in APPROXIMATED:
        return APPROXIMATION
    if record.op.upper() in ("LSTM", "GRU", "RNN", "SIMPLERNN", "RNN_TANH", "RNN_RELU"):
        shapes = [s.meta.shape for s in record.inputs() if len(s.meta.shape) == 3]
        return 1 + (max(shapes[0][:2]) if shapes else 1)
    return 1


def _coarser(a: str, b: str) -> str:
    return a if ROUNDOFF.get(a, 0.0) >= ROUNDOFF.get(b, 0.0) else b


def rms(slot: Slot) -> float:
    """The root mean square of a tensor whose statistics were kept."""
    assert slot.stats is not None
    return slot.stats.l2 / math.sqrt(max(slot.meta.size, 1))
