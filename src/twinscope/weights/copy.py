"""Copying weights as a map says: all of them or, when anything does not hold, none, and every problem at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..adapters._registry import adapter_for
from ..adapters.base import Array
from ..errors import WeightError
from ..hints import Hints, Pairs
from ..judge import ROUNDOFF
from ..running import InputPair
from .linking import remarks
from .mapper import draft
from .mapping import find_map, weights_of
from .model import Weights
from .resting import likeness
from .weightmap import Entry, Held, WeightMap


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied, what was not, and what a person should know of it."""

    mapping: WeightMap
    copied: tuple[Entry, ...]
    left: tuple[str, ...] = ()  # what `strict=False` left as it was, and why
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(len(e.candidate) for e in self.copied)

    def __bool__(self) -> bool:
        return not self.left

    def __str__(self) -> str:
        rows = [
            f"{' + '.join(e.reference) or '(nothing)'} -> {' + '.join(e.candidate)}  ({e.why}, {e.confidence:.2f})"
            for e in self.copied
        ]
        left = [f"not copied: {text}" for text in self.left]
        return "\n".join([f"{len(self)} tensors copied", *rows, *left, *self.notes])


def copy_weights(
    reference: Any,
    candidate: Any,
    *,
    mapping: WeightMap | Pairs | str | os.PathLike[str] | None = None,
    inputs: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    strict: bool = True,
    seed: int = 0,
) -> CopyReport:
    """Give the candidate the reference's parameters and buffers, all of them or, when one does not fit, none.

    The reference is a model, or the `Weights` of one that another process has. `mapping` is a `WeightMap`, the path of
    a saved one or of a file of hints, or hints (see `map_weights`); without it the map is found, surer with `inputs`.
    With ``strict=False`` what is sure is copied and the rest is reported.

    ::

        report = twinscope.copy_weights(torch_model, paddle_model)
        print(report)

    Raises `WeightError` listing every problem: what is unmatched on either side, what does not fit, what is not sure.
    """
    found = as_map(mapping)
    if found is None:
        said = Hints.parse(mapping, skip)
        if inputs is None:
            found = draft(weights_of(reference), Weights.of(candidate), said).map()
        else:
            given = inputs if isinstance(inputs, InputPair) else InputPair(inputs, inputs)
            found = find_map(reference, candidate, given, said, seed)
    return give_weights(weights_of(reference), candidate, found, strict=strict)


def as_map(mapping: Any) -> WeightMap | None:
    """The weight map that was handed in, or saved at a path; None where `mapping` is hints or nothing."""
    if isinstance(mapping, WeightMap):
        return mapping
    if isinstance(mapping, (str, os.PathLike)) and WeightMap.is_saved(mapping):
        return WeightMap.load(mapping)
    return None


def give_weights(source: Weights, candidate: Any, mapping: WeightMap, *, strict: bool = True) -> CopyReport:
    """`copy_weights` by a map that is known, from weights whose model need not be in this process.

    ::

        give_weights(Weights.of(torch_model), paddle_model, mapping)
    """
    adapter = adapter_for(candidate)
    target = Weights.of(candidate)
    places: dict[str, Any] = {}
    for info, module in adapter.modules(candidate):
        for name, tensor in adapter.state(module).items():
            places.setdefault(info.param_path(name), tensor)
    problems = _strangers(mapping, source, target)
    if problems:
        raise _refused(problems, strict=True)
    problems = [_unsure(e) for e in mapping.unsure] + _unmatched(mapping) + _without_data(source, target)
    read = source.reader()
    good: list[Entry] = []
    notes: list[str] = list(mapping.notes)
    said: list[tuple[str, str]] = []
    for entry in mapping.entries:
        if not entry.sure:
            continue
        try:
            for _, path, array in mapping.arrays(read, [entry]):
                said += _words(entry, path, array)
        except WeightError as error:
            problems.append(error.message)
        else:
            good.append(entry)
    if problems and strict:
        raise _refused(problems, strict=False)
    for entry in good:
        for _, path, array in mapping.arrays(read, [entry]):
            adapter.assign(places[path], array)
    notes += remarks(source, Weights.of(candidate))
    notes += _summed(said) + _narrowed(mapping, good) + _trained(mapping, good) + _devices(source, target)
    return CopyReport(mapping, tuple(good), tuple(problems), tuple(notes))


