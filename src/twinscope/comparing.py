"""Comparing two traces: match, measure, judge, and say where they first part. numpy in, values out, no framework.

The rule for "first": a call whose inputs agree and whose outputs do not is where something happened; a call whose
inputs already differ only hands on what it was given. Backward is the same with gradients running the other way.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import patterns
from .adapters.base import Array
from .boundaries import Boundaries
from .cancelling import without_cancelled
from .errors import MatchError, OptionError
from .flow import APPROXIMATION, Flow, rms, weight
from .graft import Grafts
from .hints import Pairs, as_pairs, resolve, skips_of
from .judge import ROUNDOFF, Context, Judge, Mode, Numbers, RoundoffJudge, ToleranceJudge, judge_for
from .judging import as_judged, judged_backward, judged_forward, magnifying, with_causes
from .match import FUSED, Matching, Pair, canonical_op, match
from .metrics import Metrics, arranged, compare_arrays
from .pairing.opnames import op_of_kind
from .records import OUTSIDE, Kind, Overall, ParamInfo, Phase, Record, Slot, Source, Stats, Verdict
from .reproducing import with_material
from .result import SEVERITY, Finding, PairResult, Result, SlotDiff, Unmatched
from .store import Trace
from .weights.layout import to_neutral

#: Ops that hand a gradient on as it is: never to blame for a difference in it.
_PASS_GRADIENT = frozenset(
    """add __add__ __radd__ add_ __iadd__ sub __sub__ subtract reshape view flatten transpose permute t T mT squeeze
    unsqueeze contiguous clone identity detach to float unbind chunk split cat concat stack expand
    __getitem__""".split()
)

#: Ops that may magnify the relative error of what they are given without bound.
_ILL_CONDITIONED = frozenset(
    """sub rsub subtract mean sum var std norm log log2 log10 log1p exp expm1 pow div reciprocal softmax log_softmax
    logsumexp cumsum cumprod prod det inverse sin cos tan cross_entropy nll_loss batch_norm instance_norm floor ceil
    round trunc sign mod remainder fmod floor_divide argmax argmin topk sort where eq ne lt gt le ge grid_sample
    interpolate scatter gather add iadd""".split()
)

#: How many times larger than the error it was given a call's own error must be for the call to be blamed for it. Below
#: that, an error that was just within the limit has merely grown past it.
_JUMP = 4.0

#: Two ways to the same numbers differ by a factor or an arrangement, not by a little.
_GROSS = 0.05

#: The most calls that two ways to the same numbers may stay apart.
_LONGEST_WAY_ROUND = 12
#: The share of a gradient's difference that may be left where it is said to be gone.
_GONE = 0.02


def compare(
    reference: Trace | str | os.PathLike[str],
    candidate: Trace | str | os.PathLike[str],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    mode: str | Mode | None = None,
    mapping: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    phases: Iterable[str | Phase] | None = None,
    fold: bool = True,
    whole: Pairs | None = None,
    ignore: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    judge: Judge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Whether two traces tell of the same computation, and where they first part.

    Without `atol`, `rtol` and `mode` no tolerance is needed: the error allowed is a multiple of the roundoff that grows
    with depth. With them, exactly those are applied: ``mode="strict"`` to every element, ``mode="mean"`` to the mean of
    the absolute error.

    With `fold`, what a framework's own layer does inside is its own business: where both sides call the same kind of
    layer, the layers are compared and not the ops that each framework makes them of. `mapping` pairs module paths by
    hand, patterns allowed (``{"encoder.{i}.q": "blocks.{i}.wq"}``). `whole` pairs them too, and says that what is
    inside, and what they hold, is their own business. What lies at a path of `ignore` is not compared: patterns for
    both sides, or ``{"reference": [...], "candidate": [...]}``; "<outside>" is what ran outside the model, its loss.

    ::

        result = twinscope.compare("runs/torch", "runs/paddle")
        if not result:
            print(result.first_divergence)

    Raises `MatchError` when the two have nothing in common.
    """
    return comparison_of(
        reference, candidate, atol, rtol, mode, mapping, phases, fold, whole, ignore, judge, progress
    ).result()


