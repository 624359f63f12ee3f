"""Calls judged alone by a tolerance: what each of the candidate's calls makes of the reference's own tensors.

The runs are those of `graft`: what the candidate's calls return is replaced by what the reference's returned, so that
each is given the reference's tensors; a difference that ends by itself is another way to the same numbers, one that
reaches what the network returns has a source. The measure is another one: each call's outputs, and the gradients
that it pulls back of those that the reference's loss gave its outputs, are held against the tolerance that was asked
for. What lies between calls that agree, an op that one side alone has, is held against it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .adapters.base import Adapter, Array
from .comparing import Comparison, numbers_of
from .graft import Between, Grafts, _Back, _Grafter, _pulled
from .judge import Context, Judge, ToleranceJudge
from .judging import _between
from .match import Pair
from .metrics import arranged, compare_arrays
from .records import Kind, Overall, Phase, Record, Slot, TensorMeta, Verdict
from .replaying import KeptCall, Pulled
from .result import SEVERITY, Finding, PairResult, Result, SlotDiff
from .running import InputPair
from .store import Trace
from .weights.layout import to_neutral

#: Rounding that adds up over a run stays below this part of a gradient's scale.
_MORE_THAN_NOISE = 1e-3
#: A call that differs by more than this part of its scale may be on another way to the same numbers.
_GROSS = 0.05


def judged_alone(
    reference: Any,
    candidate: Any,
    inputs: InputPair,
    comparison: Comparison,
    *,
    phases: frozenset[Phase] | None,
    backward: bool,
    seed: int,
) -> Result:
    """The result of a comparison whose calls are judged alone, by the comparison's tolerance, in these phases."""
    judging = _ByTolerance(
        reference,
        candidate,
        inputs,
        (comparison.reference, comparison.candidate),
        comparison.matching,
        comparison.layers,
        backward,
        seed,
        None,
    )
    judging.judge = comparison.judge
    grafts = judging.run()
    return _Told(comparison, judging, grafts, phases).result()


@dataclass(slots=True)
class _Heard:
    """What calls came to alone, by the reference's call; and the tensors of those that differ."""

    forward: dict[int, tuple[SlotDiff, ...]] = field(default_factory=dict)
    backward: dict[int, tuple[SlotDiff, ...]] = field(default_factory=dict)
    arrays: tuple[dict[int, Array], dict[int, Array]] = field(default_factory=lambda: ({}, {}))


class _ByTolerance(_Grafter):
    """Grafts that keep to the tolerance that was asked for, and compute nothing in float64."""

    judge: Judge
    heard: _Heard
    mended: frozenset[int] = frozenset()
    fresh: int

    def run(self) -> Grafts:
        self.heard = _Heard()
        self.fresh = 1 + max((s.value for t in self.traces for r in t.records for s in r.slots), default=0)
        return super().run()

    def _run_candidate(self, mended: set[int]) -> None:
        self.mended = frozenset(mended)
        super()._run_candidate(mended)

    def _alone(
        self, pair: Pair, call: KeptCall, given: Sequence[Array] | None, differs: bool
    ) -> Sequence[Array] | None:
        outputs = super()._alone(pair, call, given, differs)
        if outputs is not None:
            found = self._results(pair, call, outputs)
            self.heard.forward[pair.reference.call_id] = tuple([self._diff(slots, a, b) for slots, a, b in found])
        return outputs

    def _learn(self) -> None:
        self.doubts.clear()  # they are for float64
        super()._learn()

    def _learn_backward(self, first: Adapter, number: int, call: KeptCall) -> None:
        """The gradients that the reference's loss gave, pulled back through the reference's call."""
        record = self.gradients.get(number)
        if record is None or call.effects:
            return
        held = {s.name: self.traces[0].tensor(s) for s in record.slots if s.side == "out"}
        gradients = tuple(held.get(name) for name in call.output_names)
        if all(g is None for g in gradients):
            return
        pulled = _pulled(first, call, call.inputs, gradients, False)
        if pulled is not None:
            params = frozenset(n for n, p in zip(call.input_names, call.params, strict=True) if p is not None)
            shared = tuple(id(a) for a in call.inputs)
            names = call.output_names
            self.back[number] = _Back(call, names, gradients, pulled, None, call.input_names, shared, params)

    def _judge_backward(self, second: Adapter, pair: Pair, call: KeptCall, given: Sequence[Array]) -> None:
        number = pair.reference.call_id
        back = self.back[number]
        gradients = self._gradients_for(pair, call, back)
        if call.effects or call.random or gradients is None:
            return
        pulled = _pulled(second, call, given, gradients, False)
        if pulled is None:
            return
        slots = {a.name: (a, b) for a, b in pair.slots}
        found = [
            self._diff(slots[name], theirs, own)
            for name, theirs, _, own, _ in self._gradient_pairs(pair, call, back, pulled)
        ]
        found += [self._diff(*item) for item in self._parameters(pair, back, pulled)]
        self.heard.backward[number] = tuple(found)

    def _parameters(self, pair: Pair, back: _Back, pulled: Pulled) -> list[tuple[tuple[Slot, Slot], Array, Array]]:
        """Gradients of a layer's own parameters, in the neutral layout."""
        infos = self.infos[0].get(pair.reference.path), self.infos[1].get(pair.candidate.path)
        if pair.reference.kind is not Kind.MODULE or pair.candidate.kind is not Kind.MODULE:
            return []
        roles = [{p.role: p for p in i.params} if i is not None else {} for i in infos]
        found = []
        for role, own in roles[0].items():
            other = roles[1].get(role)
            left = back.pulled.parameters.get(own.name)
            right = None if other is None else pulled.parameters.get(other.name)
            if other is None or left is None or right is None:
                continue
            a, b = to_neutral(own, left), to_neutral(other, right)
            metas = [TensorMeta(tuple(x.shape), x.dtype.name) for x in (a, b)]
            found.append(((Slot(own.name, metas[0], -1), Slot(other.name, metas[1], -1)), a, b))
        return found

    def _judge_glue(self) -> list[Between]:
        """Small differences of what calls are given."""
        found = []
        for (_, name), (pair, slots, own) in self.glue.items():
            theirs = self.traces[0].tensor(slots[0])
            if theirs is None or self._diff(slots, theirs, own).verdict is not Verdict.BUG:
                continue
            fault = self._fault(pair, slots, _relative(theirs, own))
            if fault is not None:
                found.append(replace(fault, graft=replace(fault.graft, tensor=name, between=True)))
        return found

    def _diff(self, slots: tuple[Slot, Slot], left: Array, right: Array) -> SlotDiff:
        diff = _held_against(slots, left, right, self.judge)
        if diff.verdict is not Verdict.BUG:
            return diff
        kept = []
        for slot, array, arrays in zip(slots, (left, right), self.heard.arrays, strict=True):
            arrays[self.fresh] = np.array(array)
            meta = TensorMeta(tuple(array.shape), array.dtype.name)
            kept.append(replace(slot, value=self.fresh, kept=True, meta=meta))
            self.fresh += 1
        return replace(diff, reference=kept[0], candidate=kept[1])


