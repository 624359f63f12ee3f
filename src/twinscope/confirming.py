"""The second arbiter: both whole models in float64. Noise collapses there, a bug stays.

It is independent of the first (see `graft`), which judges calls one by one: here nothing is replayed, and nothing is
looked at but what the two networks return and the gradients of their parameters. It says whether, not where.

Measured between PyTorch and PaddlePaddle on a transformer of 8 blocks: noise loses 20 bits (PaddlePaddle rounds the
epsilon of a LayerNorm to float32 even in float64, else it would be 29); an epsilon of 1e-6 for 1e-5 in one block loses
0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .adapters.base import Adapter, rebuilt
from .capturing import Capture, Plan
from .comparing import comparison_of
from .judge import ROUNDOFF
from .records import Kind, Overall, Phase, Verdict
from .running import as_arguments, unchanged
from .store import Trace

if TYPE_CHECKING:
    from .comparing import Comparison
    from .graft import Grafts
    from .result import PairResult, Result

#: What loses so many bits is noise; what keeps all but so many is not; between them nothing is said.
_COLLAPSED, _STAYED = 12.0, 3.0
#: Relative errors that are nothing, whatever they were in float32: constants that a framework keeps in float32.
_NOTHING = 1e-11

Place = tuple[Phase, str, str]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What became of the differences of two networks when both were run in float64."""

    verdict: Overall  # SAME: they collapse. DIFFERENT: one stays. UNDECIDED: neither, or it could not be run
    message: str
    #: of the tensor that says it: "error" in the precision of the run, "error64", "bits" that were lost
    numbers: Mapping[str, float] = field(default_factory=dict)
    #: whether it decided the result; else the first arbiter did, and this one was only asked
    decisive: bool = False

    def __str__(self) -> str:
        who = "the second arbiter decided" if self.decisive else "the second arbiter"
        return f"{who} (both networks in float64): {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        numbers = {k: v if math.isfinite(v) else str(v) for k, v in self.numbers.items()}
        return {
            "verdict": str(self.verdict),
            "message": self.message,
            "numbers": numbers,
            "decisive": self.decisive,
        }


@dataclass(frozen=True, slots=True)
class WideRun:
    """A model's run in float64, or why there is none."""

    trace: Trace | None
    why: str = ""
    backward: bool = True


def run_in_float64(
    adapter: Adapter,
    model: Any,
    inputs: Any,
    loss: Callable[[Any], Any] | None,
    *,
    backward: bool,
    seed: int,
    path: str | None = None,
) -> WideRun:
    """Run `model` once in float64 and put everything back; without the backward pass where that cannot be had."""
    drawn = False

    def once(with_gradients: bool) -> Trace:
        nonlocal drawn
        plan = Plan.parse(level="module", keep="tensors", backward=with_gradients)
        args, kwargs = as_arguments(adapter, inputs)
        with unchanged(adapter, model), adapter.in_float64(model):
            wide = _widened(adapter, args), _widened(adapter, kwargs)
            adapter.seed(seed)
            before = adapter.random_state()
            place = path if path is None or with_gradients else f"{path}-forward"  # one that failed is no place
            run = Capture(model, place, plan, adapter=adapter)
            with run:
                adapter.run(model, *wide, loss if with_gradients else None, with_gradients)
            drawn = adapter.random_state() != before
        if run.error is not None:
            raise run.error
        return run.trace

    found: Trace | None = None
    why = ""
    for with_gradients in (True, False) if backward else (False,):
        try:
            found, backward = once(with_gradients), with_gradients
            break
        except Exception as error:  # noqa: BLE001 - no kernel, or code of the user's that asks for float32
            first = str(error).strip().splitlines()[:1]
            why = f"{adapter.name} cannot run it in float64: {type(error).__name__}: {''.join(first)[:160]}"
    if found is None:
        return WideRun(None, why)
    if drawn:
        return WideRun(None, "it draws random numbers, which are others in float64")
    if not any(s.meta.dtype == "float64" for r in found.records if r.path == "" for s in r.outputs()):
        return WideRun(None, f"{adapter.name} returns no float64 although all it holds is in float64")
    return WideRun(found, why, backward)