def comparison_of(
    reference: Trace | str | os.PathLike[str],
    candidate: Trace | str | os.PathLike[str],
    atol: float | None = None,
    rtol: float | None = None,
    mode: str | Mode | None = None,
    mapping: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    phases: Iterable[str | Phase] | None = None,
    fold: bool = True,
    whole: Pairs | None = None,
    ignore: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    judge: Judge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """What `compare` compares, measured and ready to be told of. Options are those of `compare`."""
    for given_trace in (reference, candidate):
        if not isinstance(given_trace, (Trace, str, os.PathLike)):
            raise OptionError(
                f"{type(given_trace).__name__} is neither a trace nor the path of one",
                hint="compare takes what capture made; for two models call twinscope.align",
            )
    first, second = Trace.open(reference), Trace.open(candidate)
    if judge is None:
        judge = judge_for(atol, rtol, mode)
    elif (atol, rtol, mode) != (None, None, None):
        raise OptionError("judge= and a tolerance contradict each other", hint="hand in one of them")
    wanted = wanted_phases(phases)
    return Comparison(first, second, judge, mapping, wanted, fold, whole, ignore).measure(progress)


def wanted_phases(phases: Iterable[str | Phase] | None) -> frozenset[Phase] | None:
    """The phases that a user names; None is all of them."""
    given = (phases,) if isinstance(phases, str) else phases
    return None if given is None else frozenset(Phase.parse(p, "phases") for p in given)


class Comparison:
    """Two traces that are being compared: matched when made, then measured, then told."""

    def __init__(
        self,
        reference: Trace,
        candidate: Trace,
        judge: Judge,
        mapping: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        phases: frozenset[Phase] | None = None,
        fold: bool = True,
        whole: Pairs | None = None,
        ignore: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        matching: Matching | None = None,
    ) -> None:
        self.reference, self.candidate = reference, candidate
        self._given_options = (mapping, phases, fold, whole, ignore)
        closed = _closed(reference, candidate, whole)
        if matching is None:
            hints = [*as_pairs(mapping, "mapping"), *closed.items()]
            left_out = skips_of(ignore, "ignore")
            matching = _without(match(reference, candidate, hints=hints), reference, candidate, closed, left_out)
        self.matching = matching
        self.judge = judge
        self.phases = phases
        layers = _paired_layers(reference, candidate, self.matching) if fold else (frozenset(), frozenset())
        self.layers = _with_whole(layers, self.matching, closed)
        self._module_kinds = {i.path: i.kind for i in reference.manifest.modules}
        self._kinks = _kinks(reference)
        self._given: float | None = None
        self._measured: dict[tuple[int, int], tuple[Metrics, Numbers]] = {}  # by the two values
        self._errors: dict[int, float | None] = {}  # by value: what was measured where it was made or first used
        self._flipped: dict[int, float] = {}  # by step: the error that flips have brought into the backward pass
        self._flips: dict[str, int] = {}  # by place: how many elements flipped
        self._elsewhere: set[int] = set()  # calls of modules that end elsewhere than their partners do
        self.results: list[PairResult] = []
        self.flow = Flow.of(reference)
        self.candidate_flow = Flow.of(candidate)
        self._params = tuple(
            {(info.path, p.name): p for info in trace.manifest.modules for p in info.params}
            for trace in (reference, candidate)
        )

    # -- measuring -----------------------------------------------------------------------------------------------------

    def measure(self, progress: Callable[[int, int], None] | None = None) -> Comparison:
        """Hold every pair of tensors against each other; `MatchError` where there is none."""
        pairs = [
            p
            for p in self.matching.pairs
            if (self.phases is None or p.reference.phase in self.phases)
            and not (inside(p.reference, self.layers[0]) or inside(p.candidate, self.layers[1]))
        ]
        found = []
        for i, pair in enumerate(pairs):
            # parameters that an op was handed are compared once, as weights
            slots = [s for s in pair.slots if pair.reference.kind is Kind.STATE or not (s[0].param or s[1].param)]
            self._given = self._given_to(pair, slots)
            diffs = tuple([self.diff(pair, a, b) for a, b in slots])
            if pair.reference.phase is Phase.FORWARD:
                for diff in diffs:
                    if diff.reference.value in self._errors and not self.is_step(pair.reference):
                        continue  # what returns a value later says less of it than what made it
                    self._errors[diff.reference.value] = diff.error if diff.basis != "none" else None
            found.append(PairResult(pair, _verdict(pair.reference, diffs), diffs))
            if progress is not None:
                progress(i + 1, len(pairs))
        self.results = self._reached_by_flips(found) if self._flipped else found
        if not any(d.basis != "none" for r in self.results for d in r.diffs):
            raise MatchError(
                f"nothing to compare: {len(self.reference.records)} records of {self.reference.manifest.model} and "
                f"{len(self.candidate.records)} of {self.candidate.manifest.model} share no pair with statistics or "
                "tensors",
                hint="are these two runs of the same network? check with `twinscope show`, or give a mapping of paths",
            )
        return self

    def _reached_by_flips(self, results: list[PairResult]) -> list[PairResult]:
        """Results of the backward pass that were left open since flips reach them, decided where they can be.

        A flip reaches a part of what lies upstream of it: all the rest must agree as if there were none. A gradient of
        parameters sums over both parts, and is off by no more than what it was made of.
        """
        self._given = None
        came_back = {
            (r.reference.path, r.reference.step): _error(r, "out")
            for r in results
            if r.reference.phase is Phase.BACKWARD and r.reference.kind is Kind.MODULE
        }
        decided = []
        for result in results:
            record = result.reference
            given = _error(result, "out")
            if record.phase is Phase.GRADIENT:
                given = came_back.get((record.path, record.step), 0.0)
            diffs = tuple(
                replace(d, verdict=Verdict.NOISE)
                if d.verdict is Verdict.UNDECIDED
                and d.basis == "tensors"
                and record.phase in (Phase.BACKWARD, Phase.GRADIENT)
                and (
                    (d.error or 0.0) <= given
                    if record.phase is Phase.GRADIENT
                    else (d.error or 0.0) <= _HANDED * given and self._mostly_agree(result.pair, d)
                )
                else d
                for d in result.diffs
            )
            decided.append(replace(result, verdict=_verdict(record, diffs), diffs=diffs))
        return decided

    def _mostly_agree(self, pair: Pair, diff: SlotDiff) -> bool:
        """Whether nearly all elements that are not zero agree as well as they must where no flip reaches."""
        left, right = self.reference.tensor(diff.reference), self.candidate.tensor(diff.candidate)
        fitted = arranged(left, right) if left is not None and right is not None else None
        if left is None or fitted is None or diff.metrics is None:
            return False
        context = replace(self._context(pair, diff.reference, diff.candidate), handed_on=0.0)
        numbers = numbers_of(diff.metrics, left, self.judge)
        bound = self.judge.limit(numbers, context) * max(numbers.rms_reference, context.floor)
        return _count_beyond(left, fitted[0], bound) <= _REACHED * np.count_nonzero(left)

    def diff(self, pair: Pair, a: Slot, b: Slot) -> SlotDiff:
        context = self._context(pair, a, b)
        left, right = self.reference.tensor(a), self.candidate.tensor(b)
        if left is not None and right is not None:
            if pair.reference.kind is Kind.STATE:
                left = _neutral(self._params[0], pair.reference, a, left)
                right = _neutral(self._params[1], pair.candidate, b, right)
            return self._diff_tensors(pair, a, b, left, right, context)
        if a.stats is not None and b.stats is not None:
            return _diff_stats(a, b, self.judge, context)
        return SlotDiff(a, b, Verdict.UNDECIDED, "none", note="nothing was kept of it")

    def _diff_tensors(self, pair: Pair, a: Slot, b: Slot, left: Array, right: Array, context: Context) -> SlotDiff:
        note = ""
        fitted = arranged(left, right)
        if fitted is None:
            note = f"shapes differ: {_shape(a)} and {_shape(b)}"
            return SlotDiff(a, b, Verdict.BUG, "tensors", error=math.inf, note=note)
        right, note = fitted
        judge = self.judge
        # what one call returns the next is given: two tensors are measured once, however often they meet
        key = None if pair.reference.kind is Kind.STATE else (a.value, b.value)
        known = None if key is None else self._measured.get(key)
        if known is None:
            atol = judge.atol if isinstance(judge, ToleranceJudge) else 0.0
            rtol = judge.rtol if isinstance(judge, ToleranceJudge) else 0.0
            metrics = compare_arrays(left, right, atol=atol, rtol=rtol, equal_nan=True)
            known = metrics, numbers_of(metrics, left, judge)
            if key is not None:
                self._measured[key] = known
        metrics, numbers = known
        verdict = judge.verdict(numbers, context)
        notes = [note] if note else []
        fresh = verdict is Verdict.UNDECIDED and self._may_flip(pair, a) and self._given_back_right(pair)
        if fresh or (verdict is Verdict.BUG and self._may_flip(pair, a)):
            own = replace(context, handed_on=0.0) if fresh else context
            flips = _count_beyond(left, right, judge.limit(numbers, own) * max(numbers.rms_reference, context.floor))
            if flips <= max(1, _FEW * left.size):
                verdict = Verdict.NOISE
                error = judge.error(numbers, context)
                step = pair.reference.step
                self._flipped[step] = max(self._flipped.get(step, 0.0), _SPREAD * error)
                self._flips[pair.reference.where] = max(flips, self._flips.get(pair.reference.where, 0))
                notes.append(f"{flips} elements lie at a kink and fell on the other side of it")
        if a.meta.dtype != b.meta.dtype:
            notes.append(f"dtypes differ: {a.meta.dtype} and {b.meta.dtype}")
        if metrics.nonfinite_mismatch:
            notes.append(_nonfinite(metrics))
        if verdict is Verdict.BUG and metrics.same_other_layout:
            notes.append(f"same values in another layout: {metrics.same_other_layout}")
        return SlotDiff(
            a,
            b,
            verdict,
            "tensors",
            error=math.inf if metrics.nonfinite_mismatch else judge.error(numbers, context),
            limit=judge.limit(numbers, context),
            metrics=metrics,
            note="; ".join(notes),
        )

    def _given_back_right(self, pair: Pair) -> bool:
        """Whether the gradients that a call was handed agree as if there were no flips: what is off is its own."""
        for a, b in pair.slots:
            left, right = self.reference.tensor(a), self.candidate.tensor(b)
            fitted = arranged(left, right) if a.side == "out" and left is not None and right is not None else None
            if left is None or fitted is None:
                continue
            numbers = numbers_of(compare_arrays(left, fitted[0], equal_nan=True), left, self.judge)
            context = replace(self._context(pair, a, b), handed_on=0.0)
            if self.judge.verdict(numbers, context) not in (Verdict.EXACT, Verdict.NOISE):
                return False
        return True

    def _may_flip(self, pair: Pair, slot: Slot) -> bool:
        """Whether a gradient passed a kink: where an activation is nearly zero, or two elements of a window nearly
        equal, noise decides which side the gradient takes."""
        record = pair.reference
        return (
            record.phase is Phase.BACKWARD
            and slot.side == "in"
            and isinstance(self.judge, RoundoffJudge)
            and record.call_id in self._kinks
        )

    def _context(self, pair: Pair, a: Slot, b: Slot) -> Context:
        record, flow = pair.reference, self.flow
        if record.phase is Phase.FORWARD:
            depth = flow.depth.get(a.value, 0)
            working = flow.working.get(a.value, "")
        elif record.phase is Phase.BACKWARD:
            forward = flow.forward.get(record.call_id)
            value = next((s.value for s in forward.slots if s.name == a.name), None) if forward else None
            depth = 2 * flow.total + 1 - (flow.depth.get(value, 0) if value is not None else 0)
            working = a.meta.dtype
        elif record.phase is Phase.GRADIENT:
            depth, working = 2 * flow.total + 1, a.meta.dtype
        elif record.phase is Phase.LOSS:
            depth, working = flow.depth.get(a.value, flow.total + 1), flow.working.get(a.value, a.meta.dtype)
        else:
            depth, working = 0, ""
        backward = record.phase in (Phase.BACKWARD, Phase.GRADIENT)
        flipped = self._flipped.get(record.step, 0.0) if backward else 0.0
        given = self._given if a.side == "out" else None
        dtypes = (a.meta.dtype, b.meta.dtype)
        return Context(dtypes, working, depth, self._floor(record, a), flipped, given, weight(record))

    def _given_to(self, pair: Pair, slots: Sequence[tuple[Slot, Slot]]) -> float | None:
        """The largest error among the inputs of one step of the forward pass; None where not all were compared."""
        record = pair.reference
        kind = _family(self._module_kinds.get(record.path)) if record.kind is Kind.MODULE else canonical_op(record.type)
        steady = self.is_step(record) and kind not in _ILL_CONDITIONED
        if record.phase is not Phase.FORWARD or not steady or weight(record) > APPROXIMATION:
            return None
        inputs = [s for s in record.inputs() if s.param is None and s.meta.dtype in ROUNDOFF]
        if not inputs or pair.how == FUSED:
            return None
        compared = {a.value: (a, b) for a, b in slots}
        worst = 0.0
        for slot in inputs:
            if slot.value not in compared:
                return None
            if slot.value not in self._errors:
                a, b = compared[slot.value]
                diff = self.diff(pair, a, b)
                self._errors[slot.value] = diff.error if diff.basis == "tensors" else None
            error = self._errors[slot.value]
            if error is None or not math.isfinite(error):
                return None
            worst = max(worst, error)
        return worst

    def _floor(self, record: Record, slot: Slot) -> float:
        """The scale of what was added up to make this tensor: where terms cancel, the sum may be nothing but noise.

        The gradient of a bias that the mathematics ignores (the key's in attention, a convolution's before BatchNorm)
        is such a sum; so is the mean of outputs around zero.
        """
        if record.phase is Phase.GRADIENT:
            return self._floor_of_gradient(record, slot)
        return self.flow.floor.get(slot.value, 0.0) if record.phase in (Phase.FORWARD, Phase.LOSS) else 0.0

    def _floor_of_gradient(self, record: Record, slot: Slot) -> float:
        """A parameter's gradient is a sum over all rows that met it, of what came in times what came back."""
        backward = self.flow.backward.get((record.path, record.step))
        forward = self.flow.forward.get(backward.call_id) if backward is not None else None
        param = self._params[0].get((record.path, slot.name))
        if backward is None or forward is None or param is None:
            return 0.0
        came_in = 1.0
        if len(param.meta.shape) > 1:
            floats = [s for s in forward.inputs() if s.stats and s.meta.dtype in ROUNDOFF and s.param is None]
            if not floats:
                return 0.0
            came_in = rms(floats[0])
        channels = max(param.neutral_shape()[0] if param.meta.shape else 1, 1)
        back = [rms(s) * math.sqrt(max(s.meta.size / channels, 1.0)) for s in backward.outputs() if s.stats]
        return came_in * max(back, default=0.0)

    # -- telling -------------------------------------------------------------------------------------------------------

    def result(self, grafts: Grafts | None = None) -> Result:
        """What there is to say; with `grafts`, calls that were judged alone are what they were judged to be."""
        results = self._other_routes(self.results)
        steps = [r.reference.step for r in results if r.verdict is Verdict.BUG]
        # what differs in later steps follows from the first step that differs
        early = [r for r in results if not steps or r.reference.step == min(steps)]
        weights = self._weight_findings(results, early)
        forward = self._forward_findings(early)
        if grafts is not None:
            results, early = as_judged(results, grafts), as_judged(early, grafts)
            results, early = without_cancelled(results, grafts), without_cancelled(early, grafts)
            forward = judged_forward(self, early, forward, grafts)
        known = {f.pair.reference.call_id for f in forward if f.pair is not None}
        random = any(f.verdict is Verdict.UNDECIDED for f in forward)
        findings = [*weights, *forward, *([] if random else self._backward_findings(early, known))]
        if not random and not any(f.verdict is Verdict.BUG for f in forward):
            findings += self._loss_findings(early)
        findings += self._gradient_findings(early, bool(findings) or random)
        findings += self._lost_gradients()
        if not any(f.verdict is Verdict.BUG for f in findings):
            changed = [r for r in early if r.reference.phase is Phase.BUFFER and r.verdict is Verdict.BUG]
            findings += [self.finding(r, "buffers differ after the step") for r in changed]
        if grafts is not None:
            findings = judged_backward(self, early, findings, grafts)
        findings = with_causes(self, findings)
        bad = [r for r in results if r.verdict is Verdict.BUG]
        if grafts is None and bad and not random and not any(f.verdict is Verdict.BUG for f in findings):
            findings.append(self.finding(bad[0], "differs, though nothing upstream of it was seen to"))
        traces = (self.reference, self.candidate)
        findings = with_material(findings, traces, self.matching, (self.flow, self.candidate_flow))
        calls = [f for f in findings if f.phase in (Phase.FORWARD, Phase.BACKWARD) and f.verdict is Verdict.BUG]
        rest = [f for f in findings if f.verdict is Verdict.BUG]
        updates = [f for f in rest if f.phase is Phase.STEP]
        first = next(iter(updates or calls or rest), None)
        findings += self._missing_findings()
        options: dict[str, Any] = {"judge": type(self.judge).__name__}
        if isinstance(self.judge, ToleranceJudge):
            options.update(atol=self.judge.atol, rtol=self.judge.rtol, mode=str(self.judge.mode))
        return Result(
            verdict=self._overall(results, findings),
            findings=tuple(findings),
            pairs=tuple(results),
            unmatched=Unmatched(
                tuple(r for r in self.matching.unmatched_reference if not inside(r, self.layers[0])),
                tuple(r for r in self.matching.unmatched_candidate if not inside(r, self.layers[1])),
            ),
            first_divergence=first,
            reference=self.reference.manifest,
            candidate=self.candidate.manifest,
            matching=self.matching,
            notes=tuple(self._notes(results)),
            options=options,
            traces=(self.reference, self.candidate),
            again=self.result_by,
        )

    def result_by(self, judge: Judge) -> Result:
        """The same two traces, matched as they are, judged by another measure."""
        again = Comparison(self.reference, self.candidate, judge, *self._given_options, matching=self.matching)
        return again.measure().result()

    def _other_routes(self, results: list[PairResult]) -> list[PairResult]:
        """Ops that differ only because the two sides go another way to the same numbers are no bugs.

        A scale applied before or after a product, a transposition done earlier: what differs in between, and grossly,
        agrees again where it is next used, and the difference is gone. A residual sum that swallows a small branch,
        wrong or not, is something else: there the difference is still in the sum, only small beside it.
        """
        used: dict[int, list[SlotDiff]] = defaultdict(list)  # by value: what was said of it where it was used
        for result in results:
            if result.reference.phase is Phase.FORWARD:
                for diff in result.diffs:
                    if diff.reference.side == "in":
                        used[diff.reference.value].append(diff)
        roundabout: set[int] = set()
        for result in results:
            record = result.reference
            differs = record.phase is Phase.FORWARD and self.is_step(record) and result.verdict is Verdict.BUG
            if differs and _error(result, "out") > _GROSS:
                roundabout |= self._way_back(result, used)
        for result in results:  # a constant is wrong only where what is made with it is
            record = result.reference
            op = record.phase is Phase.FORWARD and record.kind is Kind.OP and record.outputs()
            if op and all(s.value in self.flow.constants for s in record.outputs()):
                roundabout.add(record.call_id)
        self._elsewhere = self._other_boundaries(results, roundabout)
        roundabout |= self._elsewhere
        void = self._shared_otherwise(results) | self._of_other_tensors(results)
        return [
            replace(r, verdict=Verdict.UNDECIDED, rejoins=True)
            if r.verdict is Verdict.BUG
            and (r.reference.call_id in roundabout or (r.reference.phase is Phase.BACKWARD and id(r) in void))
            else r
            for r in results
        ]

    def _other_boundaries(self, results: list[PairResult], excused: set[int]) -> set[int]:
        """Calls of modules that return something else although what either side returns is as it should be.

        One side concatenates, or activates, inside the block and the other one outside: the modules differ, the
        computation does not. What the network as a whole returns is never excused.
        """
        sides = [
            Boundaries(side, results, lambda r: self.is_step(r.reference), excused, flow.consumers, flow.ancestors)
            for side, flow in enumerate((self.flow, self.candidate_flow))
        ]
        found = set()
        for result in results:
            record = result.reference
            if record.phase is not Phase.FORWARD or result.verdict is not Verdict.BUG or self.is_step(record):
                continue
            pairs = [
                (d.reference.value, d.candidate.value)
                for d in result.diffs
                if d.reference.side == "out" and d.verdict is Verdict.BUG
            ]
            if record.path != "" and pairs and all(sides[0].settled(a) and sides[1].settled(b) for a, b in pairs):
                found.add(record.call_id)
        return found

    def _of_other_tensors(self, results: list[PairResult]) -> set[int]:
        """Backward results of modules that begin elsewhere than their partners: gradients of other tensors."""
        apart: dict[int, set[str]] = {}  # by call: slots whose values are known to be others
        for result in results:
            record = result.reference
            if record.phase is not Phase.FORWARD or record.path == "" or self.is_step(record):
                continue
            if result.verdict is not Verdict.BUG or record.call_id in self._elsewhere:
                apart[record.call_id] = {d.reference.name for d in result.diffs if d.verdict is Verdict.BUG}
        found = set()
        for result in results:
            names = apart.get(result.reference.call_id)
            bad = {d.reference.name for d in result.diffs if d.verdict is Verdict.BUG}
            if names and result.reference.phase is Phase.BACKWARD and result.verdict is Verdict.BUG and bad <= names:
                found.add(id(result))
        return found

    def _shared_otherwise(self, results: list[PairResult]) -> set[int]:
        """Backward results that differ only because one side shares a tensor where the other one makes a copy.

        A gradient with respect to a tensor is the sum over all its uses. Where one side concatenates a single tensor
        before using it, its uses are counted apart. Further up, where all comes together, the gradients agree again.
        """
        said: dict[int, list[SlotDiff]] = defaultdict(list)  # by forward value
        values: dict[int, dict[str, int]] = {}
        for result in results:
            forward = self.flow.forward.get(result.reference.call_id)
            if result.reference.phase is Phase.BACKWARD and forward is not None:
                values[id(result)] = {s.name: s.value for s in forward.slots}
                for diff in result.diffs:
                    value = values[id(result)].get(diff.reference.name)
                    if value is not None:
                        said[value].append(diff)
        found = set()
        for result in results:
            if result.verdict is not Verdict.BUG or id(result) not in values:
                continue
            bad = [d for d in result.diffs if d.verdict is Verdict.BUG and d.reference.side == "in"]
            if bad and all((d.error or 0.0) > _GROSS for d in bad):
                wrong = [values[id(result)][d.reference.name] for d in bad if d.reference.name in values[id(result)]]
                least = min(map(_absolute, bad))
                if wrong and all(self._agrees_upstream(v, said, _GONE * least) for v in wrong):
                    found.add(id(result))
        return found

    def _agrees_upstream(self, value: int, said: Mapping[int, list[SlotDiff]], limit: float) -> bool:
        """Whether the gradients of all that `value` was made of agree, as far up as it takes; or their difference is
        gone but for `limit`, which something else explains: an activation that noise has flipped."""
        agreed, passed, waiting, seen = False, 0, [value], {value}
        while waiting:
            maker = self.flow.makers.get(waiting.pop())
            if maker is None or passed > _LONGEST_WAY_ROUND:
                return False
            here = False
            for slot in maker.inputs():
                if slot.param is not None:
                    continue
                diffs = said.get(slot.value, [])
                if diffs and all(d.verdict in (Verdict.EXACT, Verdict.NOISE) or _absolute(d) <= limit for d in diffs):
                    here = True
                elif (diffs or slot.value in self.flow.makers) and slot.value not in seen:
                    seen.add(slot.value)
                    waiting.append(slot.value)
            agreed |= here
            passed += not here  # in a long row of concatenations something agrees at each
        return agreed

    def is_step(self, record: Record) -> bool:
        """Whether a call is one step of the computation: an op, or a layer of the framework's own."""
        return record.kind is Kind.OP or record.call_id in self.layers[0]

    def _way_back(self, result: PairResult, used: Mapping[int, list[SlotDiff]]) -> set[int]:
        """The calls from one that differs on until all that was made of its outputs agrees again; none where it never
        does. Where what it made differs and agrees as soon as it is used, the other side went on between."""
        record = result.reference
        made = {d.reference.value: _absolute(d) for d in result.diffs if d.reference.side == "out"}
        passed: set[int] = set()
        waiting = [record]
        while waiting:
            current = waiting.pop()
            if current.call_id in passed:
                continue
            passed.add(current.call_id)
            if len(passed) > _LONGEST_WAY_ROUND:
                return set()
            given = max((_absolute(d) for s in current.inputs() for d in used[s.value]), default=math.inf)
            for slot in current.outputs():
                users = self.flow.consumers[slot.value]
                if not users:
                    return set()  # it leaves the network, or is lost: nothing shows that it agrees again
                agrees = [d for d in used[slot.value] if d.verdict in (Verdict.EXACT, Verdict.NOISE)]
                if len(agrees) == len(used[slot.value]) > 0:
                    before = made.get(slot.value, 0.0) if current is record else given
                    if max(map(_absolute, agrees)) <= 0.01 * before:
                        continue
                    if current is not record:
                        return set()
                waiting += users
        return passed if len(passed) > 1 or any(made.values()) else set()

    def _overall(self, results: list[PairResult], findings: list[Finding]) -> Overall:
        if any(f.verdict is Verdict.BUG for f in findings):
            return Overall.DIFFERENT
        if any(f.verdict in (Verdict.UNDECIDED, Verdict.PRECISION) for f in findings):
            return Overall.UNDECIDED
        if self._gaps(results) or any(f.verdict is Verdict.MISSING and f.phase is Phase.WEIGHT for f in findings):
            return Overall.UNDECIDED
        return Overall.SAME

    def _gaps(self, results: list[PairResult]) -> list[str]:
        """What keeps "the same" from being said although nothing differs."""
        gaps = []
        compared = {(r.reference.step, r.reference.phase) for r in results if any(d.basis != "none" for d in r.diffs)}
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT):
            if self.phases is not None and phase not in self.phases:
                continue
            steps = [
                {r.step for r in t.records if r.phase is phase and r.slots} for t in (self.reference, self.candidate)
            ]
            for step in sorted(steps[0] | steps[1]):
                if (step, phase) not in compared:
                    side = "both sides" if all(step in s for s in steps) else "one side only"
                    gaps.append(f"step {step}: nothing of phase {phase} could be compared (recorded on {side})")
        if self.phases is None or Phase.FORWARD in self.phases:
            gaps += self._output_gaps(results)
        for name, trace in (("reference", self.reference), ("candidate", self.candidate)):
            if not trace.manifest.complete:
                gaps.append(f"the {name}'s trace is incomplete: its run did not end in order")
            elif trace.manifest.error is not None:
                gaps.append(f"the {name}'s run raised {trace.manifest.error}")
            gaps += [f"the {name}'s trace: {n}" for n in trace.manifest.notes]
        flips = sum(d.basis != "none" and d.verdict is Verdict.UNDECIDED for r in results for d in r.diffs)
        if flips:
            gaps.append(f"{flips} tensors differ in places, perhaps by flips of noisy numbers")
        return gaps

    def _output_gaps(self, results: list[PairResult]) -> list[str]:
        """The network's own outputs must be among what was compared."""
        roots = [
            r for r in self.reference.records if r.path == "" and r.kind is Kind.MODULE and r.phase is Phase.FORWARD
        ]
        judged: set[int] = set()
        for result in results:
            if result.reference.phase is Phase.FORWARD:
                judged.update(d.reference.value for d in result.diffs if d.basis != "none")
        gaps = []
        for root in roots:
            floats = [s for s in root.outputs() if s.stats is not None]
            if floats and not any(s.meta.size - s.stats.nan - s.stats.inf for s in floats if s.stats is not None):
                gaps.append(f"step {root.step}: the network's outputs hold no finite number: nothing was shown")
            lost = [s.name for s in root.outputs() if s.value not in judged]
            if lost or not root.outputs():
                gaps.append(
                    f"step {root.step}: outputs of the network were not compared: {', '.join(lost) or 'none recorded'}"
                )
        return gaps

    def _notes(self, results: list[PairResult]) -> list[str]:
        notes = self._gaps(results)
        by_stats = sum(d.basis == "stats" for r in results for d in r.diffs)
        if by_stats:
            notes.append(
                f"{by_stats} tensors were compared by statistics only: a reordering of values would not show "
                "(capture with keep='tensors' to see it)"
            )
        if self._flips:
            places = ", ".join([*list(self._flips)[:3], *(["..."] if len(self._flips) > 3 else [])])
            notes.append(
                f"{sum(self._flips.values())} gradient elements fell on the other side of a kink (at {places}); what "
                "was made of them is judged more loosely"
            )
        magnified = magnifying(results)
        if magnified:
            where = list(dict.fromkeys(r.reference.where for r in magnified))
            named = ", ".join([*where[:3], *(["..."] if len(where) > 3 else [])])
            notes.append(
                f"{len(magnified)} calls make more of the noise that they are given (a choice that falls the other "
                f"way, a difference of nearly equal numbers), and agree on the same inputs: {named}"
            )
        if self._elsewhere:
            ends = list(dict.fromkeys(r.reference.where for r in results if r.reference.call_id in self._elsewhere))
            named = ", ".join([*ends[:3], *(["..."] if len(ends) > 3 else [])])
            notes.append(
                f"{len(ends)} modules end elsewhere than their partners do (at {named}): what they return was not "
                "held against each other, what they are made of and what uses it was"
            )
        reordered = {d.note for r in results for d in r.diffs if d.note.startswith("compared after")}
        notes += sorted(reordered)
        return notes

    def finding(self, result: PairResult, message: str | None = None, phase: Phase | None = None) -> Finding:
        worst = result.worst
        a, b = result.reference, result.candidate
        numbers: dict[str, float] = {}
        text = message or ""
        if worst is not None:
            if worst.error is not None:
                numbers["error"] = worst.error
            if worst.limit is not None:
                numbers["limit"] = worst.limit
            if worst.metrics is not None:
                m = worst.metrics
                numbers.update(max_abs=m.max_abs, rmse=m.rmse, cosine=m.cosine, effective_bits=m.effective_bits)
            text = "; ".join(t for t in (message, describe(worst)) if t)
        return Finding(
            verdict=result.verdict,
            phase=phase or a.phase,
            step=a.step,
            reference=a.where,
            candidate=b.where,
            source=(self.source(a, self.reference), self.source(b, self.candidate)),
            message=text,
            numbers=numbers,
            pair=result,
        )

    def source(self, record: Record, trace: Trace) -> Source | None:
        if record.source is not None:
            return record.source
        if record.phase is Phase.BACKWARD:
            forward = self.flow.forward.get(record.call_id) if trace is self.reference else None
            return forward.source if forward is not None else None
        return next(
            (r.source for r in trace.records if r.path == record.path and r.kind is Kind.MODULE and r.source), None
        )

    def _weight_findings(self, results: list[PairResult], early: list[PairResult]) -> list[Finding]:
        """Weights that differ when the step begins: from the start, or because the update before was another one."""
        found = []
        for result in early:
            record = result.reference
            if record.phase is not Phase.WEIGHT or result.verdict is not Verdict.BUG:
                continue
            before = [
                r.verdict
                for r in results
                if r.reference.path == record.path
                and r.reference.step == record.step - 1
                and r.reference.phase in (Phase.WEIGHT, Phase.GRADIENT)
            ]
            if len(before) > 1 and Verdict.BUG not in before:
                text = (
                    f"weights and gradients of step {record.step - 1} agreed, and its update led apart: the optimizer"
                )
                found.append(self.finding(result, text, Phase.STEP))
            else:
                found.append(self.finding(result, "weights differ before anything ran"))
        return found

    def _forward_findings(self, results: list[PairResult]) -> list[Finding]:
        forward = [r for r in results if r.reference.phase is Phase.FORWARD and r.diffs]
        made = {
            d.reference.value: d
            for r in forward
            for d in r.diffs
            if d.reference.side == "out" and r.reference.call_id not in self._elsewhere
        }
        sources = [
            r
            for r in forward
            if r.verdict is Verdict.BUG
            and _side(r, "out") is Verdict.BUG
            and self._given_verdict(r) is not Verdict.BUG
            and _error(r, "out") > _JUMP * self._given_error(r)
            and not self._inherits(r, made)
        ]
        between = self._between(forward, made)
        order = {id(r): i for i, r in enumerate(forward)}
        found = sorted([*sources, *between.values()], key=lambda r: order[id(r)])
        makers = {id(r): slots for slots, r in between.items()}
        return [
            self.between_finding(r, makers[id(r)]) if id(r) in makers else self._random_or(self._returned(r))
            for r in self._innermost(found)
        ]

    def _returned(self, result: PairResult) -> Finding:
        """The finding of a call; of a module all of whose parts agree, with what made the value that it returns."""
        diff = next((d for d in result.diffs if d.reference.side == "out" and d.verdict is Verdict.BUG), None)
        finding = self.finding(result)
        if diff is None or self.is_step(result.reference):
            return finding
        makers = [
            flow.makers.get(slot.value)
            for flow, slot in zip((self.flow, self.candidate_flow), (diff.reference, diff.candidate), strict=True)
        ]
        a, b = makers
        if a is None or b is None or a.call_id == result.reference.call_id or b.call_id == result.candidate.call_id:
            return finding
        text = f"what it returns was made by {made_in(a)} (reference) and {made_in(b)} (candidate)"
        return replace(finding, message="; ".join(t for t in (finding.message, text) if t))

    def _random_or(self, finding: Finding) -> Finding:
        """Dropout that is switched on cannot agree between frameworks: no bug, and nothing after it is decided."""
        record = finding.pair.reference if finding.pair is not None else None
        if record is None or record.training is False:
            return finding
        kind = self._module_kinds.get(record.path) if record.kind is Kind.MODULE else canonical_op(record.type)
        if kind is None or "dropout" not in kind:
            return finding
        cause = "dropout is active, and the two sides draw other random numbers: compare in eval mode, or with p = 0"
        return replace(finding, verdict=Verdict.UNDECIDED, cause=cause)

    def _data(self, result: PairResult) -> list[SlotDiff]:
        """A pair's inputs without constants: a mask that is written in another way shows in what is made with it."""
        return [d for d in result.diffs if d.reference.side == "in" and d.reference.value not in self.flow.constants]

    def _given_verdict(self, result: PairResult) -> Verdict | None:
        found = [d.verdict for d in self._data(result)]
        return _worst(found) if found else None

    def _given_error(self, result: PairResult) -> float:
        return max((d.error for d in self._data(result) if d.error is not None), default=0.0)

    def _inherits(self, result: PairResult, made: Mapping[int, SlotDiff]) -> bool:
        """Whether an input that could not be compared is known to be wrong from where it was made."""
        compared = {d.reference.value for d in result.diffs}
        rest = (made.get(s.value) for s in result.reference.inputs() if s.value not in compared and s.param is None)
        return any(d is not None and d.verdict is Verdict.BUG for d in rest)

    def _between(self, forward: list[PairResult], made: Mapping[int, SlotDiff]) -> dict[tuple[int, int], PairResult]:
        """Calls whose input differs although what it was made from agrees: the fault lies in between, in code that has
        no partner. By the two values that differ."""
        found: dict[tuple[int, int], PairResult] = {}
        detours = {s.value for r in forward if r.rejoins for s in r.reference.outputs()}
        for result in forward:
            if result.verdict is not Verdict.BUG or result.rejoins:
                continue
            for diff in self._data(result):
                if diff.verdict is not Verdict.BUG:
                    continue
                if diff.reference.value not in made and diff.reference.value not in self.flow.makers:
                    continue  # an input of the network itself
                if self._came_wrong(diff.reference.value, made, detours):
                    continue  # handed on
                found.setdefault((diff.reference.value, diff.candidate.value), result)
        return found

    def _came_wrong(self, value: int, made: Mapping[int, SlotDiff], detours: set[int]) -> bool:
        """Whether a value differed where it was made, or what it was made from by calls without a partner did.

        That a value on another way to the same numbers (`detours`) differs does not explain what is made of it.
        """
        waiting, seen = [value], {value}
        while waiting and len(seen) <= _LONGEST_WAY_ROUND:
            current = waiting.pop()
            if current in made:
                if made[current].verdict is Verdict.BUG and (current == value or current not in detours):
                    return True
                continue
            maker = self.flow.makers.get(current)
            more = {s.value for s in maker.inputs() if s.param is None} - seen if maker is not None else set()
            seen |= more
            waiting += sorted(more)
        return False

    def between_finding(self, result: PairResult, values: tuple[int, int]) -> Finding:
        makers = [flow.makers.get(value) for flow, value in zip((self.flow, self.candidate_flow), values, strict=True)]
        names = [made_in(m) if m is not None else "an input" for m in makers]
        diff = next(d for d in result.diffs if (d.reference.value, d.candidate.value) == values)
        finding = self.finding(result)
        return replace(
            finding,
            source=tuple(  # type: ignore[arg-type]
                m.source if m is not None and m.source is not None else s
                for m, s in zip(makers, finding.source, strict=True)
            ),
            message=(
                f"its input {diff.reference.name} differs although what came before agrees: look between, at "
                f"{names[0]} (reference) and {names[1]} (candidate); {describe(diff)}"
            ),
            numbers={**finding.numbers, "error": diff.error or 0.0, "limit": diff.limit or 0.0},
        )

    def _backward_findings(self, results: list[PairResult], known: set[int]) -> list[Finding]:
        backward = [r for r in results if r.reference.phase is Phase.BACKWARD and r.diffs]
        # a gradient with respect to a value is the sum over all that used the value: a use whose own gradient came in
        # wrong explains it, and a use that hands gradients on unchanged cannot have made it
        by_call = {r.reference.call_id: r for r in backward}
        forwards = {r.reference.call_id: r for r in results if r.reference.phase is Phase.FORWARD}
        explained: set[int] = set()
        for result in backward:
            number = result.reference.call_id
            if (number in self.flow.leaf_calls or number in self.layers[0]) and _side(result, "out") is Verdict.BUG:
                forward = self.flow.forward.get(number)
                explained.update(s.value for s in forward.inputs()) if forward else None
        sources = []
        for result in backward:
            if result.verdict is not Verdict.BUG or result.reference.call_id in known:
                continue
            if _side(result, "in") is not Verdict.BUG or _side(result, "out") is Verdict.BUG:
                continue
            given = max(_error(result, "out"), _error(forwards.get(result.reference.call_id), "in"))
            if _error(result, "in") <= _JUMP * given:
                continue
            forward = self.flow.forward.get(result.reference.call_id)
            if forward is None:
                continue
            names = {d.reference.name for d in result.diffs if d.verdict is Verdict.BUG}
            values = {s.value for s in forward.inputs() if s.name in names}
            if values <= explained:
                continue
            if result.reference.op in _PASS_GRADIENT and any(
                other.call_id in by_call and other.op not in _PASS_GRADIENT
                for value in values
                for other in self.flow.consumers[value]
            ):
                continue
            sources.append(result)
        return [self.finding(r) for r in self._innermost(sources)]

    def _loss_findings(self, results: list[PairResult]) -> list[Finding]:
        """A loss that differs although all that the networks returned agrees: the loss functions do."""
        bad = [r for r in results if r.reference.phase is Phase.LOSS and r.verdict is Verdict.BUG]
        for result in results:
            record = result.reference
            root = record.phase is Phase.FORWARD and record.path == "" and record.kind is Kind.MODULE
            if root and _side(result, "out") not in (Verdict.EXACT, Verdict.NOISE):
                return []  # another precision, or a choice that fell the other way, shows in the outputs already
        return [self.finding(r, "the loss differs although the outputs agree: the two loss functions do") for r in bad]

    def _gradient_findings(self, results: list[PairResult], known: bool) -> list[Finding]:
        bad = [r for r in results if r.reference.phase is Phase.GRADIENT and r.verdict is Verdict.BUG]
        if not bad:
            return []
        outputs = {
            (r.reference.path, r.reference.step): _side(r, "out")
            for r in results
            if r.reference.phase is Phase.BACKWARD and r.reference.kind is Kind.MODULE
        }
        local = [r for r in bad if outputs.get((r.reference.path, r.reference.step)) in (Verdict.EXACT, Verdict.NOISE)]
        if local and not known:
            return [self.finding(r, "gradient of its own parameters") for r in local]
        return [] if known else [self.finding(bad[0], "gradients of parameters differ")]

    def _lost_gradients(self) -> list[Finding]:
        """Parameters that got a gradient on one side only: something is detached, or frozen, on the other one.

        A gradient of nothing but zeros is as good as none: frameworks differ in whether they give one.
        """
        if self.phases is not None and Phase.GRADIENT not in self.phases:
            return []
        ran = [
            {r.step for r in t.records if r.phase is Phase.GRADIENT and r.slots}
            for t in (self.reference, self.candidate)
        ]
        found = self._lost_in_pairs()
        for own, records in enumerate((self.matching.unmatched_reference, self.matching.unmatched_candidate)):
            side, other = (("reference", "candidate"), ("candidate", "reference"))[own]
            partners = {(m.reference, m.candidate)[own]: (m.candidate, m.reference)[own] for m in self.matching.modules}
            for record in records:
                partner = partners.get(record.path)
                real = any(s.stats is None or s.stats.l2 > 0 for s in record.slots)
                if record.phase is not Phase.GRADIENT or partner is None or not real or record.step not in ran[1 - own]:
                    continue
                source = self.source(record, self.reference if own == 0 else self.candidate)
                found.append(
                    Finding(
                        verdict=Verdict.BUG,
                        phase=Phase.GRADIENT,
                        step=record.step,
                        reference=partner if own else record.path,
                        candidate=record.path if own else partner,
                        source=(None, source) if own else (source, None),
                        message=f"its parameters got a gradient on the {side}'s side only: on the {other}'s side they "
                        "are frozen, or something between them and the loss is detached",
                        cause=self._all_frozen(1 - own, partner),
                    )
                )
        # the gradient comes from the end of the network: the first one lost is the last to be seen
        last = {r.path: r.index for r in self.reference.records if r.phase is Phase.FORWARD}
        found.sort(key=lambda f: last.get((f.reference or "").replace("(root)", ""), -1), reverse=True)
        cut = next((f for f in found if f.cause is None), None)
        text = "no gradient reaches it: detached (detach, stop_gradient, no_grad) between it and the loss (suspected)"
        return [replace(f, cause=text) if f is cut else f for f in found if f.cause is not None or f is cut]

    def _lost_in_pairs(self) -> list[Finding]:
        """Of modules that got gradients on both sides: those parameters that got one on one side only."""
        found = []
        for pair in self.matching.pairs:
            a, b = pair.reference, pair.candidate
            if a.phase is not Phase.GRADIENT or pair.how == FUSED:
                continue
            partners = next(
                (m.params for m in self.matching.modules if (m.reference, m.candidate) == (a.path, b.path)), ()
            )
            for side, slot in pair.unmatched_slots:
                own = side == "candidate"
                real = slot.stats is None or slot.stats.l2 > 0
                partner = next(((p, q)[not own] for p, q, _ in partners if (p, q)[own] == slot.name), None)
                if partner is None or not real:
                    continue
                other = ("candidate", "reference")[own]
                found.append(
                    Finding(
                        verdict=Verdict.BUG,
                        phase=Phase.GRADIENT,
                        step=a.step,
                        reference=a.where,
                        candidate=b.where,
                        source=(self.source(a, self.reference), self.source(b, self.candidate)),
                        message=f"{slot.name} got a gradient on the {side}'s side only: on the {other}'s side "
                        f"{partner} is frozen, or detached",
                        cause=self._frozen(int(not own), (b if not own else a).path, partner),
                    )
                )
        return found

    def _frozen(self, own: int, path: str, name: str) -> str | None:
        """The cause of a gradient that is missing on one side, where the parameter is not trained there."""
        param = self._params[own].get((path, name))
        side = ("reference", "candidate")[own]
        trained = "True / False" if own else "False / True"
        return None if param is None or param.trainable else f"frozen on the {side}'s side (trainable {trained})"

    def _all_frozen(self, side: int, path: str) -> str | None:
        held = [p for (where, _), p in self._params[side].items() if where == path and not p.buffer]
        frozen = bool(held) and not any(p.trainable for p in held)
        return self._frozen(side, path, held[0].name) if frozen else None

    def _innermost(self, sources: list[PairResult]) -> list[PairResult]:
        """Without those that merely enclose another one."""
        enclosing: set[int] = set()
        for result in sources:
            parent = self.flow.ancestors.get(result.reference.call_id)
            while parent is not None and parent not in enclosing:
                enclosing.add(parent)
                parent = self.flow.ancestors.get(parent)
        return [r for r in sources if r.reference.call_id not in enclosing]

    def _missing_findings(self) -> list[Finding]:
        found = []
        around = [
            _around(((p.reference, p.candidate)[n] for p in self.matching.pairs), flow.ancestors)
            for n, flow in enumerate((self.flow, self.candidate_flow))
        ]
        for side, records, layers, flow in (
            ("reference", self.matching.unmatched_reference, self.layers[0], self.flow),
            ("candidate", self.matching.unmatched_candidate, self.layers[1], self.candidate_flow),
        ):
            for record in records:
                own = side == "reference"
                if _within(record, layers, flow.ancestors):
                    continue
                if record.phase is Phase.FORWARD and record.call_id in around[0 if own else 1]:
                    continue  # it only holds what has a partner
                if record.phase is Phase.FORWARD and _hands_on(record):
                    continue
                if self.phases is not None and record.phase not in self.phases:
                    continue
                if record.phase is Phase.FORWARD and not record.builtin | (record.kind is Kind.MODULE):
                    continue  # ops of the user's own code: streams of two ports are seldom of one length
                if record.kind is Kind.OP or record.phase in (Phase.BACKWARD, Phase.BUFFER):
                    continue  # said with the call, or with the module, that it belongs to
                if record.phase is Phase.GRADIENT:
                    continue  # see _lost_gradients
                if record.phase is Phase.WEIGHT:
                    message = f"its parameters are on the {side}'s side only"
                else:
                    message = f"called on the {side}'s side only"
                found.append(
                    Finding(
                        verdict=Verdict.MISSING,
                        phase=record.phase,
                        step=record.step,
                        reference=record.where if own else None,
                        candidate=None if own else record.where,
                        source=(record.source, None) if own else (None, record.source),
                        message=message,
                    )
                )
        return found


