"""Judging calls alone: what every matched call of the candidate makes of the tensors that the reference's was given.

The candidate is run once more, and what each of its calls returns is replaced by what the reference's returned. So each
call is given the reference's tensors, and nothing that happened upstream blurs what it makes of them; and a call that
is given something else shows that the fault lies between it and those that it hangs on. Then, with the reference's x:

    a      what the reference returned          a64    the reference's call on x in float64: the truth
    b      what the candidate returns on x      b64    the candidate's call on x in float64

    noise      the error of a, but at least a quarter of a roundoff
    rho        the error of b, in units of that noise
    rho64      the difference of b64 and a64, in the same units: what stays when the rounding is taken away

A correct port has a rho near 1, but a kernel that is merely inaccurate (a tanh by another polynomial) may have 100. In
float64 that goes away, and a bug stays: rho64 decides where both frameworks have the kernels for it, rho where not.
Most calls agree so well that no float64 is needed to say so, and none is computed for them. What runs between the calls
that have a partner is judged the same way, each side whole in float64. Backward, gradients drawn at random are pulled
back through the one call: (x, dy) to dx and dW.

Two ways to the same numbers (a scale applied before or after a product, a mask of another kind) differ grossly for a
few calls and then no more. So a gross difference is let run on: where it ends by itself, nothing is said of it. Where
it reaches what the network returns, its source is a finding, and the run is made again with that source mended: what is
wrong further on is found then.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from .adapters._registry import adapter_for
from .adapters.base import Adapter, Array
from .adapters.recorded import RecordedAdapter, recorded_call
from .errors import NoFloat64
from .explain.causes import explain_records
from .explain.precision import held_in
from .explain.suspect import Again, Cause, Suspect
from .flow import APPROXIMATED, Flow
from .judge import BUG_FROM, FEW_NUMBERS, NOISE_BELOW, ROUNDOFF, UNKNOWN_BELOW
from .match import FUSED, Matching, Pair, canonical_op
from .metrics import arranged, arrangement
from .records import Kind, ModuleInfo, Phase, Record, Slot, Verdict
from .replaying import KeptCall, Pulled, each_call, replay, replay_backward
from .running import InputPair, as_arguments, unchanged
from .store import Trace

#: Two ways to the same numbers differ by more than this part of their scale; a bug may differ by less.
_GROSS = 0.05
#: Such a difference has ended where no more than this many roundoffs of it are left.
_ENDED = 64.0
#: How often the run is made again with what was found mended.
_ROUNDS = 8
#: Below these numbers may be flushed to zero, or are a few steps of the smallest size apart.
_SMALLEST = {
    "float64": float(np.finfo(np.float64).tiny),
    "float32": float(np.finfo(np.float32).tiny),
    "bfloat16": float(np.finfo(np.float32).tiny),
    "float16": float(np.finfo(np.float16).smallest_subnormal),
}
#: So many roundoffs apart two calls may return the same.
_CLOSE = 8.0
#: More inputs are tried where the first leaves it open.
_MORE_INPUTS = 5

#: Where fewer bits than this are right, and float64 shows the same function, it may be a mode of lower precision.
_FEW_BITS = 16.0

_FLOATS = frozenset(ROUNDOFF)

_CallKey = tuple[Kind, str, str, int]
Explain = Callable[[Suspect], tuple[Cause, ...]]


@dataclass(frozen=True, slots=True)
class Graft:
    """What a call came to when it was judged alone, in the worst of its tensors."""

    phase: Phase  # forward or backward
    tensor: str  # "out", "in.0", or a parameter's name
    rho: float  # 0 where the two are equal to the last bit
    rho64: float | None = None  # None where it was not needed, or a framework has no float64 kernel for the call
    floor: str = ""  # how the noise was found
    bits: float = math.inf  # how many of the bits are right
    precision: str = ""  # the mode that it looks like, where it is the same function with fewer bits
    #: frameworks approximate the function each in its own way, so that an error may be the kernel's
    approximate: bool = False
    #: it is not of a call but of what lies between calls, of which nobody knows what it does
    between: bool = False
    #: what the second arbiter made of it (see `confirming`), where the numbers here leave it open
    decided: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """EXACT, NOISE, PRECISION, BUG or UNDECIDED."""
        found = self._verdict()
        return self.decided if self.decided is not None and found is Verdict.UNDECIDED else found

    def _verdict(self) -> Verdict:
        if self.rho == 0:
            return Verdict.EXACT
        decisive = self.rho if self.rho64 is None else min(self.rho, self.rho64)
        if decisive <= NOISE_BELOW:
            return Verdict.PRECISION if self.precision else Verdict.NOISE
        if self.precision:
            return Verdict.PRECISION
        if self.approximate and self.rho64 is None and decisive < UNKNOWN_BELOW:
            return Verdict.UNDECIDED if self.between and decisive >= BUG_FROM else Verdict.NOISE
        return Verdict.BUG if decisive >= BUG_FROM else Verdict.UNDECIDED


@dataclass(frozen=True, slots=True)
class Between:
    """A fault that lies between calls: what a call is given, or a module returns, is not what it should be."""

    pair: Pair  # the call that is given it, or the module that returns it
    slot: tuple[Slot, Slot]
    graft: Graft
    reference: Array
    candidate: Array
    makers: tuple[Record | None, Record | None]  # what made the tensor on either side
    noise: float  # the root mean square error that is noise


@dataclass(frozen=True, slots=True)
class Grafts:
    """What is known of the calls of a run, by the reference's call id, and of what lies between them."""

    calls: Mapping[int, tuple[Graft, ...]]
    sources: frozenset[int]  # calls that are at fault, of those that are judged to be another function
    between: tuple[Between, ...]
    causes: Mapping[tuple[int, Phase], tuple[Cause, ...]]  # what `explain` said of the calls at fault
    open: Mapping[int, str]  # calls that could not be judged alone, and why
    detours: frozenset[int]  # calls that differ on another way to the same numbers
    settled: bool  # whether what the network returns agrees once all that was found is mended


def grafts_to_json(grafts: Grafts) -> dict[str, Any]:
    """Everything but tensors, in JSON's types: to be read where the traces are."""
    return {
        "calls": [[i, [_graft_to_json(g) for g in found]] for i, found in grafts.calls.items()],
        "sources": sorted(grafts.sources),
        "between": [
            {
                "pair": b.pair.reference.call_id,
                "slot": b.slot[0].name,
                "graft": _graft_to_json(b.graft),
                "noise": b.noise,
            }
            for b in grafts.between
        ],
        "causes": [
            [i, str(phase), [[c.text, c.proven, c.rho] for c in causes]] for (i, phase), causes in grafts.causes.items()
        ],
        "open": [[i, why] for i, why in grafts.open.items()],
        "detours": sorted(grafts.detours),
        "settled": grafts.settled,
    }


def grafts_from_json(read: Mapping[str, Any], traces: tuple[Trace, Trace], matching: Matching) -> Grafts:
    """What `grafts_to_json` wrote of the same two traces."""
    pairs = {p.reference.call_id: p for p in matching.pairs if p.reference.phase is Phase.FORWARD}
    flows = (Flow.of(traces[0]), Flow.of(traces[1]))
    between = []
    for item in read["between"]:
        pair = pairs.get(item["pair"])
        slots = next((s for s in pair.slots if s[0].name == item["slot"]), None) if pair is not None else None
        theirs, own = (None, None) if slots is None else (traces[0].tensor(slots[0]), traces[1].tensor(slots[1]))
        if pair is not None and slots is not None and theirs is not None and own is not None:
            makers = (flows[0].makers.get(slots[0].value), flows[1].makers.get(slots[1].value))
            between.append(Between(pair, slots, _graft_from_json(item["graft"]), theirs, own, makers, item["noise"]))
    return Grafts(
        calls={i: tuple(_graft_from_json(g) for g in found) for i, found in read["calls"]},
        sources=frozenset(read["sources"]),
        between=tuple(between),
        causes={(i, Phase(phase)): tuple(Cause(*c) for c in causes) for i, phase, causes in read["causes"]},
        open=dict(read["open"]),
        detours=frozenset(read["detours"]),
        settled=read["settled"],
    )


def _graft_to_json(made: Graft) -> dict[str, Any]:
    return {**asdict(made), "phase": str(made.phase)}


