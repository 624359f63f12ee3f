"""Directories of saved arrays, compared as TroubleShooter's documents say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope.compat.troubleshooter import arrays
from twinscope.compat.troubleshooter.problems import ArgumentError


def fill(place: Path, **files: Any) -> Path:
    place.mkdir()
    for name, array in files.items():
        np.save(place / f"{name}.npy", np.asarray(array))
    return place


ONE = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_files_of_one_name_are_compared(tmp_path: Path, capsys: Any) -> None:
    orig, target = (
        fill(tmp_path / "a", x=ONE, y=ONE),
        fill(tmp_path / "b", x=ONE, y=ONE + np.eye(6, dtype=np.float32)[5].reshape(2, 3)),
    )
    table = arrays.compare_npy_dir(orig, target)
    rows = {row.orig: row for row in table.result}
    assert rows["x.npy"] and not rows["y.npy"]
    assert rows["y.npy"].ratio == pytest.approx(5 / 6) and rows["y.npy"].max_diff == 1.0
    out = capsys.readouterr().out
    assert "The list of comparison results" in out and " x.npy " in out
    assert "83.33%" in table and "100.00%" in table


def test_a_tolerance_is_relative_to_the_target(tmp_path: Path) -> None:
    orig, target = fill(tmp_path / "a", x=[1.0]), fill(tmp_path / "b", x=[2.0])
    assert arrays.compare_npy_dir(orig, target, rtol=0.5, atol=0.0).result[0]
    assert not arrays.compare_npy_dir(target, orig, rtol=0.5, atol=0.0).result[0]


def test_a_file_without_a_partner_is_a_difference(tmp_path: Path, capsys: Any) -> None:
    orig, target = fill(tmp_path / "a", x=ONE, y=ONE), fill(tmp_path / "b", x=ONE, z=ONE)
    table = arrays.compare_npy_dir(orig, target)
    assert [(r.orig, r.target, bool(r)) for r in table.result] == [
        ("x.npy", "x.npy", True),
        ("y.npy", None, False),
        (None, "z.npy", False),
    ]
    assert "cannot be fully mapped" in capsys.readouterr().out


def test_other_shapes_are_said(tmp_path: Path) -> None:
    orig, target = fill(tmp_path / "a", x=ONE), fill(tmp_path / "b", x=ONE.T)
    (row,) = arrays.compare_npy_dir(orig, target, compare_shape=True).result
    assert row.allclose == "Shape is inconsistent" and not row
    assert row.row(shapes=True)[2:4] == [(2, 3), (3, 2)]


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, 1.0]])
def test_what_is_not_finite(tmp_path: Path, values: list[float]) -> None:
    orig, target = fill(tmp_path / "a", x=values), fill(tmp_path / "b", x=values)
    other = fill(tmp_path / "c", x=[0.0, 1.0])
    assert bool(arrays.compare_npy_dir(orig, target).result[0]) is bool(np.isinf(values[0]))
    assert arrays.compare_npy_dir(orig, target, equal_nan=True).result[0]
    assert not arrays.compare_npy_dir(orig, other, equal_nan=True, atol=1e9).result[0]


def test_the_csv_has_every_row(tmp_path: Path) -> None:
    orig, target = fill(tmp_path / "a", x=ONE, y=ONE), fill(tmp_path / "b", x=ONE, y=ONE)
    arrays.compare_npy_dir(orig, target, output_file=tmp_path / "out.csv", compare_shape=True)
    rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    assert rows[0][:4] == ["orig array name", "target array name", "shape of orig", "shape of target"]
    assert [row[0] for row in rows[1:]] == ["x.npy", "y.npy"]
    with pytest.raises(ArgumentError, match="cannot be written"):
        arrays.compare_npy_dir(orig, target, output_file=tmp_path / "nowhere" / "out.csv")


def test_gradients_are_paired_by_shape_in_order(tmp_path: Path) -> None:
    orig = fill(tmp_path / "a", **{"0_g": ONE, "1_extra": np.ones(7), "2_g": ONE[0], "10_g": ONE.T})
    target = fill(tmp_path / "b", **{"0_h": ONE, "1_h": ONE[0], "2_h": ONE.T})
    table = arrays.compare_grads_dir(orig, target)
    assert [(r.orig, r.target) for r in table.result] == [
        ("0_g.npy", "0_h.npy"),
        ("1_extra.npy", None),
        ("2_g.npy", "1_h.npy"),
        ("10_g.npy", "2_h.npy"),
    ]
    assert [bool(r) for r in table.result] == [True, False, True, True]


def test_lists_are_paired_by_their_last_number(tmp_path: Path) -> None:
    orig = fill(tmp_path / "a", **{"5_out.0": ONE, "6_out.1": ONE + 1, "15_out.10": ONE + 2})
    target = fill(tmp_path / "b", **{"0_res.0": ONE, "1_res.1": ONE + 1, "2_res.10": ONE + 3})
    table = arrays.compare_list_dir(orig, target)
    assert [(r.orig, bool(r)) for r in table.result] == [
        ("5_out.0.npy", True),
        ("6_out.1.npy", True),
        ("15_out.10.npy", False),
    ]


def test_dicts_are_paired_by_name_whatever_was_saved_before(tmp_path: Path) -> None:
    orig = fill(tmp_path / "a", **{"3_out.k": ONE, "4_out.v": ONE + 1})
    target = fill(tmp_path / "b", **{"0_out.v": ONE + 1, "1_out.k": ONE})
    table = arrays.compare_dict_dir(orig, target)
    assert len(table.result) == 2 and all(table.result)
    np.save(target / "1_out.k.npy", ONE * 2)
    assert not all(arrays.compare_dict_dir(orig, target).result)


def test_names_without_numbers_do_not_get_in_the_way(tmp_path: Path) -> None:
    orig = fill(tmp_path / "a", **{"bias": ONE, "w1": ONE})
    names = arrays.get_name_map_list_by_number(orig, orig)
    assert names == [("w1.npy", "w1.npy"), ("bias.npy", "bias.npy")]


def test_a_pairing_of_ones_own(tmp_path: Path) -> None:
    orig, target = fill(tmp_path / "a", x=ONE), fill(tmp_path / "b", y=ONE)
    table = arrays.compare_npy_dir(orig, target, name_map_list=[("x.npy", "y.npy")], num_processes=1)
    assert table.result[0]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    orig = fill(tmp_path / "a", x=ONE)
    empty = fill(tmp_path / "b")
    with pytest.raises(ArgumentError, match="is not a directory"):
        arrays.compare_npy_dir(orig, tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"there is no \.npy file"):
        arrays.compare_grads_dir(orig, empty)
    with pytest.raises(ArgumentError, match="knows no 'tolerance'"):
        arrays.compare_npy_dir(orig, orig, tolerance=1)
    with pytest.raises(ArgumentError, match="num_processes"):
        arrays.compare_npy_dir(orig, orig, num_processes=0)
    np.save(orig / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ArgumentError, match="cannot be read"):
        arrays.compare_npy_dir(orig, orig)


def test_numbers_of_two_arrays() -> None:
    assert arrays.cal_algorithm(ONE, ONE, 0.0, 0.0, False) == (True, 1.0, 1.0, (0.0, 0.0))
    close, ratio, _, (mean, most) = arrays.cal_algorithm(ONE, ONE + 1, 0.0, 0.5, False)
    assert (close, ratio, mean, most) == (False, 0.0, 1.0, 1.0)
    assert arrays.cal_algorithm(np.array([1, 2]), np.array([1, 3]), 0.0, 1.0, False)[0] is True
    assert arrays.cal_cosine_sim([1.0, 0.0], [0.0, 1.0]) == pytest.approx(0.0)
