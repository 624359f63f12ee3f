"""A result judged again by another measure, and comparisons that leave things out or take them whole."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from twinscope import Inputs, Overall, Phase, Result, align
from twinscope.adapters._registry import by_name
from twinscope.errors import MatchError, OptionError
from zoo import zoo

pytestmark = pytest.mark.filterwarnings("ignore")


def aligned(pair: tuple[str, str], bent: str = "", name: str = "mlp", **options: Any) -> Result:
    """The zoo's network against itself; with `bent`, that layer's weights are a part in a thousand off."""
    first, second = (zoo(framework)[name] for framework in pair)
    by_name(pair[0]).seed(1)
    reference, candidate = first.build(), second.build()
    inputs = Inputs(*first.args(), **first.kwargs())
    align(reference, candidate, inputs, backward=False)  # carries the weights across
    adapter = by_name(pair[1])
    for info, module in adapter.modules(candidate):
        if bent and info.path == bent:
            for p in info.params:
                tensor = adapter.state(module)[p.name]
                adapter.assign(tensor, np.asarray(adapter.to_numpy(tensor) * 1.001))
    return align(reference, candidate, inputs, weights=False, **options)


def test_a_result_is_judged_again_without_running_again(pair: tuple[str, str]) -> None:
    loose = aligned(pair, "fc2", atol=1.0, hold=True)
    assert loose, "within the tolerance"
    assert loose.judged().verdict is Overall.DIFFERENT
    assert loose.judged(atol=1e-9).verdict is Overall.DIFFERENT
    assert loose.judged(atol=1.0, mode="mean").verdict is Overall.SAME
    assert loose.judged(atol=1.0).counts() == loose.counts()
    free = aligned(pair, "fc2", hold=True)
    assert free.judged() is free
    assert free.judged(atol=1.0), "a tolerance overrules"


def test_the_same_is_the_same_by_every_measure(pair: tuple[str, str]) -> None:
    result = aligned(pair, atol=1e-4, hold=True)
    assert result and result.judged() and result.judged(rtol=1e-3, atol=1e-5, mode="mean")


def test_tensors_of_a_difference(pair: tuple[str, str]) -> None:
    result = aligned(pair, "fc2", atol=1e-5, hold=True)
    found = [p for p in result.pairs if p.reference.path == "fc2" and p.reference.phase is Phase.FORWARD]
    found += [p for p in result.pairs if p.reference.path == "fc2" and p.reference.phase is Phase.GRADIENT]
    compared = 0
    for made in found:
        for diff in made.diffs:
            left, right = result.tensors(made, diff)
            assert left is not None and right is not None and diff.metrics is not None
            assert left.shape == right.shape, "weights in one layout"
            assert np.abs(left - right).max() == pytest.approx(diff.metrics.max_abs)
            compared += diff.metrics.max_abs > 0
    assert compared > 2


def test_traces_go_unless_they_are_held(pair: tuple[str, str]) -> None:
    result = aligned(pair, atol=1e-4)
    assert result.traces is None
    with pytest.raises(OptionError, match="does not hold the two runs any more\nHint: pass hold=True to align"):
        result.judged()
    with pytest.raises(OptionError, match="does not hold"):
        result.tensors(result.pairs[0], result.pairs[0].diffs[0])
    with pytest.raises(OptionError, match="hold=1 is neither True nor False"):
        aligned(pair, hold=1)


def test_what_is_held_goes_with_the_result(pair: tuple[str, str]) -> None:
    result = aligned(pair, atol=1e-4, hold=True)
    assert result.traces is not None
    kept = [weakref.ref(result.traces[0].tensor(v)) for v in result.traces[0].kept]
    gc.collect()
    assert any(k() is not None for k in kept)
    del result
    gc.collect()
    assert not any(k() is not None for k in kept)


def test_what_is_ignored_is_not_compared(pair: tuple[str, str]) -> None:
    assert not aligned(pair, "fc3", atol=1e-6)
    result = aligned(pair, "fc3", atol=1e-6, ignore=["fc3", ""], backward=False)
    assert not result.findings
    assert not any(p.reference.path in ("fc3", "") for p in result.pairs)
    assert any(p.reference.path == "fc1" for p in result.pairs)
    one = aligned(pair, "fc3", ignore={"candidate": ["fc3", ""]}, atol=1e-6, backward=False)
    assert not any(p.candidate.path in ("fc3", "") for p in one.pairs)
    assert not aligned(pair, "fc1", atol=1e-6, ignore=["fc3"], backward=False), "the rest still is"


def test_what_is_whole_is_compared_by_what_it_returns(pair: tuple[str, str]) -> None:
    whole = aligned(pair, "fc2", atol=1e-7, whole={"": ""}, backward=False)
    assert {p.reference.path for p in whole.pairs} == {""}
    assert all(p.reference.phase is Phase.FORWARD for p in whole.pairs), "what it holds is its own business"
    assert not whole
    assert whole.first_divergence is not None and whole.first_divergence.reference == "(root)"
    assert aligned(pair, atol=1e-4, whole={"": ""}, backward=False)


def test_a_whole_that_is_not_there_is_an_error(pair: tuple[str, str]) -> None:
    with pytest.raises(MatchError, match="the reference has no module 'fc9'"):
        aligned(pair, whole={"fc9": "fc1"})
    with pytest.raises(OptionError, match="ignore has 'torch'\nHint: it has 'reference' and 'candidate'"):
        aligned(pair, ignore={"torch": ["fc1"]})
