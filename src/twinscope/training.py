"""Training steps of both sides: forward, loss, backward, gradients and update, each compared in its own right.

A step of one side, for real:

    forward, loss, backward     under capture, as in a comparison without an optimizer
    update                      the optimizer's, or whatever the user's function does

Rounding grows from step to step, and Adam makes a whole step of a gradient that is nothing but noise: after a few steps
the weights of two correct ports differ visibly. So no step is held against the one before it:

* where the weights have come apart, and what is computed with them differs, the candidate runs the step once more with
  the reference's weights. What agrees then was inherited, and what does not is wrong in this very step;
* an update is judged alone, by what it made of the weights and gradients that it was given (`updates`).

Afterwards models and optimizers are where training has brought them.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .adapters._registry import adapter_for, package_of
from .adapters.base import Adapter, Array, Learned
from .adapters.optimizing import Told
from .capturing import STEP_BITS, Capture, Plan, TwinscopeWarning
from .comparing import Comparison, comparison_of, numbers_of
from .errors import OptionError, TwinscopeError
from .graft import Grafts
from .hints import Hints
from .judge import ROUNDOFF, Context, Judge, RoundoffJudge, ToleranceJudge
from .match import Matching, Pair
from .metrics import array_stats, compare_arrays
from .records import Kind, ModuleInfo, Overall, ParamInfo, Phase, Record, Slot, TensorMeta, Verdict
from .result import SEVERITY, Finding, PairResult, Result, SlotDiff, Unmatched
from .running import InputPair, as_arguments, same_bytes, unchanged, watch_once
from .store import Trace
from .updates.alone import Handling, Own, handling_of, judge_alone
from .updates.update import Judged, Update
from .weights.layout import from_neutral, to_neutral
from .weights.mapping import find_map
from .weights.weightmap import Entry, WeightMap, carried

#: Judges the calls of a step alone; what `align` does with its two traces.
Judging = Callable[[Comparison, tuple[Trace, Trace], int], Grafts]
Read = Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a training: a model, what it is given, and what makes an update of its gradients."""

    role: str
    adapter: Adapter
    model: Any
    inputs: Any
    loss: Callable[[Any], Any] | None
    optimizer: Any  # an optimizer of the framework, or a function
    handed: bool = False  # whether that function takes the gradients

    def update(self, learned: Learned, watch: bool) -> dict[int, Told]:
        """Apply the gradients, and drop them. What the optimizers that do it were about to do, by parameter."""
        told: dict[int, Told] = {}
        with ExitStack() as stack:
            for optimizer in optimizers_in(self.optimizer, self.adapter) if watch else ():
                stack.enter_context(self.adapter.watching_updates(optimizer, self._noting(optimizer, told)))
            if self.adapter.is_optimizer(self.optimizer):
                self.adapter.update(self.optimizer, learned)
            elif self.handed:
                self.optimizer(tuple(g for _, g in learned.gradients))
            elif inspect.ismethod(self.optimizer) and self.adapter.is_optimizer(self.optimizer.__self__):
                getattr(self.optimizer.__self__, self.optimizer.__name__)()  # as it is while it is watched
            else:
                self.optimizer()
        self.adapter.clear_gradients([p for p, _ in learned.gradients])
        return told

    def _noting(self, optimizer: Any, told: dict[int, Told]) -> Callable[[Sequence[Any] | None], None]:
        def seen(gradients: Sequence[Any] | None) -> None:
            try:
                for one in self.adapter.rules(optimizer, gradients):
                    told.setdefault(id(one.parameter), one)
            except Exception as error:  # noqa: BLE001 - an optimizer of another make is judged without
                warnings.warn(
                    f"twinscope: {type(optimizer).__name__} cannot be read ({type(error).__name__}: {error})",
                    TwinscopeWarning,
                    stacklevel=2,
                )

        return seen


