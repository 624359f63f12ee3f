"""From parts that go together to entries of a map.

A part is one neutral weight of one module, with the store that it lies in. A link says that two parts are the same
weight. Links that share a parameter make one entry: when a fused in-projection meets three separate ones, its three
parts are linked to three stores, and the entry splits it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ..adapters.base import Array
from ..records import ModuleInfo, ParamInfo
from .layers import COMPOSITE, Layer, remarks_of, stores_of
from .model import Weights, neutral_chain
from .transforms import (
    Arrange,
    Cast,
    Chain,
    Constant,
    Each,
    Normalize,
    Tie,
    Transform,
    dtype_of,
    inverted,
    run,
    simplified,
)
from .weightmap import Entry


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """A store as it lies in a model: full paths, and the whole way from the parameters to the neutral weights."""

    owner: ModuleInfo
    paths: tuple[str, ...]  # of the tensors, each by its first name
    names: tuple[str, ...]  # as this module calls them, by full path
    params: tuple[ParamInfo, ...]
    roles: tuple[str, ...]
    chain: Chain
    shapes: tuple[tuple[int, ...], ...]  # neutral, by role
    defaults: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, ...], Chain]:
        return self.paths, self.chain

    @property
    def dtype(self) -> str:
        return self.params[0].meta.dtype

    def parts(self) -> list[Part]:
        return [Part(self, i) for i in range(len(self.roles))]

    def refined(self, roles: Sequence[str], more: Chain) -> Stock:
        """The same parameters taken apart further."""
        chain = (*self.chain, *more)
        shapes = _shapes(self.params, chain)
        return Stock(self.owner, self.paths, self.names, self.params, tuple(roles), chain, shapes)


@dataclass(frozen=True, slots=True)
class Part:
    """One neutral weight."""

    stock: Stock
    index: int = 0

    @property
    def role(self) -> str:
        return self.stock.roles[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stock.shapes[self.index]

    @property
    def path(self) -> str:
        """Its name in words: the parameter's own where it is one whole parameter."""
        if len(self.stock.names) == len(self.stock.roles):
            return self.stock.names[self.index]
        return self.stock.owner.param_path(self.role)

    @property
    def buffer(self) -> bool:
        return all(p.buffer for p in self.stock.params)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def default(self) -> float | None:
        """The value that changes nothing, where there is one."""
        return self.stock.defaults.get(self.role)

    @property
    def key(self) -> tuple[int, int]:
        return id(self.stock), self.index


@dataclass(frozen=True, slots=True)
class Link:
    """Two parts that are the same weight, why that is believed and how firmly."""

    a: Part
    b: Part
    why: str
    confidence: float
    options: tuple[str, ...] = ()
    between: Chain = ()  # from the neutral weight of one to that of the other, where the two are not the same array


def stocks_of(weights: Weights, other: Weights | None = None) -> list[Stock]:
    """Everything that a model holds, taken apart into neutral weights, in the order of its modules.

    With `other`, the model that it is to be paired with, a composite layer of a kind that is not there is left as the
    layers and parameters that it consists of.
    """
    kinds = None if other is None else {info.kind for info in other.modules}
    below = _below(weights)
    tied = {path: param.tied_to or path for path, _, param in weights.places()}
    claimed: set[str] = set()
    found = []
    for info in weights.modules:
        prefix = f"{info.path}." if info.path else ""
        params = {path.removeprefix(prefix): param for path, param in below[info.path]}
        own = {p.name for p in info.params}
        if kinds is not None and info.kind in COMPOSITE and info.kind not in kinds:
            info = replace(info, kind=None)
        if info.kind is None:
            params = {name: param for name, param in params.items() if name in own}
        for store in stores_of(Layer(weights.framework, info, params)):
            names = tuple(prefix + name for name in store.names)
            if claimed.intersection(names):
                continue
            claimed.update(names)
            if not store.roles:
                continue
            used = tuple(params[name] for name in store.names)
            each = tuple(neutral_chain(p) for p in used)
            ones = (1,) * len(used)
            chain = simplified((Each(each, ones, ones), *store.transform))
            paths = tuple(tied.get(name, name) for name in names)
            shapes = _shapes(used, chain)
            found.append(Stock(info, paths, names, used, store.roles, chain, shapes, store.defaults))
    return found


