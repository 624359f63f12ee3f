"""Pairing the tensors of two paired records, and the parameters of two paired modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..records import Kind, ParamInfo, Record, Slot
from .calls import FUSED
from .evidence import agrees, layout_free
from .side import Module


def _class(dtype: str) -> str:
    return "float" if "float" in dtype or "complex" in dtype else "whole"


def closeness(a: Slot, b: Slot) -> int:
    """How well two tensors go together: 3 same shape, 2 same up to permutation, 1 same size, 0 not at all."""
    if a.meta.size != b.meta.size or _class(a.meta.dtype) != _class(b.meta.dtype):
        return 0
    if a.meta.shape == b.meta.shape:
        return 3
    return 2 if layout_free(a.meta.shape) == layout_free(b.meta.shape) else 1


def _pair_slots(
    first: Sequence[Slot], second: Sequence[Slot]
) -> tuple[list[tuple[Slot, Slot]], list[Slot], list[Slot]]:
    """By name where the shapes allow it, then in order by the best fit of shapes."""
    names = {s.name: j for j, s in enumerate(second)}
    partner: dict[int, int] = {}
    for i, a in enumerate(first):
        j = names.get(a.name)
        if j is not None and closeness(a, second[j]):
            partner[i] = j
    if len(partner) < min(len(first), len(second)):
        taken = set(partner.values())
        for rank in (3, 2, 1):
            for i, a in enumerate(first):
                if i not in partner:
                    fit = next((j for j, b in enumerate(second) if j not in taken and closeness(a, b) == rank), None)
                    if fit is not None:
                        partner[i] = fit
                        taken.add(fit)
    used = set(partner.values())
    return (
        [(first[i], second[partner[i]]) for i in range(len(first)) if i in partner],
        [s for i, s in enumerate(first) if i not in partner],
        [s for j, s in enumerate(second) if j not in used],
    )


def slots_of_calls(
    a: Record, b: Record, known: Mapping[int, int], how: str, commutative: bool
) -> tuple[tuple[tuple[Slot, Slot], ...], tuple[tuple[str, Slot], ...]]:
    inputs_a, inputs_b = a.inputs(), b.inputs()
    pairs, left, right = _pair_slots(inputs_a, inputs_b)
    if commutative and len(pairs) == 2:
        (p, q), (r, s) = pairs
        if closeness(p, s) and closeness(r, q) and _crossed(known, p, q, r, s):
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
    return known[a.value] == b.value if a.value in known else agrees(a, b)


def _crossed(known: Mapping[int, int], p: Slot, q: Slot, r: Slot, s: Slot) -> bool:
    """Whether ``p + r`` on one side is ``q + s`` the other way round."""
    straight = (known.get(p.value) == q.value) + (known.get(r.value) == s.value)
    cross = (known.get(p.value) == s.value) + (known.get(r.value) == q.value)
    if straight == cross == 0:
        straight, cross = agrees(p, q) + agrees(r, s), agrees(p, s) + agrees(r, q)
    return cross > straight


def param_pairs(x: Module, y: Module) -> tuple[tuple[str, str, str], ...]:
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
    take(lambda p, q: layout_free(p.meta.shape) == layout_free(q.meta.shape) and p.meta.size > 1)
    order = {id(p): n for n, p in enumerate(x.info.params)}
    found.sort(key=lambda pair: order[id(pair[0])])
    return tuple((p.name, q.name, p.role) for p, q in found)


def named_slots(
    x: Record, y: Record, names: Mapping[str, str]
) -> tuple[tuple[tuple[Slot, Slot], ...], tuple[tuple[str, Slot], ...]]:
    others = {s.name: s for s in y.slots}
    pairs = tuple((s, others.pop(names[s.name])) for s in x.slots if names.get(s.name) in others)
    done = {id(s) for s, _ in pairs}
    rest = [("reference", s) for s in x.slots if id(s) not in done]
    return pairs, (*rest, *(("candidate", s) for s in others.values()))
