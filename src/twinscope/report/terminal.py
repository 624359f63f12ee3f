"""A report as text for a terminal: any width from 20 columns, with or without colour, with or without symbols.

Nothing is cut: what does not fit goes on in the next line, paths break after their dots, and what is left out is
counted. Text that comes out of a trace is shown with its control characters spelled out, since a trace may come from
anywhere and a terminal obeys what it is sent.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..judge import BUG_FROM
from ..records import Overall, Phase, Verdict
from .tree import MEANING, Alone, Entry, Mark, Node, Number, Place, Report, Row, Side, build, shorten

if TYPE_CHECKING:
    from ..result import Result

NARROW = 60  # columns below which words beside symbols, and tables, have no room
TREE_LINES = 40

_SYMBOLS = {
    Mark.BUG: ("✗", "X"),
    Mark.INSIDE: ("▸", ">"),
    Mark.PRECISION: ("±", "p"),
    Mark.FOLLOWS: ("↓", "v"),
    Mark.UNDECIDED: ("?", "?"),
    Mark.MISSING: ("∅", "-"),
    Mark.SKIPPED: ("·", "."),
    Mark.NOISE: ("≈", "~"),
    Mark.EXACT: ("✓", "="),
}
_STYLES = {
    Mark.BUG: "bold red",
    Mark.INSIDE: "red",
    Mark.PRECISION: "yellow",
    Mark.FOLLOWS: "yellow",
    Mark.UNDECIDED: "magenta",
    Mark.MISSING: "magenta",
    Mark.SKIPPED: "dim",
    Mark.NOISE: "green",
    Mark.EXACT: "green",
}
_VERDICT_STYLES = {Overall.SAME: "bold green", Overall.DIFFERENT: "bold red", Overall.UNDECIDED: "bold yellow"}
#: what stands for a sign where only ASCII can be shown
_ASCII = str.maketrans({"·": ":", "…": "...", "×": "x", "│": "|", "├": "|", "└": "`", "─": "-", "←": "<-", "–": "-"})
_GUIDES = ("│  ", "├─ ", "└─ ", "   ")
_PIECES = re.compile(r"[^./,_:\\-]*[./,_:\\-]|[^./,_:\\-]+")  # of a word: it may be broken after these signs


def supports_color(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that shows colours, and nobody asked for none (NO_COLOR, TERM=dumb)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return _is_tty(stream)


def supports_unicode(stream: TextIO) -> bool:
    """Whether `stream` can be sent the symbols and lines of a report."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        "".join(s for s, _ in _SYMBOLS.values()).encode(getattr(stream, "encoding", None) or "ascii")
        "".join(_GUIDES).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


def render(
    result: Result | Report, *, width: int | None = None, color: bool | None = None, unicode: bool | None = None
) -> str:
    """A result as text: the verdict, the first divergence, the tree of calls, the worst pairs, the rest.

    ::

        print(render(result, width=80))

    `width` None: the terminal's. `color` None: none, for a string may go anywhere; `supports_color` knows about a
    stream. `unicode` None: whether standard output can show symbols.
    """
    report = result if isinstance(result, Report) else build(result)
    page = Page.make(width, color, unicode)
    _header(page, report)
    if report.first is not None:
        page.heading("First divergence")
        _finding(page, report.first, report.allowance)
    if report.gaps:
        page.heading("Why undecided")
        page.bullets(report.gaps)
    _calls(page, report)
    _worst(page, report)
    _others(page, report)
    _unmatched(page, report)
    if report.notes:
        page.heading("Notes")
        page.bullets(report.notes)
    return page.text()


