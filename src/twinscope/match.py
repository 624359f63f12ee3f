"""Pairing two traces of one network written twice: whose names, nesting, order and op streams may differ.

    modules    by hints, equal paths, equal weights, then an alignment in the order of first calls, whose score knows
               kinds, parameter shapes up to permutation, names, shapes and statistics; containers follow from what
               they contain
    calls      of paired modules, by step and number
    ops        within a paired call: an alignment between the calls already paired. Modules that have no partner are
               transparent when they contain something, and stand for an op when they do not
    the rest   backward records as their forward, state records as their module

Nothing is trusted alone and nothing is dropped: every record of both sides is in a pair or listed as unmatched.
Agreeing statistics speak for a pair; disagreeing ones hardly against it, since one bug changes everything downstream.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from . import patterns
from .errors import MatchError
from .opnames import COMMUTATIVE, FAMILIES, canonical_op, op_of_kind
from .records import Kind, Manifest, ModuleInfo, ParamInfo, Phase, Record, Slot
from .sequences import align, increasing

__all__ = ("FUSED", "Matching", "ModulePair", "Pair", "TraceLike", "canonical_op", "match")

FUSED = "fused"


class TraceLike(Protocol):
    """What is matched: `twinscope.store.Trace`, or anything that has these two."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def records(self) -> Sequence[Record]: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference record and the candidate record that does the same job, how that was decided and how sure it is."""

    reference: Record
    candidate: Record
    how: str
    confidence: float
    slots: tuple[tuple[Slot, Slot], ...] = ()
    unmatched_slots: tuple[tuple[str, Slot], ...] = ()  # (side, slot)


@dataclass(frozen=True, slots=True)
class ModulePair:
    """Two modules, by path, with their parameters: (reference's name, candidate's name, role)."""

    reference: str
    candidate: str
    how: str
    confidence: float
    params: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Matching:
    """What became of every record and every module of both sides. Pairs are in the reference's completion order."""

    pairs: tuple[Pair, ...] = ()
    modules: tuple[ModulePair, ...] = ()
    unmatched_reference: tuple[Record, ...] = ()
    unmatched_candidate: tuple[Record, ...] = ()
    unmatched_modules_reference: tuple[ModuleInfo, ...] = ()
    unmatched_modules_candidate: tuple[ModuleInfo, ...] = ()


# -- names -----------------------------------------------------------------------------------------------------------

_SYNONYMS = {
    alias: word
    for word, aliases in {
        "q": "query wq", "k": "key wk", "v": "value val wv", "o": "out output wo dense", "attention": "attn att mha",
        "norm": "ln layernorm batchnorm bn layer_norm", "embed": "emb embedding embeddings wte", "fc": "linear lin",
        "conv": "convolution", "block": "blocks layer layers cells", "classifier": "head cls", "act": "activation",
        "mlp": "ffn feedforward", "downsample": "shortcut", "proj": "projection",
    }.items()
    for alias in aliases.split()
}  # fmt: skip


@lru_cache(maxsize=65536)
def _tokens(text: str) -> tuple[str, ...]:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)
    return tuple(sorted(_SYNONYMS.get(w, w) for w in (word.lower() for word in words)))


