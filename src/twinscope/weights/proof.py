"""Proof by running: give the candidate the weights as the map says, run both, and look at what comes out.

So that nothing agrees by chance (biases of zero, norms of one, blocks that are copies of one another), the reference is
given other weights for the while: its own, shaken, and where they are constant, noise. Both models run in evaluation
mode, and both are put back to what they were.

Where a map leaves a choice, every way is tried, and the first output in the order of computation that tells them
apart decides. A choice that comes in every block is tried in all of them at once.
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
from ..capturing import Capture, Plan
from ..errors import WeightError
from ..metrics import arranged
from ..records import Kind, Phase, Record, Slot
from ..running import InputPair, as_arguments, unchanged
from ..store import Trace
from .linking import Link
from .mapper import Choice, Draft, permuted
from .transforms import Chain, Each, Omit, Untie
from .weightmap import Entry, WeightMap

#: Relative errors of a whole output that two right implementations stay below, by its dtype. A wrong weight is far off.
_AGREES = {"float64": 1e-5, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.15}
#: How much worse one way must be than another to be ruled out by what running shows.
_WORSE = 10.0
#: Most ways that are tried in all, so that proof ends.
_MOST_RUNS = 300
#: Pairs of the same name, kind and shape are not doubted: if they are wrong, that is for the comparison to say.
_NAMED = 0.99
#: Modules that could stand for one another, and orders of them, that are tried where outputs differ.
_MOST_PLACES = 8
_MOST_SUSPECTS = 6
_MOST_ORDERS = 24

_WATCH = Plan.parse(level="module", keep="tensors", backward=False, weights="never", sources=False)


@dataclass(frozen=True, slots=True)
class _Gauge:
    """An output that both sides have: of paired modules, in the order in which the reference completes them."""

    module: tuple[str, str]
    reference: Slot
    candidate: tuple[str, int, str]  # path, number of the call, name of the output


def prove(
    draft: Draft, reference: Any, candidate: Any, inputs: InputPair, seed: int = 0, trust_names: bool = True
) -> WeightMap:
    """Settle the draft's choices by running both models, and say of every entry what running showed.

    With `trust_names`, modules of the same name, kind and shape stay together even if the outputs would agree
    otherwise: then it is for the comparison to say that one of the two uses them wrongly.
    """
    first, second = adapter_for(reference), adapter_for(candidate)
    with ExitStack() as stack:
        for adapter, model in ((first, reference), (second, candidate)):
            stack.enter_context(unchanged(adapter, model))
            stack.enter_context(adapter.evaluating(model))
        places = [_places(first, reference), _places(second, candidate)]
        read = draft.a.reader()
        _shake(draft, first, places[0], read)
        known = _watch(first, reference, inputs.reference, seed)

        given: dict[str, tuple[tuple[str, ...], Chain]] = {}

        def run(found: WeightMap) -> Trace:
            _give(found, read, second, places[1], given)
            return _watch(second, candidate, inputs.candidate, seed)

        return _Prover(draft, known, run, trust_names).settle()


def _places(adapter: Adapter, model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info, module in adapter.modules(model):
        for name, tensor in adapter.state(module).items():
            found.setdefault(info.param_path(name), tensor)
    return found


def _watch(adapter: Adapter, model: Any, inputs: Any, seed: int) -> Trace:
    args, kwargs = as_arguments(adapter, inputs)
    adapter.seed(seed)
    run = Capture(model, None, _WATCH, adapter=adapter)
    with run:
        adapter.run(model, args, kwargs, None, False)
    if run.error is not None:
        raise run.error
    return run.trace


def _give(
    found: WeightMap,
    read: Callable[[str], Array],
    adapter: Adapter,
    places: Mapping[str, Any],
    given: dict[str, tuple[tuple[str, ...], Chain]],
) -> None:
    """Give the candidate what the map says; `given` remembers, by path, what has been given already."""
    fresh = [e for e in found.entries if any(given.get(p) != (e.reference, e.transform) for p in e.candidate)]
    for entry in fresh:
        try:
            for _, path, array in found.arrays(read, [entry]):
                adapter.assign(places[path], array)
                given[path] = (entry.reference, entry.transform)
        except WeightError:
            continue  # for the copying to say; what was not given shows in the outputs


def _shake(draft: Draft, adapter: Adapter, places: Mapping[str, Any], read: Callable[[str], Array]) -> None:
    """Weights of which no two are alike, near the model's own."""
    fragile = {path for e in draft.entries() if _is_fragile(e.transform) for path in e.reference}
    roles = {path: param.role for path, _, param in draft.a.places()}
    for held in draft.a.held():
        if held.path in fragile or not held.needed or "float" not in held.dtype:
            continue
        before = np.asarray(read(held.path))
        random = np.random.default_rng(zlib.crc32(held.path.encode()))
        after = _shaken(before.astype(np.float64), roles[held.path], random)
        adapter.assign(places[held.path], after.astype(before.dtype))


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


