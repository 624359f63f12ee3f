"""Which layers of two models stand for one another, those without weights included, from the models at rest.

Layers with weights are paired by the map of the weights. What has none, an activation, a pool, a dropout, is looked
for where its surroundings are: containers are paired by the weights under them, whatever they are called and however
they are nested, and within a pair of containers what has no weights is paired by its name, by the layers before and
after it, and by what it is. Where that does not decide, the pair is made and its doubt is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import ModuleInfo
from ..weights.mapper import Draft
from .table import family, role

#: Kinds that only hold others.
CONTAINERS = frozenset({"sequential", "module_list", "module_dict"})
#: A pair of the map that is surer than this is taken for certain.
SURE = 0.6

#: As many others as the map names for a pair: there may be more.
_MOST = 5

Signature = Callable[[int, ModuleInfo], Hashable]


@dataclass(frozen=True, slots=True)
class Partners:
    """Two layers that stand for one another; `doubt` says why they may not."""

    a: ModuleInfo
    b: ModuleInfo
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class _Light:
    """A layer without weights, as seen from the container that it is in."""

    info: ModuleInfo
    name: str
    before: Any  # the weights of the layer that is defined before it, and of the one after
    after: Any

    @property
    def kind(self) -> str:
        return self.info.kind or ""


class _Tree:
    """The modules of one side with the weights that lie under each, by the number of the map's entry."""

    def __init__(self, modules: Sequence[ModuleInfo], numbers: Mapping[str, int]) -> None:
        self.infos = {m.path: m for m in modules}
        self.children: dict[str, list[str]] = defaultdict(list)
        under: dict[str, set[int]] = defaultdict(set)
        for m in modules:
            held = {numbers[place] for p in m.params if (place := p.tied_to or m.param_path(p.name)) in numbers}
            for path in self._upwards(m.path):
                under[path] |= held
            if m.path:
                self.children[next(self._upwards(m.path.rpartition(".")[0]))].append(m.path)
        self.under = {path: frozenset(under.get(path, ())) for path in self.infos}

    def _upwards(self, path: str) -> Iterator[str]:
        while path:
            if path in self.infos:
                yield path
            path = path.rpartition(".")[0]
        yield ""

    def is_light(self, path: str) -> bool:
        return not self.under[path] and not self.infos[path].params

    def opened(self, paths: Sequence[str], which: Iterable[str]) -> list[str]:
        """Some modules with those named replaced by what is in them."""
        chosen = set(which)
        return [inner for path in paths for inner in (self.children[path] if path in chosen else (path,))]


def partners(draft: Draft, signature: Signature) -> list[Partners]:
    """All pairs of layers, in the reference's order. `signature` says what a layer is told, equal for equals."""
    return _Pairing(draft, signature).found()


