"""Models that are watched wherever they are called, without a ``with`` block, and what a model holds right now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from .adapters._registry import adapter_for, by_name, package_of
from .adapters.base import Adapter, Array
from .capturing import Plan, Recorder, manifest_of
from .errors import CaptureError, OptionError
from .store import MemoryWriter, Trace


class Watched:
    """A model whose calls are recorded one by one, wherever they are made.

    Nothing of it is on the model between two calls, nor after one that raised; only gradients of what was seen are
    awaited until the step is over. What is computed between the calls, such as the loss, is not recorded. Options are
    those of `capture`; the trace is in memory. A step ends when the model is called after a backward pass.

    ::

        watched = twinscope.Watched(model, keep="tensors")
        for batch, target in loader:
            loss = loss_fn(watched(batch), target)
            watched.backward(loss)
            optimizer.step()
        trace = watched.trace()
    """

    def __init__(self, model: Any, **options: Any) -> None:
        self.model = model
        self.adapter = adapter_for(model)
        self.plan = Plan.parse(**options)
        #: what the last backward pass gave, by path, where the framework stores no gradients on parameters
        self.gradients: dict[str, Any] = {}
        self._tape: tuple[Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._writer = MemoryWriter(manifest_of(self.adapter, self.model, self.plan))
        self._recorder = Recorder(self.adapter, self.model, self.plan, self._writer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, and record it."""
        if self._tape is None and self.plan.backward:
            self._tape = (self.adapter.open_tape(self.model, args, kwargs),)
        try:
            with self.adapter.observe(self.model, self._recorder, self.plan.level):
                return self.model(*args, **kwargs)
        except BaseException:
            self._drop_tape()
            raise

    def backward(self, loss: Any) -> dict[str, Any]:
        """The backward pass of a loss made from what the calls returned, recorded.

        Returns the gradients of all trainable parameters by path where the framework does not store them (MindSpore),
        else an empty dict: they are where the framework puts them.
        """
        if self._tape is None:
            raise CaptureError(
                "backward() without a call of the model before it", hint="call the watched model, then its backward"
            )
        if not self.adapter.is_tensor(loss):
            raise OptionError(
                f"the loss is {type(loss).__name__}, not a tensor of {self.adapter.name}",
                hint="hand in what the loss function returned",
            )
        (tape,), self._tape = self._tape, None
        with self.adapter.observe(self.model, self._recorder, self.plan.level):
            self.gradients = self.adapter.backward(self.model, loss, tape)
        if tape is None:
            self._tape = (None,)  # nothing was used up: another loss may follow
        return self.gradients

    def trace(self) -> Trace:
        """What was recorded so far. After a backward pass this ends the step."""
        if self._recorder.backward_seen:
            self._recorder.end_step()
        else:
            self._recorder.write_pending()
        if self._recorder.error is not None:
            raise self._recorder.error
        found = self._writer.trace()
        return replace(found, manifest=replace(found.manifest, complete=True))

    def clear(self) -> None:
        """Forget what was recorded, and begin again."""
        self._drop_tape()
        self._recorder.close()
        self._begin()

    def _drop_tape(self) -> None:
        if self._tape is not None:
            (tape,), self._tape = self._tape, None
            if tape is not None:
                self.adapter.drop_tape(tape)

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drop_tape()
        self._recorder.close()


def snapshot(model: Any, *, gradients: dict[str, Any] | None = None) -> Trace:
    """What a model holds right now as a trace: weights, buffers, and the gradients that are stored on its parameters.

    `gradients` by path are those of a framework that stores none (`Watched.gradients`).

    ::

        before = twinscope.snapshot(model)
        optimizer.step()
        print(twinscope.compare(before, twinscope.snapshot(model), phases=["weight"]))
    """
    adapter = adapter_for(model)
    plan = Plan.parse(keep="tensors", level="module", backward=False)
    writer = MemoryWriter(manifest_of(adapter, model, plan))
    recorder = Recorder(adapter, model, plan, writer)
    recorder.record_held(gradients or {})
    recorder.close()
    if recorder.error is not None:
        raise recorder.error
    writer.close()
    return writer.trace()


class _Every(Adapter):
    """Whatever framework a leaf belongs to; numpy's arrays and plain numbers count as tensors."""

    def is_tensor(self, obj: object) -> bool:
        if isinstance(obj, (np.ndarray, np.generic, bool, int, float, complex)):
            return True
        package = package_of(obj)
        return package is not None and by_name(package).is_tensor(obj)

    def to_numpy(self, tensor: Any) -> Array:
        package = package_of(tensor)
        return np.asarray(tensor) if package is None else by_name(package).to_numpy(tensor)


def arrays_in(value: Any) -> Iterator[tuple[str, Array]]:
    """Every tensor, array and number in a nested structure with its dotted name, as numpy; of any framework.

    >>> list(arrays_in({"x": np.arange(2), "y": (1.5, None)}))
    [('x', array([0, 1])), ('y.0', array(1.5))]
    """
    every = _Every()
    for name, leaf in every.leaves(value):
        yield name, every.to_numpy(leaf)
