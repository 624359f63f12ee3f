"""Aligning two sequences: anchors first, dynamic programming in what is left; about linear in their length."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

_SMALL = 1024  # cells up to which nothing but the scores decides
_FULL = 4096  # cells that are computed without a second thought
_BAND = 24  # half the width of what is computed beyond that
_LONG = 12  # equal keys in a row that are believed
_SKIPS = 600  # most skips before such a row


def increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence (by the first) whose second numbers increase, too."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(pairs):
        at = bisect_left(tails, j)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [j]
        ends[at : at + 1] = [n]
    found = []
    n = ends[-1] if ends else -1
    while n >= 0:
        found.append(pairs[n])
        n = before[n]
    return found[::-1]


def align(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    score: Callable[[int, int], float],
    anchors: Iterable[tuple[int, int]] = (),
) -> list[tuple[int, int]]:
    """Pairs of positions, increasing on both sides, that maximise the sum of `score` (at most 0: not a pair).

    `a` and `b` are keys: equal ones that begin or end sequences of one length are paired without more ado, and in long
    ones those that occur once on both sides. What is left is settled by dynamic programming, in a band when it is
    long. `anchors` are paired already and are not returned.
    """
    found: list[tuple[int, int]] = []
    i = j = 0
    for p, q in [*increasing(sorted(anchors)), (len(a), len(b))]:
        _align_range(a, b, (i, p, j, q), score, found)
        i, j = p + 1, q + 1
    return found


def _align_range(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    whole: tuple[int, int, int, int],
    score: Callable[[int, int], float],
    found: list[tuple[int, int]],
) -> None:
    todo = [(whole, True)]
    while todo:
        (i, p, j, q), fresh = todo.pop()
        if p - i == q - j:  # of unequal length, which of several equal ones is missing is for the scores to say
            while i < p and a[i] == b[j] and score(i, j) > 0:
                found.append((i, j))
                i, j = i + 1, j + 1
        while i < p and j < q and p - i == q - j and a[p - 1] == b[q - 1] and score(p - 1, q - 1) > 0:
            p, q = p - 1, q - 1
            found.append((p, q))
        if i >= p or j >= q:
            continue
        anchors: list[tuple[int, int]] = []
        if fresh and (p - i) * (q - j) > _SMALL:
            once_a, once_b = _once(a, i, p), _once(b, j, q)
            anchors = increasing(sorted((once_a[key], once_b[key]) for key in once_a.keys() & once_b.keys()))
        if not anchors and (p - i) * (q - j) > _FULL:
            fresh = False
            anchors = _snakes(a, b, (i, p, j, q))
        anchors = [(m, n) for m, n in anchors if score(m, n) > 0]
        if not anchors:
            _programme((i, p, j, q), score, found)
            continue
        found += anchors
        for m, n in [*anchors, (p, q)]:
            todo.append(((i, m, j, n), fresh))
            i, j = m + 1, n + 1


def _snakes(a: Sequence[Hashable], b: Sequence[Hashable], whole: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Long equal stretches, each found with the fewest skips from the end of the one before.

    Myers' greedy search for a shortest edit, started anew after each stretch that is long enough to be trusted: the
    cost is quadratic in what lies between two stretches, not in the whole.
    """
    i, p, j, q = whole
    found: list[tuple[int, int]] = []
    while i < p and j < q:
        reach = {1: 0}  # by diagonal: how far into a
        snake = None
        for skips in range(_SKIPS):
            for k in range(-skips, skips + 1, 2):
                x = reach[k + 1] if k == -skips or (k != skips and reach[k - 1] < reach[k + 1]) else reach[k - 1] + 1
                start = x
                while i + x < p and 0 <= j + x - k < q and a[i + x] == b[j + x - k]:
                    x += 1
                reach[k] = x
                if x - start >= _LONG:
                    snake = (i + start, j + start - k, x - start)
                    break
            if snake is not None:
                break
        if snake is None:
            break
        m, n, length = snake
        found += [(m + d, n + d) for d in range(length)]
        i, j = m + length, n + length
    return found


def _once(keys: Sequence[Hashable], start: int, stop: int) -> dict[Hashable, int]:
    counts = Counter(keys[start:stop])
    return {keys[i]: i for i in range(start, stop) if counts[keys[i]] == 1}


def _programme(
    whole: tuple[int, int, int, int], score: Callable[[int, int], float], found: list[tuple[int, int]]
) -> None:
    i0, p, j0, q = whole
    n, m = p - i0, q - j0
    half = m if n * m <= _FULL else min(m, max(_BAND, min(abs(n - m), 128) + _BAND))
    slope = m / n
    # rows[i][j - start[i]]: the best that positions from i and j on can still reach; beyond the band it is unknown: 0
    starts = [max(0, int(i * slope) - half) for i in range(n)] + [max(0, m - 2 * half)]
    stops = [min(m, int(i * slope) + half + 1) for i in range(n)] + [m]
    moves: list[bytearray] = []
    below = [0.0] * (stops[n] - starts[n] + 1)
    below_start = starts[n]
    for i in range(n - 1, -1, -1):
        start, stop = starts[i], stops[i]
        row = [0.0] * (stop - start + 1)
        move = bytearray(stop - start)
        size = len(below)
        right = 0.0
        for j in range(stop - 1, start - 1, -1):
            at = j - below_start
            best, way = (below[at] if 0 <= at < size else 0.0), 1
            if right > best:
                best, way = right, 2
            gain = score(i0 + i, j0 + j)
            if gain > 0.0:
                # of equals, prefer the one nearer to the diagonal, so that neither side is favoured
                gain += 1e-4 * (1.0 - abs(i * slope - j) / (m + 1)) + (below[at + 1] if 0 <= at + 1 < size else 0.0)
                if gain >= best:
                    best, way = gain, 3
            row[j - start] = best
            move[j - start] = way
            right = best
        moves.append(move)
        below, below_start = row, start
    moves.reverse()
    i = j = 0
    while i < n and j < m:
        at = j - starts[i]
        if at < 0:
            j += 1
            continue
        way = moves[i][at] if at < len(moves[i]) else 1
        if way == 3:
            found.append((i0 + i, j0 + j))
            i, j = i + 1, j + 1
        elif way == 2:
            j += 1
        else:
            i += 1