class _Pairing:
    def __init__(self, draft: Draft, signature: Signature) -> None:
        numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for n, entry in enumerate(draft.entries()):
            if entry.reference and entry.candidate:
                numbers[0].update(dict.fromkeys(entry.reference, n))
                numbers[1].update(dict.fromkeys(entry.candidate, n))
        self.trees = (_Tree(draft.a.modules, numbers[0]), _Tree(draft.b.modules, numbers[1]))
        self.signature = signature
        self.pairs: dict[str, Partners] = {}
        self.taken: set[str] = set()
        self.spent: set[str] = set()  # more of them on one side than on the other: one stands for all
        doubts = _doubts(draft)
        for a, b in draft.modules.items():
            if a in self.trees[0].infos and b in self.trees[1].infos:
                why, options = doubts.get((a, b), ("", ()))
                told = {self.signature(1, info) for path in (b, *options) if (info := self.trees[1].infos.get(path))}
                # where all that it could be are told the same, it does not matter which it is
                self._pair(a, b, "" if 0 < len(options) < _MOST and len(told) == 1 else why)

    def found(self) -> list[Partners]:
        self._pair("", "")
        self._walk("", "")
        self._elsewhere()
        order = {path: n for n, path in enumerate(self.trees[0].infos)}
        return sorted(self.pairs.values(), key=lambda p: order[p.a.path])

    def _pair(self, a: str, b: str, doubt: str = "") -> None:
        if a in self.pairs or b in self.taken:
            return
        x, y = self.trees[0].infos[a], self.trees[1].infos[b]
        if x.kind is None or y.kind is None or {x.kind, y.kind} & CONTAINERS:
            return
        self.pairs[a] = Partners(x, y, doubt)
        self.taken.add(b)

    # -- containers ------------------------------------------------------------------------------------------------

    def _walk(self, a: str, b: str) -> None:
        """What is in a pair of containers."""
        waiting = [(a, b)]
        while waiting:
            a, b = waiting.pop()
            items = self._opened(self.trees[0].children[a], self.trees[1].children[b])
            matched = self._matched(*items)
            waiting += matched
            for x, y in matched:
                self._pair(x, y)
            self._lights(*(self._light(side, items[side], (a, b)[side]) for side in (0, 1)))

    def _opened(self, xs: Sequence[str], ys: Sequence[str]) -> tuple[list[str], list[str]]:
        """The contents, with containers opened until those of the two sides hold the same weights."""
        items = [list(xs), list(ys)]
        while True:
            which: list[list[str]] = [[], []]
            for side in (0, 1):
                own, other = self.trees[side], self.trees[1 - side]
                theirs: dict[frozenset[int], list[str]] = defaultdict(list)
                for path in items[1 - side]:
                    theirs[other.under[path]].append(path)
                for path in items[side]:
                    weights = own.under[path]
                    if not own.children[path]:
                        continue
                    if not weights:
                        hollow = own.infos[path].kind in (None, *CONTAINERS)
                        open_it = hollow and own.is_light(path)
                    elif weights in theirs:  # a container and a layer: the layer is in there
                        open_it = not any(other.children[p] for p in theirs[weights]) and self._holds_only(side, path)
                    else:
                        open_it = any(weights & w and not weights < w for w in theirs)
                    if open_it:
                        which[side].append(path)
            if not which[0] and not which[1]:
                return items[0], items[1]
            items = [self.trees[side].opened(items[side], which[side]) for side in (0, 1)]

    def _holds_only(self, side: int, path: str) -> bool:
        """Whether a module is but a place for others: not one of the framework's own with an inside."""
        info = self.trees[side].infos[path]
        return info.kind in (None, *CONTAINERS)

    def _matched(self, xs: Sequence[str], ys: Sequence[str]) -> list[tuple[str, str]]:
        waiting: dict[frozenset[int], list[str]] = defaultdict(list)
        for y in ys:
            waiting[self.trees[1].under[y]].append(y)
        found = []
        for x in xs:
            weights = self.trees[0].under[x]
            if weights and waiting[weights]:
                found.append((x, waiting[weights].pop(0)))
        return found

    # -- what has no weights ---------------------------------------------------------------------------------------

    def _light(self, side: int, items: Sequence[str], above: str) -> list[_Light]:
        tree = self.trees[side]
        taken = self.pairs.keys() if side == 0 else self.taken
        found = []
        for n, path in enumerate(items):
            info = tree.infos[path]
            if not tree.is_light(path) or info.kind is None or info.kind in CONTAINERS or path in taken:
                continue
            before = next((tree.under[p] for p in reversed(items[:n]) if tree.under[p]), None)
            after = next((tree.under[p] for p in items[n + 1 :] if tree.under[p]), None)
            name = path[len(above) + 1 :] if above else path
            found.append(_Light(info, name, before, after))
        return found

    def _lights(self, xs: list[_Light], ys: list[_Light]) -> None:
        roles = dict.fromkeys(role(light.kind) for light in (*xs, *ys))
        for name in roles:
            own = ([x for x in xs if role(x.kind) == name], [y for y in ys if role(y.kind) == name])
            if own[0] and own[1]:
                self._role(*own)

    def _role(self, xs: list[_Light], ys: list[_Light]) -> None:
        """Activations with activations, dropouts with dropouts, within one pair of containers."""
        moved = len(xs) > 1 and self._told(0, xs) == self._told(1, ys)  # all are there, perhaps elsewhere
        doubt = "they may be the same layers under each other's names" if moved else ""
        named = {y.name: y for y in ys}
        for x in list(xs):
            y = named.get(x.name)
            if y is not None and not x.name.replace(".", "").isdigit():
                self._pair(x.info.path, y.info.path, doubt)
                xs.remove(x)
                ys.remove(y)
        for key in (_between, _of_kind):
            groups: dict[Hashable, tuple[list[_Light], list[_Light]]] = defaultdict(lambda: ([], []))
            for side, lights in ((0, xs), (1, ys)):
                for light in lights:
                    groups[key(light)][side].append(light)
            for left, right in groups.values():
                if left and right:
                    self._group(left, right, certain=key is _between)
                    xs = [x for x in xs if x.info.path not in self.pairs and x.info.path not in self.spent]
                    ys = [y for y in ys if y.info.path not in self.taken and y.info.path not in self.spent]
        if len(xs) == len(ys) == 1:
            x, y = xs[0], ys[0]
            near = x.before == y.before and x.after == y.after
            self._pair(x.info.path, y.info.path, "" if near else "the only two left there")

    def _group(self, xs: list[_Light], ys: list[_Light], certain: bool) -> None:
        """Layers of one kind in one place: in a sequence by their order, elsewhere each first with its equal."""
        listed = all(self._in_sequence(side, light) for side, lights in ((0, xs), (1, ys)) for light in lights)
        if not (certain and listed and len(xs) == len(ys)):
            xs, ys = self._unequal(xs, ys)
        if not xs or not ys:
            return
        alike = len(self._told(0, xs)) == len(self._told(1, ys)) == 1  # then it does not matter which is whose
        if len(xs) == len(ys):
            doubt = "" if (certain and listed) or alike or len(xs) == 1 else "paired by their order alone"
            for x, y in zip(xs, ys, strict=True):
                self._pair(x.info.path, y.info.path, doubt)
        elif alike:
            self._pair(xs[0].info.path, ys[0].info.path, f"{len(xs)} such layers on one side, {len(ys)} on the other")
            self.spent.update(light.info.path for light in (*xs, *ys))

    def _unequal(self, xs: list[_Light], ys: list[_Light]) -> tuple[list[_Light], list[_Light]]:
        """What is left once those that are told the same are paired."""
        equals: dict[Hashable, list[_Light]] = defaultdict(list)
        for y in ys:
            equals[self.signature(1, y.info)].append(y)
        left = []
        for x in xs:
            waiting = equals[self.signature(0, x.info)]
            if waiting:
                self._pair(x.info.path, waiting.pop(0).info.path)
            else:
                left.append(x)
        return left, [y for y in ys if y.info.path not in self.taken]

    def _in_sequence(self, side: int, light: _Light) -> bool:
        above = self.trees[side].infos.get(light.info.path.rpartition(".")[0])
        return above is not None and above.kind == "sequential"

    def _told(self, side: int, lights: Sequence[_Light]) -> Counter[Hashable]:
        return Counter((light.kind, self.signature(side, light.info)) for light in lights)

    def _elsewhere(self) -> None:
        """What one side declares in its blocks and the other at the top, where all of a kind are told alike."""
        free: tuple[dict[str, list[ModuleInfo]], dict[str, list[ModuleInfo]]] = (defaultdict(list), defaultdict(list))
        for side, taken in ((0, self.pairs.keys()), (1, self.taken)):
            for path, info in self.trees[side].infos.items():
                if info.kind is not None and path not in taken and self.trees[side].is_light(path):
                    free[side][info.kind].append(info)
        paired = {p.a.kind for p in self.pairs.values()}
        for kind, xs in free[0].items():
            ys = free[1].get(kind, [])
            if (
                ys
                and kind not in paired
                and all(len({self.signature(s, i) for i in side}) == 1 for s, side in ((0, xs), (1, ys)))
            ):
                self._pair(xs[0].path, ys[0].path, "they are in different places of the two models")


def _between(light: _Light) -> Hashable:
    return family(light.kind), light.before, light.after


def _of_kind(light: _Light) -> Hashable:
    return family(light.kind)


def _doubts(draft: Draft) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """Pairs of the map that could be others: why, and which others."""
    found: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
    for link in (*draft.links, *(link for choice in draft.choices for link in choice.links)):
        if link.options or link.confidence < SURE:
            pair = (link.a.stock.owner.path, link.b.stock.owner.path)
            found[pair] = (f"their weights are paired by {link.why}", link.options)
    return found