class _Prover:
    def __init__(self, draft: Draft, known: Trace, run: Callable[[WeightMap], Trace], trust_names: bool) -> None:
        self.most_sure = _NAMED if trust_names else 1.0
        self.draft = draft
        self.known = known
        self.run = run
        self.runs = 0
        self.gauges: list[_Gauge] = []
        heavy = {path for link in _all_links(draft) for path in [link.a.stock.owner.path]}
        order = [r.path for r in _calls(known) if r.path in heavy]
        self._next = dict(itertools.pairwise(order))
        self.called = {r.path for r in known.records if r.kind is Kind.MODULE and r.phase is Phase.FORWARD}

    def settle(self) -> WeightMap:
        errors = self.measure()
        families: dict[Hashable, list[Choice]] = defaultdict(list)
        for choice in self.draft.choices:
            families[tuple(tag for tag, _ in choice.ways)].append(choice)
        for family in families.values():
            if len(family) > 1 and not self.fine(errors, family):
                errors = self.decide(family, errors)
        for choice in self.draft.choices:
            if not self.fine(errors, [choice]):
                errors = self.decide([choice], errors)
        return self.told(self.doubt(errors))

    def doubt(self, errors: list[float]) -> list[float]:
        """Where the outputs first part, try whether modules there, which could stand for one another, do."""
        tried: set[frozenset[str]] = set()
        while self.runs < _MOST_RUNS:
            for choice in self._suspects(self.failing(errors), tried):
                before = self.draft.links
                moved = {link.a.key for _, links in choice.ways for link in links}
                self.draft.links = [link for link in before if link.a.key not in moved]
                self.draft.choices.append(choice)
                after = self.decide([choice], errors)
                if choice.chosen and after != errors:
                    errors = after
                    break
                self.draft.choices.pop()
                self.draft.links = before
            else:
                break
        return errors

    def failing(self, errors: Sequence[float]) -> list[str]:
        """Modules whose outputs differ, in order, but for those within one whose output agrees: their boundaries are
        other ones (a norm that contains its activation)."""
        agreed: dict[str, bool] = {}
        for n, gauge in enumerate(self.gauges):
            agreed[gauge.module[0]] = agreed.get(gauge.module[0], True) and self._agrees(n, errors[n])
        return [
            path
            for path, fine in agreed.items()
            if not fine and not any(good and up != path and _encloses(up, path) for up, good in agreed.items())
        ]

    def _suspects(self, paths: Sequence[str], tried: set[frozenset[str]]) -> Iterator[Choice]:
        """Groups of modules whose partners may have been mixed up: where outputs first part, and the nearest first."""
        for path in paths[:_MOST_PLACES]:
            yield from self._around(path, tried)

    def _around(self, path: str, tried: set[frozenset[str]]) -> Iterator[Choice]:
        held: dict[str, list[Link]] = defaultdict(list)
        for link in self.draft.links:
            held[link.a.stock.owner.path].append(link)
        at = path
        while True:
            groups: dict[Hashable, list[str]] = defaultdict(list)
            for owner, links in held.items():
                if _encloses(at, owner) and min(link.confidence for link in links) < self.most_sure:
                    groups[_signature(links)].append(owner)
            for owners in groups.values():
                key = frozenset(owners)
                if 1 < len(owners) <= _MOST_SUSPECTS and key not in tried:
                    tried.add(key)
                    after = [held.get(self._next.get(o, ""), []) for o in owners]
                    yield Choice.of(self._mixes([held[o] for o in owners], after))
            if not at:
                return
            at = at.rpartition(".")[0]

    @staticmethod
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

    # -- running -------------------------------------------------------------------------------------------------------

    def measure(self) -> list[float]:
        """The error of every gauge with the draft as it stands."""
        self.runs += 1
        trace = self.run(self.draft.map())
        if not self.gauges:
            self.gauges = _gauges(self.known, trace, self.draft.modules)
        slots = {(r.path, r.nth, s.name): s for r in _calls(trace) for s in r.outputs()}
        found = []
        for gauge in self.gauges:
            slot = slots.get(gauge.candidate)
            left = self.known.tensor(gauge.reference)
            right = None if slot is None else trace.tensor(slot)
            found.append(math.inf if left is None or right is None else relative_error(left, right))
        return found

    def _agrees(self, n: int, error: float) -> bool:
        return error <= _AGREES.get(self.gauges[n].reference.meta.dtype, 1e-3)

    def fine(self, errors: Sequence[float], choices: Sequence[Choice]) -> bool:
        """Whether what these choices lead to agrees: the outputs of all that encloses them."""
        wanted = [
            n
            for n, gauge in enumerate(self.gauges)
            if any(_encloses(gauge.module[0], c.scope[0]) and gauge.module[0] not in c.paths[0] for c in choices)
        ]
        inner = max(wanted, key=lambda n: len(self.gauges[n].module[0]), default=None)
        return inner is not None and all(self._agrees(n, errors[n]) for n in wanted)

    def decide(self, choices: Sequence[Choice], errors: list[float]) -> list[float]:
        """Try every way, the same in all of these choices, and keep the best."""
        ways = len(choices[0].ways)
        start = [c.chosen for c in choices]
        found = {start[0]: errors} if len(set(start)) == 1 else {}
        telling = [
            n
            for n, g in enumerate(self.gauges)
            if not any(g.module[0] in c.paths[0] or g.module[1] in c.paths[1] for c in choices)
        ]
        for way in range(ways):
            if way in found or self.runs >= _MOST_RUNS:
                continue
            for choice in choices:
                choice.chosen = way
            found[way] = self.measure()
            if self.fine(found[way], choices):
                break
        left = list(found)
        for n in telling:
            best = min(found[w][n] for w in left)
            limit = _AGREES.get(self.gauges[n].reference.meta.dtype, 1e-3)
            left = [w for w in left if found[w][n] <= max(_WORSE * best, limit)]
            if len(left) == 1:
                break
        for choice in choices:
            choice.chosen = left[0]
            choice.decided = len(left) == 1 and len(found) > 1
        return found[left[0]]

    # -- telling -------------------------------------------------------------------------------------------------------

    def told(self, errors: Sequence[float]) -> WeightMap:
        agreed = {g.module[0]: 0.0 for g in self.gauges}
        for n, gauge in enumerate(self.gauges):
            worst = agreed[gauge.module[0]]
            agreed[gauge.module[0]] = max(worst, errors[n] if self._agrees(n, errors[n]) else math.inf)
        decided = {link.a.stock.paths for c in self.draft.choices if c.decided for link in c.links}
        owners = {path: info.path for path, info, _ in self.draft.a.places()}
        made = self.draft.map()
        entries = [self._told(e, agreed, owners, decided) for e in made.entries]
        notes = list(made.notes)
        failing = self.failing(errors)
        if failing:
            first = next(n for n, g in enumerate(self.gauges) if g.module[0] == failing[0])
            gauge = self.gauges[first]
            notes.append(
                f"run with these weights, the outputs of {gauge.module[0] or 'the network'} and "
                f"{gauge.module[1] or 'the network'} are the first that differ (relative error {errors[first]:.2g}): "
                "either the networks do, or a weight there has another partner"
            )
        elif not self.gauges:
            notes.append("nothing was proven: the two runs share no module whose output could be compared")
        return replace(made, entries=tuple(entries), notes=tuple(notes))

    def _told(
        self, entry: Entry, agreed: Mapping[str, float], owners: Mapping[str, str], decided: set[tuple[str, ...]]
    ) -> Entry:
        if entry.confidence == 0.0 or not entry.reference:
            return entry
        modules = {owners[path] for path in entry.reference}
        if not any(_encloses(called, m) for called in self.called if called for m in modules) and modules != {""}:
            return entry  # nothing that holds it ran
        at = next(iter(modules)).rpartition(".")[0] if len(modules) == 1 else ""
        while at and at not in agreed:
            at = at.rpartition(".")[0]
        error = agreed.get(at, math.inf)
        if math.isfinite(error):
            place = f"output of {at}" if at else "output"
            return replace(
                entry, confidence=max(entry.confidence, 0.99), proof=f"{place} agrees to {error:.1g}", options=()
            )
        if entry.reference in decided:
            return replace(
                entry, confidence=max(entry.confidence, 0.8), proof="fits far better than the others", options=()
            )
        return entry