def parse_optimizers(
    optimizer: Any, reference: Any, candidate: Any, steps: int, backward: bool
) -> tuple[tuple[Any, bool], tuple[Any, bool]] | None:
    """Both sides' optimizers, each with whether it is handed the gradients; None where no step is to be made.

    >>> parse_optimizers(None, None, None, 2, True)
    Traceback (most recent call last):
    ...
    twinscope.errors.OptionError: steps=2 needs an optimizer: without one every step is the first one again
    Hint: pass optimizer=(for_reference, for_candidate)
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"steps={steps!r} is not a whole number of at least 1", hint="write steps=1 or more")
    if optimizer is None:
        if steps > 1:
            raise OptionError(
                f"steps={steps} needs an optimizer: without one every step is the first one again",
                hint="pass optimizer=(for_reference, for_candidate)",
            )
        return None
    if not backward:
        raise OptionError("an optimizer needs gradients", hint="leave backward=False out, or optimizer=")
    if not isinstance(optimizer, (tuple, list)) or len(optimizer) != 2:
        raise OptionError(
            "optimizer is not a pair: each side has its own", hint="pass optimizer=(for_reference, for_candidate)"
        )
    return (
        (optimizer[0], _checked(optimizer[0], reference, "reference")),
        (optimizer[1], _checked(optimizer[1], candidate, "candidate")),
    )


def _checked(optimizer: Any, model: Any, role: str) -> bool:
    """Whether a side's optimizer is a function that takes the gradients; what cannot be one is an `OptionError`."""
    adapter = adapter_for(model)
    if optimizer is None:
        raise OptionError(
            f"the {role} has no optimizer, and the other side has one",
            hint="hand in both, or neither; `lambda: None` is an update that does nothing",
        )
    if adapter.is_optimizer(optimizer):
        own = {id(t) for _, module in adapter.modules(model) for t in adapter.state(module).values()}
        if not any(id(p) in own for p in adapter.optimized(optimizer)):
            raise OptionError(
                f"the {role}'s optimizer updates none of the {role}'s parameters",
                hint="make it with the parameters of the very model that is handed in; "
                "the order is optimizer=(for_reference, for_candidate)",
            )
        if type(optimizer).__name__ == "LBFGS":
            raise OptionError(
                f"the {role}'s optimizer is LBFGS, which runs the model by itself",
                hint="hand in a function that does the update: lambda: optimizer.step(closure)",
            )
        return False
    if not callable(optimizer):
        package = package_of(optimizer)
        what = f"a {type(optimizer).__name__}" + (f" of {package}" if package else "")
        raise OptionError(
            f"the {role}'s optimizer is {what}: neither an optimizer of {adapter.name} nor a function",
            hint="optimizer=(for_reference, for_candidate): torch.optim, paddle.optimizer, mindspore.nn, or a lambda",
        )
    try:
        parameters = inspect.signature(optimizer).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is inspect.Parameter.empty and p.kind in kinds]
    if len(needed) > 1:
        raise OptionError(
            f"the {role}'s update takes {len(needed)} arguments",
            hint="hand in a function without arguments, or one that takes the gradients",
        )
    return len(needed) == 1


def optimizers_in(update: Any, adapter: Adapter) -> list[Any]:
    """The optimizers that an update makes use of, as far as can be seen: itself, what it is bound to, what a function
    encloses, was given beforehand, or reads from its module."""
    found: list[Any] = []
    waiting, seen = [(update, 0)], set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen or depth > 3:
            continue
        seen.add(id(value))
        if adapter.is_optimizer(value):
            found.append(value)
            continue
        more: list[Any] = []
        if isinstance(value, functools.partial):
            more += [value.func, *value.args, *value.keywords.values()]
        elif inspect.ismethod(value):
            more += [value.__self__, value.__func__]
        elif inspect.isfunction(value):
            names = {name for code in _codes(value.__code__) for name in code.co_names}
            more += [value.__globals__[name] for name in names if name in value.__globals__]
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # not filled yet
                    more.append(cell.cell_contents)
            more += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif isinstance(value, (tuple, list)) and len(value) <= 16:
            more += value
        elif isinstance(value, dict) and len(value) <= 16:
            more += value.values()
        elif hasattr(value, "__dict__") and not (
            inspect.isclass(value) or inspect.ismodule(value) or adapter.is_model(value) or adapter.is_tensor(value)
        ):
            more += list(vars(value).values())[:64]
        waiting += [(item, depth + 1) for item in more]
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@dataclass(frozen=True, slots=True)
class Twin:
    """A parameter or buffer of the candidate, and how it comes from those of the reference."""

    reference: tuple[str, ...]
    candidate: str
    carry: Callable[[Read], Array]  # the reference's, read by path, as the candidate lays them out


