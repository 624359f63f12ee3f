"""Who judges: what people use today on outputs and gradients, and Twinscope."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import Case, Expected
from planting import Seen, Twins, losses, pairs_of, run_candidate, run_reference

from twinscope import Overall, Result, Verdict, align
from twinscope.adapters._registry import by_name
from twinscope.errors import TwinscopeError
from twinscope.running import as_arguments


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a judge says of a case."""

    verdict: str  # "different", "same" or "undecided"; "failed" where it gave no answer
    place: str | None = None  # the first place that it names
    cause: str | None = None
    note: str = ""
    right_place: bool = False
    right_cause: bool = False
    #: of the first finding; where there is none, the largest that any call judged alone came to
    rho: float | None = None

    @property
    def different(self) -> bool:
        return self.verdict == "different"


@dataclass(frozen=True, slots=True)
class Runs:
    """Plain runs of both sides, and of the reference in float64."""

    reference: Seen
    candidate: Seen
    wide: Seen


def plain_runs(twins: Twins) -> Runs:
    return Runs(run_reference(twins), run_candidate(twins), run_reference(twins, wide=True))


def allclose(tolerance: float) -> Callable[[Any, Any], bool]:
    """numpy's and torch's rule, with one number for both tolerances."""
    return lambda a, b: bool(np.allclose(b, a, rtol=tolerance, atol=tolerance, equal_nan=True))


def cosine(least: float) -> Callable[[Any, Any], bool]:
    """The angle between two tensors, as comparers of dumps print it."""

    def agree(a: Any, b: Any) -> bool:
        a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        return bool(a @ b >= least * size) if size else not (a.any() or b.any())

    return agree


def mean_difference(most: float) -> Callable[[Any, Any], bool]:
    """reprod_log's ReprodDiffHelper with its defaults: diff_method "mean", diff_threshold 1e-6."""
    return lambda a, b: bool(np.abs(a.astype(np.float64) - b).mean() <= most)


#: Rules that look at one pair of tensors at a time.
RULES: dict[str, Callable[[Any, Any], bool]] = {
    "allclose 1e-5": allclose(1e-5),
    "allclose 1e-3": allclose(1e-3),
    "cosine 0.999": cosine(0.999),
    "mean difference 1e-6": mean_difference(1e-6),
}

#: Rules that also look at the reference in float64: torch's own, and its ratio alone.
FLOAT64 = ("torch's float64 rule", "float64 ratio 3")

JUDGES = (*RULES, *FLOAT64, "twinscope")


def judge_by_rule(name: str, runs: Runs) -> Opinion:
    """What one of today's rules says of outputs and gradients; it names no place but the tensors that fail."""
    agree = _by_float64(name, runs) if name in FLOAT64 else lambda _, a, b: RULES[name](a, b)
    failed = []
    if len(runs.reference.outputs) != len(runs.candidate.outputs):
        failed.append("another number of outputs")
    for what, a, b in pairs_of(runs.reference, runs.candidate):
        if a is None or b is None or a.shape != b.shape or not agree(what, a, b):
            failed.append(what)
    return Opinion("different" if failed else "same", note=", ".join(failed[:3]))


def _by_float64(name: str, runs: Runs) -> Callable[[str, Any, Any], bool]:
    wide = {what: a for what, a, _ in pairs_of(runs.wide, runs.candidate)}

    def by_torch(what: str, a: Any, b: Any) -> bool:
        # the function that torch's compiler tests call, with its defaults: allclose at 1e-4 or an error of at most
        # two or three times the reference's own, plus a tenth of the tolerance
        import torch
        from torch._dynamo.utils import same

        arrays = (torch.from_numpy(np.array(x)) for x in (a, b, wide[what]))
        return bool(same(*arrays, equal_nan=True, exact_dtype=False, log_error=lambda *_: None))

    def by_ratio(what: str, a: Any, b: Any) -> bool:
        true = wide[what]
        return bool(_rmse(b, true) <= 3 * _rmse(a, true))

    return by_torch if name == FLOAT64[0] else by_ratio


def _rmse(a: Any, b: Any) -> float:
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


