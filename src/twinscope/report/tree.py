"""The form between a result and what is drawn of it: what to say and in which order, not how it looks.

    Report    verdict, sides, counts, the first divergence, the tree of calls, the worst pairs, the rest
    ├── Side       what was run
    ├── Entry      a finding, with the places on both sides
    ├── Node       a call of the reference with its mark and the calls inside it
    └── Row        a pair of tensors with its numbers

Everything here is a plain value. A lowering (terminal, HTML) draws each part once and takes no decision of its own
beyond layout; escaping what comes out of a trace is its business, too, since only it knows what is dangerous there.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ..records import OUTSIDE, Choice, Kind, Manifest, Overall, Phase, Record, Verdict
from ..result import Finding, PairResult, Result, SlotDiff

if TYPE_CHECKING:
    from ..graft import Graft

#: Framework containers say nothing themselves: what matters is inside them.
CONTAINERS = frozenset({"sequential", "module_list", "module_dict"})
_CONTAINER_TYPES = frozenset(
    ("Sequential", "ModuleList", "ModuleDict", "LayerList", "LayerDict", "CellList", "CellDict", "SequentialCell")
)
#: Calls nested more deeply than this are drawn at this depth: nobody could read them, and recursion stays bounded.
DEPTH_LIMIT = 64


class Mark(Choice):
    """What is said of one call. `BUG` is where something happens; `INSIDE` and `FOLLOWS` are its surroundings."""

    BUG = "BUG"
    INSIDE = "bug inside"
    PRECISION = "precision"
    FOLLOWS = "inherited"
    UNDECIDED = "undecided"
    MISSING = "no partner"
    SKIPPED = "not compared"
    NOISE = "noise"
    EXACT = "exact"


#: Marks in words, for a legend.
MEANING: Mapping[Mark, str] = {
    Mark.EXACT: "equal bit for bit",
    Mark.NOISE: "differs no more than rounding explains",
    Mark.PRECISION: "same mathematics, another precision",
    Mark.BUG: "agreeing inputs, differing outputs: it happens here",
    Mark.INSIDE: "it happens in a call inside this one",
    Mark.FOLLOWS: "differs because what it was given differs",
    Mark.UNDECIDED: "could not be decided",
    Mark.MISSING: "the candidate has no such call",
    Mark.SKIPPED: "nothing was kept of it on one side or both",
}
AGREEING = frozenset({Mark.EXACT, Mark.NOISE})
QUIET = AGREEING | {Mark.FOLLOWS, Mark.SKIPPED}
_LOUD = frozenset({Mark.BUG, Mark.INSIDE})
_JUDGED = frozenset({Mark.BUG, Mark.PRECISION, Mark.UNDECIDED})
_ORDER = {mark: i for i, mark in enumerate(Mark)}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    role: str  # "reference", "candidate"
    framework: str
    version: str
    model: str

    @classmethod
    def of(cls, role: str, manifest: Manifest) -> Side:
        return cls(role, manifest.framework, manifest.versions.get(manifest.framework, ""), manifest.model)


@dataclass(frozen=True, slots=True)
class Place:
    """Where on one side; `where` is None when that side has no partner."""

    role: str
    where: str | None
    source: str | None  # "model.py:41"


@dataclass(frozen=True, slots=True)
class Number:
    """An error held against what may be; `times` is None where a ratio would mean nothing."""

    slot: str
    error: float | None
    limit: float | None
    times: float | None
    worst: tuple[int, ...] | None = None  # the index of the worst element
    values: tuple[str, str] | None = None  # there: the reference's and the candidate's


@dataclass(frozen=True, slots=True)
class Alone:
    """What a call came to on the reference's inputs, in units of the noise."""

    tensor: str
    rho: float
    rho64: float | None
    floor: str  # how the noise was measured
    precision: str  # the mode that it looks like, where it is one

    @classmethod
    def of(cls, made: Graft | None) -> Alone | None:
        return None if made is None else cls(made.tensor, made.rho, made.rho64, made.floor, made.precision)


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding."""

    verdict: Verdict
    phase: Phase
    step: int
    places: tuple[Place, Place]
    number: Number | None
    remarks: tuple[str, ...]  # what the message says beyond the numbers
    cause: str | None
    alone: Alone | None = None
    causes: tuple[str, ...] = ()  # in words, with what a replay without each came to


@dataclass(frozen=True, slots=True)
class Node:
    """A call of the reference, with the calls made inside it; or, with `merged`, several calls in one line."""

    mark: Mark
    label: str
    type: str = ""
    path: str = ""
    phase: Phase = Phase.FORWARD  # that the mark is about
    candidate: str | None = None  # the partner, where it is called otherwise
    source: str | None = None
    number: Number | None = None
    alone: Alone | None = None
    hidden: int = 0  # calls inside that are not drawn, all as good as this one's mark says
    merged: bool = False
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """The worst pair of tensors of a pair of calls."""

    mark: Mark
    phase: Phase
    step: int
    where: str
    candidate: str
    number: Number
    note: str
    alone: Alone | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything there is to draw."""

    verdict: Overall
    summary: str
    sides: tuple[Side, Side]
    counts: Mapping[str, int]
    pairs: int
    allowance: str  # what a limit is: "noise explains" or "the tolerance allows"
    first: Entry | None
    others: tuple[Entry, ...]
    step: int  # that the tree shows
    steps: Mapping[int, Mapping[str, int]]  # step -> mark or verdict -> pairs
    tree: tuple[Node, ...]
    worst: tuple[Row, ...]
    worst_left: int  # rows that were left out
    unmatched: Mapping[str, Mapping[str, int]]  # role -> what -> how many
    notes: tuple[str, ...]
    gaps: tuple[str, ...] = ()  # what keeps an UNDECIDED from being more
    options: Mapping[str, object] = field(default_factory=dict)


