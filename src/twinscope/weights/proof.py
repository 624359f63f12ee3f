"""Proof by running: give the candidate the weights as the map says, and look at what comes out.

Each pair of modules is looked at alone: the candidate's is called on what the reference's was given, so that nothing
upstream, wrong weights or a real difference, blurs what it shows. Where a map leaves a choice, every way is tried in
the smallest module that encloses it. A choice that comes in every block is settled by what settled it in the first.

So that nothing agrees by chance (biases of zero, norms of one, blocks that are copies of one another), the reference is
given other weights for the while: its own, shaken, and where they are constant, noise. Both models run in evaluation
mode, and both are put back to what they were.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..adapters._registry import adapter_for
from ..adapters.base import Adapter, Array
from ..errors import WeightError
from ..metrics import arranged
from ..records import Kind, Phase
from ..replaying import SeenCall, given_to, keep_calls, replay
from ..running import InputPair, as_arguments, unchanged
from ..store import Trace
from .linking import Link, joined
from .mapper import Choice, Draft, enclosing, permuted, repackings
from .transforms import Chain, Each, Omit, Untie
from .weightmap import Entry, WeightMap, carried

#: Relative errors of an output that two right implementations stay below, by its dtype. A wrong weight is far off.
_AGREES = {"float64": 1e-5, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.15}
#: How much worse one way must be than another to be ruled out by what running shows.
_WORSE = 10.0
#: An error that is noise whatever the dtype: no other way can be so much better that it matters.
_NOISE = 2e-5
#: Most ways that are tried in one place, and most replays in all, so that proof ends.
_MOST_WAYS = 64
_MOST_RUNS = 4000
#: Pairs of the same name, kind and shape.
_NAMED = 0.99
#: What doubting may cost: runs of the whole network, each counted by the modules that it calls; of a small one more.
_MOST_DOUBTED = 24
_LEAST_DOUBTED = 1000
#: Modules that could stand for one another, and orders of them, that are tried where outputs differ.
_MOST_SUSPECTS = 6
_MOST_ORDERS = 24


def prove(
    draft: Draft, reference: Any, candidate: Any, inputs: InputPair, seed: int = 0, trust_names: bool = True
) -> WeightMap:
    """Settle the draft's choices by running both models, and say of every entry what running showed.

    With `trust_names`, modules of the same name, kind and shape stay together even if the outputs would agree
    otherwise: then it is for the comparison to say that one of the two uses them wrongly.
    """
    with ExitStack() as stack:
        sides = []
        for model, own in ((reference, inputs.reference), (candidate, inputs.candidate)):
            adapter = adapter_for(model)
            stack.enter_context(unchanged(adapter, model))
            stack.enter_context(adapter.evaluating(model))
            sides.append(_Side(adapter, model, own, seed))
        read = draft.a.reader()
        _shake(draft, sides[0], read)
        prover = _Prover(draft, sides[0].watch(), sides[1], read, math.inf if not trust_names else _NAMED)
        return prover.settle()


def prove_recorded(draft: Draft, trace: Trace, candidate: Any, inputs: Any, seed: int) -> WeightMap:
    """`prove` against a trace of the reference, whose weights nobody can shake: what is alike may stay unproven."""
    known = _recorded(trace)
    if "" not in known:
        note = "nothing was proven: the reference's trace holds no tensors of its outputs"
        return replace(draft.map(), notes=(*draft.map().notes, note))
    adapter = adapter_for(candidate)
    with unchanged(adapter, candidate):
        return _Prover(draft, known, _Side(adapter, candidate, inputs, seed), draft.a.reader(), _NAMED).settle()


def _recorded(trace: Trace) -> dict[str, SeenCall]:
    """The first call of every module whose tensors a trace holds."""
    found: dict[str, SeenCall] = {}
    for record in trace.records:
        if record.kind is not Kind.MODULE or record.phase is not Phase.FORWARD or record.nth or record.path in found:
            continue
        inputs = [trace.tensor(s) for s in record.inputs() if s.param is None]
        outputs = [trace.tensor(s) for s in record.outputs()]
        if outputs and not any(a is None for a in (*inputs, *outputs)):
            found[record.path] = SeenCall(
                (), {}, tuple(a for a in inputs if a is not None), tuple(a for a in outputs if a is not None)
            )
    return found


class _Side:
    """One model, ready to be run and to have its modules called."""

    def __init__(self, adapter: Adapter, model: Any, inputs: Any, seed: int) -> None:
        self.adapter, self.model, self.seed = adapter, model, seed
        self.inputs = inputs
        self.modules: dict[str, Any] = {}
        self.places: dict[str, Any] = {}
        for info, module in adapter.modules(model):
            self.modules[info.path] = module
            for name, tensor in adapter.state(module).items():
                self.places.setdefault(info.param_path(name), tensor)

    def watch(self) -> dict[str, SeenCall]:
        """Run the whole model once and keep the calls of its modules."""
        self.adapter.seed(self.seed)
        return keep_calls(self.adapter, self.model, *as_arguments(self.adapter, self.inputs))


def _shake(draft: Draft, side: _Side, read: Callable[[str], Array]) -> None:
    """Weights of which no two are alike, near the model's own."""
    fragile = {path for e in draft.entries() if _is_fragile(e.transform) for path in e.reference}
    roles = {path: param.role for path, _, param in draft.a.places()}
    for held in draft.a.held():
        if held.path in fragile or not held.needed or "float" not in held.dtype:
            continue
        before = np.asarray(read(held.path))
        random = np.random.default_rng(zlib.crc32(held.path.encode()))
        after = _shaken(before.astype(np.float64), roles[held.path], random)
        side.adapter.assign(side.places[held.path], after.astype(before.dtype))


