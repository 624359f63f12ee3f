"""Calls of modules and ops, kept so that they can be made again: alone, on whatever tensors one likes.

`each_call` runs a model and hands over every call as it ends, so that no more is held than the calls that are still
open. `replay` makes a call again, `replay_backward` with given gradients of its outputs; with ``float64=True`` both do
so in float64 throughout, which is the truth that noise is measured against.

    each_call(adapter, model, args, kwargs, judge)          # judge(call: KeptCall)
    replay(adapter, call.target, call, call.inputs)         # the very same, from the call's own inputs
    replay(adapter, call.target, call, call.inputs, float64=True)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .adapters.base import Adapter, Array, rebuilt
from .errors import NoFloat64
from .metrics import arranged
from .records import Kind, Level

#: Names of ops, and kinds of modules, whose results are drawn or are whatever was in memory...
_RANDOM = frozenset(
    """dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout fused_dropout_add rand randn
    randint randperm rand_like randn_like randint_like normal normal_ uniform uniform_ bernoulli bernoulli_ multinomial
    poisson exponential_ log_normal log_normal_ cauchy_ geometric_ random_ standard_normal standard_gamma gumbel_softmax
    rrelu rrelu_ gaussian binomial standard_laplace laplace gamma empty empty_like new_empty empty_strided
    Dropout Dropout1D Dropout2D Dropout3D DropoutExt StandardNormal UniformReal UniformInt Multinomial""".split()
)
#: ... and of those that may draw within.
_MAY_DRAW = ("attention", "lstm", "gru", "rnn", "transformer", "stochastic", "drop_path", "_sample")


@dataclass(frozen=True, slots=True)
class _Hole:
    """Where a tensor stood among the arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call: its arguments with holes for the tensors, the tensors, and those that it returned.

    Where one tensor was given in two places, both of `inputs` are one array.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class KeptCall(SeenCall):
    """One call of a module or op as `each_call` tells it: what went in before the call, what was there after it."""

    kind: Kind
    #: of the module, or of the module that an op ran in; as in a trace's records
    path: str
    #: the module's class, or the op's public name; as in a trace's records
    type: str
    #: which call of this module, or of this op within its enclosing call; as in a trace's records
    nth: int
    #: the order in which calls began, over modules and ops together, from 0
    number: int
    #: the `number` of the enclosing call
    parent: int | None
    #: what was called: a module or function. Alive, for here and now.
    target: Any
    #: slot names of `inputs` ("in.0", "in.mask") and of `outputs` ("out", "out.0", or "in.0" for an effect)
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    #: for each input the path of the model's parameter or buffer that it is, or None
    params: tuple[str | None, ...]
    #: inputs that are buffers: running statistics, with respect to which nothing can be differentiated
    fixed: tuple[int, ...] = ()
    #: inputs that the call changed in place and did not return: their new values are the last of `outputs`
    effects: tuple[int, ...] = ()
    #: inputs that the call changed in place
    changed: tuple[int, ...] = ()
    #: whether the result is drawn, or is whatever was in memory: made again, it is another
    random: bool = False
    #: arguments that hold tensors where nobody looks (a cache object): made again, the call finds them changed
    opaque: tuple[str, ...] = ()
    #: the mode of the module, or of the module that the op ran in; None where it has none
    training: bool | None = None


@dataclass(slots=True)
class _Open:
    """A call that has begun."""

    number: int
    kind: Kind
    path: str
    type: str
    nth: int
    parent: _Open | None
    target: Any
    training: bool | None
    wanted: bool
    args: Any = ()
    kwargs: Any = None
    inputs: tuple[Any, ...] = ()  # the tensors themselves
    versions: tuple[int, ...] = ()
    arrays: tuple[Array, ...] = ()
    names: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    state: Any = None
    random: bool = False


_Wanted = Callable[[Kind, str, str, int], bool]