def _dice(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    if not a or not b:
        return 0.0
    if a == b:
        return 1.0
    rest = list(b)
    common = 0
    for token in a:
        if token in rest:
            rest.remove(token)
            common += 1
    return 2.0 * common / (len(a) + len(b))


def _similarity(a: str, b: str) -> float:
    """How alike two paths are, 0 to 1; the last part counts most."""
    if a == b:
        return 1.0
    last = _dice(_tokens(a.rsplit(".", 1)[-1]), _tokens(b.rsplit(".", 1)[-1]))
    return 0.6 * last + 0.4 * _dice(_tokens(a), _tokens(b))


# -- evidence of tensors ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def _layout_free(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape up to permutation, without axes of one element."""
    return tuple(sorted(n for n in shape if n != 1))


def _agree(a: Slot | None, b: Slot | None, tolerance: float = 1e-3) -> bool:
    """Whether the statistics of two tensors say that they hold the same numbers. A constant says nothing."""
    if a is None or b is None or a.stats is None or b.stats is None or a.meta.size != b.meta.size:
        return False
    x, y = a.stats, b.stats
    if x.nan != y.nan or x.inf != y.inf or (x.std == 0.0 and a.meta.size > 1):
        return False
    if a.meta.dtype == b.meta.dtype and x.fingerprint == y.fingerprint:
        return True
    rms = max(abs(x.l2), abs(y.l2)) / max(a.meta.size, 1) ** 0.5
    peak = max(abs(x.min), abs(x.max), abs(y.min), abs(y.max))
    return (
        rms > 0.0
        and abs(x.l2 - y.l2) <= tolerance * max(abs(x.l2), abs(y.l2))
        and abs(x.mean - y.mean) <= tolerance * rms
        and abs(x.min - y.min) <= tolerance * peak
        and abs(x.max - y.max) <= tolerance * peak
    )


def _rounded(slot: Slot | None) -> Hashable:
    """The statistics of a tensor, rounded: equal for the same numbers, but for bad luck. None: they say nothing."""
    if slot is None or slot.stats is None or not slot.stats.std > 0.0:
        return None
    found = slot.stats
    return slot.meta.size, f"{found.l2:.3g} {found.min:.3g} {found.max:.3g}", found.nan, found.inf


# -- one side, prepared ----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Module:
    info: ModuleInfo
    index: int
    parent: _Module | None = None
    children: list[_Module] = field(default_factory=list)
    kind: str | None = None  # canonical
    shapes: tuple[tuple[int, ...], ...] = ()  # of parameters, layout-free and sorted
    unit: bool = False  # does something itself: has a kind that is no container, or parameters
    calls: list[_Call] = field(default_factory=list)
    order: tuple[int, int] = (0, 0)
    depth: int = 0
    flow: Hashable = None  # what is made of its output
    weights: tuple[int, ...] = ()  # fingerprints
    zone: int = -1  # number of the hint that it falls under
    output: Slot | None = None
    inputs: tuple[tuple[int, ...], ...] = ()
    source: int | None = None  # the value of its first input

    @property
    def path(self) -> str:
        return self.info.path

    def up(self) -> Iterator[_Module]:
        """Everything that encloses it, nearest first."""
        at = self.parent
        while at is not None:
            yield at
            at = at.parent


@dataclass(slots=True, eq=False)
class _Call:
    record: Record  # the forward one; the backward one where no forward was recorded
    module: _Module | None = None  # of a module call
    parent: _Call | None = None
    children: list[_Call] = field(default_factory=list)
    name: str = ""  # canonical op, or what op the module stands for
    family: str | None = None
    output: Slot | None = None
    shape: tuple[int, ...] = ()
    origin: frozenset[int] = frozenset()  # numbers of the nearest paired calls upstream
    product: _Call | None = None  # what this call adds a bias to
    backward: list[Record] = field(default_factory=list)


class _Side:
    """A trace with what matching asks of it."""

    def __init__(self, trace: TraceLike) -> None:
        self.modules: list[_Module] = []
        self.by_path: dict[str, _Module] = {}
        self.calls: dict[int, _Call] = {}
        self.top: dict[int, list[_Call]] = defaultdict(list)  # by step
        self.states: list[Record] = []
        self.steps = sorted({r.step for r in trace.records})
        self.records = trace.records
        self._read_modules(trace)
        self._read_records(trace.records)
        self._describe()

    def _read_modules(self, trace: TraceLike) -> None:
        known = {path for m in trace.manifest.modules for path in (m.path, *m.aliases)}
        infos = list(trace.manifest.modules)
        for r in trace.records:  # a trace made by other means may not list its modules
            if r.kind is not Kind.OP and r.path not in known:
                known.add(r.path)
                infos.append(ModuleInfo(r.path, r.type, None, r.builtin))
        for index, info in enumerate(infos):
            module = _Module(info, index)
            module.kind = op_of_kind(info.kind) if info.kind and info.kind not in _CONTAINERS else None
            module.shapes = tuple(sorted(_layout_free(p.meta.shape) for p in info.params if not p.buffer))
            module.unit = bool(module.shapes) or module.kind is not None
            self.modules.append(module)
            for path in (info.path, *info.aliases):
                self.by_path.setdefault(path, module)
        for module in self.modules:
            path = module.path
            while path:
                path = path.rpartition(".")[0]
                parent = self.by_path.get(path)
                if parent is not None and parent is not module:
                    module.parent = parent
                    parent.children.append(module)
                    break

    def _read_records(self, records: Sequence[Record]) -> None:
        backward: dict[int, list[Record]] = defaultdict(list)
        for r in records:
            if r.kind is Kind.STATE:
                self.states.append(r)
            elif r.phase is Phase.BACKWARD:
                backward[r.call_id].append(r)
            else:
                self.calls[r.call_id] = _Call(r)
        for call_id, found in backward.items():
            call = self.calls.get(call_id)
            if call is None:
                self.calls[call_id] = _Call(found[0], backward=found)
            else:
                call.backward = found
        self.calls = dict(sorted(self.calls.items()))  # in the order in which they began
        for call in self.calls.values():
            r = call.record
            outputs = r.outputs()
            call.output = outputs[0] if outputs else None
            call.shape = _layout_free(outputs[0].meta.shape) if outputs else ()
            if r.kind is Kind.MODULE:
                call.module = self.by_path[r.path]
                call.module.calls.append(call)
                call.name = call.module.kind or "module"
            else:
                call.name = canonical_op(r.type)
            call.family = FAMILIES.get(call.name)
            call.parent = self.calls.get(r.parent_id) if r.parent_id is not None else None
            (self.top[r.step] if call.parent is None else call.parent.children).append(call)

    def _describe(self) -> None:
        for r in self.states:
            module = self.by_path[r.path]
            if r.phase is Phase.WEIGHT and not module.weights:
                buffers = {p.name for p in module.info.params if p.buffer}
                module.weights = tuple(
                    sorted(
                        s.stats.fingerprint
                        for s in r.slots
                        if s.stats is not None and s.stats.std != 0.0 and s.name not in buffers
                    )
                )
        self._biases()
        depths = self._depths()
        users = self._users()
        last = 0
        for module in self.modules:
            called = next((m.calls[0] for m in (module, *module.up()) if m.calls), None)
            last = called.record.call_id if called is not None else last
            module.order = (last, module.index)
            if module.calls:
                call = module.calls[0]
                inputs = call.record.inputs()
                module.depth = depths.get(call.record.call_id, 0)
                module.output = call.output
                module.inputs = tuple(sorted(_layout_free(s.meta.shape) for s in inputs))
                module.source = inputs[0].value if inputs else None
                module.flow = self._fate(call, users)

    def _biases(self) -> None:
        """A product and the addition of its bias are together what others do in one op: the addition stands for it."""
        makers: dict[int, _Call] = {}
        vectors: set[int] = set()  # parameters of one axis, and what casts make of them
        for call in self.calls.values():
            r = call.record
            if r.kind is not Kind.OP:
                continue
            inputs = r.inputs()
            vectors.update(s.value for s in inputs if s.param and len(_layout_free(s.meta.shape)) <= 1)
            if call.family == "layout" and inputs and inputs[0].value in vectors:
                vectors.update(s.value for s in r.outputs())
            elif call.name == "add" and any(s.value in vectors for s in inputs):
                product = makers.get(next((s.value for s in inputs if s.value not in vectors), -1))
                if (
                    product is not None
                    and product.name in ("linear", "matmul", "conv")
                    and len(product.record.inputs()) < 3
                ):
                    call.name, call.family = "conv" if product.name == "conv" else "linear", "contraction"
                    call.product = product
                    product.name, product.family = f"{product.name} without bias", None
            through = makers.get(inputs[0].value) if call.family == "layout" and inputs else call
            for s in r.outputs():
                makers[s.value] = through or call

    def _depths(self) -> dict[int, int]:
        """How many units lie upstream of each unit's call. It does not depend on the order of parallel calls.

        A value that nobody is known to have made is taken to depend on everything before it, since without op records
        what happens between modules is not seen.
        """
        known = {s.value: 0 for r in self.states for s in r.slots}
        depths: dict[int, int] = {}
        front = step = 0
        for call in sorted(self.calls.values(), key=lambda c: c.record.index):
            r = call.record
            if r.step != step:
                front, step = 0, r.step
            deep = 0
            for s in r.inputs():
                deep = max(deep, known.setdefault(s.value, front))
            unit = call.module is not None and call.module.unit
            if unit:
                depths[r.call_id] = deep
                deep += 1
            taken = {s.value for s in r.inputs()} if unit else known  # what a unit returns is its own, not its parts'
            for s in r.outputs():
                if s.value not in taken:
                    known[s.value] = deep
            front = max(front, deep)
        return depths

    def _users(self) -> dict[int, list[tuple[int, _Call]]]:
        users: dict[int, list[tuple[int, _Call]]] = defaultdict(list)
        for call in self.calls.values():
            if call.record.kind is Kind.OP or (call.module is not None and call.module.unit):
                for position, s in enumerate(call.record.inputs()):
                    users[s.value].append((position, call))
        return users

    def _fate(self, call: _Call, users: Mapping[int, list[tuple[int, _Call]]]) -> Hashable:
        """The first two things made of a call's output, with its place among their inputs: tells q, k and v apart."""
        fate: list[Hashable] = []
        output = call.output
        for _ in range(12):
            if output is None or len(fate) == 2:
                break
            found = users.get(output.value)
            if not found:
                break
            position, user = found[0]
            if user.family != "layout" and user.name != "split":
                fate.append((user.name, 0 if user.name in COMMUTATIVE else position))
            output = user.output
        return tuple(fate) or None


# -- modules ---------------------------------------------------------------------------------------------------------

_CONTAINERS = frozenset(["sequential", "module_list", "module_dict"])
#: Layers whose parameters frameworks divide among inner layers each in its own way.
_COMPOSITE = frozenset(
    [
        *("multihead_attention", "attention", "lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"),
        *("transformer", "transformer_encoder", "transformer_encoder_layer"),
        *("transformer_decoder", "transformer_decoder_layer"),
    ]
)
_ASSIGN = 64  # members of a group of equals beyond which their order decides


@dataclass(frozen=True, slots=True)
class _Found:
    partner: _Module
    how: str
    confidence: float


class _Modules:
    """Pairs of modules."""

    def __init__(self, a: _Side, b: _Side, hints: Sequence[tuple[_Module, _Module]]) -> None:
        self.a, self.b = a, b
        self.found: dict[_Module, _Found] = {}
        self.taken: set[_Module] = set()
        self.fused: list[tuple[_Module, _Module]] = []
        self.parts: set[_Module] = set()  # what takes part in a fused group
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
        self._containers()
        self._light()

    def pair(self, x: _Module, y: _Module, how: str, confidence: float) -> None:
        self.found[x] = _Found(y, how, confidence)
        self.taken.add(y)

    def _zones(self, hints: Sequence[tuple[_Module, _Module]]) -> None:
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
        for name_of in (lambda m: m.path, lambda m: _tokens(m.path)):
            tables: list[dict[Hashable, list[_Module]]] = []
            for side, settled in ((self.a, self.found), (self.b, self.taken)):
                table: dict[Hashable, list[_Module]] = defaultdict(list)
                for m in side.modules:
                    if m.shapes and m not in settled:
                        table[(m.zone, m.kind, m.shapes, name_of(m))].append(m)
                tables.append(table)
            for key, xs in tables[0].items():
                if len(xs) == len(tables[1].get(key, ())) == 1:
                    self.pair(xs[0], tables[1][key][0], "name", 0.95)

    def _heavy(self, side: _Side) -> list[_Module]:
        found = [m for m in side.modules if m.unit and (m.shapes or m.kind in _COMPOSITE)]
        return sorted(found, key=lambda m: m.order)

    def _by_weights(self, first: list[_Module], second: list[_Module]) -> None:
        """The same numbers in the parameters, and nowhere else: weights were carried across."""
        tables: list[dict[Hashable, list[_Module]]] = []
        for units in (first, second):
            table: dict[Hashable, list[_Module]] = defaultdict(list)
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

    def _align_units(self, first: list[_Module], second: list[_Module], weak: bool) -> None:
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
        for i, j in align(keys[0], keys[1], score, anchors):
            x, y = first[i], second[j]
            unique = keys[0][i] == keys[1][j] and once[0][keys[0][i]] == once[1][keys[1][j]] == 1
            self.pair(x, y, "shape" if unique else "order", self._confidence(x, y, unique))

    def _score(self, x: _Module, y: _Module, weak: bool) -> float:
        if x in self.parts or y in self.parts or (x.kind != y.kind and not (x.path and y.path)):
            return -1.0  # the root holds parameters, but it is no layer
        if x.shapes == y.shapes and x.shapes:
            score = 2.0
        elif x.kind is not None and x.kind == y.kind and x.kind in _COMPOSITE:
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
        score += _similarity(x.path, y.path)
        if x.weights and x.weights == y.weights:
            score += 1.0
        elif _agree(x.output, y.output):
            score += 0.5
        if x.flow is not None and x.flow == y.flow:
            score += 0.3
        return score + (0.3 if x.inputs == y.inputs else 0.0) + (0.3 if x.depth == y.depth else 0.0)

    def _confidence(self, x: _Module, y: _Module, unique: bool) -> float:
        if x.shapes == y.shapes and x.kind == y.kind:
            base = 0.97 if unique else 0.9
        elif x.shapes == y.shapes:
            base = 0.8 if None in (x.kind, y.kind) or _family(x) == _family(y) else 0.4
        elif _main(x) == _main(y) or x.kind in _COMPOSITE:
            base = 0.6
        else:
            return 0.3
        return max(base, 0.98) if x.path == y.path and base >= 0.9 else base

    def _settle_runs(self, first: list[_Module], second: list[_Module]) -> None:
        """Equals next to one another (q, k, v) may have been called in another order: settle it by assignment."""
        place = {m: j for j, m in enumerate(second)}
        run: list[tuple[_Module, _Module]] = []
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

    def _settle(self, run: list[tuple[_Module, _Module]]) -> None:
        if len(run) < 2:
            return
        xs, ys = [x for x, _ in run], sorted((y for _, y in run), key=lambda m: m.order)
        ranks = [_dense([m.depth for m in ms]) for ms in (xs, ys)]
        if sorted(ranks[0]) != sorted(ranks[1]) or len(set(ranks[0])) == len(xs):
            return  # a chain, or flows that cannot be compared: the order is all there is
        self._assign(xs, ys, ranks)

    def _left_over(self, first: list[_Module], second: list[_Module]) -> None:
        """Those that an alignment in order could not reach, by equal keys."""
        groups: dict[Hashable, tuple[list[_Module], list[_Module]]] = defaultdict(lambda: ([], []))
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

    def _assign(self, xs: list[_Module], ys: list[_Module], ranks: Sequence[Sequence[float]]) -> None:
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

    def _fuse(self, first: list[_Module], second: list[_Module]) -> None:
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

    def _fitting(self, many: list[_Module], options: list[int], used: set[int], target: _Module) -> list[int]:
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

    # -- what contains, and what has no parameters ---------------------------------------------------------------------

    def _containers(self) -> None:
        number = {x: n for n, x in enumerate(self.found)}
        number_b = {self.found[x].partner: n for x, n in number.items()}
        sets = [self._contents(self.a, number), self._contents(self.b, number_b)]
        chains: dict[frozenset[int], list[_Module]] = defaultdict(list)
        for m, inside in sets[1].items():
            if m not in self.taken and inside:
                chains[inside].append(m)
        same: dict[frozenset[int], list[_Module]] = defaultdict(list)
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
        alike = x.output is not None and y.output is not None and _sizes_agree(x.output, y.output)
        if self.found or self.fused or (alike and x.inputs == y.inputs):
            self.pair(x, y, "root", 0.6 if self.found else 0.4)

    def _contents(self, side: _Side, number: Mapping[_Module, int]) -> dict[_Module, frozenset[int]]:
        """The numbers of the pairs inside each module."""
        sets: dict[_Module, set[int]] = defaultdict(set)
        for m, n in number.items():
            for up in m.up():
                sets[up].add(n)
        return {m: frozenset(sets[m]) for m in side.modules if m in sets}

    def _pair_chain(self, xs: list[_Module], ys: list[_Module], size: int) -> None:
        """Modules around the same things, outermost first: some are wrappers that the other side lacks."""

        def score(i: int, j: int) -> float:
            x, y = xs[i], ys[j]
            if x in self.found or y in self.taken or x.zone != y.zone:
                return -1.0
            called = 1.0 if bool(x.calls) == bool(y.calls) else 0.1
            root = 1.0 if not x.path and not y.path else 0.0
            kind = 0.5 if x.info.kind == y.info.kind else 0.0
            return called + root + kind + _similarity(x.path or x.info.type, y.path or y.info.type)

        for i, j in align([0] * len(xs), [0] * len(ys), score):
            sure = len(xs) == len(ys)
            self.pair(xs[i], ys[j], "contents", (0.95 if sure else 0.8) if size > 1 else 0.85)

    def _overlapping(self, sets: Sequence[Mapping[_Module, frozenset[int]]]) -> None:
        holders: dict[int, list[_Module]] = defaultdict(list)
        for m, inside in sets[1].items():
            if m not in self.taken:
                for n in inside:
                    holders[n].append(m)
        options: list[tuple[float, float, int, int, _Module, _Module]] = []
        for x, inside in sets[0].items():
            if x in self.found:
                continue
            votes = Counter(m for n in inside for m in holders.get(n, ()))
            for y, shared in votes.items():
                overlap = shared / (len(inside) + len(sets[1][y]) - shared)
                if overlap >= 0.5 and x.zone == y.zone:
                    options.append((-overlap, -_similarity(x.path, y.path), x.index, y.index, x, y))
        for overlap, _, _, _, x, y in sorted(options, key=lambda o: o[:4]):
            if x not in self.found and y not in self.taken:
                self.pair(x, y, "contents", 0.4 - 0.5 * overlap)

    def _light(self) -> None:
        """Modules without parameters, between those that are paired, within the nearest pair that encloses them."""
        groups: dict[_Module, tuple[list[_Module], list[_Module]]] = {}
        partners = {f.partner: x for x, f in self.found.items()}
        nowhere = _Module(ModuleInfo("", "", None, False), -1)
        for side, keep in ((self.a, 0), (self.b, 1)):
            for m in sorted(side.modules, key=lambda m: m.order):
                inside: Iterable[_Module] = m.up()
                if keep:
                    home = next((partners[up] for up in inside if up in partners), nowhere)
                else:
                    home = next((up for up in inside if up in self.found), nowhere)
                groups.setdefault(home, ([], []))[keep].append(m)
        for xs, ys in groups.values():
            self._align_light(xs, ys)

    def _align_light(self, xs: list[_Module], ys: list[_Module]) -> None:
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
            evidence = _similarity(x.path, y.path) + (0.5 if _agree(x.output, y.output) else 0.0)
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


def _family(m: _Module) -> str | None:
    return None if m.kind is None else FAMILIES.get(m.kind, m.kind)


def _main(m: _Module) -> tuple[int, ...]:
    return max(m.shapes, key=lambda s: (len(s), s), default=())


def _numel(m: _Module) -> int:
    return max((p.meta.size for p in m.info.params if not p.buffer), default=0)


def _dense(values: Sequence[int]) -> list[int]:
    rank = {v: n for n, v in enumerate(sorted(set(values)))}
    return [rank[v] for v in values]


def _sizes_agree(a: Slot, b: Slot) -> bool:
    return a.meta.size == b.meta.size


def _evidence(x: _Module, y: _Module) -> float:
    found = _similarity(x.path, y.path)
    if x.weights and x.weights == y.weights:
        found += 0.9
    elif _agree(x.output, y.output):
        found += 0.5
    if x.flow is not None and x.flow == y.flow:
        found += 0.4
    return found + (0.3 if x.inputs == y.inputs else 0.0)


# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Match:
    a: _Call
    b: _Call
    how: str
    confidence: float


class _Calls:
    """Pairs of calls, forward and backward, and of state records."""

    def __init__(self, a: _Side, b: _Side, modules: _Modules) -> None:
        self.a, self.b, self.modules = a, b, modules
        self.matches: dict[int, _Match] = {}  # by the reference's call
        self.taken: dict[int, _Match] = {}  # by the candidate's call
        self.fused: list[_Match] = []
        self.parts: set[_Call] = set()  # what takes part in a fused group of modules
        self.held: dict[
            tuple[_Module, _Module], dict[str, str]
        ] = {}  # a layer's parameters that others hold themselves
        self.steps = _steps(a.steps, b.steps)
        self._module_calls()
        self._origins()
        self._streams()
        self._held_elsewhere()

    def pair(self, x: _Call, y: _Call, how: str, confidence: float) -> None:
        match = _Match(x, y, how, confidence)
        self.matches[x.record.call_id] = match
        self.taken[y.record.call_id] = match

    def _module_calls(self) -> None:
        for x, found in self.modules.found.items():
            y = found.partner
            for m, n in self._by_step(x, y):
                if x.kind is not None and not x.shapes and len(m) != len(n):
                    continue  # one activation used in several places: its calls are told apart in the streams
                for p, q in zip(m, n, strict=False):
                    self.pair(p, q, found.how, found.confidence)
        for x, y in self.modules.fused:
            for m, n in self._by_step(x, y):
                self.fused += [_Match(p, q, FUSED, 0.8) for p, q in zip(m, n, strict=False)]
        self.parts.update(c for m in self.fused for c in (m.a, m.b))

    def _by_step(self, x: _Module, y: _Module) -> Iterator[tuple[list[_Call], list[_Call]]]:
        mine: dict[int, list[_Call]] = defaultdict(list)
        other: dict[int, list[_Call]] = defaultdict(list)
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
        todo: list[tuple[list[_Call], list[_Call]]] = [
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

    def _flat(self, calls: Sequence[_Call], paired: Mapping[int, _Match]) -> Iterator[_Call]:
        """The calls of a scope; modules that have no partner and contain something are transparent."""
        for call in calls:
            module = call.module
            transparent = (
                module is not None
                and call.record.call_id not in paired
                and call.children
                and (module.kind is None or any(c.module is not None for c in call.children))
            )
            if transparent:
                yield from self._flat(call.children, paired)
            else:
                yield call

    def _align(self, xs: list[_Call], ys: list[_Call]) -> list[_Match]:
        made = self._by_values(xs, ys)
        made += self._align_free(xs, ys, strict=True)
        made += self._by_flow(xs, ys)
        made += self._align_free(xs, ys, strict=False)
        return [*made, *self._fuse(xs, ys)]

    def _anchors(self, xs: list[_Call], ys: list[_Call]) -> list[tuple[int, int]]:
        place = {c.record.call_id: j for j, c in enumerate(ys)}
        found = ((i, self.matches.get(x.record.call_id)) for i, x in enumerate(xs))
        return [(i, place[m.b.record.call_id]) for i, m in found if m is not None and m.b.record.call_id in place]

    def _free(self, xs: list[_Call], ys: list[_Call]) -> tuple[list[bool], list[bool]]:
        return (
            [x.record.call_id not in self.matches and x not in self.parts for x in xs],
            [y.record.call_id not in self.taken and y not in self.parts for y in ys],
        )

    def _by_values(self, xs: list[_Call], ys: list[_Call]) -> list[_Match]:
        """The same op with the same numbers, once on both sides, wherever it stands."""
        tables: list[dict[Hashable, list[_Call]]] = []
        for calls, free in zip((xs, ys), self._free(xs, ys), strict=True):
            table: dict[Hashable, list[_Call]] = defaultdict(list)
            for call in (c for c, f in zip(calls, free, strict=True) if f):
                values = _rounded(call.output)
                if values is not None:
                    table[(call.name, values)].append(call)
            tables.append(table)
        pairs = [
            (calls[0], tables[1][key][0])
            for key, calls in tables[0].items()
            if len(calls) == len(tables[1].get(key, ())) == 1
        ]
        return [self._pair_calls(x, y) for x, y in pairs if _call_score(x, y, self.modules, True) > 0]

    def _align_free(self, xs: list[_Call], ys: list[_Call], strict: bool) -> list[_Match]:
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

    def _pair_calls(self, x: _Call, y: _Call) -> _Match:
        how, confidence = _how(x, y)
        self.pair(x, y, how, confidence)
        return self.matches[x.record.call_id]

    def _by_flow(self, xs: list[_Call], ys: list[_Call]) -> list[_Match]:
        """What the order could not reach: the same op on what comes from the same calls."""
        groups: dict[Hashable, tuple[list[_Call], list[_Call]]] = defaultdict(lambda: ([], []))
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

    def _fuse(self, xs: list[_Call], ys: list[_Call]) -> list[_Match]:
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
            if x.output is None or y.output is None or not _sizes_agree(x.output, y.output):
                continue
            silent = x.output.stats is None or y.output.stats is None
            related = x.family is not None and x.family == y.family
            if silent or related or _agree(x.output, y.output, 2e-2):
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
                    fit = next((p for p in left if _layout_free(p.meta.shape) == _layout_free(held.meta.shape)), None)
                    if fit is not None:
                        left.remove(fit)
                        key = (layer, owner) if side else (owner, layer)
                        names = (fit.name, held.name) if side else (held.name, fit.name)
                        self.held.setdefault(key, {})[names[0]] = names[1]


def _steps(first: Sequence[int], second: Sequence[int]) -> dict[int, int]:
    """By number; where no number is common (one run was resumed, say), in order."""
    common = sorted(set(first) & set(second))
    return {s: s for s in common} if common else dict(zip(first, second, strict=False))


def _call_score(x: _Call, y: _Call, modules: _Modules, strict: bool) -> float:
    agree = _agree(x.output, y.output)
    sizes = x.output is not None and y.output is not None and _sizes_agree(x.output, y.output)
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


def _how(x: _Call, y: _Call) -> tuple[str, float]:
    agree = _agree(x.output, y.output)
    sizes = x.output is not None and y.output is not None and _sizes_agree(x.output, y.output)
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


# -- slots -----------------------------------------------------------------------------------------------------------


def _class(dtype: str) -> str:
    return "float" if "float" in dtype or "complex" in dtype else "whole"


def _rank(a: Slot, b: Slot) -> int:
    """How well two tensors go together: 3 same shape, 2 same up to permutation, 1 same size, 0 not at all."""
    if a.meta.size != b.meta.size or _class(a.meta.dtype) != _class(b.meta.dtype):
        return 0
    if a.meta.shape == b.meta.shape:
        return 3
    return 2 if _layout_free(a.meta.shape) == _layout_free(b.meta.shape) else 1


def _pair_slots(
    first: Sequence[Slot], second: Sequence[Slot]
) -> tuple[list[tuple[Slot, Slot]], list[Slot], list[Slot]]:
    """By name where the shapes allow it, then in order by the best fit of shapes."""
    names = {s.name: j for j, s in enumerate(second)}
    partner: dict[int, int] = {}
    for i, a in enumerate(first):
        j = names.get(a.name)
        if j is not None and _rank(a, second[j]):
            partner[i] = j
    if len(partner) < min(len(first), len(second)):
        taken = set(partner.values())
        for rank in (3, 2, 1):
            for i, a in enumerate(first):
                if i not in partner:
                    fit = next((j for j, b in enumerate(second) if j not in taken and _rank(a, b) == rank), None)
                    if fit is not None:
                        partner[i] = fit
                        taken.add(fit)
    used = set(partner.values())
    return (
        [(first[i], second[partner[i]]) for i in range(len(first)) if i in partner],
        [s for i, s in enumerate(first) if i not in partner],
        [s for j, s in enumerate(second) if j not in used],
    )


def _slots_of_calls(
    a: Record, b: Record, known: Mapping[int, int], how: str, commutative: bool
) -> tuple[tuple[tuple[Slot, Slot], ...], tuple[tuple[str, Slot], ...]]:
    inputs_a, inputs_b = a.inputs(), b.inputs()
    pairs, left, right = _pair_slots(inputs_a, inputs_b)
    if commutative and len(pairs) == 2:
        (p, q), (r, s) = pairs
        if _rank(p, s) and _rank(r, q) and _crossed(known, p, q, r, s):
            pairs = [(p, s), (r, q)]
    if how in (FUSED, "same values") and a.kind is Kind.OP and b.kind is Kind.OP:
        # the last of several ops works on what the others made of the input
        apart = [(p, q) for p, q in pairs if not (p.param and q.param) and not _same(known, p, q)]
        pairs = [pair for pair in pairs if pair not in apart]
        left += [p for p, _ in apart]
        right += [q for _, q in apart]
    outputs_a, outputs_b = a.outputs(), b.outputs()
    more, left_out, right_out = _pair_slots(outputs_a, outputs_b)
    if not more and len(outputs_a) == len(outputs_b) == 1 and how != FUSED:
        more, left_out, right_out = [(outputs_a[0], outputs_b[0])], [], []
    unmatched = [("reference", s) for s in (*left, *left_out)] + [("candidate", s) for s in (*right, *right_out)]
    return (*pairs, *more), tuple(unmatched)


def _same(known: Mapping[int, int], a: Slot, b: Slot) -> bool:
    return known[a.value] == b.value if a.value in known else _agree(a, b)


def _crossed(known: Mapping[int, int], p: Slot, q: Slot, r: Slot, s: Slot) -> bool:
    """Whether ``p + r`` on one side is ``q + s`` the other way round."""
    straight = (known.get(p.value) == q.value) + (known.get(r.value) == s.value)
    cross = (known.get(p.value) == s.value) + (known.get(r.value) == q.value)
    if straight == cross == 0:
        straight, cross = _agree(p, q) + _agree(r, s), _agree(p, s) + _agree(r, q)
    return cross > straight


def _params(x: _Module, y: _Module) -> tuple[tuple[str, str, str], ...]:
    """(reference's name, candidate's name, role): by role, then by shape."""
    left, right = list(x.info.params), list(y.info.params)
    found: list[tuple[ParamInfo, ParamInfo]] = []

    def take(fits: Callable[[ParamInfo, ParamInfo], bool]) -> None:
        for p in list(left):
            q = next((q for q in right if p.buffer == q.buffer and fits(p, q)), None)
            if q is not None:
                found.append((p, q))
                left.remove(p)
                right.remove(q)

    take(lambda p, q: p.role == q.role)
    take(lambda p, q: _layout_free(p.meta.shape) == _layout_free(q.meta.shape) and p.meta.size > 1)
    order = {id(p): n for n, p in enumerate(x.info.params)}
    found.sort(key=lambda pair: order[id(pair[0])])
    return tuple((p.name, q.name, p.role) for p, q in found)


# -- putting it together ---------------------------------------------------------------------------------------------


def match(
    reference: TraceLike,
    candidate: TraceLike,
    *,
    hints: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
) -> Matching:
    """Pair the records of two traces of one network; whatever finds no partner is listed.

    `hints` maps paths of the reference to paths of the candidate: ``{"encoder.{i}.attn": "blocks.{i}.attention"}``,
    where ``{i}`` is any one segment or a part of one, ``*`` any one segment and ``**`` any number of them. What lies
    below a hinted module pairs only with what lies below its partner.

    >>> from twinscope.records import Slot, TensorMeta
    >>> def trace(framework: str, op: str) -> TraceLike:
    ...     from twinscope.store import MemoryWriter
    ...     info = ModuleInfo("", "Net", None, False)
    ...     writer = MemoryWriter(Manifest(framework, {}, "Net", (info,), {}))
    ...     out = (Slot("out", TensorMeta((2, 3), "float32"), 1),)
    ...     writer.record(Record(0, 0, Kind.OP, Phase.FORWARD, "", op, 1, 0, 0, out))
    ...     writer.record(Record(1, 0, Kind.MODULE, Phase.FORWARD, "", "Net", 0, None, 0, out))
    ...     return writer.trace()
    >>> found = match(trace("torch", "torch.Tensor.__matmul__"), trace("mindspore", "mindspore.ops.bmm"))
    >>> [(pair.reference.where, pair.candidate.where, pair.how) for pair in found.pairs]
    [('(root) · __matmul__', '(root) · bmm', 'op'), ('(root)', '(root)', 'path')]
    """
    a, b = _Side(reference), _Side(candidate)
    resolved = _resolve(hints, a, b)
    # Where the evidence is even, something has to give; so that it does not depend on who is the reference, the two are
    # taken in an order of their own.
    if _before(b, a):
        return _mirrored(_match(b, a, [(y, x) for x, y in resolved]))
    return _match(a, b, resolved)


def _before(a: _Side, b: _Side) -> bool:
    if len(a.records) != len(b.records):
        return len(a.records) < len(b.records)
    pairs = (((r.path, r.type), (s.path, s.type)) for r, s in zip(a.records, b.records, strict=True))
    return next((first < second for first, second in pairs if first != second), False)


def _mirrored(found: Matching) -> Matching:
    other = {"reference": "candidate", "candidate": "reference"}
    pairs = [
        Pair(
            p.candidate,
            p.reference,
            p.how,
            p.confidence,
            tuple((y, x) for x, y in p.slots),
            tuple(sorted(((other[side], s) for side, s in p.unmatched_slots), key=lambda item: item[0], reverse=True)),
        )
        for p in found.pairs
    ]
    modules = [
        ModulePair(m.candidate, m.reference, m.how, m.confidence, tuple((q, p, role) for p, q, role in m.params))
        for m in found.modules
    ]
    return Matching(
        tuple(sorted(pairs, key=lambda p: (p.reference.index, p.candidate.index))),
        tuple(modules),
        found.unmatched_candidate,
        found.unmatched_reference,
        found.unmatched_modules_candidate,
        found.unmatched_modules_reference,
    )


def _match(a: _Side, b: _Side, hints: Sequence[tuple[_Module, _Module]]) -> Matching:
    modules = _Modules(a, b, hints)
    return _assemble(a, b, modules, _Calls(a, b, modules))


def _assemble(a: _Side, b: _Side, modules: _Modules, calls: _Calls) -> Matching:
    pairs: list[Pair] = []
    known: dict[int, int] = {}
    together = sorted([*calls.matches.values(), *calls.fused], key=lambda m: (m.a.record.index, m.b.record.index))
    for m in together:
        commutative = m.a.name == m.b.name and m.a.name in COMMUTATIVE
        slots, rest = _slots_of_calls(m.a.record, m.b.record, known, m.how, commutative)
        if m.a.record.phase is m.b.record.phase:
            pairs.append(Pair(m.a.record, m.b.record, m.how, m.confidence, slots, rest))
        for p, q in slots:
            known.setdefault(p.value, q.value)
        names = {p.name: q.name for p, q in slots}
        twins = zip(
            [r for r in m.a.backward if r is not m.a.record],
            [r for r in m.b.backward if r is not m.b.record],
            strict=False,
        )
        for x, y in twins:
            pairs.append(Pair(x, y, m.how, m.confidence, *_named_slots(x, y, names)))
    made = [
        ModulePair(x.path, found.partner.path, found.how, found.confidence, _params(x, found.partner))
        for x, found in modules.found.items()
    ]
    made += [ModulePair(x.path, y.path, FUSED, 0.8) for x, y in modules.fused]
    for (x, y), held in calls.held.items():
        roles = {p.name: p.role for p in x.info.params}
        made.append(ModulePair(x.path, y.path, FUSED, 0.8, tuple((p, q, roles[p]) for p, q in held.items())))
    place = {m.path: m.index for m in a.modules}
    made.sort(key=lambda m: place[m.reference])
    pairs += _states(a, b, made, calls.steps)
    pairs.sort(key=lambda p: (p.reference.index, p.candidate.index))
    used_a = {id(p.reference) for p in pairs}
    used_b = {id(p.candidate) for p in pairs}
    paired = ({m.reference for m in made}, {m.candidate for m in made})
    return Matching(
        pairs=tuple(pairs),
        modules=tuple(made),
        unmatched_reference=tuple(r for r in a.records if id(r) not in used_a),
        unmatched_candidate=tuple(r for r in b.records if id(r) not in used_b),
        unmatched_modules_reference=tuple(m.info for m in a.modules if m.path not in paired[0]),
        unmatched_modules_candidate=tuple(m.info for m in b.modules if m.path not in paired[1]),
    )


def _named_slots(
    x: Record, y: Record, names: Mapping[str, str]
) -> tuple[tuple[tuple[Slot, Slot], ...], tuple[tuple[str, Slot], ...]]:
    others = {s.name: s for s in y.slots}
    pairs = tuple((s, others.pop(names[s.name])) for s in x.slots if names.get(s.name) in others)
    done = {id(s) for s, _ in pairs}
    rest = [("reference", s) for s in x.slots if id(s) not in done]
    return pairs, (*rest, *(("candidate", s) for s in others.values()))


def _states(a: _Side, b: _Side, modules: Iterable[ModulePair], steps: Mapping[int, int]) -> list[Pair]:
    partners: dict[str, list[ModulePair]] = defaultdict(list)
    for m in modules:
        partners[m.reference].append(m)
    others = {(r.phase, b.by_path[r.path].path, r.step, r.nth): r for r in b.states}
    pairs = []
    for r in a.states:
        if r.step in steps:
            for m in partners[a.by_path[r.path].path]:
                other = others.get((r.phase, m.candidate, steps[r.step], r.nth))
                if other is not None:
                    names = {p: q for p, q, _ in m.params}
                    pairs.append(Pair(r, other, m.how, m.confidence, *_named_slots(r, other, names)))
    times = Counter(id(r) for p in pairs for r in (p.reference, p.candidate))
    return [replace(p, how=FUSED) if times[id(p.reference)] > 1 or times[id(p.candidate)] > 1 else p for p in pairs]


def _resolve(
    hints: Mapping[str, str] | Sequence[tuple[str, str]] | None, a: _Side, b: _Side
) -> list[tuple[_Module, _Module]]:
    items = list(hints.items() if isinstance(hints, Mapping) else hints or ())
    found: dict[_Module, _Module] = {}
    for source, target in items:
        fitting = [(path, captured) for path in a.by_path if (captured := patterns.capture(source, path)) is not None]
        if not fitting:
            raise MatchError(
                f"the mapping {source!r} -> {target!r}: the reference has no module {source!r}",
                hint=patterns.did_you_mean(source, a.by_path),
            )
        wild = "*" in source
        missing = None
        hit = False
        for path, captured in fitting:
            try:
                image = patterns.fill(target, captured)
            except KeyError as error:
                raise MatchError(
                    f"the mapping {source!r} -> {target!r}: {error} stands in the second pattern only",
                    hint="every {name} and * of the candidate's pattern must be in the reference's",
                ) from error
            module = b.by_path.get(image)
            if module is None:
                missing = missing or image
                continue
            hit = True
            found.setdefault(a.by_path[path], module)
        if missing is not None and not (wild and hit):
            raise MatchError(
                f"the mapping {source!r} -> {target!r}: the candidate has no module {missing!r}",
                hint=patterns.did_you_mean(missing, b.by_path),
            )
    twice = [path for path, n in Counter(m.path for m in found.values()).items() if n > 1]
    if twice:
        raise MatchError(
            f"the mapping pairs {twice[0]!r} of the candidate with more than one module of the reference",
            hint="a module has one partner",
        )
    return list(found.items())