def train(
    sides: tuple[Side, Side],
    plan: Plan,
    steps: int,
    seed: int,
    mapping: WeightMap | None,
    hints: Any,
    comparing: Mapping[str, Any],
    judging: Judging,
    hold: bool,
) -> Result:
    """Make `steps` steps with both sides and compare each; the models and optimizers stay where that brings them."""
    training = _Training(sides, plan, seed, mapping, hints, comparing, judging, hold)
    results = [training.step(n) for n in range(steps)]
    training.leave()
    return _joined(results, training.rates)


class _Training:
    """Two models that are being trained side by side."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        plan: Plan,
        seed: int,
        mapping: WeightMap | None,
        hints: Any,
        comparing: Mapping[str, Any],
        judging: Judging,
        hold: bool,
    ) -> None:
        self.hold = hold
        self.rates: tuple[list[float | None], list[float | None]] = ([], [])  # of each side, by step
        self.sides = sides
        self.plan = plan
        self.seed = seed
        self.mapping = mapping
        self.hints = hints
        self.comparing = comparing
        self.judging = judging
        self.places = tuple(_places(s) for s in sides)
        self._twins: list[Twin] | None = None
        self._matching: Matching | None = None
        self._noise: dict[str, Array] = {}  # by the candidate's parameter: how well its gradients have agreed so far

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, number: int) -> Result:
        """One step of both sides, judged."""
        before = [_snapshot(s) for s in self.sides]
        states = [s.adapter.random_state() for s in self.sides]
        made = []
        try:
            for side in self.sides:
                made.append(self._learn(side, number))
        finally:
            for side, state in zip(self.sides, states, strict=True):
                side.adapter.restore(state)
        traces = (made[0][0], made[1][0])
        comparison = comparison_of(*traces, **self.comparing)
        self._matching = comparison.matching
        alone = isinstance(comparison.judge, RoundoffJudge)
        result = self._judged(comparison, traces, before, number)
        gradients = [self._gradients(s, m[1]) for s, m in zip(self.sides, made, strict=True)]
        told = [s.update(m[1], alone) for s, m in zip(self.sides, made, strict=True)]
        after = [_snapshot(s) for s in self.sides]
        sides = [
            _Made(b, g, a, self._told(s, t))
            for s, b, g, a, t in zip(self.sides, before, gradients, after, told, strict=True)
        ]
        updates = self._updates(sides)
        judged = self._judged_updates(updates, sides) if alone else [None] * len(updates)
        numbers = range((number << STEP_BITS) + (1 << (STEP_BITS - 1)), (number + 1) << STEP_BITS)

        def told_of(whole: Result, judge: Judge, known: Sequence[Judged | None]) -> Result:
            return self._updated(whole, judge, updates, known, number, numbers)

        def again(judge: Judge) -> Result:
            known = judged if isinstance(judge, RoundoffJudge) else [None] * len(updates)
            return told_of(comparison.result_by(judge), judge, known)

        result = told_of(result, comparison.judge, judged)
        if not self.hold:
            return replace(result, traces=None, again=None)
        if result.traces is not None and result.traces[1] is not traces[1]:  # the step was made once more
            traces = (traces[0], Trace.joined([traces[1], result.traces[1]], arrays_only=True))
        return replace(result, traces=_with_updates(traces, updates, numbers), again=again)

    def _learn(self, side: Side, number: int) -> tuple[Trace, Learned]:
        args, kwargs = as_arguments(side.adapter, side.inputs)
        side.adapter.seed(self.seed + number)
        run = Capture(side.model, None, self.plan, adapter=side.adapter, first_step=number)
        with run:
            learned = side.adapter.learn(side.model, args, kwargs, side.loss)
            if side.adapter.is_tensor(learned.loss):
                run.loss(learned.loss)
        if run.error is not None:
            raise run.error
        if not any(g is not None for _, g in learned.gradients):
            raise OptionError(
                f"the {side.role}'s loss led to no gradient, and an optimizer is to apply one",
                hint="loss must return a scalar that depends on the model's output and on trainable parameters",
            )
        return run.trace, learned

    def _gradients(self, side: Side, learned: Learned) -> dict[str, Array]:
        paths: dict[int, list[str]] = defaultdict(list)
        for info, module in side.adapter.modules(side.model):
            for name, tensor in side.adapter.state(module).items():
                paths[id(tensor)].append(info.param_path(name))
        return {
            path: np.array(side.adapter.to_numpy(gradient), copy=True)
            for parameter, gradient in learned.gradients
            if gradient is not None
            for path in paths[id(parameter)]
        }

    # -- forward and backward ------------------------------------------------------------------------------------------

    def _judged(
        self, comparison: Comparison, traces: tuple[Trace, Trace], before: Sequence[Mapping[str, Array]], number: int
    ) -> Result:
        if not isinstance(comparison.judge, RoundoffJudge):
            return comparison.result()  # who asks for a tolerance gets exactly that
        apart = self._apart(before)
        foreign = number == 0 and apart > _DRIFT and not self._continues(before)
        if apart == 0.0 or foreign:  # no training of ours, nor one without a fault, has brought them apart
            with self._as_before(before):
                return comparison.result(self.judging(comparison, traces, self.seed + number))
        result = comparison.result()
        if result.verdict is Overall.SAME:
            return result
        return self._alone(result, comparison, traces, before, number, apart)

    def _alone(
        self,
        result: Result,
        comparison: Comparison,
        traces: tuple[Trace, Trace],
        before: Sequence[Mapping[str, Array]],
        number: int,
        apart: float,
    ) -> Result:
        """The step once more, the candidate with the reference's weights: what differs then was not inherited."""
        side = self.sides[1]
        with self._as_before(before), self._placed(before[0]):
            plan = self.plan
            trace = watch_once(
                side.adapter, side.model, side.inputs, side.loss, plan, self.seed + number, None, number, True
            )
            again = comparison_of(traces[0], trace, **self.comparing)
            alone = again.result()
            if alone.verdict is not Overall.SAME:
                alone = again.result(self.judging(again, (traces[0], trace), self.seed + number))
        differed = {r.reference.index for r in result.pairs if r.verdict is Verdict.BUG}
        pairs = tuple(replace(r, inherits=True) if r.reference.index in differed else r for r in alone.pairs)
        note = (
            f"step {number}: the weights have come {apart:.1g} of their scale apart in the steps before; what was "
            "computed with them was judged with the reference's weights on both sides"
        )
        return replace(alone, pairs=pairs, notes=(*alone.notes, note))

    @contextmanager
    def _as_before(self, before: Sequence[Mapping[str, Array]]) -> Iterator[None]:
        """Buffers as they were when the step began, while the context is open: what a pass makes of them is known."""
        after = [_snapshot(s) for s in self.sides]
        for side, held in zip(self.sides, before, strict=True):
            _assign(side, held)
        try:
            yield
        finally:
            for side, held in zip(self.sides, after, strict=True):
                _assign(side, held)

    @contextmanager
    def _placed(self, reference: Mapping[str, Array]) -> Iterator[None]:
        """The candidate with the reference's weights and buffers, while the context is open."""
        side = self.sides[1]
        with unchanged(side.adapter, side.model):
            _assign(side, {t.candidate: t.carry(reference.__getitem__) for t in self.twins()})
            yield

    def _continues(self, before: Sequence[Mapping[str, Array]]) -> bool:
        """Whether both models are as the last call for these two left them."""
        candidate = self.sides[1].model
        return candidate in _LEFT and _LEFT[candidate] == tuple(map(_digest, before))

    def leave(self) -> None:
        """Remember how both models are left, so that the next call knows its own work."""
        with suppress(TypeError):  # an object that nobody can refer to weakly
            _LEFT[self.sides[1].model] = tuple(_digest(_snapshot(s)) for s in self.sides)

    def _apart(self, before: Sequence[Mapping[str, Array]]) -> float:
        """How far the two sides' weights are apart, relative to their scale."""
        off = whole = 0.0
        for twin in self.twins():
            theirs, own = twin.carry(before[0].__getitem__), before[1][twin.candidate]
            if theirs.dtype.name in ROUNDOFF and own.dtype.name in ROUNDOFF:
                theirs = theirs.astype(np.float64)
                off += float(np.sum(np.square(theirs - own.astype(np.float64))))
                whole += float(np.sum(np.square(theirs)))
        return math.sqrt(off / whole) if whole > 0 else 0.0 if off == 0 else math.inf

    # -- which belong together -----------------------------------------------------------------------------------------

    def twins(self) -> list[Twin]:
        """Every parameter and buffer of the candidate that has partners in the reference."""
        if self._twins is None:
            if self.mapping is None:
                self.mapping = self._found_map()
            self._twins = _twins_of(self.mapping) if self.mapping is not None else []
            if not self._twins and self._matching is not None:
                self._twins = _twins_matched(self._matching, self.places)
        return self._twins

    def _found_map(self) -> WeightMap | None:
        given = InputPair(self.sides[0].inputs, self.sides[1].inputs)
        try:
            return find_map(self.sides[0].model, self.sides[1].model, given, Hints.parse(self.hints), self.seed)
        except TwinscopeError:
            return None

    # -- the update ----------------------------------------------------------------------------------------------------

    def _told(self, side: Side, told: Mapping[int, Told]) -> dict[str, Told]:
        found = {}
        for info, module in side.adapter.modules(side.model):
            for name, tensor in side.adapter.state(module).items():
                if id(tensor) in told:
                    found[info.param_path(name)] = told[id(tensor)]
        return found

    def _updates(self, sides: Sequence[_Made]) -> list[tuple[Twin, Update]]:
        """What became of each parameter on both sides, in the candidate's layout."""
        first, second = sides
        found = []
        for twin in self.twins():
            info, name = self.places[1][twin.candidate]
            param = next(p for p in info.params if p.name == name)
            if param.buffer or param.tied_to is not None or not twin.reference:
                continue
            own = (second.before[twin.candidate], second.after[twin.candidate])
            theirs = (twin.carry(first.before.__getitem__), twin.carry(first.after.__getitem__))
            gradient = second.gradients.get(twin.candidate)
            known = all(path in first.gradients for path in twin.reference)
            other = twin.carry(first.gradients.__getitem__) if known else None
            moved = not (np.array_equal(*own) and np.array_equal(*theirs))
            if moved or gradient is not None or other is not None:  # else it is frozen on both sides
                found.append((twin, Update((theirs[0], own[0]), (other, gradient), (theirs[1], own[1]))))
        return found

    def _judged_updates(self, updates: Sequence[tuple[Twin, Update]], sides: Sequence[_Made]) -> list[Judged | None]:
        """Each update judged alone."""
        handlings = [side.handling() for side in sides]
        found: list[Judged | None] = []
        for n, (twin, update) in enumerate(updates):
            noise = self._noise[twin.candidate] = update.noise(self._noise.get(twin.candidate))
            reference = [sides[0].own(path, handlings[0]) for path in twin.reference]
            candidate = sides[1].own(twin.candidate, handlings[1])
            if n == 0:
                for rates, own in zip(self.rates, (reference[0], candidate), strict=True):
                    rates.append(own.rule["lr"] if own.rule is not None else None)
            found.append(judge_alone(update, noise, reference, candidate))
        return found

    def _updated(
        self,
        result: Result,
        judge: Judge,
        updates: Sequence[tuple[Twin, Update]],
        judged: Sequence[Judged | None],
        number: int,
        numbers: range,
    ) -> Result:
        """The result with what the update made of the weights."""
        held: dict[tuple[str, str], list[tuple[SlotDiff, Judged | None]]] = defaultdict(list)
        for n, ((twin, update), one) in enumerate(zip(updates, judged, strict=True)):
            slots = (
                _slot(self.places[0][twin.reference[0]][1], update.after[0], numbers[n], twin.reference[0], self.hold),
                _slot(self.places[1][twin.candidate][1], update.after[1], numbers[n], twin.candidate, self.hold),
            )
            paths = (self.places[0][twin.reference[0]][0].path, self.places[1][twin.candidate][0].path)
            held[paths].append((_diff(slots, update, judge, one), one))
        given_wrong = {
            p.reference.path for p in result.pairs if p.verdict is Verdict.BUG and p.reference.phase in _GIVEN
        }
        pairs, wrong = [], []
        for n, (paths, parts) in enumerate(held.items(), len(updates)):
            diffs = tuple(d for d, _ in parts)
            records = [
                _record(numbers[n], number, path, self._type(i, path), slots)
                for i, (path, slots) in enumerate(
                    zip(paths, ([d.reference for d in diffs], [d.candidate for d in diffs]), strict=True)
                )
            ]
            pair = Pair(records[0], records[1], "weights", 1.0, tuple((d.reference, d.candidate) for d in diffs))
            verdict = next(v for v in SEVERITY if v in {d.verdict for d in diffs})
            known = any(j is not None and j.cause is not None for _, j in parts)
            inherits = verdict is Verdict.BUG and paths[0] in given_wrong and not known
            made = PairResult(pair, verdict, diffs, inherits=inherits)
            pairs.append(made)
            if verdict is Verdict.BUG and not inherits:
                wrong.append((made, parts))
        findings = _findings(wrong, len(updates))
        if not updates:
            findings.append(_nothing_updated(number))
        findings += _told_otherwise([(t, j) for (t, _), j in zip(updates, judged, strict=True)], number, findings)
        return _extended(result, pairs, findings)

    def _type(self, side: int, path: str) -> str:
        return next(info.type for info, _ in self.places[side].values() if info.path == path)


