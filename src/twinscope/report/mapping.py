"""A weight map as text for a terminal: what becomes of what, and what a person still has to decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from ..weights.transforms import describe
from .terminal import Page

if TYPE_CHECKING:
    from ..weights.weightmap import Entry, Held, WeightMap

_HEADER = ("reference", "candidate", "transform", "why", "sure")


def render_map(
    mapping: WeightMap,
    *,
    width: int | None = None,
    color: bool | None = None,
    unicode: bool | None = None,
    brief: bool = False,
) -> str:
    """A map as text: whether it is complete, a row for each entry, and what is left over. `brief`: the first line.

    ::

        print(render_map(mapping, width=80))
    """
    page = Page.make(width, color, unicode)
    first, style = ("COMPLETE", "bold green") if mapping.complete else ("INCOMPLETE", "bold yellow")
    page.add(page.join([page.part(first, style), f": {mapping.summary}"]))
    if brief:
        return page.text()
    page.blank()
    for name, framework, model in zip(("reference", "candidate"), mapping.frameworks, mapping.models, strict=True):
        page.item(name, f"{framework}, {model}")
    if mapping.entries:
        page.heading("What becomes of what")
        _entries(page, mapping.entries)
    if mapping.unsure:
        page.heading("Not sure")
        page.bullets(_question(entry) for entry in mapping.unsure)
        page.add('Decide with --hints "PATH IN REFERENCE=PATH IN CANDIDATE", or let --inputs prove it.', "  ")
    _left(page, mapping)
    if mapping.notes:
        page.heading("Notes")
        page.bullets(mapping.notes)
    return page.text()


def _entries(page: Page, entries: Sequence[Entry]) -> None:
    rows = [tuple(page.clean(cell) for cell in row) for row in (_HEADER, *map(_cells, entries))]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if 2 * len(widths) + sum(widths) <= page.width:
        for number, row in enumerate(rows):
            padded = (cell + " " * (w - cell_len(cell)) for cell, w in zip(row, widths, strict=True))
            page.add(page.part("  ".join(padded).rstrip(), "" if number else "dim"), "  ", "      ")
        return
    for reference, candidate, *rest in rows[1:]:
        page.add(page.part(f"{reference} -> {candidate}", "bold"), "  ")
        page.add("; ".join(rest), "      ")


def _cells(entry: Entry) -> tuple[str, ...]:
    return (
        " + ".join(entry.reference) or "(nothing)",
        " + ".join(entry.candidate) or "(nothing)",
        describe(entry.transform) or ("rename" if entry.reference != entry.candidate else "as is"),
        "; ".join(part for part in (entry.why, entry.proof) if part),
        f"{entry.confidence:.2f}",
    )


def _question(entry: Entry) -> str:
    reference, candidate, _, why, _ = _cells(entry)
    others = f"; it could also be {', '.join(entry.options)}" if entry.options else ""
    return f"{reference} -> {candidate} ({why}){others}"


def _left(page: Page, mapping: WeightMap) -> None:
    sides = (
        ("reference", mapping.unmatched_reference, mapping.skipped_reference),
        ("candidate", mapping.unmatched_candidate, mapping.skipped_candidate),
    )
    if any(unmatched for _, unmatched, _ in sides):
        page.heading("Without a partner")
        for role, unmatched, _ in sides:
            for held in unmatched:
                page.item(role, f"{held} {held.dtype} ({_kind(held)})")
    if any(skipped for _, _, skipped in sides):
        page.heading("Skipped")
        for role, _, skipped in sides:
            if skipped:
                page.item(role, ", ".join(skipped))


def _kind(held: Held) -> str:
    kind = "buffer" if held.buffer else "parameter" if held.trainable else "frozen parameter"
    return kind if held.needed else f"{kind}, not needed"
