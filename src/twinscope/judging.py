"""From what calls came to when they were judged alone to findings: where a fault is, and no downstream effect of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .explain.between import explain_between
from .explain.held import explain_gradient, explain_state
from .explain.precision import MODES
from .explain.suspect import Cause
from .graft import Between, Graft, Grafts
from .metrics import arranged
from .records import Kind, Phase, Record, Source, Verdict
from .result import Finding, PairResult

if TYPE_CHECKING:
    from .comparing import Comparison

#: Ops that let no gradient through.
_STOPS = frozenset({"detach", "detach_", "stop_gradient"})
#: What a run shows that cannot be noise, whatever was judged alone: where nothing alone explains it, it is told.
_PLAIN = 0.05
#: How many of its roundoffs a coarser precision may bring into a gradient that has come through many calls.
_SPREAD = 16.0


def as_judged(results: Sequence[PairResult], grafts: Grafts) -> list[PairResult]:
    """Every pair of forward calls with the verdict of its call alone; what the run made of it stays to be read."""
    found = []
    for result in results:
        number = result.reference.call_id
        made = next((g for g in grafts.calls.get(number, ()) if g.phase is result.reference.phase), None)
        if made is None and number in grafts.detours and result.reference.phase is Phase.FORWARD:
            found.append(replace(result, verdict=Verdict.UNDECIDED, rejoins=True))
        elif made is None or result.reference.kind is Kind.STATE:
            found.append(result)
        elif number in grafts.detours and made.phase is Phase.FORWARD:
            found.append(replace(result, verdict=Verdict.UNDECIDED, rejoins=True, graft=made))
        elif made.phase is Phase.BACKWARD and made.verdict is not Verdict.BUG:
            found.append(replace(result, graft=made))
        else:
            inherits = result.verdict is Verdict.BUG and made.verdict is not Verdict.BUG
            found.append(replace(result, verdict=made.verdict, inherits=inherits, graft=made))
    return found


def judged_forward(
    comparison: Comparison, results: Sequence[PairResult], seen: Sequence[Finding], grafts: Grafts
) -> list[Finding]:
    """Findings of the forward pass: calls that are another function alone, and what lies between calls.

    `seen` are those of the run as a whole; of them only those stay that nothing was judged about.
    """
    forward = {r.reference.call_id: r for r in results if r.reference.phase is Phase.FORWARD}
    damaged = {r.candidate.path for r in results if r.reference.phase is Phase.WEIGHT and r.verdict is Verdict.BUG}
    found = []
    for number, result in forward.items():
        made = next((g for g in grafts.calls.get(number, ()) if g.phase is Phase.FORWARD), None)
        if made is None:
            continue
        if made.verdict is Verdict.BUG and number in grafts.sources:
            if _weights_of(result) & damaged:
                continue  # said of the weights
            found.append(_finding(comparison, result, made, grafts))
        elif made.verdict in (Verdict.PRECISION, Verdict.UNDECIDED) and number not in grafts.detours:
            found.append(_finding(comparison, result, made, grafts))
    found += [_between(comparison, forward.get(b.pair.reference.call_id), b, grafts) for b in grafts.between]
    told = {f.pair.reference.call_id for f in found if f.pair is not None}
    for finding in seen:
        number = finding.pair.reference.call_id if finding.pair is not None else -1
        if number in grafts.open and number not in told and finding.verdict is Verdict.UNDECIDED:
            found.append(finding)
    if not grafts.settled and not any(f.verdict is Verdict.BUG for f in found):
        found += [f for f in seen if _is_plain(f) and f not in found]
    if not any(f.verdict in (Verdict.BUG, Verdict.UNDECIDED, Verdict.PRECISION) for f in found):
        found += [_unexplained(comparison, r) for r in forward.values() if r.reference.path == "" and _is_gross(r)]
    order = {number: n for n, number in enumerate(forward)}
    return sorted(found, key=lambda f: order.get(f.pair.reference.call_id, 0) if f.pair is not None else 0)


def _is_plain(finding: Finding) -> bool:
    return finding.verdict is Verdict.BUG and finding.numbers.get("error", math.inf) > _PLAIN


def _is_gross(result: PairResult) -> bool:
    outputs = [d for d in result.diffs if d.reference.side == "out" and d.verdict is Verdict.BUG]
    return result.reference.kind is Kind.MODULE and any((d.error or 0.0) > _PLAIN for d in outputs)


def _unexplained(comparison: Comparison, result: PairResult) -> Finding:
    """The network's own output, where it is far off and no call alone was seen to be: never the same."""
    told = comparison.finding(result, "what the network returns differs, and no call of it alone explains that")
    return replace(told, verdict=Verdict.UNDECIDED)