# -- one pair of tensors ---------------------------------------------------------------------------------------------


#: Where a gradient jumps although the value does not.
_KINKED = frozenset(
    """relu relu6 leaky_relu prelu rrelu elu selu celu threshold hardtanh hardswish hardsigmoid hardshrink softshrink
    max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool clamp clip abs
    max amax min amin maximum minimum sort topk""".split()
)

#: The share of a gradient's elements that may lie at a kink.
_FEW = 1e-3

#: The share of a gradient that flips downstream of it may reach for the rest to show that it is the same.
_REACHED = 0.25

#: How much a call may magnify the error of a gradient that flips have brought into it.
_HANDED = 2.0

#: How much further than the error that flips bring in what is made of them may be off.
_SPREAD = 8.0


def _kinks(trace: Trace) -> frozenset[int]:
    """The calls of `trace` that have a kink, or whose inside was not recorded and may have one."""
    kinds = {i.path: i.kind for i in trace.manifest.modules}
    parents = {r.parent_id for r in trace.records}
    found = set()
    for r in trace.records:
        if r.phase is Phase.FORWARD:
            if r.kind is Kind.OP:
                kinked = canonical_op(r.type) in _KINKED
            else:
                kinked = kinds.get(r.path) in _KINKED or (kinds.get(r.path) is None and r.call_id not in parents)
            if kinked:
                found.add(r.call_id)
    return frozenset(found)