_SUMMARY = {
    Overall.SAME: "the two networks compute the same, as far as they were compared",
    Overall.DIFFERENT: "the two networks do not compute the same",
    Overall.UNDECIDED: "nothing was seen to differ, but not everything could be compared",
}


def _summary(result: Result) -> str:
    bases = {d.basis for p in result.pairs for d in p.diffs} - {"none"}
    if result.verdict is Overall.SAME and bases == {"stats"}:
        return "by their statistics the two networks compute the same; the order of values was not compared"
    undecided = next((f for f in result.findings if f.verdict is Verdict.UNDECIDED), None)
    if result.verdict is Overall.UNDECIDED and undecided is not None:
        return undecided.cause or undecided.message
    return _SUMMARY[result.verdict]


def build(result: Result, *, fold: bool = True, worst: int = 8) -> Report:
    """What there is to say of a result. `fold`: a layer of the framework's own is one line, unless the bug is in it.

    ::

        report = build(result)
        print(report.verdict, report.first.places[0].where)
    """
    marks = _Marks(result)
    step = result.first_divergence.step if result.first_divergence else min((s for s in marks.steps), default=0)
    judged = [p for p in result.pairs if p.worst is not None and p.worst.error is not None]
    differing = [p for p in judged if p.verdict not in (Verdict.EXACT, Verdict.NOISE)]
    # of two networks that agree, what came closest is of interest; exact pairs are not
    candidates = differing or [p for p in judged if p.verdict is Verdict.NOISE]
    candidates = _distinct(sorted(candidates, key=lambda p: (_ORDER[marks.of_pair(p)], -_badness(p))))
    shown = candidates[: worst if differing else min(worst, 3)]
    undecided = result.verdict is Overall.UNDECIDED
    return Report(
        verdict=result.verdict,
        summary=_summary(result),
        sides=(Side.of("reference", result.reference), Side.of("candidate", result.candidate)),
        counts={k: n for k, n in result.counts().items() if n},
        pairs=len(result.pairs),
        allowance="the tolerance allows" if "atol" in result.options else "noise explains",
        first=_entry(result.first_divergence) if result.first_divergence else None,
        others=tuple(_entry(f) for f in result.findings if f is not result.first_divergence),
        step=step,
        steps=marks.steps,
        tree=_tree(result, marks, step, fold),
        worst=tuple(_row(p, marks) for p in shown),
        worst_left=len(candidates) - len(shown),
        unmatched={
            role: _kinds(records)
            for role, records in (
                ("reference", result.unmatched.reference),
                ("candidate", result.unmatched.candidate),
            )
            if records
        },
        notes=() if undecided else result.notes,
        gaps=result.notes if undecided else (),
        options=dict(result.options),
    )


# -- marks -----------------------------------------------------------------------------------------------------------


