"""Tables as the documents of TroubleShooter show them: boxed, centred, with a title; and the same rows as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Table(str, Generic[R]):
    """The text of a table, as the documents have it, with what stands behind it as `result`.

    >>> table = Table("+--+", [1, 2])
    >>> print(table)
    +--+
    >>> table.result
    [1, 2]
    """

    __slots__ = ("result",)
    result: R

    def __new__(cls, text: str, result: R) -> Table[R]:
        made = super().__new__(cls, text)
        made.result = result
        return made


def boxed(title: str | None, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A boxed table.

    >>> print(boxed("all", ["name", "n"], [["a", 10]]))
    +-----------+
    |    all    |
    +------+----+
    | name | n  |
    +------+----+
    |  a   | 10 |
    +------+----+
    """
    cells, widths, inner = _laid_out(title, header, rows)
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    lines = [] if title is None else ["+" + "-" * inner + "+", "| " + _centred(title, inner - 2) + " |"]
    body = ["| " + " | ".join(_centred(c, w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([*lines, rule, body[0], rule, *body[1:], rule])


def ruled(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as the document of api_dump_compare shows it: the title on its own, cells of many lines below each other.

    >>> print(ruled("all of it", ["name", "n"], [["a", 10]]))
    all of it
    <BLANKLINE>
    | name | n  |
    |------|----|
    |  a   | 10 |
    """
    cells, widths, _ = _laid_out(title, header, rows)
    lines = [title, "", _row(cells[0], widths), "|" + "|".join("-" * (w + 2) for w in widths) + "|"]
    for row in cells[1:]:
        parts = [cell.split("\n") for cell in row]
        for n in range(max(map(len, parts))):
            lines.append(_row([p[n] if n < len(p) else "" for p in parts], widths))
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(_centred(c, w) for c, w in zip(cells, widths, strict=True)) + " |"


def _laid_out(
    title: str | None, header: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[list[str]], list[int], int]:
    """Cells as text, the width of each column, and that of all between the outer bars."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(_width(line) for row in cells for line in row[i].split("\n")) for i in range(len(header))]
    inner = sum(widths) + 3 * len(widths) - 1
    if title is not None and _width(title) + 2 > inner:  # a long title widens the columns in proportion
        wanted = sum(widths) + _width(title) + 2 - inner
        widths = [w * wanted // max(sum(widths), 1) for w in widths]
        widths[-1] += wanted - sum(widths)
        inner = _width(title) + 2
    return cells, widths, inner


def csv_text(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The same as CSV, every cell quoted."""
    out = io.StringIO()
    writer = csv.writer(out, dialect="unix")
    writer.writerow(header)
    writer.writerows([[str(cell) for cell in row] for row in rows])
    return out.getvalue()


def truncated(number: float, digits: int) -> float:
    """The number with its further digits cut off, not rounded: 0.99999 of a cosine must not become 1.

    >>> truncated(0.99999, 4), truncated(float("inf"), 2)
    (0.9999, inf)
    """
    if not math.isfinite(number):
        return number
    factor = 10.0**digits
    return int(number * factor) / factor


def _centred(text: str, width: int) -> str:
    spare = width - _width(text)
    left = spare // 2 + (1 if spare % 2 and _width(text) % 2 == 0 else 0)
    return " " * left + text + " " * (spare - left)


def _width(text: str) -> int:
    """Columns on a terminal; East Asian characters take two."""
    return sum(
        2 if ord(c) >= 0x1100 and (0x2E80 <= ord(c) <= 0xA4CF or 0xAC00 <= ord(c) <= 0xFFE6) else 1 for c in text
    )