def _count_beyond(left: Array, right: Array, bound: float) -> int:
    """How many elements are further apart than `bound`; what is not finite on one side only is."""
    count = 0
    a, b = left.reshape(-1), right.reshape(-1)
    for start in range(0, a.size, 1 << 18):  # in pieces: memory must not grow with the tensor
        x, y = (v[start : start + (1 << 18)].astype(np.float64) for v in (a, b))
        with np.errstate(invalid="ignore"):
            count += int(np.count_nonzero(~((np.abs(x - y) <= bound) | (x == y) | (np.isnan(x) & np.isnan(y)))))
    return count


#: Layers that only hold others: what runs in them is the user's.
_CONTAINERS = frozenset({"sequential", "module_list", "module_dict"})


def _paired_layers(reference: Trace, candidate: Trace, matching: Matching) -> tuple[frozenset[int], frozenset[int]]:
    """The calls, by side, of a framework's own layers whose partner is a layer of the same kind."""
    kinds = [{i.path: i.kind for i in t.manifest.modules if i.builtin} for t in (reference, candidate)]
    found: tuple[set[int], set[int]] = (set(), set())
    for pair in matching.pairs:
        a, b = pair.reference, pair.candidate
        if a.kind is Kind.MODULE and b.kind is Kind.MODULE and a.builtin and b.builtin:
            kind = _family(kinds[0].get(a.path))
            if kind is not None and kind == _family(kinds[1].get(b.path)) and kind not in _CONTAINERS:
                found[0].add(a.call_id)
                found[1].add(b.call_id)
        elif a.kind is not b.kind and pair.how != FUSED:  # a layer, and the function that does the same
            layer, op, side = (a, b, 0) if a.kind is Kind.MODULE else (b, a, 1)
            kind = kinds[side].get(layer.path)
            if kind is not None and op.kind is Kind.OP and op_of_kind(kind) == canonical_op(op.type):
                found[side].add(layer.call_id)
    return frozenset(found[0]), frozenset(found[1])


