"""The one call that strings everything together: copy the weights, run both models alike, compare what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .adapters._registry import adapter_for
from .adapters.base import Adapter
from .capturing import Capture, Plan
from .comparing import compare
from .errors import OptionError
from .records import Phase
from .result import Result
from .store import Trace
from .weights import copy_weights

_COMPARE = frozenset({"atol", "rtol", "mode", "mapping", "phases", "fold", "judge"})


def align(
    reference: Any,
    candidate: Any,
    inputs: Any,
    *,
    weights: bool = True,
    loss: Callable[[Any], Any] | tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None] | None = None,
    backward: bool = True,
    seed: int = 0,
    level: str = "op",
    keep: str | int = "tensors",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Result:
    """Whether two models that live in this process compute the same, forward and backward.

    Copies the reference's weights into the candidate (`weights=False` leaves them), runs both on the same `inputs` with
    the same seed, and compares the two traces. The reference is left as it was: parameters, gradients, buffers, random
    state. So is the candidate, but for the weights that were copied into it.

    `inputs`: a numpy array, a tuple of positional arguments, a dict of keyword arguments, or for both kinds
    ``Inputs(*args, **kwargs)``, numpy at the leaves; ``InputPair(for_reference, for_candidate)`` where the two differ.
    `loss`: one function of the output for both, or a pair; by default the mean of the outputs. Further options are
    those of `compare` (`atol`, `rtol`, `mode`, `mapping`, `phases`, `fold`) and of `capture` (`include`, `exclude`...).

    ::

        result = twinscope.align(torch_model, paddle_model, np.random.randn(2, 3, 224, 224).astype("float32"))
        print(result)
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"seed={seed!r} is not a whole number", hint="write seed=0")
    first, second = adapter_for(reference), adapter_for(candidate)
    comparing = {k: options.pop(k) for k in list(options) if k in _COMPARE}
    plan = Plan.parse(level=level, keep=keep, backward=backward, **options)
    losses = loss if isinstance(loss, (tuple, list)) else (loss, loss)
    for own in losses:
        if own is not None and not callable(own):
            raise OptionError(f"loss={own!r} cannot be called", hint="hand in a function of the model's output")
    if len(losses) != 2:
        raise OptionError(
            f"loss has {len(losses)} parts", hint="hand in one function, or (for reference, for candidate)"
        )
    given = inputs if isinstance(inputs, InputPair) else InputPair(inputs, inputs)
    notes: list[str] = []
    if weights:
        notes += copy_weights(reference, candidate, mapping=comparing.get("mapping")).notes
    traces = []
    for adapter, model, own, own_loss in (
        (first, reference, given.reference, losses[0]),
        (second, candidate, given.candidate, losses[1]),
    ):
        traces.append(watch_once(adapter, model, own, own_loss, plan, seed))
    if backward and not (plan.phases or plan.include or plan.exclude or plan.types):
        for trace, side in zip(traces, ("reference", "candidate"), strict=True):
            _refuse_no_gradient(trace, side)
    result = compare(traces[0], traces[1], progress=progress, **comparing)
    return result if not notes else _with_notes(result, notes)


def _refuse_no_gradient(trace: Trace, side: str) -> None:
    """A backward pass that was asked for and did not happen must not pass for one that agreed."""
    trainable = any(p.trainable for m in trace.manifest.modules for p in m.params)
    if trainable and not any(r.phase in (Phase.BACKWARD, Phase.GRADIENT) for r in trace.records):
        raise OptionError(
            f"the {side}'s loss led to no gradient, and a backward pass was asked for",
            hint="loss must return a scalar that depends on the model's output; or pass backward=False",
        )


class Inputs:
    """What a model is called with: positional and keyword arguments, numpy at the leaves.

    >>> Inputs(1, mask=None).kwargs
    {'mask': None}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


class InputPair:
    """Inputs that differ between the two sides: other names, another layout, tensors of their own.

    >>> pair = InputPair({"input_ids": [[1]]}, {"ids": [[1]]})
    >>> pair.candidate
    {'ids': [[1]]}
    """

    def __init__(self, reference: Any, candidate: Any) -> None:
        self.reference = reference
        self.candidate = candidate


def watch_once(
    adapter: Adapter,
    model: Any,
    inputs: Any,
    loss: Callable[[Any], Any] | None,
    plan: Plan,
    seed: int,
    path: str | None = None,
) -> Trace:
    """Run `model` once under capture and put back everything that running it changed."""
    args, kwargs = as_arguments(adapter, inputs)
    with unchanged(adapter, model):
        adapter.seed(seed)
        run = Capture(model, path, plan, adapter=adapter)
        with run:
            adapter.run(model, args, kwargs, loss, plan.backward)
    if run.error is not None:
        raise run.error
    return run.trace


def as_arguments(adapter: Adapter, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments with every numpy array made a tensor of this framework."""
    if isinstance(inputs, Mapping):
        given = Inputs(**inputs)
    elif isinstance(inputs, (tuple, list)):
        given = Inputs(*inputs)
    else:
        given = inputs if isinstance(inputs, Inputs) else Inputs(inputs)
    return tuple(_tensors(adapter, v) for v in given.args), {k: _tensors(adapter, v) for k, v in given.kwargs.items()}


def _tensors(adapter: Adapter, value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return adapter.from_numpy(np.asarray(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_tensors(adapter, v) for v in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(adapter, v) for v in value)
    if isinstance(value, Mapping):
        return {k: _tensors(adapter, v) for k, v in value.items()}
    return value


@contextmanager
def unchanged(adapter: Adapter, model: Any) -> Iterator[None]:
    """Put parameters and buffers back to what they were; running a model in training mode moves its buffers."""
    kept: list[tuple[Any, Any]] = []
    for _, module in adapter.modules(model):
        for tensor in adapter.state(module).values():
            kept.append((tensor, np.array(adapter.to_numpy(tensor), copy=True)))
    state = adapter.random_state()
    try:
        yield
    finally:
        adapter.restore(state)
        for tensor, before in kept:
            if not _same_bytes(adapter.to_numpy(tensor), before):
                adapter.assign(tensor, before)


def _same_bytes(a: Any, b: Any) -> bool:
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _with_notes(result: Result, notes: Sequence[str]) -> Result:
    from dataclasses import replace

    return replace(result, notes=(*result.notes, *notes))