# -- a page of lines -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Page:
    """Lines of text, wrapped to a width."""

    width: int
    color: bool
    unicode: bool
    lines: list[Text] = field(default_factory=list)

    @classmethod
    def make(cls, width: int | None, color: bool | None, unicode: bool | None) -> Page:
        if width is None:
            width = min(shutil.get_terminal_size((100, 24)).columns, 140)
        return cls(max(width, 20), bool(color), supports_unicode(sys.stdout) if unicode is None else unicode)

    @property
    def narrow(self) -> bool:
        return self.width < NARROW

    def clean(self, text: str) -> str:
        """Text that does nothing but show itself."""
        text = text.replace("\n", " ")
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
        if not self.unicode:
            text = text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
        return text

    def part(self, text: str, style: str = "") -> Text:
        return Text(self.clean(text), style=style)

    def join(self, parts: Iterable[Text | str], between: str = "") -> Text:
        return Text(between).join(self.part(p) if isinstance(p, str) else p for p in parts)

    def add(self, text: Text | str, first: Text | str = "", rest: Text | str | None = None) -> None:
        """Wrapped lines: the first begins with `first`, the others with `rest` (by default, spaces of its width)."""
        text = self.part(text) if isinstance(text, str) else text
        first = Text(self.clean(first)) if isinstance(first, str) else first
        if rest is None:
            rest = " " * min(first.cell_len, self.width // 3)
        rest = Text(self.clean(rest)) if isinstance(rest, str) else rest
        if first.cell_len > self.width * 2 // 3:  # the text would get no room beside it
            self.lines.extend(_wrap(first, self.width, self.width))
            first = rest
        wrapped = _wrap(text, self.width - first.cell_len, self.width - rest.cell_len)
        for i, line in enumerate(wrapped):
            whole = Text().append_text(first if i == 0 else rest).append_text(line)
            whole.rstrip()
            self.lines.append(whole)

    def blank(self) -> None:
        if self.lines:
            self.lines.append(Text(""))

    def heading(self, text: str) -> None:
        self.blank()
        self.add(self.part(text, "bold"))

    def item(self, name: str, text: Text | str, indent: int = 2) -> None:
        """A name, and beside it what it is."""
        self.add(text, self.part(" " * indent + name.ljust(11), "dim"))

    def bullets(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.add(text, "  - ")

    def text(self) -> str:
        out = io.StringIO()
        console = Console(
            file=out,
            width=self.width,
            force_terminal=self.color,
            color_system="standard" if self.color else None,
            no_color=not self.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        for line in self.lines:
            console.print(line, soft_wrap=True)
        return out.getvalue().rstrip("\n")


def _wrap(text: Text, first: int, rest: int) -> list[Text]:
    """Lines of at most `first`, then `rest` cells: broken at spaces, else after a dot or the like, else anywhere."""
    first, rest = max(first, 4), max(rest, 4)
    offsets: list[int] = []
    used, room = 0, first
    for match in re.finditer(r"(\s*)(\S+)", text.plain):
        gap, word, at = cell_len(match[1]), cell_len(match[2]), match.start(2)
        if used + gap + word <= room:
            used += gap + word
            continue
        if used and (word <= rest or used + gap >= room):
            offsets.append(at)
            used, room, gap = 0, rest, 0
        used += gap
        for piece in _PIECES.findall(match[2]):
            if used + cell_len(piece) > room and used:
                offsets.append(at)
                used, room = 0, rest
            for character in piece if cell_len(piece) > room else (piece,):
                if used + cell_len(character) > room:
                    offsets.append(at)
                    used, room = 0, rest
                used += cell_len(character)
                at += len(character)
    lines = list(text.divide(offsets)) if offsets else [text]
    for line in lines:
        line.rstrip()
    return lines


# -- parts of a report -----------------------------------------------------------------------------------------------


def _header(page: Page, report: Report) -> None:
    page.add(page.join([page.part(str(report.verdict), _VERDICT_STYLES[report.verdict]), f": {report.summary}"]))
    page.blank()
    for side in report.sides:
        page.item(side.role, describe_side(side))
    counts = [f"{n} {_WORD.get(word, word)}" for word, n in report.counts.items()]
    page.item("compared", f"{report.pairs} pairs: {', '.join(counts)}" if report.pairs else "no pairs")
    if len(report.steps) > 1:
        for step, found in sorted(report.steps.items())[:8]:
            page.item(f"step {step}", ", ".join(f"{n} {_WORD.get(w, w)}" for w, n in found.items()))
        if len(report.steps) > 8:
            page.item("", f"and {len(report.steps) - 8} more steps")
    if "atol" in report.options:
        chosen = [f"{k}={report.options[k]}" for k in ("atol", "rtol", "mode") if k in report.options]
        page.item("tolerance", ", ".join(chosen))


_WORD = {"EXACT": "exact", "NOISE": "noise", "PRECISION": "precision", "BUG": "differ", "UNDECIDED": "not decided"}


def describe_side(side: Side) -> str:
    return f"{side.framework} {side.version}".strip() + f", {side.model}"


def _finding(page: Page, entry: Entry, allowance: str) -> None:
    step = f" of step {entry.step}" if entry.step else ""
    page.item("in", f"{_PASS[entry.phase]}{step}")
    for place in entry.places:
        page.item(place.role, _place(page, place))
    for cause in entry.causes or ((entry.cause,) if entry.cause else ()):
        page.item("cause", page.part(cause, "bold"))
    if entry.alone is not None:
        page.item("alone", _alone(entry.alone))
    if entry.number is not None:
        number = entry.number
        page.item("error", _error(number, allowance))
        if number.worst is not None and number.values is not None:
            at = ", ".join(map(str, number.worst))
            page.item("worst", f"[{at}]: {number.values[0]} in the reference, {number.values[1]} in the candidate")
    for remark in entry.remarks:
        page.item("note", remark)


_PASS = {
    Phase.WEIGHT: "the weights, before anything ran",
    Phase.BUFFER: "the buffers, before the step",
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.LOSS: "the loss",
    Phase.GRADIENT: "the gradients of parameters",
    Phase.STEP: "the optimizer's update",
}


def _place(page: Page, place: Place) -> Text:
    if place.where is None:
        return page.part("has no partner here", "magenta")
    parts = [page.part(place.where, "bold")]
    if place.source:
        parts.append(page.part(place.source, "cyan"))
    return page.join(parts, "  ")


def _error(number: Number, allowance: str) -> str:
    if number.error is None:
        return f"{number.slot} differs"
    text = f"{number.slot} is off by {_short(number.error)} of its scale".strip()
    if number.limit is not None:
        text += f"; {allowance} {_short(number.limit)}"
    if number.times is not None and number.times > 1:
        text += f" ({_times(number.times)} times that)"
    return text


def _alone(alone: Alone) -> str:
    """What a call came to on the reference's inputs."""
    text = f"{alone.tensor} has rho {_rho(alone.rho)} (1 is noise, a bug from {BUG_FROM:g})"
    if alone.precision:
        text += f", which is what {alone.precision} looks like"
    if alone.rho64 is not None:
        still = "still " if alone.rho64 >= BUG_FROM else ""
        text += f"; in float64 {still}{_rho(alone.rho64)}"
    return f"{text}; noise by {alone.floor}" if alone.floor else text


def _rho(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.2g}"


def _times(value: float) -> str:
    if value < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _symbol(page: Page, mark: Mark) -> str:
    return _SYMBOLS[mark][0 if page.unicode else 1]


def _calls(page: Page, report: Report) -> None:
    if not report.tree:
        return
    step = f" in step {report.step}" if len(report.steps) > 1 else ""
    page.heading(f"Calls of the reference{step}")
    nodes = shorten(report.tree, TREE_LINES)
    _legend(page, nodes)
    _draw(page, nodes, (), top=True)


def _legend(page: Page, nodes: Sequence[Node]) -> None:
    used = {n.mark for n in _walk(nodes)}
    if used <= {Mark.EXACT, Mark.NOISE} and not page.narrow:
        return
    words = max(len(m) for m in used)
    for mark in Mark:
        if mark in used:
            name = f"  {_symbol(page, mark)} {mark.value.ljust(words)}  "
            page.add(page.part(MEANING[mark], "dim"), page.part(name, _STYLES[mark]))
    page.blank()


def _walk(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _walk(node.children)


def _draw(page: Page, nodes: Sequence[Node], guides: tuple[str, ...], top: bool = False) -> None:
    # deep nesting must not take the room for what is nested
    indent = "".join(guides) if len(guides) * 3 <= page.width // 2 else f"({len(guides)}) "
    for i, node in enumerate(nodes):
        last = i == len(nodes) - 1
        branch, below = ("", "") if top else (_GUIDES[2], _GUIDES[3]) if last else (_GUIDES[1], _GUIDES[0])
        wide = len(guides) * 3 <= page.width // 2
        mark = page.part(f"{_symbol(page, node.mark)} ", _STYLES[node.mark])
        if not page.narrow:
            mark = page.part(f"{_symbol(page, node.mark)} {node.mark.value.ljust(12)}  ", _STYLES[node.mark])
        first = page.join([mark, page.part(indent + (branch if wide else ""), "dim")])
        bar = _GUIDES[0] if node.children and wide else ""
        rest = page.join([" " * mark.cell_len, page.part((indent + below if wide else "") + bar, "dim")])
        page.add(_node(page, node), first, rest)
        _draw(page, node.children, guides if top else (*guides, below))


def _node(page: Page, node: Node) -> Text:
    loud = node.mark in (Mark.BUG, Mark.MISSING, Mark.UNDECIDED)
    parts = [page.part(node.label, "bold" if loud else "")]
    if node.merged:
        return page.join([*parts, page.part(f"({_calls_word(node.hidden)})", "dim")], "  ")
    if node.type:
        parts.append(page.part(node.type, "dim"))
    if node.candidate:
        parts.append(page.part(f"candidate: {node.candidate}", "dim"))
    if node.phase is not Phase.FORWARD and node.mark not in (Mark.EXACT, Mark.NOISE, Mark.INSIDE):
        parts.append(page.part(f"in {_PLACE_WORD[node.phase]}", _STYLES[node.mark]))
    if node.number is not None and node.number.error is not None:
        text = f"off by {_short(node.number.error)}"
        if node.alone is None and node.number.times is not None:
            text += f", {_times(node.number.times)} times the limit"
        parts.append(page.part(text, _STYLES[node.mark]))
    if node.alone is not None:
        parts.append(page.part(node.alone.precision or f"rho {_rho(node.alone.rho)}", _STYLES[node.mark]))
    if node.source:
        parts.append(page.part(node.source, "cyan"))
    if node.hidden:
        parts.append(page.part(f"(+{_calls_word(node.hidden)} inside)", "dim"))
    return page.join(parts, "  ")


def _calls_word(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


_PLACE_WORD = {
    Phase.WEIGHT: "weights",
    Phase.BUFFER: "buffers",
    Phase.BACKWARD: "backward",
    Phase.LOSS: "the loss",
    Phase.GRADIENT: "gradients",
    Phase.STEP: "update",
    Phase.FORWARD: "forward",
}


_WORST = "worst element: reference | candidate"


def _worst(page: Page, report: Report) -> None:
    if not report.worst:
        return
    agreeing = all(r.mark in (Mark.EXACT, Mark.NOISE) for r in report.worst)
    page.heading(f"Largest errors, all within what {report.allowance}" if agreeing else "Worst pairs")
    header: tuple[str, ...] = ("", "pass", "where", "tensor", "error", "limit", "times", "rho", _WORST)
    rows = [_cells(page, row) for row in report.worst]
    if not any(cells[7] for cells in rows):  # nothing was judged alone
        header, *rows = (r[:7] + r[8:] for r in (header, *rows))
    left = report.worst_left
    whole = (header, *rows)
    tables = (whole, [r[:6] + r[7:] for r in whole] if len(header) > 8 else whole, [r[:-1] for r in whole])
    if not any(_table(page, table) for table in tables):
        left += max(len(rows) - _BLOCKS, 0)
        for row, cells in list(zip(report.worst, rows, strict=True))[:_BLOCKS]:
            page.add(page.part(cells[2], "bold"), page.part(f"  {cells[0]} ", _STYLES[row.mark]))
            page.add(f"{cells[1]} {cells[3]}: error {cells[4]}, limit {cells[5]}{_more(cells)}", "    ")
    if left:
        page.add(page.part(f"and {left} more (--csv FILE, or result.pairs, has them all)", "dim"), "  ")


def _table(page: Page, rows: Sequence[Sequence[str]]) -> bool:
    """Aligned columns, a header first; False, and nothing drawn, where they do not fit."""
    cleaned = [[page.clean(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cleaned, strict=True)]
    if 2 * len(widths) + sum(widths) > page.width:
        return False
    for number, row in enumerate(cleaned):
        padded = [" " * (w - cell_len(c)) for c, w in zip(row, widths, strict=True)]
        cells = [p + c if h in _RIGHT else c + p for h, c, p in zip(rows[0], row, padded, strict=True)]
        style = "dim" if number == 0 else ""
        line = page.part("  " + "  ".join(cells), style)
        line.rstrip()
        page.lines.append(line)
    return True


_RIGHT = frozenset({"error", "limit", "times", "rho"})  # columns of numbers
_BLOCKS = 4  # pairs that are drawn where a table has no room


def _more(cells: Sequence[str]) -> str:
    text = f", {cells[6]} times" if cells[6] else ""
    return text + (f", worst at {cells[-1]}" if cells[-1] else "")


def _cells(page: Page, row: Row) -> tuple[str, ...]:
    number = row.number
    step = f" {row.step}" if row.step else ""
    worst = ""
    if number.worst is not None and number.values is not None:
        worst = f"[{', '.join(map(str, number.worst))}] {number.values[0]} | {number.values[1]}"
    where = row.where if row.where == row.candidate else f"{row.where} | {row.candidate}"
    times = _times(number.times) if number.times is not None else ""
    return (
        _symbol(page, row.mark),
        f"{row.phase}{step}",
        where,
        number.slot,
        _short(number.error),
        _short(number.limit),
        times,
        _rho(row.alone.rho) if row.alone is not None and row.phase in (Phase.FORWARD, Phase.BACKWARD) else "",
        worst,
    )


def _others(page: Page, report: Report, most: int = 12) -> None:
    if not report.others:
        return
    page.heading("Other findings" if report.first else "Findings")
    for entry in report.others[:most]:
        wheres = list(dict.fromkeys(p.where for p in entry.places if p.where))
        sources = list(dict.fromkeys(p.source for p in entry.places if p.source))
        mark = {Verdict.BUG: Mark.BUG, Verdict.MISSING: Mark.MISSING, Verdict.PRECISION: Mark.PRECISION}.get(
            entry.verdict, Mark.UNDECIDED
        )
        parts = [page.part(" | ".join(wheres), "bold"), page.part(f"in {_PLACE_WORD[entry.phase]}")]
        if entry.step:
            parts.append(page.part(f"of step {entry.step}"))
        text = page.join(parts, " ")
        said = [entry.cause] if entry.cause else []
        said += [f"rho {_rho(entry.alone.rho)}"] if entry.alone is not None else []
        said += [_error(entry.number, report.allowance)] if entry.number is not None else []
        said += entry.remarks
        if said:
            text = page.join([text, ": " + "; ".join(said)])
        if sources:
            text = page.join([text, page.part(" | ".join(sources), "cyan")], "  ")
        page.add(text, page.part(f"  {_symbol(page, mark)} ", _STYLES[mark]))
    if len(report.others) > most:
        page.add(page.part(f"and {len(report.others) - most} more (--json FILE, or result.findings)", "dim"), "  ")


def _unmatched(page: Page, report: Report) -> None:
    if not report.unmatched:
        return
    page.heading("Without a partner")
    for role, found in report.unmatched.items():
        page.item(role, ", ".join(f"{n} {what.replace(' ', 's ' if n > 1 else ' ', 1)}" for what, n in found.items()))


__all__: Any = ("Page", "describe_side", "render", "supports_color", "supports_unicode")
