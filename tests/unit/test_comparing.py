"""Comparing two traces that were written down by hand: what is said of each kind of difference."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from twinscope import Overall, Phase, Trace, Verdict, compare
from twinscope.errors import MatchError, OptionError, TraceError
from twinscope.judge import Context, Numbers, RoundoffJudge
from twinscope.metrics import array_stats
from twinscope.records import Kind, Manifest, ModuleInfo, ParamInfo, Record, Slot, Source, TensorMeta
from twinscope.result import Result
from twinscope.store import MemoryWriter
from unit.result_factory import write_trace
from unit.trace_factory import TraceFactory

X = np.arange(24, dtype=np.float32).reshape(4, 6) - 11
W = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
H = X @ W.T
Y = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


class Made:
    """A run of ``y = act(fc(x))``, every tensor of which may be replaced; `keep` says whether data is there."""

    def __init__(self, framework: str = "torch", *, fc: str = "fc", keep: bool = True, measured: bool = True) -> None:
        self.framework, self.fc, self.keep, self.measured = framework, fc, keep, measured
        weight = ParamInfo("weight", TensorMeta((6, 6), "float32"), "weight", True, False)
        modules = (
            ModuleInfo("", "net.Net", None, False),
            ModuleInfo(fc, f"{framework}.nn.Linear", "linear", True, (weight,)),
        )
        self.writer = MemoryWriter(Manifest(framework, {framework: "1"}, "net.Net", modules, {}))
        self.count = self.values = 0

    def slot(self, name: str, array: Any, value: int | None = None) -> Slot:
        self.values += 1
        number = 1000 * self.values if value is None else value
        if self.keep and number not in self.writer:
            self.writer.tensor(number, array)
        stats = array_stats(array) if self.measured else None
        return Slot(name, TensorMeta(array.shape, str(array.dtype)), number, stats, self.keep)

    def record(self, kind: Kind, phase: Phase, path: str, type_: str, call: int, *slots: Slot, step: int = 0) -> None:
        parent = {0: None, 1: 0, 2: 1, 3: 0}.get(call % 10)
        base = call - call % 10
        source = Source("net.py", 10 + call % 10, "forward")
        self.writer.record(
            Record(
                self.count,
                step,
                kind,
                phase,
                path,
                type_,
                -1 if kind is Kind.STATE else call,
                None if parent is None else base + parent,
                0,
                slots,
                source=source,
                builtin=call % 10 in (1, 2),
            )
        )
        self.count += 1

    def step(
        self, step: int = 0, *, x: Any = X, w: Any = W, h: Any = H, y: Any = Y, inner: Any = None, dw: Any = None
    ) -> Made:
        linear, base = f"{self.framework}.nn.Linear", 10 * step
        if step == 0:
            self.record(Kind.STATE, Phase.WEIGHT, self.fc, linear, -1, self.slot("weight", w), step=step)
        ids = {n: 100 * step + i for i, n in enumerate(("x", "h", "y", "inner"))}
        layer = (self.slot("in.0", x, ids["x"]), self.slot("out", h, ids["h"]))
        forward = Phase.FORWARD
        if inner is not None:
            op = f"{self.framework}.nn.functional.linear"
            slots = (self.slot("in.0", x, ids["x"]), self.slot("out", inner, ids["inner"]))
            self.record(Kind.OP, forward, self.fc, op, base + 2, *slots, step=step)
        self.record(Kind.MODULE, forward, self.fc, linear, base + 1, *layer, step=step)
        act = (self.slot("in.0", h, ids["h"]), self.slot("out", y, ids["y"]))
        self.record(Kind.OP, forward, "", f"{self.framework}.tanh", base + 3, *act, step=step)
        root = (self.slot("in.0", x, ids["x"]), self.slot("out", y, ids["y"]))
        self.record(Kind.MODULE, forward, "", "net.Net", base, *root, step=step)
        if dw is not None:
            self.record(Kind.STATE, Phase.GRADIENT, self.fc, linear, -1, self.slot("weight", dw), step=step)
        return self

    def trace(self, complete: bool = True) -> Trace:
        found = self.writer.trace()
        return replace(found, manifest=replace(found.manifest, complete=complete))


def run(framework: str = "torch", **arrays: Any) -> Trace:
    return Made(framework).step(**arrays).trace()


def against(reference: dict[str, Any], candidate: dict[str, Any], **options: Any) -> Result:
    return compare(run("torch", **reference), run("paddle", **candidate), **options)


def changed(array: Any, error: float, place: tuple[int, ...] = (1, 2)) -> Any:
    found = array.copy()
    found[place] += error
    return found


# -- same and different --------------------------------------------------------------------------------------------


def test_equal_runs_are_the_same() -> None:
    result = against({}, {})
    assert result.verdict is Overall.SAME and bool(result) is True
    assert not result.findings and result.first_divergence is None
    assert {p.verdict for p in result.pairs} == {Verdict.EXACT}


def test_noise_is_the_same() -> None:
    result = against({}, {"y": Y * np.float32(1 + 3e-7)})
    assert result.verdict is Overall.SAME
    assert result.counts()["NOISE"] == 2


def test_a_wrong_output_is_blamed_on_the_call_that_made_it() -> None:
    result = against({}, {"y": changed(Y, 0.5)})
    assert result.verdict is Overall.DIFFERENT and bool(result) is False
    (finding,) = result.findings
    assert finding is result.first_divergence
    assert finding.reference == finding.candidate == "(root) · tanh"
    assert finding.phase is Phase.FORWARD and finding.step == 0
    assert "worst at (1, 2)" in finding.message
    assert [str(s) for s in finding.source] == ["net.py:13", "net.py:13"]


def test_what_follows_from_a_wrong_tensor_is_not_blamed() -> None:
    result = against({}, {"h": changed(H, 5.0), "y": changed(Y, 0.5)})
    assert [f.reference for f in result.findings] == ["fc"]


def test_a_wrong_weight_is_told_first_and_the_call_is_the_first_divergence() -> None:
    result = against({}, {"w": changed(W, 0.5), "h": changed(H, 5.0), "y": changed(Y, 0.5)})
    assert [(f.phase, f.reference) for f in result.findings] == [(Phase.WEIGHT, "fc"), (Phase.FORWARD, "fc")]
    assert result.first_divergence is result.findings[1]


# -- tolerances: exactly what their documents say ------------------------------------------------------------------

TWOS = np.full((4, 6), 2.0, dtype=np.float32)


def below(number: float) -> float:
    """The next smaller one in float32, in which tensors of float32 are held against their tolerance."""
    return float(np.nextafter(np.float32(number), np.float32(0)))


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [
        ({"atol": 0.5}, Overall.SAME),
        ({"atol": below(0.5)}, Overall.DIFFERENT),
        ({"rtol": 0.25}, Overall.SAME),  # of the reference, which is 2
        ({"rtol": below(0.25)}, Overall.DIFFERENT),
        ({"atol": 0.25, "rtol": 0.125}, Overall.SAME),
        ({"atol": 0.25, "rtol": 0.1249}, Overall.DIFFERENT),
        ({"atol": 0.5, "mode": "strict"}, Overall.SAME),
        ({"atol": 0.25, "mode": "mean"}, Overall.SAME),
        ({"mode": "strict"}, Overall.DIFFERENT),
    ],
)
def test_strict_at_the_border(tolerance: dict[str, Any], expected: Overall) -> None:
    result = against({"y": TWOS}, {"y": changed(TWOS, 0.5)}, **tolerance)
    assert result.verdict is expected


def test_rtol_is_relative_to_the_reference() -> None:
    bigger = np.full((4, 6), 2.5, dtype=np.float32)
    assert against({"y": bigger}, {"y": TWOS}, rtol=0.2).verdict is Overall.SAME
    assert against({"y": TWOS}, {"y": bigger}, rtol=0.2).verdict is Overall.DIFFERENT


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [
        ({"atol": 1.0}, Overall.SAME),
        ({"atol": math.nextafter(1.0, 0)}, Overall.DIFFERENT),
        ({"rtol": 0.5}, Overall.SAME),
        ({"rtol": math.nextafter(0.5, 0)}, Overall.DIFFERENT),
        ({"atol": 0.5, "rtol": 0.25}, Overall.SAME),
        ({"atol": 0.5, "rtol": 0.2499}, Overall.DIFFERENT),
    ],
)
def test_mean_at_the_border(tolerance: dict[str, float], expected: Overall) -> None:
    """One element of 24 is off by 24: the mean of the error is 1, that of the reference 2."""
    result = against({"y": TWOS}, {"y": changed(TWOS, 24.0)}, mode="mean", **tolerance)
    assert result.verdict is expected
    assert against({"y": TWOS}, {"y": changed(TWOS, 24.0)}, mode="strict", **tolerance).verdict is Overall.DIFFERENT


def test_mean_is_of_the_error_not_the_error_of_means() -> None:
    assert Y.mean() == pytest.approx(Y[::-1].mean(), rel=1e-6)
    result = against({}, {"y": Y[::-1].copy()}, mode="mean", atol=1e-3)
    assert result.verdict is Overall.DIFFERENT
    assert against({}, {"y": Y[::-1].copy()}).verdict is Overall.DIFFERENT


def test_mean_takes_magnitudes() -> None:
    """Errors that cancel, on a reference whose values cancel."""
    signs = np.where(np.arange(24).reshape(4, 6) % 2, 1.0, -1.0).astype(np.float32)
    assert against({"y": signs}, {"y": signs * 2}, mode="mean", atol=0.5).verdict is Overall.DIFFERENT
    assert against({"y": signs}, {"y": signs * 2}, mode="mean", rtol=1.0).verdict is Overall.SAME


def test_the_tolerance_is_told_and_is_of_this_call_alone() -> None:
    wrong = {"y": changed(Y, 0.5)}
    result = against({}, wrong, atol=10, rtol=0.1, mode="mean")
    assert (
        result and result.options["atol"] == 10 and result.options["rtol"] == 0.1 and result.options["mode"] == "mean"
    )
    later = against({}, wrong)
    assert not later and "atol" not in later.options


def test_a_tolerance_excuses_no_nan() -> None:
    assert not against({}, {"y": changed(Y, math.nan)}, atol=1e30, rtol=1e30)


# -- NaN, Inf ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_on_one_side(value: float) -> None:
    result = against({}, {"y": changed(Y, value)})
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None
    assert "NaN or Inf on one side only in 1 places, first at (1, 2)" in result.first_divergence.message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_on_both_sides(value: float) -> None:
    assert against({"y": changed(Y, value)}, {"y": changed(Y, value)}).verdict is Overall.SAME
    elsewhere = changed(Y, value, (0, 0))
    assert against({"y": changed(Y, value)}, {"y": elsewhere}).verdict is Overall.DIFFERENT


def test_infinities_have_a_sign() -> None:
    assert not against({"y": changed(Y, math.inf)}, {"y": changed(Y, -math.inf)})


def test_nothing_but_nan() -> None:
    nothing = np.full((4, 6), np.nan, np.float32)
    result = against({"y": nothing}, {"y": nothing})
    assert result.verdict is Overall.UNDECIDED  # NaN agrees with NaN, but shows nothing
    assert any("no finite number" in n for n in result.notes)
    assert against({"y": nothing}, {"y": Y}).verdict is Overall.DIFFERENT


# -- shapes, layouts, dtypes ---------------------------------------------------------------------------------------


def test_shapes_that_differ() -> None:
    result = against({}, {"y": Y[:, :5].copy()})
    assert result.verdict is Overall.DIFFERENT
    assert any("shapes differ: (4, 6) and (4, 5)" in f.message for f in result.findings)


def test_another_layout_is_the_same_and_said() -> None:
    result = against({}, {"y": np.ascontiguousarray(Y.T)})
    assert result.verdict is Overall.SAME
    notes = [d.note for p in result.pairs for d in p.diffs if d.note]
    assert notes and all("compared after permuting axes: (6, 4) to (4, 6)" in n for n in notes)
    assert not against({}, {"y": np.ascontiguousarray(changed(Y, 0.5).T)})


def test_an_axis_of_one_more_or_less() -> None:
    assert against({}, {"y": Y.reshape(4, 1, 6)}).verdict is Overall.SAME
    assert not against({}, {"y": changed(Y, 0.5).reshape(4, 1, 6)})


def test_same_values_in_another_order_are_different() -> None:
    square = np.random.default_rng(2).standard_normal((6, 6)).astype(np.float32)
    result = against({"y": square}, {"y": square.T.copy()})
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None
    assert "same values in another layout" in result.first_divergence.message


def test_dtypes_that_differ() -> None:
    half = Y.astype(np.float16)
    result = against({}, {"y": half})
    notes = {d.note for p in result.pairs for d in p.diffs if d.note}
    assert notes == {"dtypes differ: float32 and float16"}
    assert result.verdict is Overall.SAME  # as close as float16 can be
    assert not against({}, {"y": changed(half, 0.5)})
    brain = Y.astype(ml_dtypes.bfloat16)
    assert against({}, {"y": brain}).verdict is Overall.SAME
    assert not against({}, {"y": brain}, atol=1e-6)


def test_whole_numbers() -> None:
    numbers = np.arange(24).reshape(4, 6)
    assert against({"y": numbers}, {"y": numbers}).verdict is Overall.SAME
    assert not against({"y": numbers}, {"y": changed(numbers, 1)})  # type: ignore[arg-type]
    assert not against({"y": numbers > 3}, {"y": numbers > 4})


# -- statistics only -----------------------------------------------------------------------------------------------


def by_statistics(reference: dict[str, Any], candidate: dict[str, Any], **options: Any) -> Result:
    sides = (("torch", reference), ("paddle", candidate))
    return compare(*(Made(f, keep=False).step(**arrays).trace() for f, arrays in sides), **options)


def test_statistics_alone() -> None:
    result = by_statistics({}, {})
    assert result.verdict is Overall.SAME
    assert {d.basis for p in result.pairs for d in p.diffs} == {"stats"}
    assert any("by statistics only" in n and "reordering" in n for n in result.notes)
    assert not against({}, {}).notes


def test_statistics_do_not_show_a_reordering() -> None:
    assert by_statistics({}, {"y": Y[::-1].copy()}).verdict is Overall.SAME


@pytest.mark.parametrize(
    "wrong",
    [Y * np.float32(1.001), Y + np.float32(0.01), changed(Y, 0.5), changed(Y, math.nan), -Y, np.zeros_like(Y), Y[:3]],
    ids=["scaled", "moved", "one element", "nan", "negative", "zero", "shape"],
)
def test_statistics_show_other_numbers(wrong: Any) -> None:
    result = by_statistics({}, {"y": wrong})
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and "tanh" in (result.first_divergence.reference or "")


def test_statistics_of_another_layout() -> None:
    assert by_statistics({}, {"y": np.ascontiguousarray(Y.T)}).verdict is Overall.SAME


def test_a_tolerance_on_statistics() -> None:
    wrong = {"y": changed(Y, 0.01)}
    assert by_statistics({}, wrong, atol=0.1).verdict is Overall.SAME
    assert by_statistics({}, wrong, atol=1e-6).verdict is Overall.DIFFERENT


def test_neither_statistics_nor_data_is_nothing_to_compare() -> None:
    sides = (Made(f, keep=False, measured=False).step().trace() for f in ("torch", "paddle"))
    with pytest.raises(MatchError, match=r"nothing to compare: .*\nHint: are these two runs of the same network"):
        compare(*sides)


# -- phases, mapping, fold, judge ----------------------------------------------------------------------------------

DW = np.random.default_rng(3).standard_normal((6, 6)).astype(np.float32)


def test_phases() -> None:
    reference, candidate = {"dw": DW}, {"dw": changed(DW, 0.5)}
    result = against(reference, candidate)
    assert result.verdict is Overall.DIFFERENT
    assert [f.phase for f in result.findings] == [Phase.GRADIENT]
    for phases in (["forward"], ("weight", "forward"), [Phase.FORWARD]):
        result = against(reference, candidate, phases=phases)
        assert result.verdict is Overall.SAME
        assert {str(p.reference.phase) for p in result.pairs} == {str(p) for p in phases}
    with pytest.raises(OptionError, match=r"phases='front' is not known\nHint: use one of 'weight'"):
        against(reference, candidate, phases=["front"])


def test_mapping() -> None:
    first, second = Made("torch").step().trace(), Made("paddle", fc="dense").step().trace()
    result = compare(first, second, mapping={"fc": "dense"})
    assert result.verdict is Overall.SAME
    pairs = {(p.reference.path, p.candidate.path) for p in result.pairs}
    assert ("fc", "dense") in pairs
    for wrong in ({"fc": "dens"}, {"fx": "dense"}):
        with pytest.raises(MatchError, match="Hint:"):
            compare(first, second, mapping=wrong)


def test_what_a_frameworks_own_layer_does_inside_is_its_own_business() -> None:
    reference, candidate = {"inner": H}, {"inner": H * 2}
    assert against(reference, candidate).verdict is Overall.SAME
    assert against(reference, candidate, fold=False).verdict is Overall.DIFFERENT
    assert against(reference, {"inner": H}, fold=False).verdict is Overall.SAME
    # but not what it gives back
    assert against(reference, {"inner": H, "h": H * 2}).verdict is Overall.DIFFERENT


def test_another_judge() -> None:
    class Merciful(RoundoffJudge):
        def verdict(self, numbers: Numbers, context: Context) -> Verdict:
            return Verdict.NOISE

    result = against({}, {"y": changed(Y, 0.5)}, judge=Merciful())
    assert result.verdict is Overall.SAME and result.options["judge"] == "Merciful"
    with pytest.raises(OptionError, match="contradict each other"):
        against({}, {}, judge=Merciful(), atol=1.0)


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    result = against({}, {}, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(result.pairs)) for i in range(len(result.pairs))]


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_module_without_a_partner(side: str) -> None:
    def network(extra: bool) -> Any:
        t = TraceFactory("torch")
        t.module("fc", "linear", weight=(6, 6))
        if extra:
            t.module("norm", "layer_norm", weight=(6,))
        x = t.tensor((4, 6), "x")
        with t.call("", x) as root:
            h = t.leaf("fc", x, content="h")
            if extra:
                h = t.leaf("norm", h, content="normed")
            root.returns(t.op("torch.relu", h, content="y"))
        return stored(t.trace())

    traces = (network(side == "reference"), network(side == "candidate"))
    result = compare(*traces)
    (missing,) = [f for f in result.findings if f.verdict is Verdict.MISSING]
    assert (missing.reference if side == "reference" else missing.candidate) == "norm"
    assert (missing.candidate if side == "reference" else missing.reference) is None
    assert missing.message == f"called on the {side}'s side only"
    assert "norm" in [r.path for r in (*result.unmatched.reference, *result.unmatched.candidate)]
    alike = compare(network(True), network(True))
    assert alike and not alike.findings and not len(alike.unmatched)


def stored(made: Any) -> Trace:
    writer = MemoryWriter(made.manifest)
    for record in made.records:
        writer.record(record)
    return writer.trace()


def test_an_incomplete_trace_is_not_called_the_same() -> None:
    for flags, side in (((False, True), "reference"), ((True, False), "candidate")):
        first, second = (Made(f).step().trace(c) for f, c in zip(("torch", "paddle"), flags, strict=True))
        result = compare(first, second)
        assert result.verdict is Overall.UNDECIDED and not result
        assert any(f"the {side}'s trace is incomplete" in n for n in result.notes)
    wrong = Made("paddle").step(y=changed(Y, 0.5)).trace(False)
    assert compare(run(), wrong).verdict is Overall.DIFFERENT


def test_steps_of_one_side_only() -> None:
    def steps(framework: str, count: int, **last: Any) -> Trace:
        made = Made(framework)
        for step in range(count):
            made.step(step, **(last if step == count - 1 else {}))
        return made.trace()

    assert compare(steps("torch", 3), steps("paddle", 3)).verdict is Overall.SAME
    result = compare(steps("torch", 3), steps("paddle", 2))
    assert result.verdict is Overall.UNDECIDED
    assert any(
        "step 2: nothing of phase forward could be compared (recorded on one side only)" in n for n in result.notes
    )
    wrong = compare(steps("torch", 3), steps("paddle", 3, y=changed(Y, 0.5)))
    assert wrong.verdict is Overall.DIFFERENT
    assert wrong.first_divergence is not None and wrong.first_divergence.step == 2


def test_gradients_of_one_side_only() -> None:
    result = against({"dw": DW}, {})
    assert result.verdict is Overall.UNDECIDED
    assert any("phase gradient" in n for n in result.notes)
    assert against({"dw": DW}, {}, phases=["forward"]).verdict is Overall.SAME


def test_nothing_in_common() -> None:
    other = TraceFactory("paddle")
    other.module("emb", "embedding", weight=(11, 3))
    ids = other.tensor((7,), "ids", "int64")
    with other.call("", ids) as root:
        root.returns(other.leaf("emb", ids, out=(7, 3)))
    empty = replace(stored(other.trace()), records=())
    with pytest.raises(MatchError, match="Hint:"):
        compare(run(), empty)


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "candidate",
    [{}, {"y": changed(Y, 0.5)}, {"y": changed(Y, math.nan)}, {"y": np.full((4, 6), np.inf, np.float32)}, {"y": Y[:2]}],
    ids=["same", "different", "nan", "inf", "shape"],
)
def test_results_are_strict_json(candidate: dict[str, Any]) -> None:
    for result in (against({}, candidate), by_statistics({}, candidate), against({}, candidate, atol=0.0)):
        found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert found["verdict"] == str(result.verdict)
        assert len(found["pairs"]) == sum(len(p.diffs) for p in result.pairs)
        assert found["counts"] == result.counts()
        assert (found["first_divergence"] is None) == (result.first_divergence is None)
        assert str(result)


def test_traces_on_disk(tmp_path: Path) -> None:
    first, second = write_trace(tmp_path / "a"), write_trace(tmp_path / "b", framework="paddle", factor=1.5)
    assert compare(first, str(first)).verdict is Overall.SAME
    result = compare(Trace.open(first), second)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and "relu" in (result.first_divergence.reference or "")
    with pytest.raises(TraceError, match="Hint:"):
        compare(first, tmp_path / "nowhere")
