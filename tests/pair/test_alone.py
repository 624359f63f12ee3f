"""Every call judged alone by a tolerance: what inherits a difference is not blamed for it; with negative twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinscope import Inputs, Overall, Phase, Result, Verdict, align
from twinscope.adapters._registry import by_name
from twinscope.errors import OptionError
from zoo import zoo

pytestmark = pytest.mark.filterwarnings("ignore")


def aligned(pair: tuple[str, str], name: str = "mlp", bent: str = "", **options: Any) -> Result:
    """A network of the zoo against its twin; with `bent`, that layer's weights are three parts in a hundred off."""
    first, second = (zoo(framework)[name] for framework in pair)
    by_name(pair[0]).seed(1)
    reference, candidate = first.build(), second.build()
    inputs = Inputs(*first.args(), **first.kwargs())
    align(reference, candidate, inputs, backward=False, atol=1.0)  # carries the weights across
    adapter = by_name(pair[1])
    for info, module in adapter.modules(candidate):
        if bent and info.path == bent:
            for p in info.params:
                tensor = adapter.state(module)[p.name]
                adapter.assign(tensor, np.asarray(adapter.to_numpy(tensor) * 1.03))
    held = [adapter.to_numpy(t).copy() for _, m in adapter.modules(candidate) for t in adapter.state(m).values()]
    result = align(reference, candidate, inputs, weights=False, alone=True, **options)
    now = [adapter.to_numpy(t) for _, m in adapter.modules(candidate) for t in adapter.state(m).values()]
    assert all(np.array_equal(a, b) for a, b in zip(held, now, strict=True)), "left as it was"
    return result


@pytest.mark.parametrize("mode", ["mean", "strict"])
@pytest.mark.parametrize("name", ["mlp", "transformer_block", "gru", "nested_outputs", "inplace", "tied_weights"])
def test_the_same_passes_alone(pair: tuple[str, str], name: str, mode: str) -> None:
    result = aligned(pair, name, atol=1e-4, rtol=1e-4, mode=mode)
    assert result.verdict is Overall.SAME, str(result)
    judged = {p.reference.phase for p in result.pairs if p.diffs}
    assert {Phase.FORWARD, Phase.BACKWARD} <= judged


@pytest.mark.parametrize("mode", ["mean", "strict"])
def test_only_the_call_itself_is_blamed(pair: tuple[str, str], mode: str) -> None:
    result = aligned(pair, bent="fc2", atol=1e-5, rtol=1e-5, mode=mode)
    assert result.verdict is Overall.DIFFERENT
    bad = {p.reference.path for p in result.pairs if p.verdict is Verdict.BUG}
    assert bad == {"fc2"}, "what comes after it is given the reference's tensors"
    assert result.first_divergence is not None and result.first_divergence.reference == "fc2"
    plain = align_again(pair, atol=1e-5, rtol=1e-5, mode=mode)
    assert "fc3" in {p.reference.path for p in plain.pairs if p.verdict is Verdict.BUG}, "in the run it inherits"
    assert aligned(pair, bent="fc2", atol=10.0, mode=mode), "what was asked for"


def align_again(pair: tuple[str, str], **options: Any) -> Result:
    first, second = (zoo(framework)["mlp"] for framework in pair)
    by_name(pair[0]).seed(1)
    reference, candidate = first.build(), second.build()
    inputs = Inputs(*first.args(), **first.kwargs())
    align(reference, candidate, inputs, backward=False, atol=1.0)
    adapter = by_name(pair[1])
    for info, module in adapter.modules(candidate):
        if info.path == "fc2":
            for p in info.params:
                tensor = adapter.state(module)[p.name]
                adapter.assign(tensor, np.asarray(adapter.to_numpy(tensor) * 1.03))
    return align(reference, candidate, inputs, weights=False, **options)


def test_phases(pair: tuple[str, str]) -> None:
    result = aligned(pair, bent="fc2", atol=1e-5, phases=["backward"])
    assert {p.reference.phase for p in result.pairs} == {Phase.BACKWARD}
    assert {f.phase for f in result.findings} == {Phase.BACKWARD}
    result = aligned(pair, bent="fc2", atol=1e-5, phases=["forward"], hold=True)
    assert {p.reference.phase for p in result.pairs} == {Phase.FORWARD}
    made = next(p for p in result.pairs if p.verdict is Verdict.BUG)
    left, right = result.tensors(made, made.diffs[0])
    assert left is not None and right is not None and made.diffs[0].metrics is not None
    assert np.abs(left - right).max() == pytest.approx(made.diffs[0].metrics.max_abs)


def test_without_a_tolerance_it_is_done_anyway(pair: tuple[str, str]) -> None:
    assert aligned(pair)
    assert not aligned(pair, bent="fc2")


def test_misuse(pair: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="alone='yes' is neither True nor False"):
        align(None, None, None, alone="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="alone=True and an optimizer contradict each other"):
        align(None, None, None, alone=True, optimizer=(1, 2))