def _held_against(slots: tuple[Slot, Slot], left: Array, right: Array, judge: Judge) -> SlotDiff:
    fitted = arranged(left, right)
    if fitted is None:
        note = f"shapes differ: {left.shape} and {right.shape}"
        return SlotDiff(*slots, Verdict.BUG, "tensors", error=math.inf, note=note)
    tolerance = (judge.atol, judge.rtol) if isinstance(judge, ToleranceJudge) else (0.0, 0.0)
    metrics = compare_arrays(left, fitted[0], atol=tolerance[0], rtol=tolerance[1], equal_nan=True)
    numbers = numbers_of(metrics, left, judge)
    context = Context((left.dtype.name, right.dtype.name), "", 0, 0.0)
    return SlotDiff(
        *slots,
        judge.verdict(numbers, context),
        "tensors",
        error=math.inf if metrics.nonfinite_mismatch else judge.error(numbers, context),
        limit=judge.limit(numbers, context),
        metrics=metrics,
        note=fitted[1],
    )


def _relative(left: Array, right: Array) -> float:
    fitted = arranged(left, right)
    if fitted is None:
        return math.inf
    wide = [a.astype(np.float64) for a in (left, fitted[0])]
    scale = float(np.sqrt(np.mean(np.square(wide[0])))) if left.size else 0.0
    error = float(np.sqrt(np.mean(np.square(wide[0] - wide[1])))) if left.size else 0.0
    return error / scale if scale > 0 else 0.0 if error == 0 else math.inf