def _closed(reference: Trace, candidate: Trace, whole: Pairs | None) -> dict[str, str]:
    """The modules, by path, that are compared as a whole."""
    names = [{p: i.path for i in t.manifest.modules for p in (i.path, *i.aliases)} for t in (reference, candidate)]
    return resolve(as_pairs(whole, "whole"), names[0], names[1])


def _with_whole(
    layers: tuple[frozenset[int], frozenset[int]], matching: Matching, closed: Mapping[str, str]
) -> tuple[frozenset[int], frozenset[int]]:
    if not closed:
        return layers
    pairs = [p for p in matching.pairs if p.reference.kind is Kind.MODULE and p.reference.path in closed]
    return (
        layers[0] | {p.reference.call_id for p in pairs},
        layers[1] | {p.candidate.call_id for p in pairs},
    )


def _without(
    matching: Matching,
    reference: Trace,
    candidate: Trace,
    closed: Mapping[str, str],
    left_out: tuple[Sequence[str], Sequence[str]],
) -> Matching:
    """Without what is inside of modules that are compared as a whole, what those hold, and what is left out."""
    if not closed and not any(left_out):
        return matching
    gone: list[set[int]] = []  # by side: records, by index
    for side, trace in enumerate((reference, candidate)):
        shut = set(closed) if side == 0 else set(closed.values())
        by_path: dict[str, tuple[bool, bool]] = {}
        found: set[int] = set()
        for record in trace.records:
            if record.path not in by_path:
                ignored = any(
                    p == OUTSIDE if record.path == OUTSIDE else patterns.matches(p, record.path) for p in left_out[side]
                )
                by_path[record.path] = (ignored, any(record.path.startswith(f"{p}." if p else "") for p in shut))
            ignored, within = by_path[record.path]
            own = record.path in shut and record.kind is not Kind.MODULE
            if record.phase is Phase.LOSS:
                continue  # of the loss itself, whatever it was made of
            if ignored or (record.path != OUTSIDE and (own or (within and record.path not in shut))):
                found.add(record.index)
        gone.append(found)
    return replace(
        matching,
        pairs=tuple(p for p in matching.pairs if p.reference.index not in gone[0] and p.candidate.index not in gone[1]),
        unmatched_reference=tuple(r for r in matching.unmatched_reference if r.index not in gone[0]),
        unmatched_candidate=tuple(r for r in matching.unmatched_candidate if r.index not in gone[1]),
    )


