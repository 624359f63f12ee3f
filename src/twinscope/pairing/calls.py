"""Pairing calls: those of paired modules by number, ops by aligning what runs between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .evidence import agrees, layout_free, rounded, same_size
from .modules import COMPOSITE, ModuleMatcher
from .sequences import align, increasing
from .side import Call, Module, Side

#: How a pair was made whose one record does what several do on the other side.
FUSED = "fused"

#: The most values that are looked at for what is done next.
_NEXT = 12


@dataclass(slots=True)
class CallPair:
    a: Call
    b: Call
    how: str
    confidence: float


class CallMatcher:
    """Pairs of calls, forward and backward, and of state records."""

    def __init__(self, a: Side, b: Side, modules: ModuleMatcher) -> None:
        self.a, self.b, self.modules = a, b, modules
        self.matches: dict[int, CallPair] = {}  # by the reference's call
        self.taken: dict[int, CallPair] = {}  # by the candidate's call
        self.fused: list[CallPair] = []
        self.parts: set[Call] = set()  # what takes part in a fused group of modules
        self.opened: set[Call] = set()  # layers that do more than their partner: what they are made of is paired
        self.held: dict[tuple[Module, Module], dict[str, str]] = {}  # a layer's parameters that others hold themselves
        self.steps = _steps(a.steps, b.steps)
        self._module_calls()
        self._origins()
        self._streams()
        self._held_elsewhere()

    def pair(self, x: Call, y: Call, how: str, confidence: float) -> None:
        match = CallPair(x, y, how, confidence)
        self.matches[x.record.call_id] = match
        self.taken[y.record.call_id] = match

    def _module_calls(self) -> None:
        for x, found in self.modules.found.items():
            y = found.partner
            for m, n in self._by_step(x, y):
                if x.kind is not None and not x.shapes and len(m) != len(n):
                    continue  # one activation used in several places: its calls are told apart in the streams
                for p, q in zip(m, n, strict=False):
                    if found.how == "hint" or not self._other_boundaries(p, q):
                        self.pair(p, q, found.how, found.confidence)
        for x, y in self.modules.fused:
            for m, n in self._by_step(x, y):
                self.fused += [CallPair(p, q, FUSED, 0.8) for p, q in zip(m, n, strict=False)]
        self.parts.update(c for m in self.fused for c in (m.a, m.b))

    def _other_boundaries(self, x: Call, y: Call) -> bool:
        """Whether two calls of paired modules do not end at the same point of the computation.

        Their outputs are then no pair, but what they are made of is: a norm layer that activates too, where the other
        side calls the activation by itself; a stage that ends with the reduction that the next one begins with.
        """
        if not x.record.path or not y.record.path:
            return False  # what the networks as a whole return is always compared
        if x.module in self.modules.overlapping:
            return not agrees(x.output, y.output)
        if x.name != y.name or x.name in COMPOSITE:
            return False
        if x.name == "module":
            more = self._longer(x, y), self._longer(y, x)
        else:
            more = self._added(x), self._added(y)
        if bool(more[0]) == bool(more[1]):
            return False
        wide, narrow, side = (x, y, self.b) if more[0] else (y, x, self.a)
        if not _followed(narrow, (more[0] or more[1])[0], side):
            return False  # it is done nowhere: the two are a pair, and differ
        self.opened.add(wide)
        return True

    def _longer(self, call: Call, other: Call) -> list[Call]:
        """What a container calls after all that the other one does."""
        steps, others = ([c for c in self._flat(m.children, {}) if c.family != "layout"] for m in (call, other))
        same = len(steps) > len(others) > 0 and all(c.name == d.name for c, d in zip(steps, others, strict=False))
        return steps[len(others) :] if same else []

    def _added(self, call: Call) -> list[Call]:
        """What a layer of the user's own does to the result of the op that it is named for, before returning it."""
        if call.module is None or call.module.info.builtin or call.output is None:
            return []
        steps = [c for c in self._flat(call.children, {}) if c.family != "layout"]
        last = next((c for c in reversed(steps) if c.output is not None and c.output.value == call.output.value), None)
        named = next((n for n, c in enumerate(steps) if c.name == call.name), -1)
        return [] if last is None or (named >= 0 and last is steps[named]) else steps[named + 1 :]

    def _by_step(self, x: Module, y: Module) -> Iterator[tuple[list[Call], list[Call]]]:
        mine: dict[int, list[Call]] = defaultdict(list)
        other: dict[int, list[Call]] = defaultdict(list)
        for call in x.calls:
            mine[call.record.step].append(call)
        for call in y.calls:
            other[call.record.step].append(call)
        for step, calls in mine.items():
            twin = self.steps.get(step)
            if twin is not None and twin in other:
                yield calls, other[twin]

    def _origins(self) -> None:
        """Which paired calls lie nearest upstream of each call, under numbers that both sides share."""
        for side, pairs in ((self.a, self.matches), (self.b, self.taken)):
            known: dict[int, frozenset[int]] = {}
            nothing: frozenset[int] = frozenset()
            for call in sorted(side.calls.values(), key=lambda c: c.record.index):
                r = call.record
                upstream = nothing
                for s in r.inputs():
                    upstream |= known.get(s.value, nothing)
                if len(upstream) > 3:
                    upstream = frozenset(sorted(upstream)[-3:])
                call.origin = upstream
                match = pairs.get(r.call_id)
                own = match is not None and call.module is not None and call.module.unit
                if match is not None and own:
                    upstream = frozenset([match.a.record.call_id])
                taken = {s.value for s in r.inputs()} if own else known
                for s in r.outputs():
                    if s.value not in taken:
                        known[s.value] = upstream

    def _streams(self) -> None:
        todo: list[tuple[list[Call], list[Call]]] = [
            (self.a.top[step], self.b.top[twin]) for step, twin in self.steps.items()
        ]
        todo += [(m.a.children, m.b.children) for m in self.matches.values()]
        while todo:
            first, second = todo.pop()
            if not first or not second:
                continue
            xs, ys = list(self._flat(first, self.matches)), list(self._flat(second, self.taken))
            for match in self._align(xs, ys):
                todo.append((match.a.children, match.b.children))

    def _flat(self, calls: Sequence[Call], paired: Mapping[int, CallPair]) -> Iterator[Call]:
        """The calls of a scope; modules that have no partner and contain something are transparent."""
        for call in calls:
            module = call.module
            transparent = (
                module is not None
                and call.record.call_id not in paired
                and call.children
                and (module.kind is None or any(c.module is not None for c in call.children))
            )
            if transparent or call in self.opened:
                yield from self._flat(call.children, paired)
            else:
                yield call

    def _align(self, xs: list[Call], ys: list[Call]) -> list[CallPair]:
        made = self._by_values(xs, ys)
        made += self._align_free(xs, ys, strict=True)
        made += self._by_flow(xs, ys)
        made += self._align_free(xs, ys, strict=False)
        return [*made, *self._fuse(xs, ys)]

    def _anchors(self, xs: list[Call], ys: list[Call]) -> list[tuple[int, int]]:
        place = {c.record.call_id: j for j, c in enumerate(ys)}
        found = ((i, self.matches.get(x.record.call_id)) for i, x in enumerate(xs))
        return [(i, place[m.b.record.call_id]) for i, m in found if m is not None and m.b.record.call_id in place]

    def _free(self, xs: list[Call], ys: list[Call]) -> tuple[list[bool], list[bool]]:
        return (
            [x.record.call_id not in self.matches and x not in self.parts for x in xs],
            [y.record.call_id not in self.taken and y not in self.parts for y in ys],
        )

    def _by_values(self, xs: list[Call], ys: list[Call]) -> list[CallPair]:
        """The same op with the same numbers, once on both sides, wherever it stands."""
        tables: list[dict[Hashable, list[Call]]] = []
        for calls, free in zip((xs, ys), self._free(xs, ys), strict=True):
            table: dict[Hashable, list[Call]] = defaultdict(list)
            for call in (c for c, f in zip(calls, free, strict=True) if f):
                values = rounded(call.output)
                if values is not None:
                    table[(call.name, values)].append(call)
            tables.append(table)
        pairs = [
            (calls[0], tables[1][key][0])
            for key, calls in tables[0].items()
            if len(calls) == len(tables[1].get(key, ())) == 1
        ]
        return [
            self._pair_calls(x, y)
            for x, y in pairs
            if agrees(x.output, y.output) and _call_score(x, y, self.modules, True) > 0
        ]

    def _align_free(self, xs: list[Call], ys: list[Call], strict: bool) -> list[CallPair]:
        """Pairs of what is left, in order; `strict`: nothing that comes from calls known to be others."""
        free = self._free(xs, ys)
        if not any(free[0]) or not any(free[1]):
            return []

        def score(i: int, j: int) -> float:
            return _call_score(xs[i], ys[j], self.modules, strict) if free[0][i] and free[1][j] else -1.0

        keys = [
            [(c.name, c.shape, c.origin) if f else c for c, f in zip(calls, fs, strict=True)]
            for calls, fs in zip((xs, ys), free, strict=True)
        ]
        return [self._pair_calls(xs[i], ys[j]) for i, j in align(keys[0], keys[1], score, self._anchors(xs, ys))]

    def _pair_calls(self, x: Call, y: Call) -> CallPair:
        how, confidence = _how(x, y)
        self.pair(x, y, how, confidence)
        return self.matches[x.record.call_id]

    def _by_flow(self, xs: list[Call], ys: list[Call]) -> list[CallPair]:
        """What the order could not reach: the same op on what comes from the same calls."""
        groups: dict[Hashable, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
        for side, calls, taken in ((0, xs, self.matches), (1, ys, self.taken)):
            for c in calls:
                if c.origin and c.record.call_id not in taken:
                    groups[(c.name, c.shape, c.origin)][side].append(c)
        made = []
        for p, q in groups.values():
            if len(p) == len(q):
                for x, y in zip(p, q, strict=True):
                    self.pair(x, y, "data flow", 0.7)
                    made.append(self.matches[x.record.call_id])
        return made

    def _fuse(self, xs: list[Call], ys: list[Call]) -> list[CallPair]:
        """Several ops on one side where the other has one: the last of them gives what the one gives."""
        bounds = increasing(self._anchors(xs, ys))
        made = []
        i = j = 0
        for p, q in [*bounds, (len(xs), len(ys))]:
            left = [c for c in xs[i:p] if c.record.call_id not in self.matches]
            right = [c for c in ys[j:q] if c.record.call_id not in self.taken]
            i, j = p + 1, q + 1
            solid = [[c for c in cs if c.family != "layout"] for cs in (left, right)]
            if (
                not solid[0]
                or not solid[1]
                or 1 not in (len(solid[0]), len(solid[1]))
                or len(solid[0]) == len(solid[1])
            ):
                continue
            x, y = solid[0][-1], solid[1][-1]
            if x.output is None or y.output is None or not same_size(x.output, y.output):
                continue
            silent = x.output.stats is None or y.output.stats is None
            related = x.family is not None and x.family == y.family
            if silent or related or agrees(x.output, y.output, 2e-2):
                self.pair(x, y, FUSED, 0.6)
                made.append(self.matches[x.record.call_id])
        return made

    def _held_elsewhere(self) -> None:
        """Where a function stands for a layer, the layer's parameters are among the function's arguments."""
        owners = [
            {m.info.param_path(q.name): (m, q) for m in side.modules for q in m.info.params}
            for side in (self.a, self.b)
        ]
        for match in self.matches.values():
            for layer, other, side in ((match.a.module, match.b, 1), (match.b.module, match.a, 0)):
                settled = self.modules.found if side else self.modules.taken
                if layer is None or other.module is not None or not layer.shapes or layer in settled:
                    continue
                records = [c.record for c in (other, other.product) if c is not None]
                given = [owners[side].get(s.param or "") for r in records for s in r.inputs()]
                left = [p for p in layer.info.params if not p.buffer]
                for holder in given:
                    if holder is None:
                        continue
                    owner, held = holder
                    fit = next((p for p in left if layout_free(p.meta.shape) == layout_free(held.meta.shape)), None)
                    if fit is not None:
                        left.remove(fit)
                        key = (layer, owner) if side else (owner, layer)
                        names = (fit.name, held.name) if side else (held.name, fit.name)
                        self.held.setdefault(key, {})[names[0]] = names[1]


def _followed(call: Call, step: Call, side: Side) -> bool:
    """Whether a call's output is next handed to something like `step`."""
    waiting, seen = [] if call.output is None else [call.output.value], 0
    while waiting and seen < _NEXT:
        seen += 1
        for _, user in side.users.get(waiting.pop(), ()):
            if user.name == step.name or (user.family is not None and user.family == step.family):
                return True
            if user.family == "layout" and user.output is not None:
                waiting.append(user.output.value)
    return False


def _steps(first: Sequence[int], second: Sequence[int]) -> dict[int, int]:
    """By number; where no number is common (one run was resumed, say), in order."""
    common = sorted(set(first) & set(second))
    return {s: s for s in common} if common else dict(zip(first, second, strict=False))


def _call_score(x: Call, y: Call, modules: ModuleMatcher, strict: bool) -> float:
    agree = agrees(x.output, y.output)
    sizes = x.output is not None and y.output is not None and same_size(x.output, y.output)
    if x.name == y.name == "module":  # nothing is known of what they do
        if not sizes or x.record.path == "" or y.record.path == "":
            return -1.0
        score = 1.0
    elif x.name == y.name:
        score = 3.0
    elif x.family is not None and x.family == y.family and sizes:
        score = 0.6 if x.family == "layout" else 1.2
    elif agree and sizes:
        score = 0.5
    else:
        return -1.0
    if x.shape == y.shape:
        score += 1.0
    elif sizes:
        score += 0.5
    else:
        score -= 2.0
    if agree:
        score += 2.0
    if x.origin and y.origin:
        if x.origin == y.origin:
            score += 1.0
        elif not x.origin & y.origin and not agree:
            if strict:
                return -1.0
            score -= 2.0
    if x.module is not None and y.module is not None:
        found = modules.found.get(x.module)
        score += 1.0 if found is not None and found.partner is y.module else 0.0
    return score


def _how(x: Call, y: Call) -> tuple[str, float]:
    agree = agrees(x.output, y.output)
    sizes = x.output is not None and y.output is not None and same_size(x.output, y.output)
    if (x.product is None) != (y.product is None):
        return FUSED, 0.9 if agree else 0.7
    if x.name == y.name:
        how = "op" if x.module is None and y.module is None else "function for module"
        if x.module is not None and y.module is not None:
            how = "calls in order"
        return how, 0.98 if agree and sizes else 0.95 if x.shape == y.shape else 0.8 if sizes else 0.5
    if agree:
        return "same values", 0.8
    return "similar op", 0.4 if x.family != "layout" else 0.6