def _graft_from_json(read: Mapping[str, Any]) -> Graft:
    return Graft(**{**read, "phase": Phase(read["phase"])})


@dataclass(slots=True)
class _State:
    """What the last run showed of a call."""

    given: dict[str, float] = field(default_factory=dict)  # by the reference's slot: how far the inputs are off
    made: float = 0.0  # how far the outputs are off, as they came out
    alone: float = 0.0  # how far the outputs are off on the reference's inputs
    is_open: bool = False  # it differs grossly, and that was let run on


@dataclass(slots=True)
class _Doubt:
    """An output on the reference's inputs that may be more than noise away."""

    slots: tuple[Slot, Slot]
    made: Array  # what the candidate returned, in the reference's shape


@dataclass(slots=True)
class _Known:
    """The reference's call, kept for those that are in doubt, and what it comes to in float64."""

    call: KeptCall
    truth: tuple[Array, ...] | None
    nudged: tuple[Array, ...] | None


@dataclass(slots=True)
class _Back:
    """What gradients drawn at random come to, pulled back through the reference's call."""

    call: KeptCall
    outputs: tuple[str, ...]
    gradients: tuple[Array | None, ...]
    pulled: Pulled
    truth: Pulled | None
    inputs: tuple[str, ...]
    shared: tuple[int, ...]  # by input, equal where one tensor was given in two places
    fixed: frozenset[str]


def graft(
    reference: Any,
    candidate: Any,
    inputs: InputPair,
    traces: tuple[Trace, Trace],
    matching: Matching,
    layers: tuple[frozenset[int], frozenset[int]],
    *,
    backward: bool = True,
    seed: int = 0,
    explain: Explain | None = None,
) -> Grafts:
    """Judge every matched call of the first step alone, forward and backward.

    `reference` is None where only its trace is here: then the candidate's float64 is the truth. `layers` are the calls,
    by side, whose inside is the framework's own business. `explain` is asked about every call that is judged another
    function, while it can still be made again.
    """
    return _Grafter(reference, candidate, inputs, traces, matching, layers, backward, seed, explain).run()