@dataclass(frozen=True, slots=True)
class _Made:
    """What one side's step made: all that it holds before and after, its gradients, what its optimizer was told."""

    before: Mapping[str, Array]
    gradients: Mapping[str, Array]
    after: Mapping[str, Array]
    told: Mapping[str, Told] = field(default_factory=dict)

    def handling(self) -> Handling | None:
        """What was done to all gradients before the update, where that is one thing."""
        pairs = [
            (self.gradients[path].astype(np.float64), told.gradient)
            for path, told in self.told.items()
            if path in self.gradients and told.gradient is not None
        ]
        text = next((t.clipping for t in self.told.values() if t.clipping), "")
        return handling_of(pairs, text)

    def own(self, path: str, handling: Handling | None) -> Own:
        told = self.told.get(path)
        gradient = self.gradients.get(path)
        if gradient is not None:
            gradient = gradient.astype(np.float64)
        if told is None:
            return Own(path, self.before[path], self.after[path], gradient)
        if (handling is None or handling.scale is None) and gradient is not None and told.gradient is not None:
            handling = handling_of([(gradient, told.gradient)], told.clipping)  # each by its own norm
        return Own(
            path, self.before[path], self.after[path], gradient, told.gradient, told.rule, told.state,
            handling or Handling(),
        )  # fmt: skip


