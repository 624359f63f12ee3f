"""What `lint` found as text for a terminal: a table of what differs where, then the lines and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from ..explain.spelling import shown
from .terminal import Page

if TYPE_CHECKING:
    from ..explain.linting import LintFinding, LintReport

_HEADER = ("", "layer", "kind", "setting", "reference", "candidate", "changes")
_SIDES = ("reference", "candidate")


def render_lint(
    report: LintReport,
    *,
    width: int | None = None,
    color: bool | None = None,
    unicode: bool | None = None,
    brief: bool = False,
) -> str:
    """A report of `lint` as text: what differs, a row for each setting, and what to write. `brief`: the first line.

    ::

        print(render_lint(report, width=80))
    """
    page = Page.make(width, color, unicode)
    word, style, summary = _summary(report)
    page.add(page.join([page.part(word, style), f": {summary}"]))
    if brief:
        return page.text()
    page.blank()
    for name, framework, model in zip(_SIDES, report.frameworks, report.models, strict=True):
        page.item(name, f"{framework}, {model}")
    groups = report.groups()
    if groups:
        page.heading("Settings that differ")
        _table(page, groups)
        page.heading("Where, and what to write")
        for group in groups:
            first, *rest = report.told_of(group)
            page.add(page.part(first, "bold"), "  ")
            for line in rest:
                page.add(line.strip(), "      ")
    if any(report.unpaired):
        page.heading("Not compared, for want of a partner")
        for name, paths in zip(_SIDES, report.unpaired, strict=True):
            if paths:
                more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
                page.item(name, ", ".join(p or "(root)" for p in paths[:8]) + more)
    if report.notes:
        page.heading("Notes")
        page.bullets(report.notes)
    return page.text()


def _summary(report: LintReport) -> tuple[str, str, str]:
    pairs = f"{report.compared} pair{'' if report.compared == 1 else 's'} of layers"
    if not report.compared and not report.findings:
        return "UNDECIDED", "bold yellow", "nothing could be compared"
    if not report.findings:
        return "SAME", "bold green", f"nothing differs in what {pairs} were told"
    suspected = sum(f.suspected for f in report.findings)
    sure = len(report.findings) - suspected
    counts = [f"{sure} differ"] if sure else []
    counts += [f"{suspected} suspected"] if suspected else []
    return "DIFFERENT", "bold red" if sure else "bold yellow", f"settings of {pairs}: {', '.join(counts)}"


def _table(page: Page, groups: Sequence[Sequence[LintFinding]]) -> None:
    rows = [tuple(page.clean(cell) for cell in row) for row in (_HEADER, *map(_cells, groups))]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if 2 * len(widths) + sum(widths) <= page.width:
        for number, row in enumerate(rows):
            padded = (cell + " " * (w - cell_len(cell)) for cell, w in zip(row, widths, strict=True))
            page.add(page.part("  ".join(padded).rstrip(), "" if number else "dim"), "  ", "      ")
        return
    for mark, where, kind, setting, reference, candidate, changes in rows[1:]:
        page.add(page.part(f"{where} ({kind})", "bold"), f"  {mark or ' '} ")
        page.add(f"{setting}: {reference} / {candidate}; changes {changes}", "      ")


def _cells(group: Sequence[LintFinding]) -> tuple[str, ...]:
    first = group[0]
    a, b = first.reference.path or "(root)", first.candidate.path or "(root)"
    where = a if a == b else f"{a} | {b}"
    values = [
        told.layer.rpartition(".")[2] if first.attribute == "kind" else shown(told.value)
        for told in (first.reference, first.candidate)
    ]
    return (
        "?" if first.suspected else "",
        where + (f" x{len(group)}" if len(group) > 1 else ""),
        first.kind,
        first.attribute,
        *values,
        _CHANGES[str(first.effect)],
    )


_CHANGES = {
    "forward": "the forward pass",
    "training": "training only",
    "backward": "gradients only",
    "cosmetic": "nothing once weights are copied",
}