class _Marks:
    """The mark of every record of the reference, from its pair's verdict and from the findings."""

    def __init__(self, result: Result) -> None:
        self.pairs = {p.reference.index: p for p in result.pairs}
        self.found = {f.pair.reference.index for f in result.findings if f.pair and f.verdict is Verdict.BUG}
        self.missing = {r.index for r in result.unmatched.reference}
        self.steps: dict[int, Counter[str]] = defaultdict(Counter)
        for pair in result.pairs:
            self.steps[pair.reference.step][str(pair.verdict)] += 1

    def of_pair(self, pair: PairResult) -> Mark:
        return self.of(pair.reference)

    def of(self, record: Record) -> Mark:
        if record.index in self.missing:
            return Mark.MISSING
        pair = self.pairs.get(record.index)
        if pair is None:
            return Mark.SKIPPED
        if pair.verdict is Verdict.BUG:
            return Mark.BUG if record.index in self.found else Mark.FOLLOWS
        if pair.inherits and record.index not in self.found:
            return Mark.FOLLOWS
        if pair.verdict is Verdict.UNDECIDED and all(d.basis == "none" for d in pair.diffs):
            return Mark.SKIPPED
        return Mark[pair.verdict.name]


def _distinct(pairs: Iterable[PairResult]) -> list[PairResult]:
    """Without those whose worst tensors were listed: a layer and the op in it return the very same tensor."""
    seen: set[tuple[int, int, int]] = set()
    found = []
    for pair in pairs:
        assert pair.worst is not None
        key = (pair.reference.step, pair.worst.reference.value, pair.worst.candidate.value)
        if key not in seen:
            seen.add(key)
            found.append(pair)
    return found


def _badness(pair: PairResult) -> float:
    number = _number(pair.worst) if pair.worst is not None else None
    if number is None or number.times is None:
        return math.inf if pair.verdict is Verdict.BUG else -1.0
    return number.times


# -- findings and rows -----------------------------------------------------------------------------------------------


def _number(diff: SlotDiff) -> Number:
    error, limit, m = diff.error, diff.limit, diff.metrics
    times = None
    if error is not None and limit is not None and 0 < limit < math.inf and error < math.inf:
        times = error / limit
    values = None
    if m is not None and m.worst is not None:
        values = (_value(m.worst_reference), _value(m.worst_candidate))
    return Number(diff.reference.name, error, limit, times, m.worst if m is not None else None, values)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value)


def _entry(finding: Finding) -> Entry:
    pair = finding.pair
    diff = pair.worst if pair is not None else None
    number = _number(diff) if diff is not None else None
    if number is None and "error" in finding.numbers:
        error, limit = finding.numbers["error"], finding.numbers.get("limit")
        number = Number("", error, limit, error / limit if limit else None)
    parts = finding.message.split("; ")
    if finding.alone is not None and finding.alone.between is False and parts[0].startswith("on the reference's"):
        parts = []  # said by its numbers
    remarks = tuple(part for part in parts if part and not _repeats(part, number))
    sources = tuple(str(s) if s is not None else None for s in finding.source)
    return Entry(
        finding.verdict,
        finding.phase,
        finding.step,
        (Place("reference", finding.reference, sources[0]), Place("candidate", finding.candidate, sources[1])),
        number,
        remarks,
        finding.cause,
        Alone.of(finding.alone),
        tuple(str(c) for c in ([c for c in finding.causes if c.proven][:1] or finding.causes)),
    )


def _repeats(part: str, number: Number | None) -> bool:
    """Whether this part of a message says what the numbers say."""
    if number is None:
        return False
    if number.error is not None and " off by " in part:
        return True
    return number.worst is not None and part.startswith("worst at ")


def _row(pair: PairResult, marks: _Marks) -> Row:
    worst = pair.worst
    assert worst is not None
    a = pair.reference
    return Row(
        marks.of_pair(pair),
        a.phase,
        a.step,
        a.where,
        pair.candidate.where,
        _number(worst),
        worst.note,
        Alone.of(pair.graft),
    )


def _kinds(records: Iterable[Record]) -> dict[str, int]:
    words = {Kind.MODULE: "module", Kind.OP: "op", Kind.STATE: "state"}
    return dict(Counter(f"{words[r.kind]} ({r.phase})" for r in records))


# -- the tree of calls -----------------------------------------------------------------------------------------------

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Call(Generic[N]):
    """A call and what was made of the calls inside it."""

    record: Record
    parent: Record | None
    inside: tuple[N, ...]