class _Grafter:
    def __init__(
        self,
        reference: Any,
        candidate: Any,
        inputs: InputPair,
        traces: tuple[Trace, Trace],
        matching: Matching,
        layers: tuple[frozenset[int], frozenset[int]],
        backward: bool,
        seed: int,
        explain: Explain | None,
    ) -> None:
        self.models = (reference, candidate)
        self.adapters = (None if reference is None else adapter_for(reference), adapter_for(candidate))
        self.given = (inputs.reference, inputs.candidate)
        self.traces = traces
        self.backward, self.seed, self.explain = backward, seed, explain
        self.flows = (Flow.of(traces[0]), Flow.of(traces[1]))
        forward = [
            p
            for p in matching.pairs
            if p.reference.phase is Phase.FORWARD
            and p.reference.kind is not Kind.STATE
            and p.how != FUSED
            and p.reference.step == 0 == p.candidate.step
            and not (_inside(p.reference, layers[0]) or _inside(p.candidate, layers[1]))
        ]
        self.chance = {p.reference.call_id for p in forward if self._is_chance(p, matching)}
        forward = [p for p in forward if p.reference.call_id not in self.chance]
        holders = self._holders(forward, layers)
        self.pairs = {p.reference.call_id: p for p in forward}
        self.steps = {i: p for i, p in self.pairs.items() if i not in holders}
        self.by_candidate = {_key(p.candidate): p for p in forward}
        self.step_of = self._steps_around()
        infos = [{i.path: i for i in t.manifest.modules} for t in traces]
        self.infos: tuple[Mapping[str, ModuleInfo], Mapping[str, ModuleInfo]] = (infos[0], infos[1])
        self.states: dict[int, _State] = {}
        self.doubts: dict[int, list[_Doubt]] = {}
        self.glue: dict[tuple[int, str], tuple[Pair, tuple[Slot, Slot], Array]] = {}
        self.misled: set[int] = set()  # calls that were given what they should not be, by what lies between
        self.open: dict[int, str] = {}
        self.grafts: dict[int, list[Graft]] = {}
        self.causes: dict[tuple[int, Phase], tuple[Cause, ...]] = {}
        self.known: dict[int, _Known] = {}
        self.back: dict[int, _Back] = {}
        self.outputs: dict[str, float] = {}
        self.gradients = {
            r.call_id: r for r in traces[0].records if r.phase is Phase.BACKWARD and r.kind is not Kind.STATE
        }

    def _is_chance(self, pair: Pair, matching: Matching) -> bool:
        """Whether two calls were paired since they return nearly the same, and another one returns it more nearly: what
        a norm returns is nearly what it is given where that is normal already."""
        a, b = pair.reference, pair.candidate
        slots = [(x, y) for x, y in pair.slots if x.side == y.side == "out"]
        unlike = a.kind is not b.kind or canonical_op(a.type) != canonical_op(b.type)
        if pair.how != "same values" or not unlike or len(slots) != 1:
            return False
        theirs, own = (trace.tensor(slot) for trace, slot in zip(self.traces, slots[0], strict=True))
        unit = ROUNDOFF.get(slots[0][0].meta.dtype)
        if theirs is None or own is None or unit is None:
            return False
        off = _apart(theirs, _fitting(theirs, own))
        if off <= _CLOSE * unit:
            return False
        for record in matching.unmatched_candidate:
            if record.phase is not Phase.FORWARD or record.step != b.step:
                continue
            for slot in record.outputs():
                other = self.traces[1].tensor(slot) if slot.meta.size == slots[0][0].meta.size else None
                if other is not None and _apart(theirs, _fitting(theirs, other)) < off / 2:
                    return True
        return False

    def _holders(self, pairs: Sequence[Pair], layers: tuple[frozenset[int], frozenset[int]]) -> set[int]:
        """The matched modules, by the reference's call, whose inside is matched too."""
        found: set[int] = set()
        for side in (0, 1):
            flow = self.flows[side]
            around: set[int] = set()
            for pair in pairs:
                parent = (pair.reference, pair.candidate)[side].parent_id
                while parent is not None and parent not in around:
                    around.add(parent)
                    parent = flow.ancestors.get(parent)
            found |= {
                p.reference.call_id
                for p in pairs
                if p.reference.kind is Kind.MODULE
                and p.reference.call_id not in layers[0]
                and (p.reference, p.candidate)[side].call_id in around
            }
        return found

    def _steps_around(self) -> dict[int, int]:
        """For every call of the reference within a step, that step."""
        found: dict[int, int] = {}
        for record in self.traces[0].records:
            if record.phase is not Phase.FORWARD:
                continue
            current: int | None = record.call_id
            while current is not None and current not in self.steps:
                current = self.flows[0].ancestors.get(current)
            if current is not None:
                found[record.call_id] = current
        return found

    # -- the rounds ----------------------------------------------------------------------------------------------------

    def run(self) -> Grafts:
        mended: set[int] = set()
        between: dict[tuple[int | None, int | None, str], Between] = {}
        for _ in range(_ROUNDS):
            self._run_candidate(mended)
            sources, faults = self._sources()
            new = sources - mended
            for fault in faults:
                ids = tuple(m.call_id if m is not None else None for m in fault.makers)
                between.setdefault((ids[0], ids[1], fault.slot[0].name if ids == (None, None) else ""), fault)
            if not new:
                break
            mended |= new
        self._learn()
        small = self._judge_glue()
        self._judge()
        self._name_the_coarse()
        made = [
            b
            for b in [*between.values(), *small]
            if not any(g.verdict is Verdict.BUG for g in self.grafts.get(b.pair.reference.call_id, ()))
            or b.pair.reference.call_id in mended
        ]
        bugs = {i for i, found in self.grafts.items() if any(g.verdict is Verdict.BUG for g in found)}
        for number in mended - bugs:  # its inputs do not correspond, so it was not made alone; but they agree
            if number in self.open and self.open[number].endswith("at random"):
                continue
            pair = self.steps[number]
            if math.isinf(self.states[number].made):
                self.grafts[number] = [Graft(Phase.FORWARD, "out", math.inf, None, "shapes differ", 0.0)]
                self.causes[number, Phase.FORWARD] = explain_records(pair)
                bugs.add(number)
            elif number not in self.misled:
                made += self._by_the_run(pair)
        forward = {
            i for i in bugs if any(g.verdict is Verdict.BUG and g.phase is Phase.FORWARD for g in self.grafts[i])
        }
        benign = {i for i in forward if i not in mended and i in self.states and self.states[i].alone > _GROSS}
        return Grafts(
            calls={i: tuple(found) for i, found in self.grafts.items()},
            sources=frozenset(bugs - benign),
            between=tuple(sorted(made, key=lambda b: b.pair.reference.index)),
            causes=self.causes,
            open=self.open,
            detours=frozenset(benign | self.chance),
            settled=bool(self.outputs) and all(off <= _GROSS for off in self.outputs.values()),
        )

    def _by_the_run(self, pair: Pair) -> list[Between]:
        """What a call returned in the run, at which a difference began and which could not be made alone."""
        found = []
        for slots in self._paired(pair, "out"):
            theirs, own = (trace.tensor(slot) for trace, slot in zip(self.traces, slots, strict=True))
            off = 0.0 if theirs is None or own is None else _apart(theirs, _fitting(theirs, own))
            fault = self._fault(pair, slots, off) if off > _GROSS else None
            found += [fault] if fault is not None else []
        return found[:1]

    def _run(
        self,
        side: int,
        tell: Callable[[KeptCall], Any],
        wanted: Iterable[_CallKey],
    ) -> None:
        adapter, model = self.adapters[side], self.models[side]
        assert adapter is not None
        keys = frozenset(wanted)
        args, kwargs = as_arguments(adapter, self.given[side])
        with unchanged(adapter, model):
            adapter.seed(self.seed)
            each_call(adapter, model, args, kwargs, tell, wanted=lambda *key: key in keys)

    # -- the candidate on the reference's tensors ----------------------------------------------------------------------

    def _run_candidate(self, mended: set[int]) -> None:
        self.states, self.doubts, self.glue, self.outputs = {}, {}, {}, {}

        def see(call: KeptCall) -> Sequence[Array | None] | None:
            pair = self.by_candidate[_key(call)]
            if pair.reference.call_id in self.steps:
                return self._see_step(pair, call, pair.reference.call_id in mended)
            self._see_holder(pair, call)
            return None

        self._run(1, see, self.by_candidate)

    def _see_step(self, pair: Pair, call: KeptCall, mended: bool) -> Sequence[Array | None] | None:
        number = pair.reference.call_id
        state = self.states[number] = _State()
        answers = self._answers(pair, call)
        if call.random:
            self._see_random(pair, call)
            return answers
        given = self._given_to(pair, call, state)
        inherited = {n for n, off in state.given.items() if off > 0 and self._inherits(_slot(pair.reference, n))}
        own = {n: off for n, off in state.given.items() if off > 0 and n not in inherited}
        for a, b in self._paired(pair, "in"):
            index = _index(call.input_names, b.name)
            if 0 < own.get(a.name, 0.0) <= _GROSS and index is not None:
                self.glue.setdefault((number, a.name), (pair, (a, b), call.inputs[index]))
        if given is None and self._upstream_is_open(pair.reference):
            inherited.add("")
        outputs = self._alone(pair, call, given, bool(own or inherited))
        state.made = max((_apart(a, b) for _, a, b in self._results(pair, call, call.outputs)), default=0.0)
        if self._of_other_shape(pair, call):
            state.made, state.is_open = math.inf, True
            return None
        if outputs is not None:
            found = self._results(pair, call, outputs)
            state.alone = max((_apart(a, b) for _, a, b in found), default=0.0)
            doubts = [_Doubt(slots, b) for slots, a, b in found if _in_doubt(a, b)]
            if doubts and given is None:  # made by code that goes another way: judged with all of it
                for (a, b), left, right in found:
                    if 0 < _apart(left, right) <= _GROSS:
                        self.glue.setdefault((number, a.name), (pair, (a, b), right))
            elif doubts:
                self.doubts[number] = doubts
            elif found:
                self.grafts[number] = [_screened(found)]
        elsewhere = bool(inherited) or any(off > _GROSS for off in own.values())
        state.is_open = not mended and state.made > (
            _ended([a.dtype.name for a in call.outputs]) if elsewhere else _GROSS
        )
        return None if state.is_open else answers

    def _of_other_shape(self, pair: Pair, call: KeptCall) -> bool:
        """Whether nothing that the two calls return can be held against each other, since all of it differs in size."""
        theirs = [s for s in pair.reference.outputs() if s.meta.dtype in _FLOATS]
        own = [a for a in call.outputs if a.dtype.name in _FLOATS]
        sizes = {s.meta.size for s in theirs} & {a.size for a in own}
        return bool(theirs and own) and not sizes and not any(True for _ in self._paired(pair, "out"))

    def _see_random(self, pair: Pair, call: KeptCall) -> None:
        """A dropout: what it lets through tells its rate, whatever was drawn."""
        number = pair.reference.call_id
        inputs = [a for a in pair.reference.inputs() if a.meta.dtype in _FLOATS]
        outputs = list(self._paired(pair, "out"))
        self.open[number] = "its result is drawn at random"
        if len(inputs) != 1 or len(outputs) != 1 or not call.inputs or len(call.outputs) != 1:
            return
        x, a = self.traces[0].tensor(inputs[0]), self.traces[0].tensor(outputs[0][0])
        kept = [None if x is None or a is None else _survivors(x, a), _survivors(call.inputs[0], call.outputs[0])]
        if kept[0] is None or kept[1] is None or abs(kept[0] - kept[1]) <= 1e-3 * kept[0]:
            return
        del self.open[number]
        rates = [1 - 1 / scale for scale in kept if scale is not None]
        self.grafts[number] = [Graft(Phase.FORWARD, "out", math.inf, None, "the rate of what was dropped", 0.0)]
        text = f"dropout probability p={rates[0]:.3g} / {rates[1]:.3g}"
        if min(rates) == 0:
            side = ("reference", "candidate")[rates[0] == 0]
            text = f"training mode: dropout (p={max(rates):.3g}) is active on the {side}'s side only"
        self.causes[number, Phase.FORWARD] = (Cause(text, proven=True),)

    def _alone(
        self, pair: Pair, call: KeptCall, given: Sequence[Array] | None, differs: bool
    ) -> Sequence[Array] | None:
        """What the call returns on the reference's inputs; None where that cannot be known."""
        adapter, number = self.adapters[1], pair.reference.call_id
        assert adapter is not None
        if not differs:  # also where its inputs are others: then it is judged with all that lies before it
            return call.outputs
        if given is None:
            self.open[number] = "its inputs do not correspond to the reference's"
        elif call.opaque:
            self.open[number] = f"{', '.join(call.opaque)} cannot be given again"
        else:
            try:
                return replay(adapter, call.target, call, given)
            except Exception as error:  # noqa: BLE001 - whatever the call raises on other tensors
                self.open[number] = f"it could not be made again: {type(error).__name__}"
        return None

    def _upstream_is_open(self, record: Record) -> bool:
        return any(self._inherits(s) for s in record.inputs() if s.param is None)

    def _inherits(self, slot: Slot | None) -> bool:
        """Whether what a call is given was made, by whatever lies between, of what differs already."""
        return slot is not None and any(True for _ in self._open_makers(slot.value))

    def _open_makers(self, value: int) -> Iterator[int]:
        """The calls upstream of a value, with nothing that has a partner between, whose difference was let run on."""
        waiting, visited = [value], {value}
        while waiting:
            maker = self.flows[0].makers.get(waiting.pop())
            if maker is None:
                continue
            number = self.step_of.get(maker.call_id)
            if number is not None:
                if number in self.states and self.states[number].is_open:
                    yield number
                continue
            more = {s.value for s in maker.inputs() if s.param is None} - visited
            visited |= more
            waiting += sorted(more)

    def _see_holder(self, pair: Pair, call: KeptCall) -> None:
        """A module whose parts are judged: what it makes of what they return."""
        for (a, b), left, right in self._results(pair, call, call.outputs):
            off = _apart(left, right)
            if pair.reference.path == "":
                self.outputs[a.name] = off
            if 0 < off <= _GROSS and not self._inherits(a):
                self.glue.setdefault((pair.reference.call_id, a.name), (pair, (a, b), right))

    def _given_to(self, pair: Pair, call: KeptCall, state: _State) -> list[Array] | None:
        """The reference's tensors in the places of the candidate's; parameters stay its own.

        How far its own were off is noted by the way.
        """
        partner = {b.name: a for a, b in self._paired(pair, "in")}
        found: list[Array] = []
        fits = True
        same: dict[int, Array] = {}  # one tensor given in two places stays one
        for array, name, param in zip(call.inputs, call.input_names, call.params, strict=True):
            slot = partner.get(name)
            if id(array) in same and slot is not None:
                found.append(same[id(array)])
                state.given[slot.name] = 0.0
                continue
            if param is not None or (slot is not None and slot.param is not None):
                found.append(array)
                continue
            theirs = None if slot is None else self.traces[0].tensor(slot)
            if slot is None or theirs is None:
                # a constant of one number is written as either side likes; what was computed is given
                own = _slot(pair.candidate, name)
                fixed = own is None or own.value in self.flows[1].constants or own.value not in self.flows[1].makers
                fits = fits and not (array.dtype.name in _FLOATS and (array.size > 1 or not fixed))
                found.append(array)
                continue
            fitted = arranged(array, theirs)
            if fitted is None:
                state.given[slot.name] = math.inf
                fits = False
                continue
            state.given[slot.name] = _apart(fitted[0], array)
            same[id(array)] = fitted[0].astype(array.dtype)
            found.append(same[id(array)])
        return found if fits else None

    def _results(
        self, pair: Pair, call: KeptCall, outputs: Sequence[Array]
    ) -> list[tuple[tuple[Slot, Slot], Array, Array]]:
        """Of every output that has a partner: the slots, the reference's values, the candidate's in their shape."""
        found = []
        for a, b in self._paired(pair, "out"):
            index, theirs = _index(call.output_names, b.name), self.traces[0].tensor(a)
            if index is None or theirs is None:
                continue
            own = _fitting(theirs, outputs[index])
            if theirs.dtype.kind in "iu" and any(_tied(x, theirs, own) for x in call.inputs):
                own = theirs  # two equal elements: which of them is named is up to the framework
            found.append(((a, b), theirs, own))
        return found

    def _answers(self, pair: Pair, call: KeptCall) -> list[Array | None]:
        """What the reference's call returned, in the places and shapes of what the candidate's returns."""
        answers: list[Array | None] = [None] * len(call.outputs)
        for a, b in self._paired(pair, "out"):
            index, theirs = _index(call.output_names, b.name), self.traces[0].tensor(a)
            fitted = None if index is None or theirs is None else arranged(call.outputs[index], theirs)
            if index is not None and fitted is not None:
                answers[index] = fitted[0].astype(call.outputs[index].dtype)
        return answers

    def _paired(self, pair: Pair, side: str) -> Iterator[tuple[Slot, Slot]]:
        return ((a, b) for a, b in pair.slots if a.side == side and b.side == side)

    # -- where a difference that reaches the end began -----------------------------------------------------------------

    def _sources(self) -> tuple[set[int], list[Between]]:
        """The calls at which gross differences of what the network returns began, and those that lie between calls."""
        calls: set[int] = set()
        faults: list[Between] = []
        waiting: list[int] = []

        def trace(pair: Pair, slots: tuple[Slot, Slot], off: float) -> bool:
            """Whether a difference came from upstream; else, where it is gross, it is a fault between calls."""
            upstream = list(self._open_makers(slots[0].value))
            waiting.extend(upstream)
            if upstream or off <= _GROSS:
                return bool(upstream)
            self.misled.add(pair.reference.call_id)
            fault = self._fault(*self._returned_by(pair, slots), off)
            if fault is not None:
                faults.append(fault)
            return False

        for pair in self.pairs.values():
            if pair.reference.path == "" and pair.reference.kind is Kind.MODULE:
                for slots in self._paired(pair, "out"):
                    off = self.outputs.get(slots[0].name, 0.0)
                    if off > _ended([slots[0].meta.dtype]):
                        trace(pair, slots, off)
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            pair, given = self.steps[number], self.states[number].given
            differing = [slots for slots in self._paired(pair, "in") if given.get(slots[0].name, 0.0) > 0]
            traced = [trace(pair, slots, given[slots[0].name]) for slots in differing]
            for slot in pair.reference.inputs():
                if slot.param is None and slot.name not in given:  # it has no partner, of that shape perhaps
                    upstream = list(self._open_makers(slot.value))
                    waiting.extend(upstream)
                    traced.append(bool(upstream))
            if not any(traced):
                calls.add(number)
        return calls, faults

    def _returned_by(self, pair: Pair, slots: tuple[Slot, Slot]) -> tuple[Pair, tuple[Slot, Slot]]:
        """The innermost module that returns these two values, where there is one: they are its fault."""
        for holder in self.pairs.values():
            if holder.reference.call_id in self.steps or holder.reference.kind is not Kind.MODULE:
                continue
            for a, b in self._paired(holder, "out"):
                if (a.value, b.value) == (slots[0].value, slots[1].value):
                    return holder, (a, b)
        return pair, slots

    def _fault(self, pair: Pair, slots: tuple[Slot, Slot], off: float) -> Between | None:
        theirs, own = self.traces[0].tensor(slots[0]), self.traces[1].tensor(slots[1])
        makers = (self.flows[0].makers.get(slots[0].value), self.flows[1].makers.get(slots[1].value))
        if theirs is None or own is None:
            return None
        unit = max(ROUNDOFF.get(theirs.dtype.name, 0.0), 2.0**-53)
        made = Graft(Phase.FORWARD, slots[0].name, off / (unit / 4), None, "a roundoff", _bits(off))
        return Between(pair, slots, made, theirs, own, makers, unit / 4 * _rms(theirs))

    # -- the truth -----------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """The reference's calls again, in float64 those that are in doubt; gradients pulled back through all."""
        first, backward = self.adapters[0], self._backward_calls()
        if first is None:
            for number in sorted(backward):
                self._recall_backward(number)
            return
        wanted = {_key(p.reference): i for i, p in self.steps.items() if i in self.doubts or i in backward}

        def learn(call: KeptCall) -> None:
            number = wanted[_key(call)]
            if call.random or call.opaque:
                self.doubts.pop(number, None)
                self.open[number] = "its result is drawn at random" if call.random else "it cannot be given again"
                return
            truth = nudged = None
            if number in self.doubts:
                try:
                    truth = replay(first, call.target, call, call.inputs, float64=True)
                except NoFloat64:
                    moved = [_nudged(a, i) for i, a in enumerate(call.inputs)]
                    nudged = replay(first, call.target, call, moved)
                self.known[number] = _Known(call, truth, nudged)
            if number in backward:
                self._learn_backward(first, number, call)

        if wanted:
            self._run(0, learn, wanted)

    def _recall_backward(self, number: int) -> None:
        """The gradients that the reference's trace holds of a call, where nothing else added to those of its inputs."""
        flow, record = self.flows[0], self.steps[number].reference
        back = self.gradients.get(number)
        if back is None:
            return
        held = {s.name: self.traces[0].tensor(s) for s in back.slots}
        call = recorded_call(record, self.traces[0])
        values = {s.name: s.value for s in record.inputs()}
        users = {n: {self.step_of.get(r.call_id, r.call_id) for r in flow.consumers[v]} for n, v in values.items()}
        once = [values[n] for n in call.input_names]
        pulled = [
            held.get(name) if len(users[name]) == 1 and once.count(values[name]) == 1 else None
            for name in call.input_names
        ]
        gradients = tuple(held.get(name) for name in call.output_names)
        if any(g is not None for g in gradients) and any(p is not None for p in pulled):
            found = Pulled(call.outputs, tuple(pulled), {})
            fixed = frozenset(n for n, p in zip(call.input_names, call.params, strict=True) if p is not None)
            shared = tuple(values[n] for n in call.input_names)
            self.back[number] = _Back(call, call.output_names, gradients, found, None, call.input_names, shared, fixed)

    def _backward_calls(self) -> set[int]:
        """The calls whose backward is to be judged. What holds no weights and is told the same differs in nothing but
        its inputs, and neither side's framework has another gradient for it: of such calls the first is enough."""
        if not self.backward:
            return set()
        chosen: dict[object, int] = {}
        for number, pair in self.steps.items():
            if number in self.open or number not in self.states:
                continue
            key: object = number
            records = (pair.reference, pair.candidate)
            infos = [own.get(r.path) for own, r in zip(self.infos, records, strict=True)]
            plain = all(
                r.kind is Kind.OP or (i is not None and i.builtin and i.kind and not i.params)
                for r, i in zip(records, infos, strict=True)
            )
            if plain and not any(s.param for r in records for s in r.slots):
                told = [
                    (r.type, repr(r.args), repr(i.attributes) if r.kind is Kind.MODULE and i is not None else "")
                    for r, i in zip(records, infos, strict=True)
                ]
                key = repr((told, [[(s.name, s.meta.shape, s.meta.dtype) for s in r.slots] for r in records]))
            chosen.setdefault(key, number)
        return set(chosen.values())

    def _learn_backward(self, first: Adapter, number: int, call: KeptCall) -> None:
        compared = {a.name for a, _ in self._paired(self.steps[number], "out")}
        pair = self.steps[number]
        infos = [own.get(r.path) for own, r in zip(self.infos, (pair.reference, pair.candidate), strict=True)]
        # a norm may contain its activation: where that is at its kink, either side's gradient is as good
        kinked = any(i is not None and "norm" in (i.kind or "") for i in infos)
        gradients = tuple(
            _off_zero(_drawn(a, name), a, kinked) if name in compared else None
            for a, name in zip(call.outputs, call.output_names, strict=True)
        )
        if call.effects or all(g is None for g in gradients):
            return
        pulled = _pulled(first, call, call.inputs, gradients, False)
        if pulled is None:
            return
        truth = _pulled(first, call, call.inputs, gradients, True)
        params = frozenset(n for n, p in zip(call.input_names, call.params, strict=True) if p is not None)
        shared = tuple(id(a) for a in call.inputs)
        self.back[number] = _Back(call, call.output_names, gradients, pulled, truth, call.input_names, shared, params)

    # -- judging -------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """The candidate's calls once more: those in doubt in float64, gradients pulled back through all."""
        second = self.adapters[1]
        assert second is not None
        wanted = {_key(self.steps[i].candidate) for i in {*self.doubts, *self.back} if i in self.steps}

        def judge(call: KeptCall) -> None:
            pair = self.by_candidate[_key(call)]
            number = pair.reference.call_id
            given = self._given_to(pair, call, _State())
            if given is not None:
                if number in self.doubts:
                    self._judge_forward(second, pair, call, given)
                forward = self.grafts.get(number, [])
                if number in self.back and not any(g.verdict in (Verdict.BUG, Verdict.PRECISION) for g in forward):
                    self._judge_backward(second, pair, call, given)

        if wanted:
            self._run(1, judge, wanted)

    def _judge_forward(self, second: Adapter, pair: Pair, call: KeptCall, given: Sequence[Array]) -> None:
        number = pair.reference.call_id
        known = self.known.get(number)
        wide: tuple[Array, ...] | None = None
        asked = False
        worst: tuple[Graft, _Doubt, float, Array | None] | None = None
        is_borrowed = False  # the truth is the candidate's own
        rough, coarse = self._is_approximate(pair), self._coarse(pair)
        for doubt in self.doubts[number]:
            a, b = doubt.slots
            theirs = self.traces[0].tensor(a)
            if theirs is None:
                continue
            truth, borrowed = self._truth(known, a.name), False
            nudged = self._truth(known, a.name, nudged=True)
            made = _measure(Phase.FORWARD, a.name, theirs, doubt.made, truth, None, nudged, rough, coarse)
            if made.rho > NOISE_BELOW or truth is None:
                if not asked:
                    asked, wide = True, _wide(second, call, given)
                index = _index(call.output_names, b.name)
                own = None if wide is None or index is None else wide[index]
                made = _measure(Phase.FORWARD, a.name, theirs, doubt.made, truth, own, nudged, rough, coarse)
                if truth is None and own is not None and own.shape == theirs.shape:
                    truth, borrowed = own, True
            if worst is None or _worth(made) > _worth(worst[0]):
                worst = (made, doubt, _noise(theirs, truth, nudged, coarse), truth)
                is_borrowed = borrowed
        if worst is None:
            return
        made, doubt, noise, truth = worst
        if made.verdict is Verdict.UNDECIDED and known is not None:
            made = self._with_more_inputs(second, pair, known, call, given, made, doubt)
        if made.verdict in (Verdict.BUG, Verdict.UNDECIDED) or (made.rho >= BUG_FROM and made.bits < _FEW_BITS):
            made = self._as_precision(made, doubt, noise, truth, known, call)
        self.grafts[number] = [made]
        if made.verdict is Verdict.BUG and self.explain is not None:
            theirs = self.traces[0].tensor(doubt.slots[0])
            assert theirs is not None
            if is_borrowed and truth is not None:
                # every way of telling the call would be held against what the wrong call is in float64; what is right
                # is what the reference returned, and the noise is the candidate's own
                fitted = arranged(theirs, truth)
                noise, truth = _noise(doubt.made, None if fitted is None else fitted[0], None), None
            base = theirs if truth is None else truth
            again = self._again(call, given, doubt.slots[1].name, base, noise)
            mine = recorded_call(pair.reference, self.traces[0]) if known is None else known.call
            suspect = self._suspect(pair, made, mine, call, given, (theirs, doubt.made, truth), noise, again)
            self.causes[number, Phase.FORWARD] = self.explain(suspect)

    def _is_approximate(self, pair: Pair) -> bool:
        """Whether a call is, or holds, a function that each framework approximates in its own way."""
        record, info = pair.reference, self.infos[0].get(pair.reference.path)
        if record.kind is Kind.OP:
            return canonical_op(record.type) in APPROXIMATED
        kind = (info.kind if info is not None else None) or ""
        return not kind or kind in APPROXIMATED or kind.startswith(("lstm", "gru", "rnn", "transformer", "multihead"))

    def _coarse(self, pair: Pair) -> float:
        """The roundoff of the coarser precision that one of a call's tensors has on the candidate's side; 0 without."""
        units = ((ROUNDOFF.get(a.meta.dtype), ROUNDOFF.get(b.meta.dtype)) for a, b in pair.slots)
        return max((v for u, v in units if u is not None and v is not None and v > u), default=0.0)

    def _name_the_coarse(self) -> None:
        """Calls that return a coarser precision than the reference's although they are given none are of that one."""
        given: list[tuple[int, str]] = []
        made: list[tuple[int, str]] = []
        for number, pair in sorted(self.steps.items()):
            if not self._coarse(pair) or not self.grafts.get(number):
                continue
            coarser = {
                slots[0].side: slots[1].meta.dtype
                for slots in pair.slots
                if ROUNDOFF.get(slots[1].meta.dtype, 0.0) > ROUNDOFF.get(slots[0].meta.dtype, 1.0)
                and not (slots[0].param or slots[1].param)
            }
            if "out" in coarser:
                (given if "in" in coarser else made).append((number, coarser["out"]))
        for number, dtype in made or given[:1]:
            self.grafts[number] = [
                replace(g, precision=dtype)
                if g.phase is Phase.FORWARD and g.verdict in (Verdict.EXACT, Verdict.NOISE) and g.rho > 0
                else g
                for g in self.grafts[number]
            ]

    def _truth(self, known: _Known | None, name: str, nudged: bool = False) -> Array | None:
        arrays = None if known is None else known.nudged if nudged else known.truth
        index = None if known is None else _index(known.call.output_names, name)
        return None if arrays is None or index is None else arrays[index]

    def _as_precision(
        self, made: Graft, doubt: _Doubt, noise: float, truth: Array | None, known: _Known | None, call: KeptCall
    ) -> Graft:
        from .explain.precision import precision_of

        if truth is None or known is None:
            return made
        adapter = self.adapters[0]
        assert adapter is not None
        mode = precision_of(adapter, known.call, doubt.slots[0].name, truth, doubt.made, noise)
        if not mode:
            return made
        return replace(made, precision=mode)

    def _with_more_inputs(
        self,
        second: Adapter,
        pair: Pair,
        known: _Known,
        call: KeptCall,
        given: Sequence[Array],
        made: Graft,
        doubt: _Doubt,
    ) -> Graft:
        """Other inputs of the same kind, where the first leaves it open."""
        first = self.adapters[0]
        assert first is not None
        name = doubt.slots[0].name
        i, j = _index(known.call.output_names, name), _index(call.output_names, doubt.slots[1].name)
        worths = [_worth(made)]
        for salt in range(_MORE_INPUTS):
            shaken = [
                a if p is not None else _shaken(a, n, salt)
                for a, n, p in zip(known.call.inputs, known.call.input_names, known.call.params, strict=True)
            ]
            names = {b.name: a.name for a, b in self._paired(pair, "in")}
            moved = []
            for own, own_name, param, before in zip(call.inputs, call.input_names, call.params, given, strict=True):
                at = _index(known.call.input_names, names.get(own_name, ""))
                fitted = None if at is None or param is not None else arranged(own, shaken[at])
                moved.append(before if fitted is None else fitted[0].astype(own.dtype))
            try:
                a = replay(first, known.call.target, known.call, shaken)
                b = replay(second, call.target, call, moved)
                truth = replay(first, known.call.target, known.call, shaken, float64=True)
                wide = _wide(second, call, moved)
            except Exception:  # noqa: BLE001 - inputs that the call does not take, or no float64: nothing is learnt
                break
            if i is None or j is None:
                break
            again = _measure(
                Phase.FORWARD, name, a[i], _fitting(a[i], b[j]), truth[i], None if wide is None else wide[j], None
            )
            worths.append(_worth(again))
        middle = float(np.exp(np.mean(np.log(np.maximum(worths, 1e-3)))))
        if len(worths) < 3:
            return made
        settled = NOISE_BELOW if middle < math.sqrt(NOISE_BELOW * BUG_FROM) else BUG_FROM
        rho64 = None if made.rho64 is None else settled
        floor = f"{made.floor}, {len(worths)} inputs"
        return replace(made, rho=settled if rho64 is None else made.rho, rho64=rho64, floor=floor)

    def _again(self, call: KeptCall, given: Sequence[Array], name: str, base: Array, noise: float) -> Again:
        """Makes the candidate's call again, and says how far an output is then from `base`, in units of the noise."""
        second, fixed, mine = self.adapters[1], tuple(given), call
        assert second is not None
        index = _index(call.output_names, name)

        def again(
            *,
            call: KeptCall | None = None,
            given: Sequence[Array] | None = None,
            target: Any | None = None,
            change: Callable[[Array], Array] | None = None,
        ) -> float:
            own = mine if call is None else call
            try:
                found = replay(second, own.target if target is None else target, own, given or fixed)
            except Exception:  # noqa: BLE001 - a way that does not run is no way
                return math.inf
            if index is None or index >= len(found):
                return math.inf
            fitted = arranged(base, found[index] if change is None else change(found[index]))
            return math.inf if fitted is None or noise == 0 else _rmse(fitted[0], base) / noise

        return again

    def _suspect(
        self,
        pair: Pair,
        made: Graft,
        known: KeptCall,
        call: KeptCall,
        given: Sequence[Array],
        tensors: tuple[Array, Array, Array | None],
        noise: float,
        again: Again,
    ) -> Suspect:
        first, second = self.adapters
        assert second is not None
        if first is None:
            first = RecordedAdapter(self.traces[0].manifest.framework)
        infos = self.infos[0].get(pair.reference.path), self.infos[1].get(pair.candidate.path)
        return Suspect(
            made.phase,
            made.tensor,
            made.rho,
            (first, second),
            (known, call),
            infos,
            tuple(given),
            *tensors,
            noise,
            again,
        )

    # -- backward ------------------------------------------------------------------------------------------------------

    def _judge_backward(self, second: Adapter, pair: Pair, call: KeptCall, given: Sequence[Array]) -> None:
        number = pair.reference.call_id
        back = self.back[number]
        if call.effects or call.random or self._enters_otherwise(pair):
            return
        gradients = self._gradients_for(pair, call, back)
        pulled = None if gradients is None else _pulled(second, call, given, gradients, False)
        if pulled is None or gradients is None:
            return
        wide: Pulled | None = None
        asked = False
        coarse = self._coarse(pair)
        worst: Graft | None = None
        for name, own, true, other, places in self._gradient_pairs(pair, call, back, pulled):
            if not _in_doubt(own, other):
                continue
            made = _measure(Phase.BACKWARD, name, own, other, true, None, None, self._is_approximate(pair), coarse)
            if made.rho > NOISE_BELOW and (true is not None or self.adapters[0] is None):
                if not asked:
                    asked, wide = True, _pulled(second, call, given, gradients, True)
                found = None if wide is None else places(wide)
                made = _measure(Phase.BACKWARD, name, own, other, true, found, None, self._is_approximate(pair), coarse)
            if worst is None or _worth(made) > _worth(worst):
                worst = made
        if worst is None:
            return
        self.grafts.setdefault(number, []).append(worst)
        if worst.verdict is Verdict.BUG and self.explain is not None:
            self.causes[number, Phase.BACKWARD] = self._explained_backward(pair, call, given, gradients, back, worst)

    def _enters_otherwise(self, pair: Pair) -> bool:
        """Whether one side's call is given a tensor that the other's is not: x - logsumexp(x), and log_softmax(x). What
        goes through that tensor is missing in the gradients of the others."""
        for side, record in enumerate((pair.reference, pair.candidate)):
            known = {slots[side].name for slots in self._paired(pair, "in")}
            for slot in record.inputs():
                if slot.name in known or slot.param is not None or slot.meta.dtype not in _FLOATS:
                    continue
                if slot.value in self.flows[side].makers and slot.value not in self.flows[side].constants:
                    return True
        return False

    def _explained_backward(
        self,
        pair: Pair,
        call: KeptCall,
        given: Sequence[Array],
        gradients: Sequence[Array | None],
        back: _Back,
        made: Graft,
    ) -> tuple[Cause, ...]:
        second = self.adapters[1]
        assert second is not None and self.explain is not None

        def pulled_by(own: KeptCall, target: Any, inputs: Sequence[Array]) -> tuple[Array, Array | None, Array] | None:
            found = replay_backward(second, target, own, inputs, gradients)
            for name, theirs, truth, other, _ in self._gradient_pairs(pair, call, back, found):
                if name == made.tensor:
                    return theirs, truth, other
            return None

        first = pulled_by(call, call.target, given)
        if first is None:
            return ()
        noise = _noise(first[0], first[1], None)

        def again(
            *,
            call: KeptCall | None = None,
            given: Sequence[Array] | None = None,
            target: Any | None = None,
            change: Callable[[Array], Array] | None = None,
        ) -> float:
            own = mine if call is None else call
            try:
                found = pulled_by(own, own.target if target is None else target, given or fixed)
            except Exception:  # noqa: BLE001 - a way that does not run is no way
                return math.inf
            if found is None or noise == 0:
                return math.inf
            base = found[0] if found[1] is None else found[1]
            fitted = arranged(base, found[2] if change is None else change(found[2]))
            return math.inf if fitted is None else _rmse(fitted[0], base) / noise

        mine, fixed = call, tuple(given)
        return self.explain(
            self._suspect(pair, made, back.call, call, given, (first[0], first[2], first[1]), noise, again)
        )

    def _gradients_for(self, pair: Pair, call: KeptCall, back: _Back) -> list[Array | None] | None:
        """The gradients that were drawn for the reference's outputs, laid out as the candidate's are."""
        drawn = dict(zip(back.outputs, back.gradients, strict=True))
        found: list[Array | None] = [None] * len(call.outputs)
        for a, b in self._paired(pair, "out"):
            index, theirs, source = _index(call.output_names, b.name), self.traces[0].tensor(a), drawn.get(a.name)
            if index is None or theirs is None or source is None:
                continue
            lay = arrangement(call.outputs[index], theirs)
            found[index] = None if lay is None else lay[0](source).astype(call.outputs[index].dtype)
        return found if any(g is not None for g in found) else None

    def _gradient_pairs(
        self, pair: Pair, call: KeptCall, back: _Back, pulled: Pulled
    ) -> Iterator[tuple[str, Array, Array | None, Array, Callable[[Pulled], Array | None]]]:
        """Gradients of inputs that correspond: the reference's, its truth, the candidate's, and how to find that again.

        One tensor that was given in two places has one gradient, the sum; where the other side was given two, theirs
        are added up.
        """
        places = []
        for a, b in self._paired(pair, "in"):
            i, j = _index(back.inputs, a.name), _index(call.input_names, b.name)
            theirs = self.traces[0].tensor(a)
            if i is None or j is None or a.name in back.fixed or call.params[j] is not None or theirs is None:
                continue
            lay = arrangement(theirs, call.inputs[j])
            if lay is not None and back.pulled.inputs[i] is not None and pulled.inputs[j] is not None:
                places.append((a.name, i, j, back.shared[i], id(call.inputs[j]), lay[0]))
        while places:
            name, *_ = places[0]
            group, grown = [places.pop(0)], True
            while grown:
                near = [p for p in places if any(p[3] == g[3] or p[4] == g[4] for g in group)]
                grown = bool(near)
                group += near
                places = [p for p in places if p not in near]
            first = {p[3]: p for p in group}.values()
            second = {p[4]: p for p in group}.values()

            def theirs_of(found: Pulled | None, first: Any = first) -> Array | None:
                return None if found is None else _sum([found.inputs[p[1]] for p in first])

            def own_of(found: Pulled, second: Any = second) -> Array | None:
                return _sum([None if (g := found.inputs[p[2]]) is None else p[5](g) for p in second])

            left, right = theirs_of(back.pulled), own_of(pulled)
            if left is not None and right is not None:
                yield name, left, theirs_of(back.truth), right, own_of

    # -- what lies between calls ---------------------------------------------------------------------------------------

    def _judge_glue(self) -> list[Between]:
        """Small differences of what calls are given, held against each side's own float64."""
        doubtful = {
            place: found
            for place, found in self.glue.items()
            if (theirs := self.traces[0].tensor(found[1][0])) is not None
            and _in_doubt(theirs, _fitting(theirs, found[2]))
        }
        if not doubtful:
            return []
        wide = [self._wide_slots(side, doubtful) for side in (0, 1)]
        found = []
        for place, (pair, slots, own) in doubtful.items():
            theirs = self.traces[0].tensor(slots[0])
            assert theirs is not None
            own = _fitting(theirs, own)
            truth, other = wide[0].get(place), wide[1].get(place)
            made = _measure(Phase.FORWARD, slots[0].name, theirs, own, truth, other, None, True)
            made = replace(made, between=True, precision=held_in(truth if truth is not None else theirs, own))
            if made.verdict in (Verdict.BUG, Verdict.PRECISION):
                makers = (self.flows[0].makers.get(slots[0].value), self.flows[1].makers.get(slots[1].value))
                found.append(Between(pair, slots, made, theirs, own, makers, _noise(theirs, truth, None)))
        return found

    def _wide_slots(self, side: int, places: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Array]:
        """What slots hold when all between the calls runs in float64, each call's own results being the reference's."""
        adapter, model = self.adapters[side], self.models[side]
        if adapter is None:
            return {}
        wanted = set(places)
        found: dict[tuple[int, str], Array] = {}
        by_key = {_key((p.reference, p.candidate)[side]): p for p in self.pairs.values()}

        def see(call: KeptCall) -> Sequence[Array | None] | None:
            pair = by_key[_key(call)]
            number = pair.reference.call_id
            for slots in pair.slots:
                if (number, slots[0].name) in wanted:
                    names, arrays = (call.input_names, call.inputs)
                    if slots[0].side == "out":
                        names, arrays = (call.output_names, call.outputs)
                    index = _index(names, slots[side].name)
                    if index is not None and arrays[index].dtype == np.float64:
                        theirs = self.traces[0].tensor(slots[0])
                        fitted = None if theirs is None else arranged(theirs, arrays[index])
                        if fitted is not None:
                            found[number, slots[0].name] = fitted[0]
            state = self.states.get(number)
            if number not in self.steps or (side == 1 and state is not None and state.is_open):
                return None
            if side == 1:
                return self._answers(pair, call)
            answers: list[Array | None] = [None] * len(call.outputs)
            for a, _ in self._paired(pair, "out"):
                index, theirs = _index(call.output_names, a.name), self.traces[0].tensor(a)
                if index is not None and theirs is not None and theirs.shape == call.outputs[index].shape:
                    answers[index] = theirs.astype(call.outputs[index].dtype)
            return answers

        args, kwargs = as_arguments(adapter, self.given[side])
        try:
            with ExitStack() as stack:
                stack.enter_context(unchanged(adapter, model))
                stack.enter_context(adapter.in_float64(model))
                args, kwargs = _widened(adapter, (args, kwargs))
                adapter.seed(self.seed)
                each_call(adapter, model, args, kwargs, see, wanted=lambda *key: key in by_key)
        except Exception:  # noqa: BLE001 - no kernel in float64: the other side's, or a roundoff, is the floor
            return found
        return found


