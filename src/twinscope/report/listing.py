"""A trace as text: the tree of its calls with shapes, dtypes, statistics and lines of code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from .. import patterns
from ..errors import OptionError
from ..records import Kind, Phase, Record, Slot
from ..store import Trace
from .terminal import Page, describe_side
from .tree import Call, Side, forest, is_layer, label

_GUIDES = ("│  ", "├─ ", "└─ ", "   ")


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    record: Record
    children: tuple[_Line, ...]
    folded: int


def render_trace(
    trace: Trace,
    *,
    step: int | None = None,
    phase: str | Phase = Phase.FORWARD,
    path: str | None = None,
    ops: bool = False,
    slots: bool = False,
    fold: bool = True,
    width: int | None = None,
    color: bool | None = None,
    unicode: bool | None = None,
) -> str:
    """What a trace holds, as a tree of calls; see `twinscope show --help` for what the options do.

    ::

        print(render_trace(Trace.open("runs/torch"), path="encoder.**"))
    """
    wanted = Phase.parse(phase, "phase")
    page = Page.make(width, color, unicode)
    manifest = trace.manifest
    page.item("run", describe_side(Side.of("", manifest)), 0)
    page.item("holds", _holds(trace), 0)
    state = "complete" if manifest.complete else "incomplete: the run did not end in order"
    page.item("state", state if manifest.error is None else f"{state}; the run raised {manifest.error}", 0)
    for note in manifest.notes:
        page.item("note", note, 0)
    if step is not None and step not in trace.steps:
        have = ", ".join(map(str, trace.steps[:20])) or "none"
        raise OptionError(f"step {step} is not in this trace", hint=f"it has steps {have}")
    kinds = {m.path: m.kind for m in manifest.modules}
    for number in trace.steps if step is None else (step,):
        records = [r for r in trace.records if r.step == number and r.phase is wanted]
        if path is not None:
            records = [r for r in records if patterns.matches(path, r.path)]
        page.heading(f"Step {number}, {wanted}")
        if not records:
            page.add(page.part("  nothing" + (f" under {path}" if path else ""), "dim"))
        elif records[0].kind is Kind.STATE:
            _states(page, records, slots)
        else:
            lines = forest(records, partial(_line, ops=ops, fold=fold, kinds=kinds))
            _draw(page, lines, (), slots, top=True)
            if all(r.kind is Kind.OP for r in records) and not ops:
                page.add(page.part("  only ops here; --ops shows them", "dim"))
    return page.text()


def _holds(trace: Trace) -> str:
    kinds = Counter(str(r.kind) for r in trace.records)
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "nothing"
    steps = f"{len(trace.steps)} step{'s' if len(trace.steps) != 1 else ''}"
    kept = len(trace.kept)
    return f"{len(trace.records)} records ({counts}) of {steps}; {kept} tensors kept whole"


def _line(call: Call[_Line], ops: bool, fold: bool, kinds: dict[str, str | None]) -> _Line | None:
    record = call.record
    if record.kind is Kind.OP and not ops:
        return None
    folded = 0
    children = call.inside
    if fold and children and is_layer(record, kinds):
        folded, children = sum(_size(c) for c in children), ()
    return _Line(label(record, call.parent), record, children, folded)


def _size(line: _Line) -> int:
    return 1 + line.folded + sum(_size(c) for c in line.children)


def _draw(page: Page, lines: Sequence[_Line], guides: tuple[str, ...], slots: bool, top: bool = False) -> None:
    # deep nesting must not take the room for what is nested
    room = len(guides) * 3 <= page.width // 2
    indent = "".join(guides) if room else f"({len(guides)}) "
    for i, line in enumerate(lines):
        last = i == len(lines) - 1
        branch, below = ("", "") if top else (_GUIDES[2], _GUIDES[3]) if last else (_GUIDES[1], _GUIDES[0])
        first = page.part(indent + (branch if room else ""), "dim")
        bar = _GUIDES[0] if line.children and room else ""
        rest = page.part((indent + below if room else "") + bar, "dim")
        page.add(_call(page, line, slots), first, rest)
        if slots:
            for slot in line.record.slots:
                more = page.join([rest, page.part("    " if bar else "  ")])
                page.add(_slot(page, slot), more, page.join([more, "  "]))
        _draw(page, line.children, guides if top else (*guides, below), slots)


def _call(page: Page, line: _Line, slots: bool) -> Text:
    record = line.record
    parts = [page.part(line.text, "bold" if record.kind is Kind.MODULE else "")]
    if record.kind is Kind.MODULE:
        parts.append(page.part(record.op, "dim"))
    if record.failed:
        parts.append(page.part("raised", "bold red"))
    if not slots:
        # what a call is known by: what comes out of it; of a backward record, what goes in
        shown = record.outputs() or record.slots
        parts += [_tensor(page, s, "" if len(shown) == 1 and s.name == "out" else f"{s.name} ") for s in shown[:3]]
        if len(shown) > 3:
            parts.append(page.part(f"and {len(shown) - 3} more", "dim"))
    if record.source is not None:
        parts.append(page.part(str(record.source), "cyan"))
    if line.folded:
        parts.append(page.part(f"({line.folded} calls inside)", "dim"))
    return page.join(parts, "  ")


def _slot(page: Page, slot: Slot) -> Text:
    return _tensor(page, slot, f"{slot.name}  ")


def _tensor(page: Page, slot: Slot, name: str) -> Text:
    shape = "x".join(map(str, slot.meta.shape)) or "scalar"
    parts = [page.part(f"{name}{shape} {slot.meta.dtype}")]
    stats = slot.stats
    if stats is not None:
        numbers = f"min {stats.min:.3g} max {stats.max:.3g} mean {stats.mean:.3g} std {stats.std:.3g}"
        parts.append(page.part(numbers, "dim"))
        bad = [f"{n} {word}" for n, word in ((stats.nan, "NaN"), (stats.inf, "Inf")) if n]
        if bad:
            parts.append(page.part(", ".join(bad), "bold red"))
    if slot.kept:
        parts.append(page.part("kept", "green"))
    elif stats is None:
        parts.append(page.part("not kept", "dim"))
    return page.join(parts, "  ")


def _states(page: Page, records: Iterable[Record], slots: bool) -> None:
    for record in sorted(records, key=lambda r: r.index):
        head = page.join([page.part(record.path or "(root)", "bold"), page.part(record.op, "dim")], "  ")
        page.add(head)
        for slot in record.slots:
            page.add(_slot(page, slot), "   ", "     ")
