"""Tensors of any framework: their values, their gradients as they come by, and what a model makes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .adapters._registry import adapter_for, by_name, package_of
from .adapters.base import Adapter, Array
from .errors import OptionError
from .running import as_arguments, unchanged


def as_array(tensor: Any) -> Array:
    """The values of a tensor of any framework as a numpy array, bfloat16 as such.

    >>> as_array([1.5, 2.0]).tolist()
    [1.5, 2.0]

    What numpy reads by itself is read by it.
    """
    adapter = _of_tensor(tensor)
    if adapter is not None:
        return adapter.to_numpy(tensor)
    found = np.asarray(tensor)
    if found.dtype.kind not in "biufc" and found.dtype.name not in ("bfloat16",):
        raise OptionError(
            f"{type(tensor).__name__} is no tensor",
            hint="hand in a tensor of torch, paddle or mindspore, a numpy array or a number",
        )
    return found


def is_tensor(value: object) -> bool:
    """Whether `value` is a tensor of a framework that is loaded: ``is_tensor(3)`` is False.

    >>> is_tensor(3)
    False
    """
    return _of_tensor(value) is not None


def watch_gradient(tensor: Any, callback: Callable[[Array], None]) -> Callable[[], None] | None:
    """Call `callback` with the gradient of `tensor`, as a numpy array, each time a backward pass reaches it.

    ::

        stop = twinscope.watch_gradient(hidden, lambda gradient: print(gradient.shape))
        loss.backward()
        stop()

    None when the tensor requires no gradient. The gradient itself is not changed.
    """
    adapter = _of_tensor(tensor)
    if adapter is None:
        raise OptionError(
            f"{type(tensor).__name__} is no tensor", hint="hand in a tensor of torch, paddle or mindspore"
        )
    return adapter.watch_gradient(tensor, lambda gradient: callback(adapter.to_numpy(gradient)))


def outputs_of(model: Any, inputs: Any, *, training: bool = False, seed: int = 0) -> dict[str, Array]:
    """What a model makes of `inputs`: each tensor of its output by name, as a numpy array. A bare tensor is "out".

    ::

        twinscope.outputs_of(torch_model, x)                     # {"out": array(...)}
        twinscope.outputs_of(paddle_model, {"ids": ids})         # {"out.logits": array(...), "out.loss": array(...)}

    `inputs` are those of `align`. The model is left as it was: mode, buffers and random state.
    """
    adapter = adapter_for(model)
    args, kwargs = as_arguments(adapter, inputs)

    def run() -> dict[str, Array]:
        adapter.seed(seed)
        output, _ = adapter.run(model, args, kwargs, None, False)
        return {
            f"out.{name}" if name else "out": np.array(adapter.to_numpy(t), copy=True)
            for name, t in adapter.leaves(output)
        }

    with unchanged(adapter, model):
        if training:
            return run()
        with adapter.evaluating(model):
            return run()


def _of_tensor(value: object) -> Adapter | None:
    package = package_of(value)
    if package is None:
        return None
    adapter = by_name(package)
    return adapter if adapter.is_tensor(value) else None
