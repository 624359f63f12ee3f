"""Pairing modules: by hints, paths, weights, then an alignment in the order in which they were first called."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..records import ModuleInfo
from .evidence import agrees, name_tokens, same_size, similarity
from .opnames import FAMILIES
from .sequences import align
from .side import Module, Side

#: Layers whose parameters frameworks divide among inner layers each in its own way.
COMPOSITE = frozenset(
    [
        *("multihead_attention", "attention", "lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"),
        *("transformer", "transformer_encoder", "transformer_encoder_layer"),
        *("transformer_decoder", "transformer_decoder_layer"),
    ]
)
_ASSIGN = 64  # members of a group of equals beyond which their order decides


@dataclass(frozen=True, slots=True)
class _Found:
    partner: Module
    how: str
    confidence: float


class ModuleMatcher:
    """Pairs of modules."""

    def __init__(self, a: Side, b: Side, hints: Sequence[tuple[Module, Module]]) -> None:
        self.a, self.b = a, b
        self.found: dict[Module, _Found] = {}
        self.taken: set[Module] = set()
        self.fused: list[tuple[Module, Module]] = []
        self.parts: set[Module] = set()  # what takes part in a fused group
        self.divided: list[tuple[Module, Module]] = []  # a layer's own parameters, in inner layers on the other side
        self.overlapping: set[Module] = set()  # of a: what holds more, or less, than its partner
        for x, y in hints:
            self.pair(x, y, "hint", 1.0)
        self._zones(hints)
        if not a.calls and not b.calls:
            self._by_names()
        if self._same_trees():
            for x in a.modules:
                y = b.by_path[x.path]
                if x not in self.found and y not in self.taken:
                    self.pair(x, y, "path", 1.0)
            return
        units = [self._heavy(side) for side in (a, b)]
        self._by_weights(*units)
        for weak in (False, True):
            for zone in sorted({m.zone for m in units[0]}):
                first, second = ([m for m in side if m.zone == zone] for side in units)
                self._align_units(first, second, weak)
                if not weak:
                    self._settle_runs(first, second)
                    self._left_over(first, second)
                    self._fuse(first, second)
        self._divide()
        self._containers()
        self._light()

    def pair(self, x: Module, y: Module, how: str, confidence: float) -> None:
        self.found[x] = _Found(y, how, confidence)
        self.taken.add(y)

    def _zones(self, hints: Sequence[tuple[Module, Module]]) -> None:
        """What lies under a hinted module pairs only with what lies under its partner."""
        roots = [{pair[side]: n for n, pair in enumerate(hints)} for side in (0, 1)]
        for side, zones in zip((self.a, self.b), roots, strict=True):
            for module in side.modules:
                module.zone = next((zones[m] for m in (module, *module.up()) if m in zones), -1)

    def _same_trees(self) -> bool:
        if len(self.a.modules) != len(self.b.modules) or any(x.path != y.partner.path for x, y in self.found.items()):
            return False
        others = {m.path: m for m in self.b.modules}
        return all(
            (y := others.get(x.path)) is not None and (x.kind, x.shapes) == (y.kind, y.shapes) for x in self.a.modules
        )

    def _by_names(self) -> None:
        """Without a run there is no order but that of definition, which is worth less than names."""
        for name_of in (lambda m: m.path, lambda m: name_tokens(m.path)):
            tables: list[dict[Hashable, list[Module]]] = []
            for side, settled in ((self.a, self.found), (self.b, self.taken)):
                table: dict[Hashable, list[Module]] = defaultdict(list)
                for m in side.modules:
                    if m.shapes and m not in settled:
                        table[(m.zone, m.kind, m.shapes, name_of(m))].append(m)
                tables.append(table)
            for key, xs in tables[0].items():
                if len(xs) == len(tables[1].get(key, ())) == 1:
                    self.pair(xs[0], tables[1][key][0], "name", 0.95)

    def _heavy(self, side: Side) -> list[Module]:
        found = [m for m in side.modules if m.unit and (m.shapes or m.kind in COMPOSITE)]
        return sorted(found, key=lambda m: m.order)

    def _by_weights(self, first: list[Module], second: list[Module]) -> None:
        """The same numbers in the parameters, and nowhere else: weights were carried across."""
        tables: list[dict[Hashable, list[Module]]] = []
        for units in (first, second):
            table: dict[Hashable, list[Module]] = defaultdict(list)
            for m in units:
                if m.weights:
                    table[(m.zone, m.shapes, m.weights)].append(m)
            tables.append(table)
        for key, found in tables[0].items():
            others = tables[1].get(key, [])
            if len(found) == len(others) == 1:
                x, y = found[0], others[0]
                if x in self.found or y in self.taken:
                    continue
                named = self.b.by_path.get(x.path)
                if named is not None and named is not y and named.shapes == x.shapes and _family(named) == _family(x):
                    continue  # the weights may have been swapped, which is for the comparison to say
                self.pair(x, y, "weights", 0.99)

    def _align_units(self, first: list[Module], second: list[Module], weak: bool) -> None:
        place = {m: j for j, m in enumerate(second)}
        anchors = [
            (i, place[self.found[x].partner])
            for i, x in enumerate(first)
            if x in self.found and self.found[x].partner in place
        ]

        def score(i: int, j: int) -> float:
            x, y = first[i], second[j]
            if x in self.found or y in self.taken:
                return -1.0
            return self._score(x, y, weak)

        keys = [[(_family(m), m.shapes) for m in units] for units in (first, second)]
        once = [Counter(k) for k in keys]
        # a bias may be on one side only: then the weight alone is what there is one of
        mains = [[(_family(m), _main(m)) for m in units] for units in (first, second)]
        alone = [Counter(k) for k in mains]
        for i, j in align(keys[0], keys[1], score, anchors):
            x, y = first[i], second[j]
            unique = keys[0][i] == keys[1][j] and once[0][keys[0][i]] == once[1][keys[1][j]] == 1
            sure = self._confidence(x, y, unique)
            if x.kind == y.kind and mains[0][i] == mains[1][j] and alone[0][mains[0][i]] == alone[1][mains[1][j]] == 1:
                sure = max(sure, 0.8)
            self.pair(x, y, "shape" if unique else "order", sure)

    def _score(self, x: Module, y: Module, weak: bool) -> float:
        if x in self.parts or y in self.parts or (x.kind != y.kind and not (x.path and y.path)):
            return -1.0  # the root holds parameters, but it is no layer
        if x.shapes == y.shapes and x.shapes:
            score = 2.0
        elif x.kind is not None and x.kind == y.kind and x.kind in COMPOSITE:
            score = 1.5
        elif x.shapes and y.shapes and _main(x) == _main(y):
            score = 1.0
        elif weak and x.kind is not None and x.kind == y.kind:
            score = 0.3
        else:
            return -1.0
        if x.kind == y.kind:
            score += 1.0
        elif x.kind is not None and y.kind is not None:
            if _family(x) != _family(y):
                return -1.0 if not weak else 0.1
            score += 0.5
        score += similarity(x.path, y.path)
        if x.weights and x.weights == y.weights:
            score += 1.0
        elif agrees(x.output, y.output):
            score += 0.5
        if x.flow is not None and x.flow == y.flow:
            score += 0.3
        return score + (0.3 if x.inputs == y.inputs else 0.0) + (0.3 if x.depth == y.depth else 0.0)

    def _confidence(self, x: Module, y: Module, unique: bool) -> float:
        if x.shapes == y.shapes and x.kind == y.kind:
            base = 0.97 if unique else 0.9
        elif x.shapes == y.shapes:
            base = 0.8 if None in (x.kind, y.kind) or _family(x) == _family(y) else 0.4
        elif _main(x) == _main(y) or x.kind in COMPOSITE:
            base = 0.6
        else:
            return 0.3
        return max(base, 0.98) if x.path == y.path and base >= 0.9 else base

    def _settle_runs(self, first: list[Module], second: list[Module]) -> None:
        """Equals next to one another (q, k, v) may have been called in another order: settle it by assignment."""
        place = {m: j for j, m in enumerate(second)}
        run: list[tuple[Module, Module]] = []
        key: Hashable = None
        for x in [*first, None]:
            found = None if x is None else self.found.get(x)
            if x is not None and found is not None and found.how in ("hint", "weights"):
                continue
            now = None if x is None or found is None or found.partner not in place else (_family(x), x.shapes)
            if now != key or len(run) >= _ASSIGN:
                self._settle(run)
                run = []
            key = now
            if x is not None and found is not None and now is not None:
                run.append((x, found.partner))
        self._settle(run)

    def _settle(self, run: list[tuple[Module, Module]]) -> None:
        if len(run) < 2:
            return
        xs, ys = [x for x, _ in run], sorted((y for _, y in run), key=lambda m: m.order)
        ranks = [_dense([m.depth for m in ms]) for ms in (xs, ys)]
        if sorted(ranks[0]) != sorted(ranks[1]) or len(set(ranks[0])) == len(xs):
            return  # a chain, or flows that cannot be compared: the order is all there is
        self._assign(xs, ys, ranks)

    def _left_over(self, first: list[Module], second: list[Module]) -> None:
        """Those that an alignment in order could not reach, by equal keys."""
        groups: dict[Hashable, tuple[list[Module], list[Module]]] = defaultdict(lambda: ([], []))
        place = {m: n / len(ms) for ms in (first, second) for n, m in enumerate(ms)}
        for m in first:
            if m not in self.found:
                groups[(m.kind, m.shapes)][0].append(m)
        for m in second:
            if m not in self.taken:
                groups[(m.kind, m.shapes)][1].append(m)
        for xs, ys in groups.values():
            if xs and ys and xs[0].shapes:
                if max(len(xs), len(ys)) <= _ASSIGN:
                    self._assign(xs, ys, [[place[m] for m in ms] for ms in (xs, ys)])
                else:
                    for x, y in zip(xs, ys, strict=False):
                        self.pair(x, y, "order", 0.5)

    def _assign(self, xs: list[Module], ys: list[Module], ranks: Sequence[Sequence[float]]) -> None:
        import numpy as np
        from scipy.optimize import linear_sum_assignment

        cost = np.empty((len(xs), len(ys)))
        for i, x in enumerate(xs):
            for j, y in enumerate(ys):
                cost[i, j] = (
                    2.0 * abs(ranks[0][i] - ranks[1][j]) + 0.1 * abs(i / len(xs) - j / len(ys)) - _evidence(x, y)
                )
        for i, j in zip(*linear_sum_assignment(cost), strict=True):
            others = [cost[i, n] for n in range(len(ys)) if n != j] + [cost[n, j] for n in range(len(xs)) if n != i]
            sure = not others or min(others) - cost[i, j] > 0.25
            self.pair(xs[i], ys[j], "assignment" if sure else "order among equals", 0.9 if sure else 0.5)

    def _fuse(self, first: list[Module], second: list[Module]) -> None:
        """Several units on one side whose parameters together have the size of one on the other: q, k, v and qkv."""
        partners = {f.partner: x for x, f in self.found.items()}
        for many, one, swap in ((first, second, False), (second, first, True)):
            paired = [m in (partners if swap else self.found) for m in many]
            single = [m for m in one if m not in (self.found if swap else partners)]
            starts: dict[Hashable, list[int]] = defaultdict(list)
            for i, m in enumerate(many):
                if not paired[i] and m.shapes:
                    starts[_family(m)].append(i)
            used: set[int] = set()
            for target in single:
                options = starts.get(_family(target), [])
                fit = self._fitting(many, options, used, target)
                for i in fit:
                    used.add(i)
                    self.fused.append((target, many[i]) if swap else (many[i], target))
                if fit:
                    self.parts.update([target, *(many[i] for i in fit)])

    def _fitting(self, many: list[Module], options: list[int], used: set[int], target: Module) -> list[int]:
        size = _numel(target)
        for n, start in enumerate(options):
            if start in used:
                continue
            total, chosen = 0, []
            for i in options[n : n + 8]:
                if i in used or many[i].source != many[start].source:
                    break  # parts of one layer work on one tensor
                total += _numel(many[i])
                chosen.append(i)
                if total >= size:
                    break
            if total == size and len(chosen) > 1:
                return chosen
        return []

    def _divide(self) -> None:
        """One parameter of a layer (the in-projection of attention) that its partner divides among inner layers."""
        for x, found in self.found.items():
            for one, other, swap in ((x, found.partner, False), (found.partner, x, True)):
                if one.kind not in COMPOSITE or not one.shapes or other.shapes:
                    continue
                settled = self.found.keys() if swap else self.taken
                inner = [m for m in _below(other) if m.shapes and m not in settled and m not in self.parts]
                if sum(_numel(m) for m in inner) == _numel(one):
                    self.parts.update(inner)
                    self.divided += [(m, one) if swap else (one, m) for m in inner]

    # -- what contains, and what has no parameters ---------------------------------------------------------------------

    def _containers(self) -> None:
        number = {x: n for n, x in enumerate(self.found)}
        number_b = {self.found[x].partner: n for x, n in number.items()}
        sets = [self._contents(self.a, number), self._contents(self.b, number_b)]
        chains: dict[frozenset[int], list[Module]] = defaultdict(list)
        for m, inside in sets[1].items():
            if m not in self.taken and inside:
                chains[inside].append(m)
        same: dict[frozenset[int], list[Module]] = defaultdict(list)
        for m, inside in sets[0].items():
            if m not in self.found and inside:
                same[inside].append(m)
        for inside, xs in same.items():
            ys = chains.get(inside)
            if ys:
                self._pair_chain(xs, ys, len(inside))
        self._overlapping(sets)
        roots = self.a.by_path.get(""), self.b.by_path.get("")
        if roots[0] is None or roots[1] is None or roots[0] in self.found or roots[1] in self.taken:
            return
        x, y = roots[0], roots[1]
        alike = x.output is not None and y.output is not None and same_size(x.output, y.output)
        if self.found or self.fused or (alike and x.inputs == y.inputs):
            self.pair(x, y, "root", 0.6 if self.found else 0.4)

    def _contents(self, side: Side, number: Mapping[Module, int]) -> dict[Module, frozenset[int]]:
        """The numbers of the pairs inside each module."""
        sets: dict[Module, set[int]] = defaultdict(set)
        for m, n in number.items():
            for up in m.up():
                sets[up].add(n)
        return {m: frozenset(sets[m]) for m in side.modules if m in sets}

    def _pair_chain(self, xs: list[Module], ys: list[Module], size: int) -> None:
        """Modules around the same things, outermost first: some are wrappers that the other side lacks."""

        def score(i: int, j: int) -> float:
            x, y = xs[i], ys[j]
            if x in self.found or y in self.taken or x.zone != y.zone:
                return -1.0
            called = 1.0 if bool(x.calls) == bool(y.calls) else 0.1
            root = 1.0 if not x.path and not y.path else 0.0
            kind = 0.5 if x.info.kind == y.info.kind else 0.0
            return called + root + kind + similarity(x.path or x.info.type, y.path or y.info.type)

        for i, j in align([0] * len(xs), [0] * len(ys), score):
            sure = len(xs) == len(ys)
            self.pair(xs[i], ys[j], "contents", (0.95 if sure else 0.8) if size > 1 else 0.85)

    def _overlapping(self, sets: Sequence[Mapping[Module, frozenset[int]]]) -> None:
        holders: dict[int, list[Module]] = defaultdict(list)
        for m, inside in sets[1].items():
            if m not in self.taken:
                for n in inside:
                    holders[n].append(m)
        options: list[tuple[float, float, int, int, Module, Module]] = []
        for x, inside in sets[0].items():
            if x in self.found:
                continue
            votes = Counter(m for n in inside for m in holders.get(n, ()))
            for y, shared in votes.items():
                overlap = shared / (len(inside) + len(sets[1][y]) - shared)
                if overlap >= 0.5 and x.zone == y.zone:
                    options.append((-overlap, -similarity(x.path, y.path), x.index, y.index, x, y))
        for overlap, _, _, _, x, y in sorted(options, key=lambda o: o[:4]):
            if x not in self.found and y not in self.taken:
                self.pair(x, y, "contents", 0.4 - 0.5 * overlap)
                if overlap > -1.0:
                    self.overlapping.add(x)

    def _light(self) -> None:
        """Modules without parameters, between those that are paired, within the nearest pair that encloses them."""
        groups: dict[Module, tuple[list[Module], list[Module]]] = {}
        partners = {f.partner: x for x, f in self.found.items()}
        nowhere = Module(ModuleInfo("", "", None, False), -1)
        for side, keep in ((self.a, 0), (self.b, 1)):
            for m in sorted(side.modules, key=lambda m: m.order):
                inside: Iterable[Module] = m.up()
                if keep:
                    home = next((partners[up] for up in inside if up in partners), nowhere)
                else:
                    home = next((up for up in inside if up in self.found), nowhere)
                groups.setdefault(home, ([], []))[keep].append(m)
        for xs, ys in groups.values():
            self._align_light(xs, ys)

    def _align_light(self, xs: list[Module], ys: list[Module]) -> None:
        place = {m: j for j, m in enumerate(ys)}
        anchors = [
            (i, place[self.found[x].partner])
            for i, x in enumerate(xs)
            if x in self.found and self.found[x].partner in place
        ]

        def score(i: int, j: int) -> float:
            x, y = xs[i], ys[j]
            if x in self.found or y in self.taken or x.zone != y.zone or x.shapes or y.shapes:
                return -1.0
            if not x.path or not y.path:
                return -1.0
            if bool(x.calls) != bool(y.calls):
                return -1.0
            evidence = similarity(x.path, y.path) + (0.5 if agrees(x.output, y.output) else 0.0)
            if x.kind != y.kind:
                return -1.0
            if x.kind is not None:
                return 1.5 + evidence
            if x.info.kind != y.info.kind or bool(x.children) != bool(y.children):
                return -1.0
            return evidence - 0.4

        keys = [[(m.kind, bool(m.calls)) if m.kind else m for m in ms] for ms in (xs, ys)]
        for i, j in align(keys[0], keys[1], score, anchors):
            self.pair(xs[i], ys[j], "order", 0.9 if xs[i].kind else 0.6)


def _below(m: Module) -> Iterator[Module]:
    for child in m.children:
        yield child
        yield from _below(child)


def _family(m: Module) -> str | None:
    return None if m.kind is None else FAMILIES.get(m.kind, m.kind)


def _main(m: Module) -> tuple[int, ...]:
    return max(m.shapes, key=lambda s: (len(s), s), default=())


def _numel(m: Module) -> int:
    return max((p.meta.size for p in m.info.params if not p.buffer), default=0)


def _dense(values: Sequence[int]) -> list[int]:
    rank = {v: n for n, v in enumerate(sorted(set(values)))}
    return [rank[v] for v in values]


def _evidence(x: Module, y: Module) -> float:
    found = similarity(x.path, y.path)
    if x.weights and x.weights == y.weights:
        found += 0.9
    elif agrees(x.output, y.output):
        found += 0.5
    if x.flow is not None and x.flow == y.flow:
        found += 0.4
    return found + (0.3 if x.inputs == y.inputs else 0.0)
