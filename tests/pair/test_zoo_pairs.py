"""The zoo of one framework against that of another, forward and backward; each with a negative twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinscope import Inputs, Overall, Phase, Verdict, align
from twinscope.adapters._registry import by_name
from twinscope.errors import WeightError
from zoo import NAMES, zoo

pytestmark = pytest.mark.filterwarnings("ignore")

ALIKE = [n for n in NAMES if n != "raises"]


def both(pair: tuple[str, str], name: str) -> tuple[Any, Any, Inputs, bool]:
    first, second = (zoo(framework)[name] for framework in pair)
    for framework in pair:
        by_name(framework).seed(1)  # log(x) near zero makes much of little: not every draw of weights is well behaved
    return first.build(), second.build(), Inputs(*first.args(), **first.kwargs()), first.backward


@pytest.mark.parametrize("name", ALIKE)
def test_the_same_network_is_called_the_same(pair: tuple[str, str], name: str) -> None:
    reference, candidate, inputs, backward = both(pair, name)
    result = align(reference, candidate, inputs, backward=backward)
    if name == "conv_bn" and "paddle" in pair and pair[0] != pair[1]:
        # Paddle's running variance is the biased one: the state after the step really is another
        assert {f.phase for f in result.findings} == {Phase.BUFFER}
        assert all("var" in f.message for f in result.findings)
        return
    assert result.verdict is Overall.SAME, str(result)
    assert bool(result) and result.first_divergence is None
    phases = {p.reference.phase for p in result.pairs}
    assert Phase.FORWARD in phases
    if backward:
        assert Phase.BACKWARD in phases
        trainable = any(p.trainable for m in result.reference.modules for p in m.params)
        assert (Phase.GRADIENT in phases) == trainable
    outputs = [p for p in result.pairs if p.reference.path == "" and p.reference.phase is Phase.FORWARD]
    assert any(d.basis == "tensors" for p in outputs for d in p.diffs)


@pytest.mark.parametrize("name", [n for n in ALIKE if n != "no_parameters"])
def test_other_weights_are_called_different(pair: tuple[str, str], name: str) -> None:
    reference, candidate, inputs, backward = both(pair, name)
    adapter = by_name(pair[1])
    for info, module in adapter.modules(candidate):  # one network's biases and all: nothing may agree by chance
        for p in info.params:
            if p.trainable:
                tensor = adapter.state(module)[p.name]
                noise = np.random.default_rng(len(info.path)).standard_normal(p.meta.shape)
                adapter.assign(tensor, noise.astype(adapter.to_numpy(tensor).dtype))
    result = align(reference, candidate, inputs, weights=False, backward=backward)
    assert result.verdict is Overall.DIFFERENT
    assert not result
    assert result.first_divergence is not None
    assert any(f.phase is Phase.WEIGHT for f in result.findings)


def test_one_wrong_weight_is_found_where_it_is(pair: tuple[str, str]) -> None:
    reference, candidate, inputs, _ = both(pair, "mlp")
    align(reference, candidate, inputs)  # copies the weights
    adapter = by_name(pair[1])
    module = next(m for info, m in adapter.modules(candidate) if info.path == "fc2")
    weight = adapter.state(module)["weight"]
    changed = np.array(adapter.to_numpy(weight), copy=True)
    changed[1, 2] += 0.5
    adapter.assign(weight, changed)
    result = align(reference, candidate, inputs, weights=False)
    assert result.verdict is Overall.DIFFERENT
    assert [f.candidate for f in result.findings if f.phase is Phase.WEIGHT] == ["fc2"]
    assert result.first_divergence is not None
    assert (result.first_divergence.reference or "").startswith("fc2")
    assert result.first_divergence.verdict is Verdict.BUG
    sources = [s for s in result.first_divergence.source if s is not None]
    assert len(sources) == 2
    assert all("zoo" in s.file and s.line > 1 for s in sources)


def test_align_leaves_both_models_as_they_were(pair: tuple[str, str]) -> None:
    reference, candidate, inputs, _ = both(pair, "conv_bn")
    align(reference, candidate, inputs)
    before = [state_of(pair[0], reference), state_of(pair[1], candidate)]
    align(reference, candidate, inputs)
    after = [state_of(pair[0], reference), state_of(pair[1], candidate)]
    assert before == after


def state_of(framework: str, model: Any) -> dict[str, bytes]:
    adapter = by_name(framework)
    found = {}
    for info, module in adapter.modules(model):
        for name, tensor in adapter.state(module).items():
            found[info.param_path(name)] = adapter.to_numpy(tensor).tobytes()
            gradient = adapter.gradient(tensor)
            found[info.param_path(name) + " gradient"] = (
                b"" if gradient is None else adapter.to_numpy(gradient).tobytes()
            )
    return found


def test_weights_that_do_not_fit_change_nothing(pair: tuple[str, str]) -> None:
    reference, candidate = zoo(pair[0])["mlp"].build(), zoo(pair[1])["gru"].build()
    before = state_of(pair[1], candidate)
    with pytest.raises(WeightError, match="nothing was changed") as caught:
        align(reference, candidate, Inputs(*zoo(pair[0])["mlp"].args()))
    assert "the reference's fc1.weight [" in str(caught.value)
    assert "Hint:" in str(caught.value)
    assert state_of(pair[1], candidate) == before


def test_the_users_exception_comes_through(pair: tuple[str, str]) -> None:
    reference, candidate, inputs, _ = both(pair, "raises")
    with pytest.raises(KeyError, match="planted"):
        align(reference, candidate, inputs)