class _Told:
    """What is said of calls that were judged alone."""

    def __init__(
        self, comparison: Comparison, judging: _ByTolerance, grafts: Grafts, phases: frozenset[Phase] | None
    ) -> None:
        self.comparison, self.judging, self.grafts, self.phases = comparison, judging, grafts, phases
        self.heard = judging.heard

    def result(self) -> Result:
        whole = self.comparison.result()
        pairs = [made for result in whole.pairs if (made := self._alone(result)) is not None]
        findings = [f for f in whole.findings if f.verdict is Verdict.MISSING]
        for result in pairs:
            record = result.reference
            if record.phase is Phase.WEIGHT and result.verdict is Verdict.BUG:
                findings.append(self.comparison.finding(result, "weights differ before anything ran"))
        findings += self._between()
        findings += [self._finding(r) for r in pairs if self._is_call(r.reference) and r.verdict is Verdict.BUG]
        if not any(f.verdict is Verdict.BUG for f in findings):
            findings += self._backward_between(whole)
        findings += self._open(whole)
        order = {Phase.WEIGHT: 0, Phase.FORWARD: 1, Phase.LOSS: 2, Phase.BACKWARD: 3}
        findings.sort(key=lambda f: order.get(f.phase, 4))
        bugs = [f for f in findings if f.verdict is Verdict.BUG]
        calls = [f for f in bugs if f.phase in (Phase.FORWARD, Phase.BACKWARD)]
        traces = tuple(
            _with(trace, arrays)
            for trace, arrays in zip(
                (self.comparison.reference, self.comparison.candidate), self.heard.arrays, strict=True
            )
        )
        return replace(
            whole,
            verdict=self._overall(findings, pairs),
            findings=tuple(findings),
            pairs=tuple(pairs),
            first_divergence=next(iter(calls or bugs), None),
            notes=(*whole.notes, "every call was judged alone, on the reference's inputs"),
            traces=(traces[0], traces[1]),
        )

    def _wants(self, phase: Phase) -> bool:
        return self.phases is None or phase in self.phases

    def _is_call(self, record: Record) -> bool:
        return record.phase in (Phase.FORWARD, Phase.BACKWARD)

    def _alone(self, result: PairResult) -> PairResult | None:
        """What a call came to alone; None for what is more than one call, or could not be made again."""
        record = result.reference
        if not self._wants(record.phase):
            return None
        if not self._is_call(record):
            return result if record.phase in (Phase.WEIGHT, Phase.LOSS) else None
        heard = self.heard.forward if record.phase is Phase.FORWARD else self.heard.backward
        diffs = heard.get(record.call_id)
        if diffs is None or record.step != 0:
            return None
        worst = next((v for v in SEVERITY if any(d.verdict is v for d in diffs)), Verdict.UNDECIDED)
        if worst is Verdict.BUG and record.phase is Phase.FORWARD and self._is_detour(record.call_id):
            return PairResult(result.pair, Verdict.UNDECIDED, diffs, rejoins=True)
        return PairResult(result.pair, worst, diffs)

    def _is_detour(self, number: int) -> bool:
        """Whether a gross difference ended by itself: what the network returns agrees without it being mended."""
        state = self.judging.states.get(number)
        gross = state is not None and state.alone > _GROSS
        return gross and number not in self.judging.mended and self.grafts.settled

    def _finding(self, result: PairResult) -> Finding:
        of = "outputs" if result.reference.phase is Phase.FORWARD else "gradients that it pulls back"
        return self.comparison.finding(result, f"alone, on the reference's inputs, its {of} differ")

    def _between(self) -> list[Finding]:
        if not self._wants(Phase.FORWARD):
            return []
        forward = {r.reference.call_id: r for r in self.comparison.results if r.reference.phase is Phase.FORWARD}
        found = []
        for fault in self.grafts.between:
            diff = self.judging._diff(fault.slot, fault.reference, fault.candidate)
            if diff.verdict is Verdict.BUG:
                told = _between(self.comparison, forward.get(fault.pair.reference.call_id), fault, self.grafts)
                text = told.message.rpartition(";")[0] or told.message
                shown = PairResult(fault.pair, Verdict.BUG, (diff,))
                found.append(replace(told, message=text, pair=shown))
        return found

    def _backward_between(self, whole: Result) -> list[Finding]:
        """What goes wrong on the way back although every call alone does not: a gradient of the user's own, or none."""
        found = []
        for finding in whole.findings:
            own = finding.phase is Phase.BACKWARD and finding.numbers.get("error", 0.0) > _MORE_THAN_NOISE
            lost = finding.phase is Phase.GRADIENT and finding.pair is None
            if finding.verdict is Verdict.BUG and self._wants(Phase.BACKWARD) and (own or lost):
                found.append(finding)
        return found

    def _open(self, whole: Result) -> list[Finding]:
        """Calls that could not be judged alone, and differ in the run."""
        run = {r.reference.call_id: r for r in whole.pairs if r.reference.phase is Phase.FORWARD}
        found = []
        for number, why in self.grafts.open.items():
            result = run.get(number)
            if result is not None and result.verdict is Verdict.BUG and self._wants(Phase.FORWARD):
                told = self.comparison.finding(result, f"could not be judged alone: {why}")
                found.append(replace(told, verdict=Verdict.UNDECIDED))
        return found

    def _overall(self, findings: Sequence[Finding], pairs: Sequence[PairResult]) -> Overall:
        if any(f.verdict is Verdict.BUG for f in findings):
            return Overall.DIFFERENT
        judged = any(self._is_call(r.reference) and r.diffs for r in pairs)
        lost = any(f.verdict is Verdict.MISSING and f.phase is Phase.WEIGHT for f in findings)
        if lost or not judged or any(f.verdict is Verdict.UNDECIDED for f in findings):
            return Overall.UNDECIDED
        return Overall.SAME


def _with(trace: Trace, arrays: Mapping[int, Array]) -> Trace:
    """A trace with a few more tensors: those that calls came to when they were made alone."""
    return replace(trace, _arrays={**trace._arrays, **arrays})