# -- numbers -----------------------------------------------------------------------------------------------------------


def _key(call: Record | KeptCall) -> _CallKey:
    return call.kind, call.path, call.type, call.nth


def _inside(record: Record, layers: frozenset[int]) -> bool:
    return record.kind is Kind.OP and record.parent_id in layers


def _index(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if name in names else None


def _slot(record: Record, name: str) -> Slot | None:
    return next((s for s in record.slots if s.name == name), None)


def _ended(dtypes: Iterable[str]) -> float:
    """The part of its scale by which an output may be off where a gross difference of the inputs has ended."""
    units = [ROUNDOFF[name] for name in dtypes if name in ROUNDOFF]
    return _ENDED * min(max(units, default=0.0), ROUNDOFF["float32"])


def _worth(made: Graft) -> float:
    return made.rho if made.rho64 is None else min(made.rho, made.rho64)


def _sum(arrays: Sequence[Array | None]) -> Array | None:
    """The sum of what has one shape; None where anything is missing."""
    total: Array | None = None
    for array in arrays:
        if array is None or (total is not None and total.shape != array.shape):
            return None
        total = array if total is None else np.asarray(total + array)
    return total


def _fitting(like: Array, array: Array) -> Array:
    fitted = arranged(like, array)
    return array if fitted is None else fitted[0]


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (x.reshape(-1)[:64].tobytes() for x in (a, b))
    return a is b or (first == second and a.tobytes() == b.tobytes())


def _apart(a: Array, b: Array) -> float:
    """How far two tensors are apart, as a part of the first one's scale; infinite where they cannot be compared."""
    if _same(a, b):
        return 0.0
    if a.shape != b.shape:
        return math.inf
    if a.dtype.name not in _FLOATS and b.dtype.name not in _FLOATS:
        return 0.0 if np.array_equal(a, b) else math.inf
    error, scale = _rmse(a, b), _rms(a)
    return 0.0 if error == 0 else error / scale if scale > 0 else math.inf


def _in_doubt(a: Array, b: Array) -> bool:
    """Whether two tensors are so far apart that float64 is needed to say whether it is noise.

    With the error of either of at least a quarter of a roundoff, what is half a roundoff apart has a rho of 3 at most.
    """
    if a.shape != b.shape:
        return True
    unit = max(ROUNDOFF.get(a.dtype.name, 0.0), ROUNDOFF.get(b.dtype.name, 0.0))
    return _apart(a, b) > (NOISE_BELOW - 1) / 4 * unit


def _screened(found: Sequence[tuple[tuple[Slot, Slot], Array, Array]]) -> Graft:
    worst, name, bits = 0.0, found[0][0][0].name, math.inf
    for (a, _), theirs, own in found:
        unit = max(ROUNDOFF.get(theirs.dtype.name, 0.0), ROUNDOFF.get(own.dtype.name, 0.0))
        off = _apart(theirs, own)
        if unit and 4 * off / unit > worst:
            worst, name, bits = 4 * off / unit, a.name, _bits(off)
    return Graft(Phase.FORWARD, name, worst, None, "a roundoff", bits)


def _survivors(x: Array, out: Array) -> float | None:
    """By how much a dropout scales what it lets through; None where it is no dropout."""
    if x.shape != out.shape or x.dtype.name not in _FLOATS:
        return None
    wide, made = x.astype(np.float64).reshape(-1), out.astype(np.float64).reshape(-1)
    alive = (made != 0) & (np.abs(wide) > 1e-6 * _rms(x))
    if alive.sum() < 2:
        return None
    scales = made[alive] / wide[alive]
    middle = float(np.median(scales))
    return middle if middle >= 1 - 1e-6 and np.abs(scales - middle).max() <= 1e-2 * middle else None


def _tied(x: Array, a: Array, b: Array) -> bool:
    """Whether two sets of indices into a tensor name equal elements."""
    if a.shape != b.shape or x.dtype.name not in _FLOATS or not a.size or np.array_equal(a, b):
        return False
    if x.ndim == a.ndim:
        axes = [n for n in range(x.ndim) if _but(x.shape, n) == _but(a.shape, n)]
    else:
        axes = [n for n in range(x.ndim) if _but(x.shape, n) == a.shape]
    if x.ndim == a.ndim >= 2 and not axes and x.shape[:-2] == a.shape[:-2]:  # of a window, counted over the plane
        flat = x.reshape(*x.shape[:-2], -1)
        a, b = (v.reshape(*v.shape[:-2], -1) for v in (a, b))
        return _same_elements(flat, a, b, flat.ndim - 1)
    if x.ndim == a.ndim:
        return any(_same_elements(x, a, b, axis) for axis in axes)
    return any(_same_elements(x, np.expand_dims(a, axis), np.expand_dims(b, axis), axis) for axis in axes)


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _same_elements(x: Array, a: Array, b: Array, axis: int) -> bool:
    if min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= x.shape[axis]:
        return False
    return bool(np.array_equal(np.take_along_axis(x, a, axis), np.take_along_axis(x, b, axis)))


def _bits(off: float) -> float:
    return math.inf if off == 0 else max(0.0, -math.log2(off)) if math.isfinite(off) else 0.0


def _noise(a: Array, truth: Array | None, nudged: Array | None, coarse: float = 0.0) -> float:
    base = a if truth is None else truth
    error = _rmse(a, truth) if truth is not None else _rmse(nudged, a) if nudged is not None else 0.0
    return max(error if math.isfinite(error) else 0.0, _least(base, coarse, a.dtype.name))


def _least(base: Array, coarse: float, *dtypes: str) -> float:
    """The least that is called noise: a part of a roundoff, more where few numbers may be right by luck.

    `coarse` is the roundoff of a coarser precision that one side's call is told or returns its tensors in. What is
    smaller than the smallest normal number may be flushed to zero.
    """
    units = [ROUNDOFF[name] for name in dtypes if name in ROUNDOFF]
    if not units:
        return 0.0
    few = 1.0 + FEW_NUMBERS / math.sqrt(max(base.size, 1))
    smallest = max(_SMALLEST.get(name, 0.0) for name in dtypes)
    return max(max(units) / 4 * few * _rms(base), coarse * _rms(base), smallest)


def _measure(
    phase: Phase,
    tensor: str,
    a: Array,
    b: Array,
    truth: Array | None,
    wide: Array | None,
    nudged: Array | None,
    rough: bool = False,
    coarse: float = 0.0,
) -> Graft:
    if a.shape != b.shape:
        return Graft(phase, tensor, math.inf, None, "shapes differ", 0.0)
    if a.dtype.name not in _FLOATS:
        return Graft(phase, tensor, 0.0 if np.array_equal(a, b) else math.inf, None, "whole numbers are equal or not")
    if b.dtype.name not in _FLOATS or a.size == 0:
        return Graft(phase, tensor, 0.0 if a.size == b.size == 0 else math.inf, None, "dtypes differ")
    dtypes = (a.dtype.name, b.dtype.name)
    if truth is not None and truth.dtype == np.float64 and truth.shape == a.shape:
        floor, base = "the reference in float64", truth
        noise = max(_rmse(a, base), _least(base, coarse, *dtypes))
    elif wide is not None and wide.dtype == np.float64 and (other := arranged(a, wide)) is not None:
        # the other way round: how far the reference is from the candidate's truth, in units of the candidate's error
        floor, base = "the candidate in float64", other[0]
        noise = max(_rmse(b, base), _least(base, coarse, *dtypes))
        rho = _rmse(a, base) / noise if noise > 0 else 0.0 if _rmse(a, base) == 0 else math.inf
        return Graft(phase, tensor, rho, None, floor, _bits(_apart(base, a)), approximate=rough)
    elif nudged is not None:
        floor, base = "inputs moved by a roundoff", a
        noise = max(_rmse(nudged, a), _least(base, coarse, *dtypes))
    else:
        floor, base = "a roundoff", a
        # a whole roundoff: nobody measured it, and sums of products are off by two of them
        noise = max(_least(base, coarse, *dtypes), max(ROUNDOFF[d] for d in dtypes) * _rms(a))
    error = _rmse(b, base)
    if not math.isfinite(noise):
        noise = _least(base, coarse, *dtypes)
    if noise == 0.0:
        return Graft(phase, tensor, 0.0 if error == 0.0 else math.inf, None, floor, math.inf if error == 0 else 0.0)
    rho64 = None
    if wide is not None and truth is not None and wide.dtype == np.float64 and truth.dtype == np.float64:
        fitted = arranged(truth, wide)
        rho64 = math.inf if fitted is None else _rmse(fitted[0], truth) / noise
    return Graft(phase, tensor, error / noise, rho64, floor, _bits(_apart(base, b)), approximate=rough)


def _rms(array: Array) -> float:
    flat = array.astype(np.float64, copy=False).reshape(-1)
    if flat.size and math.isfinite(total := float(np.dot(flat, flat))):  # finite only where all of it is
        return math.sqrt(total / flat.size)
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0


def _rmse(left: Array, right: Array) -> float:
    """Over what is finite on both sides; infinite where one side is NaN or infinite and the other is not the same."""
    a, b = left.astype(np.float64, copy=False), right.astype(np.float64, copy=False)
    if a.size:
        with np.errstate(invalid="ignore", over="ignore"):
            flat = (a - b).reshape(-1)
            total = float(np.dot(flat, flat))
        if math.isfinite(total):  # only where all of it is
            return math.sqrt(total / flat.size)
    fine = np.isfinite(a) & np.isfinite(b)
    if fine.all():
        difference = a - b
    else:
        if not np.array_equal(np.nan_to_num(a[~fine], nan=1e300), np.nan_to_num(b[~fine], nan=1e300)):
            return math.inf
        difference = a[fine] - b[fine]
    return float(np.sqrt(np.mean(difference * difference))) if difference.size else 0.0


def _off_zero(gradient: Array | None, of: Array, asked: bool) -> Array | None:
    """The gradient, without what belongs to exact zeros if that is asked for."""
    if gradient is None:
        return None
    return np.where(of != 0, gradient, np.zeros_like(gradient)) if asked and of.any() else gradient


def _drawn(array: Array, name: str) -> Array | None:
    if array.dtype.name not in _FLOATS:
        return None
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return random.standard_normal(array.shape).astype(array.dtype)


def _nudged(array: Array, salt: int) -> Array:
    """The array, every element moved by about one roundoff."""
    unit = ROUNDOFF.get(array.dtype.name)
    if unit is None:
        return array
    random = np.random.default_rng(salt)
    wide = array.astype(np.float64)
    return np.asarray(wide * (1.0 + 2.0 * unit * random.uniform(-1.0, 1.0, array.shape))).astype(array.dtype)


def _shaken(array: Array, name: str, salt: int) -> Array:
    """Other values of the same kind."""
    if array.dtype.name not in _FLOATS or array.size == 0:
        return array
    random = np.random.default_rng(zlib.crc32(f"{name}{salt}".encode()))
    return np.asarray(array.astype(np.float64) * random.uniform(0.5, 1.5, array.shape)).astype(array.dtype)


def _wide(adapter: Adapter, call: KeptCall, given: Sequence[Array]) -> tuple[Array, ...] | None:
    try:
        return replay(adapter, call.target, call, given, float64=True)
    except NoFloat64:
        return None


def _pulled(
    adapter: Adapter, call: KeptCall, inputs: Sequence[Array], gradients: Sequence[Array | None], float64: bool
) -> Pulled | None:
    try:
        return replay_backward(adapter, call.target, call, inputs, gradients, float64=float64)
    except NoFloat64:
        return None
    except (RuntimeError, ValueError, TypeError):  # nothing there needs a gradient, or the framework has none for it
        return None


def _widened(adapter: Adapter, value: Any) -> Any:
    """The arguments with every floating tensor in float64."""
    from .adapters.base import rebuilt

    if adapter.is_tensor(value):
        array = adapter.to_numpy(value)
        return adapter.from_numpy(array.astype(np.float64)) if array.dtype.name in _FLOATS else value
    return rebuilt(value, lambda v: _widened(adapter, v))