class _Keeper:
    """A sink that hands over every call as it ends."""

    def __init__(
        self, adapter: Adapter, model: Any, level: Level, tell: Callable[[KeptCall], Any], wanted: _Wanted | None
    ) -> None:
        self.adapter, self.level, self.tell, self.wanted = adapter, level, tell, wanted
        self.error: BaseException | None = None
        self._modules: dict[int, tuple[str, str, str | None]] = {}
        self._params: dict[int, tuple[str, bool]] = {}
        self._held: list[Any] = []  # ids are good as long as what they are of is alive
        for info, module in adapter.modules(model):
            self._modules[id(module)] = info.path, info.type, info.kind
            buffers = {p.name for p in info.params if p.buffer}
            for name, tensor in adapter.state(module).items():
                self._params.setdefault(id(tensor), (info.param_path(name), name in buffers))
                self._held.append(tensor)
        self._stack: list[_Open] = []
        self._counts: dict[tuple[int, str], int] = {}
        self._number = 0
        self._telling = False

    # -- events --------------------------------------------------------------------------------------------------------

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        found = self._modules.get(id(module))
        if found is None or self._telling:
            return None
        path, type_, kind = found
        training = getattr(module, "training", None)
        key = (-2, path)  # calls of a module are counted over the whole run
        return self._enter(
            Kind.MODULE, path, type_, key, module, training if isinstance(training, bool) else None, args, kwargs, kind
        )

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._telling or not self._stack:
            return None  # the adapter's own: nothing of the network runs outside the model
        parent = self._stack[-1]
        key = (parent.number, name)
        return self._enter(Kind.OP, parent.path, name, key, self.adapter.told(), parent.training, args, kwargs, None)

    def leave(self, token: Any, output: Any) -> None:
        call: _Open = token
        self._close(call)
        call.random = call.random or self._drew(call, output)
        if call.parent is not None and call.random:
            call.parent.random = True
        if call.wanted and self.error is None:
            self._telling = True
            try:
                kept = self._kept(call, output)
                if kept.outputs or kept.kind is Kind.MODULE:  # else it computed no tensor
                    self._force(kept, output, self.tell(kept))
            except BaseException as error:  # noqa: BLE001 - it is raised by each_call, not in the midst of the model
                self.error = error
            finally:
                self._telling = False

    def fail(self, token: Any) -> None:
        self._close(token)

    def _force(self, kept: KeptCall, output: Any, others: Sequence[Array | None] | None) -> None:
        """Write other values into what a call returned."""
        if others is None:
            return
        returned = [t for _, t in self.adapter.leaves(output)]
        for tensor, own, array in zip(returned, kept.outputs, others, strict=False):
            if array is not None and not _same(own, array):
                self.adapter.assign(tensor, array)

    # -- what is kept --------------------------------------------------------------------------------------------------

    def _enter(
        self,
        kind: Kind,
        path: str,
        type_: str,
        key: tuple[int, str],
        target: Any,
        training: bool | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        layer: str | None,
    ) -> _Open:
        nth = self._counts.get(key, 0)
        self._counts[key] = nth + 1
        parent = self._stack[-1] if self._stack else None
        wanted = self.error is None and (self.wanted is None or self.wanted(kind, path, type_, nth))
        call = _Open(self._number, kind, path, type_, nth, parent, target, training, wanted)
        self._number += 1
        self._stack.append(call)
        if self._may_draw(kind, type_, layer):
            call.state = self.adapter.random_state()
            if not wanted and kind is Kind.OP:  # for `_drew`
                leaves = self.adapter.leaves((tuple(args), dict(kwargs)))
                call.arrays = tuple(self._value(t) for _, t in itertools.islice(leaves, 1))
        if wanted:
            tensors: list[Any] = []
            call.args, call.kwargs = _holed(self.adapter, (tuple(args), dict(kwargs)), tensors)
            call.names = tuple(_names(call.args, call.kwargs))
            copies: dict[int, Array] = {}
            for tensor in tensors:
                if id(tensor) not in copies:
                    copies[id(tensor)] = self._value(tensor)
            call.inputs = tuple(tensors)
            call.versions = tuple(self.adapter.version(t) for t in tensors)
            call.arrays = tuple(copies[id(t)] for t in tensors)
            given = [*enumerate(args), *kwargs.items()]
            call.opaque = tuple(f"in.{name}" for name, value in given if _hides_tensors(self.adapter, value))
        return call

    def _value(self, tensor: Any) -> Array:
        """What a tensor holds now: a copy, but of parameters, which a forward pass leaves alone."""
        path, buffer = self._params.get(id(tensor), (None, True))
        array = self.adapter.to_numpy(tensor)
        return array if path is not None and not buffer else np.array(array, copy=True)

    def _close(self, call: _Open) -> None:
        while self._stack and self._stack.pop() is not call:
            pass  # it raised, and whoever called it caught that

    def _may_draw(self, kind: Kind, type_: str, layer: str | None) -> bool:
        if kind is Kind.MODULE and self.level is Level.MODULE:
            return True  # what it calls is not told
        last = type_.rpartition(".")[2]
        return last in _RANDOM or layer in _RANDOM or any(word in (layer or last).lower() for word in _MAY_DRAW)

    def _drew(self, call: _Open, output: Any) -> bool:
        if call.state is None:
            return False
        if self.adapter.random_state() != call.state:
            return True
        if call.kind is Kind.MODULE or call.type.rpartition(".")[2] not in _RANDOM:
            return False
        # a generator that cannot be looked at; a dropout that is not in force gives what it got, scaled perhaps
        outputs = [t for _, t in self.adapter.leaves(output)]
        if len(outputs) != 1 or not call.arrays:
            return True
        return not _all_scaled_alike(call.arrays[0], self.adapter.to_numpy(outputs[0]))

    def _kept(self, call: _Open, output: Any) -> KeptCall:
        returned = list(self.adapter.leaves(output))
        names = [f"out.{name}" if name else "out" for name, _ in returned]
        outputs = [np.array(self.adapter.to_numpy(t), copy=True) for _, t in returned]
        changed: list[int] = []
        effects: list[int] = []
        for i, (tensor, version, before) in enumerate(zip(call.inputs, call.versions, call.arrays, strict=True)):
            if self.adapter.version(tensor) == version and not (i == 0 and self.adapter.is_inplace(call.type)):
                continue
            after = self.adapter.to_numpy(tensor)
            if _same(before, after):
                continue
            changed.append(i)
            if all(t is not tensor for _, t in returned) and all(call.inputs[j] is not tensor for j in effects):
                effects.append(i)
                names.append(call.names[i])
                outputs.append(np.array(after, copy=True))
        return KeptCall(
            args=call.args,
            kwargs=call.kwargs,
            inputs=call.arrays,
            outputs=tuple(outputs),
            kind=call.kind,
            path=call.path,
            type=call.type,
            nth=call.nth,
            number=call.number,
            parent=None if call.parent is None else call.parent.number,
            target=call.target,
            input_names=call.names,
            output_names=tuple(names),
            params=tuple(self._params.get(id(t), (None, True))[0] for t in call.inputs),
            fixed=tuple(i for i, t in enumerate(call.inputs) if self._params.get(id(t), (None, False))[1]),
            effects=tuple(effects),
            changed=tuple(changed),
            random=call.random,
            opaque=call.opaque,
            training=call.training,
        )