def _calls(trace: Trace) -> list[Record]:
    return [r for r in trace.records if r.kind is Kind.MODULE and r.phase is Phase.FORWARD]


def _gauges(first: Trace, second: Trace, modules: Mapping[str, str]) -> list[_Gauge]:
    others = {(r.path, r.nth): r for r in _calls(second)}
    found = []
    for record in _calls(first):
        partner = modules.get(record.path, "" if record.path == "" else None)
        other = None if partner is None else others.get((partner, record.nth))
        if partner is None or other is None:
            continue
        mine, theirs = record.outputs(), other.outputs()
        names = {s.name: s for s in theirs}
        for i, slot in enumerate(mine):
            twin = names.get(slot.name) or (theirs[i] if len(mine) == len(theirs) else None)
            if twin is not None and twin.meta.size == slot.meta.size and "float" in slot.meta.dtype and slot.meta.size:
                found.append(_Gauge((record.path, partner), slot, (other.path, other.nth, twin.name)))
    return found


def _signature(links: Sequence[Link]) -> Hashable:
    return tuple(sorted((link.a.role, link.a.shape) for link in links))


def _all_links(draft: Draft) -> list[Link]:
    return [*draft.links, *(link for choice in draft.choices for link in choice.links)]


def _moved(order: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return sum(i != j for i, j in enumerate(order)), order


def _encloses(module: str, path: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


def relative_error(left: Array, right: Array) -> float:
    """RMSE over RMS, after `right` was brought to the shape of `left`; infinite where the two cannot be compared."""
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
    size = float(np.sqrt(np.mean(scale * scale)))
    error = float(np.sqrt(np.mean(difference * difference)))
    return 0.0 if error == 0.0 else error / max(size, 1e-30)