def remarks(source: Weights, target: Weights) -> list[str]:
    """What a person should know of weights that went from one framework to another, by what both hold afterwards."""
    if source.framework == target.framework:
        return []
    found = []
    for weights in (source, target):
        below, read = _below(weights), weights.reader()
        for info in weights.modules:
            prefix = f"{info.path}." if info.path else ""
            params = {path.removeprefix(prefix): param for path, param in below[info.path]}
            found += remarks_of(Layer(weights.framework, info, params), partial(_read, read, prefix))
    return found


def _read(read: Callable[[str], Array], prefix: str, name: str) -> Array:
    return read(prefix + name)


def _below(weights: Weights) -> dict[str, list[tuple[str, ParamInfo]]]:
    """By module, the parameters of it and of all that lies inside, with their full paths."""
    found: dict[str, list[tuple[str, ParamInfo]]] = defaultdict(list)
    for path, info, param in weights.places():
        at = info.path
        while True:
            found[at].append((path, param))
            if not at:
                break
            at = at.rpartition(".")[0]
    return found


def _shapes(params: Sequence[ParamInfo], chain: Chain) -> tuple[tuple[int, ...], ...]:
    blank = [np.broadcast_to(np.zeros((), dtype_of(p.meta.dtype)), p.meta.shape) for p in params]
    if not chain:
        return tuple(p.meta.shape for p in params)
    return tuple(a.shape for a in run(chain, blank))


def joined(links: Sequence[Link]) -> list[Entry]:
    """The entries that these links make, in the links' order."""
    groups: dict[str, str] = {}

    def root(name: str) -> str:
        while groups.setdefault(name, name) != name:
            groups[name] = groups[groups[name]]
            name = groups[name]
        return name

    for link in links:
        names = [*(f"a {p}" for p in link.a.stock.paths), *(f"b {p}" for p in link.b.stock.paths)]
        for name in names[1:]:
            groups[root(name)] = root(names[0])
    together: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        together[root(f"a {link.a.stock.paths[0]}")].append(link)
    return [entry for group in together.values() for entry in _entry(group)]


def _entry(links: list[Link]) -> list[Entry]:
    unique: dict[object, Link] = {}
    for link in links:  # the same tensors met again, under the other name that they are tied to
        unique.setdefault((link.a.stock.key, link.a.index, link.b.stock.key, link.b.index, link.between), link)
    links = list(unique.values())
    first, second = _stocks(link.a.stock for link in links), _stocks(link.b.stock for link in links)
    parts_a = [part for stock in first for part in stock.parts()]
    parts_b = [part for stock in second for part in stock.parts()]
    place = {part.key: n for n, part in enumerate(parts_a)}
    source = {link.b.key: (place[link.a.key], link.between) for link in links}
    used = {n for n, _ in source.values()}
    (sources, opening), (targets, closing) = _opening(first), _opening(second)
    missing = [part for part in parts_b if part.key not in source and part.default is None]
    missing += [part for n, part in enumerate(parts_a) if n not in used and part.default is None]
    if missing:
        names = ", ".join(part.path for part in missing)
        return [Entry(sources, targets, (), f"{names} {'has' if len(missing) == 1 else 'have'} no partner", 0.0)]
    steps: list[Transform] = [*opening, _side_by_side([(s.chain, len(s.paths), len(s.roles)) for s in first])]
    # what the other side does without is dropped here, and below filled with what changes nothing
    steps.append(_side_by_side([((), 1, 1) if n in used else _omitting(p) for n, p in enumerate(parts_a)]))
    kept = sorted(used)
    linked = [source[part.key] for part in parts_b if part.key in source]
    steps.append(Arrange(tuple(kept.index(n) for n, _ in linked)))
    between = iter(linked)
    steps.append(_side_by_side([(next(between)[1], 1, 1) if p.key in source else _filling(p) for p in parts_b]))
    steps.append(_side_by_side([(inverted(s.chain), len(s.roles), len(s.paths)) for s in second]))
    steps += inverted(closing)
    steps.append(_side_by_side(_casts(first, second, targets)))
    weakest = min(links, key=lambda link: link.confidence)
    why = ", ".join(dict.fromkeys(link.why for link in links))
    chain = _kept_apart(simplified(tuple(steps)))
    return [Entry(sources, targets, chain, why, weakest.confidence, "", weakest.options)]