def each_call(
    adapter: Adapter,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tell: Callable[[KeptCall], Any],
    level: Level = Level.OP,
    wanted: Callable[[Kind, str, str, int], bool] | None = None,
) -> Any:
    """Run `model` once, forward only, and call `tell` with every call of its modules and ops when it ends; the output.

    Inner calls come before those that they are in. ``wanted(kind, path, type, nth)`` says which calls to keep, all when
    None; nothing is copied of the others. What `tell` returns, unless None, is written into what the call returned, in
    the order of `KeptCall.outputs`, so that all that follows is computed from that. `tell` may make calls again, of
    this model too, unless another capture is watching it; it leaves the random state as it is, or the rest of the run
    draws other numbers. What it raises is raised here, after the run. Values in `KeptCall.inputs` that are parameters
    are the parameters' own memory.

    ::

        calls = []
        each_call(adapter, model, (x,), {}, calls.append)
        for call in calls:
            [again] = replay(adapter, call.target, call, call.inputs)
    """
    keeper = _Keeper(adapter, model, level, tell, wanted)
    with adapter.observe(model, keeper, level):
        output, _ = adapter.run(model, args, kwargs, None, False)
    if keeper.error is not None:
        raise keeper.error
    return output


def keep_calls(adapter: Adapter, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, SeenCall]:
    """Run `model` once, forward only; the first call of each of its modules, by path."""
    found: dict[str, SeenCall] = {}

    def keep(call: KeptCall) -> None:
        found[call.path] = call

    each_call(adapter, model, args, kwargs, keep, Level.MODULE, lambda kind, path, type_, nth: nth == 0)
    return found


