"""Results and traces for tests of reports and of the command line: written down by hand, without a framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twinscope.match import Matching, Pair
from twinscope.metrics import array_stats, compare_arrays
from twinscope.records import (
    Kind,
    Manifest,
    ModuleInfo,
    Overall,
    ParamInfo,
    Phase,
    Record,
    Slot,
    Source,
    Stats,
    TensorMeta,
    Verdict,
)
from twinscope.result import Finding, PairResult, Result, SlotDiff, Unmatched
from twinscope.store import TraceWriter

STATS = Stats(-1.0, 1.0, 0.0, 0.5, 2.0, 0, 0, 0xABC)
LONG = "encoder.layers.7.self_attention.query_projection_of_the_decoder.with_a_very_long_name_without_any_dot"


class ResultFactory:
    """One side's calls with a verdict each; `result()` makes the rest up."""

    def __init__(self) -> None:
        self.pairs: list[PairResult] = []
        self.missing: list[Record] = []
        self.findings: list[Finding] = []
        self._index = 0

    def record(
        self, path: str, type_: str, call: int, parent: int | None, *, op: bool = False, **more: object
    ) -> Record:
        self._index += 1
        builtin = type_.startswith(("torch.", "paddle."))
        common = {"phase": Phase.FORWARD, "step": 0, "nth": 0, "builtin": builtin and not op, **more}
        kind = Kind.OP if op else Kind.MODULE
        return Record(index=self._index, kind=kind, path=path, type=type_, call_id=call, parent_id=parent, **common)

    def pair(
        self,
        record: Record,
        verdict: Verdict,
        *,
        candidate: str | None = None,
        error: float | None = 1e-7,
        limit: float | None = 1e-5,
        source: str = "port.py:17",
    ) -> PairResult:
        file, _, line = source.partition(":")
        partner = Record(
            index=record.index,
            step=record.step,
            kind=record.kind,
            phase=record.phase,
            path=record.path if candidate is None else candidate,
            type=record.type,
            call_id=record.call_id,
            parent_id=record.parent_id,
            nth=record.nth,
            source=Source(file, int(line), "forward"),
        )
        slot = Slot("out", TensorMeta((2, 3), "float32"), record.index, STATS, True)
        left = np.arange(6, dtype=np.float32).reshape(2, 3)
        right = left.copy()
        if verdict not in (Verdict.EXACT, Verdict.UNDECIDED):
            right[1, 1] += 0.25 if verdict is Verdict.BUG else 1e-6
        if verdict is Verdict.UNDECIDED:
            diff = SlotDiff(slot, slot, verdict, "none", note="nothing was kept of it")
        else:
            exact = verdict is Verdict.EXACT
            metrics = compare_arrays(left, right)
            diff = SlotDiff(slot, slot, verdict, "tensors", 0.0 if exact else error, limit, metrics)
        found = PairResult(Pair(record, partner, "path", 1.0, ((slot, slot),)), verdict, (diff,))
        self.pairs.append(found)
        return found

    def finding(self, pair: PairResult, message: str = "") -> None:
        a, b = pair.reference, pair.candidate
        number = pair.worst
        text = message
        if number is not None and number.error is not None:
            text = "; ".join(
                t for t in (message, f"out off by {number.error:.2g} of its scale, noise explains 1e-05") if t
            )
        self.findings.append(
            Finding(pair.verdict, a.phase, a.step, a.where, b.where, (a.source, b.source), text, {}, None, pair)
        )

    def lost(self, record: Record, message: str = "called on the reference's side only") -> None:
        self.missing.append(record)
        self.findings.append(
            Finding(Verdict.MISSING, record.phase, record.step, record.where, None, (record.source, None), message)
        )

    def result(self, verdict: Overall, notes: tuple[str, ...] = (), **options: object) -> Result:
        first = next((f for f in self.findings if f.verdict is Verdict.BUG), None)
        return Result(
            verdict=verdict,
            findings=tuple(self.findings),
            pairs=tuple(self.pairs),
            unmatched=Unmatched(tuple(self.missing), ()),
            first_divergence=first,
            reference=Manifest("torch", {"torch": "2.13.0"}, "model.Classifier", (), {}, complete=True),
            candidate=Manifest("paddle", {"paddle": "3.3.1"}, "port.Classifier", (), {}, complete=True),
            matching=Matching(tuple(p.pair for p in self.pairs)),
            notes=notes,
            options=options,
        )


