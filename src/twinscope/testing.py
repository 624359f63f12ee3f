"""For authors of adapters: `conformance` says whether an adapter keeps its contract, on networks of your choice.

    from twinscope.testing import Case, conformance

    report = conformance(MyAdapter(), [Case("mlp", build_mlp, Inputs(x))])
    assert report, report

Every check runs real models of the framework. A check that found nothing to look at is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from .adapters.base import KINDS, Adapter, Array
from .capturing import Capture, Plan
from .errors import OptionError
from .metrics import array_stats
from .records import Kind, Level, Phase
from .running import as_arguments, unchanged
from .store import Trace


@dataclass(frozen=True, slots=True)
class Case:
    """One network: how to build it, its inputs (as `align` takes them), and what it must do."""

    name: str
    build: Callable[[], Any]
    inputs: Any
    raises: type[BaseException] | None = None  # what its forward raises
    backward: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the adapter contract, looked at with one network."""

    name: str
    case: str
    problem: str | None  # None when the promise is kept

    def __str__(self) -> str:
        return f"{'ok  ' if self.problem is None else 'FAIL'} {self.case}: {self.name}" + (
            "" if self.problem is None else f": {self.problem}"
        )


@dataclass(frozen=True, slots=True)
class Conformance:
    """All checks; true when every one of them passed."""

    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return bool(self.checks) and not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.problem is not None)

    def __str__(self) -> str:
        kept = len(self.checks) - len(self.failures)
        return "\n".join([f"{kept} of {len(self.checks)} checks passed", *map(str, self.failures or self.checks)])


class _Broken(AssertionError):
    """A promise that was not kept."""


def conformance(adapter: Adapter, cases: Iterable[Case]) -> Conformance:
    """Run every check of the adapter contract on every case."""
    cases = list(cases)
    if not cases:
        raise OptionError("no cases", hint="hand in at least one twinscope.testing.Case")
    checks = [_check("numbers", "(no model)", lambda: _numbers(adapter))]
    for case in cases:
        for name, check in _CHECKS.items():
            if case.raises is not None and name not in _FOR_RAISING:
                continue
            checks.append(_check(name, case.name, lambda c=check, k=case: c(adapter, k)))  # type: ignore[misc]
    return Conformance(tuple(checks))


def _check(name: str, case: str, run: Callable[[], None]) -> Check:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the adapter's failure and belongs in the report
        text = str(error) if isinstance(error, _Broken) else f"{type(error).__name__}: {error}"
        return Check(name, case, text or "failed")
    return Check(name, case, None)


def _need(condition: object, text: str) -> None:
    if not condition:
        raise _Broken(text)


# -- checks without a model ------------------------------------------------------------------------------------------

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")


def _numbers(adapter: Adapter) -> None:
    """Arrays go in and come out with their values, shapes and dtypes; statistics are those of the values."""
    rng = np.random.default_rng(0)
    for name in _DTYPES:
        dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
        for shape in ((), (3,), (2, 3, 4), (0, 2)):
            array = (rng.standard_normal(shape) * 3).astype(dtype)
            tensor = adapter.from_numpy(array)
            _need(adapter.is_tensor(tensor), f"from_numpy({name}) gave no tensor")
            meta = adapter.meta(tensor)
            _need((meta.shape, meta.dtype) == (shape, name), f"meta of {name}{shape} says {meta.dtype}{meta.shape}")
            back = adapter.to_numpy(tensor)
            _need(back.dtype == dtype, f"{name} came back as {back.dtype}")
            _need(_same(back, array), f"values of {name}{shape} came back changed")
            if array.size:
                [stats] = adapter.collect([adapter.measure(tensor)])
                expected = array_stats(array)
                _need(
                    stats.fingerprint == expected.fingerprint, f"fingerprint of {name}{shape} is not that of its values"
                )
                near = np.allclose(
                    [stats.min, stats.max, stats.mean, stats.l2],
                    [expected.min, expected.max, expected.mean, expected.l2],
                    rtol=1e-4,
                    atol=1e-6,
                )
                _need(near, f"statistics of {name}{shape}: {stats}, expected {expected}")
    target = adapter.from_numpy(np.zeros((2, 2), np.float32))
    adapter.assign(target, np.ones((2, 2), np.float32))
    _need(_same(adapter.to_numpy(target), np.ones((2, 2), np.float32)), "assign did not change the tensor")
    state = adapter.random_state()
    _need(state == adapter.random_state(), "reading the random state changes it")
    adapter.seed(7)
    first = adapter.random_state()
    adapter.seed(7)
    _need(first == adapter.random_state(), "the same seed gives two random states")
    adapter.restore(state)
    _need(state == adapter.random_state(), "restore does not put the random state back")