def confirm(comparison: Comparison, runs: tuple[WideRun, WideRun], mapping: Any = None) -> Confirmation:
    """What the differences that `comparison` measured become in float64."""
    for role, run in zip(("reference", "candidate"), runs, strict=True):
        if run.trace is None:
            return Confirmation(Overall.UNDECIDED, f"the {role} has no say: {run.why}")
    first, second = runs[0].trace, runs[1].trace
    assert first is not None and second is not None
    wide = _errors(comparison_of(first, second, mapping=mapping).results)
    narrow = _errors(comparison.results)
    compared = {place: (narrow[place], error) for place, error in wide.items() if place in narrow}
    if not any(phase is Phase.FORWARD for phase, _, _ in compared):
        return Confirmation(Overall.UNDECIDED, "nothing that the two networks return could be compared")
    judged = [(_said(*errors), place, errors) for place, errors in compared.items()]
    order = (Overall.DIFFERENT, Overall.UNDECIDED, Overall.SAME)
    verdict, place, (error, error64) = min(
        judged, key=lambda j: (order.index(j[0]), j[1][0] is not Phase.FORWARD, -j[2][1])
    )
    bits = _lost(error, error64)
    numbers = {"error": error, "error64": error64, "bits": bits}
    what = "what they return" if place[0] is Phase.FORWARD else f"the gradient of {_join(place[1], place[2])}"
    said = f"{what} is off by {error:.2g} of its scale, and in float64 by {error64:.2g}"
    meaning = {
        Overall.SAME: "the difference collapses, which is noise",
        Overall.DIFFERENT: "the difference stays, which is another function",
        Overall.UNDECIDED: "too much for noise and too little to be sure",
    }[verdict]
    missing = "" if runs[0].backward and runs[1].backward else "; gradients were not compared"
    return Confirmation(verdict, f"{said}: {meaning}{missing}", numbers)


def wants_confirmation(result: Result, grafts: Grafts | None) -> bool:
    """Whether nothing but calls between the limits keeps the first arbiter from an answer."""
    return result.verdict is Overall.UNDECIDED and grafts is not None and bool(is_open(grafts))


def confirmed(
    comparison: Comparison, result: Result, grafts: Grafts | None, runs: tuple[WideRun, WideRun], mapping: Any = None
) -> Result:
    """The result with what the second arbiter says of it; that decides where the first left it open, and only there."""
    found = confirm(comparison, runs, mapping)
    if grafts is not None and wants_confirmation(result, grafts):
        again = comparison.result(decided(grafts, found))
        found = replace(found, decisive=again.verdict is not result.verdict)
        result = again
    return replace(result, confirmation=found, notes=(*result.notes, str(found)))


def decided(grafts: Grafts, confirmation: Confirmation) -> Grafts:
    """Calls that the first arbiter left between its limits, decided by the second."""
    verdict = {Overall.SAME: Verdict.NOISE, Overall.DIFFERENT: Verdict.BUG}.get(confirmation.verdict)
    if verdict is None:
        return grafts
    open_ = is_open(grafts)
    calls = {
        number: tuple(replace(g, decided=verdict) if g.verdict is Verdict.UNDECIDED else g for g in found)
        for number, found in grafts.calls.items()
    }
    sources = grafts.sources | (open_ if verdict is Verdict.BUG else frozenset())
    return replace(grafts, calls=calls, sources=sources)


def is_open(grafts: Grafts) -> frozenset[int]:
    """The calls that the first arbiter left undecided."""
    return frozenset(
        number
        for number, found in grafts.calls.items()
        if number not in grafts.detours and any(g.verdict is Verdict.UNDECIDED for g in found)
    )


def _errors(results: Iterable[PairResult]) -> dict[Place, float]:
    """By place the relative error of what the networks return, and of the gradients of parameters."""
    found: dict[Place, float] = {}
    for result in results:
        record = result.reference
        root = record.phase is Phase.FORWARD and record.kind is Kind.MODULE and record.path == "" and record.nth == 0
        if record.step != 0 or not (root or record.phase is Phase.GRADIENT):
            continue
        for diff in result.diffs:
            floats = diff.reference.meta.dtype in ROUNDOFF and diff.candidate.meta.dtype in ROUNDOFF
            if diff.error is not None and floats and not (root and diff.reference.side != "out"):
                found[record.phase, record.path, diff.reference.name] = diff.error
    return found


def _said(error: float, error64: float) -> Overall:
    if error64 <= _NOTHING:
        return Overall.SAME
    bits = _lost(error, error64)
    return Overall.SAME if bits >= _COLLAPSED else Overall.DIFFERENT if bits <= _STAYED else Overall.UNDECIDED


def _lost(error: float, error64: float) -> float:
    if error64 == 0:
        return math.inf
    if not math.isfinite(error64):
        return 0.0
    return math.log2(max(error, ROUNDOFF["float32"]) / error64)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _widened(adapter: Adapter, value: Any) -> Any:
    if adapter.is_tensor(value):
        array = adapter.to_numpy(value)
        return adapter.from_numpy(array.astype(np.float64)) if array.dtype.name in ROUNDOFF else value
    return rebuilt(value, lambda v: _widened(adapter, v))
