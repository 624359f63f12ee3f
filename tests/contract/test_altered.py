"""Layers told otherwise in place, for every adapter and every setting of lint's table that it can be told.

A layer that is altered computes what a layer computes that was made so, and afterwards is what it was, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from twinscope.adapters._registry import by_name
from twinscope.explain.neutral import difference, neutral
from twinscope.explain.table import settings_of
from twinscope.replaying import _copy
from twinscope.running import unchanged
from zoo import normal, told

pytestmark = pytest.mark.filterwarnings("ignore")

SEQUENCES, PROBABLE = normal(2, 5, 8), 1 / (1 + np.exp(-normal(4, 3)))
CLASSES = np.array([0, 2, 1, 0], dtype=np.int32)
#: What the layers of a kind are called with, where `told` says nothing.
INPUTS: dict[str, tuple[Any, ...]] = {
    "conv2d": (told.IMAGE,),
    "batch_norm1d": (told.SIGNAL,),
    "instance_norm2d": (told.IMAGE,),
    "embedding": (told.IDS,),
    "prelu": (told.SEQUENCE,),
    "multihead_attention": (SEQUENCES,) * 3,
    "transformer_encoder_layer": (SEQUENCES,),
    "transformer_decoder_layer": (SEQUENCES,) * 2,
    **dict.fromkeys(("lstm", "gru", "rnn"), (normal(3, 5, 4),)),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss"), (normal(4, 3) * 3, normal(4, 3))),
    **dict.fromkeys(("bce_loss", "bce_with_logits_loss", "kl_div_loss"), (PROBABLE, PROBABLE[::-1].copy())),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss"), (normal(4, 3), CLASSES)),
}

#: What cannot be told in place: kind and setting...
CANNOT = {("conv2d", "channels_last"), ("prelu", "init")}
#: ... or only in one direction: what a layer declined it does not hold, and a norm of the rows changes weights.
CANNOT_THERE = {("embedding", "max_norm")}
CANNOT_BACK = {(kind, name) for c in told.CASES for kind, name in [(c.kind, c.setting)] if name in ("bias", "affine")}
CANNOT_BACK |= {("layer_norm", "elementwise_affine")}
#: MindSpore's kernel is not there on the CPU; the layer is altered all the same.
NO_KERNEL = {("mindspore", "instance_norm2d")}
#: MindSpore's kernels that draw what cannot be drawn again, in training.
DRAWS = ("dropout", "transformer")
#: MindSpore's sum over rows has no fixed order.
UNSTEADY = {("mindspore", "cross_entropy_loss")}


def outputs(framework: str, layer: Any, inputs: tuple[Any, ...], training: bool = False) -> list[np.ndarray]:
    """Forward, in this mode, from one state of the random numbers, buffers put back."""
    adapter, wide = by_name(framework), framework != "mindspore"
    given = [adapter.from_numpy(a.astype(np.int64) if a.dtype == np.int32 and wide else a) for a in inputs]
    with unchanged(adapter, layer), adapter.altered(layer, {"training": training}):
        adapter.seed(7)
        found, _ = adapter.run(layer, given, {}, None, False)
        kept = [t for m in adapter.parts(layer) for t in adapter.state(m).values()]
        return [_copy(adapter, t) for _, t in adapter.leaves((found, kept))]


def same(a: list[np.ndarray], b: list[np.ndarray], tolerance: float = 0.0) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and np.allclose(x, y, tolerance, 0.0, equal_nan=True) for x, y in zip(a, b, strict=True)
    )


def seen(framework: str, layer: Any) -> Any:
    """Everything that a layer and those within it hold, by identity."""
    parts = by_name(framework).parts(layer)
    inner = [(k, v) for part in parts for k, v in vars(part).items()]
    return [(key, id(value), [*value] if isinstance(value, dict) else None, _ids(value)) for key, value in inner], type(
        layer
    )


def _ids(value: Any) -> Any:
    if isinstance(value, dict):
        return [id(v) for v in value.values()]
    return [id(v) for v in value] if isinstance(value, list) else None


def settings(framework: str, layer: Any) -> dict[str, Any]:
    return neutral(framework, by_name(framework).modules(layer)[0][0])


def differing(kind: str, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """What must be told to a layer with these settings to make it one with those."""
    return {s.name: b[s.name] for s in settings_of(kind) if s.name in b and a.get(s.name) != b[s.name]}


def _weights(framework: str, source: Any, target: Any) -> bool:
    """Give `target` the weights of `source`; whether it holds the same."""
    adapter = by_name(framework)
    for (_, a), (_, b) in zip(adapter.modules(source), adapter.modules(target), strict=True):
        held, wanted = adapter.state(a), adapter.state(b)
        if not set(wanted) <= set(held) or any(tuple(held[n].shape) != tuple(wanted[n].shape) for n in wanted):
            return False
        for name, tensor in wanted.items():
            adapter.assign(tensor, np.array(adapter.to_numpy(held[name])))
    return True


def _cases() -> Iterator[Any]:
    for case in told.CASES:
        for back in (False, True):
            yield pytest.param(case, back, id=f"{case.name}-{'back' if back else 'there'}")


@pytest.mark.parametrize("case,back", list(_cases()))
def test_an_altered_layer_is_one_that_was_made_so(framework: str, case: told.Case, back: bool) -> None:
    texts = case.told.get(framework, ("", ""))
    if not all(texts):
        pytest.skip("has no such setting")
    adapter = by_name(framework)
    adapter.seed(0)
    layer, wanted = case.build(framework, back), case.build(framework, not back)
    if "mint" in texts[0] + texts[1]:
        pytest.skip("two classes")
    inputs = INPUTS[case.kind] if case.inputs is None else (case.inputs,)
    change = differing(case.kind, settings(framework, layer), settings(framework, wanted))
    fits = _weights(framework, layer, wanted)
    cannot = CANNOT | (CANNOT_BACK if back else CANNOT_THERE)
    runs = (framework, case.kind) not in NO_KERNEL and case.setting != "channels_last"
    near = 1e-6 if (framework, case.kind) in UNSTEADY else 0.0
    before, result = seen(framework, layer), outputs(framework, layer, inputs) if runs else []
    with adapter.altered(layer, change) as changed:
        if (case.kind, case.setting) in cannot or not fits:
            assert not changed and seen(framework, layer) == before
        else:
            assert changed, change
            now, goal = settings(framework, layer), settings(framework, wanted)
            left = [s.name for s in settings_of(case.kind) if difference(s, now, goal)]
            assert not left, (left, now, goal)
            for training in (False, True) if runs else ():
                draws = case.kind.startswith(DRAWS) or case.setting == "dropout"
                if training and framework == "mindspore" and draws:
                    continue
                got = outputs(framework, layer, inputs, training)
                assert same(got, outputs(framework, wanted, inputs, training), near), training
            if case.shows and case.inputs is not None:
                assert not same(outputs(framework, layer, inputs), result)
    assert seen(framework, layer) == before
    assert not runs or same(outputs(framework, layer, inputs), result, near)


@contextmanager
def raising() -> Iterator[None]:
    with pytest.raises(KeyError):
        yield


LAYERS = ("conv2d-padding", "batch_norm2d-eps", "max_pool2d-kernel_size", "layer_norm-eps", "rnn-nonlinearity")


@pytest.mark.parametrize("name", LAYERS)
def test_everything_is_put_back_when_something_raises(framework: str, name: str) -> None:
    case = next(c for c in told.CASES if c.name == name)
    adapter = by_name(framework)
    layer, other = case.build(framework), case.build(framework, True)
    inputs = INPUTS[case.kind] if case.inputs is None else (case.inputs,)
    change = differing(case.kind, settings(framework, layer), settings(framework, other))
    before, result, state = seen(framework, layer), outputs(framework, layer, inputs), adapter.random_state()
    with raising(), adapter.altered(layer, change) as changed:
        assert changed and seen(framework, layer) != before
        outputs(framework, layer, inputs)
        raise KeyError(name)
    adapter.restore(state)
    assert seen(framework, layer) == before
    assert same(outputs(framework, layer, inputs), result)


@pytest.mark.parametrize("name", LAYERS)
def test_altering_draws_nothing(framework: str, name: str) -> None:
    case = next(c for c in told.CASES if c.name == name)
    adapter = by_name(framework)
    layer, other = case.build(framework), case.build(framework, True)
    change = differing(case.kind, settings(framework, layer), settings(framework, other))
    state = adapter.random_state()
    with adapter.altered(layer, change):
        pass
    assert adapter.random_state() == state


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_not_known_is_refused(framework: str, name: str) -> None:
    case = next(c for c in told.CASES if c.name == name)
    adapter = by_name(framework)
    layer, other = case.build(framework), case.build(framework, True)
    change = differing(case.kind, settings(framework, layer), settings(framework, other))
    before = seen(framework, layer)
    for wrong in ({"colour": "blue"}, {**change, "colour": "blue"}, {"bias": "perhaps"}, {"groups": 7}):
        with adapter.altered(layer, wrong) as changed:
            assert not changed, wrong
            assert seen(framework, layer) == before
    assert seen(framework, layer) == before


def test_a_container_cannot_be_altered(framework: str) -> None:
    name = {"torch": "Sequential", "paddle": "Sequential", "mindspore": "SequentialCell"}[framework]
    import importlib

    layer = getattr(importlib.import_module(f"{framework}.nn"), name)()
    with by_name(framework).altered(layer, {"eps": 1e-3}) as changed:
        assert not changed


def test_mode_and_settings_together(framework: str) -> None:
    case = next(c for c in told.CASES if c.name == "batch_norm2d-eps")
    adapter = by_name(framework)
    layer = case.build(framework)
    before = seen(framework, layer)
    with adapter.altered(layer, {"training": True, "eps": 0.5}) as changed:
        assert changed and layer.training
        assert settings(framework, layer)["eps"] == 0.5
    assert seen(framework, layer) == before
