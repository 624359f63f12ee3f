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

import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .adapters._registry import adapter_for, package_of
from .adapters.base import Adapter, Array, Learned
from .capturing import STEP_BITS, Capture, Plan
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
from .updates.update import Judged, Update, judge_directly
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

    def update(self, learned: Learned) -> None:
        """Apply the gradients, and drop them."""
        if self.adapter.is_optimizer(self.optimizer):
            self.adapter.update(self.optimizer, learned)
        elif self.handed:
            self.optimizer(tuple(g for _, g in learned.gradients))
        else:
            self.optimizer()
        self.adapter.clear_gradients([p for p, _ in learned.gradients])


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
) -> Result:
    """Make `steps` steps with both sides and compare each; the models and optimizers stay where that brings them."""
    training = _Training(sides, plan, seed, mapping, hints, comparing, judging)
    return _joined([training.step(n) for n in range(steps)])


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
    ) -> None:
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
        result = self._judged(comparison, traces, before, number)
        gradients = [self._gradients(s, m[1]) for s, m in zip(self.sides, made, strict=True)]
        for side, (_, learned) in zip(self.sides, made, strict=True):
            side.update(learned)
        after = [_snapshot(s) for s in self.sides]
        return self._updated(result, comparison, before, gradients, after, number)

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
        if apart == 0.0 or (number == 0 and apart > _DRIFT):  # more than training can have brought them apart
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
            trace = watch_once(side.adapter, side.model, side.inputs, side.loss, plan, self.seed + number, step=number)
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

    def _updated(
        self,
        result: Result,
        comparison: Comparison,
        before: Sequence[Mapping[str, Array]],
        gradients: Sequence[Mapping[str, Array]],
        after: Sequence[Mapping[str, Array]],
        number: int,
    ) -> Result:
        """The result with what the update made of the weights."""
        found = self._updates(before, gradients, after)
        numbers = itertools.count((number << STEP_BITS) + (1 << (STEP_BITS - 1)))
        held: dict[tuple[str, str], list[tuple[SlotDiff, Judged | None]]] = defaultdict(list)
        for twin, update in found:
            own, other = self.places[0][twin.reference[0]], self.places[1][twin.candidate]
            slots = (
                _slot(own[1], update.after[0], next(numbers), twin.reference[0]),
                _slot(other[1], update.after[1], next(numbers), twin.candidate),
            )
            noise = self._noise[twin.candidate] = update.noise(self._noise.get(twin.candidate))
            judged = None
            if isinstance(comparison.judge, RoundoffJudge):
                judged = judge_directly(update, noise)
            held[own[0].path, other[0].path].append((_diff(slots, update, comparison.judge, judged), judged))
        given_wrong = {
            p.reference.path for p in result.pairs if p.verdict is Verdict.BUG and p.reference.phase in _GIVEN
        }
        pairs, findings = [], []
        for paths, parts in held.items():
            diffs = tuple(d for d, _ in parts)
            records = [
                _record(
                    next(numbers),
                    number,
                    path,
                    self._type(i, path),
                    tuple((d.reference, d.candidate)[i] for d in diffs),
                )
                for i, path in enumerate(paths)
            ]
            pair = Pair(records[0], records[1], "weights", 1.0, tuple((d.reference, d.candidate) for d in diffs))
            verdict = next(v for v in SEVERITY if v in {d.verdict for d in diffs})
            inherits = verdict is Verdict.BUG and paths[0] in given_wrong
            made = PairResult(pair, verdict, diffs, inherits=inherits)
            pairs.append(made)
            if verdict is Verdict.BUG and not inherits:
                findings.append(_finding(comparison, made, [j for _, j in parts if j is not None]))
        if not found:
            findings.append(_nothing_updated(number))
        return _extended(result, pairs, findings)

    def _type(self, side: int, path: str) -> str:
        return next(info.type for info, _ in self.places[side].values() if info.path == path)

    def _updates(
        self,
        before: Sequence[Mapping[str, Array]],
        gradients: Sequence[Mapping[str, Array]],
        after: Sequence[Mapping[str, Array]],
    ) -> list[tuple[Twin, Update]]:
        """What became of each parameter on both sides, in the candidate's layout."""
        found = []
        for twin in self.twins():
            info, name = self.places[1][twin.candidate]
            param = next(p for p in info.params if p.name == name)
            if param.buffer or param.tied_to is not None or not twin.reference:
                continue
            own = (before[1][twin.candidate], after[1][twin.candidate])
            theirs = (twin.carry(before[0].__getitem__), twin.carry(after[0].__getitem__))
            gradient = gradients[1].get(twin.candidate)
            known = all(path in gradients[0] for path in twin.reference)
            other = twin.carry(gradients[0].__getitem__) if known else None
            moved = not (np.array_equal(*own) and np.array_equal(*theirs))
            if moved or gradient is not None or other is not None:  # else it is frozen on both sides
                found.append((twin, Update((theirs[0], own[0]), (other, gradient), (theirs[1], own[1]))))
        return found


#: Phases in which a difference explains that of an update.
_GIVEN = frozenset({Phase.WEIGHT, Phase.GRADIENT})

#: How far apart training may have brought the weights of two correct ports, relative to their scale.
_DRIFT = 1e-2


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


def _slot(name: str, array: Array, value: int, path: str) -> Slot:
    return Slot(name, TensorMeta(tuple(array.shape), array.dtype.name), value, array_stats(array), False, path)


def _record(index: int, step: int, path: str, type_: str, slots: tuple[Slot, ...]) -> Record:
    return Record(index, step, Kind.STATE, Phase.STEP, path, type_, -1, None, 0, slots)


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


def _finding(comparison: Comparison, result: PairResult, judged: Sequence[Judged]) -> Finding:
    """A weight that differs after the update although it agreed before, and its gradient did."""
    bad = [j for j in judged if j.verdict is Verdict.BUG]
    cause = next((j.cause for j in bad if j.cause is not None), None)
    text = "weights and gradients agreed, and the update led apart: the optimizer"
    return replace(comparison.finding(result, text, Phase.STEP), cause=cause)


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


def _joined(results: Sequence[Result]) -> Result:
    """The results of all steps as one."""
    order = (Overall.DIFFERENT, Overall.UNDECIDED, Overall.SAME)
    return replace(
        results[0],
        verdict=min((r.verdict for r in results), key=order.index),
        findings=tuple(f for r in results for f in r.findings),
        pairs=tuple(p for r in results for p in r.pairs),
        unmatched=Unmatched(
            tuple(u for r in results for u in r.unmatched.reference),
            tuple(u for r in results for u in r.unmatched.candidate),
        ),
        first_divergence=next((r.first_divergence for r in results if r.first_divergence is not None), None),
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
        matching=replace(results[0].matching, pairs=tuple(p for r in results for p in r.matching.pairs)),
        traces=results[0].traces if len(results) == 1 else None,  # they are those of one step
        again=results[0].again if len(results) == 1 else None,
    )
