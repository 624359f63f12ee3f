"""The mapper against twins: the same networks under other names, in another order, in another tree, fused, split.

A map is right when the outputs agree after the copy of weights of which no two are alike, and when it pairs what is
known to belong together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import InputPair, Inputs, WeightMap, copy_weights, map_weights, weight_rule
from twinscope.adapters._registry import by_name
from twinscope.errors import MatchError, OptionError, TwinscopeError, WeightError
from twinscope.running import as_arguments
from twinscope.weights.transforms import Split
from zoo import NAMES, normal, tokens, zoo
from zoo.forms import FORMS, forms
from zoo.twins import TWISTS, Twist, known_as, make_twin, tensors

pytestmark = pytest.mark.filterwarnings("ignore")

RUNNING = [n for n in NAMES if n not in ("raises", "no_parameters")]


# -- running and comparing -------------------------------------------------------------------------------------------


def fill(framework: str, model: Any, seed: int) -> None:
    """Numbers of which no two are alike, trainable or not, and running statistics; the same model gets the same again."""
    adapter, noise = by_name(framework), np.random.default_rng(seed)
    for info, module in adapter.modules(model):
        state = adapter.state(module)
        for p in info.params:
            if p.tied_to is not None or "float" not in p.meta.dtype or (p.buffer and "running" not in p.role):
                continue
            if p.role == "running_var":
                values = noise.uniform(0.5, 1.5, p.meta.shape)
            else:
                values = 0.4 * noise.standard_normal(p.meta.shape) + (p.role == "weight" and len(p.meta.shape) == 1)
            adapter.assign(state[p.name], np.asarray(values).astype(adapter.to_numpy(state[p.name]).dtype))


def outputs(framework: str, model: Any, inputs: Any) -> list[Any]:
    adapter = by_name(framework)
    args, kwargs = as_arguments(adapter, inputs)
    with adapter.evaluating(model):
        made = model(*args, **kwargs)
    return [np.array(adapter.to_numpy(t)).astype(np.float64) for _, t in adapter.leaves(made)]


def distance(pair: Sequence[str], models: Sequence[Any], inputs: Sequence[Any]) -> float:
    first, second = (outputs(*given) for given in zip(pair, models, inputs, strict=True))
    assert len(first) == len(second)
    found = [0.0]
    for x, y in zip(first, second, strict=True):
        y = y.reshape(x.shape)
        assert np.array_equal(np.isfinite(x), np.isfinite(y)) or not np.isfinite(y).all()
        kept = np.isfinite(x) & np.isfinite(y)
        found.append(1.0 if not kept.any() else float(np.abs(x - y)[kept].max() / max(np.abs(x[kept]).max(), 1e-9)))
    return max(found)


def contents(framework: str, model: Any) -> dict[str, Any]:
    adapter = by_name(framework)
    return {path: np.array(adapter.to_numpy(t)) for path, t in tensors(framework, model).items()}


def equal(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return list(before) == list(after) and all(x.tobytes() == after[path].tobytes() for path, x in before.items())


# -- twins of the zoo ------------------------------------------------------------------------------------------------


def twins(pair: tuple[str, str], name: str, twist: Twist) -> tuple[Any, Any, Inputs, dict[str, Any], dict[str, Any]]:
    """The reference, a twin of the candidate, inputs, and for each side what its paths are known as."""
    for seed, framework in enumerate(pair):
        by_name(framework).seed(seed)
    first, second = (zoo(framework)[name] for framework in pair)
    reference, candidate = first.build(), second.build()
    ours = make_twin(pair[0], reference, Twist())
    theirs = make_twin(pair[1], candidate, twist)
    return reference, candidate, Inputs(*first.args(), **first.kwargs()), ours, theirs


def wrong_pairs(mapping: WeightMap, ours: dict[str, Any], theirs: dict[str, Any], sure: bool = False) -> list[str]:
    """Entries that pair what is not known to belong together; those that are sure, or all."""
    roles: list[dict[str, set[str]]] = []
    for side in (ours, theirs):
        found: dict[str, set[str]] = {}
        for module, role in side.values():
            found.setdefault(module, set()).add(role)
        roles.append(found)
    wrong = []
    for e in mapping:
        if sure and not e.sure:
            continue
        modules = [{side[p][0] for p in paths} for side, paths in ((ours, e.reference), (theirs, e.candidate))]
        good = modules[0] == modules[1]
        if good and len(e.reference) == len(e.candidate) == 1:
            a, b = ours[e.reference[0]], theirs[e.candidate[0]]
            good = a[1] == b[1] or roles[0][a[0]] != roles[1][b[0]]
        if not good:
            wrong.append(f"{e.reference} -> {e.candidate} ({e.why}; {e.proof}; {e.confidence})")
    return wrong


def assert_carried(
    pair: tuple[str, str], models: Sequence[Any], mapping: WeightMap, inputs: Sequence[Any], noise: float = 1e-4
) -> None:
    """Filled anew, the two differ before the copy by this map and agree after it."""
    for seed, (framework, model) in enumerate(zip(pair, models, strict=True)):
        fill(framework, model, seed)
    assert distance(pair, models, inputs) > 1e-2
    copy_weights(*models, mapping=mapping)
    assert distance(pair, models, inputs) < noise, str(mapping)


@pytest.mark.parametrize("kind", TWISTS)
@pytest.mark.parametrize("name", RUNNING)
def test_a_twin_is_found_by_running(pair: tuple[str, str], name: str, kind: str) -> None:
    reference, candidate, inputs, ours, theirs = twins(pair, name, TWISTS[kind])
    before = [contents(f, m) for f, m in zip(pair, (reference, candidate), strict=True)]
    mapping = map_weights(reference, candidate, inputs)
    assert all(equal(b, contents(f, m)) for b, f, m in zip(before, pair, (reference, candidate), strict=True))
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)
    assert_carried(pair, (reference, candidate), mapping, (inputs, inputs), 0.03 if name == "bfloat16" else 1e-4)


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_block", "lstm", "recompute"])
def test_the_draw_does_not_change_the_map(pair: tuple[str, str], name: str, seed: int) -> None:
    reference, candidate, inputs, ours, theirs = twins(pair, name, replace(TWISTS["all"], seed=seed))
    mapping = map_weights(reference, candidate, inputs)
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)


@pytest.mark.parametrize("name", RUNNING)
def test_names_that_lie_do_not_win_over_running(pair: tuple[str, str], name: str) -> None:
    reference, candidate, inputs, ours, theirs = twins(pair, name, Twist(misnamed=True))
    mapping = map_weights(reference, candidate, inputs)
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", TWISTS)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "no_parameters"])
def test_without_running_nothing_wrong_is_called_sure(pair: tuple[str, str], name: str, kind: str, seed: int) -> None:
    reference, candidate, inputs, ours, theirs = twins(pair, name, replace(TWISTS[kind], seed=seed))
    mapping = map_weights(reference, candidate)
    assert not wrong_pairs(mapping, ours, theirs, sure=True), str(mapping)
    if kind == "reordered":
        assert mapping.complete, str(mapping)  # names are all that it needs
    if mapping.complete:
        if name != "raises":
            assert_carried(pair, (reference, candidate), mapping, (inputs, inputs), 0.03 if name == "bfloat16" else 1e-4)
        return
    assert all(e.options or e.why for e in mapping.unsure)
    before = contents(pair[1], candidate)
    with pytest.raises(WeightError, match="nothing was changed") as caught:
        copy_weights(reference, candidate)
    for e in mapping.unsure:  # every problem at once
        assert all(path in str(caught.value) for path in (*e.reference, *e.candidate))
    assert equal(before, contents(pair[1], candidate))


# -- other forms of the same -----------------------------------------------------------------------------------------


def build(framework: str, name: str, seed: int = 0) -> Any:
    np.random.seed(seed)
    by_name(framework).seed(seed)
    return forms(framework)[name]()


def both(pair: tuple[str, str], names: tuple[str, str]) -> tuple[Any, Any]:
    return build(pair[0], names[0]), build(pair[1], names[1], seed=1)


@pytest.mark.parametrize("way", [1, -1], ids=["there", "back"])
@pytest.mark.parametrize("names", FORMS, ids="-".join)
def test_another_form_is_found_by_running(pair: tuple[str, str], names: tuple[str, str], way: int) -> None:
    if way == -1 and names[0] == names[1]:
        pytest.skip("the same both ways")
    given = FORMS[names][::way]
    models = both(pair, names[::way])
    before = [contents(f, m) for f, m in zip(pair, models, strict=True)]
    mapping = map_weights(*models, InputPair(*given))
    assert all(equal(b, contents(f, m)) for b, f, m in zip(before, pair, models, strict=True))
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, given)
    back = mapping.inverted()  # a map works in both directions
    fill(pair[0], models[0], 7)
    copy_weights(*models[::-1], mapping=back)
    assert distance(pair, models, given) < 1e-4


@pytest.mark.parametrize("names", FORMS, ids="-".join)
def test_another_form_is_not_mapped_wrongly_without_running(pair: tuple[str, str], names: tuple[str, str]) -> None:
    """Either right, or said not to be sure."""
    models = both(pair, names)
    mapping = map_weights(*models)
    if mapping.complete:
        assert_carried(pair, models, mapping, FORMS[names])
        return
    before = contents(pair[1], models[1])
    with pytest.raises(WeightError, match="nothing was changed"):
        copy_weights(*models)
    assert equal(before, contents(pair[1], models[1]))
