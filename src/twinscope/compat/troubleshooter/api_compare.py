"""`api_dump_compare`: two dumps, as three tables: which call is which, and what forward and backward made of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import twinscope

from ..answer import Answer
from ..console import say
from .arrays import Compared, compared, edits
from .dumps import Api, Dump, Item, Step, open_dump
from .problems import ArgumentError
from .tables import csv_text, ruled, truncated

_NUMBERS = ("result of allclose", "ratio of allclose", "cosine similarity", "mean & max diffs")
_SUMMARY = "max, min, mean diffs"
_SHAPES = ("shape of orig", "shape of target")

#: Calls of either side that do one job; one of the two may be missing.
Group = tuple[tuple[Api, ...], tuple[Api, ...]]


@dataclass(frozen=True, slots=True)
class _Asked:
    rtol: float
    atol: float
    equal_nan: bool
    ignore_unmatched: bool


def api_dump_compare(
    origin_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    ignore_unmatched: bool = False,
) -> Answer[twinscope.Result]:
    """Compare two dumps: ``ts.migrator.api_dump_compare("ms_dump", "torch_dump", output_path="compare_result")``.

    Prints three tables, and writes them to `output_path` as ts_api_mapping.csv, ts_api_forward_compare.csv and
    ts_api_backward_compare.csv. True when every tensor has a partner and |origin - target| <= atol + rtol * |target|
    everywhere; `ignore_unmatched` leaves out what has none. The answer's `result` needs no tolerance: it says where the
    two first part, with the loss, the gradients of inputs and of parameters, which the tables have no place for.

    Reads what `api_dump_start` wrote, and what TroubleShooter itself did.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ArgumentError(f"{name}={value!r} is not a tolerance", hint=f"write {name}=1e-4")
    for name, flag in (("equal_nan", equal_nan), ("ignore_unmatched", ignore_unmatched)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}={flag!r} is neither True nor False", hint=f"write {name}=True")
    asked = _Asked(float(rtol), float(atol), equal_nan, ignore_unmatched)
    origins, targets = open_dump(origin_path, "origin_path"), open_dump(target_path, "target_path")
    ranks = sorted(set(origins) & set(targets))
    if not ranks:
        raise ArgumentError(
            f"the dumps have no rank in common: {sorted(origins)} and {sorted(targets)}",
            hint="compare dumps of the same processes",
        )
    alone = sorted(set(origins) ^ set(targets))
    if alone:
        say(f"Only one of the two has rank {', '.join(map(str, alone))}: not compared.")
    passed = not alone or ignore_unmatched
    for rank in ranks:
        place = None if output_path is None else Path(output_path) / ("" if rank == ranks[0] else f"rank{rank}")
        name = "" if len(ranks) == 1 else f"rank {rank}"
        passed &= _compare_rank(origins[rank], targets[rank], place, name, asked)
    return Answer(passed, lambda: _result(origins, targets, ranks))


def _compare_rank(origin: Dump, target: Dump, place: Path | None, name: str, asked: _Asked) -> bool:
    for dump in (origin, target):
        if dump.strange:
            shown = ", ".join(dump.strange[:3])
            say(f"{len(dump.strange)} names of the {dump.label} dump are none of a call and are left out: {shown}")
    number = min(len(origin.steps), len(target.steps))
    passed = number > 0
    if len(origin.steps) != len(target.steps):
        passed = False
        say(
            "The number of steps in origin_path and target_path are different. "
            f"There are {len(origin.steps)} steps in origin_path, and {len(target.steps)} steps in target_path. "
            f"Only the data of the previous {number} steps will be compared!"
        )
    for step in range(number):
        note = ", ".join(n for n in (name, f"step {step}" if number > 1 else "") if n)
        made = _Tables(origin, target, origin.steps[step], target.steps[step], asked, f" ({note})" if note else "")
        passed &= made.show(place, "" if step == 0 else f"_{step}")
    return passed