def _weights_of(result: PairResult) -> set[str]:
    """The module that a call's parameters belong to."""
    held = {s.param.rpartition(".")[0] for s in result.candidate.slots if s.param}
    return held | ({result.candidate.path} if result.candidate.kind is Kind.MODULE else set())


def _finding(comparison: Comparison, result: PairResult, made: Graft, grafts: Grafts) -> Finding:
    told = comparison.finding(result, _said(made), made.phase)
    return replace(
        told,
        verdict=made.verdict,
        numbers={**told.numbers, **_numbers(made)},
        alone=made,
        causes=tuple(grafts.causes.get((result.reference.call_id, made.phase), ())),
        cause=_cause(grafts, result, made) or told.cause,
    )


def _said(made: Graft) -> str:
    where = "on the reference's inputs" if made.phase is Phase.FORWARD else "on the reference's inputs and gradients"
    if made.verdict is Verdict.PRECISION:
        return f"{where} {made.tensor} has {made.bits:.0f} right bits: the same function in {made.precision}"
    if made.rho64 is not None and math.isfinite(made.rho64):
        return f"{where} {made.tensor} is {made.rho:.3g} times the noise off, and in float64 still {made.rho64:.3g}"
    return f"{where} {made.tensor} is {made.rho:.3g} times the noise off (noise by {made.floor})"


def _numbers(made: Graft) -> dict[str, float]:
    found = {"rho": made.rho, "right_bits": made.bits}
    return found if made.rho64 is None else {**found, "rho64": made.rho64}


def _cause(grafts: Grafts, result: PairResult, made: Graft) -> str | None:
    if made.verdict is Verdict.PRECISION:
        return f"computed in {made.precision}"
    said = _said_of(grafts.causes.get((result.reference.call_id, made.phase), ()))
    worst = result.worst
    if said is None and worst is not None and worst.metrics is not None and worst.metrics.same_other_layout:
        said = f"the same values in another order: {worst.metrics.same_other_layout} (suspected)"
    return said


def _said_of(causes: Sequence[Cause]) -> str | None:
    """What was proven; of what is only suspected the two likeliest."""
    proven = [c for c in causes if c.proven]
    return "; or ".join(str(c) for c in proven[:1] or causes[:2]) or None


def _between(comparison: Comparison, result: PairResult | None, fault: Between, grafts: Grafts) -> Finding:
    """A fault between calls, at the op that made what differs where one has no partner, else where it is used."""
    a, b = fault.pair.reference, fault.pair.candidate
    slots = fault.slot
    partnered = (
        {p.reference.call_id for p in comparison.matching.pairs},
        {p.candidate.call_id for p in comparison.matching.pairs},
    )
    makers = fault.makers
    where: list[str | None] = []
    apart = [False, False]
    sources: list[Source | None] = []
    for side, (record, maker, trace) in enumerate(
        zip((a, b), makers, (comparison.reference, comparison.candidate), strict=True)
    ):
        apart[side] = maker is not None and maker.call_id not in partnered[side]
        shown = maker if maker is not None and apart[side] else record
        where.append(shown.where)
        sources.append((maker.source if maker is not None else None) or comparison.source(record, trace))
    if apart[0] and not apart[1] and slots[0].side == "in":
        # an op of the reference's has no counterpart there
        maker = makers[0]
        where[1] = (None if maker is None else _partner(comparison, maker.path)) or b.path or "(root)"
    names = [_made_by(m) for m in makers]
    what = f"what it returns ({slots[0].name})" if slots[0].side == "out" else f"its input {slots[0].name}"
    message = (
        f"{what} differs although all that it is made of agrees: look at {names[0]} (reference) and {names[1]} "
        f"(candidate); {fault.graft.rho:.3g} times the noise"
    )
    if fault.graft.verdict is Verdict.PRECISION:
        return Finding(
            verdict=Verdict.PRECISION,
            phase=Phase.FORWARD,
            step=a.step,
            reference=where[0],
            candidate=where[1],
            source=(sources[0], sources[1]),
            message=f"{what} has {fault.graft.bits:.0f} right bits: the same in {fault.graft.precision}",
            numbers={**_numbers(fault.graft)},
            cause=f"computed in {fault.graft.precision}",
            pair=result,
        )
    causes = explain_between(
        fault.pair,
        fault.slot,
        fault.reference,
        fault.candidate,
        fault.noise,
        (comparison.reference, comparison.candidate),
        comparison.matching,
    )
    return Finding(
        verdict=Verdict.BUG,
        phase=Phase.FORWARD,
        step=a.step,
        reference=where[0],
        candidate=where[1],
        source=(sources[0], sources[1]),
        message=message,
        numbers={**_numbers(fault.graft)},
        cause=_said_of(causes),
        alone=replace(fault.graft, between=True),
        causes=tuple(causes),
        pair=result,
    )


