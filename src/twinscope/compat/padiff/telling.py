"""What a result comes to in these systems' words: the place of the first difference, trees, stacks, log files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import twinscope
from twinscope import Finding, Phase, Record, Result, Verdict

from .layer_map import Resolved
from .logs import write_log
from .mismatch import mismatch
from .naming import described, framework_of, title
from .stacks import stack_text
from .trees import full_path, titled, tree_of_calls

#: Longer trees go into a file.
LONGEST = 100


@dataclass(frozen=True, slots=True)
class Telling:
    """A result of two models, and how to speak of it. The second model is the reference."""

    layer: Any
    module: Any
    result: Result
    atol: float
    rtol: float
    mode: str
    labels: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    said: Resolved = field(default_factory=Resolved)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def max_output_diff(self) -> float:
        """The largest difference between elements of what the two networks returned."""
        found = [
            d.metrics.max_abs
            for p in self.result.pairs
            if p.reference.phase is Phase.FORWARD and p.reference.path == "" and p.reference.kind == "module"
            for d in p.diffs
            if d.reference.side == "out" and d.metrics is not None
        ]
        return max(found, default=float("nan"))

    def compared(self, phase: Phase) -> int:
        """How many pairs of a phase were compared."""
        return sum(p.reference.phase is phase and any(d.basis != "none" for d in p.diffs) for p in self.result.pairs)

    def mismatch(self, pair: Any, diff: Any) -> str:
        left, right = self.result.tensors(pair, diff)
        if left is None or right is None:
            return f"Not equal to tolerance rtol={self.rtol:g}, atol={self.atol:g}\n\n{diff.note}"
        return mismatch(left, right, atol=self.atol, rtol=self.rtol, mode=self.mode)

    # -- where ---------------------------------------------------------------------------------------------------------

    def first(self, *phases: Phase) -> Finding | None:
        """The first finding of these phases that is about two calls, or two layers, that differ."""
        bad = (f for f in self.result.findings if f.verdict is Verdict.BUG and f.phase in phases)
        return next((f for f in bad if f.pair is not None), None)

    def differing(self, phase: str) -> list[tuple[Any, Any]]:
        """Every pair of tensors of a phase that differs, with the pair of records that it belongs to."""
        return [
            (pair, diff)
            for pair in self.result.pairs
            if pair.reference.phase == phase and pair.verdict is Verdict.BUG
            for diff in pair.diffs
            if diff.verdict is Verdict.BUG
        ]

    def records(self, finding: Finding) -> tuple[Record, Record]:
        """The calls to show: those of the second model and of the first, the op within where a layer is but one."""
        assert finding.pair is not None and self.result.traces is not None
        pair = finding.pair
        found = [
            _named(trace.records, where, _forward_of(trace.records, record))
            for trace, record, where in zip(
                self.result.traces,
                (pair.reference, pair.candidate),
                (finding.reference, finding.candidate),
                strict=True,
            )
        ]
        inner = [_only_op(trace.records, record) for trace, record in zip(self.result.traces, found, strict=True)]
        if inner[0] is not None and inner[1] is not None:
            return inner[0], inner[1]
        return found[0], found[1]

    def net_id(self, model: Any, record: Record) -> int:
        """The number of a module among its model's; -1 for a function."""
        if record.kind != "module":
            return -1
        return [info.path for info, _ in twinscope.modules_of(model)].index(record.path)

    def type_of(self, record: Record) -> str:
        return f"<class '{record.type}'>" if record.kind == "module" else record.type

    # -- texts ---------------------------------------------------------------------------------------------------------

    def numbers(self, finding: Finding) -> str:
        """The mismatch of what differs most among what the call made."""
        assert finding.pair is not None
        pair = finding.pair
        made = "out" if finding.phase is Phase.FORWARD else "in"
        bad = [d for d in pair.diffs if d.verdict is Verdict.BUG]
        own = [d for d in bad if d.reference.side == made] or bad or list(pair.diffs)
        worst = max(own, key=lambda d: d.error if d.error is not None else -1.0)
        return self.mismatch(pair, worst)

    def known(self, finding: Finding) -> str:
        """What Twinscope says beyond that."""
        lines = " | ".join(dict.fromkeys(str(s) for s in finding.source if s is not None))
        cause = f"\nCause: {finding.cause}" if finding.cause else ""
        return f"{finding.message}{f' ({lines})' if lines else ''}{cause}"

    def trees(self, records: tuple[Record, Record]) -> list[tuple[str, str]]:
        """Both models' calls with the place marked, the first model's first: a name for a file, and the text."""
        assert self.result.traces is not None
        theirs, mine = records
        drawn = []
        for model, trace, record, labels in (
            (self.layer, self.result.traces[1], mine, self.labels[0]),
            (self.module, self.result.traces[0], theirs, self.labels[1]),
        ):
            tree = tree_of_calls(trace.records, trace.manifest.model, {record.call_id}, labels)
            drawn.append((f"{framework_of(model)}_struct.log", titled(f"{title(model)} Model", tree)))
        return drawn

    def struct(self, records: tuple[Record, Record]) -> list[str]:
        """Both trees, or where they were written because they are long."""
        drawn = self.trees(records)
        if sum(len(text.splitlines()) for _, text in drawn) <= LONGEST:
            return [text for _, text in drawn]
        paths = [write_log(name, text) for name, text in drawn]
        return [
            f"Model Struct saved to `{paths[1]}` and `{paths[0]}`.",
            "Please view the reports and checkout the layers which is marked with `<---  *** HERE ***` !",
        ]

    def stacks(self, records: tuple[Record, Record], second: str = "{} Stacks:") -> str:
        """Both stacks, the first model's first."""
        theirs, mine = records
        parts = [f"{title(self.layer)} Stacks:", "=" * 25, stack_text(mine)]
        parts += [second.format(title(self.module)), "=" * 25, stack_text(theirs)]
        return "\n".join(parts)

    def held_now(self) -> Telling:
        """The same of what the two models hold right now, compared by the same measure."""
        result = twinscope.compare(
            twinscope.snapshot(self.module),
            twinscope.snapshot(self.layer),
            phases=["weight"],
            atol=self.atol,
            rtol=self.rtol,
            mode=self.mode,
            mapping=self.said.hints,
            whole=self.said.whole,
            ignore=self.said.left_out(),
        )
        return replace(self, result=result)

    def state_log(self, name: str, what: str, pairs: Sequence[tuple[Any, Any]], more: str = "") -> str:
        """Write the list of all weights, or gradients, that differ; the path of the file."""
        return write_log(name, "\n\n".join([*(self.state_entry(what, *pair) for pair in pairs), more]))

    def state_entry(self, what: str, pair: Any, diff: Any) -> str:
        """A weight, or gradient, that differs: whose it is in both models, and by how much."""
        a, b = pair.reference, pair.candidate
        return "\n".join(
            [
                "=" * 25,
                f"{what} value is different.",
                f"between {framework_of(self.layer)}: `{described(self.layer, b.path)}`, "
                f"{framework_of(self.module)}: `{described(self.module, a.path)}`",
                f"{framework_of(self.layer)} path:",
                f"    {full_path(type(self.layer).__name__, b.path)}.{diff.candidate.name}",
                f"{framework_of(self.module)} path:",
                f"    {full_path(type(self.module).__name__, a.path)}.{diff.reference.name}",
                self.mismatch(pair, diff),
            ]
        )


def _forward_of(records: Sequence[Record], record: Record) -> Record:
    """The forward call that a backward record belongs to; of a layer's state, its first call."""
    if record.phase is Phase.FORWARD:
        return record
    forward = [r for r in records if r.phase is Phase.FORWARD]
    if record.phase is Phase.BACKWARD:
        return next((r for r in forward if r.call_id == record.call_id), record)
    return next((r for r in forward if r.path == record.path and r.kind == "module"), record)


def _named(records: Sequence[Record], where: str | None, record: Record) -> Record:
    """The call that a finding names, where that is an op without a partner, and not the one that shows it."""
    if where is None or where == record.where:
        return record
    return next((r for r in records if r.phase is Phase.FORWARD and r.where == where), record)


def _only_op(records: Sequence[Record], record: Record) -> Record | None:
    """The one function that a layer of the framework's own calls to make what it returns."""
    if record.kind != "module" or not record.builtin:
        return None
    inside = [r for r in records if r.phase is Phase.FORWARD and r.parent_id == record.call_id]
    made = {s.value for s in record.slots if s.side == "out"}
    makers = [r for r in inside if {s.value for s in r.slots if s.side == "out"} == made and r.kind == "op"]
    return makers[0] if len(inside) == 1 == len(makers) else None
