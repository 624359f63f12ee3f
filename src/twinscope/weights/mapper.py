"""Finding the map: which weights of two models are the same, from the models alone or from running them.

modules   pairs by hints, names, kinds, neutral shapes and place in the tree; by the order of their calls when the
          models were run (`twinscope.match`); by the user's own rules
parts     of paired modules by their neutral roles; what is left over by shape, name and place, and where one
          tensor has the size of several, as these packed in one of the ways that people pack
proof     where several ways remain, and to be sure of the rest: copy, run, look (`proof`)
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import WeightError
from ..hints import Hints
from ..match import Matching
from ..records import Kind, ModuleInfo
from ..store import Trace
from .linking import Link, Part, Stock, filled, joined, omitted, stocks_of
from .model import Weights
from .resting import Unit, UnitPair, likeness, pair_by_rules, pair_units
from .rules import rule_for
from .transforms import Arrange, Chain, Concat, Interleave, Permute, Reshape, Split, Transpose, inverted, simplified
from .weightmap import Entry, WeightMap

#: How sure a pair is that `match` made, by how it was made.
_HOW = {"order among equals": 0.5, "contents": 0.6}


@dataclass(slots=True)
class Choice:
    """Several ways to link some parts, of which running will tell the right one. The likeliest comes first."""

    scope: tuple[str, str]  # the smallest modules that enclose all of it, by path
    ways: list[tuple[Hashable, list[Link]]]  # a name for the way, equal for the same way elsewhere
    paths: tuple[frozenset[str], frozenset[str]]  # modules whose own outputs say nothing about the choice
    chosen: int = 0
    decided: bool = False

    @property
    def links(self) -> list[Link]:
        return self.ways[self.chosen][1]

    @classmethod
    def of(cls, ways: list[tuple[Hashable, list[Link]]]) -> Choice:
        """A choice among ways to link the same parts."""
        owners = [
            frozenset((link.a if side == 0 else link.b).stock.owner.path for _, links in ways for link in links)
            for side in (0, 1)
        ]
        return cls((enclosing(owners[0]), enclosing(owners[1])), ways, (owners[0], owners[1]))


@dataclass(slots=True)
class Draft:
    """A map in the making."""

    a: Weights
    b: Weights
    links: list[Link] = field(default_factory=list)
    fixed: list[Entry] = field(default_factory=list)  # made by rules and hints
    choices: list[Choice] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    skipped: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    notes: list[str] = field(default_factory=list)
    heads: Callable[[int], list[int]] = field(default=lambda size: [])

    def entries(self) -> list[Entry]:
        """All entries as the choices stand, in the reference's order."""
        links = [*self.links, *(link for choice in self.choices for link in choice.links)]
        found = [*self.fixed, *joined(links)]
        order = {path: n for n, (path, _, _) in enumerate(self.a.places())}
        found.sort(key=lambda e: min((order.get(p, 0) for p in e.reference), default=len(order)))
        return found

    def map(self) -> WeightMap:
        return WeightMap(
            (self.a.framework, self.b.framework),
            (self.a.model, self.b.model),
            self.a.held(),
            self.b.held(),
            tuple(self.entries()),
            *self.skipped,
            tuple(self.notes),
        )


def draft(
    a: Weights,
    b: Weights,
    hints: Hints,
    traces: tuple[Trace, Trace] | None = None,
    matching: Matching | None = None,
) -> Draft:
    """The map as far as it can be made without looking at numbers."""
    return _Drafter(a, b, hints, traces, matching).draft