def forest(records: Sequence[Record], make: Callable[[Call[N]], N | None]) -> tuple[N, ...]:
    """Calls of one step as a forest, in the order in which they began; `make` turns each into a node, or None.

    `records` are forward records, or backward ones. A parent that was not recorded is skipped over by its id only, so
    its children stand at the top. Ids that make no sense (a trace need not be honest) cannot make a cycle: a call began
    after the one it was made in, or it has no parent.
    """
    by_call: dict[int, Record] = {}
    for record in records:
        by_call.setdefault(record.call_id, record)
    depth: dict[int, int] = {}
    parent_of: dict[int, int | None] = {}
    for call in sorted(by_call):
        parent = by_call[call].parent_id
        if parent is None or parent not in by_call or parent >= call:
            parent = None
        elif depth[parent] >= DEPTH_LIMIT:
            parent = parent_of[parent]
        parent_of[call] = parent
        depth[call] = 0 if parent is None else depth[parent] + 1
    inside: dict[int | None, list[N]] = defaultdict(list)
    for call in sorted(by_call, reverse=True):
        parent = parent_of[call]
        children = tuple(reversed(inside.pop(call, [])))
        node = make(Call(by_call[call], None if parent is None else by_call[parent], children))
        if node is not None:
            inside[parent].append(node)
    return tuple(reversed(inside[None]))


def label(record: Record, parent: Record | None) -> str:
    """How a call is named inside its parent: the rest of the path, or the op with parentheses."""
    if record.kind is Kind.OP:
        name = f"{record.op}()"
        return f"{name} outside the model" if record.path == OUTSIDE else name
    path = _below(record.path, parent.path if parent is not None else "") or "(root)"
    return path if record.nth == 0 else f"{path} (call {record.nth + 1})"


def is_layer(record: Record, kinds: Mapping[str, str | None]) -> bool:
    """Whether a call is of one of the framework's own layers, whose inside is the framework's business."""
    if record.kind is not Kind.MODULE or not record.builtin or not record.path:
        return False
    return kinds.get(record.path) not in CONTAINERS and record.op not in _CONTAINER_TYPES


def _tree(result: Result, marks: _Marks, step: int, fold: bool) -> tuple[Node, ...]:
    records = [p.reference for p in result.pairs] + list(result.unmatched.reference)
    records += [p.reference for p in result.matching.pairs]
    known = {r.index: r for r in records if r.step == step}
    calls = [r for r in known.values() if r.kind is not Kind.STATE]
    forward = [r for r in calls if r.phase is Phase.FORWARD] or calls
    also: dict[int, list[Record]] = defaultdict(list)
    for record in calls:
        also[record.call_id].append(record)
    states: dict[str, list[Record]] = defaultdict(list)
    for record in known.values():
        if record.kind is Kind.STATE:
            states[record.path].append(record)
    kinds = {m.path: m.kind for m in result.reference.modules}

    def make(call: Call[Node]) -> Node:
        record = call.record
        about = [*also[record.call_id]]
        if record.kind is Kind.MODULE and record.nth == 0:
            about += states[record.path]
        mark, cause = _worst_of(record, about, marks)
        children = call.inside
        inner = min((c.mark for c in children), key=_ORDER.__getitem__, default=Mark.EXACT)
        if mark is not Mark.BUG and inner in (Mark.BUG, Mark.INSIDE):
            mark = Mark.INSIDE
        if fold and is_layer(record, kinds) and mark is not Mark.INSIDE and inner not in (Mark.BUG, Mark.INSIDE):
            children = ()
        pair = marks.pairs.get(cause.index)
        diff = pair.worst if pair is not None else None
        source = record.source if mark in (Mark.BUG, Mark.MISSING) else None
        return Node(
            mark=mark,
            label=label(record, call.parent),
            type="" if record.kind is Kind.OP else record.op,
            path=record.path,
            phase=cause.phase,
            candidate=_renamed(call, marks),
            source=str(source) if source is not None else None,
            number=_number(diff) if diff is not None and mark is Mark.BUG else None,
            alone=Alone.of(pair.graft) if pair is not None and mark in _JUDGED else None,
            children=children,
        )

    return forest(forward, make)


