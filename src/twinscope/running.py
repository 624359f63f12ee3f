"""Running a model once under capture, on inputs that both sides share, and leaving it as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .adapters._registry import adapter_for, by_name, table
from .adapters.base import Adapter
from .capturing import Capture, Plan
from .errors import OptionError
from .store import Trace


class Inputs:
    """What a model is called with: positional and keyword arguments, numpy at the leaves.

    >>> Inputs(1, mask=None).kwargs
    {'mask': None}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


def seed(number: int) -> None:
    """Seed everything random: Python, numpy, and every framework that is loaded.

    >>> seed(0)
    >>> first = np.random.rand()
    >>> seed(0)
    >>> np.random.rand() == first
    True

    A framework that is imported later is not seeded. Two frameworks draw other numbers from one seed: for weights that
    agree, copy them.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 32:
        raise OptionError(f"seed({number!r}): not a whole number from 0 to 2**32 - 1", hint="write seed(0)")
    for package in table():
        if package in sys.modules:
            by_name(package).seed(number)
    random.seed(number)
    np.random.seed(number)


class InputPair:
    """Inputs that differ between the two sides: other names, another layout, tensors of their own.

    >>> pair = InputPair({"input_ids": [[1]]}, {"ids": [[1]]})
    >>> pair.candidate
    {'ids': [[1]]}
    """

    def __init__(self, reference: Any, candidate: Any) -> None:
        self.reference = reference
        self.candidate = candidate


@contextmanager
def no_dropout(model: Any) -> Iterator[None]:
    """While the context is open, dropout hands on what it is given: two runs of one network can be compared.

    Dropout of every kind and of this whole framework, in this process: layers, functions (however they were imported),
    recurrent layers, attention. Modes stay what they are, so batch normalisation still trains. Nothing is written to
    the model's settings that is not put back, whatever is raised meanwhile.

    ::

        with twinscope.no_dropout(model):
            loss = loss_fn(model(x))
    """
    with adapter_for(model).without_dropout(model):
        yield


def watch_once(
    adapter: Adapter,
    model: Any,
    inputs: Any,
    loss: Callable[[Any], Any] | None,
    plan: Plan,
    seed: int,
    path: str | None = None,
    step: int | None = None,
    again: bool = False,
) -> Trace:
    """Run `model` once under capture and put back everything that running it changed.

    With `step` it is a training step: of that number, and with its loss recorded; `again`, one that is made once more.
    """
    args, kwargs = as_arguments(adapter, inputs)
    with unchanged(adapter, model):
        adapter.seed(seed)
        run = Capture(model, path, plan, adapter=adapter, first_step=step or 0, again=again)
        with run:
            _, value = adapter.run(model, args, kwargs, loss, plan.backward)
            if step is not None and adapter.is_tensor(value):
                run.loss(value)
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
            if not same_bytes(adapter.to_numpy(tensor), before):
                adapter.assign(tensor, before)


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two arrays are equal to the last bit, NaNs and signs of zero included."""
    if a.shape != b.shape or a.nbytes != b.nbytes:
        return False
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    whole = x.size - x.size % 8  # by eight at a time: this runs over all weights of a model
    return np.array_equal(x[:whole].view(np.uint64), y[:whole].view(np.uint64)) and np.array_equal(x[whole:], y[whole:])