def _kept_apart(chain: Chain) -> Chain:
    """Without multiplying magnitude and direction to a weight and taking that apart again along the same axis: the
    weight would be the same, but the direction's length would not, by which its gradient is divided."""
    found: list[Transform] = []
    for step in chain:
        if isinstance(step, Normalize) and found and found[-1] == step.inverse():
            found.pop()
        else:
            found.append(step)
    return chain if len(found) == len(chain) else simplified(tuple(found))


def filled(stock: Stock, why: str) -> Entry | None:
    """An entry for what only the candidate has, where there is a value that changes nothing."""
    if any(part.default is None for part in stock.parts()):
        return None
    chain = (_side_by_side([_filling(p) for p in stock.parts()]), *inverted(stock.chain))
    return Entry((), stock.paths, simplified(chain), why, 0.9)


def omitted(stock: Stock, why: str) -> Entry | None:
    """An entry for what only the reference has, where there is a value that changes nothing."""
    found = filled(stock, why)
    return None if found is None else found.inverted()


def _stocks(stocks: Iterable[Stock]) -> list[Stock]:
    return list({id(stock): stock for stock in stocks}.values())


def _side_by_side(chains: Sequence[tuple[Chain, int, int]]) -> Each:
    """Chains with how many arrays each takes and gives."""
    return Each(tuple(c for c, _, _ in chains), tuple(n for _, n, _ in chains), tuple(n for _, _, n in chains))


def _filling(part: Part) -> tuple[Chain, int, int]:
    assert part.default is not None
    return (Constant(part.default, part.shape, part.stock.dtype),), 0, 1


def _omitting(part: Part) -> tuple[Chain, int, int]:
    chain, takes, gives = _filling(part)
    return inverted(chain), gives, takes


def _opening(stocks: Sequence[Stock]) -> tuple[tuple[str, ...], Chain]:
    """The tensors of some stores, each once, and how to hand them to the stores, which may share them."""
    wanted = [path for stock in stocks for path in stock.paths]
    paths = tuple(dict.fromkeys(wanted))
    if len(paths) == len(wanted):
        return paths, ()
    times = [wanted.count(path) for path in paths]
    ties = _side_by_side([((Tie(n),), 1, n) if n > 1 else ((), 1, 1) for n in times])
    copies = [path for path, n in zip(paths, times, strict=True) for _ in range(n)]
    order = []
    for path in wanted:
        at = copies.index(path)
        order.append(at)
        copies[at] = ""
    return paths, (ties, Arrange(tuple(order)))


def _casts(first: Sequence[Stock], second: Sequence[Stock], targets: Sequence[str]) -> list[tuple[Chain, int, int]]:
    sources = {p.meta.dtype for stock in first for p in stock.params}
    wanted = {path: p.meta.dtype for stock in second for path, p in zip(stock.paths, stock.params, strict=True)}
    found: list[tuple[Chain, int, int]] = []
    for path in targets:
        source = next(iter(sources))
        same = len(sources) > 1 or source == wanted[path]  # numpy has made one dtype of several already
        found.append(((), 1, 1) if same else ((Cast(source, wanted[path]),), 1, 1))
    return found