def _renamed(call: Call[Node], marks: _Marks) -> str | None:
    """What the partner is called, where that is news: not when the call above already says it."""
    pair = marks.pairs.get(call.record.index)
    if pair is None:
        return None
    record, partner = pair.reference, pair.candidate
    if record.kind is not partner.kind:
        return partner.where
    if record.kind is Kind.OP:
        return f"{partner.op}()" if partner.op != record.op else None
    above = marks.pairs.get(call.parent.index) if call.parent is not None else None
    if above is not None and _below(record.path, above.reference.path) == _below(partner.path, above.candidate.path):
        return None
    return partner.path or "(root)" if partner.path != record.path else None


def _below(path: str, above: str) -> str:
    return path[len(above) + 1 :] if above and path.startswith(f"{above}.") else path


def _worst_of(record: Record, about: Sequence[Record], marks: _Marks) -> tuple[Mark, Record]:
    """The mark of a call from all that was recorded of it; on a tie the forward pass speaks."""
    own = marks.of(record)
    found = [(own, record)]
    for other in about:
        mark = marks.of(other)
        if other is not record and (mark not in (Mark.MISSING, Mark.SKIPPED) or own in (Mark.MISSING, Mark.SKIPPED)):
            found.append((mark, other))
    if len(found) > 1 and own is Mark.SKIPPED:
        found = [f for f in found if f[0] is not Mark.SKIPPED] or found
    return min(found, key=lambda f: _ORDER[f[0]])


# -- making it shorter -----------------------------------------------------------------------------------------------


def lines(nodes: Sequence[Node]) -> int:
    """How many lines a forest takes."""
    return sum(1 + lines(n.children) for n in nodes)


def shorten(nodes: tuple[Node, ...], limit: int) -> tuple[Node, ...]:
    """The same forest in about `limit` lines: what agrees goes first, and every line that stands for more says so.

    Where there are too many bugs for that, the first ones are kept, in at most three times `limit` lines.
    """
    for marks, alike in ((AGREEING, None), (QUIET, None), (QUIET, True), (frozenset(Mark) - _LOUD, False)):
        if lines(nodes) <= limit:
            return nodes
        nodes = tuple(_collapse(n, marks) for n in nodes)
        if alike is not None:
            nodes = _merge(nodes, marks, alike)
    kept, _ = _cut(nodes, 3 * limit)
    return kept


def _collapse(node: Node, quiet: frozenset[Mark]) -> Node:
    if not node.children:
        return node
    if _all_in(node, quiet):
        return replace(node, children=(), hidden=node.hidden + _calls(node.children))
    return replace(node, children=tuple(_collapse(c, quiet) for c in node.children))


def _merge(nodes: tuple[Node, ...], marks: frozenset[Mark], alike: bool) -> tuple[Node, ...]:
    """Three or more neighbours with these marks become one line; `alike`: only if they say the same."""
    found: list[Node] = []
    run: list[Node] = []

    def close() -> None:
        found.extend(run if len(run) < 3 else [_merged(run)])
        run.clear()

    for node in nodes:
        if node.children or node.mark not in marks:
            close()
            found.append(replace(node, children=_merge(node.children, marks, alike)))
            continue
        same = not run or node.mark is run[0].mark or {node.mark, run[0].mark} <= AGREEING
        if alike and not same:
            close()
        run.append(node)
    close()
    return tuple(found)


def _merged(run: Sequence[Node]) -> Node:
    """One line for several calls, with the worst of their marks."""
    worst = min((n.mark for n in run), key=_ORDER.__getitem__)
    count = sum(1 + n.hidden - n.merged for n in run)
    return Node(worst, f"{run[0].label} to {run[-1].label}", hidden=count, merged=True)


def _cut(nodes: tuple[Node, ...], room: int) -> tuple[tuple[Node, ...], int]:
    """The first `room` lines, and how many are left of it; what is cut is one line that counts it."""
    kept: list[Node] = []
    for i, node in enumerate(nodes):
        if room <= 1:
            rest = nodes[i:]
            count = sum(1 - n.merged + n.hidden + _calls(n.children) for n in rest)
            worst = min((n.mark for n in rest), key=_ORDER.__getitem__)
            kept.append(Node(worst, f"{rest[0].label} and what follows", hidden=count, merged=True))
            return tuple(kept), 0
        children, room = _cut(node.children, room - 1)
        kept.append(replace(node, children=children))
    return tuple(kept), room


def _all_in(node: Node, marks: frozenset[Mark]) -> bool:
    return node.mark in marks and all(_all_in(c, marks) for c in node.children)


def _calls(nodes: Sequence[Node]) -> int:
    return sum(1 - n.merged + n.hidden + _calls(n.children) for n in nodes)