def _refused(problems: Sequence[str], strict: bool) -> WeightError:
    hint = (
        "the map was made for other models: make it again with twinscope.map_weights"
        if strict
        else "pass inputs=, or pair what belongs together with mapping={'path in reference': 'path in candidate'}, "
        "leave parts out with skip=, copy what is sure with strict=False, or copy yourself and pass weights=False to "
        "align"
    )
    return WeightError("weights were not copied, nothing was changed:\n  " + "\n  ".join(problems), hint=hint)


def _strangers(mapping: WeightMap, source: Weights, target: Weights) -> list[str]:
    """Where the map speaks of other models than these."""
    problems = []
    for whose, side, weights in (
        ("reference", mapping.reference, source),
        ("candidate", mapping.candidate, target),
    ):
        now = {h.path: h for h in weights.held()}
        known = {h.path for h in side}
        for held in side:
            if held.path not in now:
                problems.append(f"the map has {held}, which the {whose} has not")
            elif now[held.path].shape != held.shape:
                problems.append(f"the map has {held}, which in the {whose} is {list(now[held.path].shape)}")
        problems += [f"the {whose} has {h}, which the map does not know" for h in now.values() if h.path not in known]
    return problems


def _unsure(entry: Entry) -> str:
    names = f"{' + '.join(entry.reference)} -> {' + '.join(entry.candidate)}"
    if entry.confidence == 0.0:
        return f"{names}: {entry.why}"
    others = f"; it could also be {', '.join(entry.options)}" if entry.options else ""
    return f"{names} is not sure ({entry.why}){others}"


def _unmatched(mapping: WeightMap) -> list[str]:
    sides = (
        ("the candidate's", mapping.unmatched_candidate, mapping.reference, "has no source in the reference"),
        ("the reference's", mapping.unmatched_reference, mapping.candidate, "has no place in the candidate"),
    )
    problems = []
    for whose, missing, others, what in sides:
        for held in missing:
            if held.needed:
                near = nearest(held, others)
                problems.append(f"{whose} {held} {what}" + (f" (nearest: {', '.join(near)})" if near else ""))
    return problems


def nearest(held: Held, others: Iterable[Held], most: int = 2) -> list[str]:
    """Those of the other side that are most like it: of its size first, then by name."""
    size = sorted(n for n in held.shape if n != 1)
    scored = []
    for other in others:
        same = sorted(n for n in other.shape if n != 1) == size
        alike = likeness(held.path, other.path)
        if same or alike > 0.6:
            scored.append((not same, -alike, str(other)))
    return [text for _, _, text in sorted(scored)[:most]]


def _without_data(source: Weights, target: Weights) -> list[str]:
    return [
        f"{whose} {path} lies on the device 'meta' and holds no data"
        for whose, weights in (("the reference's", source), ("the candidate's", target))
        for path, _, param in weights.places()
        if param.meta.device == "meta"
    ]


def _words(entry: Entry, path: str, array: Array) -> list[tuple[str, str]]:
    if array.dtype.kind in "biu" or not bool(np.isnan(array).any()):
        return []
    return [("holds NaN", " + ".join(entry.reference))]


def _summed(said: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name} {what}" for what, name in dict.fromkeys(said)]


def _narrowed(mapping: WeightMap, entries: Sequence[Entry]) -> list[str]:
    sides = ({h.path: h for h in mapping.reference}, {h.path: h for h in mapping.candidate})
    found = []
    for e in entries:
        for path in e.candidate:
            mine = sides[1][path].dtype
            given = {sides[0][p].dtype for p in e.reference}
            wider = [d for d in given if ROUNDOFF.get(d, 1.0) < ROUNDOFF.get(mine, 0.0)]
            found += [f"{path}: {dtype} narrowed to {mine}" for dtype in sorted(wider)]
    return found


def _trained(mapping: WeightMap, entries: Sequence[Entry]) -> list[str]:
    sides = ({h.path: h for h in mapping.reference}, {h.path: h for h in mapping.candidate})
    found = []
    for e in entries:
        first = {sides[0][p].trainable for p in e.reference if not sides[0][p].buffer}
        for path in e.candidate:
            held = sides[1][path]
            if first and not held.buffer and held.trainable not in first:
                found.append(f"{path} is trainable on one side only")
            elif not first and not e.reference and held.trainable:
                found.append(f"{path} is trainable, and the reference has nothing like it")
    return found


def _devices(source: Weights, target: Weights) -> list[str]:
    found = []
    for whose, weights in (("reference", source), ("candidate", target)):
        devices = Counter(param.meta.device for _, _, param in weights.places())
        elsewhere = {d: n for d, n in devices.items() if not d.lower().startswith("cpu")}
        found += [f"{n} tensors of the {whose} lie on {d}" for d, n in elsewhere.items()]
    return found
