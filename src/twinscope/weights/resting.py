"""Pairing modules of two models at rest, when neither was run: by kind, neutral shapes, names and place in the tree.

Each group of modules that could stand for one another is settled as a whole, by assignment. The order of definition
breaks ties, but never makes a pair sure: where nothing else speaks for a pair, it is said to be unsure, and which
others it could be.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..pairing.evidence import name_tokens
from ..records import ModuleInfo
from .rules import rule_for

#: By how much the names of a pair must fit better than those of any other, to decide.
_MARGIN = 0.04
#: What the order of definition may add: less than any margin of names.
_ORDER = 0.02
#: Groups beyond this are cut into pieces in their order; only a net of thousands of equal layers has such.
_LARGE = 400


@dataclass(frozen=True, slots=True)
class Unit:
    """A module with weights of its own, as neutral roles and shapes."""

    info: ModuleInfo
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    label: str = ""  # its path as names are compared by

    @property
    def path(self) -> str:
        return self.info.path


@dataclass(frozen=True, slots=True)
class UnitPair:
    a: str
    b: str
    why: str
    confidence: float
    options: tuple[str, ...] = ()


def pair_units(
    first: Sequence[Unit], second: Sequence[Unit], settled: Mapping[str, str], zones: Sequence[Mapping[str, int]]
) -> list[UnitPair]:
    """Pairs of units; `settled` are pairs that hints have made, `zones` say by path under which hint a module lies."""
    taken = set(settled.values())
    free_a = [u for u in _counted(first) if u.path not in settled]
    free_b = [u for u in _counted(second) if u.path not in taken]
    found: list[UnitPair] = []
    exact = {u.path: u for u in free_b}
    for key_of in (_exactly, _loosely, _norms, _roughly):
        done_a, done_b = {p.a for p in found}, {p.b for p in found}
        groups: dict[Hashable, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
        for side, units, done in ((0, free_a, done_a), (1, free_b, done_b)):
            for u in units:
                if u.path not in done:
                    groups[(zones[side].get(u.path, -1), key_of(u))][side].append(u)
        for xs, ys in groups.values():
            if xs and ys:
                found += _settle(xs, ys, exact, firm=key_of is not _roughly)
    return found


def pair_by_rules(
    first: Sequence[ModuleInfo],
    second: Sequence[ModuleInfo],
    settled: Mapping[str, str],
    zones: Sequence[Mapping[str, int]],
) -> list[UnitPair]:
    """Pairs of modules for whose classes the user has made a rule, whatever they hold."""
    groups: list[dict[tuple[int, str], list[Unit]]] = []
    for modules, done, zone in ((first, set(settled), zones[0]), (second, set(settled.values()), zones[1])):
        held: dict[tuple[int, str], list[Unit]] = defaultdict(list)
        for m in modules:
            if m.path not in done:
                held[(zone.get(m.path, -1), m.type)].append(Unit(m, ()))
        groups.append(held)
    found: list[UnitPair] = []
    for (here, _), xs in groups[0].items():
        for (there, _), ys in groups[1].items():
            if here == there and rule_for(xs[0].info, ys[0].info) is not None:
                found += _settle(_counted(xs), _counted(ys), {u.path: u for u in ys}, firm=True)
    return found


def _exactly(u: Unit) -> Hashable:
    return u.info.kind, u.shapes


def _loosely(u: Unit) -> Hashable:
    """Without the dimension in the kind, without what has no axis of its own (biases): a bias may be on one side."""
    kind = None if u.info.kind is None else re.sub(r"\d+d$", "", u.info.kind).replace("sync_", "")
    main = max((shape for _, shape in u.shapes), key=lambda s: (len(s), s), default=())
    return kind, tuple(n for n in main if n != 1)


def _norms(u: Unit) -> Hashable:
    """By the kind of norm alone: its parameters may be on one side only."""
    kind = u.info.kind or ""
    return re.sub(r"\d+d$", "", kind).replace("sync_", "") if "norm" in kind else ("no norm", u.path, id(u))


def _roughly(u: Unit) -> Hashable:
    """By the largest shape alone, in any order of axes: a layer of the framework's and one of the user's own."""
    main = max((shape for _, shape in u.shapes), key=lambda s: (len(s), s), default=())
    return tuple(sorted(n for n in main if n != 1)) or ("nothing", id(u))


def _settle(xs: list[Unit], ys: list[Unit], exact: Mapping[str, Unit], firm: bool) -> list[UnitPair]:
    found: list[UnitPair] = []
    present = {u.path for u in ys}
    named = [(x, exact[x.path]) for x in xs if x.path in present]
    for x, y in named:
        found.append(UnitPair(x.path, y.path, "same name, kind and shape" if firm else "same name", 0.99))
    done = {x.path for x, _ in named}
    xs, ys = [x for x in xs if x.path not in done], [y for y in ys if y.path not in done]
    for some, others in _pieces(xs, ys):
        found += _assign(some, others, firm)
    return found


def _pieces(xs: list[Unit], ys: list[Unit]) -> Iterator[tuple[list[Unit], list[Unit]]]:
    """Groups too large to be settled as a whole, by the numbers in their paths, and what is left in their order."""
    if max(len(xs), len(ys)) > _LARGE:
        numbered: dict[tuple[str, ...], tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
        for side, units in enumerate((xs, ys)):
            for u in units:
                numbered[tuple(re.findall(r"\d+", u.label))][side].append(u)
        even = [pair for pair in numbered.values() if len(pair[0]) == len(pair[1]) <= _LARGE]
        yield from even
        done = {id(u) for pair in even for side in pair for u in side}
        xs, ys = [x for x in xs if id(x) not in done], [y for y in ys if id(y) not in done]
    for start in range(0, max(len(xs), len(ys)), _LARGE):
        yield xs[start : start + _LARGE], ys[start : start + _LARGE]


def _counted(units: Sequence[Unit]) -> list[Unit]:
    """Units with labels in which what is numbered from one is numbered from zero, as most people do."""
    lowest: dict[tuple[str, str], int] = {}
    for u in units:
        for above, part in _steps(u.path):
            number = re.search(r"\d+", part)
            if number:
                key = (above, re.sub(r"\d+", "#", part, count=1))
                lowest[key] = min(lowest.get(key, 1 << 30), int(number[0]))
    found = []
    for u in units:
        parts = []
        for above, part in _steps(u.path):
            from_one = lowest.get((above, re.sub(r"\d+", "#", part, count=1))) == 1
            parts.append(re.sub(r"\d+", lambda m: str(int(m[0]) - 1), part, count=1) if from_one else part)
        found.append(replace(u, label=".".join(parts)))
    return found


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Every part of a path with what stands before it."""
    above = ""
    for part in path.split("."):
        yield above, part
        above = f"{above}.{part}"