#: Phases in which a difference explains that of an update.
_GIVEN = frozenset({Phase.WEIGHT, Phase.GRADIENT})

#: How far apart training may have brought the weights of two correct ports, relative to their scale.
_DRIFT = 1e-2


#: Candidate -> what both sides held when the last call for them ended. Weights that are still those were not changed by
#: anybody else: in what they differ was said then.
_LEFT: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


def _digest(held: Mapping[str, Array]) -> int:
    number = 0
    for path in sorted(held):
        number = zlib.crc32(np.ascontiguousarray(held[path]).tobytes(), zlib.crc32(path.encode(), number))
    return number


def _places(side: Side) -> dict[str, tuple[ModuleInfo, str]]:
    """Every parameter and buffer of a model: its module and its name there, by path."""
    found = {}
    for info, _ in side.adapter.modules(side.model):
        for param in info.params:
            found[info.param_path(param.name)] = (info, param.name)
    return found


def _snapshot(side: Side) -> dict[str, Array]:
    """Copies of all that a model holds, by path."""
    return {
        info.param_path(name): np.array(side.adapter.to_numpy(tensor), copy=True)
        for info, module in side.adapter.modules(side.model)
        for name, tensor in side.adapter.state(module).items()
    }


def _assign(side: Side, held: Mapping[str, Array]) -> None:
    """Give a model these values, where it has others."""
    for info, module in side.adapter.modules(side.model):
        for name, tensor in side.adapter.state(module).items():
            array = held.get(info.param_path(name))
            if array is not None and not same_bytes(side.adapter.to_numpy(tensor), array):
                side.adapter.assign(tensor, array)


