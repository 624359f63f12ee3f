"""The boxed tables that TroubleShooter's documents show, and their rows as CSV."""

from __future__ import annotations

import pytest

from twinscope.compat.troubleshooter.tables import Table, boxed, csv_text, truncated


def test_cells_are_centred_as_the_documents_have_them() -> None:
    text = boxed(
        "The list", ["ORIGIN NET (mindspore)", "TARGET NET (pytorch)"], [["Functional_clip_0", "Torch_clip_0"]]
    )
    assert text.splitlines() == [
        "+-----------------------------------------------+",
        "|                    The list                   |",
        "+------------------------+----------------------+",
        "| ORIGIN NET (mindspore) | TARGET NET (pytorch) |",
        "+------------------------+----------------------+",
        "|   Functional_clip_0    |     Torch_clip_0     |",
        "+------------------------+----------------------+",
    ]


def test_a_long_title_widens_the_columns() -> None:
    lines = boxed("a title that is longer than all columns", ["a", "bb"], [["1", "2"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "| a title that is longer than all columns |"


def test_an_east_asian_character_is_two_columns_wide() -> None:
    lines = boxed(None, ["名"], [["ab"]]).splitlines()
    assert lines[1] == "| 名 |" and lines[3] == "| ab |"


def test_csv_quotes_every_cell() -> None:
    assert csv_text(["a", "b"], [["x, y", None]]) == '"a","b"\n"x, y","None"\n'


@pytest.mark.parametrize(("number", "digits", "expected"), [(0.99999, 4, 0.9999), (1.0, 4, 1.0), (-0.00001, 4, -0.0)])
def test_digits_are_cut_off_and_never_rounded_up(number: float, digits: int, expected: float) -> None:
    assert truncated(number, digits) == expected
    assert truncated(float("inf"), digits) == float("inf")


def test_a_table_is_its_text_and_has_what_is_behind_it() -> None:
    table = Table("text", (1, 2))
    assert table == "text" and table.result == (1, 2) and f"{table}!" == "text!"
