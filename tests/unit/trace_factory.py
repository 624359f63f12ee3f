"""Synthetic traces for tests and benchmarks: written down call by call, without a framework.

    t = TraceFactory("torch")
    t.module("fc", "linear", weight=(8, 6), bias=(8,))
    x = t.tensor((4, 6))
    with t.call("", x) as root:
        h = t.leaf("fc", x, out=(4, 8))
        h = t.op("torch.relu", h)
        root.returns(h)
    trace = t.trace(backward=True)

A tensor may have a `content`: two tensors of one content have equal statistics, those of different content never have.
Without one it has no statistics.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from twinscope.records import (
    OUTSIDE,
    Kind,
    Manifest,
    ModuleInfo,
    ParamInfo,
    Phase,
    Record,
    Slot,
    Stats,
    TensorMeta,
)

Shape = tuple[int, ...]
BUFFERS = frozenset(["running_mean", "running_var", "num_batches_tracked"])


@dataclass(frozen=True)
class FakeTensor:
    shape: Shape
    value: int
    content: str | None = None
    dtype: str = "float32"
    param: str | None = None


@dataclass(frozen=True)
class FakeTrace:
    manifest: Manifest
    records: Sequence[Record]


@dataclass
class _Open:
    call_id: int
    path: str
    output: tuple[tuple[str, FakeTensor], ...] = ()
    ops: dict[str, int] = field(default_factory=dict)

    def returns(self, *tensors: FakeTensor, **named: FakeTensor) -> None:
        """One tensor is ``out``, several are ``out.0`` and so on, named ones ``out.name``."""
        if len(tensors) == 1 and not named:
            self.output = (("out", tensors[0]),)
        else:
            self.output = tuple((f"out.{n}", t) for n, t in enumerate(tensors)) + tuple(
                (f"out.{n}", t) for n, t in named.items()
            )


class TraceFactory:
    def __init__(self, framework: str = "torch") -> None:
        self.framework = framework
        self.infos: dict[str, ModuleInfo] = {}
        self.records: list[Record] = []
        self.step_number = 0
        self.uids: dict[str, int] = {}  # what a test calls a call -> call_id
        self._values = 0
        self._calls = 0
        self._stack: list[_Open] = []
        self._counts: dict[str, int] = {}
        self._weights: dict[str, dict[str, FakeTensor]] = {}
        self.module("")

    # -- the network ---------------------------------------------------------------------------------------------------

    def module(
        self,
        path: str,
        kind: str | None = None,
        type: str | None = None,
        content: str | None = None,
        roles: Mapping[str, str] | None = None,
        aliases: tuple[str, ...] = (),
        **params: Shape,
    ) -> None:
        """Say that there is a module; `params` are the shapes of its parameters and buffers."""
        roles = roles or {}
        held = tuple(
            ParamInfo(name, TensorMeta(shape, "float32"), roles.get(name, name), name not in BUFFERS, name in BUFFERS)
            for name, shape in params.items()
        )
        name = type or (f"{self.framework}.nn.{kind}" if kind else f"user.{path or 'Net'}")
        self.infos[path] = ModuleInfo(path, name, kind, kind is not None, held, aliases)
        self._weights[path] = {
            n: replace(
                self.tensor(shape, None if content is None else f"{content}.{roles.get(n, n)}"),
                param=self.infos[path].param_path(n),
            )
            for n, shape in params.items()
        }

    def weight(self, path: str, name: str = "weight") -> FakeTensor:
        return self._weights[path][name]

    # -- the run -------------------------------------------------------------------------------------------------------

    def tensor(self, shape: Shape, content: str | None = None, dtype: str = "float32") -> FakeTensor:
        self._values += 1
        return FakeTensor(tuple(shape), self._values, content, dtype)

    @contextmanager
    def call(self, path: str, *inputs: FakeTensor, uid: str | None = None, **named: FakeTensor) -> Iterator[_Open]:
        call = self._begin(path, uid)
        yield call
        self._stack.pop()
        nth = self._counts.get(path, 0)
        self._counts[path] = nth + 1
        info = self.infos[path]
        self._write(Kind.MODULE, path, info.type, call, nth, inputs, named, call.output, info.builtin)

    def leaf(
        self,
        path: str,
        *inputs: FakeTensor,
        out: Shape | None = None,
        content: str | None = None,
        uid: str | None = None,
        inner: str | None = None,
        **named: FakeTensor,
    ) -> FakeTensor:
        """A call of a module that makes one new tensor; `inner` names the op that does the work inside."""
        with self.call(path, *inputs, uid=uid, **named) as call:
            first = inputs[0] if inputs else next(iter(named.values()))
            result = self.tensor(out if out is not None else first.shape, content)
            if inner is not None:
                self._op(inner, inputs, {}, (("out", result),), None, True)
            call.returns(result)
        return result

    def op(
        self,
        name: str,
        *inputs: FakeTensor,
        out: Shape | None = None,
        content: str | None = None,
        uid: str | None = None,
        **named: FakeTensor,
    ) -> FakeTensor:
        """A call of an op that makes one new tensor, of its first input's shape unless `out` says otherwise."""
        first = inputs[0] if inputs else next(iter(named.values()))
        result = self.tensor(out if out is not None else first.shape, content)
        self._op(name, inputs, named, (("out", result),), uid, False)
        return result

    def _op(
        self,
        name: str,
        inputs: Sequence[FakeTensor],
        named: Mapping[str, FakeTensor],
        output: tuple[tuple[str, FakeTensor], ...],
        uid: str | None,
        builtin: bool,
    ) -> None:
        outer = self._stack[-1] if self._stack else None
        counts = outer.ops if outer is not None else self._counts
        call = self._begin(outer.path if outer is not None else OUTSIDE, uid)
        self._stack.pop()
        nth = counts.get(name, 0)
        counts[name] = nth + 1
        self._write(Kind.OP, call.path, name, call, nth, inputs, named, output, builtin)

    def _begin(self, path: str, uid: str | None) -> _Open:
        call = _Open(self._calls, path)
        self._calls += 1
        if uid is not None:
            self.uids[uid] = call.call_id
        self._stack.append(call)
        return call

    def _write(
        self,
        kind: Kind,
        path: str,
        type: str,
        call: _Open,
        nth: int,
        inputs: Sequence[FakeTensor],
        named: Mapping[str, FakeTensor],
        output: tuple[tuple[str, FakeTensor], ...],
        builtin: bool,
    ) -> None:
        slots = [_slot(f"in.{n}", t) for n, t in enumerate(inputs)]
        slots += [_slot(f"in.{n}", t) for n, t in named.items()]
        slots += [_slot(n, t) for n, t in output]
        parent = self._stack[-1].call_id if self._stack else None
        self.records.append(
            Record(
                len(self.records),
                self.step_number,
                kind,
                Phase.FORWARD,
                path,
                type,
                call.call_id,
                parent,
                nth,
                tuple(slots),
                builtin=builtin,
            )
        )

    def state(self, phase: Phase = Phase.WEIGHT) -> None:
        """State records of every module, as they stand now."""
        for path, held in self._weights.items():
            if held:
                self._emit_state(path, phase, {n: t for n, t in held.items() if phase is Phase.WEIGHT or n in BUFFERS})

    def _emit_state(self, path: str, phase: Phase, held: Mapping[str, FakeTensor]) -> None:
        if held:
            slots = tuple(_slot(n, t) for n, t in held.items())
            info = self.infos[path]
            index, step = len(self.records), self.step_number
            self.records.append(Record(index, step, Kind.STATE, phase, path, info.type, -1, None, 0, slots))

    def backward(self) -> None:
        """Backward records of everything called in this step, last first, and gradients of parameters."""
        for r in [r for r in reversed(self.records) if r.step == self.step_number and r.phase is Phase.FORWARD]:
            slots = tuple(
                Slot(
                    s.name,
                    s.meta,
                    self.tensor(()).value,
                    None if s.stats is None else _stats(f"grad {s.stats.fingerprint}"),
                )
                for s in r.slots
            )
            index = len(self.records)
            self.records.append(
                Record(index, r.step, r.kind, Phase.BACKWARD, r.path, r.type, r.call_id, r.parent_id, r.nth, slots)
            )
        for path, held in self._weights.items():
            self._emit_state(path, Phase.GRADIENT, {n: t for n, t in held.items() if n not in BUFFERS})

    def next_step(self) -> None:
        self.step_number += 1
        self._counts.clear()

    def trace(self, order: Sequence[str] | None = None) -> FakeTrace:
        """What was written down; `order` is the definition order of the modules."""
        infos = [self.infos[p] for p in order] if order is not None else list(self.infos.values())
        manifest = Manifest(self.framework, {}, "Net", tuple(infos), {}, complete=True)
        return FakeTrace(manifest, tuple(self.records))


def _slot(name: str, tensor: FakeTensor) -> Slot:
    stats = None if tensor.content is None else _stats(tensor.content)
    return Slot(name, TensorMeta(tensor.shape, tensor.dtype), tensor.value, stats, param=tensor.param)


def _stats(content: str) -> Stats:
    rng = random.Random(content)
    low, high = -rng.uniform(1, 9), rng.uniform(1, 9)
    return Stats(low, high, rng.uniform(-0.5, 0.5), rng.uniform(0.5, 1), rng.uniform(5, 50), 0, 0, rng.getrandbits(32))