def _made_by(record: Record | None) -> str:
    return "an input" if record is None else f"{record.op}() in {record.path or 'the root'}"


# -- backward ----------------------------------------------------------------------------------------------------------


def judged_backward(
    comparison: Comparison, results: Sequence[PairResult], findings: Sequence[Finding], grafts: Grafts
) -> list[Finding]:
    """Findings of the backward pass: calls whose gradients are another function's, then what stops a gradient."""
    forward = {r.reference.call_id: r for r in results if r.reference.phase is Phase.FORWARD}
    backward = {r.reference.call_id: r for r in results if r.reference.phase is Phase.BACKWARD}
    alone = []
    for number, result in forward.items():
        made = next((g for g in grafts.calls.get(number, ()) if g.phase is Phase.BACKWARD), None)
        if made is not None and made.verdict is Verdict.BUG and number in grafts.sources:
            if _never_comes(backward.get(number), made):
                continue
            alone.append(_finding(comparison, backward.get(number, result), made, grafts))
    coarse = _roundoff_of_modes(grafts)
    findings = [
        f for f in findings if not (_comes_back(f) and 0 < f.numbers.get("error", math.inf) <= _SPREAD * coarse)
    ]
    magnified = bool(magnifying(results))
    kept = []
    stops = _stops(comparison)
    for finding in findings:
        number = finding.pair.reference.call_id if finding.pair is not None else -1
        if finding.phase is Phase.BACKWARD and (alone or (_is_fine_alone(grafts, number) and (stops or magnified))):
            continue
        if magnified and finding.phase is Phase.GRADIENT and finding.numbers and not stops:
            continue
        kept.append(finding)
    lost = [f for f in findings if f.phase in (Phase.BACKWARD, Phase.GRADIENT) and f not in alone]
    if stops and lost and not alone:
        kept = [f for f in kept if f.phase not in (Phase.BACKWARD, Phase.GRADIENT)]
        kept += [_stop(comparison, side, record, lost[0]) for side, record in stops[:1]]
    elif alone:
        kept = [f for f in kept if f.phase is not Phase.GRADIENT or "only" in f.message]
    return [*kept, *alone]


def _never_comes(run: PairResult | None, made: Graft) -> bool:
    """Whether a call has another gradient only for what never comes back to it: a mask that is added, or filled in,
    lets gradients of hidden places through or not, and softmax sends none there."""
    if run is None or made.bits > -math.log2(_PLAIN):
        return False
    return any(d.reference.name == made.tensor and d.verdict in (Verdict.EXACT, Verdict.NOISE) for d in run.diffs)


def magnifying(results: Sequence[PairResult]) -> list[PairResult]:
    """Calls that agree on the same inputs, and in the run make of noise more than that: a choice that falls the other
    way where two numbers are nearly equal, a difference of nearly equal numbers. What follows from them is no bug."""
    found = []
    for result in results:
        if result.reference.phase is not Phase.FORWARD or not result.inherits or result.graft is None:
            continue
        if result.graft.phase is not Phase.FORWARD or result.graft.verdict not in (Verdict.EXACT, Verdict.NOISE):
            continue
        given = {d.verdict for d in result.diffs if d.reference.side == "in"}
        made = {d.verdict for d in result.diffs if d.reference.side == "out"}
        if given and Verdict.BUG not in given and Verdict.BUG in made:
            found.append(result)
    return found


