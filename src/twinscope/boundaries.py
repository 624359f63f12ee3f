"""Modules that end elsewhere than their partners do, in networks that compute the same.

One side's norm layer activates too, one side's stage ends with the reduction that begins the next one on the other
side: what such modules return differs, and is not to be compared. It is no bug when the data flow says, on each side,
that what the module returns is as it should be: the step that made it agrees with its partner, or all that is made of
it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .records import Phase, Record, Verdict
from .result import PairResult

_FINE = frozenset({Verdict.EXACT, Verdict.NOISE})

#: The most steps without a partner that a value is followed through.
_LONGEST_WAY = 12


@dataclass(slots=True)
class _Value:
    """What was said of one value of one side."""

    made_alike: bool = False
    used_alike: bool = False  # at least once
    wrong: bool = False  # where it was used, and what came of it differs as well
    compared_in: set[int] = field(default_factory=set)  # steps that it was compared as an input of


class Boundaries:
    """Which values of one side are known to be what they should be."""

    def __init__(
        self,
        side: int,
        results: Iterable[PairResult],
        is_step: Callable[[PairResult], bool],
        excused: set[int],
        consumers: Mapping[int, Sequence[Record]],
        enclosing: Mapping[int, int | None],
    ) -> None:
        self._consumers = consumers
        self._enclosing = enclosing
        self._said: dict[int, _Value] = defaultdict(_Value)
        for result in results:
            record = (result.reference, result.candidate)[side]
            if record.phase is not Phase.FORWARD:
                continue
            step, root = is_step(result), record.path == "" and not is_step(result)
            if not step and not root:
                continue
            bad = result.verdict is Verdict.BUG and result.reference.call_id not in excused
            for diff in result.diffs:
                slot = (diff.reference, diff.candidate)[side]
                fine = diff.verdict in _FINE
                said = self._said[slot.value]
                if root or slot.side == "in":  # what the network returns, its user uses
                    if root and slot.side == "in":
                        continue
                    said.compared_in.add(record.call_id)
                    said.used_alike |= fine
                    said.wrong |= bad and diff.verdict is Verdict.BUG
                elif slot.side == "out":
                    said.made_alike |= fine

    def settled(self, value: int) -> bool:
        """Whether the step that made a value agrees with its partner, or all that is made of the value does."""
        return self._settled(value, set())

    def _settled(self, value: int, passed: set[int]) -> bool:
        if value in passed or len(passed) > _LONGEST_WAY:
            return False
        passed.add(value)
        said = self._said.get(value, _Value())
        if said.wrong:
            return False
        if said.made_alike:
            return True
        shown = said.used_alike
        for user in self._consumers.get(value, ()):
            if user.call_id in said.compared_in or self._enclosing.get(user.call_id) in said.compared_in:
                continue
            given = {s.value for s in user.inputs() if s.param is None}
            made = {s.value for s in user.outputs()} - given
            if not made:
                continue  # it hands on what it was given, or keeps it to itself
            if len(given) > 1:
                return False  # in a sum or a product another value may hide that this one is wrong
            if not any(self._settled(v, passed) for v in made):
                return False
            shown = True
        return shown
