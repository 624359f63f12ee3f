"""What comes out of a comparison: values to look at, to print, to save. No decision is taken here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import OptionError, ReproError
from .judge import Judge, Mode, RoundoffJudge, judge_for
from .match import Matching, Pair
from .metrics import Metrics, arranged
from .records import Kind, Manifest, Overall, Phase, Record, Slot, Source, Verdict
from .weights.layout import to_neutral

if TYPE_CHECKING:
    from .adapters.base import Array
    from .confirming import Confirmation
    from .explain.suspect import Cause
    from .graft import Graft
    from .reproducing import Material
    from .store import Trace
    from .weights import WeightMap

#: from the worst to the best
SEVERITY = (Verdict.BUG, Verdict.PRECISION, Verdict.UNDECIDED, Verdict.NOISE, Verdict.EXACT)


@dataclass(frozen=True, slots=True)
class SlotDiff:
    """Two tensors that should be equal, and how far they are."""

    reference: Slot
    candidate: Slot
    verdict: Verdict
    basis: str  # "tensors", "stats" (statistics only: a reordering would not show) or "none"
    error: float | None = None  # RMSE relative to the reference's scale; by statistics an estimate
    limit: float | None = None  # the most that noise explains
    metrics: Metrics | None = None
    note: str = ""  # shapes, NaNs, layout: what a person should know


@dataclass(frozen=True, slots=True)
class PairResult:
    """A pair of records with the differences of its tensors."""

    pair: Pair
    verdict: Verdict
    diffs: tuple[SlotDiff, ...]
    rejoins: bool = False  # it differs, but only on the way: the two sides take other routes to the same numbers
    inherits: bool = False  # it differs in the run only because what it was given does
    graft: Graft | None = None  # what the call came to when it was judged alone

    @property
    def reference(self) -> Record:
        return self.pair.reference

    @property
    def candidate(self) -> Record:
        return self.pair.candidate

    @property
    def worst(self) -> SlotDiff | None:
        """The slot that is furthest from its limit."""
        judged = [d for d in self.diffs if d.verdict is self.verdict]
        return max(judged or self.diffs, key=_excess, default=None)


def _excess(diff: SlotDiff) -> float:
    if diff.error is None or not diff.limit:
        return float("inf") if diff.verdict is Verdict.BUG else -1.0
    return diff.error / diff.limit


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should act on."""

    verdict: Verdict
    phase: Phase
    step: int
    reference: str | None  # module path with the op where there is one; None where that side has no partner
    candidate: str | None
    source: tuple[Source | None, Source | None]  # the user's line on the reference's and on the candidate's side
    message: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    cause: str | None = None  # None until known
    pair: PairResult | None = None
    alone: Graft | None = None  # what the call came to when it was judged alone, in this phase
    causes: tuple[Cause, ...] = ()  # proven by replay the first, or suspected all of them
    #: what a repro is made of, or why there is none
    material: Material | str | None = field(default=None, repr=False, compare=False)

    @property
    def layer(self) -> str:
        """What kind of call it is: "LayerNorm"; "" of an op, whose place names it, and where no call is to blame."""
        record = None if self.pair is None else self.pair.candidate
        if record is None or record.kind is not Kind.MODULE or self.candidate != record.where:
            return ""
        return record.op

    def repro(self, folder: str | os.PathLike[str], *, check: bool = True) -> Path:
        """Write a folder that runs alone and shows this finding: a script for each framework, tensors, and `run.py`.

        Nothing of Twinscope's or of yours is needed there: a call is written down as the functions that it consists of.
        `check` runs the folder, where both frameworks are in this interpreter. What cannot be written down so, or does
        not compute there what it did in the run, is a `ReproError` that says why.

        ::

            result.findings[0].repro("repro/")      # then: python repro/run.py
        """
        from . import reproducing

        if not isinstance(self.material, reproducing.Material):
            why = self.material or "it is not about a call"
            raise ReproError(f"no repro of {self.candidate or self.reference}: {why}", hint=_NO_REPRO)
        place = self.material.write(folder, str(self))
        if check:
            reproducing.check(place, shows=self.verdict is Verdict.BUG)
        return place

    def _judged_alone(self, alone: Graft) -> str:
        """Two lines: what is wrong where; the numbers that say so, and the line to change."""
        place = self.candidate if self.candidate is not None else self.reference or ""
        phase = "" if self.phase is Phase.FORWARD else f" in {self.phase}"
        step = f" of step {self.step}" if self.step else ""
        layer = f" ({self.layer})" if self.layer else ""
        best = next((c for c in self.causes if c.proven), None)
        if best is not None:
            said = best.short
        else:
            said = self.cause or self.message.split(";")[0]
        known = best is not None or bool(self.causes) or bool(alone.precision)
        parts = [f"rho {_rounded(alone.rho)}" + ("" if known else ", cause not known")]
        if best is not None and best.rho is not None:
            how = f"replay with {best.replayed_with}" if best.replayed_with else "replayed without it"
            parts.append(f"{how}: rho {_rounded(best.rho)}")
        parts += [
            f"{role} {source}"
            for role, source in (("candidate", self.source[1]), ("reference", self.source[0]))
            if source is not None and (role == "candidate" or self.source[1] is None or source != self.source[1])
        ]
        head = f"{self.verdict}  {place}{layer}{phase}{step}: {said}"
        return f"{head}\n{' ' * len(f'{self.verdict}  ')}{'; '.join(parts)}"

    def __str__(self) -> str:
        if self.alone is not None:
            return self._judged_alone(self.alone)
        if self.reference == self.candidate:
            place = self.reference or ""
        else:
            place = f"{self.reference or '-'} | {self.candidate or '-'}"
        lines = [str(s) for s in self.source if s is not None]
        where = f" ({' | '.join(dict.fromkeys(lines))})" if lines else ""
        step = f" step {self.step}" if self.step else ""
        return f"{self.verdict} {self.phase}{step} {place}: {self.cause or self.message}{where}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "phase": str(self.phase),
            "step": self.step,
            "reference": self.reference,
            "candidate": self.candidate,
            "source": [str(s) if s else None for s in self.source],
            "message": self.message,
            "numbers": {k: _number(v) for k, v in self.numbers.items()},
            "cause": self.cause,
            "causes": [c.to_dict() for c in self.causes],
            "floor": self.alone.floor if self.alone is not None else None,
            "precision": (self.alone.precision or None) if self.alone is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Records without a partner."""

    reference: tuple[Record, ...]
    candidate: tuple[Record, ...]

    def __len__(self) -> int:
        return len(self.reference) + len(self.candidate)


@dataclass(frozen=True, slots=True)
class Result:
    """What is said of two runs. True when, and only when, they are the same."""

    verdict: Overall
    findings: tuple[Finding, ...]
    pairs: tuple[PairResult, ...]
    unmatched: Unmatched
    first_divergence: Finding | None
    reference: Manifest
    candidate: Manifest
    matching: Matching
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: WeightMap | None = None  # how `align` carried the weights across
    traces: tuple[Trace, Trace] | None = field(default=None, repr=False, compare=False)  # where they were kept
    again: Callable[[Judge], Result] | None = field(default=None, repr=False, compare=False)
    confirmation: Confirmation | None = None  # what the second arbiter said, where it was asked

    def __bool__(self) -> bool:
        return self.verdict is Overall.SAME

    def __str__(self) -> str:
        from .report.terminal import render

        return render(self)

    def tensors(self, pair: PairResult, diff: SlotDiff) -> tuple[Array | None, Array | None]:
        """The two tensors of one of a pair's differences, as they were held against each other: weights in one
        layout, the candidate's in the reference's shape where that is possible. None for what was not kept."""
        found = []
        for trace, slot, record in zip(
            self._traces(), (diff.reference, diff.candidate), (pair.reference, pair.candidate), strict=True
        ):
            array = trace.tensor(slot) if slot.kept else None
            # after an update both are in the candidate's layout already
            if array is not None and record.kind is Kind.STATE and record.phase is not Phase.STEP:
                held = (p for m in trace.manifest.modules if m.path == record.path for p in m.params)
                param = next((p for p in held if p.name == slot.name), None)
                array = array if param is None else to_neutral(param, array)
            found.append(array)
        fitted = arranged(found[0], found[1]) if found[0] is not None and found[1] is not None else None
        return found[0], found[1] if fitted is None else fitted[0]

    def judged(self, *, atol: float | None = None, rtol: float | None = None, mode: str | Mode | None = None) -> Result:
        """The same two runs by another measure: nothing is run, and nothing is matched, again.

        Without any argument by roundoff alone, as if no tolerance had ever been asked for.

        ::

            result = twinscope.compare("runs/torch", "runs/paddle", atol=1e-4)
            print(result.judged(), result.judged(rtol=1e-3, mode="mean"))
        """
        self._traces()
        assert self.again is not None
        judge = judge_for(atol, rtol, mode)
        if isinstance(judge, RoundoffJudge) and self.options.get("judge") == "RoundoffJudge":
            return self  # calls that were judged alone stay what they were judged to be
        return replace(self.again(judge), weights=self.weights)

    def _traces(self) -> tuple[Trace, Trace]:
        if self.traces is None:
            raise OptionError(
                "this result does not hold the two runs any more",
                hint="pass hold=True to align, or compare two traces that you keep",
            )
        return self.traces

    def counts(self) -> dict[str, int]:
        """How many pairs have which verdict."""
        found = {str(v): 0 for v in (Verdict.EXACT, Verdict.NOISE, Verdict.PRECISION, Verdict.BUG, Verdict.UNDECIDED)}
        for pair in self.pairs:
            found[str(pair.verdict)] += 1
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return {
            "verdict": str(self.verdict),
            "counts": self.counts(),
            "notes": list(self.notes),
            "options": dict(self.options),
            **({"weights": self.weights.summary} if self.weights is not None else {}),
            **({"confirmation": self.confirmation.to_dict()} if self.confirmation is not None else {}),
            "reference": {"framework": self.reference.framework, "model": self.reference.model},
            "candidate": {"framework": self.candidate.framework, "model": self.candidate.model},
            "first_divergence": self.first_divergence.to_dict() if self.first_divergence else None,
            "findings": [f.to_dict() for f in self.findings],
            "pairs": [row for p in self.pairs for row in rows(p)],
            "unmatched": {
                "reference": [_name(r) for r in self.unmatched.reference],
                "candidate": [_name(r) for r in self.unmatched.candidate],
            },
        }


def rows(result: PairResult) -> list[dict[str, Any]]:
    """A row a tensor: what JSON and CSV list."""
    pair, alone = result.pair, result.graft
    common = {
        "step": pair.reference.step,
        "phase": str(pair.reference.phase),
        "kind": str(pair.reference.kind),
        "reference": pair.reference.where,
        "candidate": pair.candidate.where,
        "nth": pair.reference.nth,
        "how": pair.how,
        "confidence": round(pair.confidence, 4),
        "judged": str(result.verdict),
        "rho": _number(alone.rho if alone else None),
        "rho64": _number(alone.rho64 if alone else None),
        "floor": alone.floor if alone else None,
        "precision": (alone.precision or None) if alone else None,
    }
    found = []
    for diff in result.diffs:
        m = diff.metrics
        found.append(
            {
                **common,
                "reference_slot": diff.reference.name,
                "candidate_slot": diff.candidate.name,
                "reference_shape": list(diff.reference.meta.shape),
                "candidate_shape": list(diff.candidate.meta.shape),
                "reference_dtype": diff.reference.meta.dtype,
                "candidate_dtype": diff.candidate.meta.dtype,
                "verdict": str(diff.verdict),
                "basis": diff.basis,
                "error": _number(diff.error),
                "limit": _number(diff.limit),
                "max_abs": _number(m.max_abs if m else None),
                "mean_abs": _number(m.mean_abs if m else None),
                "max_rel": _number(m.max_rel if m else None),
                "mean_rel": _number(m.mean_rel if m else None),
                "rmse": _number(m.rmse if m else None),
                "cosine": _number(m.cosine if m else None),
                "within": _number(m.within if m else None),
                "effective_bits": _number(m.effective_bits if m else None),
                "note": diff.note,
            }
        )
    return found


def _name(record: Record) -> dict[str, Any]:
    return {
        "step": record.step,
        "phase": str(record.phase),
        "kind": str(record.kind),
        "where": record.where,
        "nth": record.nth,
        "type": record.type if record.kind is not Kind.STATE else "state",
    }


_NO_REPRO = "only calls can be made again, of which the run kept all tensors"


def _rounded(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _number(value: float | None) -> float | str | None:
    """Strict JSON has no NaN and no infinities: they are written as words."""
    if value is None or value - value == 0:
        return value
    return str(value)