# -- checks with a model ---------------------------------------------------------------------------------------------


def _structure(adapter: Adapter, case: Case) -> None:
    """modules, state, and the neutral names."""
    model = case.build()
    _need(adapter.is_model(model), "is_model says no")
    _need(not adapter.is_tensor(model), "is_tensor says yes of a model")
    found = adapter.modules(model)
    _need(found and found[0][0].path == "" and found[0][1] is model, "the root, path '', does not come first")
    paths = [info.path for info, _ in found]
    _need(len(set(paths)) == len(paths), "a path is listed twice")
    _need(len({id(m) for _, m in found}) == len(found), "a module is listed twice")
    seen: dict[int, str] = {}
    for info, module in found:
        _need(info.kind is None or info.kind in KINDS, f"{info.path}: kind {info.kind!r} is not in KINDS")
        held = adapter.state(module)
        _need(set(held) == {p.name for p in info.params}, f"{info.path}: state and modules name different parameters")
        for p in info.params:
            _need(adapter.meta(held[p.name]) == p.meta, f"{info.param_path(p.name)}: meta differs from the tensor's")
            known = seen.setdefault(id(held[p.name]), info.param_path(p.name))
            tied = None if known == info.param_path(p.name) else known
            _need(p.tied_to == tied, f"{info.param_path(p.name)}: tied_to is {p.tied_to!r}, should be {tied!r}")


