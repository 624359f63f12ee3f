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

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .hints import Pairs, as_pairs, resolve
from .pairing.calls import FUSED, CallMatcher
from .pairing.modules import ModuleMatcher
from .pairing.opnames import COMMUTATIVE, canonical_op
from .pairing.side import Module, Side, TraceLike
from .pairing.slots import named_slots, param_pairs, slots_of_calls
from .records import ModuleInfo, Record, Slot

__all__ = ("FUSED", "Matching", "ModulePair", "Pair", "TraceLike", "canonical_op", "match")


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


# -- putting it together ---------------------------------------------------------------------------------------------


def match(
    reference: TraceLike,
    candidate: TraceLike,
    *,
    hints: Pairs | None = None,
) -> Matching:
    """Pair the records of two traces of one network; whatever finds no partner is listed.

    `hints` maps paths of the reference to paths of the candidate: ``{"encoder.{i}.attn": "blocks.{i}.attention"}``,
    where ``{i}`` is any one segment or a part of one, ``*`` any one segment and ``**`` any number of them. What lies
    below a hinted module pairs only with what lies below its partner.

    >>> from twinscope.records import Kind, Manifest, ModuleInfo, Phase, Record, Slot, TensorMeta
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
    a, b = Side(reference), Side(candidate)
    first, second = ({path: m.path for path, m in side.by_path.items()} for side in (a, b))
    paired = resolve(as_pairs(hints, "mapping"), first, second)
    resolved = [(a.by_path[x], b.by_path[y]) for x, y in paired.items()]
    # Where the evidence is even, something has to give; so that it does not depend on who is the reference, the two are
    # taken in an order of their own.
    if _before(b, a):
        return _mirrored(_match(b, a, [(y, x) for x, y in resolved]))
    return _match(a, b, resolved)


def _before(a: Side, b: Side) -> bool:
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


def _match(a: Side, b: Side, hints: Sequence[tuple[Module, Module]]) -> Matching:
    modules = ModuleMatcher(a, b, hints)
    return _assemble(a, b, modules, CallMatcher(a, b, modules))


def _assemble(a: Side, b: Side, modules: ModuleMatcher, calls: CallMatcher) -> Matching:
    pairs: list[Pair] = []
    known: dict[int, int] = {}
    together = sorted([*calls.matches.values(), *calls.fused], key=lambda m: (m.a.record.index, m.b.record.index))
    for m in together:
        commutative = m.a.name == m.b.name and m.a.name in COMMUTATIVE
        slots, rest = slots_of_calls(m.a.record, m.b.record, known, m.how, commutative)
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
        for back, other in twins:
            pairs.append(Pair(back, other, m.how, m.confidence, *named_slots(back, other, names)))
    made = [
        ModulePair(x.path, found.partner.path, found.how, found.confidence, param_pairs(x, found.partner))
        for x, found in modules.found.items()
    ]
    made += [ModulePair(x.path, y.path, FUSED, 0.8) for x, y in (*modules.fused, *modules.divided)]
    for (x, y), held in calls.held.items():
        roles = {p.name: p.role for p in x.info.params}
        made.append(ModulePair(x.path, y.path, FUSED, 0.8, tuple((p, q, roles[p]) for p, q in held.items())))
    place = {m.path: m.index for m in a.modules}
    made.sort(key=lambda m: place[m.reference])
    pairs += _states(a, b, made, calls.steps)
    pairs += _losses(a, b, calls.steps)
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


def _losses(a: Side, b: Side, steps: Mapping[int, int]) -> list[Pair]:
    others = {(r.step, r.nth): r for r in b.losses}
    found = [(r, others.get((steps.get(r.step, -1), r.nth))) for r in a.losses]
    return [
        Pair(r, other, "loss", 1.0, tuple(zip(r.slots, other.slots, strict=False)))
        for r, other in found
        if other is not None
    ]


def _states(a: Side, b: Side, modules: Iterable[ModulePair], steps: Mapping[int, int]) -> list[Pair]:
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
                    pairs.append(Pair(r, other, m.how, m.confidence, *named_slots(r, other, names)))
    times = Counter(id(r) for p in pairs for r in (p.reference, p.candidate))
    return [replace(p, how=FUSED) if times[id(p.reference)] > 1 or times[id(p.candidate)] > 1 else p for p in pairs]