class _Drafter:
    def __init__(
        self, a: Weights, b: Weights, hints: Hints, traces: tuple[Trace, Trace] | None, matching: Matching | None
    ) -> None:
        self.weights = (a, b)
        self.draft = Draft(a, b)
        self.hints = hints
        self.traces = traces
        self.draft.heads = lambda size: self._heads([size])
        self.stocks = (stocks_of(a, b), stocks_of(b, a))
        self.infos = ({m.path: m for m in a.modules}, {m.path: m for m in b.modules})
        self.used: tuple[set[str], set[str]] = (set(), set())  # tensors that have found their place, by own name
        self.by_module: tuple[dict[str, list[Stock]], dict[str, list[Stock]]] = (defaultdict(list), defaultdict(list))
        for side in (0, 1):
            for stock in self.stocks[side]:
                self.by_module[side][stock.owner.path].append(stock)
        self._skip()
        self._hinted_tensors()
        pairs = self._pairs(matching)
        self.draft.modules = {p.a: p.b for p in pairs}
        for pair in pairs:
            self._rule(pair)
        self._linked(pairs)
        self._packed()
        self._left_over()
        self._one_sided()
        if self.traces is not None:
            self._tied_there()
        self._not_run()

    # -- what the user says ----------------------------------------------------------------------------------------

    def _skip(self) -> None:
        skipped = []
        for side in (0, 1):
            names = [
                stock.names for stock in self.stocks[side] if any(self.hints.skips(side, name) for name in stock.names)
            ]
            flat = tuple(name for group in names for name in group)
            self.used[side].update(flat)
            tied = {path: p.tied_to or path for path, _, p in self.weights[side].places()}
            skipped.append(tuple(dict.fromkeys(tied[name] for name in flat)))
        self.draft.skipped = (skipped[0], skipped[1])

    def _hinted_tensors(self) -> None:
        """Hints that name parameters, not modules; several on one side are packed, in the order given."""
        named = tuple({n: n for stock in stocks for n in stock.names} for stocks in self.stocks)
        for sources, targets in self.hints.of_tensors(self._module_names(0), named[0], named[1]):
            self._hint(sources, targets)

    def _module_names(self, side: int) -> dict[str, str]:
        return {path: m.path for m in self.weights[side].modules for path in (m.path, *m.aliases)}

    def _hint(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        places = tuple({path: (info, p) for path, info, p in w.places()} for w in self.weights)
        stocks = tuple([_plain(*places[side][name]) for name in names] for side, names in ((0, sources), (1, targets)))
        ways = self._ways(stocks[0], stocks[1], list(range(max(len(sources), len(targets)))), given=True)
        if not ways:
            shapes = [" + ".join(str(list(s.params[0].meta.shape)) for s in side) for side in stocks]
            raise WeightError(
                f"the hint {' + '.join(sources)} -> {' + '.join(targets)} pairs tensors of shapes {shapes[0]} and "
                f"{shapes[1]}, which no transform joins",
                hint="register a rule for these modules: twinscope.weight_rule",
            )
        for side, names in ((0, sources), (1, targets)):
            self.used[side].update(names)
        ways = [(tag, [replace(link, why="hint", confidence=1.0) for link in links]) for tag, links in ways]
        self._choose(ways)

    def _rule(self, pair: UnitPair) -> None:
        a, b = self.infos[0][pair.a], self.infos[1][pair.b]
        found = rule_for(a, b)
        if found is None:
            return
        rule, reverse = found
        sides = [
            (w.framework, m, {path: p for path, _, p in w.places() if _under(path, m.path)})
            for w, m in zip(self.weights, (a, b), strict=True)
        ]
        first, second = sides[::-1] if reverse else sides
        for made in rule.entries((first[0], second[0]), (first[1], second[1]), (first[2], second[2])):
            entry = made.inverted() if reverse else made
            if any(p in self.used[0] for p in entry.reference) or any(p in self.used[1] for p in entry.candidate):
                continue
            self.used[0].update(entry.reference)
            self.used[1].update(entry.candidate)
            self.draft.fixed.append(entry)

    # -- modules ---------------------------------------------------------------------------------------------------

    def _units(self, side: int) -> list[Unit]:
        found = []
        for path, stocks in self.by_module[side].items():
            shapes = sorted(
                (part.role, part.shape)
                for stock in stocks
                for part in stock.parts()
                if not part.buffer and not self.used[side].intersection(stock.names)
            )
            if shapes or any(not self.used[side].intersection(s.names) for s in stocks):
                found.append(Unit(self.infos[side][path], tuple(shapes)))
        # a norm without parameters may have a partner with some that change nothing
        held = {u.path for u in found}
        found += [Unit(m, ()) for m in self.infos[side].values() if m.kind and "norm" in m.kind and m.path not in held]
        return found

    def _pairs(self, matching: Matching | None) -> list[UnitPair]:
        hinted = self.hints.of_modules(self._module_names(0), self._module_names(1))
        zones = [_zones(hinted, self.infos[0]), _zones(hinted.values(), self.infos[1])]
        if matching is None:
            found = [UnitPair(a, b, "hint", 1.0) for a, b in hinted.items()]
            return self._rested(found, zones)
        found = []
        units = tuple({u.path: u for u in self._units(side)} for side in (0, 1))
        for m in matching.modules:
            if m.how == "fused":
                continue
            x, y = units[0].get(m.reference), units[1].get(m.candidate)
            sure = _HOW.get(m.how, m.confidence)
            options: tuple[str, ...] = ()
            if m.how == "order among equals" and x is not None and y is not None:
                options = tuple(u.path for u in units[1].values() if u.shapes == y.shapes and u is not y)[:5]
            why = {"order": "order of calls, kind and shape", "path": "same name, kind and shape"}.get(m.how, m.how)
            found.append(UnitPair(m.reference, m.candidate, why, sure, options))
        return self._rested(found, zones)

    def _rested(self, found: list[UnitPair], zones: Sequence[Mapping[str, int]]) -> list[UnitPair]:
        """With pairs of modules that nothing has paired yet: by the user's rules, by kind, shape and name."""
        settled = {p.a: p.b for p in found}
        found = [*found, *pair_by_rules(self.weights[0].modules, self.weights[1].modules, settled, zones)]
        return [*found, *pair_units(self._units(0), self._units(1), {p.a: p.b for p in found}, zones)]

    # -- parts -----------------------------------------------------------------------------------------------------

    def _free(self, side: int, stock: Stock) -> bool:
        return not self.used[side].intersection(stock.names)

    def _linked(self, pairs: Sequence[UnitPair]) -> None:
        """Parts of paired modules, by role."""
        unsure: dict[Hashable, list[tuple[UnitPair, list[Link]]]] = defaultdict(list)
        for pair in pairs:
            left = [s for s in self.by_module[0].get(pair.a, ()) if self._free(0, s)]
            right = [s for s in self.by_module[1].get(pair.b, ()) if self._free(1, s)]
            links = self._roles(pair, left, right)
            if not links:
                continue
            for link in links:
                self.used[0].update(link.a.stock.names)
                self.used[1].update(link.b.stock.names)
            if pair.options:
                key = tuple(sorted((link.a.role, link.a.shape) for link in links))
                unsure[key].append((pair, links))
            else:
                for link in links:  # a bare square matrix may be used either way round
                    options = _arrangements(link.a, link.b)
                    self._choose(
                        [(tag, [replace(link, between=way.between)]) for tag, way in options] or [((), [link])]
                    )
        for group in unsure.values():
            self._permutations(group)

    def _roles(self, pair: UnitPair, left: list[Stock], right: list[Stock]) -> list[Link]:
        parts = {part.role: part for stock in right for part in stock.parts()}
        links = []
        for stock in left:
            for part in stock.parts():
                other = parts.get(part.role)
                if other is None or other.buffer != part.buffer:
                    continue
                between = _reshaped(part.shape, other.shape)
                if between is not None:
                    links.append(Link(part, other, pair.why, pair.confidence, pair.options, between))
        # a store goes as a whole: a part of it without partner keeps the rest from going
        linked = ({link.a.key for link in links}, {link.b.key for link in links})

        def whole(stock: Stock, side: int) -> bool:
            return all(p.key in linked[side] or p.default is not None for p in stock.parts())

        return [link for link in links if whole(link.a.stock, 0) and whole(link.b.stock, 1)]

    def _permutations(self, group: list[tuple[UnitPair, list[Link]]]) -> None:
        """Modules that could stand for one another: all ways to pair them, when they are few."""
        if len(group) < 2 or len(group) > 4:
            self.draft.links += [link for _, links in group for link in links]
            return
        self._choose(permuted([links for _, links in group], itertools.permutations(range(len(group)))))

    def _choose(self, ways: list[tuple[Hashable, list[Link]]]) -> None:
        if len(ways) == 1:
            self.draft.links += ways[0][1]
            return
        self.draft.choices.append(Choice.of(ways))

    # -- what is left over -----------------------------------------------------------------------------------------

    def _packed(self) -> None:
        """One tensor on one side that has the size of several on the other: q, k and v."""
        for side in (0, 1):
            one = [s for s in self.stocks[side] if self._free(side, s) and len(s.roles) == 1 and not s.params[0].buffer]
            many = [s for s in self.stocks[1 - side] if self._free(1 - side, s) and not s.params[0].buffer]
            groups = self._siblings(1 - side, many)
            # a bare matrix may lie the other way round, used as x @ w
            big_ones = [(big, turned, self._bias_beside(side, turned)) for big in one for turned in _either_way(big)]
            for big, turned, bias in big_ones:
                if not self._free(side, big):
                    continue
                fitting = [g for g in groups if all(self._free(1 - side, s) for s in g) and _fits_in(turned, g)]
                if not fitting:
                    continue
                best = max(fitting, key=lambda g: self._near(side, big, g))
                self._pack(side, turned, best, bias)

    def _siblings(self, side: int, stocks: Sequence[Stock]) -> list[list[Stock]]:
        """Runs of two to four tensors that lie side by side and differ in at most their first axis."""
        calls = self._calls(side)
        rows: dict[Hashable, list[Stock]] = defaultdict(list)
        for stock in stocks:
            if len(stock.roles) == 1 and len(stock.shapes[0]) >= 2:
                parent = stock.owner.path.rpartition(".")[0] if stock.owner.kind else stock.owner.path
                while parent and calls and parent not in calls:  # a container that nobody calls
                    parent = parent.rpartition(".")[0]
                rows[(parent, stock.shapes[0][1:])].append(stock)
        found = []
        for row in rows.values():
            if all(stock.owner.path in calls for stock in row):
                row.sort(key=lambda stock: calls[stock.owner.path])
            for size in (2, 3, 4):
                found += [row[i : i + size] for i in range(len(row) - size + 1)]
        return found

    def _calls(self, side: int) -> dict[str, int]:
        """The modules that were called, with the place of their first call; none when nothing was run."""
        found: dict[str, int] = {}
        for record in self.traces[side].records if self.traces is not None else ():
            if record.kind is Kind.MODULE:
                found.setdefault(record.path, record.call_id)
        return found

    def _bias_beside(self, side: int, stock: Stock) -> Stock | None:
        """The vector that goes with a matrix: of the same module, or with the same name but for the word."""
        out = stock.shapes[0][0] if stock.shapes[0] else 0
        own = [
            s
            for s in self.by_module[side][stock.owner.path]
            if s is not stock and self._free(side, s) and len(s.roles) == 1 and s.shapes[0] == (out,)
        ]
        if stock.owner.kind is not None:
            return next((s for s in own if s.roles == ("bias",)), None)
        alike = [s for s in own if _subject(s) == _subject(stock)]  # w_q and b_q
        own = alike or [s for s in own if "bias" in s.names[0].rpartition(".")[2]]
        return max(own, key=lambda s: likeness(s.names[0], stock.names[0]), default=None)

    def _near(self, side: int, big: Stock, group: Sequence[Stock]) -> tuple[float, float]:
        """How near a group lies to the place where the one tensor has its partner."""
        home = self._partner_above(side, big.owner.path)
        inside = 1.0 if home is not None and all(_under(s.names[0], home) for s in group) else 0.0
        depth = len(home.split(".")) if home else 0
        common = enclosing(frozenset(s.owner.path for s in group))
        at = [s.names[0] for s in self.stocks[side]].index(big.names[0]) / len(self.stocks[side])
        others = [s.names[0] for s in self.stocks[1 - side]]
        order = 1.0 - abs(at - others.index(group[0].names[0]) / len(others))
        return inside * (1 + depth), likeness(big.owner.path, common) + order

    def _partner_above(self, side: int, path: str) -> str | None:
        """The partner of the nearest enclosing module that has one."""
        partners = self.draft.modules if side == 0 else {b: a for a, b in self.draft.modules.items()}
        at = path
        while at:
            if at in partners:
                return partners[at]
            at = at.rpartition(".")[0]
        return partners.get("")

    def _pack(self, side: int, big: Stock, group: list[Stock], bias: Stock | None) -> None:
        heads = self._heads([s.shapes[0][0] for s in next(g for g in _both_ways(group) if _adds_up(big, g))])
        order = _named_order(group)
        small = [self._bias_beside(1 - side, s) for s in group]
        ways: list[tuple[Hashable, list[Link]]] = []
        for turned, stocks in enumerate(_both_ways(group)):
            if not _adds_up(big, stocks):
                continue
            made = _packings(side, big, stocks, order, heads)
            if bias is not None and all(s is not None for s in small):
                more = _packings(side, bias, [s for s in small if s is not None], order, heads)
                made = [(tag, [*links, *others]) for (tag, links), (_, others) in zip(made, more, strict=True)]
            ways.extend(((turned, tag), links) for tag, links in made)
        for _, links in ways[:1]:
            for link in links:
                self.used[0].update(link.a.stock.names)
                self.used[1].update(link.b.stock.names)
        self._choose(ways)

    def _heads(self, sizes: Sequence[int]) -> list[int]:
        """Numbers of heads that the traces speak of: extents beside one another that multiply to a projection."""
        if len(set(sizes)) != 1 or self.traces is None:
            return []
        size = sizes[0]
        found: dict[int, int] = defaultdict(int)
        for trace in self.traces:
            shapes = {s.meta.shape for r in trace.records if r.kind is Kind.OP for s in r.slots}
            for shape in shapes:
                for i, x in enumerate(shape):
                    for y in shape[i + 1 :]:
                        if x * y == size and 1 < x < size:
                            found[x] += 1
        return sorted(found, key=lambda h: -found[h])[:4]

    def _ways(
        self, first: Sequence[Stock], second: Sequence[Stock], order: list[int], given: bool = False
    ) -> list[tuple[Hashable, list[Link]]]:
        """All ways in which some tensors become others; several to several are taken one by one."""
        if len(first) == len(second):
            ways: list[tuple[Hashable, list[Link]]] = [((), [])]
            for x, y in zip(first, second, strict=True):
                options = _arrangements(Part(x), Part(y))
                ways = [((*t, tag), [*links, link]) for t, links in ways for tag, link in options]  # type: ignore[misc]
            return ways
        side, big, group = (0, first[0], second) if len(first) == 1 else (1, second[0], first)
        if min(len(first), len(second)) != 1 or not _adds_up(big, group):
            return []
        ways = _packings(side, big, group, order, self._heads([s.shapes[0][0] for s in group]))
        return [w for w in ways if w[0][0] == tuple(order)] if given else ways  # type: ignore[index]

    def _left_over(self) -> None:
        """Parameters still without a partner: by size, name and place, whatever module holds them."""
        free = tuple([s for s in self.stocks[side] if self._free(side, s) and len(s.roles) == 1] for side in (0, 1))
        groups: dict[Hashable, tuple[list[Stock], list[Stock]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for stock in free[side]:
                sizes = tuple(sorted(n for n in stock.shapes[0] if n != 1))
                groups[(stock.params[0].buffer, _class(stock), math.prod(sizes))][side].append(stock)
        for xs, ys in groups.values():
            if xs and ys:
                self._settle(xs, ys, xs[0].params[0].buffer)

    def _settle(self, xs: list[Stock], ys: list[Stock], buffer: bool) -> None:
        from scipy.optimize import linear_sum_assignment

        xs, ys = xs[:200], ys[:200]
        score = np.zeros((len(xs), len(ys)))
        for i, x in enumerate(xs):
            home = self._partner_above(0, x.owner.path)
            for j, y in enumerate(ys):
                fits = _arrangements(Part(x), Part(y))
                alike = likeness(x.names[0], y.names[0])
                inside = 0.3 if home is not None and _under(y.names[0], home) else 0.0
                score[i, j] = alike + inside + 0.02 * (1 - abs(i / len(xs) - j / len(ys))) if fits else -1.0
        for i, j in zip(*linear_sum_assignment(score, maximize=True), strict=True):
            x, y = xs[i], ys[j]
            if score[i, j] < 0.0:
                continue
            rivals = [
                *(score[i, n] for n in range(len(ys)) if n != j),
                *(score[n, j] for n in range(len(xs)) if n != i),
            ]
            alone = not [r for r in rivals if r >= 0.0]
            clear = alone or score[i, j] - max(rivals) > 0.06
            same = x.names[0].rpartition(".")[2] == y.names[0].rpartition(".")[2]
            constant = buffer or (_is_constant(x) and _is_constant(y))
            if constant and not (same and x.shapes == y.shapes):
                continue  # an index table or a mask is computed by each side for itself
            options = tuple(ys[n].names[0] for n in np.argsort(-score[i]) if n != j and score[i, n] >= 0.0)[:5]
            ways: list[tuple[Hashable, list[Link]]] = []
            sure = 0.8 if clear and not _may_be_packed(x, y) and len(_arrangements(Part(x), Part(y))) == 1 else 0.5
            for tag, link in _arrangements(Part(x), Part(y)):
                why = "shape, name and place"
                ways.append((tag, [replace(link, why=why, confidence=sure, options=() if clear else options)]))
            self.used[0].update(x.names)
            self.used[1].update(y.names)
            self._choose(ways)

    def _tied_there(self) -> None:
        """What only the candidate has may be, on the other side, a table that is used twice: embedding and output."""
        tables = [s for s in self.stocks[0] if s.owner.kind == "embedding" and len(s.roles) == 1]
        for stock in self.stocks[1]:
            if not self._free(1, stock) or len(stock.roles) != 1 or len(stock.shapes[0]) != 2:
                continue
            same = [t for t in tables if t.shapes == stock.shapes and not self._free(0, t)]
            if len(same) == 1:
                again = replace(same[0])  # a store of its own, so that the tensor is handed out twice
                link = Link(Part(again), Part(stock), "one table on the other side", 0.6)
                self.draft.choices.append(Choice.of([("apart", []), ("tied", [link])]))

    def _one_sided(self) -> None:
        """What only one side has, where a value changes nothing: the affine part of a norm."""
        for side, make in ((0, omitted), (1, filled)):
            partners = self.draft.modules if side == 0 else {b: a for a, b in self.draft.modules.items()}
            for stock in self.stocks[side]:
                if self._free(side, stock) and stock.owner.path in partners:
                    other = "candidate" if side == 0 else "reference"
                    entry = make(stock, f"the {other} does without")
                    if entry is not None:
                        self.used[side].update(stock.names)
                        self.draft.fixed.append(entry)

    def _not_run(self) -> None:
        """What took no part when the models ran needs no partner: the auxiliary head of a network in evaluation."""
        if self.traces is None:
            return
        skipped = [list(names) for names in self.draft.skipped]
        for side, trace in enumerate(self.traces):
            called = {r.path for r in trace.records if r.kind is Kind.MODULE}
            given = {s.param for r in trace.records for s in r.slots if s.param}
            idle = [
                stock
                for stock in self.stocks[side]
                if self._free(side, stock)
                and stock.owner.kind is not None
                and stock.owner.path not in called
                and not given.intersection((*stock.paths, *stock.names))
                and not any(_under(stock.owner.path, path) for path in called if path)
            ]
            for stock in idle:
                self.used[side].update(stock.names)
                skipped[side] += stock.paths
            if idle:
                whose = ("reference", "candidate")[side]
                home = enclosing(stock.owner.path for stock in idle) or idle[0].owner.path
                self.draft.notes.append(
                    f"{len(idle)} tensors of the {whose} took no part when it ran and were left out ({home}...)"
                )
        self.draft.skipped = (tuple(dict.fromkeys(skipped[0])), tuple(dict.fromkeys(skipped[1])))


# -- ways to arrange ---------------------------------------------------------------------------------------------------


def permuted(groups: Sequence[Sequence[Link]], orders: Iterable[tuple[int, ...]]) -> list[tuple[Hashable, list[Link]]]:
    """The links of some modules that could stand for one another, with the partners in each of these orders."""
    ways: list[tuple[Hashable, list[Link]]] = []
    for order in orders:
        links = []
        for i, j in enumerate(order):
            targets = {link.b.role: link.b for link in groups[j]}
            links += [replace(link, b=targets[link.a.role]) for link in groups[i] if link.a.role in targets]
        ways.append((order, links))
    return ways


def _plain(info: ModuleInfo, param: Any) -> Stock:
    from .model import neutral_chain

    name = info.param_path(param.name)
    return Stock(
        info, (param.tied_to or name,), (name,), (param,), (param.role,), neutral_chain(param), (param.neutral_shape(),)
    )


def _reshaped(a: tuple[int, ...], b: tuple[int, ...]) -> Chain | None:
    """From one shape to another of the same role: axes of extent 1, or all axes in one."""
    if a == b:
        return ()
    if math.prod(a) != math.prod(b):
        return None
    if [n for n in a if n != 1] == [n for n in b if n != 1] or len(a) <= 1 or len(b) <= 1:
        return (Reshape(a, b),)
    return None


def _arrangements(x: Part, y: Part) -> list[tuple[Hashable, Link]]:
    """The ways in which one array may become another of the same size, the plainest first."""
    a, b = x.shape, y.shape
    if math.prod(a) != math.prod(b):
        return []
    found: list[tuple[Hashable, Link]] = []
    if _reshaped(a, b) is not None:
        found.append(("as is", Link(x, y, "", 0.0, between=_reshaped(a, b) or ())))
    held = x.stock.owner.kind is None or y.stock.owner.kind is None  # of a layer's own matrix the layout is known
    if len(a) == len(b) == 2 and a == b[::-1] and 1 not in a and (held or a != b):
        found.append(("transpose", Link(x, y, "", 0.0, between=(Transpose(),))))
    elif len(a) == len(b) <= 5 and sorted(a) == sorted(b) and a != b:
        for axes in itertools.permutations(range(len(a))):
            if tuple(a[i] for i in axes) == b:
                found.append((axes, Link(x, y, "", 0.0, between=(Permute(axes),))))
    elif len(a) != len(b) and min(len(a), len(b)) == 2 and max(len(a), len(b)) <= 5 and 1 not in a[:1] + b[:1]:
        found += _unfolded(x, y)
    return found


def _unfolded(x: Part, y: Part) -> list[tuple[Hashable, Link]]:
    """A convolution over patches as a product: [out, in, h, w] and [out, in*h*w], the patch in whatever order."""
    a, b = x.shape, y.shape
    found: list[tuple[Hashable, Link]] = []
    wide, flat = (a, b) if len(a) > len(b) else (b, a)
    for transposed in (False, True):
        out = flat[1] if transposed else flat[0]
        if wide[0] != out or math.prod(wide[1:]) != flat[0 if transposed else 1]:
            continue
        for order in itertools.permutations(range(1, len(wide))):
            if transposed is False and order == tuple(range(1, len(wide))) and found:
                continue
            axes = (0, *order)
            chain: Chain = (Permute(axes), Reshape(tuple(wide[i] for i in axes), (out, math.prod(wide[1:]))))
            if transposed:
                chain = (*chain, Transpose())
            if wide is b:
                chain = tuple(step.inverse() for step in reversed(chain))
            found.append((("patch", transposed, order), Link(x, y, "", 0.0, between=simplified(chain))))
    return found


def _either_way(stock: Stock) -> list[Stock]:
    """A matrix as it is, and one that no layer uses turned round too."""
    if len(stock.shapes[0]) < 2:
        return []
    if stock.owner.kind is not None or len(stock.shapes[0]) != 2:
        return [stock]
    return [stock, stock.refined(stock.roles, (Transpose(),))]


def _both_ways(group: Sequence[Stock]) -> list[list[Stock]]:
    """Some matrices as they are, and, where no layer says how they are used, all turned round too."""
    either = [_either_way(s) for s in group]
    return [[ways[n] for ways in either] for n in range(min(len(ways) for ways in either))]


def _fits_in(big: Stock, group: Sequence[Stock]) -> bool:
    return any(_adds_up(big, stocks) for stocks in _both_ways(group))


def _adds_up(big: Stock, group: Sequence[Stock]) -> bool:
    shape = big.shapes[0]
    return (
        bool(shape)
        and all(s.shapes[0][1:] == shape[1:] for s in group)
        and sum(s.shapes[0][0] for s in group) == shape[0]
    )


def _packings(
    side: int, big: Stock, group: Sequence[Stock], order: Sequence[int], heads: Sequence[int]
) -> list[tuple[Hashable, list[Link]]]:
    """One tensor as several packed along the first axis: block by block, or head by head, in each order."""
    sizes = [s.shapes[0][0] for s in group]
    count = len(group)
    orders = sorted(itertools.permutations(range(count)), key=lambda o: (o != tuple(order), o))
    equal = len(set(sizes)) == 1
    ways: list[tuple[Hashable, list[Link]]] = []
    layouts: list[tuple[str, Chain]] = [("packed in blocks", ())]
    if equal:
        layouts += [(f"packed in {h} heads", (Interleave((h, count, sizes[0] // h), (1, 0, 2)),)) for h in heads]
        layouts.append(("packed row by row", (Interleave((sizes[0], count), (1, 0)),)))
    for kind, opening in layouts:
        for arranged in orders:
            steps = (*opening, Split(tuple(sizes[i] for i in arranged)))
            parts = big.refined([f"{big.roles[0]}[{i}]" for i in range(count)], steps).parts()
            sure = 0.6 if not opening and arranged == tuple(order) else 0.4
            links = []
            for part, i in zip(parts, arranged, strict=True):
                ends = (part, Part(group[i])) if side == 0 else (Part(group[i]), part)
                links.append(Link(*ends, kind, sure))
            ways.append(((arranged, kind), links))
    return ways


def _may_be_packed(x: Stock, y: Stock) -> bool:
    """Whether these may hold the same projections in different orders: q, k and v in one tensor."""
    shape = x.shapes[0]
    return len(shape) == 2 and x.owner.kind != y.owner.kind and shape[0] in (2 * shape[1], 3 * shape[1])


def _subject(stock: Stock) -> list[str]:
    """What a bare parameter's name says besides that it is a weight or a bias."""
    from ..pairing.evidence import name_tokens

    return [t for t in name_tokens(stock.names[0].rpartition(".")[2]) if t not in ("w", "weight", "b", "bias")]


def repackings(links: Sequence[Link], heads: Sequence[int]) -> list[tuple[Hashable, list[Link]]]:
    """Other orders of the rows of a packed projection: other blocks first, or head by head on one side alone."""
    weight = next((k for k in links if len(k.a.shape) == 2 and k.a.shape == k.b.shape and not k.between), None)
    rows, columns = weight.a.shape if weight is not None else (0, 1)
    count = next((n for n in (3, 2) if rows == n * columns), 0)
    if not count:
        return []
    layouts: list[tuple[str, Chain]] = [("blocks", ())]
    layouts += [(f"{h} heads", (Interleave((h, count, columns // h), (1, 0, 2)),)) for h in heads if columns % h == 0]
    layouts.append(("rows", (Interleave((columns, count), (1, 0)),)))
    ways: list[tuple[Hashable, list[Link]]] = [("as is", list(links))]
    for (name, opening), (other, closing) in itertools.product(layouts, repeat=2):
        for order in itertools.permutations(range(count)):
            if "blocks" not in (name, other) or (name == other and order == tuple(range(count))):
                continue
            sizes = (columns,) * count
            steps = simplified((*opening, Split(sizes), Arrange(order), Concat(sizes), *inverted(closing)))
            moved = [replace(k, between=steps) if k.a.shape[:1] == (rows,) else k for k in links]
            ways.append(((name, other, order), [replace(k, why=f"{k.why}, packed otherwise") for k in moved]))
    return ways


def _named_order(group: Sequence[Stock]) -> list[int]:
    """q, k, v by their names where these tell; else as they are defined."""
    from ..pairing.evidence import name_tokens

    place = {"q": 0, "k": 1, "v": 2}
    found = []
    for n, stock in enumerate(group):
        tokens = [t for t in name_tokens(stock.names[0].removesuffix(".weight").rpartition(".")[2]) if t in place]
        found.append((place[tokens[0]] if tokens else 3, n))
    return [n for _, n in sorted(found)]


def _is_constant(stock: Stock) -> bool:
    """A table or a mask that the user's module made for itself: nothing that is learnt."""
    return stock.owner.kind is None and not any(p.trainable for p in stock.params)


def _class(stock: Stock) -> str:
    return "float" if "float" in stock.dtype or "complex" in stock.dtype else "whole"


def _zones(hinted: Iterable[str], infos: Mapping[str, ModuleInfo]) -> dict[str, int]:
    """By path, the number of the nearest hint that a module lies under: it pairs only with what lies under the same."""
    number = {path: n for n, path in enumerate(hinted)}
    found = {}
    for path in infos:
        at = path
        while at and at not in number:
            at = at.rpartition(".")[0]
        if at in number:
            found[path] = number[at]
    return found


def _under(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


def enclosing(paths: Iterable[str]) -> str:
    """The longest path that all of these lie under."""
    split = [p.split(".") if p else [] for p in paths]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