def _twins_of(mapping: WeightMap) -> list[Twin]:
    held = {h.path: h for h in mapping.candidate}

    def carry(entry: Entry, path: str) -> Callable[[Read], Array]:
        return lambda read: dict(carried(entry, read, held))[path]

    return [Twin(e.reference, path, carry(e, path)) for e in mapping.entries if e.sure for path in e.candidate]


def _twins_matched(matching: Matching, places: Sequence[Mapping[str, tuple[ModuleInfo, str]]]) -> list[Twin]:
    """Parameters of modules that were paired, where no map of the weights is to be had."""
    found = []
    for modules in matching.modules:
        for name, other, _ in modules.params:
            paths = [
                f"{path}.{own}" if path else own
                for path, own in ((modules.reference, name), (modules.candidate, other))
            ]
            if paths[0] not in places[0] or paths[1] not in places[1]:
                continue
            params = [next(p for p in info.params if p.name == n) for info, n in (places[i][paths[i]] for i in (0, 1))]
            if params[0].neutral_shape() == params[1].neutral_shape():
                found.append(Twin((paths[0],), paths[1], _through_neutral(paths[0], params[0], params[1])))
    return found


def _through_neutral(path: str, own: ParamInfo, other: ParamInfo) -> Callable[[Read], Array]:
    return lambda read: from_neutral(other, to_neutral(own, read(path)))


