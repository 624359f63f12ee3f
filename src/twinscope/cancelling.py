"""Gradients that are nothing but rounding on both sides: what they are made of cancels.

The mean of what a LayerNorm returns does not depend on what it was given, so the gradient behind it is zero in
mathematics, and in numbers a few roundoffs of its terms, others in each framework. All that is made of it upstream is
as meaningless. Such gradients differ grossly from each other, and nothing follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .flow import rms
from .judge import ROUNDOFF
from .records import Phase, Record, Verdict
from .result import PairResult

if TYPE_CHECKING:
    from .graft import Grafts

#: So many roundoffs of the gradient that came in, times what the call magnifies by, may be left of terms that cancel.
_LEFT = 64.0
_NOTE = "its terms cancel: what is left is rounding on both sides"


def without_cancelled(results: Sequence[PairResult], grafts: Grafts) -> list[PairResult]:
    """Results of the backward pass that differ only because a gradient cancels are noise.

    Only where every place at which the gradients begin to differ is such a one, and the call is right when it is judged
    alone, on gradients that do not cancel.
    """
    back = [r for r in results if r.reference.phase is Phase.BACKWARD and r.verdict is Verdict.BUG]
    forward = {r.reference.call_id: r.reference for r in results if r.reference.phase is Phase.FORWARD}
    origins = [r for r in back if not _differs(r, "out")]
    if not origins or not all(_cancels(r, forward, grafts) for r in origins):
        return list(results)
    reached = {(r.reference.path, r.reference.step) for r in back if _differs(r, "out")}
    changed = {id(r) for r in back}
    changed |= {
        id(r)
        for r in results
        if r.reference.phase is Phase.GRADIENT and (r.reference.path, r.reference.step) in reached
    }
    return [_as_noise(r) if id(r) in changed and r.verdict is Verdict.BUG else r for r in results]


def _differs(result: PairResult, side: str) -> bool:
    return any(d.reference.side == side and d.verdict is Verdict.BUG for d in result.diffs)


def _cancels(result: PairResult, forward: Mapping[int, Record], grafts: Grafts) -> bool:
    known = grafts.calls.get(result.reference.call_id, ())
    judged = [g for g in known if g.phase is Phase.BACKWARD]
    if any(g.verdict not in (Verdict.EXACT, Verdict.NOISE) for g in judged):
        return False
    if not judged and not any(g.verdict is Verdict.EXACT for g in known):
        return False  # of a call of the same framework that is the same to the last bit, the backward is not judged
    given = [rms(s) for d in result.diffs if d.reference.side == "out" for s in (d.reference, d.candidate) if s.stats]
    scale = max(given, default=0.0) * _gain(forward.get(result.reference.call_id))
    return all(
        d.metrics is not None
        and not d.metrics.nonfinite_mismatch
        and d.metrics.rmse <= _LEFT * ROUNDOFF.get(d.reference.meta.dtype, 0.0) * scale
        for d in result.diffs
        if d.reference.side == "in" and d.verdict is Verdict.BUG
    )


def _gain(record: Record | None) -> float:
    """By how much a call magnifies: a norm divides by the deviation of what it is given."""
    if record is None:
        return 1.0
    came = [s.stats.std for s in record.inputs() if s.stats and s.param is None and s.stats.std > 0]
    left = [s.stats.std for s in record.outputs() if s.stats]
    return max(1.0, max(left, default=0.0) / min(came)) if came else 1.0


def _as_noise(result: PairResult) -> PairResult:
    diffs = tuple(
        replace(d, verdict=Verdict.NOISE, note="; ".join(n for n in (d.note, _NOTE) if n))
        if d.verdict is Verdict.BUG
        else d
        for d in result.diffs
    )
    return replace(result, verdict=Verdict.NOISE, diffs=diffs)