class _Tables:
    """The three tables of one step."""

    def __init__(self, origin: Dump, target: Dump, first: Step, second: Step, asked: _Asked, note: str) -> None:
        self.dumps = (origin, target)
        self.asked = asked
        self.note = note
        self.header = [f"ORIGIN NET ({origin.label})", f"TARGET NET ({target.label})"]
        self.groups = _grouped(origin, target, first, second)
        self.whole = origin.has_files and target.has_files
        self.passed = True

    def show(self, place: Path | None, suffix: str) -> bool:
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
        rows = [["\n".join(a.name for a in side) for side in group] for group in self.groups]
        self._put("The APIs mapping results of the two frameworks", self.header, rows, place, f"ts_api_mapping{suffix}")
        if not self.whole:
            say("npy files not found, use csv files to compare.")
        forward = [pair for group in self.groups for pair in self._forward(group)]
        backward = [pair for group in self.groups for pair in self._backward(group)][::-1]
        header = [*self.header, *_SHAPES, *(_NUMBERS if self.whole else (_SUMMARY,))]
        for phase, pairs in (("forward", forward), ("backward", backward)):
            rows = [self._row(*pair) for pair in pairs]
            title = f"The {phase} comparison results"
            if rows:
                self._put(title, header, rows, place, f"ts_api_{phase}_compare{suffix}")
        return self.passed and bool(forward)

    def _put(self, title: str, header: Sequence[str], rows: Any, place: Path | None, name: str) -> None:
        say(ruled(title + self.note, header, rows) + "\n")
        if place is not None:
            (place / f"{name}.csv").write_text(csv_text(header, rows) + "\n", encoding="utf-8")

    def _forward(self, group: Group) -> Iterator[tuple[Item | None, Item | None]]:
        left, right = group
        yield from self._pairs([a.inputs for a in left[:1]], [a.inputs for a in right[:1]])
        if not self.asked.ignore_unmatched:  # what lies within a group has no partner
            for side, apis in enumerate(group):
                inner = [i for a in apis[:-1] for i in a.outputs] if len(apis) > 1 else []
                inner += [i for a in apis[1:] for i in a.inputs]
                for item in inner:
                    self.passed = self.passed and (bool(left) and bool(right))
                    yield (item, None) if side == 0 else (None, item)
        yield from self._pairs([a.outputs for a in left[-1:]], [a.outputs for a in right[-1:]])

    def _backward(self, group: Group) -> Iterator[tuple[Item | None, Item | None]]:
        left, right = group
        if not self.asked.ignore_unmatched:
            for side, apis in enumerate(group):
                for item in [i for a in apis[:-1] for i in a.backward]:
                    yield (item, None) if side == 0 else (None, item)
        yield from self._pairs([a.backward for a in left[-1:]], [a.backward for a in right[-1:]])

    def _pairs(
        self, first: Sequence[list[Item]], second: Sequence[list[Item]]
    ) -> Iterator[tuple[Item | None, Item | None]]:
        left, right = (side[0] if side else [] for side in (first, second))
        whole = bool(first) and bool(second)
        if whole and len(left) == len(right) == 1:
            yield left[0], right[0]  # of other shapes too: that is what there is to be said
            return
        for i, j in _partners(left, right):
            pair = (None if i is None else left[i], None if j is None else right[j])
            if None in pair:
                if self.asked.ignore_unmatched:
                    continue
                self.passed = False
            yield pair

    def _row(self, first: Item | None, second: Item | None) -> list[Any]:
        if not self.whole:
            return self._summary(first, second)
        names = (None if first is None else f"{first.name}.npy", None if second is None else f"{second.name}.npy")
        arrays = [None if i is None else d.array(i.name) for d, i in zip(self.dumps, (first, second), strict=True)]
        asked = self.asked
        found: Compared = compared(names, arrays[0], arrays[1], asked.rtol, asked.atol, asked.equal_nan)
        if first is not None and second is not None:
            self.passed &= bool(found)
        return found.row(shapes=True)

    def _summary(self, first: Item | None, second: Item | None) -> list[Any]:
        names = [None if i is None else i.name for i in (first, second)]
        shapes = [None if i is None else list(i.shape) for i in (first, second)]
        if first is None or second is None:
            return [*names, *shapes, "nan, nan, nan"]
        diffs = []
        for x, y in zip(first.numbers, second.numbers, strict=True):
            diffs.append(abs(x - y) if x != y else 0.0)
            both = x == x and y == y
            within = x == y or (both and abs(x - y) <= self.asked.atol + self.asked.rtol * abs(y))
            self.passed &= within or (x != x and y != y)
        self.passed &= first.shape == second.shape
        return [*names, *shapes, ", ".join(f"{truncated(d, 5):.5f}" for d in diffs)]