# -- what is said of an update -----------------------------------------------------------------------------------------


def _slot(name: str, array: Array, value: int, path: str, kept: bool) -> Slot:
    return Slot(name, TensorMeta(tuple(array.shape), array.dtype.name), value, array_stats(array), kept, path)


def _record(index: int, step: int, path: str, type_: str, slots: Sequence[Slot]) -> Record:
    return Record(index, step, Kind.STATE, Phase.STEP, path, type_, -1, None, 0, tuple(slots))


def _with_updates(
    traces: tuple[Trace, Trace], updates: Sequence[tuple[Twin, Update]], numbers: range
) -> tuple[Trace, Trace]:
    """Both traces with the weights after the update, which both have in the candidate's layout."""
    return tuple(  # type: ignore[return-value]
        trace.with_arrays({numbers[n]: update.after[side] for n, (_, update) in enumerate(updates)})
        for side, trace in enumerate(traces)
    )


def _diff(slots: tuple[Slot, Slot], update: Update, judge: Judge, judged: Judged | None) -> SlotDiff:
    """Two parameters after the update: what was said of the update, or what the tolerance that was asked for says."""
    left, right = update.after
    tolerance = (judge.atol, judge.rtol) if isinstance(judge, ToleranceJudge) else (0.0, 0.0)
    metrics = compare_arrays(left, right, atol=tolerance[0], rtol=tolerance[1], equal_nan=True)
    if judged is not None:
        return SlotDiff(*slots, judged.verdict, "tensors", judged.error, judged.limit, metrics, judged.note)
    context = Context((left.dtype.name, right.dtype.name), "", 0, 0.0)
    numbers = numbers_of(metrics, left, judge)
    return SlotDiff(
        *slots,
        judge.verdict(numbers, context),
        "tensors",
        judge.error(numbers, context),
        judge.limit(numbers, context),
        metrics,
    )


def _findings(
    wrong: Sequence[tuple[PairResult, Sequence[tuple[SlotDiff, Judged | None]]]], everything: int
) -> list[Finding]:
    """One finding a cause: an optimizer that was told otherwise does the same wrong to all that it updates."""
    groups: dict[str | None, list[tuple[PairResult, SlotDiff]]] = defaultdict(list)
    for result, parts in wrong:
        for diff, judged in parts:
            if diff.verdict is Verdict.BUG:
                groups[judged.cause if judged is not None else None].append((result, diff))
    found = []
    for cause, members in groups.items():
        first, diff = members[0]
        names = [f"{r.candidate.path}.{d.candidate.name}" if r.candidate.path else d.candidate.name for r, d in members]
        where = "of all parameters" if len(names) == everything else f"of {_listed(names)}"
        biases = len(names) < everything and all(len(d.candidate.meta.shape) <= 1 for _, d in members)
        numbers = {k: v for k, v in (("error", diff.error), ("limit", diff.limit)) if v is not None}
        text = "weights and gradients agreed, and the update led apart: the optimizer"
        found.append(
            Finding(
                Verdict.BUG,
                Phase.STEP,
                first.reference.step,
                first.reference.where,
                first.candidate.where,
                (None, None),
                "; ".join(t for t in (text, f"the update {where} differs", diff.note) if t),
                numbers,
                cause if cause is None or not biases else f"{cause}, on biases and norms ({_listed(names)})",
                first,
            )
        )
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *([f"and {len(names) - 3} more"] if len(names) > 3 else [])])