#: Options of PaDiff 0.2: its defaults (a relative 1e-7 of means), and those of its document's first example.
PADIFF = {
    "PaDiff 0.2": {},
    "PaDiff 0.2, strict 1e-4": {"atol": 1e-4, "rtol": 0, "compare_mode": "strict", "single_step": False},
}


def judge_by_padiff(name: str, twins: Twins) -> Opinion:
    """auto_diff of PaDiff 0.2, as its document calls it."""
    from padiff import assign_weight, auto_diff

    case = twins.case
    model, first = twins.candidate, twins.reference
    damaged = case.plant is not None and case.plant.how in ("weight", "untie")
    if not damaged and not assign_weight(model, first):
        return Opinion("failed", note="weights were not assigned")
    given = [as_arguments(by_name(framework), twins.inputs)[0] for framework in twins.frameworks[::-1]]
    named = tuple({f"given{i}": tensor for i, tensor in enumerate(own)} for own in given)
    for side in (model, first):  # it calls a model by keywords
        side.forward = _by_keywords(side.forward)
    second, theirs = losses(twins)[::-1]
    same = auto_diff(model, first, named, auto_weights=False, options=dict(PADIFF[name]), loss_fn=(second, theirs))
    return Opinion("same" if same else "different")


def _by_keywords(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: forward(*given.values())


def judge_by_twinscope(twins: Twins) -> Opinion:
    """align(), as a user calls it: it carries the weights itself unless it is the weights that were damaged."""
    case = twins.case
    own_weights = case.plant is None or case.plant.how not in ("weight", "untie")
    skip = {"reference": case.skip} if case.skip else None
    try:
        result = align(
            twins.reference, twins.candidate, twins.inputs, loss=losses(twins), weights=own_weights, skip=skip
        )
    except TwinscopeError as error:
        return Opinion("failed", note=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    different = result.verdict is Overall.DIFFERENT
    if not result.findings:
        return Opinion(str(result.verdict).lower(), rho=largest_rho(result))
    first = result.findings[0]
    place = first.candidate or first.reference
    if case.expected is Expected.PRECISION:
        # a coarser precision may be pointed out; it is a false alarm only where it is called a bug
        worst = next((f for f in result.findings if f.verdict is Verdict.BUG), None)
        named = re.search(case.plant.cause, first.cause or "", re.IGNORECASE) if case.plant else None
        verdict = "different" if worst is not None else "undecided" if different else str(result.verdict).lower()
        shown = worst or first
        return Opinion(verdict, shown.candidate, shown.cause, str(shown), worst is None, named is not None)
    return Opinion(
        "different" if different else str(result.verdict).lower(),
        place,
        first.cause,
        str(first),
        right_place=different and is_right_place(case, place),
        right_cause=different and is_right_cause(case, first.cause),
        rho=_finite(_decisive(first.numbers.get("rho"), first.numbers.get("rho64"))),
    )


def largest_rho(result: Result) -> float | None:
    """The largest number that decided about a call that was judged alone and found to be no bug."""
    grafts = [p.graft for p in result.pairs if p.graft is not None and not p.rejoins]
    return _finite(max((r for g in grafts if (r := _decisive(g.rho, g.rho64)) is not None), default=None))


def _decisive(rho: float | None, rho64: float | None) -> float | None:
    return rho if rho is None or rho64 is None else min(rho, rho64)


def _finite(rho: float | None) -> float | None:
    return None if rho is None or not np.isfinite(rho) else round(rho, 2)


def is_right_place(case: Case, named: str | None) -> bool:
    """Whether a place is the planted module itself, or within it one of the planted ops; not what comes after."""
    if named is None or case.plant is None:
        return False
    path, _, op = named.partition(" · ")
    path = "" if path == "(root)" else path
    if path not in case.places:
        # a framework's layer may be made of parts: an LSTM's cell, an attention's projections
        inside = case.plant.how in ("layer", "weight", "mode", "none", "freeze")
        return inside and any(place and path.startswith(f"{place}.") for place in case.places)
    return not op or not case.plant.ops or any(part in op.lower() for part in case.plant.ops)


def is_right_cause(case: Case, cause: str | None) -> bool:
    """Whether the named cause contains what makes it one."""
    return bool(cause and case.plant and case.plant.cause and re.search(case.plant.cause, cause, re.IGNORECASE))
