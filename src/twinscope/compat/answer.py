"""What a documented call returns: a yes or no that can also say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Answer(Generic[T]):
    """True or False, as the document has it, printed and compared like one; `result` holds what Twinscope found.

    >>> answer = Answer(False, lambda: "the result")
    >>> answer == False, bool(answer), answer
    (True, False, False)
    >>> answer.result
    'the result'

    `result` is found when it is first asked for.
    """

    def __init__(self, passed: bool, find: Callable[[], T]) -> None:
        self._passed = bool(passed)
        self._find: Callable[[], T] | None = find
        self._result: T | None = None

    @property
    def result(self) -> T:
        """The result behind the answer: findings, pairs, numbers, and the verdict that needs no tolerance."""
        if self._find is not None:
            self._result = self._find()
            self._find = None
        assert self._result is not None
        return self._result

    def __bool__(self) -> bool:
        return self._passed

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (bool, Answer)):
            return self._passed == bool(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._passed)

    def __repr__(self) -> str:
        return repr(self._passed)