def _partners(left: Sequence[Item], right: Sequence[Item]) -> list[tuple[int | None, int | None]]:
    """Tensors of one place and one shape; of the rest what the order and the shapes say."""
    places = {item.place: j for j, item in enumerate(right)}
    same = {i: places[item.place] for i, item in enumerate(left) if item.place in places}
    same = {i: j for i, j in same.items() if left[i].shape == right[j].shape}
    rest = ([i for i in range(len(left)) if i not in same], [j for j in range(len(right)) if j not in same.values()])
    found: list[tuple[int | None, int | None]] = list(same.items())
    for i, j in edits([left[i].shape for i in rest[0]], [right[j].shape for j in rest[1]], (1, 1, 5)):
        found.append((None if i is None else rest[0][i], None if j is None else rest[1][j]))
    return sorted(found, key=lambda p: (p[0] if p[0] is not None else len(left), p[1] or 0))


def _grouped(origin: Dump, target: Dump, first: Step, second: Step) -> list[Group]:
    """Which call is which: the order is the origin's, and what has no partner stands where it was made."""
    pairs = _matched(origin, target, first, second)
    partner = dict(pairs)
    taken = set(partner.values())
    groups: list[Group] = []
    done = 0
    for i, api in enumerate(first.apis):
        j = partner.get(i)
        if j is None:
            groups.append(((api,), ()))
            continue
        while done < j:
            if done not in taken:
                groups.append(((), (second.apis[done],)))
            done += 1
        groups.append(((api,), (second.apis[j],)))
        done = max(done, j + 1)
    groups += [((), (second.apis[j],)) for j in range(done, len(second.apis)) if j not in taken]
    return groups


def _matched(origin: Dump, target: Dump, first: Step, second: Step) -> list[tuple[int, int]]:
    try:
        found = twinscope.compare(origin.trace(first), target.trace(second)).matching
    except twinscope.TwinscopeError:  # nothing in common
        return []
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for pair in found.pairs:
        i, j = pair.reference.call_id - 1, pair.candidate.call_id - 1
        if i >= 0 and j >= 0 and i not in pairs and j not in taken:
            pairs[i] = j
            taken.add(j)
    return sorted(pairs.items())


def _result(origins: dict[int, Dump], targets: dict[int, Dump], ranks: Sequence[int]) -> twinscope.Result:
    """The first stretch that differs, or the last one."""
    result = None
    for rank in ranks:
        origin, target = origins[rank], targets[rank]
        both = list(zip(origin.traces, target.traces, strict=False))
        runs: Iterator[tuple[twinscope.Trace, twinscope.Trace]]
        if both:
            runs = ((twinscope.Trace.open(a.parent), twinscope.Trace.open(b.parent)) for a, b in both)
        else:
            steps = zip(origin.steps, target.steps, strict=False)
            runs = ((origin.trace(a, arrays=True), target.trace(b, arrays=True)) for a, b in steps)
        for first, second in runs:
            result = twinscope.compare(first, second)
            if not result:
                return result
    if result is None:
        raise ArgumentError("the dumps have no calls in common", hint="dump the same stretch of both networks")
    return result