def _family(kind: str | None) -> str | None:
    """BatchNorm is one layer, whether its class names the number of dimensions or not."""
    return "batch_norm" if kind is not None and "batch_norm" in kind else kind


def inside(record: Record, layers: frozenset[int]) -> bool:
    """Whether a record is an op that one of `layers` is made of."""
    return record.kind is Kind.OP and record.parent_id in layers


def _within(record: Record, layers: frozenset[int], parents: Mapping[int, int | None]) -> bool:
    """Whether a record belongs to one of `layers`, at any depth."""
    parent = record.parent_id
    while parent is not None:
        if parent in layers:
            return True
        parent = parents.get(parent)
    return False


def _around(records: Iterable[Record], parents: Mapping[int, int | None]) -> set[int]:
    """The calls that any of `records` was made in."""
    found: set[int] = set()
    for record in records:
        parent = record.parent_id
        while parent is not None and parent not in found:
            found.add(parent)
            parent = parents.get(parent)
    return found


def _hands_on(record: Record) -> bool:
    """Whether a call returned nothing but what it was given: Identity, and Dropout that is switched off."""
    return bool(record.outputs()) and {s.value for s in record.outputs()} <= {s.value for s in record.inputs()}


def _neutral(params: Mapping[tuple[str, str], ParamInfo], record: Record, slot: Slot, array: Array) -> Array:
    param = params.get((record.path, slot.name))
    return array if param is None else to_neutral(param, array)