class _Strict:
    """A sink that insists on the order of events, and keeps nothing."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.open: list[tuple[int, str]] = []
        self.modules = self.ops = self.failed = 0
        self.problems: list[str] = []

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.modules += 1
        return self._open("module")

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.ops += 1
        if self.open and self.open[-1][1] == "op":
            self.problems.append(f"{name} was told from inside another op")
        return self._open("op")

    def _open(self, kind: str) -> tuple[int, str]:
        self.open.append((self.modules + self.ops, kind))
        return self.open[-1]

    def leave(self, token: Any, output: Any) -> None:
        self._close(token)

    def fail(self, token: Any) -> None:
        self.failed += 1
        self._close(token)

    def _close(self, token: Any) -> None:
        if not self.open or self.open[-1] is not token:
            self.problems.append("tokens do not come back last in, first out")
        if token in self.open:
            self.open.remove(token)


def _events(adapter: Adapter, case: Case) -> None:
    """Every call is told once, in order, and closed, at both levels; unwanted calls are left alone."""
    for level in Level:
        model = case.build()
        sink = _Strict(model)
        raised = _run(adapter, case, model, partial(adapter.observe, model, sink, level))
        _need((raised is not None) == (case.raises is not None), f"raised {raised!r}")
        _need(not sink.problems, "; ".join(dict.fromkeys(sink.problems)))
        _need(not sink.open, f"{len(sink.open)} calls were never closed")
        _need(sink.modules, "no module call was told")
        _need((sink.ops > 0) == (level is Level.OP), f"{sink.ops} ops told at level {level}")
        _need(case.raises is None or sink.failed, "the call that raised was not told as failed")


def _run(adapter: Adapter, case: Case, model: Any, watch: Callable[[], Any] | None = None) -> BaseException | None:
    args, kwargs = as_arguments(adapter, case.inputs)
    try:
        if watch is None:
            adapter.run(model, args, kwargs, None, case.backward)
        else:
            with watch():
                adapter.run(model, args, kwargs, None, case.backward)
    except Exception as error:
        if case.raises is None or not isinstance(error, case.raises):
            raise
        return error
    return None


def _untouched(adapter: Adapter, case: Case) -> None:
    """Outputs, gradients, buffers and random state are bit-identical with and without watching.

    Some kernels choose how to cut their work while they run (MindSpore's log), so that a model need not repeat itself
    to the last bit even when nobody watches. What a watched run gives must be among what unwatched runs give.
    """
    model = case.build()
    plain = [_outcome(adapter, case, model, None) for _ in range(2)]
    for level in Level:
        for keep in ("stats", "tensors"):
            watched = _outcome(adapter, case, model, Plan(level=level, keep=keep, backward=case.backward))
            _need(set(watched) == set(plain[0]), f"watched: {sorted(set(watched) ^ set(plain[0]))} appear or vanish")
            for name, value in watched.items():
                for _ in range(12):
                    if any(_equal(value, p[name]) for p in plain):
                        break
                    plain.append(_outcome(adapter, case, model, None))
                else:
                    raise _Broken(f"{name} differs when watched (level={level}, keep={keep})")


def _outcome(adapter: Adapter, case: Case, model: Any, plan: Plan | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with unchanged(adapter, model):
        adapter.seed(3)
        args, kwargs = as_arguments(adapter, case.inputs)
        gradients: dict[str, Array] = {}
        stops = []
        for info, module in adapter.modules(model):
            for name, tensor in adapter.state(module).items():
                place = info.param_path(name)
                stop = adapter.watch_gradient(tensor, lambda g, p=place: _keep(gradients, p, adapter.to_numpy(g)))  # type: ignore[misc]
                stops.extend([stop] if stop else [])
        try:
            if plan is None:
                output, loss = adapter.run(model, args, kwargs, None, case.backward)
            else:
                with Capture(model, None, plan, adapter=adapter) as run:
                    output, loss = adapter.run(model, args, kwargs, None, case.backward)
                _need(run.error is None, str(run.error))
        finally:
            for stop in stops:
                stop()
        for name, tensor in adapter.leaves(output):
            found[f"output {name}"] = np.array(adapter.to_numpy(tensor), copy=True)
        for _, tensor in adapter.leaves(loss):
            found["loss"] = np.array(adapter.to_numpy(tensor), copy=True)
        found.update({f"gradient of {k}": v for k, v in gradients.items()})
        for info, module in adapter.modules(model):
            for name, tensor in adapter.state(module).items():
                found[f"state {info.param_path(name)}"] = np.array(adapter.to_numpy(tensor), copy=True)
        found["random state"] = adapter.random_state()
    return found


def _keep(into: dict[str, Array], name: str, array: Array) -> None:
    into[name] = np.array(array, copy=True)


def _nothing_left(adapter: Adapter, case: Case) -> None:
    """The user's objects are as they were, also when forward raised, and the user's exception comes through."""
    model = case.build()
    _run(adapter, case, model)
    before = _attributes(adapter, model)
    plan = Plan(level=Level.OP, keep="stats", backward=case.backward)
    raised = _run(adapter, case, model, lambda: Capture(model, None, plan, adapter=adapter))
    _need((raised is not None) == (case.raises is not None), f"raised {raised!r}")
    after = _attributes(adapter, model)
    for path in before:
        _need(before[path] == after[path], f"{path or '(root)'}: {before[path] ^ after[path]} changed")


def _attributes(adapter: Adapter, model: Any) -> dict[str, set[tuple[str, str]]]:
    """Names and sizes of everything that hangs on each module: a hook left behind is one more entry somewhere."""
    found = {}
    for info, module in adapter.modules(model):
        found[info.path] = {
            (name, f"{len(value)} entries" if isinstance(value, (dict, list, set)) else type(value).__name__)
            for name, value in vars(module).items()
        }
    return found


def _trace(adapter: Adapter, case: Case) -> None:
    """What a capture holds is right: values at the moment of the call, the data flow, gradients."""
    model = case.build()
    plan = Plan(level=Level.OP, keep="tensors", backward=case.backward)
    args, kwargs = as_arguments(adapter, case.inputs)
    with unchanged(adapter, model), Capture(model, None, plan, adapter=adapter) as run:
        output, loss = adapter.run(model, args, kwargs, None, case.backward)
    trace = run.trace
    _need(run.error is None, str(run.error))
    roots = [r for r in trace if r.path == "" and r.kind is Kind.MODULE and r.phase is Phase.FORWARD]
    _need(len(roots) == 1, f"{len(roots)} records of the root's forward")
    leaves = dict(adapter.leaves(output))
    _need(len(leaves) == len(roots[0].outputs()), f"{len(roots[0].outputs())} outputs recorded of {len(leaves)}")
    for slot in roots[0].outputs():
        recorded = trace.tensor(slot)
        live = adapter.to_numpy(leaves[slot.name.removeprefix("out").removeprefix(".")])
        _need(recorded is not None and _same(recorded, live), f"{slot.name} was recorded with other values")
    positions = {r.call_id: r.index for r in trace if r.phase is Phase.FORWARD}
    for r in trace:
        if r.phase is Phase.FORWARD and r.parent_id is not None:
            _need(positions[r.parent_id] > r.index, f"record {r.index} comes after its parent")
        for slot in r.slots:
            if slot.stats is not None and slot.kept:
                stored = trace.tensor(slot)
                same = stored is not None and array_stats(stored).fingerprint == slot.stats.fingerprint
                _need(same, f"{r.where} {slot.name}: statistics and tensor are of different values")
    if case.backward and loss is not None:
        _gradients(adapter, case, model, trace)


def _gradients(adapter: Adapter, case: Case, model: Any, trace: Trace) -> None:
    """Parameter gradients against the loss itself: along the gradient it must change by the gradient's square."""
    trainable = {
        info.param_path(p.name): adapter.state(module)[p.name]
        for info, module in adapter.modules(model)
        for p in info.params
        if p.trainable and p.tied_to is None and p.meta.dtype == "float32"
    }
    gradients: dict[str, Array] = {}
    for r in trace:
        if r.phase is Phase.GRADIENT:
            for slot in r.slots:
                found = trace.tensor(slot)
                if found is not None:
                    gradients[f"{r.path}.{slot.name}" if r.path else slot.name] = found.astype(np.float64)
    if not trainable:
        return
    _need(gradients, "no gradient of a parameter was recorded")
    square = sum(float((g * g).sum()) for k, g in gradients.items() if k in trainable)
    if not np.isfinite(square) or square < 1e-12:
        return
    step = 1e-2 / np.sqrt(square)
    losses = [_loss_at(adapter, case, model, trainable, gradients, sign * step) for sign in (-1.0, 1.0)]
    if not np.isfinite(losses).all():
        return
    slope = (losses[1] - losses[0]) / (2 * step)
    _need(
        abs(slope - square) <= 0.1 * square + 1e-4, f"the loss changes by {slope:.5g}, its gradient says {square:.5g}"
    )


def _loss_at(
    adapter: Adapter,
    case: Case,
    model: Any,
    trainable: Mapping[str, Any],
    gradients: Mapping[str, Array],
    step: float,
) -> float:
    args, kwargs = as_arguments(adapter, case.inputs)
    with unchanged(adapter, model):
        adapter.seed(3)
        for name, tensor in trainable.items():
            if name in gradients:
                value = adapter.to_numpy(tensor).astype(np.float64) + step * gradients[name]
                adapter.assign(tensor, value.astype(np.float32))
        _, loss = adapter.run(model, args, kwargs, None, True)
        return float(adapter.to_numpy(loss))


_CHECKS: dict[str, Callable[[Adapter, Case], None]] = {
    "structure": _structure,
    "events": _events,
    "untouched numbers": _untouched,
    "nothing left behind": _nothing_left,
    "trace": _trace,
}
_FOR_RAISING = frozenset({"structure", "events", "nothing left behind"})


def _same(a: Array, b: Array) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


def _equal(a: Any, b: Any) -> bool:
    """NaN is NaN, whatever its sign and payload: kernels choose them by the alignment of memory."""
    if isinstance(a, np.ndarray) and a.dtype.kind in "fc" and a.shape == getattr(b, "shape", None):
        a, b = (np.where(np.isnan(v), np.array(np.nan, v.dtype), v) for v in (a, b))
    return _same(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else bool(a == b)