def _told_otherwise(
    judged: Sequence[tuple[Twin, Judged | None]], step: int, findings: Sequence[Finding]
) -> list[Finding]:
    """Settings that differ and have made no difference yet: nothing was shown about them."""
    told = list(dict.fromkeys(text for _, j in judged if j is not None for text in j.told))
    if not told or findings:
        return []
    text = f"the optimizers were told otherwise, which makes no difference in this step: {'; '.join(told)}"
    first = next(t for t, j in judged if j is not None and j.told)
    places = (first.reference[0].rpartition(".")[0], first.candidate.rpartition(".")[0])
    return [Finding(Verdict.UNDECIDED, Phase.STEP, step, places[0], places[1], (None, None), text)]


def _nothing_updated(step: int) -> Finding:
    return Finding(
        Verdict.UNDECIDED,
        Phase.STEP,
        step,
        None,
        None,
        (None, None),
        "no parameter of one side was found to be one of the other's: updates were not compared (pass mapping=)",
    )


def _extended(result: Result, pairs: Sequence[PairResult], findings: Sequence[Finding]) -> Result:
    """A result of the forward and backward pass, with those of the update."""
    everything = (*result.findings, *findings)
    verdict = result.verdict
    if any(f.verdict is Verdict.BUG for f in findings):
        verdict = Overall.DIFFERENT
    elif findings and verdict is Overall.SAME:
        verdict = Overall.UNDECIDED
    first = result.first_divergence or next((f for f in findings if f.verdict is Verdict.BUG), None)
    return replace(result, verdict=verdict, findings=everything, pairs=(*result.pairs, *pairs), first_divergence=first)


def _joined(results: Sequence[Result], rates: Sequence[Sequence[float | None]] = ((), ())) -> Result:
    """The results of all steps as one. What an optimizer does wrong in each step is a finding of the first."""
    order = (Overall.DIFFERENT, Overall.UNDECIDED, Overall.SAME)
    shift = _shifted(*rates)
    findings: list[Finding] = []
    for finding in (f for r in results for f in r.findings):
        if finding.phase is Phase.STEP and finding.cause is not None:
            if shift is not None and finding.cause.startswith("learning rate"):
                if any(f.cause is not None and f.cause.endswith(shift) for f in findings):
                    continue
                finding = replace(finding, cause=f"{finding.cause}: {shift}")
            elif any((f.cause, f.phase) == (finding.cause, finding.phase) for f in findings):
                continue
        findings.append(finding)
    if any(f.verdict is Verdict.BUG and f.phase is Phase.STEP for f in findings):
        findings = [f for f in findings if f.verdict is not Verdict.UNDECIDED or f.phase is not Phase.STEP]
    first = next((r.first_divergence for r in results if r.first_divergence is not None), None)
    if first is not None and first.phase is Phase.STEP:
        first = next((f for f in findings if (f.phase, f.step) == (Phase.STEP, first.step)), first)
    whole = replace(
        results[0],
        verdict=min((r.verdict for r in results), key=order.index),
        findings=tuple(findings),
        pairs=tuple(p for r in results for p in r.pairs),
        unmatched=Unmatched(
            tuple(u for r in results for u in r.unmatched.reference),
            tuple(u for r in results for u in r.unmatched.candidate),
        ),
        first_divergence=first,
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
        matching=replace(results[0].matching, pairs=tuple(p for r in results for p in r.matching.pairs)),
    )
    held = [r.traces for r in results if r.traces is not None]
    if len(held) < len(results):
        return whole

    def again(judge: Judge) -> Result:
        return _joined([r.again(judge) for r in results if r.again is not None], rates)

    return replace(whole, traces=(Trace.joined([t[0] for t in held]), Trace.joined([t[1] for t in held])), again=again)


def _shifted(reference: Sequence[float | None], candidate: Sequence[float | None]) -> str | None:
    """Whether two schedules of the learning rate are one, a step apart."""
    known = [[r for r in rates if r is not None] for rates in (reference, candidate)]
    if len(known[0]) < 2 or len(known[0]) != len(known[1]) or np.allclose(known[0], known[1], rtol=1e-6):
        return None
    for text, own, other in (
        ("the candidate's schedule is one step ahead", known[0][1:], known[1][:-1]),
        ("the candidate's schedule is one step behind", known[0][:-1], known[1][1:]),
    ):
        if np.allclose(own, other, rtol=1e-6):
            return text
    return None