def numbers_of(m: Metrics, left: Array, judge: Judge) -> Numbers:
    """What a judge is told of two tensors that were measured; `left` is the reference's."""
    mean = isinstance(judge, ToleranceJudge) and judge.mode is Mode.MEAN
    return Numbers(
        identical=m.identical,
        nonfinite_mismatch=m.nonfinite_mismatch,
        rmse=_zero_if_nan(m.rmse),
        max_abs=_zero_if_nan(m.max_abs),
        mean_abs=_zero_if_nan(m.mean_abs),
        within=m.within,
        rms_reference=_zero_if_nan(m.rms_reference),
        mean_abs_reference=_mean_magnitude(left) if mean and left.size else 0.0,
    )


def _mean_magnitude(array: Array) -> float:
    narrow = array.dtype.itemsize < 4 or array.dtype.kind not in "fc"  # float32 adds up in pairs, which is good enough
    mean = float(np.mean(np.abs(array), dtype=np.float64 if narrow else None))
    return mean if math.isfinite(mean) else _zero_if_nan(float(np.nanmean(np.abs(array), dtype=np.float64)))


def _zero_if_nan(value: float) -> float:
    """Where no place is finite on both sides there is no error to speak of; mismatches are counted on their own."""
    return value if value == value else 0.0


def _diff_stats(a: Slot, b: Slot, judge: Judge, context: Context) -> SlotDiff:
    """Two tensors by their statistics: what must hold if they were equal up to noise and the order of axes."""
    x, y = a.stats, b.stats
    assert x is not None and y is not None
    if a.meta.size != b.meta.size:
        note = f"shapes differ: {_shape(a)} and {_shape(b)}"
        return SlotDiff(a, b, Verdict.BUG, "stats", error=math.inf, note=note)
    same_width = a.meta.dtype == b.meta.dtype
    identical = same_width and x.fingerprint == y.fingerprint and (x.min, x.max) == (y.min, y.max)
    numbers = _stats_numbers(a, x, y, identical, judge)
    verdict = judge.verdict(numbers, context)
    notes = []
    if (x.nan, x.inf) != (y.nan, y.inf):
        notes.append(f"NaN {x.nan} and {y.nan}, Inf {x.inf} and {y.inf} elements")
    if sorted(a.meta.shape) != sorted(b.meta.shape):
        notes.append(f"compared after reshaping: {_shape(b)} to {_shape(a)}")
    return SlotDiff(
        a,
        b,
        verdict,
        "stats",
        error=judge.error(numbers, context),
        limit=judge.limit(numbers, context),
        note="; ".join(notes),
    )


