"""What documented calls return."""

from __future__ import annotations

import pytest

from twinscope.compat.answer import Answer


@pytest.mark.parametrize("passed", [True, False])
def test_it_is_what_scripts_take_it_for(passed: bool) -> None:
    answer = Answer(passed, lambda: "why")
    assert bool(answer) is passed
    assert answer == passed and answer != (not passed)
    assert str(answer) == str(passed)
    assert answer != "True"


def test_the_result_is_found_once_and_only_when_asked_for() -> None:
    asked = []

    def find() -> str:
        asked.append(1)
        return "why"

    answer = Answer(True, find)
    assert not asked
    assert answer.result == answer.result == "why"
    assert asked == [1]