def _shaken(values: Array, role: str, random: np.random.Generator) -> Array:
    if values.size == 0 or not np.isfinite(values).all():
        return values
    if role == "running_var":
        return np.asarray(values * random.uniform(0.6, 1.6, values.shape) + 0.05)
    level, spread = float(values.mean()), float(values.std())
    if spread > 1e-3 * abs(level):
        return np.asarray(values * random.uniform(0.7, 1.3, values.shape))
    if abs(level) < 0.1:
        return np.asarray(level + 0.2 * random.standard_normal(values.shape))
    return np.asarray(level * random.uniform(0.6, 1.4, values.shape))


def _is_fragile(chain: Chain) -> bool:
    """Whether the transform asks something of the values, which shaken ones would not meet."""
    return any(
        isinstance(step, (Omit, Untie)) or (isinstance(step, Each) and any(_is_fragile(c) for c in step.chains))
        for step in chain
    )


@dataclass(slots=True)
class _Trial:
    """What one way of a choice came to."""

    way: int
    error: float


class _Prover:
    def __init__(
        self,
        draft: Draft,
        known: dict[str, SeenCall],
        side: _Side,
        read: Callable[[str], Array],
        most_sure: float,
    ) -> None:
        self.draft, self.known, self.side, self.read = draft, known, side, read
        self.most_sure = most_sure
        self.given: dict[str, Entry] = {}
        self.held = {h.path: h for h in draft.b.held()}
        self.errors: dict[str, float] = {}
        self.runs = 0
        self.cost = 0  # of all runs, in calls of modules
        self.give()
        self.own = side.watch()  # how the candidate calls its modules
        self.inside: dict[str, int] = defaultdict(int)  # by path, how many modules are called in it, itself included
        for path in self.own:
            for at in (path, *_above(path)):
                self.inside[at] += 1
        self.errors[""] = _error_of(known[""].outputs, self.own[""].outputs)

    def settle(self) -> WeightMap:
        self.choose()
        self.doubt()
        return self.told()

    # -- running -------------------------------------------------------------------------------------------------------

    def give(self, links: Sequence[Link] | None = None) -> None:
        """Give the candidate what the draft says, or these links of it, as far as that is news."""
        for entry in self.draft.entries() if links is None else joined(links):
            if all(_alike(self.given.get(p), entry) for p in entry.candidate):
                continue
            try:
                made = carried(entry, self.read, self.held)
            except WeightError:
                continue  # for the copying to say; what was not given shows in the outputs
            for path, array in made:
                self.side.adapter.assign(self.side.places[path], array)
                self.given[path] = entry

    def partner(self, path: str) -> str | None:
        """The candidate's module that is called as the reference's is, where both were called."""
        other = "" if path == "" else self.draft.modules.get(path)
        return other if other is not None and path in self.known and other in self.own else None

    def error(self, path: str) -> float:
        """How far the candidate's module is off, called alone on what the reference's was given."""
        if path not in self.errors:
            self.errors[path] = self._measure(path)
        return self.errors[path]

    def _measure(self, path: str) -> float:
        other = self.partner(path)
        if other is None:
            return math.inf
        mine, theirs = self.known[path], self.own[other]
        inputs = list(theirs.inputs) if path == "" else given_to(theirs, mine)
        if inputs is None:
            return math.inf
        self.runs += 1
        self.cost += self.inside[other]
        try:
            outputs = replay(self.side.adapter, self.side.modules[other], theirs, inputs)
        except Exception:  # noqa: BLE001 - a module that cannot be called alone shows nothing
            return math.inf
        return _error_of(mine.outputs, outputs)

    def agrees(self, path: str) -> bool:
        """Whether the outputs of a pair of modules agree, as far as it can be looked at alone."""
        outputs = self.known[path].outputs if path in self.known else ()
        limit = max((_AGREES.get(a.dtype.name, 0.0) for a in outputs), default=0.0)
        return self.error(path) <= (limit or 1e-3)

    def scope(self, paths: Sequence[str]) -> str:
        """The smallest module that encloses all of these, is none of them, and can be looked at."""
        at = enclosing(paths) if len(set(paths)) > 1 else paths[0]
        while at and (at in paths or self.partner(at) is None):
            at = at.rpartition(".")[0]
        return at

    # -- choosing ------------------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Settle every choice, those within one module together, by what settled the same choice elsewhere first."""
        places: dict[str, list[Choice]] = defaultdict(list)
        for choice in self.draft.choices:
            places[self.scope(sorted(choice.paths[0]))].append(choice)
        liked: dict[Hashable, Hashable] = {}
        for scope, choices in places.items():
            families: dict[Hashable, list[Choice]] = defaultdict(list)
            for choice in choices:
                families[tuple(tag for tag, _ in choice.ways)].append(choice)
            for tags, family in families.items():
                self.decide(scope, family, liked.get(tags))
                liked[tags] = family[0].ways[family[0].chosen][0]
            if len(choices) > 1:  # what was settled first was settled with the others as they happened to stand
                for choice in choices:
                    if not self.agrees(scope):
                        self.decide(scope, [choice], None)

    def decide(self, scope: str, choices: Sequence[Choice], first: Hashable | None) -> bool:
        """Try the ways, the same in all of these choices, and keep the best; whether one stands out."""
        tags = [tag for tag, _ in choices[0].ways]
        start = choices[0].chosen
        order = sorted(range(len(tags)), key=lambda w: (tags[w] != first, w != start, w))[:_MOST_WAYS]
        trials: list[_Trial] = []
        for way in order:
            if self.runs >= _MOST_RUNS:
                break
            trials.append(_Trial(way, self._try(scope, choices, way)))
            if min(t.error for t in trials) <= _NOISE and (first is not None or len(trials) > 1):
                break
        best = min(trials, key=lambda t: t.error)
        alike = [t for t in trials if t.error <= max(_WORSE * best.error, best.error + _NOISE)]
        self._try(scope, choices, alike[0].way)
        stands_out = len(alike) == 1 and math.isfinite(best.error) and (len(trials) > 1 or best.error <= _NOISE)
        for choice in choices:
            choice.decided = stands_out
        return stands_out and alike[0].way != start

    def _try(self, scope: str, choices: Sequence[Choice], way: int) -> float:
        for choice in choices:
            choice.chosen = way
            for link in choice.links:
                first, second = link.a.stock.owner, link.b.stock.owner
                if first.kind == second.kind or first.path not in self.draft.modules:  # a tied table keeps its partner
                    self.draft.modules[first.path] = second.path
        touched = {path for choice in choices for path in choice.paths[0]}
        self.errors = {
            p: e for p, e in self.errors.items() if not any(_encloses(p, t) or _encloses(t, p) for t in touched)
        }
        self.give(self._together([link for choice in choices for link in choice.links]))
        return self.error(scope)

    def _together(self, links: list[Link]) -> list[Link]:
        """These links, and all others that share a tensor with them."""
        names = {p for link in links for stock in (link.a.stock, link.b.stock) for p in (id(stock), *stock.names)}
        mine = {id(link) for link in links}
        rest = [*self.draft.links, *(link for choice in self.draft.choices for link in choice.links)]
        sharing = [
            link
            for link in rest
            if id(link) not in mine and any(not names.isdisjoint(s.names) for s in (link.a.stock, link.b.stock))
        ]
        return [*links, *sharing]

    # -- doubting ------------------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Where outputs differ, try whether modules there, which could stand for one another, were mixed up."""
        if self.agrees(""):
            return
        most = self.cost + max(_MOST_DOUBTED * self.inside[""], _LEAST_DOUBTED)
        for scope in self.failing():
            for choice in self._suspects(scope):
                if self.runs >= _MOST_RUNS or self.cost >= most:
                    return
                before = self.draft.links, dict(self.draft.modules)
                moved = {link.a.key for link in choice.links}
                self.draft.links = [link for link in self.draft.links if link.a.key not in moved]
                self.draft.choices.append(choice)
                worse = self.error(scope)
                if self.decide(scope, [choice], None) and self.error(scope) < worse / _WORSE:
                    self._against_names(choice)
                    if self.agrees(scope):
                        break
                    continue
                self._try(scope, [choice], 0)
                self.draft.choices.pop()
                self.draft.links, self.draft.modules = before
                self.give()

    def _against_names(self, choice: Choice) -> None:
        apart = [
            (link.a.path, link.b.path)
            for link, before in zip(choice.links, choice.ways[0][1], strict=False)
            if before.confidence >= _NAMED and link.b.key != before.b.key
        ]
        if apart:
            a, b = apart[0]
            more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
            self.draft.notes.append(f"{a} goes to {b}{more}, against their names: the outputs agree only so")

    def _holders(self) -> list[str]:
        links = [*self.draft.links, *(link for choice in self.draft.choices for link in choice.links)]
        return list(dict.fromkeys(link.a.stock.owner.path for link in links))

    def failing(self) -> list[str]:
        """The smallest modules that hold weights and whose outputs differ, but for those within one whose output
        agrees: their boundaries are other ones (a norm that contains its activation)."""
        scopes = dict.fromkeys(self.scope([path]) for path in self._holders())
        bad = [s for s in scopes if not self.agrees(s)]
        return sorted(
            (s for s in bad if not any(self.agrees(up) for up in _above(s) if self.partner(up) is not None)),
            key=lambda s: -s.count(".") - (1 if s else 0),
        )

    def _suspects(self, scope: str) -> Iterator[Choice]:
        """Groups of modules whose partners may have been mixed up within a module, but for those in parts of it that
        agree."""
        held: dict[str, list[Link]] = defaultdict(list)
        for link in self.draft.links:
            held[link.a.stock.owner.path].append(link)
        for path in list(held):
            inner = self.scope([path])
            if inner != scope and _encloses(scope, inner) and self.agrees(inner):
                del held[path]
        heavy = [path for path in self.known if path in held]
        after = dict(itertools.pairwise(heavy))
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for owner, links in held.items():
            if _encloses(scope, owner) and self._is_doubtful(links):
                groups[_signature(links)].append(owner)
        for owners in groups.values():
            if 1 < len(owners) <= _MOST_SUSPECTS:
                following = [held.get(after.get(o, ""), []) for o in owners]
                yield Choice.of(_mixes([held[o] for o in owners], following))
        for owner, links in held.items():
            if _encloses(scope, owner) and self._is_doubtful(links):
                ways = repackings(links, self.draft.heads(links[0].a.shape[-1]))
                if ways:
                    yield Choice.of(ways)

    def _is_doubtful(self, links: Sequence[Link]) -> bool:
        return min(k.confidence for k in links) < self.most_sure and not any(k.why == "hint" for k in links)

    # -- telling -------------------------------------------------------------------------------------------------------

    def told(self) -> WeightMap:
        made = self.draft.map()
        decided = {link.a.stock.paths for c in self.draft.choices if c.decided for link in c.links}
        owners = {path: info.path for path, info, _ in self.draft.a.places()}
        entries = tuple(self._told(e, owners, decided) for e in made.entries)
        notes = list(made.notes)
        failing = self.failing()
        if failing:
            inside = [p for p in self.known if self.partner(p) and p != failing[0] and _encloses(failing[0], p)]
            held = set(self._holders())
            inside = [p for p in inside if p in held and self._has_parts(p) == (self.inside[self.partner(p) or ""] > 1)]
            place = next((p for p in inside if not self.agrees(p)), failing[0])  # not a norm with its activation
            names = f"{place or 'the network'} and {self.partner(place) or 'the network'}"
            notes.append(
                f"{names}, called alone on the same tensors with these weights, give outputs that differ (relative "
                f"error {self.error(place):.2g}): either the networks do, or a weight there has another partner"
            )
        return replace(made, entries=entries, notes=tuple(notes))

    def _has_parts(self, path: str) -> bool:
        return any(p != path and _encloses(path, p) for p in self.known)

    def _told(self, entry: Entry, owners: Mapping[str, str], decided: set[tuple[str, ...]]) -> Entry:
        if entry.confidence == 0.0 or not entry.reference:
            return entry
        modules = sorted({owners[path] for path in entry.reference})
        if not any(_encloses(called, m) for called in self.known if called for m in modules) and modules != [""]:
            return entry  # nothing that holds it ran
        scope = self.scope(modules)
        for at in (scope, *_above(scope)):
            # where the whole agrees, no part need be called again
            if (at in self.errors or not self.agrees("")) and self.partner(at) is not None and self.agrees(at):
                proof = (
                    f"output of {at} agrees to {self.error(at):.1g}" if at else f"output agrees to {self.error(at):.1g}"
                )
                return replace(entry, confidence=max(entry.confidence, _NAMED), proof=proof, options=())
        if entry.reference in decided:
            proof = "fits far better than any other"
            return replace(entry, confidence=max(entry.confidence, 0.8), proof=proof, options=())
        return entry


