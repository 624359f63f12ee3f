"""Suspects made of two calls, as the judge makes them: replayed alone on the reference's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from twinscope.adapters._registry import adapter_for
from twinscope.errors import NoFloat64
from twinscope.explain.suspect import Suspect
from twinscope.judge import ROUNDOFF
from twinscope.metrics import arranged
from twinscope.records import Kind, Level, Phase
from twinscope.replaying import KeptCall, each_call, given_to, replay, replay_backward
from twinscope.running import as_arguments, unchanged

Array = Any


def calls_of(model: Any, inputs: Any, level: Level = Level.MODULE) -> list[KeptCall]:
    """Every call of a model, in the order in which they end."""
    adapter, found = adapter_for(model), []
    with unchanged(adapter, model):
        adapter.seed(0)
        each_call(adapter, model, *as_arguments(adapter, inputs), found.append, level)
    return found


def call_of(model: Any, inputs: Any, path: str = "", op: str = "") -> KeptCall:
    """The call of the module at `path`, or the op of that name within it."""
    level = Level.OP if op else Level.MODULE
    for call in calls_of(model, inputs, level):
        if call.path == path and (call.kind is Kind.OP) == bool(op) and (not op or call.type.endswith(op)):
            return call
    raise AssertionError(f"there is no {path!r} {op}")


def suspect_of(
    models: tuple[Any, Any],
    calls: tuple[KeptCall, KeptCall],
    phase: Phase = Phase.FORWARD,
    tensor: str | None = None,
    given: Sequence[Array] | None = None,
) -> Suspect:
    """What the judge would hand over; `given` where the tensors' places do not say which is which."""
    adapters = tuple(adapter_for(m) for m in models)
    infos = tuple(
        next((i for i, _ in a.modules(m) if i.path == c.path), None)
        for a, m, c in zip(adapters, models, calls, strict=True)
    )
    mine, other = calls
    own = given if given is not None else given_to(other, mine)
    assert own is not None, "the inputs do not fit"
    names = mine.output_names
    judged = _forward if phase is Phase.FORWARD else _backward
    run = judged(adapters, mine, other)
    truth, reference = run(True, mine), run(False, mine)
    assert reference is not None
    place = names.index("out" if "out" in names else names[0]) if phase is Phase.FORWARD else 0
    if tensor is None:
        tensor = names[place] if phase is Phase.FORWARD else _first(reference)

    def pick(found: dict[str, Array] | None) -> Array | None:
        return None if found is None else found.get(tensor, next(iter(found.values())))

    a, true = pick(reference), pick(truth)
    assert a is not None
    unit = ROUNDOFF[a.dtype.name]
    base = a.astype(np.float64) if true is None else true
    noise = max(_rms(a - base), unit / 4 * _rms(base), 1e-300)

    def again(
        *,
        call: KeptCall | None = None,
        given: Sequence[Array] | None = None,
        target: Any | None = None,
        change: Callable[[Array], Array] | None = None,
    ) -> float:
        try:
            with unchanged(adapters[1], models[1]):
                found = run(False, call or other, own if given is None else given, target, change)
        except Exception:  # noqa: BLE001  # whatever cannot be is not right
            return math.inf
        b = pick(found)
        assert b is not None
        fitted = arranged(base, b)
        return math.inf if fitted is None else _rms(fitted[0] - base) / noise

    with unchanged(adapters[1], models[1]):
        b = pick(run(False, other, own))
    assert b is not None
    fitted = arranged(a, b)
    return Suspect(
        phase,
        tensor,
        again(),
        adapters,
        calls,
        infos,
        tuple(own),
        a,
        b if fitted is None else fitted[0],
        true,
        noise,
        again,
    )


def _forward(adapters: Any, mine: KeptCall, other: KeptCall) -> Callable[..., dict[str, Array] | None]:
    def run(
        float64: bool, call: KeptCall, given: Any = None, target: Any = None, change: Any = None
    ) -> dict[str, Array] | None:
        side = 0 if call is mine else 1
        try:
            found = replay(adapters[side], target or call.target, call, given or call.inputs, float64=float64)
        except NoFloat64:
            return None
        # what stands in the place of the reference's
        return {name: a if change is None else change(a) for name, a in zip(mine.output_names, found, strict=False)}

    return run


def _backward(adapters: Any, mine: KeptCall, other: KeptCall) -> Callable[..., dict[str, Array] | None]:
    drawn = [np.random.default_rng(i).standard_normal(a.shape).astype(a.dtype) for i, a in enumerate(mine.outputs)]

    def run(
        float64: bool, call: KeptCall, given: Any = None, target: Any = None, change: Any = None
    ) -> dict[str, Array] | None:
        side = 0 if call is mine else 1
        try:
            pulled = replay_backward(
                adapters[side], target or call.target, call, given or call.inputs, drawn, float64=float64
            )
        except NoFloat64:
            return None
        found = dict(zip(call.input_names, pulled.inputs, strict=True))
        arrays = {n: np.zeros_like(x) if g is None else g for (n, g), x in zip(found.items(), call.inputs, strict=True)}
        return {name: a if change is None else change(a) for name, a in arrays.items()}

    return run


def _first(found: dict[str, Array]) -> str:
    return next(name for name, a in found.items() if a.dtype.kind == "f")


def _rms(array: Array) -> float:
    fine = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(fine * fine))) if fine.size == array.size or fine.size else math.inf