def replay(
    adapter: Adapter, target: Any, call: SeenCall, inputs: Sequence[Array], *, float64: bool = False
) -> tuple[Array, ...]:
    """Make a call again, on other tensors; what it returns, and what it did to its inputs, as in `call.outputs`.

    `target` is the module or function to call: `KeptCall.target`, `Adapter.function` of its name, or another's. The
    random state is as before. Buffers that the call moves are the caller's to put back (`running.unchanged`), in
    float64 they are put back here. With `float64` the floating inputs are cast, and `target` is in float64 for the
    while; where it cannot be, or only seems to be, `NoFloat64` is raised. An output that is not float64 then, beside
    others that are, is no measure of anything.
    """
    if float64:
        return _wide(adapter, target, call, inputs, lambda given: _run(adapter, target, call, given))
    return _run(adapter, target, call, inputs)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What `replay_backward` gives. None stands for what needs no gradient."""

    outputs: tuple[Array, ...]
    #: by input of the call
    inputs: tuple[Array | None, ...]
    #: of the module's own parameters, by path within it
    parameters: Mapping[str, Array | None]


def replay_backward(
    adapter: Adapter,
    target: Any,
    call: SeenCall,
    inputs: Sequence[Array],
    gradients: Sequence[Array | None],
    *,
    float64: bool = False,
) -> Pulled:
    """Make a call again and pull gradients of what it returns back through it: (x, dy) to (dx, dW).

    `gradients` are those of the tensors that the call returns, None where there is none; effects on inputs are not
    among them. Otherwise as `replay`.
    """
    if not float64:
        return _pull(adapter, target, call, inputs, gradients)
    pulled: list[Pulled] = []

    def run(given: Sequence[Array]) -> tuple[Array, ...]:
        pulled.append(_pull(adapter, target, call, given, [None if g is None else _widened(g) for g in gradients]))
        found = [*pulled[-1].inputs, *pulled[-1].parameters.values()]
        return (*pulled[-1].outputs, *(a for a in found if a is not None))

    _wide(adapter, target, call, inputs, run)
    return pulled[0]


def given_to(call: SeenCall, other: SeenCall) -> list[Array] | None:
    """The `other` side's tensors in the places, shapes and dtypes of this one's; None where they do not fit.

    A tensor without counterpart keeps this side's value when it is no floating one (a mask, an index).
    """
    free = list(other.inputs)
    found = []
    for own in call.inputs:
        partner = next((i for i, a in enumerate(free) if a.size == own.size and _kind(a) == _kind(own)), None)
        if partner is None:
            if _kind(own) == "float" and own.size > 1:
                return None
            found.append(own)
            continue
        fitted = arranged(own, free.pop(partner))
        if fitted is None:
            return None
        found.append(fitted[0].astype(own.dtype))
    return found


# -- making calls again ------------------------------------------------------------------------------------------------


def _run(adapter: Adapter, target: Any, call: SeenCall, inputs: Sequence[Array]) -> tuple[Array, ...]:
    with _random_state_kept(adapter, call):
        tensors = _tensors(adapter, inputs)
        args, kwargs = _filled((call.args, call.kwargs), tensors)
        output, _ = adapter.run(target, args, kwargs, None, False)
        found = [t for _, t in adapter.leaves(output)]
        found += [tensors[i] for i in getattr(call, "effects", ())]
        return tuple(_copy(adapter, t) for t in found)


def _pull(
    adapter: Adapter, target: Any, call: SeenCall, inputs: Sequence[Array], gradients: Sequence[Array | None]
) -> Pulled:
    with _random_state_kept(adapter, call):
        tensors = _tensors(adapter, inputs)
        args, kwargs = _filled((call.args, call.kwargs), tensors)
        given = [None if g is None else adapter.from_numpy(np.array(g, copy=True)) for g in gradients]
        fixed = [tensors[i] for i in getattr(call, "fixed", ())]
        found = adapter.pull_back(target, args, kwargs, given, fixed)
        leaves = [t for _, t in adapter.leaves((args, kwargs))]
        arrays = {id(t): None if g is None else _copy(adapter, g) for t, g in zip(leaves, found.inputs, strict=True)}
        return Pulled(
            tuple(_copy(adapter, t) for t in found.outputs),
            tuple(arrays.get(id(t)) for t in tensors),
            {name: None if t is None else _copy(adapter, t) for name, t in found.parameters.items()},
        )


@contextmanager
def _random_state_kept(adapter: Adapter, call: SeenCall) -> Iterator[None]:
    if isinstance(call, KeptCall) and not call.random:
        yield  # reading the state costs more than most calls do
        return
    state = adapter.random_state()
    try:
        yield
    finally:
        adapter.restore(state)


#: Relative size of the nudge that shows whether a kernel looks at all bits of its inputs.
_NUDGE = 0.01


def _wide(
    adapter: Adapter,
    target: Any,
    call: SeenCall,
    inputs: Sequence[Array],
    run: Callable[[Sequence[Array]], tuple[Array, ...]],
) -> tuple[Array, ...]:
    """Run in float64, and make sure that it was."""
    wide = _each_once(inputs, _widened)
    name = getattr(call, "type", "")
    if not adapter.is_model(target) and not adapter.has_float64(name):
        raise NoFloat64(
            f"{name} has no float64 kernel",
            hint="take the floor from the other framework's float64, or by perturbing the inputs",
        )
    try:
        with adapter.in_float64(target if adapter.is_model(target) else None):
            outputs = run(wide)
            suspicious = _floating(outputs) and all(_is_narrow(a) for a in _floating(outputs))
            nudged = run(_each_once(wide, _nudged)) if suspicious and _floating(wide) else ()
    except NoFloat64:
        raise
    except Exception as error:
        what = getattr(call, "type", type(target).__name__)
        raise NoFloat64(
            f"{what} cannot be computed in float64: {type(error).__name__}: {str(error).splitlines()[:1]}",
            hint="take the floor from the other framework's float64, or by perturbing the inputs",
        ) from error
    low = [a.dtype.name for a in _floating(outputs) if a.dtype.name not in ("float64", "complex128")]
    if not (_floating(wide) or adapter.is_model(target)):
        low = []  # made from nothing: a constant
    # outputs of few bits are those of rounding, comparing and counting
    seen = _floating(nudged)
    if low or (seen and all(map(_is_narrow, seen)) and not all(map(_is_coarse, seen))):
        what = getattr(call, "type", type(target).__name__)
        raise NoFloat64(
            f"{what} computes in {low[0] if low else 'a lower precision'} whatever it is given",
            hint="take the floor from the other framework's float64, or by perturbing the inputs",
        )
    return outputs


def _each_once(arrays: Sequence[Array], change: Callable[[Array], Array]) -> list[Array]:
    """Every array changed, those that are one array still one."""
    changed: dict[int, Array] = {}
    for array in arrays:
        if id(array) not in changed:
            changed[id(array)] = change(array)
    return [changed[id(array)] for array in arrays]


def _is_floating(array: Array) -> bool:
    return array.dtype.kind in "fc" or array.dtype in _HALVES


def _floating(arrays: Sequence[Array]) -> list[Array]:
    return [a for a in arrays if _is_floating(a)]


_HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))


def _widened(array: Array) -> Array:
    if not _is_floating(array):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _nudged(array: Array) -> Array:
    """About the same values, which no lower precision can hold."""
    if not _is_floating(array):
        return array
    by = 1.0 + _NUDGE * np.random.default_rng(0).uniform(0.1, 1.0, array.shape)
    return np.asarray(array * by)


def _is_narrow(array: Array, dtype: Any = np.float32) -> bool:
    """Whether a float32 could hold every value."""
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return all(np.array_equal(p.astype(dtype).astype(np.float64), p, equal_nan=True) for p in parts)


def _is_coarse(array: Array) -> bool:
    return _is_narrow(array, np.float16)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _kind(array: Array) -> str:
    return "whole" if array.dtype.kind in "biu" else "float"


def _copy(adapter: Adapter, tensor: Any) -> Array:
    return np.array(adapter.to_numpy(tensor), copy=True)


def _same(a: Array, b: Array) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


def _all_scaled_alike(x: Array, out: Array) -> bool:
    """Whether every element was multiplied by one number: nothing was dropped."""
    if _same(x, out):
        return True
    if x.shape != out.shape or x.dtype.kind != "f" or not x.any():
        return False
    wide, made = x.astype(np.float64).ravel(), out.astype(np.float64).ravel()
    top = int(np.abs(wide).argmax())
    scale = made[top] / wide[top]
    return bool(scale != 0 and np.allclose(made, scale * wide, rtol=1e-2, atol=1e-6 * float(np.abs(made).max())))


def _holed(adapter: Adapter, value: Any, tensors: list[Any]) -> Any:
    if adapter.is_tensor(value):
        tensors.append(value)
        return _Hole(len(tensors) - 1)
    return rebuilt(value, lambda v: _holed(adapter, v, tensors))


def _filled(value: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(value, _Hole):
        return tensors[value.index]
    return rebuilt(value, lambda v: _filled(v, tensors))


def _tensors(adapter: Adapter, inputs: Sequence[Array]) -> list[Any]:
    made: dict[int, Any] = {}
    for array in inputs:
        if id(array) not in made:
            made[id(array)] = adapter.from_numpy(np.array(array, copy=True))
    return [made[id(array)] for array in inputs]


def _names(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """The slot name of every hole, in order."""
    found: dict[int, str] = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, _Hole):
            found[value.index] = name
            return value
        keys: Iterator[Any]
        if isinstance(value, Mapping):
            keys = iter(list(value))
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            keys = iter(value._fields)
        elif isinstance(value, slice):
            keys = iter(("start", "stop", "step"))
        elif isinstance(value, (tuple, list)):
            keys = iter(range(len(value)))
        else:
            keys = iter([k for k in getattr(value, "__dataclass_fields__", ())])
        return rebuilt(value, lambda v: walk(v, f"{name}.{next(keys, '')}"))

    for i, value in enumerate(args):
        walk(value, f"in.{i}")
    for key, value in kwargs.items():
        walk(value, f"in.{key}")
    for index in sorted(found):
        yield found[index]


def _hides_tensors(adapter: Adapter, value: Any, depth: int = 3) -> bool:
    """Whether there are tensors in the attributes of an object that `Adapter.leaves` does not look into."""
    if depth == 0 or value is None or isinstance(value, (str, bytes, int, float, type)) or callable(value):
        return False
    if adapter.is_tensor(value):
        return False
    if isinstance(value, Mapping):
        return any(_hides_tensors(adapter, v, depth) for v in value.values())
    if isinstance(value, (tuple, list)):
        return any(_hides_tensors(adapter, v, depth) for v in value)
    if hasattr(value, "__dataclass_fields__") or not hasattr(value, "__dict__"):
        return False
    inner = list(vars(value).values())
    return any(True for _ in adapter.leaves(inner)) or any(_hides_tensors(adapter, v, depth - 1) for v in inner)