def _error_of(mine: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest error among outputs that go together by their order and size."""
    free = list(theirs)
    errors = []
    for array in mine:
        if array.dtype.kind in "biu" or array.size == 0:
            continue
        partner = next((i for i, b in enumerate(free) if b.size == array.size and b.dtype.kind not in "biu"), None)
        if partner is None:
            return math.inf
        errors.append(relative_error(array, free.pop(partner)))
    return max(errors, default=math.inf)


def relative_error(left: Array, right: Array) -> float:
    """RMSE over RMS, after `right` was brought to the shape of `left`; infinite where the two cannot be compared.

    >>> relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.0]))
    0.0
    """
    fitted = arranged(left, right)
    if fitted is None:
        return math.inf
    a, b = left.astype(np.float64), fitted[0].astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return math.inf
    if not finite.any():
        return 0.0
    difference, scale = (a - b)[finite], a[finite]
    error = float(np.sqrt(np.mean(difference * difference)))
    return 0.0 if error == 0.0 else error / max(float(np.sqrt(np.mean(scale * scale))), 1e-30)


def _mixes(mine: list[list[Link]], after: list[list[Link]]) -> list[tuple[Hashable, list[Link]]]:
    """Other partners for some modules, alone or together with what comes after each (a convolution's norm)."""
    orders = sorted(itertools.permutations(range(len(mine))), key=_moved)[:_MOST_ORDERS]
    ways = permuted(mine, orders)
    apart = {link.a.key for links in mine for link in links}.isdisjoint(link.a.key for ls in after for link in ls)
    keys = {links[0].a.key for links in after if links}
    if not apart or len(keys) < len(after) or len({_signature(links) for links in after}) > 1:
        return ways
    rest = [link for links in after for link in links]
    found: list[tuple[Hashable, list[Link]]] = []
    for (tag, links), (_, others) in zip(ways, permuted(after, orders), strict=True):
        found.append((("alone", tag), [*links, *rest]))
        if tag != orders[0]:
            found.append((("with the next", tag), [*links, *others]))
    return found


def _alike(a: Entry | None, b: Entry) -> bool:
    return a is not None and (a.reference, a.candidate, a.transform) == (b.reference, b.candidate, b.transform)


def _signature(links: Sequence[Link]) -> Hashable:
    return tuple(sorted((link.a.role, link.a.shape) for link in links))


def _moved(order: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return sum(i != j for i, j in enumerate(order)), order


def _above(path: str) -> Iterator[str]:
    """All modules that enclose this one, nearest first."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _encloses(module: str, path: str) -> bool:
    return not module or path == module or path.startswith(module + ".")