def _assign(xs: list[Unit], ys: list[Unit], firm: bool) -> list[UnitPair]:
    if not xs or not ys:
        return []
    if len(xs) == len(ys) == 1:
        alike = likeness(xs[0].label, ys[0].label)
        why = "the only two of this kind and shape" if firm else "the only two of this shape"
        return [UnitPair(xs[0].path, ys[0].path, why, 0.95 if firm else 0.6 + 0.3 * alike)]
    names = np.array([[likeness(x.label, y.label) for y in ys] for x in xs])
    order = np.array([[1.0 - abs(i / len(xs) - j / len(ys)) for j in range(len(ys))] for i in range(len(xs))])
    score = names + _ORDER * order
    found = []
    for i, j in zip(*linear_sum_assignment(score, maximize=True), strict=True):
        rivals = np.concatenate([np.delete(names[i], j), np.delete(names[:, j], i)])
        margin = float(names[i, j] - rivals.max()) if rivals.size else 1.0
        if margin >= _MARGIN:
            base = 0.75 if firm else 0.6
            found.append(UnitPair(xs[i].path, ys[j].path, "kind, shape and name", min(0.95, base + 0.5 * margin)))
            continue
        near = [ys[n].path for n in np.argsort(-score[i]) if n != j and names[i, n] > names[i, j] - _MARGIN]
        found.append(UnitPair(xs[i].path, ys[j].path, "order of definition among equals", 0.5, tuple(near[:5])))
    return found


def likeness(a: str, b: str) -> float:
    """How alike two paths are, 0 to 1, part by part from the end; numbers and words count apart.

    >>> likeness("layer1.0.conv2", "stages.0.0.conv2") > likeness("layer1.0.conv2", "stages.0.1.conv2")
    True
    """
    first, second = (tuple(reversed(p.split("."))) for p in (a, b))
    total, weight, norm = 0.0, 1.0, 0.0
    for n in range(max(len(first), len(second))):
        norm += weight
        if n < len(first) and n < len(second):
            total += weight * _part(first[n], second[n])
        weight *= 0.6
    words = [[t for t in name_tokens(p) if not t.isdigit()] for p in (a, b)]
    numbers = [re.findall(r"\d+", p) for p in (a, b)]
    return 0.7 * total / norm + 0.15 * _overlap(*words) + 0.15 * _in_place(*numbers)


def _part(a: str, b: str) -> float:
    return 1.0 if a == b else _overlap(name_tokens(a), name_tokens(b))


def _in_place(a: Sequence[str], b: Sequence[str]) -> float:
    """How many numbers agree, each with that at its place: the first is most often that of the block."""
    if not a and not b:
        return 1.0
    weights = [0.6**n for n in range(max(len(a), len(b)))]
    same = sum(w for w, x, y in zip(weights, a, b, strict=False) if x == y)
    return same / sum(weights)


def _overlap(a: Sequence[str], b: Sequence[str]) -> float:
    if not a and not b:
        return 1.0
    if not a or not b:
        return 0.0
    rest = list(b)
    common = 0
    for token in a:
        if token in rest:
            rest.remove(token)
            common += 1
    return 2.0 * common / (len(a) + len(b))