def _stats_numbers(a: Slot, x: Stats, y: Stats, identical: bool, judge: Judge) -> Numbers:
    """What the statistics say of the error.

    The differences of the extremes are errors of single elements; those of mean, std and root mean square bound the
    error's root mean square from below.
    """
    finite = max(a.meta.size - x.nan - x.inf, 1)
    rms, other = x.l2 / math.sqrt(finite), y.l2 / math.sqrt(finite)
    lower = 0.0 if identical else max(_gap(x.mean, y.mean), _gap(x.std, y.std), _gap(rms, other))
    peak = 0.0 if identical else max(lower, _gap(x.min, y.min), _gap(x.max, y.max))
    bound = judge.atol + judge.rtol * rms if isinstance(judge, ToleranceJudge) else 0.0
    return Numbers(
        identical=identical,
        nonfinite_mismatch=abs(x.nan - y.nan) + abs(x.inf - y.inf),
        rmse=lower,
        max_abs=peak,
        mean_abs=lower,
        within=1.0 if peak <= bound else 0.0,
        rms_reference=rms,
        mean_abs_reference=rms,
    )


def _gap(a: float, b: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    gap = abs(a - b)
    return gap if gap == gap else math.inf


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    if Verdict.UNDECIDED in found and found & {Verdict.NOISE, Verdict.EXACT}:
        found.discard(Verdict.UNDECIDED)  # what was compared decides; what was not is in the notes
    return next((v for v in SEVERITY if v in found), Verdict.UNDECIDED)


def _side(result: PairResult, side: str) -> Verdict | None:
    """The worst verdict among a pair's inputs ("in") or outputs ("out"); None when there is none."""
    found = [d.verdict for d in result.diffs if d.reference.side == side]
    return _worst(found) if found else None


def _verdict(record: Record, diffs: Sequence[SlotDiff]) -> Verdict:
    """Of a pair: by what the call made, its outputs forward and its inputs' gradients backward, where it made any."""
    made = {Phase.FORWARD: "out", Phase.BACKWARD: "in"}.get(record.phase)
    own = [d for d in diffs if d.basis != "none" and made is not None and d.reference.side == made]
    return _worst(d.verdict for d in own or diffs)


def _absolute(diff: SlotDiff) -> float:
    """The error of a tensor in its own units."""
    error = diff.error if diff.error is not None else math.inf
    return error * rms(diff.reference) if diff.reference.stats is not None else error


def _error(result: PairResult | None, side: str) -> float:
    """The largest error among a pair's inputs or outputs."""
    diffs = result.diffs if result is not None else ()
    return max((d.error for d in diffs if d.error is not None and d.reference.side == side), default=0.0)


def made_in(record: Record) -> str:
    return f"{record.op}() in {record.path or 'the root'}"


def _shape(slot: Slot) -> str:
    return str(tuple(slot.meta.shape))


def _nonfinite(m: Metrics) -> str:
    where = f", first at {m.first_nonfinite_mismatch}" if m.first_nonfinite_mismatch is not None else ""
    return (
        f"NaN or Inf on one side only in {m.nonfinite_mismatch} places{where} "
        f"(NaN {m.nan_reference} and {m.nan_candidate}, Inf {m.inf_reference} and {m.inf_candidate})"
    )


def describe(diff: SlotDiff) -> str:
    parts = []
    if diff.note:
        parts.append(diff.note)
    if diff.error is not None and math.isfinite(diff.error):
        parts.append(f"{diff.reference.name} off by {diff.error:.2g} of its scale, noise explains {diff.limit:.2g}")
    elif not diff.note:
        parts.append(f"{diff.reference.name} differs")
    if diff.metrics is not None and diff.metrics.worst is not None and diff.basis == "tensors":
        m = diff.metrics
        parts.append(f"worst at {m.worst}: {m.worst_reference:.6g} and {m.worst_candidate:.6g}")
    return "; ".join(parts)
