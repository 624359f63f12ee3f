"""Copy weights where names, kinds and shapes make it plain; refuse, and say all that is wrong, where they do not.

Modules are paired by `match` from the two module trees alone. Every array passes through the neutral layout on its way
(`ParamInfo.axes`), decided by the layer's kind and the parameter's role, never by its shape: a square Linear is
transposed between frameworks that disagree, a user's subclass of Linear too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..adapters._registry import adapter_for
from ..adapters.base import Array
from ..errors import WeightError
from ..judge import ROUNDOFF
from ..match import match
from ..records import Manifest, ModuleInfo, ParamInfo, Record
from .layout import from_neutral, to_neutral


@dataclass(frozen=True, slots=True)
class Copied:
    """One parameter or buffer that was carried across."""

    reference: str
    candidate: str
    how: str
    confidence: float


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied, and what a person should know of it."""

    copied: tuple[Copied, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.copied)

    def __str__(self) -> str:
        rows = [f"{c.reference} -> {c.candidate}  ({c.how}, {c.confidence:.2f})" for c in self.copied]
        return "\n".join([f"{len(self.copied)} tensors copied", *rows, *self.notes])


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model holds: its modules, and each parameter or buffer in its framework's own layout, when asked for.

    The model may be alive in this process, or have been saved by another one.
    """

    framework: str
    model: str
    modules: tuple[ModuleInfo, ...]
    array: Callable[[ModuleInfo, ParamInfo], Array]

    @classmethod
    def of(cls, model: Any) -> Weights:
        """The weights of a live model, read as they are asked for."""
        adapter = adapter_for(model)
        found = adapter.modules(model)
        states = {info.path: module for info, module in found}

        def array(info: ModuleInfo, param: ParamInfo) -> Array:
            return adapter.to_numpy(adapter.state(states[info.path])[param.name])

        return cls(adapter.name, type(model).__qualname__, tuple(info for info, _ in found), array)


@dataclass(frozen=True, slots=True)
class _Bare:
    """A model that was not run, in the form that `match` reads."""

    manifest: Manifest
    records: Sequence[Record] = ()


@dataclass(frozen=True, slots=True)
class _Move:
    target: Any
    array: Array
    copied: Copied


def copy_weights(
    reference: Any,
    candidate: Any,
    *,
    mapping: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
) -> CopyReport:
    """Give the candidate the reference's parameters and buffers, all of them or, when one does not fit, none.

    ::

        report = twinscope.copy_weights(torch_model, paddle_model)
        print(report)

    Raises `WeightError` listing every parameter of the candidate that has no source, or one of another shape.
    """
    return give_weights(Weights.of(reference), candidate, mapping=mapping)


def give_weights(
    source: Weights, candidate: Any, *, mapping: Mapping[str, str] | Sequence[tuple[str, str]] | None = None
) -> CopyReport:
    """`copy_weights` from weights whose model need not be in this process.

    ::

        give_weights(Weights.of(torch_model), paddle_model)
    """
    second = adapter_for(candidate)
    left = {info.path: info for info in source.modules}
    right = {info.path: (info, module) for info, module in second.modules(candidate)}
    matching = match(
        _bare(source.framework, source.model, source.modules),
        _bare(second.name, type(candidate).__qualname__, [info for info, _ in right.values()]),
        hints=mapping,
    )
    moves: list[_Move] = []
    problems: list[str] = []
    notes: list[str] = []
    reached: set[tuple[str, str]] = set()
    given: set[tuple[str, str]] = set()
    guessed = [
        f"{p.reference} -> {p.candidate}" for p in matching.modules if p.how == "order among equals" and p.params
    ]
    if guessed:
        shown = ", ".join(guessed[:3]) + (", ..." if len(guessed) > 3 else "")
        notes.append(f"{len(guessed)} modules of one kind and shape were paired by order alone ({shown}): see mapping=")
    for pair in matching.modules:
        a, (b, target) = left[pair.reference], right[pair.candidate]
        taking = second.state(target)
        for name_a, name_b, _role in pair.params:
            x, y = _param(a, name_a), _param(b, name_b)
            reached.add((b.path, name_b))
            given.add((a.path, name_a))
            array = to_neutral(x, source.array(a, x))
            if array.shape != y.neutral_shape():
                problems.append(
                    f"{a.param_path(name_a)} {list(x.meta.shape)} does not fit {b.param_path(name_b)} "
                    f"{list(y.meta.shape)}"
                )
                continue
            array = from_neutral(y, array)
            if ROUNDOFF.get(y.meta.dtype, 0.0) > ROUNDOFF.get(x.meta.dtype, 0.0):
                notes.append(f"{b.param_path(name_b)}: {x.meta.dtype} narrowed to {y.meta.dtype}")
            if array.dtype.kind not in "biu" and bool(np.isnan(array).any()):
                notes.append(f"{a.param_path(name_a)} holds NaN")
            if x.trainable != y.trainable and not (x.buffer or y.buffer):
                notes.append(f"{b.param_path(name_b)} is trainable on one side only")
            how = Copied(a.param_path(name_a), b.param_path(name_b), pair.how, pair.confidence)
            moves.append(_Move(taking[name_b], np.array(array, copy=True), how))
    problems += _unreached(
        [info for info, _ in right.values()], reached, "the candidate's", "has no source in the reference"
    )
    problems += _unreached(source.modules, given, "the reference's", "has no place in the candidate")
    problems += _tie_conflicts(moves)
    if problems:
        raise WeightError(
            "weights were not copied, nothing was changed:\n  " + "\n  ".join(problems),
            hint="pair modules by hand with mapping={'path in reference': 'path in candidate'}, "
            "or copy them yourself and pass weights=False",
        )
    for move in moves:
        second.assign(move.target, move.array)
    return CopyReport(tuple(m.copied for m in moves), tuple(notes))


def _bare(framework: str, model: str, modules: Sequence[ModuleInfo]) -> _Bare:
    return _Bare(Manifest(framework, {}, model, tuple(modules), {}))


def _param(info: ModuleInfo, name: str) -> ParamInfo:
    return next(p for p in info.params if p.name == name)


def _unreached(side: Sequence[ModuleInfo], reached: set[tuple[str, str]], whose: str, what: str) -> list[str]:
    """Parameters that must take part and did not. A buffer such as a step counter need not have a partner."""
    tied = {p.tied_to for info in side for p in info.params if p.tied_to}
    full = {(info.path, p.name): info.param_path(p.name) for info in side for p in info.params}
    covered = {full[key] for key in reached if key in full}
    problems = []
    for info in side:
        for p in info.params:
            place = info.param_path(p.name)
            # of buffers, only the statistics that BatchNorm computes with must have a partner
            statistics = p.role in ("running_mean", "running_var") and "batch_norm" in (info.kind or "batch_norm")
            needed = p.trainable or (p.buffer and statistics)
            shared = p.tied_to in covered or (place in tied and place in covered)
            if needed and place not in covered and not shared:
                problems.append(f"{whose} {place} {list(p.meta.shape)} {what}")
    return problems


def _tie_conflicts(moves: Sequence[_Move]) -> list[str]:
    """One tensor of the candidate must not be given two different contents."""
    first: dict[int, _Move] = {}
    problems = []
    for move in moves:
        other = first.setdefault(id(move.target), move)
        if other is not move and not np.array_equal(other.array, move.array, equal_nan=move.array.dtype.kind == "f"):
            problems.append(
                f"{other.copied.candidate} and {move.copied.candidate} are one tensor in the candidate, but "
                f"{other.copied.reference} and {move.copied.reference} differ in the reference"
            )
    return problems