def _comes_back(finding: Finding) -> bool:
    """What follows from what the network returned, and is as coarse as that."""
    return finding.phase in (Phase.LOSS, Phase.BACKWARD, Phase.GRADIENT) and finding.verdict is Verdict.BUG


def _roundoff_of_modes(grafts: Grafts) -> float:
    """That of the coarsest precision that some call was found to be computed in."""
    judged = [*(g for own in grafts.calls.values() for g in own), *(b.graft for b in grafts.between)]
    found = {g.precision for g in judged if g.verdict is Verdict.PRECISION}
    return max((unit for name, unit, _ in MODES if name in found), default=0.0)


def _is_fine_alone(grafts: Grafts, number: int) -> bool:
    return any(g.phase is Phase.BACKWARD and g.verdict is not Verdict.BUG for g in grafts.calls.get(number, ())) or (
        number in grafts.calls and not any(g.verdict is Verdict.BUG for g in grafts.calls[number])
    )


def _stops(comparison: Comparison) -> list[tuple[int, Record]]:
    """The calls, by side, that stop a gradient and have no partner, in modules where the other side has none."""
    found = []
    for side in (1, 0):
        own, other = ((comparison.reference, comparison.candidate)[n] for n in (side, 1 - side))
        matched = {id((p.reference, p.candidate)[side]) for p in comparison.matching.pairs}
        theirs = {
            (_partner(comparison, r.path, 1 - side) or "").replace("(root)", "") for r in other.records if _is_stop(r)
        }
        found += [(side, r) for r in own.records if _is_stop(r) and id(r) not in matched and r.path not in theirs]
    return found


def _is_stop(record: Record) -> bool:
    return record.phase is Phase.FORWARD and record.kind is Kind.OP and record.op in _STOPS


def _stop(comparison: Comparison, side: int, record: Record, like: Finding) -> Finding:
    own, other = (("reference", "candidate")[n] for n in (side, 1 - side))
    places = [_partner(comparison, record.path, side), record.where]
    return replace(
        like,
        phase=Phase.BACKWARD,
        candidate=places[side],
        reference=places[1 - side],
        source=(None, record.source) if side else (record.source, None),
        message=f"{record.op}() stops a gradient that the {other} lets through; {like.message}",
        cause=f"detached: {record.op}() on the {own}'s side only",
    )


def _partner(comparison: Comparison, path: str, side: int = 0) -> str | None:
    """The path of the module that is, on the other side, what `path` is on this one."""
    pairs = ((m.reference, m.candidate) for m in comparison.matching.modules)
    found = next((pair[1 - side] for pair in pairs if pair[side] == path), None)
    return None if found is None else found or "(root)"


def with_causes(comparison: Comparison, findings: Iterable[Finding]) -> list[Finding]:
    """Findings about what modules hold, and about gradients of the run, with what their tensors tell of the cause."""
    found = []
    for finding in findings:
        result = finding.pair
        if finding.cause is None and finding.verdict is Verdict.BUG and result is not None:
            traces = (comparison.reference, comparison.candidate)
            causes: tuple[Cause, ...] = ()
            if result.reference.kind is Kind.STATE:
                causes = explain_state(result.pair, traces)
            elif finding.phase is Phase.BACKWARD and result.worst is not None:
                diff = result.worst
                left, right = (t.tensor(s) for t, s in zip(traces, (diff.reference, diff.candidate), strict=True))
                fitted = None if left is None or right is None else arranged(left, right)
                if left is not None and fitted is not None:
                    noise = 2.0**-22 * float(np.sqrt(np.mean(np.square(left.astype(np.float64)))))
                    causes = explain_gradient(diff.reference.name, left, fitted[0], noise)
            finding = replace(finding, cause=_said_of(causes), causes=tuple(causes))
        found.append(finding)
    return found