def network(verdict: Overall, *, layers: int = 3, bug_in: int = 1) -> Result:
    """A network of so many layers, compared with its port; DIFFERENT: one gelu is wrong, and one call is missing."""
    made = ResultFactory()
    bug = verdict is Overall.DIFFERENT
    call = 0
    after = Verdict.NOISE

    def noise(record: Record, candidate: str | None = None) -> PairResult:
        if verdict is Overall.UNDECIDED and record.path.endswith("pool"):
            return made.pair(record, Verdict.UNDECIDED)
        return made.pair(record, after, candidate=candidate, error=3e-4 if after is Verdict.BUG else 1e-7)

    root = made.record("", "model.Classifier", 0, None, source=Source("train.py", 5, "<module>"))
    for i in range(layers):
        call += 1
        path = f"layers.{i}"
        layer = made.record(path, "model.Block", call, 0, source=Source("model.py", 60, "forward"))
        top = call
        for name, kind in (("norm", "torch.nn.LayerNorm"), ("fc1", "torch.nn.Linear")):
            call += 1
            inner = made.record(f"{path}.{name}", kind, call, top, source=Source("model.py", 40, "forward"))
            noise(inner, f"blocks.{i}.{name}")
            call += 1
            noise(made.record(f"{path}.{name}", "torch.nn.functional.linear", call, call - 1, op=True, builtin=True))
        call += 1
        gelu = made.record(path, "torch.gelu", call, top, op=True, source=Source("model.py", 41, "forward"))
        if bug and i == bug_in:
            made.finding(made.pair(gelu, Verdict.BUG, candidate=f"blocks.{i}", error=2.4e-4))
            after = Verdict.BUG
        else:
            noise(gelu, f"blocks.{i}")
        noise(layer, f"blocks.{i}")
    call += 1
    pool = made.record("pool", "torch.nn.AdaptiveAvgPool1d", call, 0)
    noise(pool)
    call += 1
    if bug:
        made.lost(made.record(LONG, "torch.nn.Linear", call, 0, source=Source("model.py", 77, "forward")))
    else:
        made.pair(made.record(LONG, "torch.nn.Linear", call, 0), Verdict.EXACT)
    noise(root)
    notes: tuple[str, ...] = ()
    if verdict is Overall.UNDECIDED:
        notes = ("step 0: nothing of phase backward could be compared (recorded on one side only)",)
    elif verdict is Overall.SAME:
        notes = ("3 tensors were compared by statistics only: a reordering of values would not show",)
    return made.result(verdict, notes)


def write_trace(
    place: Path, *, framework: str = "torch", factor: float = 1.0, backward: bool = True, nan: bool = False
) -> Path:
    """A trace of ``y = relu(x @ w)`` as a framework might have run it; `factor` is a bug in the relu."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((5, 6)).astype(np.float32)
    h = x @ w.T
    y = np.maximum(h, 0) * np.float32(factor)
    if nan:
        y[2, 3] = np.nan
    weight = ParamInfo("weight", TensorMeta((5, 6), "float32"), "weight", True, False)
    modules = (
        ModuleInfo("", "net.Net", None, False),
        ModuleInfo("fc", f"{framework}.nn.Linear", "linear", True, (weight,)),
    )
    manifest = Manifest(framework, {framework: "1.0"}, "net.Net", modules, {})
    source = Source("net.py", 12, "forward")
    with TraceWriter(place, manifest) as writer:

        def slot(name: str, value: int, array: np.ndarray) -> Slot:  # type: ignore[type-arg]
            if value not in writer:
                writer.tensor(value, array)
            return Slot(name, TensorMeta(array.shape, "float32"), value, array_stats(array), True)

        def record(index: int, kind: Kind, phase: Phase, path: str, type_: str, call: int, *slots: Slot) -> None:
            parent = {0: None, 1: 0, 2: 1, 3: 0}.get(call)
            found = slots if phase is Phase.FORWARD else tuple(s for s in slots)
            builtin = call in (1, 2)
            line = source if kind is not Kind.STATE else None
            writer.record(
                Record(index, 0, kind, phase, path, type_, call, parent, 0, found, source=line, builtin=builtin)
            )

        linear, relu = f"{framework}.nn.functional.linear", f"{framework}.nn.functional.relu"
        record(0, Kind.STATE, Phase.WEIGHT, "fc", f"{framework}.nn.Linear", -1, slot("weight", 9, w))
        record(1, Kind.OP, Phase.FORWARD, "fc", linear, 2, slot("in.0", 0, x), slot("out", 1, h))
        layer = (slot("in.0", 0, x), slot("out", 1, h))
        record(2, Kind.MODULE, Phase.FORWARD, "fc", f"{framework}.nn.Linear", 1, *layer)
        record(3, Kind.OP, Phase.FORWARD, "", relu, 3, slot("in.0", 1, h), slot("out", 2, y))
        record(4, Kind.MODULE, Phase.FORWARD, "", "net.Net", 0, slot("in.0", 0, x), slot("out", 2, y))
        if backward:
            gradient = np.ones_like(y)
            record(5, Kind.MODULE, Phase.BACKWARD, "", "net.Net", 0, slot("out", 5, gradient))
            dw = (gradient * (h > 0)).T @ x
            record(6, Kind.STATE, Phase.GRADIENT, "fc", f"{framework}.nn.Linear", -1, slot("weight", 6, dw))
    return place
